#include "worker/service/jobs/queue.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

enum {
    REPLY_MS = 200 /* for a reply to leave */
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
    q->jobs.max_bytes = max_bytes;
    pthread_mutex_init(&q->lock, NULL);
    init_cond(&q->work);
    return CTW_OK;
}

void ctw_queue_fini(struct ctw_queue *q)
{
    ctw_jobs_fini(&q->jobs);
    ctw_models_fini(&q->models);
    pthread_cond_destroy(&q->work);
    pthread_mutex_destroy(&q->lock);
}

void ctw_queue_wake_through(struct ctw_queue *q, void (*wake)(void *arg, uint64_t key), void *arg)
{
    pthread_mutex_lock(&q->lock);
    q->wake = wake;
    q->wake_arg = arg;
    pthread_mutex_unlock(&q->lock);
}

/* ---- models ---- */

enum ctw_status ctw_queue_admits(const struct ctw_queue *q, struct ctw_err *err)
{
    if (q->life.fatal.status != CTW_OK)
        return ctw_fail(err, q->life.fatal.status, "the worker has failed and is ending: %s",
                        q->life.fatal.msg);
    if (q->life.draining)
        return ctw_fail(err, CTW_EBUSY, "the worker is draining and takes no new jobs or models");
    return CTW_OK;
}

enum ctw_status ctw_queue_load(struct ctw_queue *q, const char *path, const char *name,
                               const char *dtype, char out_name[CTW_MODEL_NAME_MAX], int *retry_ms,
                               struct ctw_err *err)
{
    *retry_ms = 0;
    enum ctw_status st = ctw_model_choose_name(path, name, out_name, err);
    if (st != CTW_OK)
        return st;
    pthread_mutex_lock(&q->lock);
    st = ctw_queue_admits(q, err);
    if (st == CTW_OK)
        st = ctw_models_add(&q->models, path, out_name, dtype, retry_ms, err);
    pthread_cond_broadcast(&q->work);
    pthread_mutex_unlock(&q->lock);
    return st;
}

static enum ctw_status start_unloading(struct ctw_queue *q, const char *name, int *retry_ms,
                                       struct ctw_err *err)
{
    struct ctw_model_slot *m = name[0] == '\0' ? NULL : ctw_models_find(&q->models, name);
    if (m == NULL)
        return ctw_fail(err, CTW_ENOTFOUND, "no model is named \"%s\"", name);
    *retry_ms = CTW_MODELS_BUSY_MS;
    if (m->state == CTW_MODEL_LOADING)
        return ctw_fail(err, CTW_EBUSY, "model %s is loading", name);
    if (ctw_jobs_use_model(&q->jobs, name))
        return ctw_fail(err, CTW_EBUSY, "model %s has unfinished jobs: cancel them first", name);
    *retry_ms = 0;
    ctw_model_start_closing(m);
    pthread_cond_broadcast(&q->work);
    return CTW_OK;
}

enum ctw_status ctw_queue_unload(struct ctw_queue *q, const char *name, int *retry_ms,
                                 struct ctw_err *err)
{
    *retry_ms = 0;
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = start_unloading(q, name, retry_ms, err);
    pthread_mutex_unlock(&q->lock);
    return st;
}

/* ---- jobs ---- */

static void tell(const struct ctw_queue *q, const struct ctw_job *j)
{
    if (q->wake != NULL)
        q->wake(q->wake_arg, ctw_job_key(j->id));
}

void ctw_queue_tell(struct ctw_queue *q)
{
    for (struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        if (ctw_job_take_news(j))
            tell(q, j);
    }
}

void ctw_queue_remove(struct ctw_queue *q, struct ctw_job *j)
{
    tell(q, j);
    if (!j->removed)
        ctw_line_slot_freed(&q->line, CTW_IPC_JOBS - q->jobs.n, ctw_now_ms());
    ctw_jobs_remove(&q->jobs, j);
}

void ctw_queue_end(struct ctw_queue *q, struct ctw_job *j, enum ctw_job_state state,
                   const struct ctw_err *err)
{
    if (ctw_job_is_final(j))
        return;
    if (j->state == CTW_JOB_RUNNING && ctw_job_in_pass(j))
        ctw_running_leave(&q->running);
    ctw_job_end(j, state, err, ctw_now_ms());
    tell(q, j);
    pthread_cond_signal(&q->work);
}

void ctw_queue_cancel_job(struct ctw_queue *q, struct ctw_job *j, const char *why)
{
    struct ctw_err err;
    (void)ctw_fail(&err, CTW_ECANCELED, "%s", why);
    ctw_queue_end(q, j, CTW_JOB_CANCELED, &err);
}

void ctw_queue_fail(struct ctw_queue *q, const struct ctw_err *err)
{
    q->life.fatal = *err;
    q->life.draining = true;
    for (struct ctw_job *j = q->jobs.first; j != NULL; j = j->next)
        ctw_queue_end(q, j, CTW_JOB_FAILED, err);
}

/* ---- life ---- */

void ctw_queue_peer_gone(struct ctw_queue *q, uint32_t pipe, int64_t now_ms)
{
    pthread_mutex_lock(&q->lock);
    for (struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        if (j->contact.pipe == pipe)
            ctw_job_peer_gone(j, now_ms);
    }
    pthread_mutex_unlock(&q->lock);
}

/* Excludes time in which the worker did not run from clients' silence. */
static void forgive(struct ctw_queue *q, int64_t now_ms)
{
    enum { LATE_MS = 3 * CTW_QUEUE_TICK_MS }; /* a loaded machine delays a tick by less */
    int64_t gap_ms = q->life.tick_ms == 0 ? 0 : now_ms - q->life.tick_ms;
    int64_t lost_ms = gap_ms > LATE_MS ? gap_ms - CTW_QUEUE_TICK_MS : 0;
    q->life.tick_ms = now_ms;
    ctw_line_forgive(&q->line, lost_ms);
    for (struct ctw_job *j = q->jobs.first; j != NULL && lost_ms > 0; j = j->next)
        ctw_job_forgive(j, lost_ms, now_ms);
}

void ctw_queue_tick(struct ctw_queue *q, int64_t now_ms)
{
    int n_lost = 0;
    pthread_mutex_lock(&q->lock);
    forgive(q, now_ms);
    for (struct ctw_job *j = q->jobs.first, *next; j != NULL; j = next) {
        next = j->next;
        if (j->removed || now_ms < ctw_job_deadline(j))
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
    q->life.draining = true;
    if (shut_down && q->life.shut_down_ms == 0)
        q->life.shut_down_ms = ctw_now_ms();
    for (struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        if (!ctw_job_is_final(j) && (all || j->state == CTW_JOB_OPEN))
            ctw_queue_cancel_job(q, j, "the worker is stopping");
    }
    int n = ctw_jobs_unfinished(&q->jobs);
    pthread_mutex_unlock(&q->lock);
    return n;
}

bool ctw_queue_may_end(struct ctw_queue *q, int64_t now_ms)
{
    pthread_mutex_lock(&q->lock);
    bool quiet = q->life.shut_down_ms != 0 && now_ms - q->life.shut_down_ms >= REPLY_MS;
    for (const struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        if (!j->removed &&
            (!ctw_job_is_final(j) || now_ms - ctw_job_quiet_since(j) < CTW_QUEUE_SILENT_MS))
            quiet = false;
    }
    pthread_mutex_unlock(&q->lock);
    return quiet;
}

void ctw_queue_stop(struct ctw_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->life.draining = true;
    atomic_store(&q->life.stop, true);
    for (struct ctw_job *j = q->jobs.first; j != NULL; j = j->next)
        ctw_queue_cancel_job(q, j, "the worker is stopping");
    if (q->wake != NULL)
        q->wake(q->wake_arg, 0);
    pthread_cond_broadcast(&q->work);
    pthread_mutex_unlock(&q->lock);
}
