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

/* Row `o` of a shard, rounded to dtype; returns its bias. */
static double weight_row(const struct ctw_shard *s, int64_t o, enum ctw_dtype dtype, float *row)
{
    int64_t k = s->weight->k, at = o * ctw_shard_step(s);
    s->weight->format->decode(s->weight, s->data, s->row0 + at, 0, k, row);
    for (int64_t i = 0; i < k; i++)
        row[i] = ctw_round_float(row[i], dtype);
    return s->bias == NULL ? 0 : ctw_load_float(s->bias, s->bias_dtype, at);
}

static double dot(const struct ctw_op_linear *op, int64_t t, const float *row, int64_t k)
{
    double sum = 0;
    int64_t at = (op->x_rows == NULL ? t : op->x_rows[t]) * op->ldx;
    for (int64_t i = 0; i < k; i++) {
        float x = ctw_load_float(op->x, op->dtype, at + i);
        if (op->x_weight != NULL)
            x = ctw_round_float(x * op->x_weight[t], op->dtype);
        sum += (double)x * row[i];
    }
    return sum;
}

/* Of token t, column o of y, from its sum and up's. */
static void finish(const struct ctw_op_linear *op, int64_t t, int64_t o, double sum, double up)
{
    enum ctw_dtype dtype = ctw_linear_y_dtype(op);
    int64_t at = (op->y_rows == NULL ? t : op->y_rows[t]) * op->ldy + o;
    if (op->epilogue == CTW_EPI_GATE)
        sum = ctw_cpu_glu(op->act, &op->glu, sum, up);
    if (op->epilogue == CTW_EPI_SCATTER && op->y_weight != NULL)
        sum *= op->y_weight[t];
    if (op->epilogue == CTW_EPI_ADD || op->epilogue == CTW_EPI_SCATTER)
        sum += ctw_load_float(op->y, dtype, at);
    ctw_store_float(op->y, dtype, at, (float)sum);
}

static void one_column(void *arg, int64_t o, int thread)
{
    const struct job *job = arg;
    const struct ctw_op_linear *op = job->op;
    float *row = job->rows + 2 * thread * job->k, *up_row = row + job->k;
    int64_t at = o;
    const struct ctw_shard *s = shard_of(op, &at);
    enum ctw_dtype w_dtype = op->epilogue == CTW_EPI_LOGITS ? CTW_F32 : op->dtype;
    double bias = weight_row(s, at, w_dtype, row), up_bias = 0;
    bool gate = op->epilogue == CTW_EPI_GATE;
    if (gate)
        up_bias = weight_row(&op->shards[1], o, w_dtype, up_row);
    for (int64_t t = 0; t < op->n_tok; t++)
        finish(op, t, o, dot(op, t, row, job->k) + bias,
               gate ? dot(op, t, up_row, job->k) + up_bias : 0);
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

enum ctw_status ctw_cpu_decode(struct ctw_cpu *cpu, const struct ctw_op_decode *op,
                               struct ctw_err *err)
{
    (void)cpu;
    (void)err;
    ctw_weight_decode(op->shard->weight, op->shard->data, op->shard->row0 + op->row0, op->n_rows,
                      op->dtype, op->dst, op->shard->weight->k);
    return CTW_OK;
}
