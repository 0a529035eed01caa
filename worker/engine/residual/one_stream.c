/* One residual stream, [tokens, hidden] of CTW_RESIDUAL: a branch reads the stream, and its output
 * is added to the stream. */
#include "worker/engine/pass/step.h"

static int64_t width(const struct ctw_model *m)
{
    return m->hidden;
}

static void widen(struct ctw_widths *w, const struct ctw_model *m)
{
    w->norm = ctw_max64(w->norm, m->hidden);
}

static struct ctw_residual_rows rows(const struct ctw_step *s, int64_t tok0)
{
    int64_t hidden = s->f->model->hidden;
    size_t before = (size_t)(tok0 * hidden) * ctw_dtype_bytes(CTW_RESIDUAL);
    return (struct ctw_residual_rows){.at = (char *)s->f->x + before, .ld = hidden};
}

static void *embedding(const struct ctw_step *s)
{
    return rows(s, s->chunk->tok0).at;
}

static enum ctw_status read_norm(const struct ctw_step *s, int place, void *y, struct ctw_err *err)
{
    const int64_t hidden = s->f->model->hidden;
    return ctw_step_norm_residual(s, place, NULL, rows(s, s->chunk->tok0).at, hidden, hidden, y,
                                  err);
}

static enum ctw_status finish(const struct ctw_step *s, const int64_t *tokens, void *y,
                              struct ctw_err *err)
{
    const int64_t hidden = s->f->model->hidden;
    return ctw_step_norm_residual(s, CTW_AT_IN, tokens, s->f->x, hidden, hidden, y, err);
}

/* In place. */
static enum ctw_status on_residual(const struct ctw_step *s, struct ctw_op_norm op,
                                   struct ctw_err *err)
{
    op.dim = s->f->model->hidden;
    op.x = op.y = rows(s, s->chunk->tok0).at;
    op.x_dtype = op.dtype = CTW_RESIDUAL;
    return ctw_norm(s->f->be, &op, err);
}

/* residual *= factor */
static enum ctw_status scale_residual(const struct ctw_step *s, float factor, struct ctw_err *err)
{
    struct ctw_op_norm op = {.kind = CTW_NORM_NONE, .n_tok = s->chunk->n_tok, .factor = factor};
    if (factor != 0)
        return on_residual(s, op, err);
    /* 0 means 1 to the backends. The smallest number twice makes zeros, too, of all but infinities
     * and NaNs. */
    op.factor = 0x1p-149f;
    enum ctw_status st = on_residual(s, op, err);
    return st == CTW_OK ? on_residual(s, op, err) : st;
}

/* The stream's own norm, and its scalar. */
static enum ctw_status joined(const struct ctw_step *s, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    if (ctw_step_rule(s, CTW_AT_SUM)->present)
        st = on_residual(s, ctw_step_norm(s, CTW_AT_SUM), err);
    return st == CTW_OK && s->branch->scalar != 1 ? scale_residual(s, s->branch->scalar, err) : st;
}

static enum ctw_status join(const struct ctw_step *s, const void *x, enum ctw_dtype x_dtype,
                            struct ctw_err *err)
{
    enum ctw_status st = ctw_step_add_norm(s, CTW_AT_OUT, x, x_dtype, rows(s, s->chunk->tok0).at,
                                           s->branch->factor, err);
    return st == CTW_OK ? joined(s, err) : st;
}

const struct ctw_residual_ops ctw_residual_one_stream = {.width = width,
                                                         .widen = widen,
                                                         .embedding = embedding,
                                                         .begin = joined,
                                                         .read = read_norm,
                                                         .join = join,
                                                         .rows = rows,
                                                         .joined = joined,
                                                         .finish = finish};
