/* Reference: embedding, norms, activations, and the split of q, k, v with its norms and RoPE. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/math.h"

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
    int64_t id = op->tokens[t] - op->id0;
    if (op->in_part && (id < 0 || id >= op->table->n))
        return;
    if (op->add && id >= op->table->n)
        id = 0;
    w->format->decode(w, op->table->data, op->table->row0 + id, 0, w->k, row);
    for (int64_t i = 0; i < w->k; i++) {
        float v = ctw_round_float(row[i], op->dtype) * op->scale;
        if (op->add)
            v += ctw_load_float(op->y, op->dtype, t * w->k + i);
        ctw_store_float(op->y, op->dtype, t * w->k + i, v);
    }
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

/* ---- norms -------------------------------------------------------------------------------- */

/* Of the differences from `mean`. */
static double sum_of_squares(const void *x, enum ctw_dtype dtype, int64_t at, int64_t dim,
                             double mean)
{
    double sum = 0;
    for (int64_t i = 0; i < dim; i++) {
        double v = ctw_load_float(x, dtype, at + i) - mean;
        sum += v * v;
    }
    return sum;
}

/* Group `g` of row t; x begins at element `from`. */
static void norm_group(const struct ctw_op_norm *op, int64_t t, int64_t g, int64_t from)
{
    int64_t own = op->own_weights ? g * op->dim : 0, to = t * op->ldy + g * op->dim;
    double mean = 0, r = 1;
    const bool cutoff = op->kind == CTW_NORM_CUTOFF;
    if (op->kind == CTW_NORM_LAYER || cutoff) {
        for (int64_t i = 0; i < op->dim; i++)
            mean += ctw_load_float(op->x, op->x_dtype, from + i);
        mean /= (double)op->dim;
    }
    if (op->kind != CTW_NORM_NONE) {
        double sum = sum_of_squares(op->x, op->x_dtype, from, op->dim, mean);
        r = cutoff ? 1 : 1 / sqrt(sum / (double)op->dim + op->eps);
        mean += cutoff ? op->eps * sqrt(sum / (double)op->dim) : 0;
    }
    for (int64_t i = 0; i < op->dim; i++) {
        double v = (ctw_load_float(op->x, op->x_dtype, from + i) - mean) * r;
        if (cutoff && v < 0) /* NaN stays */
            v = 0;
        if (op->weight != NULL)
            v *= (double)ctw_load_float(op->weight, op->weight_dtype, own + i) + op->weight_offset;
        if (op->bias != NULL)
            v += ctw_load_float(op->bias, op->bias_dtype, own + i);
        v *= op->factor;
        if (op->add)
            v += ctw_load_float(op->y, op->dtype, to + i);
        ctw_store_float(op->y, op->dtype, to + i, (float)v);
    }
}

static void norm_one(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_norm *op = arg;
    int64_t row = op->rows == NULL ? t : op->rows[t], from = row * op->ldx;
    if (op->bad != NULL && op->bad[row] < 0 &&
        !isfinite((float)sum_of_squares(op->x, op->x_dtype, from, op->dim, 0)))
        op->bad[row] = op->stamp;
    for (int64_t g = 0; g < op->n_groups; g++)
        norm_group(op, t, g, from + g * op->dim);
}

enum ctw_status ctw_cpu_norm_c(struct ctw_cpu *cpu, const struct ctw_op_norm *op,
                               struct ctw_err *err)
{
    (void)err;
    struct ctw_op_norm copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, norm_one, &copy);
    return CTW_OK;
}

/* ---- activations -------------------------------------------------------------------------- */

double ctw_cpu_activate(enum ctw_activation act, const float *param, double g)
{
    switch (act) {
    case CTW_ACT_SILU:
        return g / (1 + ctw_exp(-g));
    case CTW_ACT_GELU:
        return 0.5 * g * ctw_erfc(-g * M_SQRT1_2);
    case CTW_ACT_GELU_TANH:
        return 0.5 * g * (1 + ctw_tanh(0.5 * M_2_SQRTPI * M_SQRT2 * (g + 0.044715 * g * g * g)));
    case CTW_ACT_RELU:
        return g < 0 ? 0 : g; /* NaN stays */
    case CTW_ACT_RELU2:
        return g < 0 ? 0 : g * g;
    case CTW_ACT_XIELU:
        if (g > 0)
            return param[0] * g * g + param[2] * g;
        return (ctw_exp(g < param[3] ? g : param[3]) - 1 - g) * param[1] + param[2] * g;
    case CTW_ACT_SIGMOID:
        return 1 / (1 + ctw_exp(-g));
    default:
        return g > param[0] ? param[0] : g < -param[0] ? -param[0] : g;
    }
}

/* NaN stays. */
static double clamp(double x, double least, double most)
{
    return x < least ? least : x > most ? most : x;
}

double ctw_cpu_glu(enum ctw_activation act, const struct ctw_glu *glu, double g, double u)
{
    double most = glu->limit, below = clamp(g, -INFINITY, most);
    switch (glu->kind) {
    case CTW_GLU_CLAMPED:
        return ctw_cpu_activate(act, NULL, below) * clamp(u, -most, most);
    case CTW_GLU_CLAMPED_ACT:
        return clamp(ctw_cpu_activate(act, NULL, g), -INFINITY, most) * clamp(u, -most, most);
    case CTW_GLU_OFFSET:
        return below / (1 + ctw_exp(-glu->alpha * below)) * (clamp(u, -most, most) + 1);
    case CTW_GLU_SLOPED:
        return below / (1 + ctw_exp(-glu->alpha * below)) * clamp(u, -most, most);
    case CTW_GLU_BOUNDED:
        return glu->alpha * ctw_tanh(g / glu->alpha) / (1 + ctw_exp(-g)) *
               (isinf(most) ? u : most * ctw_tanh(u / most));
    default:
        return ctw_cpu_activate(act, NULL, g) * u;
    }
}

static void act_one(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_act *op = arg;
    for (int64_t i = 0; i < op->dim; i++) {
        double v = ctw_load_float(op->x, op->dtype, t * op->ldx + i);
        v = ctw_cpu_activate(op->act, op->param, v);
        if (op->up != NULL)
            v *= ctw_load_float(op->up, op->dtype, t * op->ldup + i);
        ctw_store_float(op->y, op->dtype, t * op->ldy + i, (float)v);
    }
}

enum ctw_status ctw_cpu_act_c(struct ctw_cpu *cpu, const struct ctw_op_act *op, struct ctw_err *err)
{
    (void)err;
    struct ctw_op_act copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, act_one, &copy);
    return CTW_OK;
}

/* ---- q, k, v ------------------------------------------------------------------------------ */

/* One head, from src[from ..] to dst[to ..], times `factor`. cos_sin NULL: no rotation. */
static void one_head(const struct ctw_op_qkv *op, const void *norm, const float *cos_sin,
                     double factor, const void *src, int64_t from, void *dst, int64_t to)
{
    double r = 1;
    if (norm != NULL) {
        double sum = sum_of_squares(src, op->dtype, from, op->head, 0);
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
            a *= (double)ctw_load_float(norm, op->norm_dtype, i) + op->norm_offset;
            b *= (double)ctw_load_float(norm, op->norm_dtype, other) + op->norm_offset;
        }
        if (turns) {
            double c = cos_sin[pair], s = cos_sin[half + pair];
            a = first ? a * c - b * s : a * c + b * s;
        }
        ctw_store_float(dst, op->dtype, to + i, (float)(a * factor));
    }
}

static void qkv_one(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_qkv *op = arg;
    const struct ctw_qkv_columns *c = &op->columns;
    const float *cos_sin =
        op->rot_dim > 0 ? op->cos_sin + (int64_t)op->positions[t] * op->rot_dim : NULL;
    int r = op->n_head / op->n_kv;
    double factor = op->q_factor != NULL ? op->q_factor[op->positions[t]] : 1;
    for (int h = 0; h < op->n_head; h++)
        one_head(op, op->q_norm, cos_sin, factor, op->qkv,
                 t * c->ld + c->q + h / r * c->q_step + (h % r) * c->q_head, op->q,
                 (t * op->n_head + h) * op->head);
    for (int g = 0; g < op->n_kv && op->k != NULL; g++) {
        int64_t from = t * c->ld + g * c->kv_step, to = (t * op->n_kv + g) * op->head;
        one_head(op, op->k_norm, cos_sin, 1, op->qkv, from + c->k, op->k, to);
        if (op->v != NULL)
            one_head(op, NULL, NULL, 1, op->qkv, from + c->v, op->v, to);
    }
}

enum ctw_status ctw_cpu_qkv_c(struct ctw_cpu *cpu, const struct ctw_op_qkv *op, struct ctw_err *err)
{
    (void)err;
    struct ctw_op_qkv copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, qkv_one, &copy);
    return CTW_OK;
}
