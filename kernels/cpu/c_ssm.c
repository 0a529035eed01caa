/* The definition of ctw_ssm(): token by token. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/math.h"
#include "kernels/ssm.h"

struct task {
    const struct ctw_op_ssm *op;
    const struct ctw_attn_seq *seq;
    float *states; /* [n_head, head, n_state]: where the sequence's heads have their states */
};

static float vector_at(const struct ctw_ssm_vector *v, int64_t i)
{
    return v->data == NULL ? 0 : ctw_load_float(v->data, v->dtype, i);
}

static float step_of(const struct ctw_op_ssm *op, int64_t row, int64_t h)
{
    float dt = ctw_load_float(op->dt, op->dtype, row * op->lddt + h) + vector_at(&op->dt_bias, h);
    float step = dt > 30 ? dt : (float)ctw_ln(1 + ctw_exp((double)dt));
    return step < op->dt_min ? op->dt_min : step > op->dt_max ? op->dt_max : step; /* NaN stays */
}

/* The decay of element n of a state. */
static float decay_of(const struct ctw_op_ssm *op, int64_t h, int64_t n, float step)
{
    float a = vector_at(&op->a_log, op->own_decays ? h * op->n_state + n : h);
    double rate = op->as_rates ? (double)a : -ctw_exp((double)a);
    return (float)ctw_exp(rate * (double)step);
}

/* One row of a state: S[i, ..]. */
static float advance(const struct ctw_op_ssm *op, int64_t row, int64_t h, float decay, float step,
                     float x, float *state)
{
    int64_t at = row * op->ldbc + h / (op->n_head / op->n_groups) * op->n_state;
    float sum = 0;
    for (int64_t n = 0; n < op->n_state; n++) {
        float a = op->own_decays ? decay_of(op, h, n, step) : decay;
        state[n] = a * state[n] + step * x * ctw_load_float(op->b, op->dtype, at + n);
        sum += state[n] * ctw_load_float(op->c, op->dtype, at + n);
    }
    return sum;
}

static void one_token(const struct ctw_op_ssm *op, int64_t row, int64_t h, float *state)
{
    float step = step_of(op, row, h), d = vector_at(&op->d, h);
    float decay = op->own_decays ? 0 : decay_of(op, h, 0, step);
    for (int64_t i = 0; i < op->head; i++) {
        int64_t col = h * op->head + i;
        float x = ctw_load_float(op->x, op->dtype, row * op->ldx + col);
        float y = advance(op, row, h, decay, step, x, state + i * op->n_state) + d * x;
        if (op->z != NULL) {
            double z = ctw_load_float(op->z, op->dtype, row * op->ldz + col);
            y *= (float)(z / (1 + ctw_exp(-z)));
        }
        ctw_store_float(op->y, op->dtype, row * op->ldy + col, y);
    }
}

static void one_head(void *arg, int64_t h, int thread)
{
    (void)thread;
    const struct task *t = arg;
    const struct ctw_op_ssm *op = t->op;
    int64_t size = op->head * op->n_state;
    float *state = t->states + h * size;
    if (t->seq->pos0 > 0)
        memcpy(state, (const float *)op->before + h * size, (size_t)size * sizeof(float));
    else
        memset(state, 0, (size_t)size * sizeof(float));
    for (int64_t row = t->seq->q_row; row < t->seq->q_row + t->seq->n_q; row++)
        one_token(op, row, h, state);
}

enum ctw_status ctw_cpu_ssm_c(struct ctw_cpu *cpu, const struct ctw_op_ssm *op, struct ctw_err *err)
{
    (void)err;
    for (int64_t i = 0; i < op->n_seqs; i++) {
        struct task t = {op, &op->seqs[i], op->after};
        ctw_threads_for(cpu->threads, op->n_head, one_head, &t);
    }
    return CTW_OK;
}
