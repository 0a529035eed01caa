#include "worker/engine/residual/several.h"

float *ctw_several_at(const struct ctw_step *s, int n)
{
    return (float *)s->f->x + s->chunk->tok0 * n * s->f->model->hidden;
}

float *ctw_several_kept(const struct ctw_step *s, int n, int64_t kept)
{
    return (float *)s->f->x + s->f->plan.pass_tokens * n * s->f->model->hidden +
           s->chunk->tok0 * kept;
}

enum ctw_status ctw_several_begin(const struct ctw_step *s, int n, struct ctw_err *err)
{
    const int64_t hidden = s->f->model->hidden;
    const size_t bytes = (size_t)(s->chunk->n_tok * hidden) * sizeof(float);
    struct ctw_op_norm copy = {.kind = CTW_NORM_NONE,
                               .dtype = CTW_RESIDUAL,
                               .n_tok = s->chunk->n_tok,
                               .dim = hidden,
                               .x = s->f->wide,
                               .x_dtype = CTW_RESIDUAL,
                               .ldy = n * hidden};
    enum ctw_status st = ctw_device_copy(s->f->be, s->f->wide, ctw_several_at(s, n), bytes, err);
    for (int i = 0; i < n && st == CTW_OK; i++) {
        copy.y = ctw_several_at(s, n) + i * hidden;
        st = ctw_norm(s->f->be, &copy, err);
    }
    return st;
}

enum ctw_status ctw_several_join(const struct ctw_step *s, int n, struct ctw_op_expand op,
                                 struct ctw_err *err)
{
    if (ctw_step_rule(s, CTW_AT_OUT)->present)
        return ctw_fail(err, CTW_EINTERNAL, "a norm of a branch's output before several streams");
    op.n_tok = s->chunk->n_tok;
    op.dim = s->f->model->hidden;
    op.n = n;
    op.x = ctw_several_at(s, n);
    return ctw_expand(s->f->be, &op, err);
}
