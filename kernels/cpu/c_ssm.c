/* The definition of ctw_ssm(): token by token. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/math.h"
#include "kernels/ssm.h"

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

/* A token's y in column col, of head h; state: the column's row of S. */
static float advance(const struct ctw_op_ssm *op, int64_t row, int64_t h, int64_t col, float *state)
{
    const int64_t at = row * op->ldbc + h / (op->n_head / op->n_groups) * op->n_state;
    const float x = ctw_load_float(op->x, op->dtype, row * op->ldx + col);
    const float step = step_of(op, row, h), decay = op->own_decays ? 0 : decay_of(op, h, 0, step);
    float sum = 0;
    for (int64_t n = 0; n < op->n_state; n++) {
        float a = op->own_decays ? decay_of(op, h, n, step) : decay;
        state[n] = a * state[n] + step * x * ctw_load_float(op->b, op->dtype, at + n);
        sum += state[n] * ctw_load_float(op->c, op->dtype, at + n);
    }
    return sum + vector_at(&op->d, h) * x;
}

/* One row of S, through one part. */
static void one_column(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct ctw_op_ssm *op = arg;
    const int64_t inner = op->n_head * op->head, col = item % inner;
    const struct ctw_seq_part *p = &op->parts[item / inner];
    const float *before = ctw_state_at(&op->states, p->before);
    float *after = ctw_state_at(&op->states, p->after), state[CTW_MAX_STATE] = {0};
    const size_t bytes = (size_t)op->n_state * sizeof(float);
    if (before != NULL)
        memcpy(state, before + col * op->n_state, bytes);
    for (int64_t row = p->q_row; row < p->q_row + p->n_q; row++) {
        float y = advance(op, row, col / op->head, col, state);
        if (op->z != NULL) {
            double z = ctw_load_float(op->z, op->dtype, row * op->ldz + col);
            y *= (float)(z / (1 + ctw_exp(-z)));
        }
        ctw_store_float(op->y, op->dtype, row * op->ldy + col, y);
    }
    if (after != NULL)
        memcpy(after + col * op->n_state, state, bytes);
}

enum ctw_status ctw_cpu_ssm_c(struct ctw_cpu *cpu, const struct ctw_op_ssm *op, struct ctw_err *err)
{
    (void)err;
    struct ctw_op_ssm copy = *op;
    ctw_threads_for(cpu->threads, op->n_parts * op->n_head * op->head, one_column, &copy);
    return CTW_OK;
}
