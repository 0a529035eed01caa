/* The definition of ctw_lru(): token by token. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/lru.h"
#include "kernels/math.h"

static double sigmoid(double x)
{
    return 1 / (1 + ctw_exp(-x));
}

/* 1 - e^t, t <= 0. Near 0, where the difference would lose digits, by a series. */
static double one_less_exp(double t)
{
    return t > -0x1p-10 ? -t * (1 + t / 2 * (1 + t / 3)) : 1 - ctw_exp(t);
}

/* One channel, through one part. */
static void one_channel(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct ctw_op_lru *op = arg;
    const int64_t dim = op->n_head * op->head, c = item % dim;
    const int64_t gate = c / op->head * 2 * op->head + c % op->head;
    const struct ctw_seq_part *p = &op->parts[item / dim];
    const float *before = ctw_state_at(&op->states, p->before);
    float *after = ctw_state_at(&op->states, p->after), state = before != NULL ? before[c] : 0;
    const double rate = -8 * ctw_cpu_softplus(ctw_load_float(op->decay, op->decay_dtype, c));
    for (int64_t row = p->q_row; row < p->q_row + p->n_q; row++) {
        const int64_t at = row * op->ldg + gate;
        const double l = rate * sigmoid(ctw_load_float(op->gates, op->dtype, at + op->head));
        const bool first = before == NULL && row == p->q_row;
        const float u = (float)((first ? 1 : sqrt(one_less_exp(2 * l))) *
                                sigmoid(ctw_load_float(op->gates, op->dtype, at)) *
                                ctw_load_float(op->x, op->dtype, row * op->ldx + c));
        state = (float)ctw_exp(l) * state + u;
        ctw_store_float(op->y, op->dtype, row * op->ldy + c, state);
    }
    if (after != NULL)
        after[c] = state;
}

enum ctw_status ctw_cpu_lru_c(struct ctw_cpu *cpu, const struct ctw_op_lru *op, struct ctw_err *err)
{
    (void)err;
    struct ctw_op_lru copy = *op;
    ctw_threads_for(cpu->threads, op->n_parts * op->n_head * op->head, one_channel, &copy);
    return CTW_OK;
}
