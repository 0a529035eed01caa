/*
 * Units that do not stay whole on each device, and are read once: spread over several devices,
 * each of which holds about 1/n of their bytes, in the slices of stream_slices.h; or in host memory
 * that devices copy from, which all of them share. They are read by threads of their own and never
 * written again: any device may copy them at any time until ctw_shards_close(). So devices need not
 * keep in step. What fits neither is read from the files in every pass.
 */
#ifndef CTW_WORKER_SHARDS_H
#define CTW_WORKER_SHARDS_H

#include "kernels/backend.h"
#include "worker/checkpoint/identity.h"
#include "worker/weights/neighbours.h"
#include "worker/weights/stream_slices.h"

enum { CTW_SHARDS_MAX = CTW_NEIGHBOURS_MAX };

struct ctw_shards;

/* The most bytes that one of n devices holds; and at most, if other units of such sizes stay. */
enum ctw_status ctw_shards_bytes(const struct ctw_model *model, const struct ctw_placement *place,
                                 int n, uint64_t *bytes, struct ctw_err *err) CTW_MUST_CHECK;
uint64_t ctw_shards_bound(const struct ctw_placement *place, int n);

/* Allocates memory on each of the n devices and starts reading. All arguments but `place` must
 * outlive the shards. CTW_ENOMEM: a device has too little. */
enum ctw_status ctw_shards_open(struct ctw_shards **out, const struct ctw_model *model,
                                const struct ctw_placement *place, struct ctw_backend *const *be,
                                int n, struct ctw_err *err) CTW_MUST_CHECK;
/* Waits in ctw_shards_find() end with CTW_ECANCELED. Any thread. NULL is fine. */
void ctw_shards_stop(struct ctw_shards *s);
/* No copy from the shards is in flight any more. NULL is fine. */
void ctw_shards_close(struct ctw_shards *s);

/* Waits until a slice (an index of ctw_slices_make()) is in place, `at` in the memory of *be, or of
 * the host (*be NULL), as a stage. *at NULL: it is only in the files. Any thread. */
enum ctw_status ctw_shards_find(struct ctw_shards *s, int64_t slice, struct ctw_backend **be,
                                const void **at, struct ctw_err *err) CTW_MUST_CHECK;
/* Is the unit on devices? Then *first is the slice that device `self` gathers first: behind its own
 * run, which so comes last. */
bool ctw_shards_order(const struct ctw_shards *s, int self, int unit, int64_t *first);
/* The devices, which copy from each other's rings what is on no device. */
struct ctw_neighbours *ctw_shards_neighbours(struct ctw_shards *s);
/* Are some slices only in the files? */
bool ctw_shards_has_files(struct ctw_shards *s);
/* Are all in place? Then the files are not read again. */
bool ctw_shards_all_in(struct ctw_shards *s);

#endif
