/* See base/clock.h. */
#ifndef CTW_WORKER_CLOCK_H
#define CTW_WORKER_CLOCK_H

#include "base/clock.h"

#endif
