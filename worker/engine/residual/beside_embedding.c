/*
 * One residual stream, and beside it the embedding, which some branches read, too:
 * [tokens, 2 hidden] of CTW_RESIDUAL. Kept are [tokens, hidden] for what a layer's branches put
 * aside for each other (Zamba 2: a shared transformer, whose output a Mamba layer reads beside the
 * stream, but which does not join the stream).
 */
#include "worker/engine/pass/step.h"

static int64_t width(const struct ctw_model *m)
{
    return 2 * m->hidden;
}

static int64_t kept(const struct ctw_model *m)
{
    return m->hidden;
}

static void widen(struct ctw_widths *w, const struct ctw_model *m)
{
    w->norm = ctw_max64(w->norm, width(m));
}

/* The chunk's rows of the stream (ld 2 hidden), and of what is put aside (ld hidden). */
static float *stream_of(const struct ctw_step *s)
{
    return (float *)s->f->x + s->chunk->tok0 * width(s->f->model);
}

static float *aside_of(const struct ctw_step *s)
{
    const struct ctw_model *m = s->f->model;
    return (float *)s->f->x + s->f->plan.pass_tokens * width(m) + s->chunk->tok0 * kept(m);
}

static void *embedding(const struct ctw_step *s)
{
    return aside_of(s);
}

/* y = or += what op makes of x, both [n_tok, hidden] */
static enum ctw_status put(const struct ctw_step *s, struct ctw_op_norm op, float *y, int64_t ldy,
                           struct ctw_err *err)
{
    op.n_tok = s->chunk->n_tok;
    op.dim = s->f->model->hidden;
    op.y = y;
    op.ldy = ldy;
    op.dtype = CTW_RESIDUAL;
    return ctw_norm(s->f->be, &op, err);
}

static enum ctw_status begin(const struct ctw_step *s, struct ctw_err *err)
{
    const int64_t hidden = s->f->model->hidden;
    const struct ctw_op_norm copy = {
        .kind = CTW_NORM_NONE, .x = aside_of(s), .x_dtype = CTW_RESIDUAL};
    enum ctw_status st = put(s, copy, stream_of(s), 2 * hidden, err);
    return st == CTW_OK ? put(s, copy, stream_of(s) + hidden, 2 * hidden, err) : st;
}

static enum ctw_status read_norm(const struct ctw_step *s, int place, void *y, struct ctw_err *err)
{
    const enum ctw_reads reads = s->layer->residual.beside_embedding.reads[s->index];
    const int64_t hidden = s->f->model->hidden;
    const bool aside = reads == CTW_READS_ASIDE;
    return ctw_step_norm_residual(s, place, NULL, aside ? aside_of(s) : stream_of(s),
                                  reads == CTW_READS_BOTH ? 2 * hidden : hidden,
                                  aside ? hidden : 2 * hidden, y, err);
}

static enum ctw_status join(const struct ctw_step *s, const void *x, enum ctw_dtype x_dtype,
                            struct ctw_err *err)
{
    const enum ctw_joins joins = s->layer->residual.beside_embedding.joins[s->index];
    const int64_t hidden = s->f->model->hidden;
    const struct ctw_op_norm copy = {
        .kind = CTW_NORM_NONE, .x = stream_of(s), .ldx = 2 * hidden, .x_dtype = CTW_RESIDUAL};
    struct ctw_op_norm op = ctw_step_norm(s, CTW_AT_OUT);
    op.x = x;
    op.x_dtype = x_dtype;
    op.factor = s->branch->factor;
    op.add = joins != CTW_JOINS_ASIDE;
    if (joins == CTW_JOINS_STREAM)
        return put(s, op, stream_of(s), 2 * hidden, err);
    enum ctw_status st = op.add ? put(s, copy, aside_of(s), hidden, err) : CTW_OK;
    return st == CTW_OK ? put(s, op, aside_of(s), hidden, err) : st;
}

static enum ctw_status finish(const struct ctw_step *s, const int64_t *tokens, void *y,
                              struct ctw_err *err)
{
    const int64_t hidden = s->f->model->hidden;
    return ctw_step_norm_residual(s, CTW_AT_IN, tokens, s->f->x, hidden, 2 * hidden, y, err);
}

const struct ctw_residual_ops ctw_residual_beside_embedding = {.width = width,
                                                               .kept = kept,
                                                               .widen = widen,
                                                               .embedding = embedding,
                                                               .begin = begin,
                                                               .read = read_norm,
                                                               .join = join,
                                                               .finish = finish};
