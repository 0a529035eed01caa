#include "worker/service/scorer/scorer.h"

#include "base/clock.h"
#include "base/mem.h"

/* Does one thing, if there is anything to do. Lock held; released meanwhile. */
static bool step(struct ctw_scorer *s)
{
    struct ctw_queue *q = s->queue;
    if (s->n_notes > 0) {
        pthread_mutex_unlock(&q->lock);
        ctw_scorer_write_notes(s);
        pthread_mutex_lock(&q->lock);
        return true;
    }
    if (ctw_scorer_tend_models(s) || ctw_scorer_plan_next(s))
        return true;
    struct ctw_pass_models m = ctw_scorer_make_pass(s);
    if (m.model != NULL)
        ctw_scorer_run_pass(s, m);
    return m.model != NULL;
}

void ctw_scorer_run(struct ctw_scorer *s)
{
    struct ctw_queue *q = s->queue;
    bool idle = true;
    ctw_settle_start(s);
    pthread_mutex_lock(&q->lock);
    while (!atomic_load(&q->life.stop)) {
        if (step(s)) {
            idle = false;
            continue;
        }
        if (!idle) { /* step again afterwards: the lock is released to clear the progress line */
            pthread_mutex_unlock(&q->lock);
            ctw_log_progress("%s", "");
            pthread_mutex_lock(&q->lock);
            idle = true;
            continue;
        }
        pthread_cond_wait(&q->work, &q->lock);
        ctw_running_resume(&q->running, ctw_now_ms());
    }
    pthread_mutex_unlock(&q->lock);
    ctw_settle_stop(s);
    ctw_scorer_write_notes(s);
    ctw_log_progress("%s", "");
}

void ctw_scorer_fini(struct ctw_scorer *s)
{
    ctw_free(s->seqs);
    ctw_free(s->entries);
    ctw_free(s->divergences);
    ctw_free(s->next_tokens);
    s->next_tokens = NULL;
    s->seqs = NULL;
    s->entries = NULL;
    s->divergences = NULL;
}
