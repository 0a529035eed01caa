/*
 * Slices that several devices read from host memory or from files in every pass, each device
 * through its own ring (stream.h). Once a slice is in the ring of one device, the other devices
 * copy it from there. So devices that are at the same layer read 1/n of the bytes each, and the
 * rest comes over the links between the devices.
 *
 * No device waits for a device that is elsewhere in its pass: if no neighbour has the slice or is
 * reading it, the device reads the slice itself. A device that is behind copies from the devices
 * before it. Copying is faster than reading, so the device catches up.
 */
#ifndef CTW_WORKER_NEIGHBOURS_H
#define CTW_WORKER_NEIGHBOURS_H

#include "kernels/backend.h"
#include "worker/weights/stream_slices.h"

enum { CTW_NEIGHBOURS_MAX = 16 };

struct ctw_neighbours;

/* For n devices that read the slices of n_units units. The slices and backends must outlive
 * *out. */
enum ctw_status ctw_neighbours_open(struct ctw_neighbours **out, const struct ctw_slices *slices,
                                    int n_units, struct ctw_backend *const *be, int n,
                                    struct ctw_err *err) CTW_MUST_CHECK;
/* Call it after all devices have stopped reading. NULL is fine. */
void ctw_neighbours_close(struct ctw_neighbours *nb);

/* The number of a device; -1: the device is not one of these. */
int ctw_neighbours_find(const struct ctw_neighbours *nb, const struct ctw_backend *be);

/* The k-th slice of a unit for this device to read. First come the slices that this device reads
 * for the other devices, then those of the next device, and so on. */
int64_t ctw_neighbours_order(const struct ctw_neighbours *nb, int self, int unit, int64_t k);

/*
 * Begins a copy of the slice from a neighbour that has the slice in its ring, or waits for a
 * neighbour that is reading it. False: there is no such neighbour, or the copy failed. Then this
 * device must read the slice and call ctw_neighbours_offer(), because neighbours may wait for the
 * slice. Any thread.
 */
bool ctw_neighbours_copy(struct ctw_neighbours *nb, int self, int unit, int64_t slice, void *to,
                         size_t bytes, uint64_t *ticket);

/* Announces that the slice lies at `at` in this device's memory from the end of the upload or copy
 * with that ticket until ctw_neighbours_withdraw() of its unit. at NULL: the slice could not be
 * read. Any thread. */
void ctw_neighbours_offer(struct ctw_neighbours *nb, int self, int64_t slice, const void *at,
                          uint64_t ticket);

/* Waits until no neighbour reads the unit's slices in this device's memory, and prevents further
 * copies. Afterwards the bytes may be reused or freed. */
void ctw_neighbours_withdraw(struct ctw_neighbours *nb, int self, int unit);

#endif
