/* How fast bytes come to devices now, from each other's memory and from the host's. */
#ifndef CTW_WORKER_LINK_RATE_H
#define CTW_WORKER_LINK_RATE_H

#include "kernels/backend.h"

/*
 * Bytes a second that come to each device while all copy from their neighbour, so that links carry
 * both directions. *direct: every device has a path to its neighbour; else the bytes go through the
 * host. Takes a few milliseconds on fast links, and 64 MiB on each device meanwhile. 0: unknown, as
 * memory was lacking or a copy failed, which the next use of the device reports.
 */
double ctw_peer_rate(struct ctw_backend *const *devices, int n, bool *direct);
/* The same from locked host memory. */
double ctw_host_rate(struct ctw_backend *const *devices, int n);

#endif
