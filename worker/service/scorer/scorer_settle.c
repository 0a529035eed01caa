/*
 * Passes results to their jobs. With a result store, a thread of its own writes a pass to the store
 * and only then counts the pass's items as final, while the scoring thread runs the next pass. The
 * queue's lock guards the list of passes.
 */
#include <stdio.h>

#include "base/mem.h"
#include "worker/service/scorer/scorer.h"

enum { MOST_BATCHES = 4 }; /* then the scoring thread waits */

struct settled {
    struct ctw_job *job; /* pinned for each of its sequences */
    struct ctw_scored scored;
    bool stored; /* the sequence came from the store or is a duplicate */
};

/* What a pass has scored. */
struct ctw_settle_batch {
    struct ctw_settle_batch *next;
    char identity[65], ref_identity[65]; /* copies: the engines may have been closed */
    char outline[65], ref_outline[65];
    int64_t n;
    struct settled entries[];
};

/* ---- the store ---- */

/* Lock not held: the jobs are pinned, and nothing changes scored sequences. */
static void keep(struct ctw_scorer *s, const struct ctw_settle_batch *b)
{
    const struct ctw_job_results *results = &b->entries[0].job->results;
    const struct ctw_store_source source = {
        {b->identity, results->numerics, b->outline},
        {b->ref_identity, results->ref_numerics != NULL ? results->ref_numerics : "",
         b->ref_outline}};
    struct ctw_store_record *records = ctw_calloc((size_t)b->n, sizeof(*records));
    int64_t n = 0;
    if (records == NULL) /* they are computed again when they are needed */
        return;
    for (int64_t i = 0; i < b->n; i++) {
        const struct settled *u = &b->entries[i];
        if (!u->stored && u->scored.bad_layer < 0 && ctw_job_is_finite(u->job, u->scored.sequence))
            records[n++] = ctw_job_record(u->job, u->scored.sequence);
    }
    (void)ctw_store_put(s->store, &source, records, n);
    ctw_free(records);
}

/* ---- the thread ---- */

/* Lock held; released meanwhile. */
static void settle(struct ctw_scorer *s, struct ctw_settle_batch *b)
{
    struct ctw_queue *q = s->queue;
    pthread_mutex_unlock(&q->lock);
    keep(s, b);
    pthread_mutex_lock(&q->lock);
    for (int64_t i = 0; i < b->n; i++) {
        struct settled *u = &b->entries[i];
        u->scored.identity = b->identity;
        u->scored.ref_identity = u->scored.ref_identity != NULL ? b->ref_identity : NULL;
        ctw_scorer_take(s, u->job, &u->scored);
        ctw_jobs_unpin(&q->jobs, u->job);
    }
    ctw_queue_tell(q);
    s->settling.first = b->next;
    if (--s->settling.n == 0)
        s->settling.last = NULL;
    pthread_cond_broadcast(&s->settling.settled);
    pthread_mutex_unlock(&q->lock);
    ctw_free(b);
    ctw_scorer_write_notes(s);
    pthread_mutex_lock(&q->lock);
}

static void *settle_main(void *scorer)
{
    struct ctw_scorer *s = scorer;
    struct ctw_settling *w = &s->settling;
    pthread_mutex_lock(&s->queue->lock);
    while (w->first != NULL || !w->ending) {
        if (w->first != NULL)
            settle(s, w->first);
        else
            pthread_cond_wait(&w->work, &s->queue->lock);
    }
    pthread_mutex_unlock(&s->queue->lock);
    return NULL;
}

void ctw_settle_start(struct ctw_scorer *s)
{
    struct ctw_settling *w = &s->settling;
    if (s->store == NULL)
        return;
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->settled, NULL);
    w->started = pthread_create(&w->thread, NULL, settle_main, s) == 0;
    if (!w->started)
        ctw_warn("cannot start a thread for the result store: results are not kept");
}

void ctw_settle_stop(struct ctw_scorer *s)
{
    struct ctw_settling *w = &s->settling;
    if (s->store == NULL)
        return;
    pthread_mutex_lock(&s->queue->lock);
    w->ending = true;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&s->queue->lock);
    if (w->started)
        pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->settled);
}

/* ---- the scoring thread ---- */

/* NULL: results go to their jobs at once. */
static struct ctw_settle_batch *make_batch(const struct ctw_scorer *s, int64_t n)
{
    struct ctw_settle_batch *b = NULL;
    if (s->settling.started)
        b = ctw_calloc(1, sizeof(*b) + (size_t)n * sizeof(b->entries[0]));
    if (b == NULL)
        return NULL;
    (void)snprintf(b->identity, sizeof(b->identity), "%s", ctw_engine_identity(s->engine));
    (void)snprintf(b->outline, sizeof(b->outline), "%s", ctw_engine_outline(s->engine));
    if (s->reference != NULL) {
        (void)snprintf(b->ref_identity, sizeof(b->ref_identity), "%s",
                       ctw_engine_identity(s->reference));
        (void)snprintf(b->ref_outline, sizeof(b->ref_outline), "%s",
                       ctw_engine_outline(s->reference));
    }
    return b;
}

static void hand_over(struct ctw_scorer *s, struct ctw_settle_batch *b)
{
    struct ctw_settling *w = &s->settling;
    if (b->n == 0) {
        ctw_free(b);
        return;
    }
    while (w->n >= MOST_BATCHES)
        pthread_cond_wait(&w->settled, &s->queue->lock);
    *(w->last != NULL ? &w->last->next : &w->first) = b;
    w->last = b;
    w->n++;
    pthread_cond_signal(&w->work);
}

void ctw_settle_results(struct ctw_scorer *s, int64_t first, int64_t n)
{
    struct ctw_settle_batch *b = make_batch(s, n);
    for (int64_t i = first; i < first + n; i++) {
        struct ctw_pass_entry *u = &s->entries[i];
        const struct ctw_scored scored = ctw_scorer_scored(s, i);
        if (u->taken)
            continue;
        u->taken = true;
        ctw_job_share_done(u->job, u->sequence);
        if (b == NULL) {
            ctw_scorer_take(s, u->job, &scored);
            continue;
        }
        ctw_jobs_pin(u->job);
        b->entries[b->n++] =
            (struct settled){.job = u->job, .scored = scored, .stored = u->stored || u->twin >= 0};
    }
    if (b != NULL)
        hand_over(s, b);
    else
        ctw_queue_tell(s->queue);
}

static bool has_any(const struct ctw_settle_batch *b,
                    bool (*is_wanted)(const void *arg, const struct ctw_store_key *key),
                    const void *arg)
{
    for (; b != NULL; b = b->next) {
        for (int64_t i = 0; i < b->n; i++) {
            if (is_wanted(arg, &b->entries[i].job->plan.keys[b->entries[i].scored.sequence]))
                return true;
        }
    }
    return false;
}

void ctw_settle_wait_for(struct ctw_scorer *s,
                         bool (*is_wanted)(const void *arg, const struct ctw_store_key *key),
                         const void *arg)
{
    struct ctw_settling *w = &s->settling;
    pthread_mutex_lock(&s->queue->lock);
    if (has_any(w->first, is_wanted, arg)) {
        while (w->n > 0)
            pthread_cond_wait(&w->settled, &s->queue->lock);
    }
    pthread_mutex_unlock(&s->queue->lock);
}
