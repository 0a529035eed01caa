/* Reference: the gated delta rule. Sums in double, S in fp32. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/delta.h"
#include "kernels/math.h"

struct delta_job {
    const struct ctw_op_delta *op;
    float *states; /* [key, value] of each thread */
};

/* -rate softplus(x), or least sigmoid(rate x) */
static double log_decay(double rate, double x, double least)
{
    if (least < 0)
        return least / (1 + ctw_exp(-rate * x));
    double y = ctw_exp(-fabs(x)); /* softplus = max(x, 0) + ln(1 + y); NaN stays by y */
    return -rate * (fmax(x, 0) + ctw_ln(1 + y));
}

struct head_step {
    double q[CTW_MAX_DELTA_HEAD], k[CTW_MAX_DELTA_HEAD];
    double beta, decay;
    double decays[CTW_MAX_DELTA_CHANNELS]; /* of each row of S, if they differ */
};

/* x / sqrt(sum of x^2 + 1e-6) * factor, of n elements from `at` on. */
static void unit(const struct ctw_op_delta *op, int64_t at, double factor, double *out)
{
    double sum = 0;
    for (int i = 0; i < op->key; i++) {
        out[i] = ctw_load_float(op->x, op->dtype, at + i);
        sum += out[i] * out[i];
    }
    for (int i = 0; i < op->key; i++)
        out[i] *= factor / sqrt(sum + 1e-6);
}

/* The decay of a and dt_bias in these columns. */
static double decay_of(const struct ctw_op_delta *op, int head, int64_t a, int64_t dt_bias)
{
    double a_log = ctw_load_float(op->a_log, op->a_log_dtype, head);
    return ctw_exp(log_decay(op->as_rates ? fabs(a_log) : ctw_exp(a_log),
                             (double)ctw_load_float(op->a, op->dtype, a) +
                                 ctw_load_float(op->dt_bias, op->dt_bias_dtype, dt_bias),
                             op->least_log));
}

static void take_row(const struct ctw_op_delta *op, int head, int64_t row, struct head_step *s)
{
    int64_t from = row * op->ldx + (int64_t)ctw_delta_key_head(op, head) * op->key;
    int64_t ba = row * op->ldba + ctw_delta_column(op, head);
    unit(op, from, 1 / sqrt((double)op->key), s->q);
    unit(op, from + (int64_t)op->n_key * op->key, 1, s->k);
    s->beta = 1 / (1 + ctw_exp(-(double)ctw_load_float(op->b, op->dtype, ba)));
    if (op->twice)
        s->beta *= 2;
    if (!op->by_channel)
        s->decay = decay_of(op, head, ba, head);
    for (int64_t i = 0, c = (int64_t)head * op->key; op->by_channel && i < op->key; i++)
        s->decays[i] = decay_of(op, head, row * op->ldba + c + i, c + i);
}

/* A token: column i of S, and its output. */
static double column_step(const struct ctw_op_delta *op, const struct head_step *s, float *S,
                          double v)
{
    double read = 0, out = 0;
    for (int i = 0; i < op->key; i++)
        read += s->k[i] * S[(int64_t)i * op->value];
    double d = s->beta * (v - s->decay * read);
    for (int i = 0; i < op->key; i++) {
        float *e = &S[(int64_t)i * op->value];
        *e = (float)(s->decay * *e + s->k[i] * d);
        out += s->q[i] * *e;
    }
    return out;
}

/* The same, if each row has its own decay. */
static double own_column_step(const struct ctw_op_delta *op, const struct head_step *s, float *S,
                              double v)
{
    double read = 0, out = 0;
    for (int i = 0; i < op->key; i++)
        read += s->k[i] * s->decays[i] * S[(int64_t)i * op->value];
    double d = s->beta * (v - read);
    for (int i = 0; i < op->key; i++) {
        float *e = &S[(int64_t)i * op->value];
        *e = (float)(s->decays[i] * *e + s->k[i] * d);
        out += s->q[i] * *e;
    }
    return out;
}

/* One value head of one part. */
static void one_head(void *arg, int64_t i, int thread)
{
    const struct delta_job *job = arg;
    const struct ctw_op_delta *op = job->op;
    const int64_t size = (int64_t)op->key * op->value;
    const int head = (int)(i % op->n_value);
    const struct ctw_seq_part *p = &op->parts[i / op->n_value];
    const float *before = ctw_state_at(&op->states, p->before);
    float *after = ctw_state_at(&op->states, p->after);
    float *S = job->states + thread * size;
    struct head_step step;
    if (before != NULL)
        memcpy(S, before + head * size, (size_t)size * sizeof(float));
    else
        memset(S, 0, (size_t)size * sizeof(float));
    for (int64_t row = p->q_row; row < p->q_row + p->n_q; row++) {
        int64_t v = row * op->ldx + 2 * (int64_t)op->n_key * op->key + (int64_t)head * op->value;
        take_row(op, head, row, &step);
        for (int c = 0; c < op->value; c++) {
            double value = ctw_load_float(op->x, op->dtype, v + c);
            double y = op->by_channel ? own_column_step(op, &step, S + c, value)
                                      : column_step(op, &step, S + c, value);
            ctw_store_float(op->y, op->dtype, row * op->ldy + (int64_t)head * op->value + c,
                            (float)y);
        }
    }
    if (after != NULL)
        memcpy(after + head * size, S, (size_t)size * sizeof(float));
}

enum ctw_status ctw_cpu_delta_c(struct ctw_cpu *cpu, const struct ctw_op_delta *op,
                                struct ctw_err *err)
{
    void *states;
    size_t floats = (size_t)ctw_threads_count(cpu->threads) * (size_t)op->key * (size_t)op->value;
    enum ctw_status st = ctw_cpu_scratch(cpu, floats * sizeof(float), &states, err);
    if (st != CTW_OK)
        return st;
    struct delta_job job = {.op = op, .states = states};
    ctw_threads_for(cpu->threads, op->n_parts * op->n_value, one_head, &job);
    return CTW_OK;
}
