/*
 * Units that do not stay whole on each device and are read only once. Their bytes are spread over
 * several devices, each of which holds about 1/n in slices (stream_slices.h), or lie in host memory
 * that all devices copy from. The shards have their own threads, which read the units and never
 * write them again. So any device may copy a unit at any time until ctw_shards_close(), and devices
 * need not keep in step. Units that fit in neither place are read from the files in every pass.
 */
#ifndef CTW_WORKER_SHARDS_H
#define CTW_WORKER_SHARDS_H

#include "kernels/backend.h"
#include "worker/checkpoint/identity.h"
#include "worker/weights/neighbours.h"
#include "worker/weights/stream_slices.h"

enum { CTW_SHARDS_MAX = CTW_NEIGHBOURS_MAX };

struct ctw_shards;

/* ctw_shards_bytes(): the most bytes that one of n devices holds. ctw_shards_bound(): an upper
 * bound of them, if other units of such sizes stay. */
enum ctw_status ctw_shards_bytes(const struct ctw_model *model, const struct ctw_placement *place,
                                 int n, uint64_t *bytes, struct ctw_err *err) CTW_MUST_CHECK;
uint64_t ctw_shards_bound(const struct ctw_placement *place, int n);

/* Allocates memory on each of the n devices and starts reading. All arguments but `place` must
 * outlive the shards. CTW_ENOMEM: a device has too little. */
enum ctw_status ctw_shards_open(struct ctw_shards **out, const struct ctw_model *model,
                                const struct ctw_placement *place, struct ctw_backend *const *be,
                                int n, struct ctw_err *err) CTW_MUST_CHECK;
/* Ends waits in ctw_shards_find() with CTW_ECANCELED. Any thread. NULL is fine. */
void ctw_shards_stop(struct ctw_shards *s);
/* Call it when no copy from the shards is in flight. NULL is fine. */
void ctw_shards_close(struct ctw_shards *s);

/* Waits until a slice (an index of ctw_slices_make()) is in place. *at: its address in the memory
 * of *be, or in host memory as a stage if *be is NULL. *at NULL: the slice is only in the files.
 * Any thread. */
enum ctw_status ctw_shards_find(struct ctw_shards *s, int64_t slice, struct ctw_backend **be,
                                const void **at, struct ctw_err *err) CTW_MUST_CHECK;
/* Is the unit on devices? Then *first is the slice that device `self` should gather first: the
 * slice behind its own run, so that the own run comes last. */
bool ctw_shards_order(const struct ctw_shards *s, int self, int unit, int64_t *first);
/* The devices, which copy units that are on no device from each other's rings. */
struct ctw_neighbours *ctw_shards_neighbours(struct ctw_shards *s);
/* Are some slices only in the files? */
bool ctw_shards_has_files(struct ctw_shards *s);
/* Are all slices in place? Then the files are not read again. */
bool ctw_shards_all_in(struct ctw_shards *s);

#endif
