#include "worker/service/scorer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/* ---- the log ---- */

/* Lock held. Of more lines than there is room for, the first ones are kept. */
static void note(struct ctw_scorer *s, enum ctw_log_level level, const char *fmt, ...)
    CTW_PRINTF(3, 4);

static void note(struct ctw_scorer *s, enum ctw_log_level level, const char *fmt, ...)
{
    if (s->n_notes == CTW_SCORER_NOTES)
        return;
    va_list ap;
    va_start(ap, fmt);
    s->notes[s->n_notes].level = level;
    vsnprintf(s->notes[s->n_notes].text, CTW_SCORER_NOTE_MAX, fmt, ap);
    va_end(ap);
    s->n_notes++;
}

/* Lock not held. */
static void write_notes(struct ctw_scorer *s)
{
    for (int i = 0; i < s->n_notes; i++)
        ctw_log(s->notes[i].level, "%s", s->notes[i].text);
    s->n_notes = 0;
}

static void note_end(struct ctw_scorer *s, const struct ctw_job *j)
{
    double seconds = (double)(j->ended_ms - j->sealed_ms) / 1000;
    note(s, CTW_LOG_INFO,
         "job of %" PRId64 " items, %" PRId64 " tokens: done after %.1f s, %.0f tokens/s",
         j->n_items, j->n_input, seconds, seconds > 0 ? (double)j->n_input / seconds : 0);
}

/* ---- models ---- */

static void announce(const struct ctw_model_slot *m, const struct ctw_engine_info *info,
                     int64_t took_ms)
{
    const double mib = 1024 * 1024;
    ctw_info("%s is ready after %.1f s: %s, %s on %s (%s)", m->name, (double)took_ms / 1000,
             info->model->architecture, info->numerics, info->backend.device, info->backend.reason);
    ctw_info("maximum length %" PRId64 ", passes of up to %" PRId64 " tokens, memory beyond the "
             "weights %.0f MiB (limit %.0f MiB)",
             info->max_length, info->pass_tokens, (double)info->memory_planned / mib,
             (double)info->memory_limit / mib);
    if (info->fit_length < info->max_length)
        ctw_warn("inputs of more than %" PRId64 " tokens do not fit the memory limit and are "
                 "refused: raise --memory-limit, or say --max-length %" PRId64,
                 info->fit_length, info->fit_length);
    if (info->model->activations != NULL)
        ctw_info("the file declares activation quantisation (%s); weights only are scored",
                 info->model->activations);
}

/* Several engines may each plan for all the memory there is: only the one in use holds buffers. */
static void trim_others(struct ctw_queue *q, const struct ctw_engine *in_use)
{
    for (int i = 0; i < q->n_models; i++)
        if (q->models[i]->engine != NULL && q->models[i]->engine != in_use)
            ctw_engine_trim(q->models[i]->engine);
}

/* Lock held; given up meanwhile. */
static void open_model(struct ctw_scorer *s, struct ctw_model_slot *m)
{
    struct ctw_queue *q = s->queue;
    struct ctw_engine_options options = s->options;
    struct ctw_engine *engine = NULL;
    struct ctw_engine_info info;
    struct ctw_err err;
    options.stop = &q->stop;
    options.model_dir = m->path; /* a loading slot's does not change */
    trim_others(q, NULL);        /* so that the new one sees what memory there is */
    s->engine = NULL;
    pthread_mutex_unlock(&q->lock);
    ctw_info("loading %s", options.model_dir);
    int64_t start = ctw_now_ms();
    enum ctw_status st = ctw_engine_open(&engine, &options, &err);
    if (st == CTW_OK) {
        ctw_engine_get_info(engine, &info);
        announce(m, &info, ctw_now_ms() - start);
    } else { /* the log may name the folder; clients over tcp have no business with it */
        ctw_error("%s: %s", options.model_dir, err.msg);
    }
    pthread_mutex_lock(&q->lock);
    if (st == CTW_OK) {
        m->engine = engine;
        m->info = info;
        m->opened = ++q->n_opened;
        m->state = CTW_MODEL_READY;
    } else {
        m->error = err;
        m->state = CTW_MODEL_FAILED;
    }
}

/* Lock held; given up meanwhile. */
static void close_model(struct ctw_queue *q, int i)
{
    struct ctw_model_slot *m = q->models[i];
    q->n_models--;
    for (int k = i; k < q->n_models; k++)
        q->models[k] = q->models[k + 1];
    pthread_mutex_unlock(&q->lock);
    ctw_engine_close(m->engine);
    ctw_info("%s is unloaded", m->name);
    ctw_free(m->path);
    ctw_free(m);
    pthread_mutex_lock(&q->lock);
}

static bool tend_models(struct ctw_scorer *s)
{
    struct ctw_queue *q = s->queue;
    for (int i = 0; i < q->n_models; i++) {
        if (q->models[i]->state == CTW_MODEL_LOADING) {
            open_model(s, q->models[i]);
            return true;
        }
        if (q->models[i]->state == CTW_MODEL_CLOSING) {
            close_model(q, i);
            return true;
        }
    }
    return false;
}

/* ---- planning ---- */

/* Before its first item is final: by then the engine knows. Lock held. */
static void name_source(struct ctw_job *j, const struct ctw_engine *engine)
{
    if (j->identity[0] == '\0')
        snprintf(j->identity, sizeof(j->identity), "%s", ctw_engine_identity(engine));
}

static void enter(struct ctw_queue *q, struct ctw_job *job)
{
    double least = 0;
    bool any = false;
    for (const struct ctw_job *j = q->jobs; j != NULL; j = j->next) {
        if (j == job || !j->planned || ctw_job_is_final(j))
            continue;
        least = !any || j->served < least ? j->served : least;
        any = true;
    }
    for (int64_t i = 0; i < job->n_units; i++)
        job->cost += ctw_unit_cost(job, &job->units[i]);
    job->served = least; /* it gets its share from now on, not of the past */
    job->planned = true;
}

static bool plan_next(struct ctw_queue *q)
{
    struct ctw_job *j = q->jobs;
    while (j != NULL && (j->state != CTW_JOB_QUEUED || j->planned))
        j = j->next;
    if (j == NULL)
        return false;
    struct ctw_err err;
    int64_t n_done;
    struct ctw_engine *engine = ctw_queue_model(q, j->head.model)->engine; /* ready, as j is live */
    j->pins++;
    pthread_mutex_unlock(&q->lock);
    enum ctw_status st = ctw_job_plan(j, &n_done, &err);
    if (st == CTW_OK && n_done > 0)
        st = ctw_engine_wait_identity(engine, &err);
    pthread_mutex_lock(&q->lock);
    if (st == CTW_OK) {
        enter(q, j);
        if (n_done > 0)
            name_source(j, engine);
        j->n_done = n_done;
        if (j->n_done == j->n_items)
            ctw_queue_end(q, j, CTW_JOB_DONE, NULL);
        j->news = true;
        ctw_queue_tell(q);
    } else {
        ctw_queue_end(q, j, CTW_JOB_FAILED, &err);
    }
    ctw_queue_unpin(q, j);
    return true;
}

/* ---- running a pass ---- */

static void take_result(struct ctw_scorer *s, int64_t i)
{
    struct ctw_queue *q = s->queue;
    struct ctw_pass_unit *u = &s->units[i];
    struct ctw_job *j = u->job;
    struct ctw_err err;
    if (u->taken || ctw_job_is_final(j))
        return;
    u->taken = true;
    name_source(j, s->engine);
    enum ctw_status st = ctw_job_take(j, u->unit, s->seqs[i].bad_layer, s->n_decoders, &err);
    if (st != CTW_OK) {
        note(s, CTW_LOG_ERROR, "a job fails: %s", err.msg);
        ctw_queue_end(q, j, CTW_JOB_FAILED, &err);
        return;
    }
    j->news = true;
    j->pass_tok_done += ctw_unit_input(&j->units[u->unit]);
    j->pass_cost_done += ctw_unit_cost(j, &j->units[u->unit]);
    if (j->n_done == j->n_items) {
        ctw_queue_end(q, j, CTW_JOB_DONE, NULL);
        note_end(s, j);
    }
}

static void on_done(void *arg, int64_t first, int64_t n)
{
    struct ctw_scorer *s = arg;
    pthread_mutex_lock(&s->queue->lock);
    for (int64_t i = first; i < first + n; i++)
        take_result(s, i);
    ctw_queue_tell(s->queue);
    pthread_mutex_unlock(&s->queue->lock);
    write_notes(s);
}

static bool is_cancelled(void *arg)
{
    const struct ctw_scorer *s = arg;
    return atomic_load(&s->queue->stop) || atomic_load(&s->queue->n_live) == 0;
}

/* A line for people, a few times a second; "" when it is not time. Lock held. */
static void progress_line(struct ctw_scorer *s, int64_t now_ms, char *out, size_t capacity)
{
    const struct ctw_queue *q = s->queue;
    out[0] = '\0';
    if (now_ms - s->shown_ms < 250)
        return;
    s->shown_ms = now_ms;
    double done = 0, total = 0, seconds_left = 0;
    int n_jobs = 0;
    for (const struct ctw_job *j = q->jobs; j != NULL; j = j->next) {
        struct ctw_progress_map p;
        if (j->removed || (j->state != CTW_JOB_QUEUED && j->state != CTW_JOB_RUNNING))
            continue;
        ctw_queue_progress(q, j, &p);
        done += (double)p.tokens_done;
        total += (double)p.tokens;
        seconds_left = p.seconds_left > seconds_left ? p.seconds_left : seconds_left;
        n_jobs++;
    }
    double rate = ctw_rate_tokens_per_s(&q->rate);
    if (n_jobs == 0 || rate <= 0)
        return;
    snprintf(out, capacity,
             "%d job%s, %.0f of %.0f tokens (%.0f %%), %.0f tokens/s, %.0f s left, layer %d of %d",
             n_jobs, n_jobs == 1 ? "" : "s", done, total, 100 * done / total, rate, seconds_left,
             q->pass.layer, q->pass.n_layers - 1);
}

static void on_progress(void *arg, const struct ctw_progress *p)
{
    struct ctw_scorer *s = arg;
    struct ctw_queue *q = s->queue;
    char line[256];
    pthread_mutex_lock(&q->lock);
    q->pass = *p;
    q->beat_ms = ctw_now_ms();
    double share = p->tok_total > 0 ? (double)p->tok_done / (double)p->tok_total : 0;
    ctw_rate_add(&q->rate, q->beat_ms, q->tok_before + (double)p->tok_done,
                 q->cost_before + share * s->pass_cost);
    progress_line(s, q->beat_ms, line, sizeof(line));
    pthread_mutex_unlock(&q->lock);
    if (line[0] != '\0')
        ctw_log_progress("%s", line);
}

/* Several jobs want their units of this pass. */
static bool is_shared(const struct ctw_scorer *s)
{
    const struct ctw_job *first = NULL;
    for (int64_t i = 0; i < s->n; i++) {
        if (ctw_job_is_final(s->units[i].job))
            continue;
        if (first != NULL && s->units[i].job != first)
            return true;
        first = s->units[i].job;
    }
    return false;
}

/* There was no memory for the company: each job tries by itself. */
static void part_pass(struct ctw_scorer *s, const struct ctw_err *err)
{
    note(s, CTW_LOG_WARN, "a pass of several jobs found no memory; each gets its own: %s", err->msg);
    for (int64_t i = s->n - 1; i >= 0; i--) {
        struct ctw_job *j = s->units[i].job;
        if (ctw_job_is_final(j) || s->units[i].taken)
            continue;
        j->alone = true;
        j->next_unit = s->units[i].unit; /* a job's units come in order, and are taken in order */
        j->served -= (double)ctw_unit_input(&j->units[s->units[i].unit]);
    }
}

/* The longest input is what memory is planned for: says whose it is. */
static void fail_for_memory(struct ctw_scorer *s, const struct ctw_err *err)
{
    const struct ctw_pass_unit *longest = NULL;
    int64_t n_tok = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const struct ctw_pass_unit *u = &s->units[i];
        if (!ctw_job_is_final(u->job) && !u->taken && s->seqs[i].n_tok > n_tok) {
            longest = u;
            n_tok = s->seqs[i].n_tok;
        }
    }
    if (longest == NULL) /* all were cancelled meanwhile */
        return;
    struct ctw_err named = *err;
    int32_t item = longest->job->units[longest->unit].item;
    longest->job->error_item = item;
    (void)ctw_fail_prefix(&named, "item %d, with %" PRId64 " input tokens the longest of its pass",
                          item, n_tok - 1);
    note(s, CTW_LOG_ERROR, "a job fails: %s", named.msg);
    ctw_queue_end(s->queue, longest->job, CTW_JOB_FAILED, &named);
}

/*
 * The model's files are no longer what was opened: none of its jobs can succeed. It stays in the
 * list with the reason; `load` under its name opens it anew. Lock held; given up meanwhile.
 */
static void fail_model(struct ctw_scorer *s, struct ctw_model_slot *m, const struct ctw_err *err)
{
    struct ctw_queue *q = s->queue;
    struct ctw_engine *engine = m->engine;
    for (struct ctw_job *j = q->jobs; j != NULL; j = j->next) {
        if (strcmp(j->head.model, m->name) == 0)
            ctw_queue_end(q, j, CTW_JOB_FAILED, err);
    }
    note(s, CTW_LOG_ERROR, "model %s has failed and takes no more jobs: %s", m->name, err->msg);
    m->error = *err;
    m->state = CTW_MODEL_FAILED;
    m->initial = false; /* results are there to be fetched: the worker does not end */
    m->engine = NULL;
    s->engine = NULL;
    pthread_mutex_unlock(&q->lock);
    ctw_engine_close(engine);
    pthread_mutex_lock(&q->lock);
}

/* The engine said no: its jobs cannot go on, and perhaps the worker neither. */
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
        fail_model(s, m, err);
        return;
    }
    note(s, CTW_LOG_ERROR, "%s", err->msg);
    for (int64_t i = 0; i < s->n; i++)
        ctw_queue_end(q, s->units[i].job, CTW_JOB_FAILED, err);
    if (!fatal)
        return;
    q->fatal = *err;
    q->draining = true;
    for (struct ctw_job *j = q->jobs; j != NULL; j = j->next)
        ctw_queue_end(q, j, CTW_JOB_FAILED, err);
}

/* What counts for rates is what was done: all of it, or up to the last sign of progress. */
static void end_pass(struct ctw_scorer *s, bool completed)
{
    struct ctw_queue *q = s->queue;
    q->in_pass = false;
    q->beat_ms = ctw_now_ms();
    int64_t n_tok = 0;
    for (int64_t i = 0; i < s->n; i++)
        n_tok += s->seqs[i].n_tok - 1;
    if (completed) {
        q->tok_before += (double)n_tok;
        q->cost_before += s->pass_cost;
    } else if (n_tok > 0) {
        q->tok_before += (double)q->pass.tok_done;
        q->cost_before += (double)q->pass.tok_done / (double)n_tok * s->pass_cost;
    }
    ctw_rate_add(&q->rate, q->beat_ms, q->tok_before, q->cost_before);
    for (struct ctw_job *j = q->jobs, *next; j != NULL; j = next) {
        next = j->next;
        if (j->pass_tok == 0)
            continue;
        j->pass_tok = 0;
        j->pass_tok_done = 0;
        j->pass_cost = 0;
        j->pass_cost_done = 0;
        ctw_queue_unpin(q, j); /* may free it, but it only */
    }
    s->n = 0;
}

static void run_pass(struct ctw_scorer *s, struct ctw_model_slot *m)
{
    struct ctw_queue *q = s->queue;
    const struct ctw_hooks hooks = {
        .arg = s, .progress = on_progress, .cancelled = is_cancelled, .done = on_done};
    struct ctw_err err = {0};
    s->n_decoders = m->info.model->n_decoders;
    if (s->engine != m->engine)
        trim_others(q, m->engine);
    s->engine = m->engine;
    q->pass = (struct ctw_progress){0};
    q->in_pass = true;
    q->beat_ms = ctw_now_ms();
    pthread_mutex_unlock(&q->lock);
    enum ctw_status st = ctw_engine_score(m->engine, s->seqs, s->n, &hooks, &err);
    pthread_mutex_lock(&q->lock);
    ctw_engine_describe(m->engine, m->products, sizeof(m->products));
    if (st == CTW_OK) {
        s->units[0].job->alone = false;
        for (int64_t i = 0; i < s->n; i++)
            take_result(s, i);
    } else if (st != CTW_ECANCELED) {
        fail_pass(s, m, &err);
    }
    end_pass(s, st == CTW_OK);
    ctw_queue_tell(q);
}

/* ---- the thread ---- */

/* One thing to do, if there is one. Lock held; given up meanwhile. */
static bool step(struct ctw_scorer *s)
{
    struct ctw_queue *q = s->queue;
    if (s->n_notes > 0) {
        pthread_mutex_unlock(&q->lock);
        write_notes(s);
        pthread_mutex_lock(&q->lock);
        return true;
    }
    if (tend_models(s) || plan_next(q))
        return true;
    struct ctw_model_slot *m = ctw_scorer_make_pass(s);
    if (m != NULL)
        run_pass(s, m);
    return m != NULL;
}

void ctw_scorer_run(struct ctw_scorer *s)
{
    struct ctw_queue *q = s->queue;
    bool idle = true;
    pthread_mutex_lock(&q->lock);
    while (!atomic_load(&q->stop)) {
        if (step(s)) {
            idle = false;
            continue;
        }
        if (!idle) { /* look again afterwards: the lock is given up to clear the progress line */
            pthread_mutex_unlock(&q->lock);
            ctw_log_progress("%s", "");
            pthread_mutex_lock(&q->lock);
            idle = true;
            continue;
        }
        pthread_cond_wait(&q->work, &q->lock);
        ctw_rate_reset(&q->rate);
        ctw_rate_add(&q->rate, ctw_now_ms(), q->tok_before, q->cost_before);
    }
    pthread_mutex_unlock(&q->lock);
    write_notes(s);
    ctw_log_progress("%s", "");
}

void ctw_scorer_fini(struct ctw_scorer *s)
{
    ctw_free(s->seqs);
    ctw_free(s->units);
    s->seqs = NULL;
    s->units = NULL;
}
