/* The present rates of copies to devices, from each other's memory and from the host's. */
#ifndef CTW_WORKER_LINK_RATE_H
#define CTW_WORKER_LINK_RATE_H

#include "kernels/backend.h"

/*
 * Bytes per second that each device receives while all copy from their neighbour, so that links
 * carry both directions. *direct: every device has a path to its neighbour; otherwise the bytes go
 * through the host. The measurement takes a few milliseconds on fast links and 64 MiB on each
 * device. 0: unknown, because memory was lacking or a copy failed; the next use of the device
 * reports the failure.
 */
double ctw_peer_rate(struct ctw_backend *const *devices, int n, bool *direct);
/* The same from locked host memory. */
double ctw_host_rate(struct ctw_backend *const *devices, int n);

#endif
