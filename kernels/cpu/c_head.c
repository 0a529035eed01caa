/* Reference: log softmax of a row's logits at its targets, and the first of the largest logits. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/head_targets.h"
#include "kernels/math.h"

enum { ROWS = 32 }; /* rows that share one sweep over the vocabulary */

/* The sum of exp(logit - max) so far, and the other results of one row. */
struct state {
    double max, sum;
    float largest;
    int32_t greedy;
};

_Static_assert(sizeof(struct state) <= CTW_CPU_HEAD_STATE, "as cpu.c promises");

struct job {
    const struct ctw_op_head *op;
    float *rows;         /* one decoded weight row per thread */
    struct state *state; /* [n_rows]: from one part of the weight to the next */
};

static float logit(const struct ctw_op_head *op, int64_t t, const float *w, int64_t k, double bias)
{
    double sum = bias;
    for (int64_t i = 0; i < k; i++)
        sum += (double)ctw_load_float(op->x, op->dtype, t * k + i) * w[i];
    if (op->weight->output != NULL)
        sum = ctw_quantise_logit(op->weight->output, (float)sum);
    sum *= op->scale;
    return (float)(op->softcap > 0 ? op->softcap * ctw_tanh(sum / op->softcap) : sum);
}

static void add_logit(struct state *s, float x, int32_t id)
{
    if (id == 0 || x > s->largest) {
        s->largest = x;
        s->greedy = id;
    }
    if (x > s->max) {
        s->sum = s->sum * ctw_exp(s->max - x) + ctw_exp(x - x); /* + 1; NaN for infinity */
        s->max = x;
    } else if (x != -INFINITY) {
        s->sum += ctw_exp(x - s->max); /* NaN stays in the sum */
    }
}

static void to_unit_length(float *w, int64_t k, enum ctw_dtype dtype)
{
    double squares = 0;
    for (int64_t i = 0; i < k; i++)
        squares += (double)w[i] * w[i];
    float length = ctw_unit_length(squares);
    for (int64_t i = 0; i < k; i++)
        w[i] = ctw_round_float(w[i] / length, dtype);
}

/* The logit waits where a target's result will be. */
static void keep_target(const struct ctw_op_head *op, int64_t row, float x, int32_t id)
{
    const int32_t end = ctw_head_target(op->first_target, row + 1);
    for (int32_t t = ctw_head_target(op->first_target, row); t < end; t++)
        if (op->targets[t] == id)
            op->out[t].logprob = x;
}

static void finish_row(const struct ctw_op_head *op, int64_t row, const struct state *s)
{
    const int32_t end = ctw_head_target(op->first_target, row + 1);
    const double ln_sum = ctw_ln(s->sum);
    for (int32_t t = ctw_head_target(op->first_target, row); t < end; t++)
        op->out[t] = (struct ctw_head_result){
            .logprob = (float)(op->out[t].logprob - s->max - ln_sum), .greedy = s->greedy};
    if (op->norms != NULL)
        op->norms[row] = (struct ctw_head_norm){s->max, ln_sum};
}

static void some_rows(void *arg, int64_t item, int thread)
{
    const struct job *job = arg;
    const struct ctw_op_head *op = job->op;
    const struct ctw_weight *weight = op->weight->weight;
    float *w = job->rows + thread * weight->k;
    int64_t t0 = item * ROWS, n = op->n_rows - t0 < ROWS ? op->n_rows - t0 : ROWS;
    int64_t end = op->id0 + weight->n < op->n_vocab ? op->id0 + weight->n : op->n_vocab;
    struct state *state = job->state + t0;
    for (int64_t i = 0; op->id0 == 0 && i < n; i++)
        state[i] = (struct state){.max = -INFINITY};
    for (int64_t id = op->id0; id < end; id++) {
        int64_t row = id - op->id0;
        weight->format->decode(weight, op->weight->data, row, 0, weight->k, w);
        for (int64_t i = 0; i < weight->k; i++)
            w[i] = ctw_round_float(w[i], op->dtype);
        if (op->unit_rows)
            to_unit_length(w, weight->k, op->dtype);
        double bias = op->weight->bias == NULL
                          ? 0
                          : ctw_load_float(op->weight->bias, op->weight->bias_dtype, row);
        for (int64_t i = 0; i < n; i++) {
            float x = logit(op, t0 + i, w, weight->k, bias);
            add_logit(&state[i], x, (int32_t)id);
            keep_target(op, t0 + i, x, (int32_t)id);
            if (op->logits != NULL)
                op->logits[(t0 + i) * op->ld_logits + id] = x;
        }
    }
    if (end < op->n_vocab)
        return;
    for (int64_t i = 0; i < n; i++)
        finish_row(op, t0 + i, &state[i]);
}

enum ctw_status ctw_cpu_head_c(struct ctw_cpu *cpu, const struct ctw_op_head *op,
                               struct ctw_err *err)
{
    struct job job = {.op = op};
    void *scratch;
    size_t floats = (size_t)ctw_threads_count(cpu->threads) * (size_t)op->weight->weight->k;
    size_t states = (size_t)op->n_rows * sizeof(*job.state);
    enum ctw_status st = ctw_cpu_scratch(cpu, states + floats * sizeof(float), &scratch, err);
    if (st != CTW_OK)
        return st;
    job.state = scratch;
    job.rows = (float *)(job.state + op->n_rows);
    ctw_threads_for(cpu->threads, (op->n_rows + ROWS - 1) / ROWS, some_rows, &job);
    return CTW_OK;
}
