/* Private to the engine's own files; all other code includes worker/engine/engine.h. */
#ifndef CTW_WORKER_ENGINE_STATE_H
#define CTW_WORKER_ENGINE_STATE_H

#include <pthread.h>

#include "worker/engine/compare/compare.h"
#include "worker/engine/compare/difference.h"
#include "worker/engine/engine.h"
#include "worker/engine/open/devices.h"
#include "worker/engine/pass/forward.h"
#include "worker/engine/place/placing.h"

struct ctw_engine {
    /*
     * The engines of the other devices. All share the model and its identity; everything else is
     * each engine's own. Numbers that an engine reports, other than scores, are its first device's.
     */
    struct ctw_engine *peer[CTW_MAX_DEVICES - 1];
    int n_peers;
    struct ctw_shards *shards; /* sharded: of all these devices; else NULL */
    bool is_peer;              /* the model is another's, */
    pthread_mutex_t *files;    /* and this lock for checking its files, too */
    const char *name;          /* or NULL */
    int device_number;
    bool failed; /* the device, while there are others */
    double rate; /* of the last sequences: cost per second (deal.c); 0: not known */
    struct ctw_model *model;
    struct ctw_devices *devices;
    struct ctw_devices own; /* `devices`, if the options name none */
    struct ctw_device *device;
    struct ctw_backend *be; /* the device's */
    struct ctw_provider *provider;
    struct ctw_placing placing;  /* where the provider has the weights */
    struct ctw_forward *forward; /* kept between calls while its plan suffices */
    enum ctw_dtype dtype;
    int64_t max_length, fit_length;
    int64_t chunk_tokens, pass_tokens; /* as requested; 0: planned */
    bool no_share;                     /* likewise */
    uint64_t device_limit; /* bytes of the device's memory, for all of its engines; 0: none */
    uint64_t memory_limit;
    uint64_t share; /* of the memory limit, while buffers are for comparing; 0: all */
    bool limit_is_default;
    bool limit_is_free; /* the memory limit is what was free: raising it would not help */
    const struct ctw_machine *machine; /* that is planned for */
    int n_threads;                     /* for reading files */
    const atomic_bool *stop;           /* stops reading files; or NULL */
    bool files_checked;                /* since their last byte was read */
    struct ctw_plan plan;              /* for sequences of the usual length */
    char numerics[CTW_NUMERICS_MAX];
    size_t n_numerics; /* its length without the vocabulary */
};

/* ctw_engine_trim(), ctw_engine_score() and ctw_engine_compare(), on the engine's own device alone.
 */
void ctw_engine_trim_here(struct ctw_engine *e);
enum ctw_status ctw_engine_score_here(struct ctw_engine *e, struct ctw_seq *seqs, int64_t n_seqs,
                                      const struct ctw_hooks *hooks,
                                      struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_engine_compare_here(struct ctw_engine *e, struct ctw_engine *reference,
                                        struct ctw_seq *seqs, int64_t n_seqs,
                                        const struct ctw_hooks *hooks, bool *in_reference,
                                        struct ctw_err *err) CTW_MUST_CHECK;

/* Sequences, as struct ctw_plan_request describes them. */
struct ctw_need {
    int64_t longest, total; /* input tokens */
    bool shares;
    int64_t trunk;
    bool follows;
};

/* Makes e->forward suffice for these sequences. */
enum ctw_status ctw_engine_prepare(struct ctw_engine *e, const struct ctw_need *need,
                                   struct ctw_err *err) CTW_MUST_CHECK;
/* engine_open.c: the plan for that, within the engine's limits. */
enum ctw_status ctw_engine_make_plan(const struct ctw_engine *e, const struct ctw_need *need,
                                     struct ctw_plan *plan, struct ctw_err *err) CTW_MUST_CHECK;
/* limits.c: of the device, which is open, for all of its engines together. */
void ctw_engine_limit_device(struct ctw_engine *e, const struct ctw_amount *limit);
/* limits.c: bytes of the device's memory that the engine may still allocate, or map. */
uint64_t ctw_engine_room(const struct ctw_engine *e);
/* limits.c: the limit of an engine on the CPU, before its weights are opened. By default a quarter
 * of the free memory, at least 512 MiB. Any limit is lowered to the free memory beside the weights,
 * so that no pass gets the process killed. */
void ctw_engine_limit_host(struct ctw_engine *e);
/* limits.c: the default limit on a GPU: most of what the weights leave. */
enum ctw_status ctw_engine_set_default_limit(struct ctw_engine *e,
                                             struct ctw_err *err) CTW_MUST_CHECK;
/* On a GPU, the default limit is most of the memory that is free now. */
enum ctw_status ctw_engine_measure_limit(struct ctw_engine *e, struct ctw_err *err) CTW_MUST_CHECK;

/* pair.c: the same for two engines, which share the memory with the buffers of comparing. Passes
 * may have *pass_tokens. */
enum ctw_status ctw_engines_prepare(struct ctw_engine *e, struct ctw_engine *reference,
                                    const struct ctw_need *need, struct ctw_compare **compare,
                                    int64_t *pass_tokens, struct ctw_err *err) CTW_MUST_CHECK;

#endif
