/*
 * The state that the threads of a worker share under one lock: the models, the jobs, and the
 * running pass. The server's threads run the handlers (worker/service/requests/handlers.h), the
 * scoring thread runs ctw_scorer_run() (worker/service/scorer/scorer.h), the main thread ticks.
 *
 * Nothing slow happens under the lock. Parts are checked before they are added. The scoring thread
 * plans jobs and opens models without the lock. Results are copied from pinned jobs.
 */
#ifndef CTW_WORKER_QUEUE_H
#define CTW_WORKER_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>

#include "ipc/server.h"
#include "worker/service/jobs/jobs.h"
#include "worker/service/jobs/line.h"
#include "worker/service/jobs/models.h"
#include "worker/service/jobs/running.h"

enum {
    CTW_QUEUE_TICK_MS = 100,
    CTW_QUEUE_SILENT_MS = 2000, /* after this silence a worker that shuts down abandons a client */
};

/* The worker's end. queue.c alone changes it. */
struct ctw_life {
    bool draining;        /* no new jobs */
    int64_t shut_down_ms; /* when a shutdown was asked for; 0: it was not */
    atomic_bool stop;     /* scoring and polls end now; read without the lock */
    struct ctw_err fatal; /* status CTW_OK: none. Else the engine can no longer be used */
    int64_t tick_ms;      /* the last tick; 0: none yet */
};

/* One file changes each member; all other files read the member or call that file's functions. */
struct ctw_queue {
    pthread_mutex_t lock;
    pthread_cond_t work; /* for the scoring thread */
    struct ctw_models models;
    struct ctw_jobs jobs;
    struct ctw_line line; /* of clients that wait for a place among the jobs */
    struct ctw_running running;
    struct ctw_life life;
    /* Wakes the polls that wait for this key: a job's state or n_done has changed. 0: all jobs.
     * Called under the lock. */
    void (*wake)(void *arg, uint64_t key);
    void *wake_arg;
};

/* max_bytes: the bound for all jobs together. */
enum ctw_status ctw_queue_init(struct ctw_queue *q, size_t max_bytes,
                               struct ctw_err *err) CTW_MUST_CHECK;
void ctw_queue_fini(struct ctw_queue *q); /* after all threads ended */
/* Sets the function that is called for news of jobs; NULL: none. */
void ctw_queue_wake_through(struct ctw_queue *q, void (*wake)(void *arg, uint64_t key), void *arg);

/* ---- models ---- */

/*
 * CTW_EINVAL: the name is taken, too long or empty; CTW_EBUSY: too many models. name NULL:
 * the last part of the path. dtype: of the model's activations, a name that is never freed; NULL:
 * the worker's. *retry_ms is set with an error; 0: a retry will not help.
 */
enum ctw_status ctw_queue_load(struct ctw_queue *q, const char *path, const char *name,
                               const char *dtype, char out_name[CTW_MODEL_NAME_MAX], int *retry_ms,
                               struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_queue_unload(struct ctw_queue *q, const char *name, int *retry_ms,
                                 struct ctw_err *err) CTW_MUST_CHECK;

/* ---- life ---- */

/* A connection is lost. Jobs with their last contact over this connection have only a short time
 * left. pipe > 0. */
void ctw_queue_peer_gone(struct ctw_queue *q, uint32_t pipe, int64_t now_ms);
/* Cancels and removes jobs that ran out of time. If a tick comes much later than CTW_QUEUE_TICK_MS
 * after the last, the worker did not run (a stopped process, a paused machine), and that time does
 * not count. */
void ctw_queue_tick(struct ctw_queue *q, int64_t now_ms);
/* Admits no new jobs, and cancels open jobs or, with `cancel`, all jobs. Returns the number of
 * unfinished jobs. */
int ctw_queue_drain(struct ctw_queue *q, bool cancel, bool shut_down);
/*
 * A shutdown was requested and the worker may end: no job is unfinished, every job is released or
 * its client is silent for CTW_QUEUE_SILENT_MS, and the reply to the shutdown request has left.
 */
bool ctw_queue_may_end(struct ctw_queue *q, int64_t now_ms);
/* Cancels all jobs; ends waiting polls, the running pass and the scoring thread. */
void ctw_queue_stop(struct ctw_queue *q);

/* ---- with the lock held ---- */

/* Fails if the worker takes no new jobs or models, because it has failed or is draining. */
enum ctw_status ctw_queue_admits(const struct ctw_queue *q, struct ctw_err *err) CTW_MUST_CHECK;
/* Ends the job; a no-op if it is final. err NULL: DONE. */
void ctw_queue_end(struct ctw_queue *q, struct ctw_job *j, enum ctw_job_state state,
                   const struct ctw_err *err);
/* Ends all jobs and admits no more, because the engine can no longer be used. */
void ctw_queue_fail(struct ctw_queue *q, const struct ctw_err *err);
/* Wakes the polls of all jobs that have news. */
void ctw_queue_tell(struct ctw_queue *q);
void ctw_queue_cancel_job(struct ctw_queue *q, struct ctw_job *j, const char *why);
/* Takes the job from the list (ctw_jobs_remove()) and wakes its polls. */
void ctw_queue_remove(struct ctw_queue *q, struct ctw_job *j);
void ctw_queue_progress(const struct ctw_queue *q, const struct ctw_job *j,
                        struct ctw_progress_map *out);

#endif
