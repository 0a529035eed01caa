#include "worker/engine/open/activity.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/host.h"
#include "worker/checkpoint/identity.h"
#include "worker/engine/engine_state.h"

enum { ASK_AGAIN_S = 1 };

/* ---- telling ------------------------------------------------------------------------------ */

static struct ctw_activity *begin(struct ctw_engine *e)
{
    if (e->devices->lock != NULL)
        pthread_mutex_lock(e->devices->lock);
    return &e->device->activity;
}

static void end(struct ctw_engine *e)
{
    if (e->devices->lock != NULL)
        pthread_mutex_unlock(e->devices->lock);
}

/* The driver's answer takes some microseconds, so this is not called after every short pass. */
static void ask_memory(struct ctw_engine *e, bool now)
{
    double now_s = ctw_now_s();
    if (ctw_backend_traits(e->be)->host_memory || e->devices->lock == NULL ||
        (!now && now_s < e->device->activity.asked_s + ASK_AGAIN_S))
        return;
    uint64_t bytes = ctw_backend_memory_free(e->be);
    struct ctw_activity *a = begin(e);
    a->memory_free = bytes;
    a->asked_s = now_s;
    end(e);
}

static void work_on(struct ctw_activity *a, const struct ctw_engine *e, enum ctw_doing doing)
{
    a->doing = a->doing == CTW_FAILED ? CTW_FAILED : doing;
    a->passes_planned = e->plan.total;
    snprintf(a->model, sizeof(a->model), "%s", e->name == NULL ? "" : e->name);
}

void ctw_activity_opening(struct ctw_engine *e)
{
    struct ctw_activity *a = begin(e);
    work_on(a, e, CTW_OPENING);
    a->number = e->device_number;
    a->reading = e->model->identity;
    end(e);
    ask_memory(e, true);
}

void ctw_activity_holds_weights(struct ctw_engine *e)
{
    struct ctw_activity *a = begin(e);
    a->weights += e->placing.memory;
    end(e);
    ctw_provider_watch(e->provider, &e->device->activity.waiting);
}

void ctw_activity_opened(struct ctw_engine *e)
{
    work_on(begin(e), e, CTW_IDLE);
    end(e);
    ask_memory(e, true);
}

void ctw_activity_closing(struct ctw_engine *e)
{
    if (e->device == NULL)
        return;
    struct ctw_activity *a = begin(e);
    a->doing = a->doing == CTW_FAILED ? CTW_FAILED : CTW_IDLE;
    if (e->provider != NULL)
        a->weights -= e->placing.memory;
    if (a->reading == e->model->identity)
        a->reading = NULL;
    end(e);
}

void ctw_activity_buffers(struct ctw_engine *e, const struct ctw_plan *plan, bool allocated)
{
    struct ctw_activity *a = begin(e);
    uint64_t own = plan->total - plan->scratch;
    a->buffers += allocated ? own : -own;
    a->scratch = e->device->n_holders == 0    ? 0
                 : plan->scratch > a->scratch ? plan->scratch
                                              : a->scratch;
    a->asked_s = 0; /* what is free has changed */
    end(e);
}

void ctw_activity_begin_pass(struct ctw_engine *e)
{
    struct ctw_activity *a = begin(e);
    work_on(a, e, CTW_COMPUTING);
    if (e->forward->plan.total > a->passes_planned) /* long sequences */
        a->passes_planned = e->forward->plan.total;
    a->layer = 0;
    a->n_layers = e->model->n_layers - 1;
    a->began_s = ctw_now_s();
    end(e);
}

void ctw_activity_next_layer(struct ctw_engine *e)
{
    struct ctw_activity *a = begin(e);
    a->layer += a->layer < a->n_layers;
    end(e);
}

void ctw_activity_end_pass(struct ctw_engine *e, int64_t n_tok)
{
    struct ctw_activity *a = begin(e);
    double took_s = ctw_now_s() - a->began_s;
    a->n_tok += n_tok;
    a->tokens_per_s = took_s > 0 ? (double)n_tok / took_s : 0;
    end(e);
    ask_memory(e, false);
}

void ctw_activity_end(struct ctw_engine *e, enum ctw_status st, const struct ctw_err *err)
{
    struct ctw_activity *a = begin(e);
    if (st == CTW_EDEVICE && a->doing != CTW_FAILED && err != NULL)
        snprintf(a->message, sizeof(a->message), "%.*s", (int)sizeof(a->message) - 1, err->msg);
    a->doing = st == CTW_EDEVICE || a->doing == CTW_FAILED ? CTW_FAILED : CTW_IDLE;
    end(e);
}

/* ---- reporting ---------------------------------------------------------------------------- */

static const char *state_of(const struct ctw_activity *a, double weights_read)
{
    if (a->doing == CTW_FAILED)
        return "failed";
    if (a->doing == CTW_COMPUTING)
        return atomic_load(&a->waiting) ? "waiting for weights" : "computing";
    return a->doing == CTW_OPENING || weights_read < 1 ? "loading" : "idle";
}

static void report(const struct ctw_device *d, struct ctw_device_report *out)
{
    const struct ctw_activity *a = &d->activity;
    *out = (struct ctw_device_report){
        .number = a->number,
        .memory_free = a->memory_free,
        .memory_used = a->weights + a->buffers + a->scratch,
        .weights = a->weights,
        .passes_planned = a->passes_planned,
        .layer = a->layer,
        .n_layers = a->n_layers,
        .weights_read = a->reading != NULL ? ctw_identity_share(a->reading) : 1,
        .tokens_done = a->n_tok,
        .tokens_per_s = a->tokens_per_s,
    };
    ctw_backend_get_info(d->be, &out->info);
    out->state = state_of(a, out->weights_read);
    out->memory_total = out->info.memory_total;
    if (ctw_backend_traits(d->be)->host_memory) {
        const struct ctw_host_memory m = ctw_host_memory("");
        out->memory_total = m.total;
        out->memory_free = m.free;
        out->memory_used = ctw_host_resident("");
    }
    memcpy(out->model, a->model, sizeof(out->model));
    memcpy(out->message, a->message, sizeof(out->message));
}

/* Sorts by number: a table lists its devices in the order of their opening, the newest first. */
int ctw_devices_report(const struct ctw_devices *all, struct ctw_device_report *out, int most)
{
    int n = 0;
    if (all->lock != NULL)
        pthread_mutex_lock(all->lock);
    for (const struct ctw_device *d = all->first; d != NULL && n < most; d = d->next) {
        int at = n++;
        for (; at > 0 && out[at - 1].number > d->activity.number; at--)
            out[at] = out[at - 1];
        report(d, &out[at]);
    }
    if (all->lock != NULL)
        pthread_mutex_unlock(all->lock);
    return n;
}
