/*
 * Softmax attention with grouped heads: projections, norms of heads, RoPE, scores, output.
 *
 * f->wide holds, at different times, the product's columns [chunk, ld], and from element
 * ctw_plan_queries_at() on, the queries in attention's layout [chunk, n_head * head]; then
 * attention's output, which overwrites the product.
 */
#include "worker/engine/step.h"

/* The chunk's queries. */
static void *queries_at(const struct ctw_step *s)
{
    return (char *)s->f->wide + (size_t)ctw_plan_queries_at(s->layer, s->f->plan.chunk_tokens) *
                                    ctw_dtype_bytes(s->f->dtype);
}

/* Keys and values of this layer's attention, and the row of the chunk's first key. */
struct keys {
    char *k, *v;
    int64_t row;
};

/* Carried keys and values, or an index into f->kept. */
enum { CARRIED = -1 };

static int kept_of(const struct ctw_layer *l)
{
    return l->uses_kv >= 0 ? l->uses_kv : l->keeps_kv >= 0 ? l->keeps_kv : CARRIED;
}

static struct keys keys_of(const struct ctw_step *s)
{
    int kept = kept_of(s->layer);
    if (kept != CARRIED)
        return (struct keys){s->f->kept[kept].k, s->f->kept[kept].v, s->chunk->tok0};
    return (struct keys){s->f->k, s->f->v, s->chunk->kv_row};
}

/* Moves the carried keys and values that the layout says, before f->wide is used. */
static enum ctw_status move_carried(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    struct ctw_forward *f = s->f;
    size_t row_bytes = (size_t)l->n_kv * (size_t)l->head * ctw_dtype_bytes(f->dtype);
    size_t from = (size_t)s->chunk->moved_from * row_bytes;
    size_t bytes = (size_t)s->chunk->n_moved * row_bytes;
    void *arrays[] = {f->k, f->v};
    enum ctw_status st = CTW_OK;
    for (size_t i = 0; st == CTW_OK && bytes > 0 && i < CTW_COUNT(arrays); i++) {
        const void *source = (char *)arrays[i] + from;
        /* If source and destination overlap, copy by way of f->wide. The keys fit: a sequence that
         * does not start at row 0 began in the previous chunk, so it has fewer keys than a chunk.
         */
        if (s->chunk->moved_from < s->chunk->n_moved) {
            st = ctw_device_copy(f->be, f->wide, source, bytes, err);
            source = f->wide;
        }
        if (st == CTW_OK)
            st = ctw_device_copy(f->be, arrays[i], source, bytes, err);
    }
    return st;
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

/* What comes between the product and the split. */
static enum ctw_status finish_columns(const struct ctw_step *s, const struct ctw_op_qkv *split,
                                      struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    const struct ctw_qkv_columns *c = &split->columns;
    size_t es = ctw_dtype_bytes(s->f->dtype);
    char *at = s->f->wide;
    enum ctw_status st = CTW_OK;
    if (l->qkv_limit > 0)
        st = ctw_act(s->f->be,
                     &(struct ctw_op_act){.act = CTW_ACT_CLIP,
                                          .param = {l->qkv_limit},
                                          .dtype = s->f->dtype,
                                          .n_tok = s->chunk->n_tok,
                                          .dim = c->ld,
                                          .x = at,
                                          .ldx = c->ld,
                                          .y = at,
                                          .ldy = c->ld},
                     err);
    if (l->norms_after_rope || split->q_norm != NULL)
        return st;
    if (st == CTW_OK)
        st = norm_heads(s, CTW_AT_Q, at + (size_t)c->q * es, l->n_head, c->ld, err);
    if (st == CTW_OK && split->k != NULL)
        st = norm_heads(s, CTW_AT_K, at + (size_t)c->k * es, l->n_kv, c->ld, err);
    return st;
}

static enum ctw_status norm_after_split(const struct ctw_step *s, const struct ctw_op_qkv *split,
                                        struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    int64_t q = (int64_t)l->n_head * l->head, kv = (int64_t)l->n_kv * l->head;
    enum ctw_status st = CTW_OK;
    if (l->norms_after_rope)
        st = norm_heads(s, CTW_AT_Q, split->q, l->n_head, q, err);
    if (st == CTW_OK && l->norms_after_rope && split->k != NULL)
        st = norm_heads(s, CTW_AT_K, split->k, l->n_kv, kv, err);
    if (st == CTW_OK && split->k != NULL)
        st = norm_heads(s, CTW_AT_V, split->v, l->n_kv, kv, err);
    return st;
}

static struct ctw_op_qkv split_of(const struct ctw_step *s, const struct keys *keys)
{
    struct ctw_forward *f = s->f;
    const struct ctw_layer *l = s->layer;
    size_t row_bytes = (size_t)l->n_kv * (size_t)l->head * ctw_dtype_bytes(f->dtype);
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
        .k = l->uses_kv >= 0 ? NULL : keys->k + (size_t)keys->row * row_bytes,
        .v = l->uses_kv >= 0 ? NULL : keys->v + (size_t)keys->row * row_bytes,
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

static enum ctw_status project(const struct ctw_step *s, const struct keys *keys,
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
    if (own_norms || l->qkv_limit > 0) {
        st = ctw_linear(s->f->be, &product, err);
        if (st == CTW_OK)
            st = finish_columns(s, &split, err);
        if (st == CTW_OK)
            st = ctw_qkv(s->f->be, &split, err);
    } else {
        st = ctw_linear_qkv(s->f->be, &product, &split, err);
    }
    return st == CTW_OK ? norm_after_split(s, &split, err) : st;
}

enum ctw_status ctw_mixer_attention(const struct ctw_step *s, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const struct ctw_layer *l = s->layer;
    const struct keys keys = keys_of(s);
    bool carried = kept_of(l) == CARRIED;
    int64_t columns = (int64_t)l->n_head * l->head;
    enum ctw_status st = carried ? move_carried(s, err) : CTW_OK;
    if (st == CTW_OK)
        st = project(s, &keys, err);
    if (st != CTW_OK)
        return st;
    st = ctw_attention(f->be,
                       &(struct ctw_op_attention){
                           .dtype = f->dtype,
                           .n_head = l->n_head,
                           .n_kv = l->n_kv,
                           .head = l->head,
                           .scale = l->attn_scale,
                           .window = l->window,
                           .softcap = l->attn_softcap,
                           .alibi = f->alibi,
                           .q = queries_at(s),
                           .k = keys.k,
                           .v = keys.v,
                           .out = f->wide,
                           .seqs = carried ? s->chunk->seqs : s->chunk->kept_seqs,
                           .n_seqs = s->chunk->n_seqs,
                       },
                       err);
    if (st == CTW_OK)
        st = ctw_step_norm_in_place(s, CTW_AT_HEADS_OUT, f->wide, columns, err);
    /* The MLP beside this mixer reads the residual as it is now. */
    if (st == CTW_OK && l->parallel && l->norm[CTW_AT_MLP].present)
        st = ctw_step_read(s, CTW_AT_MLP, s->before, err);
    const struct ctw_join join = {CTW_SLOT_O, CTW_AT_MIXER_OUT, CTW_AT_MIXER_SUM, l->mixer_factor};
    return st == CTW_OK ? ctw_step_join(s, &join, f->wide, columns, err) : st;
}
