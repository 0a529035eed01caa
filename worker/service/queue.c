#include "worker/service/queue.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    GONE_GRACE_MS = 5000, /* for a client to connect again, under policy cancel */
    REPLY_MS = 200        /* for a reply to leave */
};

static void init_cond(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

enum ctw_status ctw_queue_init(struct ctw_queue *q, size_t max_bytes, struct ctw_err *err)
{
    memset(q, 0, sizeof(*q));
    if (max_bytes == 0)
        return ctw_fail(err, CTW_EINVAL, "queue: expected more than 0 bytes");
    q->max_bytes = max_bytes;
    pthread_mutex_init(&q->lock, NULL);
    init_cond(&q->work);
    return CTW_OK;
}

void ctw_queue_fini(struct ctw_queue *q)
{
    for (struct ctw_job *j = q->jobs, *next; j != NULL; j = next) {
        next = j->next;
        ctw_job_destroy(j);
    }
    for (int i = 0; i < q->n_models; i++) {
        ctw_engine_close(q->models[i]->engine);
        ctw_free(q->models[i]->path);
        ctw_free(q->models[i]);
    }
    pthread_cond_destroy(&q->work);
    pthread_mutex_destroy(&q->lock);
}

/* ---- jobs in the list ---- */

int ctw_queue_unfinished(const struct ctw_queue *q)
{
    int n = 0;
    for (const struct ctw_job *j = q->jobs; j != NULL; j = j->next)
        n += !j->removed && !ctw_job_is_final(j);
    return n;
}

enum ctw_status ctw_queue_admits(const struct ctw_queue *q, struct ctw_err *err)
{
    if (q->fatal.status != CTW_OK)
        return ctw_fail(err, q->fatal.status, "the worker has failed and is ending: %s",
                        q->fatal.msg);
    if (q->draining)
        return ctw_fail(err, CTW_EBUSY, "the worker is draining and takes no new jobs or models");
    return CTW_OK;
}

static void free_if_unused(struct ctw_queue *q, struct ctw_job *job)
{
    if (!job->removed || job->pins > 0)
        return;
    for (struct ctw_job **at = &q->jobs; *at != NULL; at = &(*at)->next) {
        if (*at == job) {
            *at = job->next;
            break;
        }
    }
    q->n_jobs--;
    q->bytes -= job->bytes;
    ctw_job_destroy(job);
}

static void tell(const struct ctw_queue *q, const struct ctw_job *j)
{
    if (q->wake != NULL)
        q->wake(q->wake_arg, ctw_job_key(j->id));
}

void ctw_queue_tell(struct ctw_queue *q)
{
    for (struct ctw_job *j = q->jobs; j != NULL; j = j->next) {
        if (j->news)
            tell(q, j);
        j->news = false;
    }
}

void ctw_queue_remove(struct ctw_queue *q, struct ctw_job *j)
{
    j->removed = true;
    tell(q, j);
    free_if_unused(q, j);
}

void ctw_queue_unpin(struct ctw_queue *q, struct ctw_job *j)
{
    j->pins--;
    free_if_unused(q, j);
}

void ctw_queue_end(struct ctw_queue *q, struct ctw_job *j, enum ctw_job_state state,
                   const struct ctw_err *err)
{
    if (ctw_job_is_final(j))
        return;
    if (j->state == CTW_JOB_RUNNING && j->pass_tok > 0)
        atomic_fetch_sub(&q->n_live, 1);
    j->state = state;
    j->ended_ms = ctw_now_ms();
    if (err != NULL)
        j->error = *err;
    tell(q, j);
    pthread_cond_signal(&q->work);
}

void ctw_queue_cancel_job(struct ctw_queue *q, struct ctw_job *j, const char *why)
{
    struct ctw_err err;
    (void)ctw_fail(&err, CTW_ECANCELED, "%s", why);
    ctw_queue_end(q, j, CTW_JOB_CANCELED, &err);
}

/* ---- life ---- */

void ctw_queue_peer_gone(struct ctw_queue *q, uint32_t pipe, int64_t now_ms)
{
    pthread_mutex_lock(&q->lock);
    for (struct ctw_job *j = q->jobs; j != NULL; j = j->next) {
        if (j->pipe != pipe)
            continue;
        j->gone_ms = now_ms;
        if (j->contact_ms > now_ms) /* its poll waits no more */
            j->contact_ms = now_ms;
    }
    pthread_mutex_unlock(&q->lock);
}

void ctw_queue_touch(struct ctw_job *j, const struct ctw_contact *contact)
{
    j->contact_ms = contact->now_ms;
    j->pipe = contact->pipe;
    j->gone_ms = 0;
}

/* When the job's time without contact is over. */
static int64_t deadline(const struct ctw_job *j)
{
    bool final = ctw_job_is_final(j);
    if (j->state == CTW_JOB_OPEN)
        return j->contact_ms + j->head.ttl_ms;
    if (j->head.keep && !final)
        return INT64_MAX;
    if (j->head.keep)
        return (j->ended_ms > j->contact_ms ? j->ended_ms : j->contact_ms) + j->head.ttl_ms;
    int64_t at = j->contact_ms + j->head.ttl_ms;
    if (j->gone_ms != 0 && j->gone_ms + GONE_GRACE_MS < at)
        at = j->gone_ms + GONE_GRACE_MS;
    return at;
}

/* Time in which we did not run is nobody's silence. */
static void forgive(struct ctw_queue *q, int64_t now_ms)
{
    enum { LATE_MS = 3 * CTW_QUEUE_TICK_MS }; /* as a loaded machine makes it */
    int64_t gap_ms = q->tick_ms == 0 ? 0 : now_ms - q->tick_ms;
    int64_t lost_ms = gap_ms > LATE_MS ? gap_ms - CTW_QUEUE_TICK_MS : 0;
    q->tick_ms = now_ms;
    for (struct ctw_job *j = q->jobs; j != NULL && lost_ms > 0; j = j->next) {
        int64_t *times[] = {&j->contact_ms, &j->ended_ms, &j->gone_ms};
        for (size_t i = 0; i < CTW_COUNT(times); i++) {
            if (*times[i] != 0) /* 0: not yet */
                *times[i] = *times[i] + lost_ms < now_ms ? *times[i] + lost_ms : now_ms;
        }
    }
}

void ctw_queue_tick(struct ctw_queue *q, int64_t now_ms)
{
    int n_lost = 0;
    pthread_mutex_lock(&q->lock);
    forgive(q, now_ms);
    for (struct ctw_job *j = q->jobs, *next; j != NULL; j = next) {
        next = j->next;
        if (j->removed || now_ms < deadline(j))
            continue;
        if (!ctw_job_is_final(j)) {
            n_lost++;
            ctw_queue_cancel_job(q, j, "its client was silent for too long (orphan policy)");
        }
        ctw_queue_remove(q, j);
    }
    pthread_mutex_unlock(&q->lock);
    if (n_lost > 0) /* not under the lock: standard error may be a full pipe */
        ctw_info("%d unfinished job%s lost the client: cancelled", n_lost, n_lost == 1 ? "" : "s");
}

int ctw_queue_drain(struct ctw_queue *q, bool all, bool shut_down)
{
    pthread_mutex_lock(&q->lock);
    q->draining = true;
    if (shut_down && q->shut_down_ms == 0)
        q->shut_down_ms = ctw_now_ms();
    for (struct ctw_job *j = q->jobs; j != NULL; j = j->next) {
        if (!ctw_job_is_final(j) && (all || j->state == CTW_JOB_OPEN))
            ctw_queue_cancel_job(q, j, "the worker is stopping");
    }
    int n = ctw_queue_unfinished(q);
    pthread_mutex_unlock(&q->lock);
    return n;
}

bool ctw_queue_may_end(struct ctw_queue *q, int64_t now_ms)
{
    pthread_mutex_lock(&q->lock);
    bool quiet = q->shut_down_ms != 0 && now_ms - q->shut_down_ms >= REPLY_MS;
    for (const struct ctw_job *j = q->jobs; j != NULL; j = j->next) {
        int64_t since = j->ended_ms > j->contact_ms ? j->ended_ms : j->contact_ms;
        if (!j->removed && (!ctw_job_is_final(j) || now_ms - since < CTW_QUEUE_SILENT_MS))
            quiet = false;
    }
    pthread_mutex_unlock(&q->lock);
    return quiet;
}

void ctw_queue_stop(struct ctw_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->draining = true;
    atomic_store(&q->stop, true);
    for (struct ctw_job *j = q->jobs; j != NULL; j = j->next)
        ctw_queue_cancel_job(q, j, "the worker is stopping");
    if (q->wake != NULL)
        q->wake(q->wake_arg, 0);
    pthread_cond_broadcast(&q->work);
    pthread_mutex_unlock(&q->lock);
}

/* ---- rates ---- */

void ctw_rate_reset(struct ctw_rate *r)
{
    r->n = 0;
    r->next = 0;
}

void ctw_rate_add(struct ctw_rate *r, int64_t now_ms, double tokens, double cost)
{
    enum { SPACING_MS = 500 }; /* the ring then holds half a minute */
    int last = (r->next + CTW_RATE_SAMPLES - 1) % CTW_RATE_SAMPLES;
    if (r->n > 0 && now_ms - r->ms[last] < SPACING_MS)
        return;
    r->ms[r->next] = now_ms;
    r->tokens[r->next] = tokens;
    r->cost[r->next] = cost;
    r->next = (r->next + 1) % CTW_RATE_SAMPLES;
    if (r->n < CTW_RATE_SAMPLES)
        r->n++;
}

static double per_s(const struct ctw_rate *r, const double *work)
{
    if (r->n < 2)
        return 0;
    int last = (r->next + CTW_RATE_SAMPLES - 1) % CTW_RATE_SAMPLES;
    int oldest = (r->next + CTW_RATE_SAMPLES - r->n) % CTW_RATE_SAMPLES;
    return (work[last] - work[oldest]) * 1000 / (double)(r->ms[last] - r->ms[oldest]);
}

double ctw_rate_tokens_per_s(const struct ctw_rate *r)
{
    return per_s(r, r->tokens);
}

double ctw_rate_cost_per_s(const struct ctw_rate *r)
{
    return per_s(r, r->cost);
}

/* ---- progress ---- */

/* Work done of a job: of earlier passes, and of this one either what is final or its share. */
static double so_far(const struct ctw_queue *q, double done, double in_pass, double in_pass_done)
{
    double now = in_pass_done;
    if (q->in_pass && q->pass.tok_total > 0) {
        double share = in_pass * (double)q->pass.tok_done / (double)q->pass.tok_total;
        now = share > now ? share : now;
    }
    return done - in_pass_done + now;
}

static double tokens_done(const struct ctw_queue *q, const struct ctw_job *j)
{
    return so_far(q, (double)j->tok_done, (double)j->pass_tok, (double)j->pass_tok_done);
}

static double cost_left(const struct ctw_queue *q, const struct ctw_job *j)
{
    return j->cost - so_far(q, j->cost_done, j->pass_cost, j->pass_cost_done);
}

/* Until j ends: its own work, and what others get in fair shares meanwhile. */
static double cost_before_end(const struct ctw_queue *q, const struct ctw_job *j)
{
    double own = cost_left(q, j);
    double sum = own;
    for (const struct ctw_job *o = q->jobs; o != NULL; o = o->next) {
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
    double rate = ctw_rate_tokens_per_s(&q->rate);
    double speed = ctw_rate_cost_per_s(&q->rate);
    double done = tokens_done(q, j);
    bool waiting = j->state == CTW_JOB_QUEUED || j->state == CTW_JOB_RUNNING;
    *out = (struct ctw_progress_map){.tokens_done = (uint64_t)done,
                                     .tokens = (uint64_t)j->n_input,
                                     .tokens_per_s = rate,
                                     .seconds_left = ctw_job_is_final(j) ? 0 : -1,
                                     .pass = (uint64_t)j->n_passes};
    if (waiting && j->planned && speed > 0)
        out->seconds_left = cost_before_end(q, j) / speed;
    const struct ctw_model_slot *m = ctw_queue_model(q, j->head.model);
    int64_t pass_tokens = m != NULL && m->state == CTW_MODEL_READY ? m->info.pass_tokens : 0;
    int64_t left = j->n_input - (j->tok_done - j->pass_tok_done) - j->pass_tok;
    out->passes = out->pass;
    if (waiting && pass_tokens > 0 && left > 0)
        out->passes += (uint64_t)((left + pass_tokens - 1) / pass_tokens);
    if (q->in_pass && j->pass_tok > 0) {
        out->layer = (uint64_t)q->pass.layer;
        out->layers = (uint64_t)q->pass.n_layers;
    }
}
