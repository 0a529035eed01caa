/* Plans jobs, and chooses the units that make up the next pass. */
#include "base/mem.h"
#include "worker/service/scorer.h"

/* ---- planning ---- */

static void enter(struct ctw_queue *q, struct ctw_job *job)
{
    double least = 0;
    bool any = false;
    for (const struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
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

bool ctw_scorer_plan_next(struct ctw_queue *q)
{
    struct ctw_job *j = q->jobs.first;
    while (j != NULL && (j->state != CTW_JOB_QUEUED || j->planned))
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
    pthread_mutex_lock(&q->lock);
    if (st == CTW_OK) {
        enter(q, j);
        if (n_done > 0)
            ctw_job_name_source(j, ctw_engine_identity(engine));
        j->n_done = n_done;
        if (j->n_done == j->n_items)
            ctw_queue_end(q, j, CTW_JOB_DONE, NULL);
        j->news = true;
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
    return j->planned && !j->removed && !ctw_job_is_final(j) && j->next_unit < j->n_units;
}

/*
 * The job of this model (NULL: of any, for the pass's first unit) that has been served least; the
 * oldest of equals.
 */
static struct ctw_job *next_job(const struct ctw_queue *q, const struct ctw_model_slot *m)
{
    struct ctw_job *best = NULL;
    for (struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        const struct ctw_model_slot *of =
            has_work(j) ? ctw_models_find(&q->models, j->head.model) : NULL;
        if (of == NULL || of->state != CTW_MODEL_READY || (m != NULL && of != m))
            continue;
        if (m != NULL && j->alone)
            continue;
        if (best == NULL || j->served < best->served)
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
    int64_t n_tok = ctw_unit_input(&j->units[j->next_unit]);
    double cost = ctw_unit_cost(j, &j->units[j->next_unit]);
    if (j->pass_tok == 0) {
        j->state = CTW_JOB_RUNNING;
        ctw_jobs_pin(j);
        j->n_passes++;
        j->pass_tok_done = 0;
        j->pass_cost = 0;
        j->pass_cost_done = 0;
        ctw_running_join(&s->queue->running);
    }
    s->seqs[s->n] = ctw_job_seq(j, j->next_unit);
    s->units[s->n] = (struct ctw_pass_unit){.job = j, .unit = j->next_unit};
    s->n++;
    j->pass_tok += n_tok;
    j->pass_cost += cost;
    s->pass_cost += cost;
    j->served += (double)n_tok;
    j->next_unit++;
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
        bool alone = s->n > 0 && s->units[0].job->alone;
        struct ctw_job *j = alone ? s->units[0].job : next_job(q, m);
        if (j == NULL || !has_work(j))
            break;
        if (m == NULL)
            m = ctw_models_find(&q->models, j->head.model);
        int64_t more = ctw_unit_input(&j->units[j->next_unit]);
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
