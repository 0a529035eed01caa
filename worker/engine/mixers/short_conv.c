/*
 * A short convolution. f->wide holds the product [chunk, 3 dim] and, behind it, the convolution's
 * output [chunk, dim]. The carry is a state: the last inputs of the convolution.
 */
#include "kernels/conv.h"
#include "worker/engine/pass/step.h"

static enum ctw_status conv(const struct ctw_step *s, void *out, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const struct ctw_short_conv *x = &s->branch->short_conv;
    const struct ctw_tensor *bias = ctw_step_vector(s, CTW_V_CONV_BIAS);
    struct ctw_op_conv op = {.dtype = f->dtype,
                             .n_tok = s->chunk->n_tok,
                             .dim = x->dim,
                             .taps = x->taps,
                             .x = f->wide,
                             .ldx = 3 * x->dim,
                             .weight = ctw_step_vector_data(s, CTW_V_CONV),
                             .weight_dtype = ctw_step_vector(s, CTW_V_CONV)->dtype,
                             .bias = ctw_step_vector_data(s, CTW_V_CONV_BIAS),
                             .bias_dtype = bias != NULL ? bias->dtype : CTW_F32,
                             .states = ctw_step_states(s, 0),
                             .y = out,
                             .ldy = x->dim};
    return ctw_step_conv(s, &op, err);
}

static enum ctw_status run(const struct ctw_step *s, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const struct ctw_short_conv *x = &s->branch->short_conv;
    const int64_t at = ctw_wide_up(f->plan.chunk_tokens * 3 * x->dim);
    void *out = (char *)f->wide + (size_t)at * ctw_dtype_bytes(f->dtype);
    enum ctw_status st =
        ctw_step_product(s, CTW_P_CONV_IN, f->norm, f->model->hidden, f->wide, 3 * x->dim, err);
    if (st == CTW_OK)
        st = conv(s, out, err);
    return st == CTW_OK ? ctw_step_join(s, CTW_P_CONV_OUT, out, x->dim, err) : st;
}

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    (void)longest;
    w->wide = ctw_max64(w->wide, 4 * l->branch[branch].short_conv.dim);
}

static void carry(const struct ctw_model *m, const struct ctw_branch *b, int64_t longest,
                  enum ctw_dtype dtype, struct ctw_carry_rule rules[CTW_BRANCH_CARRIES])
{
    const struct ctw_short_conv *x = &b->short_conv;
    (void)m;
    (void)longest;
    (void)dtype;
    rules[0].bytes = (size_t)(x->dim * (x->taps - 1)) * sizeof(float);
    rules[0].life = CTW_STATE;
}

const struct ctw_kind_ops ctw_ops_short_conv = {
    .widen = widen, .carry = carry, .joins = CTW_P_CONV_OUT, .run = run};
