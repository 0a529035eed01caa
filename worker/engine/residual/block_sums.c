/*
 * Sums of blocks of layers, [tokens, n_sums hidden] of CTW_RESIDUAL: the embedding, then a sum for
 * each block. A branch reads a blend of the sums so far, and its output is added to the last. Kept
 * are [tokens, hidden] for the blend, before its norm.
 */
#include "kernels/blend.h"
#include "worker/engine/pass/step.h"

static const struct ctw_block_sums *sums_of(const struct ctw_layer *l)
{
    return &l->residual.block_sums;
}

static int64_t width(const struct ctw_model *m)
{
    return sums_of(&m->layers[0])->n_sums * m->hidden;
}

static int64_t kept(const struct ctw_model *m)
{
    return m->hidden;
}

static void widen(struct ctw_widths *w, const struct ctw_model *m)
{
    w->norm = ctw_max64(w->norm, m->hidden);
}

/* A sum's rows from token tok0 on (ld: width()); the blends' (ld: hidden). */
static float *sum_at(const struct ctw_step *s, int64_t tok0, int sum)
{
    const struct ctw_model *m = s->f->model;
    return (float *)s->f->x + tok0 * width(m) + sum * m->hidden;
}

static float *blends_at(const struct ctw_step *s, int64_t tok0)
{
    const struct ctw_model *m = s->f->model;
    return (float *)s->f->x + s->f->plan.pass_tokens * width(m) + tok0 * m->hidden;
}

/* The rows of one sum alone. */
static void *embedding(const struct ctw_step *s)
{
    return blends_at(s, s->chunk->tok0);
}

/* y, a sum's rows, = or += what op makes of x. */
static enum ctw_status put(const struct ctw_step *s, struct ctw_op_norm op, float *y,
                           struct ctw_err *err)
{
    op.n_tok = s->chunk->n_tok;
    op.dim = s->f->model->hidden;
    op.y = y;
    op.ldy = width(s->f->model);
    op.dtype = CTW_RESIDUAL;
    return ctw_norm(s->f->be, &op, err);
}

static enum ctw_status begin(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_op_norm copy = {
        .kind = CTW_NORM_NONE, .x = embedding(s), .x_dtype = CTW_RESIDUAL};
    return put(s, copy, sum_at(s, s->chunk->tok0, 0), err);
}

/* Zeros in a sum. Its memory may hold anything, so they are made of the sum before: the smallest
 * number twice makes zeros of all but infinities and NaNs, which read_blend() has marked. */
static enum ctw_status begin_block(const struct ctw_step *s, int sum, struct ctw_err *err)
{
    const int64_t tok0 = s->chunk->tok0;
    struct ctw_op_norm scale = {.kind = CTW_NORM_NONE,
                                .x = sum_at(s, tok0, sum - 1),
                                .ldx = width(s->f->model),
                                .x_dtype = CTW_RESIDUAL,
                                .factor = 0x1p-149f};
    enum ctw_status st = put(s, scale, sum_at(s, tok0, sum), err);
    scale.x = sum_at(s, tok0, sum);
    return st == CTW_OK ? put(s, scale, sum_at(s, tok0, sum), err) : st;
}

/* The blends of rows `rows`, or of the first n_tok, from token tok0 on. */
static enum ctw_status blend(const struct ctw_step *s, int64_t tok0, const int64_t *rows,
                             int n_parts, struct ctw_err *err)
{
    const struct ctw_tensor *factor = ctw_step_vector(s, CTW_V_BLEND_FACTOR);
    const struct ctw_op_blend op = {
        .n_tok = s->chunk->n_tok,
        .dim = s->f->model->hidden,
        .n_parts = n_parts,
        .x = sum_at(s, tok0, 0),
        .ldx = width(s->f->model),
        .rows = rows,
        .a = ctw_step_vector_data(s, CTW_V_BLEND),
        .b = factor != NULL ? ctw_step_vector_data(s, CTW_V_BLEND_FACTOR) : NULL,
        .a_dtype = ctw_step_vector(s, CTW_V_BLEND)->dtype,
        .b_dtype = factor != NULL ? factor->dtype : CTW_F32,
        .eps = sums_of(s->layer)->eps,
        .y = blends_at(s, tok0),
        .ldy = s->f->model->hidden};
    return ctw_blend(s->f->be, &op, err);
}

static enum ctw_status read_blend(const struct ctw_step *s, int place, void *y, struct ctw_err *err)
{
    const struct ctw_block_sums *sums = sums_of(s->layer);
    const int64_t tok0 = s->chunk->tok0, hidden = s->f->model->hidden;
    enum ctw_status st = blend(s, tok0, NULL, sums->n_read[s->index], err);
    if (st == CTW_OK)
        st = ctw_step_norm_residual(s, place, NULL, blends_at(s, tok0), hidden, hidden, y, err);
    return st == CTW_OK && sums->begins && s->index == CTW_MIXER
               ? begin_block(s, sums->adds_to, err)
               : st;
}

static struct ctw_residual_rows rows(const struct ctw_step *s, int64_t tok0)
{
    return (struct ctw_residual_rows){.at = sum_at(s, tok0, sums_of(s->layer)->adds_to),
                                      .ld = width(s->f->model)};
}

static enum ctw_status joined(const struct ctw_step *s, struct ctw_err *err)
{
    (void)s;
    (void)err;
    return CTW_OK;
}

static enum ctw_status join(const struct ctw_step *s, const void *x, enum ctw_dtype x_dtype,
                            struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, CTW_AT_OUT);
    op.x = x;
    op.x_dtype = x_dtype;
    op.factor = s->branch->factor;
    op.add = true;
    return put(s, op, sum_at(s, s->chunk->tok0, sums_of(s->layer)->adds_to), err);
}

static enum ctw_status finish(const struct ctw_step *s, const int64_t *tokens, void *y,
                              struct ctw_err *err)
{
    const int64_t hidden = s->f->model->hidden;
    enum ctw_status st = blend(s, 0, tokens, sums_of(s->layer)->n_read[0], err);
    return st == CTW_OK ? ctw_step_norm_residual(s, CTW_AT_IN, tokens, blends_at(s, 0), hidden,
                                                 hidden, y, err)
                        : st;
}

const struct ctw_residual_ops ctw_residual_block_sums = {.width = width,
                                                         .kept = kept,
                                                         .widen = widen,
                                                         .embedding = embedding,
                                                         .begin = begin,
                                                         .read = read_blend,
                                                         .join = join,
                                                         .rows = rows,
                                                         .joined = joined,
                                                         .finish = finish};
