/*
 * Softmax attention with grouped heads: projections, norms of heads, RoPE, scores, output.
 *
 * f->wide holds, at different times, the product's columns [chunk, ld], and from element
 * ctw_plan_queries_at() on, the queries in attention's layout [chunk, n_head * head]; then
 * attention's output [chunk, n_head * head_v], which overwrites the product, and the gate of it,
 * which overwrites the queries.
 */
#include "worker/engine/mixers/keys.h"

/* The chunk's queries. */
static void *queries_at(const struct ctw_step *s)
{
    return (char *)s->f->wide + (size_t)ctw_plan_queries_at(s->layer, s->f->plan.chunk_tokens) *
                                    ctw_dtype_bytes(s->f->dtype);
}

/* Does the split normalise the heads of q and k? Otherwise norms are steps of their own. */
static bool fuses_norms(const struct ctw_layer *l)
{
    const struct ctw_norm_rule *q = &l->norm[CTW_AT_Q], *k = &l->norm[CTW_AT_K];
    return q->present && k->present && q->kind == CTW_NORM_RMS && !l->norms_after_rope &&
           l->head_norms == CTW_HEADS_ALIKE && l->qkv_limit == 0 && q->eps == k->eps &&
           q->offset == k->offset && l->vector[CTW_V_WEIGHT + CTW_AT_Q] != NULL &&
           l->vector[CTW_V_WEIGHT + CTW_AT_K] != NULL &&
           l->vector[CTW_V_WEIGHT + CTW_AT_Q]->dtype == l->vector[CTW_V_WEIGHT + CTW_AT_K]->dtype;
}

/* The norm of n_heads heads per token, in place; rows are ld elements apart. */
static enum ctw_status norm_heads(const struct ctw_step *s, enum ctw_norm_place place, void *heads,
                                  int n_heads, int64_t ld, struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    bool wide = l->head_norms == CTW_HEADS_WIDE && place != CTW_AT_V;
    struct ctw_op_norm op = ctw_step_norm(s, place);
    if (!l->norm[place].present)
        return CTW_OK;
    op.dim = wide ? (int64_t)n_heads * l->head : l->head;
    op.n_groups = wide ? 1 : n_heads;
    op.own_weights = l->head_norms == CTW_HEADS_OWN;
    op.x = op.y = heads;
    op.ldx = op.ldy = ld;
    op.x_dtype = op.dtype = s->f->dtype;
    return ctw_norm(s->f->be, &op, err);
}

/* Clamps q, k and v. */
static enum ctw_status clamp_columns(const struct ctw_step *s, struct ctw_err *err)
{
    int64_t ld = s->layer->columns.ld;
    return ctw_act(s->f->be,
                   &(struct ctw_op_act){.act = CTW_ACT_CLIP,
                                        .param = {s->layer->qkv_limit},
                                        .dtype = s->f->dtype,
                                        .n_tok = s->chunk->n_tok,
                                        .dim = ld,
                                        .x = s->f->wide,
                                        .ldx = ld,
                                        .y = s->f->wide,
                                        .ldy = ld},
                   err);
}

/* What comes between the product and the split. */
static enum ctw_status finish_columns(const struct ctw_step *s, const struct ctw_op_qkv *split,
                                      struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    const struct ctw_qkv_columns *c = &split->columns;
    size_t es = ctw_dtype_bytes(s->f->dtype);
    char *at = s->f->wide;
    enum ctw_status st = CTW_OK;
    bool norms = !l->norms_after_rope && split->q_norm == NULL;
    if (l->qkv_limit > 0 && !l->limits_normed)
        st = clamp_columns(s, err);
    if (norms && st == CTW_OK)
        st = norm_heads(s, CTW_AT_Q, at + (size_t)c->q * es, l->n_head, c->ld, err);
    if (norms && st == CTW_OK && split->k != NULL)
        st = norm_heads(s, CTW_AT_K, at + (size_t)c->k * es, l->n_kv, c->ld, err);
    if (l->qkv_limit > 0 && l->limits_normed && st == CTW_OK)
        st = clamp_columns(s, err);
    return st;
}

/* Value heads of another size than key heads are not part of the split. */
static bool values_apart(const struct ctw_layer *l)
{
    return l->head_v != l->head;
}

/* The product's columns of values, to their place. */
static enum ctw_status take_values(const struct ctw_step *s, const struct ctw_keys *keys,
                                   struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    size_t es = ctw_dtype_bytes(s->f->dtype);
    const struct ctw_op_norm copy = {.kind = CTW_NORM_NONE,
                                     .dtype = s->f->dtype,
                                     .x_dtype = s->f->dtype,
                                     .n_tok = s->chunk->n_tok,
                                     .dim = (int64_t)l->n_kv * l->head_v,
                                     .x = (char *)s->f->wide + (size_t)l->columns.v * es,
                                     .ldx = l->columns.ld,
                                     .y = keys->v_here};
    return ctw_norm(s->f->be, &copy, err);
}

static enum ctw_status norm_after_split(const struct ctw_step *s, const struct ctw_keys *keys,
                                        const struct ctw_op_qkv *split, struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    int64_t q = (int64_t)l->n_head * l->head, kv = (int64_t)l->n_kv * l->head;
    enum ctw_status st = values_apart(l) && l->uses_kv < 0 ? take_values(s, keys, err) : CTW_OK;
    if (st == CTW_OK && l->norms_after_rope)
        st = norm_heads(s, CTW_AT_Q, split->q, l->n_head, q, err);
    if (st == CTW_OK && l->norms_after_rope && split->k != NULL)
        st = norm_heads(s, CTW_AT_K, split->k, l->n_kv, kv, err);
    if (st == CTW_OK && split->v != NULL)
        st = norm_heads(s, CTW_AT_V, split->v, l->n_kv, kv, err);
    return st;
}

/* n_heads heads, in place: rotated in f->wide, where the product is no longer needed. */
static enum ctw_status rotate_heads(const struct ctw_step *s, int name, void *heads, int n_heads,
                                    struct ctw_err *err)
{
    int64_t dim = (int64_t)n_heads * s->layer->head;
    if (name == 0)
        return CTW_OK;
    enum ctw_status st = ctw_rotate(s->f->be,
                                    &(struct ctw_op_rotate){.how = ctw_forward_rotation(s->f, name),
                                                            .dtype = s->f->dtype,
                                                            .n_tok = s->chunk->n_tok,
                                                            .dim = dim,
                                                            .x = heads,
                                                            .ldx = dim,
                                                            .y = s->f->wide,
                                                            .ldy = dim},
                                    err);
    size_t bytes = (size_t)(s->chunk->n_tok * dim) * ctw_dtype_bytes(s->f->dtype);
    return st == CTW_OK ? ctw_device_copy(s->f->be, heads, s->f->wide, bytes, err) : st;
}

static enum ctw_status quantise_heads(const struct ctw_step *s, const struct ctw_keys *keys,
                                      void *queries, struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    int64_t q = (int64_t)l->n_head * l->head, k = (int64_t)l->n_kv * l->head;
    int64_t v = (int64_t)l->n_kv * l->head_v;
    enum ctw_status st = ctw_heads_quantise(s, CTW_HEADS_Q, queries, l->n_head, l->head, q, err);
    if (st == CTW_OK && l->uses_kv < 0)
        st = ctw_heads_quantise(s, CTW_HEADS_K, keys->k_here, l->n_kv, l->head, k, err);
    if (st == CTW_OK && l->uses_kv < 0)
        st = ctw_heads_quantise(s, CTW_HEADS_V, keys->v_here, l->n_kv, l->head_v, v, err);
    return st;
}

static struct ctw_op_qkv split_of(const struct ctw_step *s, const struct ctw_keys *keys)
{
    struct ctw_forward *f = s->f;
    const struct ctw_layer *l = s->layer;
    const struct ctw_rope *rope = l->rope < 0 ? NULL : &f->model->rope[l->rope];
    struct ctw_op_qkv op = {
        .dtype = f->dtype,
        .n_tok = s->chunk->n_tok,
        .n_head = l->n_head,
        .n_kv = l->n_kv,
        .head = l->head,
        .qkv = f->wide,
        .columns = l->columns,
        .pairing = rope == NULL ? CTW_ROPE_HALVES : rope->pairing,
        .rot_dim = rope == NULL ? 0 : rope->rot_dim,
        .positions = f->positions + s->chunk->tok0,
        .cos_sin = rope == NULL ? NULL : f->cos_sin[l->rope],
        .q_factor = l->q_factors ? f->q_factor : NULL,
        .q = queries_at(s),
        .k = l->uses_kv >= 0 ? NULL : keys->k_here,
        .v = l->uses_kv >= 0 || values_apart(l) ? NULL : keys->v_here,
    };
    if (fuses_norms(l)) {
        op.q_norm = s->data->vector[CTW_V_WEIGHT + CTW_AT_Q];
        op.k_norm = s->data->vector[CTW_V_WEIGHT + CTW_AT_K];
        op.norm_dtype = l->vector[CTW_V_WEIGHT + CTW_AT_Q]->dtype;
        op.norm_eps = l->norm[CTW_AT_Q].eps;
        op.norm_offset = l->norm[CTW_AT_Q].offset;
    }
    return op;
}

static enum ctw_status project(const struct ctw_step *s, const struct ctw_keys *keys,
                               struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    struct ctw_shard shards[CTW_MAX_SHARDS];
    struct ctw_op_qkv split = split_of(s, keys);
    bool own_norms = split.q_norm == NULL && !l->norms_after_rope &&
                     (l->norm[CTW_AT_Q].present || l->norm[CTW_AT_K].present);
    const struct ctw_op_linear product = {
        .shards = shards,
        .n_shards = ctw_step_shards(s, CTW_SLOT_QKV, shards),
        .slot = CTW_SLOT_QKV,
        .dtype = s->f->dtype,
        .epilogue = CTW_EPI_STORE,
        .n_tok = s->chunk->n_tok,
        .x = s->f->norm,
        .ldx = s->f->model->hidden,
        .y = s->f->wide,
        .ldy = ctw_plan_qkv_columns(l),
    };
    enum ctw_status st;
    if (own_norms || l->qkv_limit > 0 || values_apart(l)) {
        st = ctw_linear(s->f->be, &product, err);
        if (st == CTW_OK)
            st = finish_columns(s, &split, err);
        if (st == CTW_OK)
            st = ctw_qkv(s->f->be, &split, err);
    } else {
        st = ctw_linear_qkv(s->f->be, &product, &split, err);
    }
    if (st == CTW_OK)
        st = norm_after_split(s, keys, &split, err);
    if (st == CTW_OK)
        st = rotate_heads(s, l->rotate_q, split.q, l->n_head, err);
    if (st == CTW_OK && l->uses_kv < 0)
        st = rotate_heads(s, l->rotate_k, split.k, l->n_kv, err);
    return st == CTW_OK ? quantise_heads(s, keys, split.q, err) : st;
}

/* Attention's output times its gate. The queries are no longer needed: the gate is there. */
static enum ctw_status gate_heads(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    int64_t n = l->matrix[CTW_M_HEADS_GATE].weight.n, all = (int64_t)l->n_head * l->head_v;
    enum ctw_status st = ctw_step_product(s, CTW_SLOT_HEADS_GATE, s->f->norm, s->f->model->hidden,
                                          queries_at(s), n, err);
    if (st != CTW_OK)
        return st;
    return ctw_gate(s->f->be,
                    &(struct ctw_op_gate){.kind = l->gate,
                                          .dtype = s->f->dtype,
                                          .n_tok = s->chunk->n_tok,
                                          .n_groups = n,
                                          .size = all / n,
                                          .x = queries_at(s),
                                          .ldx = n,
                                          .y = s->f->wide,
                                          .ldy = all},
                    err);
}

enum ctw_status ctw_mixer_attention(const struct ctw_step *s, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const struct ctw_layer *l = s->layer;
    struct ctw_keys keys;
    int64_t columns = (int64_t)l->n_head * l->head_v;
    enum ctw_status st = ctw_keys_begin(s, &keys, err);
    if (st == CTW_OK)
        st = project(s, &keys, err);
    if (st == CTW_OK)
        st = ctw_keys_attend(s, &keys, queries_at(s), f->wide, err);
    if (st == CTW_OK && l->gate != CTW_GATE_NONE)
        st = gate_heads(s, err);
    if (st == CTW_OK)
        st = ctw_step_norm_in_place(s, CTW_AT_HEADS_OUT, f->wide, columns, err);
    /* The MLP beside this mixer reads the residual as it is now. */
    if (st == CTW_OK && l->parallel && l->norm[CTW_AT_MLP].present)
        st = ctw_step_read(s, CTW_AT_MLP, s->before, err);
    const struct ctw_join join = {CTW_SLOT_O, CTW_AT_MIXER_OUT, CTW_AT_MIXER_SUM, l->mixer_factor};
    return st == CTW_OK ? ctw_step_join(s, &join, f->wide, columns, err) : st;
}
