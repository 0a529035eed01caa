/* Runs one pass and passes its results, or its failure, on: see worker/service/scorer/scorer.h. */
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "worker/service/scorer/scorer.h"

static void on_done(void *arg, int64_t first, int64_t n)
{
    struct ctw_scorer *s = arg;
    pthread_mutex_lock(&s->queue->lock);
    ctw_settle_results(s, first, n);
    pthread_mutex_unlock(&s->queue->lock);
    ctw_scorer_write_notes(s);
}

static bool is_cancelled(void *arg)
{
    const struct ctw_scorer *s = arg;
    return atomic_load(&s->queue->life.stop) || !ctw_running_is_wanted(&s->queue->running);
}

/* A line for people, a few times per second; "" in between. Lock held. */
static void progress_line(struct ctw_scorer *s, int64_t now_ms, char *out, size_t capacity)
{
    const struct ctw_queue *q = s->queue;
    out[0] = '\0';
    if (now_ms - s->shown_ms < 250)
        return;
    s->shown_ms = now_ms;
    double done = 0, total = 0, seconds_left = 0;
    int n_jobs = 0;
    for (const struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        struct ctw_progress_map p;
        if (j->removed || (j->state != CTW_JOB_QUEUED && j->state != CTW_JOB_RUNNING))
            continue;
        ctw_queue_progress(q, j, &p);
        done += (double)p.tokens_done;
        total += (double)p.tokens;
        seconds_left = p.seconds_left > seconds_left ? p.seconds_left : seconds_left;
        n_jobs++;
    }
    double rate = ctw_throughput_tokens_per_s(&q->running.rate);
    if (n_jobs == 0 || rate <= 0)
        return;
    snprintf(out, capacity,
             "%d job%s, %.0f of %.0f tokens (%.0f %%), %.0f tokens/s, %.0f s left, layer %d of %d",
             n_jobs, n_jobs == 1 ? "" : "s", done, total, 100 * done / total, rate, seconds_left,
             q->running.progress.layer, q->running.progress.n_layers - 1);
}

static void on_progress(void *arg, const struct ctw_progress *p)
{
    struct ctw_scorer *s = arg;
    struct ctw_queue *q = s->queue;
    char line[256];
    pthread_mutex_lock(&q->lock);
    int64_t now_ms = ctw_now_ms();
    ctw_running_advance(&q->running, p, s->pass_cost, now_ms);
    progress_line(s, now_ms, line, sizeof(line));
    pthread_mutex_unlock(&q->lock);
    if (line[0] != '\0')
        ctw_log_progress("%s", line);
}

/* Several jobs still want results of this pass. */
static bool is_shared(const struct ctw_scorer *s)
{
    const struct ctw_job *first = NULL;
    for (int64_t i = 0; i < s->n; i++) {
        if (ctw_job_is_final(s->entries[i].job))
            continue;
        if (first != NULL && s->entries[i].job != first)
            return true;
        first = s->entries[i].job;
    }
    return false;
}

/* Gives each job a pass of its own, because there was no memory for a pass of several jobs. */
static void part_pass(struct ctw_scorer *s, const struct ctw_err *err)
{
    ctw_scorer_note(s, CTW_LOG_WARN,
                    "no memory for a pass of several jobs, so each gets a pass of its own: %s",
                    err->msg);
    for (int64_t i = s->n - 1; i >= 0; i--) {
        struct ctw_job *j = s->entries[i].job;
        if (ctw_job_is_final(j) || s->entries[i].taken)
            continue;
        ctw_job_share_return(j, s->entries[i].sequence);
    }
}

/* Fails the job of the longest input, for which memory is planned, and names its item. */
static void fail_for_memory(struct ctw_scorer *s, const struct ctw_err *err)
{
    const struct ctw_pass_entry *longest = NULL;
    int64_t n_tok = 0;
    for (int64_t i = 0; i < s->n_score; i++) {
        const struct ctw_pass_entry *u = &s->entries[i];
        if (!ctw_job_is_final(u->job) && !u->taken && s->seqs[i].n_tok > n_tok) {
            longest = u;
            n_tok = s->seqs[i].n_tok;
        }
    }
    if (longest == NULL) /* all were cancelled meanwhile */
        return;
    struct ctw_err named = *err;
    int32_t item = longest->job->plan.sequences[longest->sequence].item;
    ctw_job_blame(longest->job, item, -1);
    (void)ctw_fail_prefix(&named,
                          "item %d: its input of %" PRId64 " tokens is the longest of the pass",
                          item, n_tok - 1);
    ctw_scorer_note(s, CTW_LOG_ERROR, "a job fails: %s", named.msg);
    ctw_queue_end(s->queue, longest->job, CTW_JOB_FAILED, &named);
}

/* Handles a failed engine: the jobs of the pass cannot go on, and perhaps the worker cannot
 * either. */
static void fail_pass(struct ctw_scorer *s, struct ctw_model_slot *m, const struct ctw_err *err)
{
    struct ctw_queue *q = s->queue;
    bool fatal = err->status == CTW_EDEVICE || err->status == CTW_EINTERNAL;
    if (err->status == CTW_ENOMEM) {
        if (is_shared(s))
            part_pass(s, err);
        else
            fail_for_memory(s, err);
        return;
    }
    if (err->status == CTW_EIO || err->status == CTW_EFORMAT || err->status == CTW_ENOTFOUND) {
        ctw_scorer_fail_model(s, m, err);
        return;
    }
    ctw_scorer_note(s, CTW_LOG_ERROR, "%s", err->msg);
    for (int64_t i = 0; i < s->n; i++)
        ctw_queue_end(q, s->entries[i].job, CTW_JOB_FAILED, err);
    if (fatal)
        ctw_queue_fail(q, err);
}

static void end_pass(struct ctw_scorer *s, bool completed)
{
    struct ctw_queue *q = s->queue;
    int64_t n_tok = 0;
    for (int64_t i = 0; i < s->n_score; i++)
        n_tok += s->seqs[i].n_tok - 1;
    ctw_running_end(&q->running, completed, n_tok, s->pass_cost, ctw_now_ms());
    for (struct ctw_job *j = q->jobs.first, *next; j != NULL; j = next) {
        next = j->next;
        if (!ctw_job_in_pass(j))
            continue;
        ctw_job_share_end(j);
        ctw_jobs_unpin(&q->jobs, j); /* may free j, but no other job */
    }
    s->n = 0;
}

/* Scores the pass, or compares its models. Lock not held. *failed: the model of a failure. */
static enum ctw_status run_engines(struct ctw_scorer *s, struct ctw_pass_models m,
                                   struct ctw_model_slot **failed, struct ctw_err *err)
{
    struct ctw_hooks hooks = {
        .arg = s, .progress = on_progress, .cancelled = is_cancelled, .done = on_done};
    bool in_reference = false;
    if (s->next.n_tok > 0)
        hooks.next = &s->next;
    *failed = m.model;
    if (!s->options.no_share)
        ctw_scorer_order_pass(s);
    ctw_scorer_skip_known(s);
    for (int64_t i = 0; i < s->n && m.reference != NULL; i++)
        s->seqs[i].divergence = &s->divergences[i];
    if (s->hidden != NULL && m.reference != NULL) {
        hooks.load_hidden = ctw_scorer_load_hidden;
        hooks.keep_hidden = ctw_scorer_keep_hidden;
    }
    enum ctw_status st = m.reference == NULL
                             ? ctw_engine_score(m.model->engine, s->seqs, s->n_score, &hooks, err)
                             : ctw_engine_compare(m.model->engine, m.reference->engine, s->seqs,
                                                  s->n_score, &hooks, &in_reference, err);
    if (in_reference)
        *failed = m.reference;
    if (st == CTW_OK)
        ctw_scorer_copy_twins(s);
    return st;
}

void ctw_scorer_run_pass(struct ctw_scorer *s, struct ctw_pass_models m)
{
    struct ctw_queue *q = s->queue;
    const struct ctw_engine *reference = m.reference != NULL ? m.reference->engine : NULL;
    struct ctw_model_slot *failed;
    struct ctw_err err = {0};
    s->n_decoders = m.model->info.model->n_decoders;
    if (m.reference != NULL) {
        const struct ctw_engine_info *info = &m.reference->info;
        s->ref_decoders = info->model->n_decoders;
        s->ref_row_bytes = (size_t)info->model->embed_dim * ctw_dtype_bytes(info->dtype);
    }
    if (s->engine != m.model->engine || s->reference != reference)
        ctw_scorer_trim_others(q, m.model->engine, reference);
    s->engine = m.model->engine;
    s->reference = reference;
    ctw_running_begin(&q->running, ctw_now_ms());
    pthread_mutex_unlock(&q->lock);
    enum ctw_status st = run_engines(s, m, &failed, &err);
    pthread_mutex_lock(&q->lock);
    ctw_model_describe(m.model);
    if (st == CTW_OK) {
        ctw_job_share_found_memory(s->entries[0].job);
        ctw_settle_results(s, 0, s->n);
    } else if (st != CTW_ECANCELED) {
        fail_pass(s, failed, &err);
    }
    end_pass(s, st == CTW_OK);
    ctw_queue_tell(q);
}
