/* Plans jobs, and chooses the sequences that make up the next pass. */
#include <string.h>

#include "base/mem.h"
#include "worker/service/scorer/scorer.h"

/* ---- jobs ---- */

static bool has_work(const struct ctw_job *j)
{
    return !j->removed && !ctw_job_is_final(j) && ctw_job_has_sequence(j);
}

/* The models of a job; none if one of them is not ready. */
static struct ctw_pass_models models_of(const struct ctw_queue *q, const struct ctw_job *j)
{
    bool compared = j->head.kind == CTW_JOB_DIVERGENCE;
    struct ctw_pass_models m = {ctw_models_find(&q->models, j->head.model), NULL};
    if (compared)
        m.reference = ctw_models_find(&q->models, j->head.reference);
    bool ready = m.model != NULL && m.model->state == CTW_MODEL_READY &&
                 (!compared || (m.reference != NULL && m.reference->state == CTW_MODEL_READY));
    return ready ? m : (struct ctw_pass_models){NULL, NULL};
}

/* ---- planning ---- */

/* Tokens served to the least served of the other unfinished jobs. */
static double least_served(const struct ctw_queue *q, const struct ctw_job *job)
{
    double least = 0;
    bool any = false;
    for (const struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        if (j == job || !j->plan.made || ctw_job_is_final(j))
            continue;
        least = !any || j->share.served < least ? j->share.served : least;
        any = true;
    }
    return least;
}

bool ctw_scorer_plan_next(struct ctw_scorer *s)
{
    struct ctw_queue *q = s->queue;
    struct ctw_job *j = q->jobs.first;
    while (j != NULL && (j->state != CTW_JOB_QUEUED || j->plan.made))
        j = j->next;
    if (j == NULL)
        return false;
    struct ctw_err err;
    int64_t n_done;
    struct ctw_pass_models models = models_of(q, j); /* ready, as j is not final */
    struct ctw_engine *engine = models.model->engine;
    struct ctw_engine *reference = models.reference != NULL ? models.reference->engine : NULL;
    ctw_jobs_pin(j);
    pthread_mutex_unlock(&q->lock);
    enum ctw_status st = ctw_job_plan(j, !s->options.no_share, &n_done, &err);
    if (st == CTW_OK && n_done > 0)
        st = ctw_engine_wait_identity(engine, &err);
    if (st == CTW_OK && (n_done > 0 || s->hidden != NULL) && reference != NULL)
        st = ctw_engine_wait_identity(reference, &err);
    if (st == CTW_OK)
        st = ctw_scorer_find_stored(s, j, engine, reference, &err);
    pthread_mutex_lock(&q->lock);
    if (st == CTW_OK) {
        ctw_job_planned(j, n_done);
        ctw_job_share_enter(j, least_served(q, j)); /* its share counts from now on */
        if (j->results.n_done > 0)
            ctw_job_name_source(j, ctw_engine_identity(engine),
                                reference != NULL ? ctw_engine_identity(reference) : NULL);
        if (j->results.n_done == j->input.n_items) {
            ctw_queue_end(q, j, CTW_JOB_DONE, NULL);
            ctw_scorer_note_end(s, j);
        }
        ctw_queue_tell(q);
    } else {
        ctw_queue_end(q, j, CTW_JOB_FAILED, &err);
    }
    ctw_jobs_unpin(&q->jobs, j);
    return true;
}

/* ---- the next pass ---- */

/* Jobs of one pass have the same models and the same vocabulary, and so one numerics id. */
static bool may_share(const struct ctw_pass_models *a, const struct ctw_pass_models *b,
                      int64_t limit, const struct ctw_job *j)
{
    return a->model == b->model && a->reference == b->reference && j->head.limit == limit &&
           !j->share.alone;
}

/* Shares are of clients, however many jobs a client has. */
static void divide_shares(const struct ctw_queue *q)
{
    for (struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        int n = 0;
        for (const struct ctw_job *k = q->jobs.first; has_work(j) && k != NULL; k = k->next)
            n += has_work(k) && ctw_job_same_client(j, k);
        ctw_job_share_divide(j, n);
    }
}

/*
 * The least served job that may share the pass with `first`, the oldest among equals. first NULL:
 * any job, for the pass's first sequence.
 */
static struct ctw_job *next_job(const struct ctw_queue *q, const struct ctw_pass_models *m,
                                const struct ctw_job *first)
{
    struct ctw_job *best = NULL;
    for (struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        if (!has_work(j))
            continue;
        struct ctw_pass_models of = models_of(q, j);
        if (of.model == NULL || (first != NULL && !may_share(&of, m, first->head.limit, j)))
            continue;
        if (best == NULL || j->share.served < best->share.served)
            best = j;
    }
    return best;
}

static bool grow(struct ctw_scorer *s)
{
    int64_t cap = s->cap == 0 ? 256 : s->cap * 2;
    struct ctw_seq *seqs = ctw_realloc(s->seqs, (size_t)cap, sizeof(*seqs));
    if (seqs == NULL)
        return false;
    s->seqs = seqs;
    struct ctw_pass_entry *entries = ctw_realloc(s->entries, (size_t)cap, sizeof(*entries));
    if (entries == NULL)
        return false;
    s->entries = entries;
    struct ctw_seq_divergence *divergences =
        ctw_realloc(s->divergences, (size_t)cap, sizeof(*divergences));
    if (divergences == NULL)
        return false;
    s->divergences = divergences;
    s->cap = cap;
    return true;
}

static void take_sequence(struct ctw_scorer *s, struct ctw_job *j)
{
    if (!ctw_job_in_pass(j)) {
        ctw_job_start(j);
        ctw_jobs_pin(j);
        ctw_running_join(&s->queue->running);
    }
    int64_t sequence = ctw_job_share_take(j);
    s->seqs[s->n] = ctw_job_seq(j, sequence);
    s->entries[s->n] = (struct ctw_pass_entry){.job = j, .sequence = sequence, .twin = -1};
    if (j->head.kind == CTW_JOB_DIVERGENCE)
        s->divergences[s->n] = ctw_job_seq_divergence(j, sequence);
    s->n++;
    s->pass_cost += ctw_sequence_cost(j, &j->plan.sequences[sequence]);
}

/* A pass that is being filled: its models, its tokens and targets so far, and at most. */
struct filling {
    struct ctw_pass_models m;
    int64_t n_tok, n_targets, pass_tokens;
};

/* The job whose sequence comes next; NULL: none may. */
static struct ctw_job *job_for(const struct ctw_scorer *s, const struct filling *f)
{
    struct ctw_job *first = s->n > 0 ? s->entries[0].job : NULL;
    bool alone = first != NULL && first->share.alone;
    struct ctw_job *j = alone ? first : next_job(s->queue, &f->m, first);
    return j != NULL && has_work(j) ? j : NULL;
}

/* Takes sequences until one does not fit. */
static void fill(struct ctw_scorer *s, struct filling *f)
{
    for (;;) {
        struct ctw_job *j = job_for(s, f);
        if (j == NULL)
            break;
        if (f->m.model == NULL) {
            f->m = models_of(s->queue, j);
            f->pass_tokens = ctw_models_pass_tokens(f->m.model, f->m.reference);
        }
        int64_t more = ctw_job_next_input(j), targets = ctw_job_next_targets(j);
        if (!ctw_pass_fits(s->n, f->n_tok, more, f->pass_tokens) ||
            !ctw_pass_fits(s->n, f->n_targets, targets, f->pass_tokens))
            break;
        if (s->n == s->cap && !grow(s)) {
            struct ctw_err err;
            if (s->n > 0)
                break;
            (void)ctw_fail(&err, CTW_ENOMEM, "out of memory for a pass");
            ctw_queue_end(s->queue, j, CTW_JOB_FAILED, &err);
            f->m.model = NULL;
            continue;
        }
        take_sequence(s, j);
        f->n_tok += more;
        f->n_targets += targets;
    }
}

/* Counts again what the pass computes: jobs share with each other, and with the pass before. False:
 * that makes no room that is worth a further search. */
static bool made_room(struct ctw_scorer *s, struct filling *f)
{
    enum { WORTH = 16 }; /* one in so many of the pass's tokens */
    int64_t before = f->n_tok > f->n_targets ? f->n_tok : f->n_targets;
    if (s->n == 0 || f->m.reference != NULL || s->options.no_share || job_for(s, f) == NULL)
        return false;
    ctw_scorer_order_pass(s);
    ctw_engine_count(f->m.model->engine, s->seqs, s->n, &f->n_tok, &f->n_targets);
    int64_t now = f->n_tok > f->n_targets ? f->n_tok : f->n_targets;
    return before - now >= f->pass_tokens / WORTH;
}

/* What the pass's results will be followed by, most likely: the engine may keep what the two have
 * in common. The job may be gone before the pass ends, so the tokens are copied. */
static void note_next(struct ctw_scorer *s, const struct filling *f)
{
    const struct ctw_job *j = s->n > 0 && f->m.reference == NULL ? job_for(s, f) : NULL;
    s->next = (struct ctw_seq){0};
    if (j == NULL)
        return;
    struct ctw_seq seq = ctw_job_seq(j, j->share.next_sequence);
    if (seq.n_tok > s->next_cap) {
        int32_t *tokens = ctw_realloc(s->next_tokens, (size_t)seq.n_tok, sizeof(*tokens));
        if (tokens == NULL)
            return;
        s->next_tokens = tokens;
        s->next_cap = seq.n_tok;
    }
    memcpy(s->next_tokens, seq.tokens, (size_t)seq.n_tok * sizeof(*seq.tokens));
    s->next = (struct ctw_seq){.tokens = s->next_tokens, .n_tok = seq.n_tok, .first = seq.first};
}

struct ctw_pass_models ctw_scorer_make_pass(struct ctw_scorer *s)
{
    struct filling f = {{NULL, NULL}, 0, 0, 0};
    s->n = 0;
    s->pass_cost = 0;
    ctw_running_clear(&s->queue->running);
    divide_shares(s->queue);
    do
        fill(s, &f);
    while (made_room(s, &f));
    note_next(s, &f);
    return s->n > 0 ? f.m : (struct ctw_pass_models){NULL, NULL};
}
