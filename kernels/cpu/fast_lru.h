/*
 * ctw_lru() of a fast variant: token by token, as the definition, with a vector's lanes over
 * channels. A task has some channels of a head, through one part.
 *
 * Error: against the definition, exponents, sigmoids and square roots are within a few ulp, and a
 * token's sum rounds once less. What that changes decays with the state.
 */
#ifndef CTW_KERNELS_CPU_FAST_LRU_H
#define CTW_KERNELS_CPU_FAST_LRU_H

#include "kernels/lru.h"

enum { LRU_CHANNELS = EACH_MOST * VL };

struct lru_job {
    const struct ctw_op_lru *op;
    int64_t head_tasks; /* tasks that share a head */
};

/* Channels of a head, from c0 on. Lanes from n on hold what does not count. */
struct lru_channels {
    const struct ctw_op_lru *op;
    int64_t c0, gate; /* gate: the column of the first channel's first gate */
    int64_t n;
    float rate[LRU_CHANNELS], state[LRU_CHANNELS];
    float x[LRU_CHANNELS], input[LRU_CHANNELS], decay[LRU_CHANNELS], y[LRU_CHANNELS];
};

static void lru_begin(struct lru_channels *c, const float *before)
{
    const struct ctw_op_lru *op = c->op;
    float decay[LRU_CHANNELS] = {0};
    memset(c->state, 0, sizeof(c->state));
    memset(c->x, 0, sizeof(c->x));
    memset(c->input, 0, sizeof(c->input));
    memset(c->decay, 0, sizeof(c->decay));
    for (int64_t i = 0; i < c->n; i++)
        decay[i] = ctw_load_float(op->decay, op->decay_dtype, c->c0 + i);
    for (int64_t i = 0; i < LRU_CHANNELS; i += VL)
        vf_store(c->rate + i, vf_mul(vf_set1(-8.0f), vf_softplus(vf_load(decay + i))));
    if (before != NULL)
        memcpy(c->state, before + c->c0, (size_t)c->n * sizeof(*before));
}

/* sqrt(1 - e^t), t <= 0. Near 0, e^t - 1 is t^2 times vf_exp_rest_each()'s polynomial, plus t. */
INLINE void lru_share_each(vf *t, const int n)
{
    vf e[EACH_MOST], p[EACH_MOST];
    EACH(e[i] = t[i])
    vf_exp_each(e, n);
    vf_exp_rest_each(p, t, n);
    EACH(p[i] = vf_fma(p[i], vf_mul(t[i], t[i]), t[i]))
    EACH(e[i] = vf_select_le(vf_set1(-0.34f), t[i], vf_sub(vf_zero(), p[i]),
                             vf_sub(vf_set1(1.0f), e[i])))
    EACH(t[i] = vf_sqrt(e[i]))
}

static void lru_token(struct lru_channels *c, int64_t row, bool first)
{
    enum { n = EACH_MOST };
    const struct ctw_op_lru *op = c->op;
    const int64_t gate = row * op->ldg + c->gate;
    vf a[n], u[n], share[n], s[n];
    widen(c->x, at(op->x, op->dtype, row * op->ldx + c->c0), op->dtype, c->n);
    widen(c->input, at(op->gates, op->dtype, gate), op->dtype, c->n);
    widen(c->decay, at(op->gates, op->dtype, gate + op->head), op->dtype, c->n);
    EACH(a[i] = vf_mul(vf_load(c->rate + i * VL), vf_sigmoid(vf_load(c->decay + i * VL))))
    EACH(share[i] = vf_add(a[i], a[i]))
    EACH(u[i] = vf_mul(vf_sigmoid(vf_load(c->input + i * VL)), vf_load(c->x + i * VL)))
    if (!first) {
        lru_share_each(share, n);
        EACH(u[i] = vf_mul(u[i], share[i]))
    }
    vf_exp_each(a, n);
    EACH(s[i] = vf_fma(a[i], vf_load(c->state + i * VL), u[i]))
    EACH(vf_store(c->state + i * VL, s[i]))
    memcpy(c->y, c->state, sizeof(c->y));
    narrow(at(op->y, op->dtype, row * op->ldy + c->c0), op->dtype, c->y, c->n);
}

static void lru_task(void *arg, int64_t item, int thread)
{
    const struct lru_job *job = arg;
    const struct ctw_op_lru *op = job->op;
    const int64_t tasks = op->n_head * job->head_tasks, head = item % tasks / job->head_tasks;
    const int64_t first = item % job->head_tasks * LRU_CHANNELS;
    const struct ctw_seq_part *p = &op->parts[item / tasks];
    const float *before = ctw_state_at(&op->states, p->before);
    float *after = ctw_state_at(&op->states, p->after);
    struct lru_channels c = {.op = op,
                             .c0 = head * op->head + first,
                             .gate = 2 * head * op->head + first,
                             .n = min64(LRU_CHANNELS, op->head - first)};
    (void)thread;
    lru_begin(&c, before);
    for (int64_t row = p->q_row; row < p->q_row + p->n_q; row++)
        lru_token(&c, row, before == NULL && row == p->q_row);
    if (after != NULL)
        memcpy(after + c.c0, c.state, (size_t)c.n * sizeof(*after));
}

static enum ctw_status fast_lru(struct ctw_cpu *cpu, const struct ctw_op_lru *op,
                                struct ctw_err *err)
{
    struct lru_job job = {.op = op, .head_tasks = ceil_div(op->head, LRU_CHANNELS)};
    (void)err;
    ctw_threads_for(cpu->threads, op->n_parts * op->n_head * job.head_tasks, lru_task, &job);
    return CTW_OK;
}

#endif
