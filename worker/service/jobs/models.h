/*
 * The worker's table of models, which only models.c changes. Nothing here locks: the caller holds
 * the queue's lock.
 */
#ifndef CTW_WORKER_MODELS_H
#define CTW_WORKER_MODELS_H

#include "ipc/limits.h"
#include "worker/engine/engine.h"

enum {
    CTW_MODEL_NAME_MAX = 128,
    CTW_MODELS_BUSY_MS = 1000 /* before a refused client asks again */
};

enum ctw_model_state {
    CTW_MODEL_LOADING, /* the scoring thread will open it */
    CTW_MODEL_READY,
    CTW_MODEL_FAILED,
    CTW_MODEL_CLOSING /* the scoring thread will close and forget it */
};

struct ctw_model_slot {
    char name[CTW_MODEL_NAME_MAX];
    char *path;        /* does not change while LOADING */
    const char *dtype; /* of its activations, a name that is never freed; NULL: the worker's */
    enum ctw_model_state state;
    struct ctw_err error;        /* FAILED: it could not be opened, or its files have changed */
    struct ctw_engine *engine;   /* READY, CLOSING */
    struct ctw_engine_info info; /* READY */
    uint64_t opened;             /* READY: the number of this opening among all of this worker */
    char products[2048];         /* the engine's choices of algorithms for products so far */
    bool initial;                /* from the command line: if it fails to load, the worker fails */
};

struct ctw_models {
    struct ctw_model_slot *slots[CTW_IPC_MODELS];
    int n;
    uint64_t n_opened;
};

const char *ctw_model_state_name(enum ctw_model_state state);
/* Writes `name`, or the last part of the path if `name` is NULL or "". CTW_EINVAL: the name is not
 * valid. */
enum ctw_status ctw_model_choose_name(const char *path, const char *name,
                                      char out[CTW_MODEL_NAME_MAX],
                                      struct ctw_err *err) CTW_MUST_CHECK;

/* "": the first model. NULL: none. */
struct ctw_model_slot *ctw_models_find(const struct ctw_models *t, const char *name);
/* The first model in this state; with `initial`, only models of the command line. NULL: none. */
const struct ctw_model_slot *ctw_models_in_state(const struct ctw_models *t,
                                                 enum ctw_model_state state, bool initial);

/*
 * A LOADING slot. A FAILED slot of this name is used again, with its own dtype if `dtype` is NULL.
 * CTW_EINVAL: the name is taken; CTW_EBUSY: too many models, and *retry_ms is set.
 */
enum ctw_status ctw_models_add(struct ctw_models *t, const char *path, const char *name,
                               const char *dtype, int *retry_ms,
                               struct ctw_err *err) CTW_MUST_CHECK;
/* All models that are in the table now are from the command line. */
void ctw_models_mark_initial(struct ctw_models *t);
/* Takes the slot out of the table; the caller destroys it. */
void ctw_models_take_out(struct ctw_models *t, const struct ctw_model_slot *m);
void ctw_models_fini(struct ctw_models *t); /* closes engines that are still open */

/* LOADING -> READY; the slot owns the engine. */
void ctw_models_opened(struct ctw_models *t, struct ctw_model_slot *m, struct ctw_engine *engine,
                       const struct ctw_engine_info *info);
/* -> FAILED. Returns the engine, which the caller closes; NULL: it was never open. */
struct ctw_engine *ctw_model_fail(struct ctw_model_slot *m, const struct ctw_err *err);
void ctw_model_start_closing(struct ctw_model_slot *m); /* -> CLOSING */
/* Tokens of a pass of this ready model, and of this reference (NULL: none). */
int64_t ctw_models_pass_tokens(const struct ctw_model_slot *m,
                               const struct ctw_model_slot *reference);
/* Copies the engine's choices of algorithms for products. */
void ctw_model_describe(struct ctw_model_slot *m);
void ctw_model_destroy(struct ctw_model_slot *m); /* closes its engine */

#endif
