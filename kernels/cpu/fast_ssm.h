/*
 * ctw_ssm() of a fast variant: token by token, as the definition, with a vector's lanes over rows
 * of states (heads' elements, or Mamba 1's channels), so that a sum over n is in the order of n. A
 * task has some rows of one part, with their states in its cache.
 *
 * Error: against the definition, exponentials are within 1.01 ulp and steps within 4, products and
 * sums of a token round once less. What that changes decays with the states.
 */
#ifndef CTW_KERNELS_CPU_FAST_SSM_H
#define CTW_KERNELS_CPU_FAST_SSM_H

#include "kernels/math.h"
#include "kernels/ssm.h"

enum { SSM_VECTORS = EACH_MOST, SSM_ROWS = SSM_VECTORS * VL };

struct ssm_job {
    const struct ctw_op_ssm *op;
    int64_t group_rows, group_tasks; /* of a group's states; tasks that share them */
};

/* Rows row0 .. row0 + n - 1 of the states, which are one group's. Lanes from n on hold zeros. */
struct ssm_rows {
    const struct ctw_op_ssm *op;
    int64_t row0, group;
    int n;
    int64_t head_of[SSM_ROWS];
    float bias[SSM_ROWS], d[SSM_ROWS];
    float rate[SSM_ROWS];                 /* -exp(a_log) */
    float rates[CTW_MAX_STATE][SSM_ROWS]; /* the same with own_decays */
    float state[CTW_MAX_STATE][SSM_ROWS];
    float x[SSM_ROWS], dt[SSM_ROWS], z[SSM_ROWS], y[SSM_ROWS];
    float b[CTW_MAX_STATE + VL], c[CTW_MAX_STATE + VL];
};

static float ssm_number(const struct ctw_ssm_vector *v, int64_t i)
{
    return v->data == NULL ? 0 : ctw_load_float(v->data, v->dtype, i);
}

/* -exp(a_log) */
static float ssm_rate(const struct ctw_op_ssm *op, int64_t i)
{
    float a = ssm_number(&op->a_log, i);
    return op->as_rates ? a : -(float)ctw_exp(a);
}

static void ssm_begin(struct ssm_rows *r)
{
    const struct ctw_op_ssm *op = r->op;
    memset(r->bias, 0, sizeof(r->bias));
    memset(r->d, 0, sizeof(r->d));
    memset(r->rate, 0, sizeof(r->rate));
    memset(r->x, 0, sizeof(r->x));
    memset(r->dt, 0, sizeof(r->dt));
    memset(r->z, 0, sizeof(r->z));
    if (op->own_decays)
        memset(r->rates, 0, (size_t)op->n_state * sizeof(r->rates[0]));
    for (int i = 0; i < r->n; i++) {
        int64_t h = r->head_of[i] = (r->row0 + i) / op->head;
        r->bias[i] = ssm_number(&op->dt_bias, h);
        r->d[i] = ssm_number(&op->d, h);
        if (!op->own_decays)
            r->rate[i] = ssm_rate(op, h);
        for (int64_t n = 0; op->own_decays && n < op->n_state; n++)
            r->rates[n][i] = ssm_rate(op, h * op->n_state + n);
    }
}

static void ssm_load_states(struct ssm_rows *r, const float *before)
{
    int64_t n_state = r->op->n_state;
    memset(r->state, 0, (size_t)n_state * sizeof(r->state[0]));
    for (int i = 0; before != NULL && i < r->n; i++)
        for (int64_t n = 0; n < n_state; n++)
            r->state[n][i] = before[(r->row0 + i) * n_state + n];
}

static void ssm_leave_states(const struct ssm_rows *r, float *after)
{
    int64_t n_state = r->op->n_state;
    for (int i = 0; after != NULL && i < r->n; i++)
        for (int64_t n = 0; n < n_state; n++)
            after[(r->row0 + i) * n_state + n] = r->state[n][i];
}

static void ssm_load_token(struct ssm_rows *r, int64_t t)
{
    const struct ctw_op_ssm *op = r->op;
    int64_t selection = t * op->ldbc + r->group * op->n_state;
    widen(r->x, at(op->x, op->dtype, t * op->ldx + r->row0), op->dtype, r->n);
    if (op->z != NULL)
        widen(r->z, at(op->z, op->dtype, t * op->ldz + r->row0), op->dtype, r->n);
    if (op->head == 1)
        widen(r->dt, at(op->dt, op->dtype, t * op->lddt + r->row0), op->dtype, r->n);
    for (int i = 0; op->head > 1 && i < r->n; i++)
        r->dt[i] = i > 0 && r->head_of[i] == r->head_of[i - 1]
                       ? r->dt[i - 1]
                       : ctw_load_float(op->dt, op->dtype, t * op->lddt + r->head_of[i]);
    widen(r->b, at(op->b, op->dtype, selection), op->dtype, op->n_state);
    widen(r->c, at(op->c, op->dtype, selection), op->dtype, op->n_state);
}

/* The states' step, and the sum of their products with c. */
INLINE void ssm_advance(struct ssm_rows *r, const vf *step, const vf *u, vf *y, const bool own)
{
    enum { n = SSM_VECTORS };
    vf decay[n];
    EACH(y[i] = vf_zero())
    if (!own) {
        EACH(decay[i] = vf_mul(vf_load(r->rate + i * VL), step[i]))
        vf_exp_weight_each(decay, n);
    }
    for (int64_t k = 0; k < r->op->n_state; k++) {
        float *state = r->state[k];
        const vf b = vf_set1(r->b[k]), c = vf_set1(r->c[k]);
        vf s[n];
        if (own) {
            EACH(decay[i] = vf_mul(vf_load(r->rates[k] + i * VL), step[i]))
            vf_exp_weight_each(decay, n);
        }
        EACH(s[i] = vf_fma(decay[i], vf_load(state + i * VL), vf_mul(u[i], b)))
        EACH(vf_store(state + i * VL, s[i]))
        EACH(y[i] = vf_fma(s[i], c, y[i]))
    }
}

static void ssm_token(struct ssm_rows *r, int64_t t)
{
    enum { n = SSM_VECTORS };
    const struct ctw_op_ssm *op = r->op;
    const vf least = vf_set1(op->dt_min), most = vf_set1(op->dt_max);
    vf step[n], u[n], y[n], z[n];
    ssm_load_token(r, t);
    EACH(step[i] = vf_softplus(vf_add(vf_load(r->dt + i * VL), vf_load(r->bias + i * VL))))
    EACH(step[i] = vf_min(most, vf_max(least, step[i])))
    EACH(u[i] = vf_mul(step[i], vf_load(r->x + i * VL)))
    if (op->own_decays)
        ssm_advance(r, step, u, y, true);
    else
        ssm_advance(r, step, u, y, false);
    EACH(y[i] = vf_fma(vf_load(r->d + i * VL), vf_load(r->x + i * VL), y[i]))
    if (op->z != NULL) {
        EACH(z[i] = vf_load(r->z + i * VL))
        vf_silu_each(z, n);
        EACH(y[i] = vf_mul(y[i], z[i]))
    }
    EACH(vf_store(r->y + i * VL, y[i]))
    narrow(at(op->y, op->dtype, t * op->ldy + r->row0), op->dtype, r->y, r->n);
}

static void ssm_task(void *arg, int64_t item, int thread)
{
    const struct ssm_job *job = arg;
    const struct ctw_op_ssm *op = job->op;
    int64_t tasks = op->n_groups * job->group_tasks, first = item % job->group_tasks * SSM_ROWS;
    const struct ctw_seq_part *p = &op->parts[item / tasks];
    struct ssm_rows r;
    (void)thread;
    r.op = op;
    r.group = item % tasks / job->group_tasks;
    r.row0 = r.group * job->group_rows + first;
    r.n = (int)min64(SSM_ROWS, job->group_rows - first);
    ssm_begin(&r);
    ssm_load_states(&r, ctw_state_at(&op->states, p->before));
    for (int64_t t = p->q_row; t < p->q_row + p->n_q; t++)
        ssm_token(&r, t);
    ssm_leave_states(&r, ctw_state_at(&op->states, p->after));
}

static enum ctw_status fast_ssm(struct ctw_cpu *cpu, const struct ctw_op_ssm *op,
                                struct ctw_err *err)
{
    struct ssm_job job = {.op = op, .group_rows = op->n_head / op->n_groups * op->head};
    (void)err;
    job.group_tasks = ceil_div(job.group_rows, SSM_ROWS);
    ctw_threads_for(cpu->threads, op->n_parts * op->n_groups * job.group_tasks, ssm_task, &job);
    return CTW_OK;
}

#endif
