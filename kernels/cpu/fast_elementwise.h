/* Embedding, activations, and q, k, v: rows are widened to fp32, processed, and narrowed once. */
#ifndef CTW_KERNELS_CPU_FAST_ELEMENTWISE_H
#define CTW_KERNELS_CPU_FAST_ELEMENTWISE_H

enum { ROWS_A_TASK = 16, ROW_SPAN = 1024 };

struct rows_job {
    const void *op;
    int64_t n;
    void (*row)(const void *op, int64_t t);
};

static void rows_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct rows_job *job = arg;
    int64_t end = min64((item + 1) * ROWS_A_TASK, job->n);
    for (int64_t t = item * ROWS_A_TASK; t < end; t++)
        job->row(job->op, t);
}

static enum ctw_status each_row(struct ctw_cpu *cpu, int64_t n,
                                void (*row)(const void *op, int64_t t), const void *op)
{
    struct rows_job job = {op, n, row};
    ctw_threads_for(cpu->threads, ceil_div(n, ROWS_A_TASK), rows_item, &job);
    return CTW_OK;
}

/* ---- embed -------------------------------------------------------------------------------- */

static void embed_row(const void *arg, int64_t t)
{
    const struct ctw_op_embed *op = arg;
    int64_t k = op->table->weight->k, id = op->tokens[t] - op->id0;
    float row[SPAN];
    if (op->in_part && (id < 0 || id >= op->table->n))
        return;
    if (op->add && id >= op->table->n)
        id = 0;
    for (int64_t c = 0; c < k; c += SPAN) {
        int64_t n = min64(SPAN, k - c);
        weight_words(FLOATS, row, op->table, op->table->row0 + id, c, n, op->dtype);
        for (int64_t i = 0; i < n; i++)
            row[i] *= op->scale;
        if (op->add) {
            float old[SPAN];
            widen(old, at(op->y, op->dtype, t * k + c), op->dtype, n);
            for (int64_t i = 0; i < n; i++)
                row[i] += old[i];
        }
        narrow(at(op->y, op->dtype, t * k + c), op->dtype, row, n);
    }
}

static enum ctw_status fast_embed(struct ctw_cpu *cpu, const struct ctw_op_embed *op,
                                  struct ctw_err *err)
{
    (void)err;
    return each_row(cpu, op->n_tok, embed_row, op);
}

/* ---- activations -------------------------------------------------------------------------- */

static void act_row(const void *arg, int64_t t)
{
    const struct ctw_op_act *op = arg;
    float row[ROW_SPAN], up[ROW_SPAN];
    for (int64_t c = 0; c < op->dim; c += ROW_SPAN) {
        int64_t n = min64(ROW_SPAN, op->dim - c);
        widen(row, at(op->x, op->dtype, t * op->ldx + c), op->dtype, n);
        if (op->up != NULL)
            widen(up, at(op->up, op->dtype, t * op->ldup + c), op->dtype, n);
        activate(op->act, op->param, row, op->up != NULL ? up : NULL, n);
        narrow(at(op->y, op->dtype, t * op->ldy + c), op->dtype, row, n);
    }
}

static enum ctw_status fast_act(struct ctw_cpu *cpu, const struct ctw_op_act *op,
                                struct ctw_err *err)
{
    (void)err;
    return each_row(cpu, op->n_tok, act_row, op);
}

/* ---- q, k, v ------------------------------------------------------------------------------ */

/* Adds the squares of n values to the lanes of sum; row is overwritten beyond n. */
INLINE vf add_squares(vf sum, float *row, int64_t n)
{
    for (int64_t i = n; i < round_up(n, VL); i++)
        row[i] = 0;
    for (int64_t i = 0; i < n; i += VL) {
        vf v = vf_load(row + i);
        sum = vf_fma(v, v, sum);
    }
    return sum;
}

/* Pairs (i, i + half) of a head: a cos - b sin, b cos + a sin. */
INLINE void turn_halves(float *x, int half, const float *cos_sin)
{
    int i = 0;
    for (; i + VL <= half; i += VL) {
        vf a = vf_load(x + i), b = vf_load(x + half + i);
        vf c = vf_load(cos_sin + i), s = vf_load(cos_sin + half + i);
        vf bs = vf_mul(b, s), as = vf_mul(a, s);
        vf_store(x + i, vf_sub(vf_mul(a, c), bs));
        vf_store(x + half + i, vf_add(vf_mul(b, c), as));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i], c = cos_sin[i], s = cos_sin[half + i];
        x[i] = a * c - b * s;
        x[half + i] = b * c + a * s;
    }
}

INLINE void turn_interleaved(float *x, int half, const float *cos_sin)
{
    for (int i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1], c = cos_sin[i], s = cos_sin[half + i];
        x[2 * i] = a * c - b * s;
        x[2 * i + 1] = b * c + a * s;
    }
}

/* One query or key head in x, with space up to a whole vector. */
static void norm_and_turn(const struct ctw_op_qkv *op, float *x, const void *norm,
                          const float *cos_sin)
{
    float weight[CTW_MAX_HEAD + VL];
    if (norm != NULL) {
        float sum = vf_sum(add_squares(vf_zero(), x, op->head));
        const vf scale = vf_set1(1.0f / sqrtf(sum / (float)op->head + op->norm_eps));
        widen(weight, norm, op->norm_dtype, op->head);
        if (op->norm_offset != 0)
            for (int i = 0; i < op->head; i++)
                weight[i] += op->norm_offset;
        for (int i = 0; i < op->head; i += VL)
            vf_store(x + i, vf_mul(vf_mul(vf_load(x + i), scale), vf_load(weight + i)));
    }
    if (op->rot_dim == 0)
        return;
    if (op->pairing == CTW_ROPE_HALVES)
        turn_halves(x, op->rot_dim / 2, cos_sin);
    else
        turn_interleaved(x, op->rot_dim / 2, cos_sin);
}

static void qkv_row(const void *arg, int64_t t)
{
    const struct ctw_op_qkv *op = arg;
    const struct ctw_qkv_columns *c = &op->columns;
    const void *src = at(op->qkv, op->dtype, t * c->ld);
    const float *cos_sin =
        op->rot_dim > 0 ? op->cos_sin + (int64_t)op->positions[t] * op->rot_dim : NULL;
    const float factor = op->q_factor != NULL ? op->q_factor[op->positions[t]] : 1;
    const int r = op->n_head / op->n_kv, n_keys = op->k != NULL ? op->n_kv : 0;
    float x[CTW_MAX_HEAD + VL];
    for (int h = 0; h < op->n_head + n_keys; h++) {
        const bool is_q = h < op->n_head;
        const int64_t g = is_q ? h / r : h - op->n_head;
        int64_t from = is_q ? c->q + g * c->q_step + (h % r) * c->q_head : c->k + g * c->kv_step;
        int64_t to = is_q ? (t * op->n_head + h) * op->head : (t * op->n_kv + g) * op->head;
        widen(x, at(src, op->dtype, from), op->dtype, op->head);
        norm_and_turn(op, x, is_q ? op->q_norm : op->k_norm, cos_sin);
        if (is_q && factor != 1)
            for (int i = 0; i < op->head; i++)
                x[i] *= factor;
        narrow(at(is_q ? op->q : op->k, op->dtype, to), op->dtype, x, op->head);
    }
    for (int64_t g = 0; g < n_keys && op->v != NULL; g++)
        memcpy(at(op->v, op->dtype, (t * op->n_kv + g) * op->head),
               at(src, op->dtype, c->v + g * c->kv_step),
               (size_t)op->head * ctw_dtype_bytes(op->dtype));
}

static enum ctw_status fast_qkv(struct ctw_cpu *cpu, const struct ctw_op_qkv *op,
                                struct ctw_err *err)
{
    (void)err;
    return each_row(cpu, op->n_tok, qkv_row, op);
}

#endif
