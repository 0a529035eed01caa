/* How fast a checkpoint's files can be read now. */
#ifndef CTW_WORKER_READ_RATE_H
#define CTW_WORKER_READ_RATE_H

#include "worker/checkpoint/container.h"

/* Bytes a second, with several threads, of samples from all over the files: from the page cache as
 * far as they are in it, else from the disk. Takes at most about half a second. 0: unknown. */
double ctw_read_rate(const struct ctw_container *c);

#endif
