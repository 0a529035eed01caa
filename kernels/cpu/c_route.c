/* Routers of mixtures of experts, for every variant: next to a layer's products, they take next to
 * no time. Scores in double. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/math.h"

enum { ROWS = 64 }; /* of a task */

/* One thread's arrays. */
struct scores {
    double l[CTW_MAX_EXPERTS];      /* logits; NaN: cannot be chosen */
    double s[CTW_MAX_EXPERTS];      /* scores */
    double choice[CTW_MAX_EXPERTS]; /* NaN: cannot be chosen */
};

struct route_job {
    const struct ctw_op_route *op;
    struct scores *local;
};

static double number(const void *p, enum ctw_dtype dtype, int64_t i, double absent)
{
    return p == NULL ? absent : ctw_load_float(p, dtype, i);
}

/* The largest of n numbers that are not NaN, the first on a tie; -1: there is none. */
static int largest(const double *x, int n)
{
    int at = -1;
    for (int i = 0; i < n; i++)
        if (at < 0 ? !isnan(x[i]) : x[i] > x[at])
            at = i;
    return at;
}

/* False: a logit is NaN or +infinity, or none is finite. */
static bool load_logits(const struct ctw_op_route *op, int64_t t, double *l)
{
    const struct ctw_route_rule *r = &op->rule;
    bool finite = false;
    for (int e = 0; e < r->n_experts; e++) {
        double x = (double)op->logits[t * r->n_experts + e] * r->factor;
        l[e] = r->softcap != 0 ? r->softcap * ctw_tanh(x / r->softcap) : x;
        if (isnan(x) || x == INFINITY)
            return false;
        finite |= isfinite(x);
    }
    return finite;
}

static void score(const struct ctw_route_rule *r, struct scores *x)
{
    double sum = 0, m = x->l[largest(x->l, r->n_experts)];
    for (int e = 0; e < r->n_experts; e++) {
        x->s[e] = r->score == CTW_SCORE_SIGMOID         ? 1 / (1 + ctw_exp(-x->l[e]))
                  : r->score == CTW_SCORE_SQRT_SOFTPLUS ? sqrt(ctw_cpu_softplus(x->l[e]))
                                                        : ctw_exp(x->l[e] - m);
        sum += x->s[e];
    }
    for (int e = 0; r->score == CTW_SCORE_SOFTMAX && e < r->n_experts; e++)
        x->s[e] /= sum;
}

/* Leaves the kept groups' choices, and makes the others NaN. */
static void keep_groups(const struct ctw_route_rule *r, double *choice)
{
    double group[CTW_MAX_EXPERTS];
    int n = r->n_experts / r->n_groups;
    for (int g = 0; g < r->n_groups; g++) {
        double *in = choice + g * n, best = in[largest(in, n)], kept = best;
        int at = largest(in, n);
        in[at] = NAN;
        group[g] = best + (r->group_best == 2 ? in[largest(in, n)] : 0);
        in[at] = kept;
    }
    for (int k = 0; k < r->kept_groups; k++)
        group[largest(group, r->n_groups)] = NAN;
    for (int e = 0; e < r->n_experts; e++)
        choice[e] = isnan(group[e / n]) ? choice[e] : NAN;
}

static void choose(const struct ctw_op_route *op, struct scores *x, int32_t *ids, double *weights)
{
    const struct ctw_route_rule *r = &op->rule;
    const int n = r->n_experts - r->always, n_free = r->chosen - r->always;
    const bool by_score = !r->corrects_logits && (op->correction != NULL || r->n_groups > 0);
    for (int e = 0; e < n; e++) {
        double c =
            (by_score ? x->s[e] : x->l[e]) + number(op->correction, op->correction_dtype, e, 0);
        x->choice[e] = isnan(c) ? -INFINITY : c; /* a correction of NaN */
    }
    if (r->n_groups > 0)
        keep_groups(r, x->choice);
    for (int k = 0; k < r->chosen; k++) {
        ids[k] = k < n_free ? largest(x->choice, n) : n + k - n_free;
        if (k < n_free)
            x->choice[ids[k]] = NAN;
        weights[k] = x->s[ids[k]];
    }
}

/* The experts of the row's token. */
static void look_up(const struct ctw_op_route *op, int64_t t, const struct scores *x, int32_t *ids,
                    double *weights)
{
    const int chosen = op->rule.chosen;
    for (int k = 0; k < chosen; k++) {
        ids[k] = ctw_route_entry(op->table, op->table_dtype, op->tokens[t] * (int64_t)chosen + k);
        weights[k] = x->s[ids[k]];
    }
}

/* The expert with the largest logit, and its softmax among those near it. */
static void choose_near(const struct ctw_op_route *op, struct scores *x, int32_t *ids,
                        double *weights)
{
    const struct ctw_route_rule *r = &op->rule;
    for (int k = 0; k < r->chosen; k++) {
        int best = largest(x->l, r->n_experts);
        double m = x->l[best], sum = 0;
        for (int e = 0; e < r->n_experts; e++)
            if (m - x->l[e] <= 2.0 * r->jitter * fmax(fabs(x->l[e]), m))
                sum += ctw_exp(x->l[e] - m);
        ids[k] = best;
        weights[k] = 1 / sum;
        x->l[best] = NAN;
    }
}

static void sum_identity(const struct ctw_op_route *op, int64_t t)
{
    const struct ctw_route_rule *r = &op->rule;
    const int32_t *ids = op->ids + t * r->chosen;
    float sum = 0;
    for (int k = 0; k < r->chosen; k++)
        sum += ids[k] >= r->n_experts - r->n_identity ? op->weights[t * r->chosen + k] : 0;
    op->identity[t] = sum;
}

static void route_row(const struct ctw_op_route *op, int64_t t, struct scores *x)
{
    const struct ctw_route_rule *r = &op->rule;
    int32_t *ids = op->ids + t * r->chosen;
    float *out = op->weights + t * r->chosen;
    double w[CTW_MAX_CHOSEN], sum = 0;
    if (!load_logits(op, t, x->l)) {
        for (int k = 0; k < r->chosen; k++) {
            ids[k] = k;
            out[k] = NAN;
        }
        return;
    }
    if (r->score == CTW_SCORE_SPARSEMIXER) {
        choose_near(op, x, ids, w);
    } else {
        score(r, x);
        if (op->table != NULL)
            look_up(op, t, x, ids, w);
        else
            choose(op, x, ids, w);
    }
    for (int k = 0; k < r->chosen; k++)
        sum += w[k];
    if (r->normalised)
        sum = fmax(sum + r->sum_add, r->sum_least);
    else if (r->score != CTW_SCORE_SOFTMAX_CHOSEN)
        sum = 1;
    for (int k = 0; k < r->chosen; k++)
        out[k] = (float)(w[k] / sum * r->scale *
                         number(op->expert_scale, op->expert_scale_dtype, ids[k], 1));
}

static void route_item(void *arg, int64_t item, int thread)
{
    const struct route_job *job = arg;
    int64_t end = (item + 1) * ROWS < job->op->n_tok ? (item + 1) * ROWS : job->op->n_tok;
    for (int64_t t = item * ROWS; t < end; t++) {
        route_row(job->op, t, &job->local[thread]);
        if (job->op->identity != NULL)
            sum_identity(job->op, t);
    }
}

enum ctw_status ctw_cpu_route(struct ctw_cpu *cpu, const struct ctw_op_route *op,
                              struct ctw_err *err)
{
    struct route_job job = {.op = op};
    void *local;
    enum ctw_status st = ctw_cpu_scratch(
        cpu, (size_t)ctw_threads_count(cpu->threads) * sizeof(struct scores), &local, err);
    if (st != CTW_OK)
        return st;
    job.local = local;
    ctw_threads_for(cpu->threads, (op->n_tok + ROWS - 1) / ROWS, route_item, &job);
    return CTW_OK;
}

/* A counting sort. */
enum ctw_status ctw_cpu_group(struct ctw_cpu *cpu, const struct ctw_op_group *op,
                              struct ctw_err *err)
{
    (void)cpu;
    (void)err;
    int32_t next[CTW_MAX_EXPERTS] = {0};
    int64_t n = op->n_tok * op->chosen;
    for (int64_t i = 0; i < n; i++)
        next[op->ids[i]]++;
    op->start[0] = 0;
    for (int e = 0; e < op->n_experts; e++) {
        op->start[e + 1] = op->start[e] + next[e];
        next[e] = op->start[e];
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t to = next[op->ids[i]]++;
        op->rows[to] = (int32_t)(i / op->chosen);
        op->row_weights[to] = op->weights[i];
    }
    return CTW_OK;
}
