/* Plans jobs, and chooses the units that make up the next pass. */
#include "base/mem.h"
#include "worker/service/scorer.h"

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
    /* ready, as j is not final */
    struct ctw_engine *engine = ctw_models_find(&q->models, j->head.model)->engine;
    ctw_jobs_pin(j);
    pthread_mutex_unlock(&q->lock);
    enum ctw_status st = ctw_job_plan(j, &n_done, &err);
    if (st == CTW_OK && n_done > 0)
        st = ctw_engine_wait_identity(engine, &err);
    if (st == CTW_OK)
        st = ctw_scorer_find_stored(s, j, engine, &err);
    pthread_mutex_lock(&q->lock);
    if (st == CTW_OK) {
        ctw_job_planned(j, n_done);
        ctw_job_share_enter(j, least_served(q, j)); /* its share counts from now on */
        if (j->results.n_done > 0)
            ctw_job_name_source(j, ctw_engine_identity(engine));
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

static bool has_work(const struct ctw_job *j)
{
    return !j->removed && !ctw_job_is_final(j) && ctw_job_has_unit(j);
}

/*
 * The least served job of this model, the oldest among equals. NULL: of any model, for the pass's
 * first unit.
 */
static struct ctw_job *next_job(const struct ctw_queue *q, const struct ctw_model_slot *m)
{
    struct ctw_job *best = NULL;
    for (struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        const struct ctw_model_slot *of =
            has_work(j) ? ctw_models_find(&q->models, j->head.model) : NULL;
        if (of == NULL || of->state != CTW_MODEL_READY || (m != NULL && of != m))
            continue;
        if (m != NULL && j->share.alone)
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
    struct ctw_pass_unit *units = ctw_realloc(s->units, (size_t)cap, sizeof(*units));
    if (units == NULL)
        return false;
    s->units = units;
    s->cap = cap;
    return true;
}

static void take_unit(struct ctw_scorer *s, struct ctw_job *j)
{
    if (!ctw_job_in_pass(j)) {
        ctw_job_start(j);
        ctw_jobs_pin(j);
        ctw_running_join(&s->queue->running);
    }
    int64_t unit = ctw_job_share_take(j);
    s->seqs[s->n] = ctw_job_seq(j, unit);
    s->units[s->n] = (struct ctw_pass_unit){.job = j, .unit = unit, .twin = -1};
    s->n++;
    s->pass_cost += ctw_unit_cost(j, &j->plan.units[unit]);
}

struct ctw_model_slot *ctw_scorer_make_pass(struct ctw_scorer *s)
{
    struct ctw_queue *q = s->queue;
    struct ctw_model_slot *m = NULL;
    int64_t n_tok = 0;
    s->n = 0;
    s->pass_cost = 0;
    ctw_running_clear(&q->running);
    for (;;) {
        bool alone = s->n > 0 && s->units[0].job->share.alone;
        struct ctw_job *j = alone ? s->units[0].job : next_job(q, m);
        if (j == NULL || !has_work(j))
            break;
        if (m == NULL)
            m = ctw_models_find(&q->models, j->head.model);
        int64_t more = ctw_job_next_input(j);
        if (!ctw_pass_fits(s->n, n_tok, more, m->info.pass_tokens))
            break;
        if (s->n == s->cap && !grow(s)) {
            struct ctw_err err;
            if (s->n > 0)
                break;
            (void)ctw_fail(&err, CTW_ENOMEM, "out of memory for a pass");
            ctw_queue_end(q, j, CTW_JOB_FAILED, &err);
            m = NULL;
            continue;
        }
        take_unit(s, j);
        n_tok += more;
    }
    return s->n > 0 ? m : NULL;
}
