/*
 * What several devices read from host memory or from files in every pass, each through a ring of
 * its own (stream.h): a slice that lies in one device's ring is copied from there by the others. So
 * devices that are at the same layer read 1/n each, and the rest comes over the links between them.
 *
 * No device waits for one that is elsewhere in its pass: a slice that no neighbour has read or is
 * reading is read as if there were none. A device that is behind copies from those before it, which
 * is faster, until it is with them.
 */
#ifndef CTW_WORKER_NEIGHBOURS_H
#define CTW_WORKER_NEIGHBOURS_H

#include "kernels/backend.h"
#include "worker/weights/stream_slices.h"

enum { CTW_NEIGHBOURS_MAX = 16 };

struct ctw_neighbours;

/* Of n devices that read the slices of n_units units. The slices and backends must outlive it. */
enum ctw_status ctw_neighbours_open(struct ctw_neighbours **out, const struct ctw_slices *slices,
                                    int n_units, struct ctw_backend *const *be, int n,
                                    struct ctw_err *err) CTW_MUST_CHECK;
/* All have left. NULL is fine. */
void ctw_neighbours_close(struct ctw_neighbours *nb);

/* The number of a device; -1: it is none of these. */
int ctw_neighbours_find(const struct ctw_neighbours *nb, const struct ctw_backend *be);

/* The k-th slice of a unit that this device should read: those that it reads for the others come
 * first, then the next device's, and so on. */
int64_t ctw_neighbours_order(const struct ctw_neighbours *nb, int self, int unit, int64_t k);

/*
 * Begins a copy of the slice from a neighbour that has it in its ring or is reading it, which is
 * waited for. False: there is none, or a copy failed: this device is to read it, and then calls
 * ctw_neighbours_offer(), since neighbours may wait for it. Any thread.
 */
bool ctw_neighbours_copy(struct ctw_neighbours *nb, int self, int unit, int64_t slice, void *to,
                         size_t bytes, uint64_t *ticket);

/* The slice lies at `at` in this device's memory once its upload or copy of that ticket has ended,
 * until ctw_neighbours_withdraw() of its unit. at NULL: reading it failed. Any thread. */
void ctw_neighbours_offer(struct ctw_neighbours *nb, int self, int64_t slice, const void *at,
                          uint64_t ticket);

/* Waits until no neighbour reads the unit's slices in this device's memory, and none can begin to,
 * so that their bytes may be reused or freed. */
void ctw_neighbours_withdraw(struct ctw_neighbours *nb, int self, int unit);

#endif
