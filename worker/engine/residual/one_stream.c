/* One residual stream, [tokens, hidden] of CTW_RESIDUAL: a branch reads the stream, and its output
 * is added to the stream. */
#include <assert.h>

#include "worker/engine/pass/step.h"

void *ctw_step_residual(const struct ctw_step *s)
{
    return (char *)s->f->x +
           (size_t)s->chunk->tok0 * (size_t)s->f->model->hidden * ctw_dtype_bytes(CTW_RESIDUAL);
}

enum ctw_status ctw_step_read(const struct ctw_step *s, int place, struct ctw_err *err)
{
    return ctw_step_read_to(s, place, s->f->norm, err);
}

enum ctw_status ctw_step_read_to(const struct ctw_step *s, int place, void *y, struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, place);
    op.dim = s->f->model->hidden;
    op.x = ctw_step_residual(s);
    op.x_dtype = CTW_RESIDUAL;
    op.y = y;
    op.dtype = s->f->dtype;
    op.bad = s->f->bad + s->chunk->tok0;
    op.stamp = s->stamp;
    return ctw_norm(s->f->be, &op, err);
}

/* In place. */
static enum ctw_status on_residual(const struct ctw_step *s, struct ctw_op_norm op,
                                   struct ctw_err *err)
{
    op.dim = s->f->model->hidden;
    op.x = op.y = ctw_step_residual(s);
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

enum ctw_status ctw_step_joined(const struct ctw_step *s, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    if (ctw_step_rule(s, CTW_AT_SUM)->present)
        st = on_residual(s, ctw_step_norm(s, CTW_AT_SUM), err);
    return st == CTW_OK && s->branch->scalar != 1 ? scale_residual(s, s->branch->scalar, err) : st;
}

/* The next branch, if it is beside this one and has a norm of its own, reads the residual now. */
static enum ctw_status read_beside(const struct ctw_step *s, struct ctw_err *err)
{
    struct ctw_step next = *s;
    next.index++;
    if (next.index == s->layer->n_branches || !s->layer->branch[next.index].beside)
        return CTW_OK;
    assert(ctw_branch_is_direct(s->layer, s->index)); /* else f->norm is needed below */
    return ctw_step_rule(&next, CTW_AT_IN)->present ? ctw_step_read(&next, CTW_AT_IN, err) : CTW_OK;
}

enum ctw_status ctw_step_join(const struct ctw_step *s, int product, const void *x, int64_t ldx,
                              struct ctw_err *err)
{
    enum ctw_status st = read_beside(s, err);
    if (st == CTW_OK && ctw_branch_is_direct(s->layer, s->index)) {
        st = ctw_step_add_product(s, product, x, ldx, ctw_step_residual(s), NULL, err);
    } else if (st == CTW_OK) {
        st = ctw_step_product(s, product, x, ldx, s->f->norm, s->f->model->hidden, err);
        if (st == CTW_OK)
            st = ctw_step_add_norm(s, CTW_AT_OUT, s->f->norm, s->f->dtype, ctw_step_residual(s),
                                   s->branch->factor, err);
    }
    return st == CTW_OK ? ctw_step_joined(s, err) : st;
}
