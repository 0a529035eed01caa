/*
 * The activity of devices, for `info`. The threads that use the devices report it.
 * ctw_devices_report() may be called from any thread, and calls no GPU's driver: the driver of a
 * GPU that computes may answer late.
 */
#ifndef CTW_WORKER_ACTIVITY_H
#define CTW_WORKER_ACTIVITY_H

#include "worker/engine/open/devices.h"

struct ctw_engine;
struct ctw_plan; /* worker/engine/pass/plan.h */

/* Memory is in bytes: a GPU's own, or on the CPU what processes of this machine, container or batch
 * job may have. */
struct ctw_device_report {
    int number; /* as in --devices */
    struct ctw_backend_info info;
    uint64_t memory_total;
    uint64_t memory_free;    /* a GPU's: when the worker last worked on it */
    uint64_t memory_used;    /* a GPU's: allocated for weights and passes; else by this process */
    uint64_t weights;        /* of all models: allocated, or mapped */
    uint64_t passes_planned; /* beyond the weights, for the present model */
    const char *state;       /* "idle", "loading", "computing", "waiting for weights", "failed" */
    char model[128];         /* the model of the present or last work; "": without a name */
    char message[256];       /* why it failed, or "" */
    int layer, n_layers;     /* computing: of the decoder layers and the head; on a GPU, queued */
    double weights_read;     /* share of the weights of the model that was opened last, 0..1 */
    int64_t tokens_done;     /* in passes that have ended */
    double tokens_per_s;     /* of the last of them; 0: none has ended */
};

/* The first `most` devices that engines have open, by number; returns how many. */
int ctw_devices_report(const struct ctw_devices *all, struct ctw_device_report *out, int most);

/* ---- of the engine's own device; by the thread that uses it ---- */

void ctw_activity_opening(struct ctw_engine *e);
void ctw_activity_holds_weights(struct ctw_engine *e);
void ctw_activity_opened(struct ctw_engine *e);
/* The engine's weights are about to be freed, and then perhaps its model. */
void ctw_activity_closing(struct ctw_engine *e);
/* Buffers of this plan were allocated, or freed. */
void ctw_activity_buffers(struct ctw_engine *e, const struct ctw_plan *plan, bool allocated);
/* A pass begins; has run its next layer; has ended, with n_tok input tokens. */
void ctw_activity_begin_pass(struct ctw_engine *e);
void ctw_activity_next_layer(struct ctw_engine *e);
void ctw_activity_end_pass(struct ctw_engine *e, int64_t n_tok);
/* No pass follows for now; with CTW_EDEVICE, none ever: the device has failed. */
void ctw_activity_end(struct ctw_engine *e, enum ctw_status st, const struct ctw_err *err);

#endif
