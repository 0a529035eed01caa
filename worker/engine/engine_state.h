/* Private to engine.c and scoring.c; all other code includes worker/engine/engine.h. */
#ifndef CTW_WORKER_ENGINE_STATE_H
#define CTW_WORKER_ENGINE_STATE_H

#include "worker/engine/devices.h"
#include "worker/engine/engine.h"
#include "worker/engine/forward.h"

struct ctw_engine {
    struct ctw_model *model;
    struct ctw_devices *devices;
    struct ctw_devices own; /* `devices`, if the options name none */
    struct ctw_device *device;
    struct ctw_backend *be; /* the device's */
    struct ctw_provider *provider;
    struct ctw_forward *forward; /* kept between calls while its plan suffices */
    enum ctw_dtype dtype;
    int64_t max_length, fit_length;
    int64_t chunk_tokens, pass_tokens; /* as requested; 0: planned */
    uint64_t memory_limit;
    bool limit_is_default;
    int n_threads;           /* for reading files */
    const atomic_bool *stop; /* stops reading files; or NULL */
    bool files_checked;      /* since their last byte was read */
    struct ctw_plan plan;    /* for sequences of the usual length */
    char numerics[160];
};

/* Makes e->forward suffice for sequences of up to `longest` input tokens, `total` together. */
enum ctw_status ctw_engine_prepare(struct ctw_engine *e, int64_t longest, int64_t total,
                                   struct ctw_err *err) CTW_MUST_CHECK;

#endif
