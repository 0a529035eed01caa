/*
 * One residual stream, and beside it a branch's output that waits, [tokens, 2 hidden] of
 * CTW_RESIDUAL: the branch reads the stream in one layer, and its output joins the stream at the
 * end of a later layer (LongCat Flash: a mixture beside the dense MLP of a layer's first half).
 * Kept are [tokens, hidden] for the embedding, before it is the stream.
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
    w->norm = ctw_max64(w->norm, m->hidden);
}

static struct ctw_residual_rows rows(const struct ctw_step *s, int64_t tok0)
{
    const int64_t ld = width(s->f->model);
    return (struct ctw_residual_rows){.at = (float *)s->f->x + tok0 * ld, .ld = ld};
}

static bool takes(const struct ctw_layer *l, int branch)
{
    return !l->residual.shortcut.waits[branch];
}

/* The chunk's rows of the stream, and of what waits. */
static float *stream_of(const struct ctw_step *s)
{
    return rows(s, s->chunk->tok0).at;
}

static float *waiting_of(const struct ctw_step *s)
{
    return stream_of(s) + s->f->model->hidden;
}

static void *embedding(const struct ctw_step *s)
{
    const struct ctw_model *m = s->f->model;
    return (float *)s->f->x + s->f->plan.pass_tokens * width(m) + s->chunk->tok0 * kept(m);
}

/* y = or += what op makes of x [n_tok, hidden], ldx apart */
static enum ctw_status put(const struct ctw_step *s, struct ctw_op_norm op, const void *x,
                           int64_t ldx, float *y, struct ctw_err *err)
{
    op.n_tok = s->chunk->n_tok;
    op.dim = s->f->model->hidden;
    op.x = x;
    op.ldx = ldx;
    op.y = y;
    op.ldy = width(s->f->model);
    op.dtype = CTW_RESIDUAL;
    return ctw_norm(s->f->be, &op, err);
}

static enum ctw_status begin(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_op_norm copy = {.kind = CTW_NORM_NONE, .x_dtype = CTW_RESIDUAL};
    return put(s, copy, embedding(s), s->f->model->hidden, stream_of(s), err);
}

static enum ctw_status read_norm(const struct ctw_step *s, int place, void *y, struct ctw_err *err)
{
    const struct ctw_model *m = s->f->model;
    return ctw_step_norm_residual(s, place, NULL, stream_of(s), m->hidden, width(m), y, err);
}

/* What waits joins the stream behind its last branch. */
static enum ctw_status joined(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_op_norm add = {.kind = CTW_NORM_NONE, .x_dtype = CTW_RESIDUAL, .add = true};
    if (!s->layer->residual.shortcut.ends[s->index])
        return CTW_OK;
    return put(s, add, waiting_of(s), width(s->f->model), stream_of(s), err);
}

static enum ctw_status join(const struct ctw_step *s, const void *x, enum ctw_dtype x_dtype,
                            struct ctw_err *err)
{
    const bool waits = s->layer->residual.shortcut.waits[s->index];
    struct ctw_op_norm op = ctw_step_norm(s, CTW_AT_OUT);
    op.x_dtype = x_dtype;
    op.factor = s->branch->factor;
    op.add = !waits;
    enum ctw_status st =
        put(s, op, x, s->f->model->hidden, waits ? waiting_of(s) : stream_of(s), err);
    return st == CTW_OK ? joined(s, err) : st;
}

static enum ctw_status finish(const struct ctw_step *s, const int64_t *tokens, void *y,
                              struct ctw_err *err)
{
    const struct ctw_model *m = s->f->model;
    return ctw_step_norm_residual(s, CTW_AT_IN, tokens, s->f->x, m->hidden, width(m), y, err);
}

const struct ctw_residual_ops ctw_residual_shortcut = {.width = width,
                                                       .kept = kept,
                                                       .widen = widen,
                                                       .embedding = embedding,
                                                       .begin = begin,
                                                       .read = read_norm,
                                                       .join = join,
                                                       .rows = rows,
                                                       .takes = takes,
                                                       .joined = joined,
                                                       .finish = finish};
