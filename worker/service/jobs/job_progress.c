/* A job's progress and its estimated end, from the progress of the running pass. Reads only. */
#include <math.h>

#include "worker/service/jobs/queue.h"

/* Work done of a job: in earlier passes, and in the running pass the larger of its final sequences
 * and its share of the progress. */
static double so_far(const struct ctw_queue *q, double done, double in_pass, double in_pass_done)
{
    double now = in_pass_done;
    const struct ctw_progress *p = &q->running.progress;
    if (q->running.active && p->tok_total > 0) {
        double share = in_pass * (double)p->tok_done / (double)p->tok_total;
        now = share > now ? share : now;
    }
    return done - in_pass_done + now;
}

static double tokens_done(const struct ctw_queue *q, const struct ctw_job *j)
{
    return so_far(q, (double)j->results.tok_done, (double)j->share.tok, (double)j->share.tok_done);
}

static double cost_left(const struct ctw_queue *q, const struct ctw_job *j)
{
    return j->plan.cost - so_far(q, j->results.cost_done, j->share.cost, j->share.cost_done);
}

/* Work until j ends: its own, and the fair shares of the other jobs meanwhile. */
static double cost_before_end(const struct ctw_queue *q, const struct ctw_job *j)
{
    double own = cost_left(q, j);
    double sum = own;
    for (const struct ctw_job *o = q->jobs.first; o != NULL; o = o->next) {
        if (o == j || o->removed || (o->state != CTW_JOB_QUEUED && o->state != CTW_JOB_RUNNING))
            continue;
        double other = cost_left(q, o);
        sum += other < own ? other : own;
    }
    return sum > 0 ? sum : 0;
}

void ctw_queue_progress(const struct ctw_queue *q, const struct ctw_job *j,
                        struct ctw_progress_map *out)
{
    double rate = ctw_throughput_tokens_per_s(&q->running.rate);
    double speed = ctw_throughput_cost_per_s(&q->running.rate);
    double done = tokens_done(q, j);
    bool waiting = j->state == CTW_JOB_QUEUED || j->state == CTW_JOB_RUNNING;
    *out = (struct ctw_progress_map){.tokens_done = (uint64_t)done,
                                     .tokens = (uint64_t)j->input.n_tok,
                                     .tokens_computed = (uint64_t)j->results.tok_added,
                                     .tokens_per_s = rate,
                                     .seconds_left = ctw_job_is_final(j) ? 0 : -1,
                                     .pass = (uint64_t)j->share.n_passes};
    if (waiting && j->plan.made && speed > 0)
        out->seconds_left = cost_before_end(q, j) / speed;
    const struct ctw_model_slot *m = ctw_models_find(&q->models, j->head.model), *reference = NULL;
    if (j->head.kind == CTW_JOB_DIVERGENCE)
        reference = ctw_models_find(&q->models, j->head.reference);
    bool ready = m != NULL && m->state == CTW_MODEL_READY &&
                 (reference == NULL || reference->state == CTW_MODEL_READY);
    int64_t pass_tokens = ready ? ctw_models_pass_tokens(m, reference) : 0;
    /* Passes count tokens that are computed: in the part that costs have. */
    double part =
        j->plan.made && j->input.n_tok > 0 ? (double)j->plan.n_new / (double)j->input.n_tok : 1;
    int64_t left = (int64_t)ceil(
        part * (double)(j->input.n_tok - (j->results.tok_done - j->share.tok_done) - j->share.tok));
    out->passes = out->pass;
    if (waiting && pass_tokens > 0 && left > 0)
        out->passes += (uint64_t)((left + pass_tokens - 1) / pass_tokens);
    if (q->running.active && j->share.tok > 0) {
        out->layer = (uint64_t)q->running.progress.layer;
        out->layers = (uint64_t)q->running.progress.n_layers;
    }
}
