#include "worker/engine/step.h"

void ctw_step_shard(const struct ctw_step *s, struct ctw_shard *out, const struct ctw_rows *rows,
                    const struct ctw_matrix *matrix, const struct ctw_weight_data *data,
                    int64_t bias0)
{
    *out =
        (struct ctw_shard){.weight = &matrix->weight,
                           .data = data,
                           .row0 = rows->row0,
                           .n = rows->n,
                           .step = rows->step,
                           .input = matrix->input.codes != CTW_CODES_NONE ? &matrix->input : NULL,
                           .rotate_in = ctw_forward_rotation(s->f, matrix->rotate_in),
                           .rotate_out = ctw_forward_rotation(s->f, matrix->rotate_out)};
    if (rows->bias < 0)
        return;
    out->bias_dtype = s->layer->vector[rows->bias]->dtype;
    out->bias = (const char *)s->data->vector[rows->bias] +
                (size_t)(bias0 + rows->row0) * ctw_dtype_bytes(out->bias_dtype);
}

int ctw_step_shards(const struct ctw_step *s, enum ctw_slot slot,
                    struct ctw_shard shards[CTW_MAX_SHARDS])
{
    const struct ctw_product *p = &s->layer->product[slot];
    for (int i = 0; i < p->n_shards; i++) {
        const struct ctw_rows *rows = &p->shard[i];
        ctw_step_shard(s, &shards[i], rows, &s->layer->matrix[rows->matrix],
                       &s->data->matrix[rows->matrix], 0);
    }
    return p->n_shards;
}

void *ctw_step_residual(const struct ctw_step *s)
{
    return (char *)s->f->x +
           (size_t)s->chunk->tok0 * (size_t)s->f->model->hidden * ctw_dtype_bytes(CTW_RESIDUAL);
}

struct ctw_op_norm ctw_step_norm(const struct ctw_step *s, enum ctw_norm_place place)
{
    const struct ctw_norm_rule *rule = &s->layer->norm[place];
    const struct ctw_tensor *weight = s->layer->vector[CTW_V_WEIGHT + place];
    const struct ctw_tensor *bias = s->layer->vector[CTW_V_BIAS + place];
    struct ctw_op_norm op = {.kind = rule->present ? rule->kind : CTW_NORM_NONE,
                             .n_tok = s->chunk->n_tok,
                             .eps = rule->eps,
                             .weight_offset = rule->offset};
    if (weight != NULL) {
        op.weight = s->data->vector[CTW_V_WEIGHT + place];
        op.weight_dtype = weight->dtype;
    }
    if (bias != NULL) {
        op.bias = s->data->vector[CTW_V_BIAS + place];
        op.bias_dtype = bias->dtype;
    }
    return op;
}

enum ctw_status ctw_step_read(const struct ctw_step *s, enum ctw_norm_place place, int16_t stamp,
                              struct ctw_err *err)
{
    return ctw_step_read_to(s, place, stamp, s->f->norm, err);
}

enum ctw_status ctw_step_read_to(const struct ctw_step *s, enum ctw_norm_place place, int16_t stamp,
                                 void *y, struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, place);
    op.dim = s->f->model->hidden;
    op.x = ctw_step_residual(s);
    op.x_dtype = CTW_RESIDUAL;
    op.y = y;
    op.dtype = s->f->dtype;
    op.bad = s->f->bad + s->chunk->tok0;
    op.stamp = stamp;
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

enum ctw_status ctw_step_norm_residual(const struct ctw_step *s, enum ctw_norm_place place,
                                       struct ctw_err *err)
{
    if (place == CTW_N_NORMS || !s->layer->norm[place].present)
        return CTW_OK;
    return on_residual(s, ctw_step_norm(s, place), err);
}

enum ctw_status ctw_step_scale_residual(const struct ctw_step *s, float factor, struct ctw_err *err)
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

enum ctw_status ctw_step_norm_in_place(const struct ctw_step *s, enum ctw_norm_place place, void *y,
                                       int64_t dim, struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, place);
    if (!s->layer->norm[place].present)
        return CTW_OK;
    op.dim = dim;
    op.x = op.y = y;
    op.x_dtype = op.dtype = s->f->dtype;
    return ctw_norm(s->f->be, &op, err);
}

static struct ctw_op_linear linear(const struct ctw_step *s, enum ctw_slot slot,
                                   struct ctw_shard shards[CTW_MAX_SHARDS])
{
    return (struct ctw_op_linear){.shards = shards,
                                  .n_shards = ctw_step_shards(s, slot, shards),
                                  .slot = slot,
                                  .dtype = s->f->dtype,
                                  .n_tok = s->chunk->n_tok};
}

enum ctw_status ctw_step_product(const struct ctw_step *s, enum ctw_slot slot, const void *x,
                                 int64_t ldx, void *y, int64_t ldy, struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    struct ctw_op_linear op = linear(s, slot, shards);
    op.epilogue = CTW_EPI_STORE;
    op.x = x;
    op.ldx = ldx;
    op.y = y;
    op.ldy = ldy;
    return ctw_linear(s->f->be, &op, err);
}

enum ctw_status ctw_step_add_product(const struct ctw_step *s, enum ctw_slot slot, const void *x,
                                     int64_t ldx, void *y, const float *factor, struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    struct ctw_op_linear op = linear(s, slot, shards);
    op.epilogue = ctw_step_epilogue(s, slot) == CTW_EPI_SCATTER ? CTW_EPI_SCATTER : CTW_EPI_ADD;
    op.residual_dtype = CTW_RESIDUAL;
    op.x = x;
    op.ldx = ldx;
    op.y = y;
    op.ldy = s->f->model->hidden;
    op.y_weight = op.epilogue == CTW_EPI_SCATTER ? factor : NULL;
    return ctw_linear(s->f->be, &op, err);
}

enum ctw_status ctw_step_add_norm(const struct ctw_step *s, enum ctw_norm_place place,
                                  const void *x, enum ctw_dtype x_dtype, void *y, float factor,
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

enum ctw_status ctw_step_norm_sum(const struct ctw_step *s, enum ctw_norm_place place, void *y,
                                  struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, place);
    op.dim = s->f->model->hidden;
    op.x = op.y = y;
    op.x_dtype = op.dtype = CTW_F32;
    return ctw_norm(s->f->be, &op, err);
}

/* Without a norm or factor, the product adds to the residual itself. */
static bool is_direct(const struct ctw_step *s, const struct ctw_join *join)
{
    return !s->layer->norm[join->out].present && join->factor == 1;
}

enum ctw_epilogue ctw_step_epilogue(const struct ctw_step *s, enum ctw_slot slot)
{
    const struct ctw_layer *l = s->layer;
    if (slot == CTW_SLOT_GATE_UP)
        return l->gated ? CTW_EPI_GATE : CTW_EPI_STORE;
    if (slot == CTW_SLOT_ROUTER || slot == CTW_SLOT_SHARED_GATE)
        return CTW_EPI_LOGITS;
    if (slot == CTW_SLOT_DOWN && ctw_step_has(s, CTW_SLOT_SHARED_GATE))
        return CTW_EPI_SCATTER;
    if (slot == CTW_SLOT_DOWN && ctw_layer_has_sum(l))
        return CTW_EPI_STORE;
    bool direct =
        (slot == CTW_SLOT_O &&
         is_direct(s, &(struct ctw_join){.out = CTW_AT_MIXER_OUT, .factor = l->mixer_factor})) ||
        (slot == CTW_SLOT_DOWN &&
         is_direct(s, &(struct ctw_join){.out = CTW_AT_MLP_OUT, .factor = l->mlp_factor}));
    return direct ? CTW_EPI_ADD : CTW_EPI_STORE;
}

enum ctw_status ctw_step_join(const struct ctw_step *s, const struct ctw_join *join, const void *x,
                              int64_t ldx, struct ctw_err *err)
{
    enum ctw_status st;
    if (is_direct(s, join)) {
        st = ctw_step_add_product(s, join->slot, x, ldx, ctw_step_residual(s), NULL, err);
    } else {
        st = ctw_step_product(s, join->slot, x, ldx, s->f->norm, s->f->model->hidden, err);
        if (st == CTW_OK)
            st = ctw_step_add_norm(s, join->out, s->f->norm, s->f->dtype, ctw_step_residual(s),
                                   join->factor, err);
    }
    return st == CTW_OK ? ctw_step_norm_residual(s, join->sum, err) : st;
}
