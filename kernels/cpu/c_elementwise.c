/* Reference: embedding, RMSNorm, and the split of q, k, v with its norms and RoPE. */
#include <math.h>

#include "kernels/cpu/cpu.h"

/* ---- embed -------------------------------------------------------------------------------- */

struct embed_job {
    const struct ctw_op_embed *op;
    float *rows; /* one per thread */
};

static void embed_one(void *arg, int64_t t, int thread)
{
    const struct embed_job *job = arg;
    const struct ctw_op_embed *op = job->op;
    const struct ctw_weight *w = op->table->weight;
    float *row = job->rows + thread * w->k;
    w->format->decode(w, op->table->data, op->tokens[t], 0, w->k, row);
    for (int64_t i = 0; i < w->k; i++)
        ctw_store_float(op->y, op->dtype, t * w->k + i,
                        ctw_round_float(row[i], op->dtype) * op->scale);
}

enum ctw_status ctw_cpu_embed_c(struct ctw_cpu *cpu, const struct ctw_op_embed *op,
                                struct ctw_err *err)
{
    void *rows;
    size_t floats = (size_t)ctw_threads_count(cpu->threads) * (size_t)op->table->weight->k;
    enum ctw_status st = ctw_cpu_scratch(cpu, floats * sizeof(float), &rows, err);
    if (st != CTW_OK)
        return st;
    struct embed_job job = {.op = op, .rows = rows};
    ctw_threads_for(cpu->threads, op->n_tok, embed_one, &job);
    return CTW_OK;
}

/* ---- RMSNorm ------------------------------------------------------------------------------ */

static double sum_of_squares(const void *x, enum ctw_dtype dtype, int64_t at, int64_t dim)
{
    double sum = 0;
    for (int64_t i = 0; i < dim; i++) {
        double v = ctw_load_float(x, dtype, at + i);
        sum += v * v;
    }
    return sum;
}

static void norm_one(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_rms_norm *op = arg;
    int64_t row = op->rows == NULL ? t : op->rows[t], from = row * op->dim;
    double sum = sum_of_squares(op->x, op->x_dtype, from, op->dim);
    if (op->bad != NULL && op->bad[row] < 0 && !isfinite((float)sum))
        op->bad[row] = op->stamp;
    double r = 1 / sqrt(sum / (double)op->dim + op->eps);
    for (int64_t i = 0; i < op->dim; i++) {
        double w = (double)ctw_load_float(op->weight, op->weight_dtype, i) + op->weight_offset;
        double v = ctw_load_float(op->x, op->x_dtype, from + i);
        ctw_store_float(op->y, op->dtype, t * op->dim + i, (float)(v * r * w));
    }
}

enum ctw_status ctw_cpu_rms_norm_c(struct ctw_cpu *cpu, const struct ctw_op_rms_norm *op,
                                   struct ctw_err *err)
{
    (void)err;
    struct ctw_op_rms_norm copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, norm_one, &copy);
    return CTW_OK;
}

/* ---- q, k, v ------------------------------------------------------------------------------ */

/* One head, from src[from ..] to dst[to ..]. cos_sin NULL: no rotation. */
static void one_head(const struct ctw_op_qkv *op, const void *norm, const float *cos_sin,
                     const void *src, int64_t from, void *dst, int64_t to)
{
    double r = 1;
    if (norm != NULL) {
        double sum = sum_of_squares(src, op->dtype, from, op->head);
        r = 1 / sqrt(sum / op->head + op->norm_eps);
    }
    int half = op->rot_dim / 2;
    bool halves = op->pairing == CTW_ROPE_HALVES;
    for (int i = 0; i < op->head; i++) {
        bool turns = cos_sin != NULL && i < op->rot_dim;
        /* `pair` numbers the pairs; element i rotates with element `other` */
        int pair = halves ? i % (half > 0 ? half : 1) : i / 2;
        bool first = halves ? i < half : i % 2 == 0;
        int other = !turns ? i : halves ? (first ? i + half : i - half) : (first ? i + 1 : i - 1);
        double a = ctw_load_float(src, op->dtype, from + i) * r;
        double b = ctw_load_float(src, op->dtype, from + other) * r;
        if (norm != NULL) {
            a *= ctw_load_float(norm, op->norm_dtype, i);
            b *= ctw_load_float(norm, op->norm_dtype, other);
        }
        if (turns) {
            double c = cos_sin[pair], s = cos_sin[half + pair];
            a = first ? a * c - b * s : a * c + b * s;
        }
        ctw_store_float(dst, op->dtype, to + i, (float)a);
    }
}

static void qkv_one(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_qkv *op = arg;
    int n_all = op->n_head + 2 * op->n_kv;
    const float *cos_sin =
        op->rot_dim > 0 ? op->cos_sin + (int64_t)op->positions[t] * op->rot_dim : NULL;
    for (int h = 0; h < n_all; h++) {
        int64_t from = (t * n_all + h) * op->head;
        if (h < op->n_head)
            one_head(op, op->q_norm, cos_sin, op->qkv, from, op->q,
                     (t * op->n_head + h) * op->head);
        else if (h < op->n_head + op->n_kv)
            one_head(op, op->k_norm, cos_sin, op->qkv, from, op->k,
                     (t * op->n_kv + h - op->n_head) * op->head);
        else
            one_head(op, NULL, NULL, op->qkv, from, op->v,
                     (t * op->n_kv + h - op->n_head - op->n_kv) * op->head);
    }
}

enum ctw_status ctw_cpu_qkv_c(struct ctw_cpu *cpu, const struct ctw_op_qkv *op, struct ctw_err *err)
{
    (void)err;
    struct ctw_op_qkv copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, qkv_one, &copy);
    return CTW_OK;
}
