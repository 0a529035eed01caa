/* Reference: y = epilogue(x w^T + bias). One item is one output column, for all tokens. */
#include "kernels/cpu/cpu.h"

struct job {
    const struct ctw_op_linear *op;
    float *rows; /* two decoded weight rows per thread */
    int64_t k;
};

/* Row `o` of the concatenated shards. */
static const struct ctw_shard *shard_of(const struct ctw_op_linear *op, int64_t *o)
{
    const struct ctw_shard *s = op->shards;
    while (*o >= s->n) {
        *o -= s->n;
        s++;
    }
    return s;
}

/* Row `o` of a shard rounded to the activations' dtype; returns its bias. */
static double weight_row(const struct ctw_shard *s, int64_t o, enum ctw_dtype dtype, float *row)
{
    int64_t k = s->weight->k;
    s->weight->format->decode(s->weight, s->data, s->row0 + o, 0, k, row);
    for (int64_t i = 0; i < k; i++)
        row[i] = ctw_round_float(row[i], dtype);
    return s->bias == NULL ? 0 : ctw_load_float(s->bias, s->bias_dtype, o);
}

static double dot(const struct ctw_op_linear *op, int64_t t, const float *row, int64_t k)
{
    double sum = 0;
    for (int64_t i = 0; i < k; i++)
        sum += (double)ctw_load_float(op->x, op->dtype, t * op->ldx + i) * row[i];
    return sum;
}

static void one_column(void *arg, int64_t o, int thread)
{
    const struct job *job = arg;
    const struct ctw_op_linear *op = job->op;
    float *row = job->rows + 2 * thread * job->k, *up_row = row + job->k;
    int64_t at = o;
    const struct ctw_shard *s = shard_of(op, &at);
    double bias = weight_row(s, at, op->dtype, row), up_bias = 0;
    enum ctw_dtype y_dtype = op->epilogue == CTW_EPI_ADD ? op->residual_dtype : op->dtype;
    if (op->epilogue == CTW_EPI_GATE)
        up_bias = weight_row(&op->shards[1], o, op->dtype, up_row);
    for (int64_t t = 0; t < op->n_tok; t++) {
        double sum = dot(op, t, row, job->k) + bias;
        if (op->epilogue == CTW_EPI_ADD)
            sum += ctw_load_float(op->y, y_dtype, t * op->ldy + o);
        if (op->epilogue == CTW_EPI_GATE)
            sum = ctw_cpu_activate(op->act, NULL, sum) * (dot(op, t, up_row, job->k) + up_bias);
        ctw_store_float(op->y, y_dtype, t * op->ldy + o, (float)sum);
    }
}

enum ctw_status ctw_cpu_linear_c(struct ctw_cpu *cpu, const struct ctw_op_linear *op,
                                 struct ctw_err *err)
{
    struct job job = {.op = op, .k = op->shards[0].weight->k};
    void *rows;
    size_t n_threads = (size_t)ctw_threads_count(cpu->threads);
    enum ctw_status st =
        ctw_cpu_scratch(cpu, n_threads * 2 * (size_t)job.k * sizeof(float), &rows, err);
    if (st != CTW_OK)
        return st;
    job.rows = rows;
    int64_t n = 0;
    for (int i = 0; i < (op->epilogue == CTW_EPI_GATE ? 1 : op->n_shards); i++)
        n += op->shards[i].n;
    ctw_threads_for(cpu->threads, n, one_column, &job);
    return CTW_OK;
}
