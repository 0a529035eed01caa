/* Which units of which jobs make up the next pass. */
#include "base/mem.h"
#include "worker/service/scorer.h"

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
    for (struct ctw_job *j = q->jobs; j != NULL; j = j->next) {
        const struct ctw_model_slot *of = has_work(j) ? ctw_queue_model(q, j->head.model) : NULL;
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
        j->pins++;
        j->n_passes++;
        j->pass_tok_done = 0;
        j->pass_cost = 0;
        j->pass_cost_done = 0;
        atomic_fetch_add(&s->queue->n_live, 1);
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
    atomic_store(&q->n_live, 0);
    for (;;) {
        bool alone = s->n > 0 && s->units[0].job->alone;
        struct ctw_job *j = alone ? s->units[0].job : next_job(q, m);
        if (j == NULL || !has_work(j))
            break;
        if (m == NULL)
            m = ctw_queue_model(q, j->head.model);
        int64_t more = ctw_unit_input(&j->units[j->next_unit]);
        if (s->n > 0 && n_tok + more > m->info.pass_tokens)
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
