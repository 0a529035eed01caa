#include "worker/engine/pass/step.h"

void ctw_step_shard(const struct ctw_step *s, struct ctw_shard *out, const struct ctw_rows *rows,
                    const struct ctw_matrix *matrix, const struct ctw_weight_data *data,
                    int64_t bias0)
{
    *out = (struct ctw_shard){
        .weight = &matrix->weight,
        .data = data,
        .row0 = rows->row0,
        .n = rows->n,
        .step = rows->step,
        .input = matrix->input.codes != CTW_CODES_NONE ? &matrix->input : NULL,
        .output = matrix->output.codes != CTW_CODES_NONE ? &matrix->output : NULL,
        .rotate_in = ctw_forward_rotation(s->f, matrix->rotate_in),
        .rotate_out = ctw_forward_rotation(s->f, matrix->rotate_out)};
    if (rows->bias < 0)
        return;
    out->bias_dtype = s->layer->vector[rows->bias]->dtype;
    out->bias = (const char *)s->data->vector[rows->bias] +
                (size_t)(bias0 + rows->row0) * ctw_dtype_bytes(out->bias_dtype);
}

int ctw_step_shards(const struct ctw_step *s, int product, struct ctw_shard shards[CTW_MAX_SHARDS])
{
    const struct ctw_product *p = ctw_step_product_of(s, product);
    for (int i = 0; i < p->n_shards; i++) {
        const struct ctw_rows *rows = &p->shard[i];
        ctw_step_shard(s, &shards[i], rows, &s->layer->matrix[rows->matrix],
                       &s->data->matrix[rows->matrix], 0);
    }
    return p->n_shards;
}

struct ctw_carried ctw_step_carry(const struct ctw_step *s, int i)
{
    const struct ctw_forward *f = s->f;
    struct ctw_carry_rule rules[CTW_BRANCH_CARRIES];
    ctw_branch_carry(f->model, s->branch, f->plan.longest, f->dtype, rules);
    const int64_t row[CTW_N_LIVES] = {
        [CTW_FOR_LAYER] = s->chunk->row0, [CTW_FOR_PASS] = s->chunk->tok0};
    const struct ctw_carry_rule *r = &rules[i];
    char *all = f->carry[ctw_carry_array(r, s->index, i)];
    return (struct ctw_carried){
        .all = all, .here = all + (size_t)row[r->life] * r->bytes, .life = r->life};
}

struct ctw_states ctw_step_states(const struct ctw_step *s, int i)
{
    const struct ctw_forward *f = s->f;
    struct ctw_carry_rule rules[CTW_BRANCH_CARRIES];
    ctw_branch_carry(f->model, s->branch, f->plan.longest, f->dtype, rules);
    return (struct ctw_states){.data = f->carry[ctw_carry_array(&rules[i], s->index, i)],
                               .bytes = rules[i].bytes};
}

struct ctw_op_norm ctw_step_norm(const struct ctw_step *s, int place)
{
    const struct ctw_norm_rule *rule = ctw_step_rule(s, place);
    const struct ctw_tensor *weight = ctw_step_vector(s, CTW_V_WEIGHT + place);
    const struct ctw_tensor *bias = ctw_step_vector(s, CTW_V_BIAS + place);
    struct ctw_op_norm op = {.kind = rule->present ? rule->kind : CTW_NORM_NONE,
                             .n_tok = s->chunk->n_tok,
                             .eps = rule->eps,
                             .weight_offset = rule->offset};
    if (weight != NULL) {
        op.weight = ctw_step_vector_data(s, CTW_V_WEIGHT + place);
        op.weight_dtype = weight->dtype;
    }
    if (bias != NULL) {
        op.bias = ctw_step_vector_data(s, CTW_V_BIAS + place);
        op.bias_dtype = bias->dtype;
    }
    return op;
}

enum ctw_status ctw_step_norm_residual(const struct ctw_step *s, int place, const int64_t *tokens,
                                       const float *x, int64_t dim, int64_t ldx, void *y,
                                       struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, place);
    op.dim = dim;
    op.x = x;
    op.ldx = ldx;
    op.x_dtype = CTW_RESIDUAL;
    op.rows = tokens;
    op.y = y;
    op.dtype = s->f->dtype;
    op.bad = s->f->bad + (tokens == NULL ? s->chunk->tok0 : 0);
    op.stamp = s->stamp;
    return ctw_norm(s->f->be, &op, err);
}

enum ctw_status ctw_step_norm_in_place(const struct ctw_step *s, int place, void *y, int64_t dim,
                                       struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, place);
    if (!ctw_step_rule(s, place)->present)
        return CTW_OK;
    op.dim = dim;
    op.x = op.y = y;
    op.x_dtype = op.dtype = s->f->dtype;
    return ctw_norm(s->f->be, &op, err);
}

static struct ctw_op_linear linear(const struct ctw_step *s, int product,
                                   struct ctw_shard shards[CTW_MAX_SHARDS])
{
    return (struct ctw_op_linear){.shards = shards,
                                  .n_shards = ctw_step_shards(s, product, shards),
                                  .slot = ctw_step_slot(s, product),
                                  .dtype = s->f->dtype,
                                  .n_tok = s->chunk->n_tok};
}

enum ctw_status ctw_step_product(const struct ctw_step *s, int product, const void *x, int64_t ldx,
                                 void *y, int64_t ldy, struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    struct ctw_op_linear op = linear(s, product, shards);
    op.epilogue = CTW_EPI_STORE;
    op.x = x;
    op.ldx = ldx;
    op.y = y;
    op.ldy = ldy;
    return ctw_linear(s->f->be, &op, err);
}

enum ctw_status ctw_step_product_act(const struct ctw_step *s, int product, const void *x,
                                     int64_t ldx, const struct ctw_op_act *act, struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    struct ctw_op_linear op = linear(s, product, shards);
    op.epilogue = CTW_EPI_STORE;
    op.x = x;
    op.ldx = ldx;
    op.y = act->y;
    op.ldy = act->ldy;
    return ctw_linear_act(s->f->be, &op, act, err);
}

enum ctw_status ctw_step_product_onto(const struct ctw_step *s, int product, const void *x,
                                      int64_t ldx, void *other, void *y, int64_t ldy,
                                      struct ctw_err *err)
{
    const int64_t n = ctw_plan_columns(ctw_step_product_of(s, product));
    const struct ctw_op_norm add = {.kind = CTW_NORM_NONE,
                                    .dtype = s->f->dtype,
                                    .n_tok = s->chunk->n_tok,
                                    .dim = n,
                                    .x = other,
                                    .x_dtype = s->f->dtype,
                                    .add = true,
                                    .y = y,
                                    .ldy = ldy};
    enum ctw_status st = ctw_step_product(s, product, x, ldx, other, n, err);
    return st == CTW_OK ? ctw_norm(s->f->be, &add, err) : st;
}

enum ctw_status ctw_step_add_product(const struct ctw_step *s, int product, const void *x,
                                     int64_t ldx, struct ctw_residual_rows y, const float *factor,
                                     struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    struct ctw_op_linear op = linear(s, product, shards);
    op.epilogue = ctw_product_epilogue(s->layer, (int)op.slot) == CTW_EPI_SCATTER ? CTW_EPI_SCATTER
                                                                                  : CTW_EPI_ADD;
    op.residual_dtype = CTW_RESIDUAL;
    op.x = x;
    op.ldx = ldx;
    op.y = y.at;
    op.ldy = y.ld;
    op.y_weight = op.epilogue == CTW_EPI_SCATTER ? factor : NULL;
    return ctw_linear(s->f->be, &op, err);
}

enum ctw_status ctw_step_add_norm(const struct ctw_step *s, int place, const void *x,
                                  enum ctw_dtype x_dtype, void *y, float factor,
                                  struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, place);
    op.dim = s->f->model->hidden;
    op.x = x;
    op.x_dtype = x_dtype;
    op.y = y;
    op.dtype = CTW_RESIDUAL;
    op.factor = factor;
    op.add = true;
    return ctw_norm(s->f->be, &op, err);
}

enum ctw_status ctw_step_norm_sum(const struct ctw_step *s, int place, void *y, struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, place);
    op.dim = s->f->model->hidden;
    op.x = op.y = y;
    op.x_dtype = op.dtype = CTW_F32;
    return ctw_norm(s->f->be, &op, err);
}

enum ctw_status ctw_step_read(const struct ctw_step *s, int place, struct ctw_err *err)
{
    return ctw_step_read_to(s, place, s->f->norm, err);
}

enum ctw_status ctw_step_read_to(const struct ctw_step *s, int place, void *y, struct ctw_err *err)
{
    return ctw_residual_of(s->layer)->read(s, place, y, err);
}

/* The next branch, if it is beside this one and has a norm of its own, reads the residual now. */
static enum ctw_status read_beside(const struct ctw_step *s, struct ctw_err *err)
{
    struct ctw_step next = *s;
    next.index++;
    if (next.index == s->layer->n_branches || !s->layer->branch[next.index].beside)
        return CTW_OK;
    if (!ctw_branch_is_direct(s->layer, s->index)) /* f->norm is needed for its output */
        return ctw_fail(err, CTW_EINTERNAL,
                        "a branch beside one that does not add to the residual");
    return ctw_step_rule(&next, CTW_AT_IN)->present ? ctw_step_read(&next, CTW_AT_IN, err) : CTW_OK;
}

enum ctw_status ctw_step_conv(const struct ctw_step *s, struct ctw_op_conv *op, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int64_t i = 0; st == CTW_OK && i < s->chunk->n_rounds; i++) {
        op->parts = s->chunk->rounds[i].parts;
        op->n_parts = s->chunk->rounds[i].n_parts;
        st = ctw_conv(s->f->be, op, err);
    }
    return st;
}

/* f->wide = x plus its convolution, [n_tok, hidden] of x's dtype. */
static enum ctw_status convolve(const struct ctw_step *s, const void *x, enum ctw_dtype dtype,
                                struct ctw_err *err)
{
    const int64_t hidden = s->f->model->hidden;
    struct ctw_op_conv op = {.form = CTW_CONV_ADD,
                             .dtype = dtype,
                             .n_tok = s->chunk->n_tok,
                             .dim = hidden,
                             .taps = s->branch->conv_taps,
                             .x = x,
                             .ldx = hidden,
                             .weight = ctw_step_vector_data(s, CTW_V_OUT_CONV),
                             .weight_dtype = ctw_step_vector(s, CTW_V_OUT_CONV)->dtype,
                             .states = ctw_step_states(s, CTW_CARRY_OUT),
                             .y = s->f->wide,
                             .ldy = hidden};
    return ctw_step_conv(s, &op, err);
}

enum ctw_status ctw_step_join_output(const struct ctw_step *s, const void *x, enum ctw_dtype dtype,
                                     struct ctw_err *err)
{
    if (s->branch->conv_taps > 0) {
        enum ctw_status st = convolve(s, x, dtype, err);
        if (st != CTW_OK)
            return st;
        x = s->f->wide;
    }
    return ctw_residual_of(s->layer)->join(s, x, dtype, err);
}

enum ctw_status ctw_step_join(const struct ctw_step *s, int product, const void *x, int64_t ldx,
                              struct ctw_err *err)
{
    const struct ctw_residual_ops *residual = ctw_residual_of(s->layer);
    enum ctw_status st = read_beside(s, err);
    if (st != CTW_OK)
        return st;
    if (ctw_branch_is_direct(s->layer, s->index)) {
        st = ctw_step_add_product(s, product, x, ldx, residual->rows(s, s->chunk->tok0), NULL, err);
        return st == CTW_OK ? residual->joined(s, err) : st;
    }
    st = ctw_step_product(s, product, x, ldx, s->f->norm, s->f->model->hidden, err);
    return st == CTW_OK ? ctw_step_join_output(s, s->f->norm, s->f->dtype, err) : st;
}
