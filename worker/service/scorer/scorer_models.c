/* Opens and closes models: see worker/service/scorer/scorer.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "worker/service/scorer/scorer.h"

static void announce(const struct ctw_model_slot *m, const struct ctw_engine_info *info,
                     int64_t took_ms)
{
    const double mib = 1024 * 1024;
    ctw_info("%s is ready after %.1f s: %s, %s on %s (%s)", m->name, (double)took_ms / 1000,
             info->model->architecture, info->numerics, info->backend.device, info->backend.reason);
    if (info->n_devices > 1)
        ctw_info("%d devices of this kind share the work", info->n_devices);
    ctw_info("maximum length %" PRId64 ", passes of up to %" PRId64 " tokens, memory beyond the "
             "weights %.0f MiB (limit %.0f MiB)",
             info->max_length, info->pass_tokens, (double)info->memory_planned / mib,
             (double)info->memory_limit / mib);
    ctw_log_lines(CTW_LOG_INFO, "weights: ", info->place_note);
    if (info->fit_length < info->max_length)
        ctw_warn("inputs of more than %" PRId64 " tokens do not fit the memory limit and are "
                 "refused: raise --memory-limit, or give --max-length %" PRId64,
                 info->fit_length, info->fit_length);
    if (info->model->activations != NULL)
        ctw_info("the file declares activation quantisation (%s); scoring %s",
                 info->model->activations,
                 info->model->quantises_activations ? "simulates it" : "quantises weights only");
}

void ctw_scorer_trim_others(struct ctw_queue *q, const struct ctw_engine *in_use,
                            const struct ctw_engine *also)
{
    for (int i = 0; i < q->models.n; i++) {
        struct ctw_engine *e = q->models.slots[i]->engine;
        if (e != NULL && e != in_use && e != also)
            ctw_engine_trim(e);
    }
}

/* Lock held; released meanwhile. */
static void open_model(struct ctw_scorer *s, struct ctw_model_slot *m)
{
    struct ctw_queue *q = s->queue;
    struct ctw_engine_options options = s->options;
    struct ctw_engine *engine = NULL;
    struct ctw_engine_info info;
    struct ctw_err err;
    options.stop = &q->life.stop;
    options.name = m->name;
    options.model_dir = m->path; /* does not change while LOADING */
    if (m->dtype != NULL)
        options.dtype = m->dtype;
    ctw_scorer_trim_others(q, NULL, NULL); /* so that the new engine sees all free memory */
    s->engine = NULL;
    pthread_mutex_unlock(&q->lock);
    ctw_info("loading %s", options.model_dir);
    int64_t start = ctw_now_ms();
    enum ctw_status st = ctw_engine_open(&engine, &options, &err);
    if (st == CTW_OK) {
        ctw_engine_get_info(engine, &info);
        announce(m, &info, ctw_now_ms() - start);
    } else { /* the log may name the folder; tcp clients must not see it */
        ctw_error("%s: %s", options.model_dir, err.msg);
    }
    pthread_mutex_lock(&q->lock);
    if (st == CTW_OK)
        ctw_models_opened(&q->models, m, engine, &info);
    else
        (void)ctw_model_fail(m, &err); /* no engine is open */
}

/* Lock held; released meanwhile. */
static void close_model(struct ctw_queue *q, struct ctw_model_slot *m)
{
    char name[CTW_MODEL_NAME_MAX];
    snprintf(name, sizeof(name), "%s", m->name);
    ctw_models_take_out(&q->models, m);
    pthread_mutex_unlock(&q->lock);
    ctw_model_destroy(m);
    ctw_info("%s is unloaded", name);
    pthread_mutex_lock(&q->lock);
}

bool ctw_scorer_tend_models(struct ctw_scorer *s)
{
    struct ctw_queue *q = s->queue;
    for (int i = 0; i < q->models.n; i++) {
        struct ctw_model_slot *m = q->models.slots[i];
        if (m->state == CTW_MODEL_LOADING) {
            open_model(s, m);
            return true;
        }
        if (m->state == CTW_MODEL_CLOSING) {
            close_model(q, m);
            return true;
        }
    }
    return false;
}

void ctw_scorer_fail_model(struct ctw_scorer *s, struct ctw_model_slot *m,
                           const struct ctw_err *err)
{
    struct ctw_queue *q = s->queue;
    for (struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        if (ctw_job_uses(j, m->name))
            ctw_queue_end(q, j, CTW_JOB_FAILED, err);
    }
    ctw_scorer_note(s, CTW_LOG_ERROR, "model %s has failed and takes no more jobs: %s", m->name,
                    err->msg);
    struct ctw_engine *engine = ctw_model_fail(m, err);
    s->engine = NULL;
    pthread_mutex_unlock(&q->lock);
    ctw_engine_close(engine);
    pthread_mutex_lock(&q->lock);
}
