/* The present rate at which a checkpoint's files can be read. */
#ifndef CTW_WORKER_READ_RATE_H
#define CTW_WORKER_READ_RATE_H

#include "worker/checkpoint/container/container.h"

/* Bytes per second, with several threads, for samples from all over the files, read from the page
 * cache or the disk. The measurement takes at most about half a second. 0: unknown. */
double ctw_read_rate(const struct ctw_container *c);

#endif
