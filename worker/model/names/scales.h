/*
 * Scales of activations, of attention and of K/V caches that tools store beside quantised weights,
 * under any name: weight-only scoring does not need them. Used by unused.c only.
 */
#ifndef CTW_WORKER_SCALES_H
#define CTW_WORKER_SCALES_H

#include "worker/model/model.h"

/* The modules that may own such scales, sorted by name. */
struct ctw_scale_owners {
    struct ctw_scale_owner *list;
    int64_t n;
    bool made;
};

/*
 * Does the tensor hold scales, zero points or ranges of a quantised matrix or of the attention
 * around a quantised matrix? A tensor holds one number, or one number per head. quantises_kv: the
 * K/V cache is quantised, regardless of the weights. The first call makes *owners, which the caller
 * closes.
 */
enum ctw_status ctw_scale_belongs(struct ctw_scale_owners *owners, const struct ctw_model *m,
                                  bool quantises_kv, const struct ctw_tensor *t, bool *out,
                                  struct ctw_err *err) CTW_MUST_CHECK;
void ctw_scale_owners_close(struct ctw_scale_owners *owners);

#endif
