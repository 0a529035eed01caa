/*
 * Softmax attention with grouped heads: projections, norms of heads, RoPE, scores, output.
 *
 * f->wide holds, at different times, the product's columns [chunk, ld], and behind them the queries
 * in attention's layout [chunk, n_head * head]; then attention's output [chunk, n_head * head_v],
 * which overwrites the product, and the gate of it, which overwrites the queries. If the product
 * holds the gate, the output is behind the queries. The adapters' inputs are behind the queries,
 * too, before there are any: in their place the adapters' outputs are. The choice of blocks or
 * pools has its place behind the queries, before there is an output (block_choice.c,
 * pool_choice.c). With a learned bias the output is behind the queries, too, since attention reads
 * the states in the product.
 */
#include "worker/engine/mixers/block_choice.h"
#include "worker/engine/mixers/pool_choice.h"

static const struct ctw_attention *attention_of(const struct ctw_step *s)
{
    return &s->branch->attention;
}

/* Columns of the product's place, where attention's output follows while it reads the queries,
 * which may be wider: of few key heads, with value heads larger than the others. */
static int64_t product_columns(const struct ctw_layer *l, int branch)
{
    const struct ctw_attention *a = &l->branch[branch].attention;
    const struct ctw_product *qkv = &l->product[ctw_product_at(branch, CTW_P_QKV)];
    return ctw_max64(ctw_plan_columns(qkv), (int64_t)a->n_head * a->head_v);
}

/* The chunk's queries. */
static void *queries_at(const struct ctw_step *s)
{
    int64_t at = ctw_wide_up(s->f->plan.chunk_tokens * product_columns(s->layer, s->index));
    return (char *)s->f->wide + (size_t)at * ctw_dtype_bytes(s->f->dtype);
}

static void *behind_queries(const struct ctw_step *s)
{
    const struct ctw_attention *a = attention_of(s);
    int64_t queries = ctw_wide_up(s->f->plan.chunk_tokens * a->n_head * a->head);
    return (char *)queries_at(s) + (size_t)queries * ctw_dtype_bytes(s->f->dtype);
}

/* Attention's output; before that, a place for rotated heads. */
static void *output_at(const struct ctw_step *s)
{
    const struct ctw_attention *a = attention_of(s);
    return a->gate_in_q || a->relative.rank > 0 ? behind_queries(s) : s->f->wide;
}

/* Does the split normalise the heads of q and k? Otherwise norms are steps of their own. */
static bool fuses_norms(const struct ctw_step *s)
{
    const struct ctw_attention *l = attention_of(s);
    const struct ctw_norm_rule *q = ctw_step_rule(s, CTW_AT_Q), *k = ctw_step_rule(s, CTW_AT_K);
    const struct ctw_tensor *q_weight = ctw_step_vector(s, CTW_V_WEIGHT + CTW_AT_Q);
    const struct ctw_tensor *k_weight = ctw_step_vector(s, CTW_V_WEIGHT + CTW_AT_K);
    return q->present && k->present && q->kind == CTW_NORM_RMS && !l->norms_after_rope &&
           l->head_norms == CTW_HEADS_ALIKE && l->limit == 0 && q->eps == k->eps &&
           q->offset == k->offset && q_weight != NULL && k_weight != NULL &&
           q_weight->dtype == k_weight->dtype;
}

/* The norm of n_heads heads per row, in place; a token has `rows`, which are ld elements apart. */
static enum ctw_status norm_heads(const struct ctw_step *s, int place, void *heads, int n_heads,
                                  int rows, int64_t ld, struct ctw_err *err)
{
    const struct ctw_attention *l = attention_of(s);
    bool wide = l->head_norms == CTW_HEADS_WIDE && place != CTW_AT_V;
    struct ctw_op_norm op = ctw_step_norm(s, place);
    if (!ctw_step_rule(s, place)->present)
        return CTW_OK;
    op.n_tok *= rows;
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
    int64_t ld = attention_of(s)->columns.ld;
    return ctw_act(s->f->be,
                   &(struct ctw_op_act){.act = CTW_ACT_CLIP,
                                        .param = {attention_of(s)->limit},
                                        .dtype = s->f->dtype,
                                        .n_tok = s->chunk->n_tok,
                                        .dim = ld,
                                        .x = s->f->wide,
                                        .ldx = ld,
                                        .y = s->f->wide,
                                        .ldy = ld},
                   err);
}

/* Adds the adapters' outputs to the columns of q, k and v. */
static enum ctw_status adapt_columns(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_attention *l = attention_of(s);
    const int64_t column[] = {l->columns.q, l->columns.k, l->columns.v}, r = l->adapter_rank;
    const size_t es = ctw_dtype_bytes(s->f->dtype);
    char *low = behind_queries(s);
    enum ctw_status st = ctw_step_product(s, CTW_P_ADAPT_IN, s->f->norm,
                                          ctw_step_inputs(s, CTW_P_ADAPT_IN), low, 3 * r, err);
    for (int i = 0; st == CTW_OK && i < 3; i++)
        st = ctw_step_product_onto(s, CTW_P_ADAPT_Q + i, low + (size_t)(i * r) * es, 3 * r,
                                   queries_at(s), (char *)s->f->wide + (size_t)column[i] * es,
                                   l->columns.ld, err);
    return st;
}

/* What comes between the product and the split. */
static enum ctw_status finish_columns(const struct ctw_step *s, const struct ctw_op_qkv *split,
                                      struct ctw_err *err)
{
    const struct ctw_attention *l = attention_of(s);
    const struct ctw_qkv_columns *c = &split->columns;
    size_t es = ctw_dtype_bytes(s->f->dtype);
    char *at = s->f->wide;
    enum ctw_status st = CTW_OK;
    bool norms = !l->norms_after_rope && split->q_norm == NULL;
    const int n = c->kv_step > l->head ? l->n_kv : 1; /* key heads beside their queries */
    if (l->adapter_rank > 0)
        st = adapt_columns(s, err);
    if (st == CTW_OK && l->limit > 0 && !l->limits_normed)
        st = clamp_columns(s, err);
    if (norms && st == CTW_OK)
        st = norm_heads(s, CTW_AT_Q, at + (size_t)c->q * es, l->n_head / n, n, c->ld / n, err);
    if (norms && st == CTW_OK && split->k != NULL)
        st = norm_heads(s, CTW_AT_K, at + (size_t)c->k * es, l->n_kv / n, n, c->ld / n, err);
    if (l->limit > 0 && l->limits_normed && st == CTW_OK)
        st = clamp_columns(s, err);
    return st;
}

/* Value heads of another size than key heads are not part of the split. */
static bool values_apart(const struct ctw_attention *l)
{
    return l->head_v != l->head;
}

/* The product's columns of values, to their place. */
static enum ctw_status take_values(const struct ctw_step *s, const struct ctw_keys *keys,
                                   struct ctw_err *err)
{
    const struct ctw_attention *l = attention_of(s);
    size_t es = ctw_dtype_bytes(s->f->dtype);
    const struct ctw_op_norm copy = {.kind = CTW_NORM_NONE,
                                     .dtype = s->f->dtype,
                                     .x_dtype = s->f->dtype,
                                     .n_tok = s->chunk->n_tok,
                                     .dim = (int64_t)l->n_kv * l->head_v,
                                     .x = (char *)s->f->wide + (size_t)l->columns.v * es,
                                     .ldx = l->columns.ld,
                                     .y = keys->v.here};
    return ctw_norm(s->f->be, &copy, err);
}

/* out = the product's columns from `column` on plus their convolution; state0: where its states
 * are in those of keys and values, in elements. */
static enum ctw_status convolve(const struct ctw_step *s, int vector, int64_t column,
                                int64_t state0, void *out, struct ctw_err *err)
{
    const struct ctw_attention *l = attention_of(s);
    const int64_t dim = (int64_t)l->n_kv * l->head;
    struct ctw_op_conv op = {.form = CTW_CONV_ADD,
                             .dtype = s->f->dtype,
                             .n_tok = s->chunk->n_tok,
                             .dim = dim,
                             .taps = l->conv_taps,
                             .x = (const char *)s->f->wide +
                                  (size_t)column * ctw_dtype_bytes(s->f->dtype),
                             .ldx = l->columns.ld,
                             .weight = ctw_step_vector_data(s, vector),
                             .weight_dtype = ctw_step_vector(s, vector)->dtype,
                             .states = ctw_step_states(s, CTW_CARRY_CONV),
                             .y = out,
                             .ldy = dim};
    op.states.data = (float *)op.states.data + state0;
    return ctw_step_conv(s, &op, err);
}

/* Keys and values from the product's columns, with their convolutions and the norm of keys. */
static enum ctw_status convolve_keys(const struct ctw_step *s, const struct ctw_keys *keys,
                                     struct ctw_err *err)
{
    const struct ctw_attention *l = attention_of(s);
    const int64_t kv = (int64_t)l->n_kv * l->head, state = kv * (l->conv_taps - 1);
    enum ctw_status st = convolve(s, CTW_V_K_CONV, l->columns.k, 0, keys->k.here, err);
    if (st == CTW_OK)
        st = convolve(s, CTW_V_V_CONV, l->columns.v, state, keys->v.here, err);
    return st == CTW_OK ? norm_heads(s, CTW_AT_K, keys->k.here, l->n_kv, 1, kv, err) : st;
}

static enum ctw_status norm_after_split(const struct ctw_step *s, const struct ctw_keys *keys,
                                        const struct ctw_op_qkv *split, struct ctw_err *err)
{
    const struct ctw_attention *l = attention_of(s);
    int64_t q = (int64_t)l->n_head * l->head, kv = (int64_t)l->n_kv * l->head;
    enum ctw_status st = values_apart(l) && l->uses_kv < 0 ? take_values(s, keys, err) : CTW_OK;
    if (st == CTW_OK && l->norms_after_rope)
        st = norm_heads(s, CTW_AT_Q, split->q, l->n_head, 1, q, err);
    if (st == CTW_OK && l->norms_after_rope && split->k != NULL)
        st = norm_heads(s, CTW_AT_K, split->k, l->n_kv, 1, kv, err);
    if (st == CTW_OK && split->v != NULL)
        st = norm_heads(s, CTW_AT_V, split->v, l->n_kv, 1, kv, err);
    return st;
}

/* n_heads heads, in place: rotated where the output will be. */
static enum ctw_status rotate_heads(const struct ctw_step *s, int name, void *heads, int n_heads,
                                    struct ctw_err *err)
{
    int64_t dim = (int64_t)n_heads * attention_of(s)->head;
    if (name == 0)
        return CTW_OK;
    enum ctw_status st = ctw_rotate(s->f->be,
                                    &(struct ctw_op_rotate){.how = ctw_forward_rotation(s->f, name),
                                                            .dtype = s->f->dtype,
                                                            .n_tok = s->chunk->n_tok,
                                                            .dim = dim,
                                                            .x = heads,
                                                            .ldx = dim,
                                                            .y = output_at(s),
                                                            .ldy = dim},
                                    err);
    size_t bytes = (size_t)(s->chunk->n_tok * dim) * ctw_dtype_bytes(s->f->dtype);
    return st == CTW_OK ? ctw_device_copy(s->f->be, heads, output_at(s), bytes, err) : st;
}

static enum ctw_status quantise_heads(const struct ctw_step *s, const struct ctw_keys *keys,
                                      void *queries, struct ctw_err *err)
{
    const struct ctw_attention *l = attention_of(s);
    int64_t q = (int64_t)l->n_head * l->head, k = (int64_t)l->n_kv * l->head;
    int64_t v = (int64_t)l->n_kv * l->head_v;
    enum ctw_status st =
        ctw_heads_quantise(s, &l->inputs.of[CTW_HEADS_Q], queries, l->n_head, l->head, q, err);
    if (st == CTW_OK && l->uses_kv < 0)
        st = ctw_heads_quantise(s, &l->inputs.of[CTW_HEADS_K], keys->k.here, l->n_kv, l->head, k,
                                err);
    if (st == CTW_OK && l->uses_kv < 0)
        st = ctw_heads_quantise(s, &l->inputs.of[CTW_HEADS_V], keys->v.here, l->n_kv, l->head_v, v,
                                err);
    return st;
}

static struct ctw_op_qkv split_of(const struct ctw_step *s, const struct ctw_keys *keys)
{
    struct ctw_forward *f = s->f;
    const struct ctw_attention *l = attention_of(s);
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
        .k = l->uses_kv >= 0 || l->conv_taps > 0 ? NULL : keys->k.here,
        .v = l->uses_kv >= 0 || l->conv_taps > 0 || values_apart(l) ? NULL : keys->v.here,
    };
    if (fuses_norms(s)) {
        op.q_norm = ctw_step_vector_data(s, CTW_V_WEIGHT + CTW_AT_Q);
        op.k_norm = ctw_step_vector_data(s, CTW_V_WEIGHT + CTW_AT_K);
        op.norm_dtype = ctw_step_vector(s, CTW_V_WEIGHT + CTW_AT_Q)->dtype;
        op.norm_eps = ctw_step_rule(s, CTW_AT_Q)->eps;
        op.norm_offset = ctw_step_rule(s, CTW_AT_Q)->offset;
    }
    return op;
}

static enum ctw_status project(const struct ctw_step *s, const struct ctw_keys *keys,
                               struct ctw_err *err)
{
    const struct ctw_attention *l = attention_of(s);
    struct ctw_shard shards[CTW_MAX_SHARDS];
    struct ctw_op_qkv split = split_of(s, keys);
    bool own_norms = split.q_norm == NULL && !l->norms_after_rope &&
                     (ctw_step_rule(s, CTW_AT_Q)->present || ctw_step_rule(s, CTW_AT_K)->present);
    const struct ctw_op_linear product = {
        .shards = shards,
        .n_shards = ctw_step_shards(s, CTW_P_QKV, shards),
        .slot = ctw_step_slot(s, CTW_P_QKV),
        .dtype = s->f->dtype,
        .epilogue = CTW_EPI_STORE,
        .n_tok = s->chunk->n_tok,
        .x = s->f->norm,
        .ldx = ctw_step_inputs(s, CTW_P_QKV),
        .y = s->f->wide,
        .ldy = ctw_plan_columns(ctw_step_product_of(s, CTW_P_QKV)),
    };
    enum ctw_status st;
    if (own_norms || l->limit > 0 || l->adapter_rank > 0 || values_apart(l) ||
        l->choice.block > 0 || l->pools.chosen > 0 || l->relative.rank > 0 || l->conv_taps > 0) {
        st = ctw_linear(s->f->be, &product, err);
        if (st == CTW_OK)
            st = finish_columns(s, &split, err);
        if (st == CTW_OK)
            st = ctw_qkv(s->f->be, &split, err);
    } else {
        st = ctw_linear_qkv(s->f->be, &product, &split, err);
    }
    if (st == CTW_OK && l->conv_taps > 0)
        st = convolve_keys(s, keys, err);
    if (st == CTW_OK)
        st = norm_after_split(s, keys, &split, err);
    if (st == CTW_OK)
        st = rotate_heads(s, l->inputs.rotate_q, split.q, l->n_head, err);
    if (st == CTW_OK && l->uses_kv < 0)
        st = rotate_heads(s, l->inputs.rotate_k, keys->k.here, l->n_kv, err);
    return st == CTW_OK ? quantise_heads(s, keys, split.q, err) : st;
}

/* Attention's output times the gate in the product's columns behind each query head. */
static enum ctw_status gate_by_columns(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_attention *l = attention_of(s);
    int64_t all = (int64_t)l->n_head * l->head_v;
    int64_t at = l->columns.q + l->head;
    return ctw_gate(s->f->be,
                    &(struct ctw_op_gate){.kind = l->gate,
                                          .dtype = s->f->dtype,
                                          .n_tok = s->chunk->n_tok,
                                          .n_groups = all,
                                          .size = 1,
                                          .x = (const char *)s->f->wide +
                                               (size_t)at * ctw_dtype_bytes(s->f->dtype),
                                          .ldx = l->columns.ld,
                                          .run = l->head,
                                          .step = l->columns.q_head,
                                          .y = output_at(s),
                                          .ldy = all},
                    err);
}

/* Attention's output times its gate. The queries are no longer needed: the gate is there. */
static enum ctw_status gate_heads(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_attention *l = attention_of(s);
    int64_t n = ctw_plan_columns(ctw_step_product_of(s, CTW_P_HEADS_GATE)),
            all = (int64_t)l->n_head * l->head_v;
    if (l->gate_in_q)
        return gate_by_columns(s, err);
    enum ctw_status st = ctw_step_product(s, CTW_P_HEADS_GATE, s->f->norm, s->f->model->hidden,
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

/* Keys and values of the layer itself, or of the layer that it shares them with. */
static int kept_of(const struct ctw_attention *a)
{
    return a->uses_kv >= 0 ? a->uses_kv : a->keeps_kv;
}

/* The learned bias: the queries' states are the product's last columns. */
static struct ctw_relative relative_of(const struct ctw_step *s)
{
    const struct ctw_attention *a = attention_of(s);
    const int64_t n = (int64_t)a->n_head * a->relative.rank, from = a->columns.ld - n;
    if (a->relative.rank == 0)
        return (struct ctw_relative){0};
    return (struct ctw_relative){.rank = a->relative.rank,
                                 .extent = a->relative.extent,
                                 .states = (const char *)s->f->wide +
                                           (size_t)from * ctw_dtype_bytes(s->f->dtype),
                                 .ld = a->columns.ld,
                                 .proj = ctw_step_vector_data(s, CTW_V_RELATIVE),
                                 .proj_dtype = ctw_step_vector(s, CTW_V_RELATIVE)->dtype,
                                 .factor = a->relative.factors ? s->f->q_factor : NULL};
}

static enum ctw_status attend(const struct ctw_step *s, const struct ctw_keys *keys,
                              struct ctw_err *err)
{
    const struct ctw_attention *a = attention_of(s);
    const struct ctw_tensor *sinks = ctw_step_vector(s, CTW_V_SINKS);
    struct ctw_op_attention op = {
        .n_head = a->n_head,
        .n_kv = a->n_kv,
        .head = a->head,
        .head_v = a->head_v,
        .scale = a->scale,
        .window = a->window,
        .chunk = a->chunk,
        .v_factor = a->v_factor,
        .softcap = a->softcap,
        .sinks = ctw_step_vector_data(s, CTW_V_SINKS),
        .sinks_dtype = sinks != NULL ? sinks->dtype : CTW_F32,
        .alibi = s->f->alibi,
        .relative = relative_of(s),
        .q = queries_at(s),
        .out = output_at(s),
    };
    if (ctw_blocks_are_chosen(a, s->f->plan.longest))
        ctw_blocks_show(s, &op);
    if (ctw_pools_are_chosen(a, s->f->plan.longest))
        ctw_pools_show(s, &op);
    return ctw_keys_attend(s, keys, op, err);
}

static enum ctw_status run(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_attention *l = attention_of(s);
    const struct ctw_keys keys = {.k = ctw_step_carry(s, CTW_CARRY_K),
                                  .v = ctw_step_carry(s, CTW_CARRY_V)};
    int64_t columns = (int64_t)l->n_head * l->head_v;
    enum ctw_status st = project(s, &keys, err);
    if (st == CTW_OK && ctw_blocks_are_chosen(l, s->f->plan.longest))
        st = ctw_blocks_choose(s, behind_queries(s), err);
    if (st == CTW_OK && ctw_pools_are_chosen(l, s->f->plan.longest))
        st = ctw_pools_choose(s, behind_queries(s), err);
    if (st == CTW_OK)
        st = attend(s, &keys, err);
    if (st == CTW_OK && l->gate != CTW_GATE_NONE)
        st = gate_heads(s, err);
    if (st == CTW_OK)
        st = ctw_step_norm_in_place(s, CTW_AT_HEADS_OUT, output_at(s), columns, err);
    return st == CTW_OK ? ctw_step_join(s, CTW_P_O, output_at(s), columns, err) : st;
}

/* ---- memory and time ---------------------------------------------------------------------- */

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    const struct ctw_attention *a = &l->branch[branch].attention;
    int64_t queries = (int64_t)a->n_head * a->head;
    w->wide = ctw_max64(w->wide, product_columns(l, branch) +
                                     queries * (a->gate_in_q || a->relative.rank > 0 ? 2 : 1) +
                                     3 * a->adapter_rank + ctw_blocks_wide(a, longest) +
                                     ctw_pools_wide(a, longest));
    w->chooses |= ctw_pools_are_chosen(a, longest);
    w->inner_k = ctw_max64(w->inner_k, (int64_t)a->n_head * a->head_v);
    w->head = ctw_max64(w->head, ctw_max64(a->head, a->head_v));
    w->group = ctw_max64(w->group, a->n_head / a->n_kv);
    w->relative = ctw_max64(w->relative, a->relative.rank * a->relative.extent);
}

static void carry(const struct ctw_model *m, const struct ctw_branch *b, int64_t longest,
                  enum ctw_dtype dtype, struct ctw_carry_rule rules[CTW_BRANCH_CARRIES])
{
    const struct ctw_attention *a = &b->attention;
    size_t heads = (size_t)a->n_kv * ctw_dtype_bytes(dtype);
    int kept = kept_of(a);
    enum ctw_carry_life life = kept >= 0 ? CTW_FOR_PASS : CTW_FOR_LAYER;
    (void)m;
    rules[CTW_CARRY_K] =
        (struct ctw_carry_rule){.bytes = heads * (size_t)a->head, .life = life, .kept = kept};
    rules[CTW_CARRY_V] =
        (struct ctw_carry_rule){.bytes = heads * (size_t)a->head_v, .life = life, .kept = kept};
    if (a->conv_taps > 0)
        rules[CTW_CARRY_CONV] = (struct ctw_carry_rule){
            .bytes = (size_t)(2 * a->n_kv * a->head * (a->conv_taps - 1)) * sizeof(float),
            .life = CTW_STATE};
    if (ctw_blocks_are_chosen(a, longest))
        ctw_blocks_carry(a, longest, dtype, rules);
    if (ctw_pools_are_chosen(a, longest))
        ctw_pools_carry(a, longest, dtype, rules);
}

static double key_flops(const struct ctw_branch *b, int64_t n_keys)
{
    const struct ctw_attention *a = &b->attention;
    int64_t keys = a->window > 0 && a->window < n_keys ? a->window : n_keys;
    const int64_t each = a->head + a->head_v + a->relative.rank;
    return 2.0 * a->n_head * (double)each * (double)keys;
}

const struct ctw_kind_ops ctw_ops_attention = {
    .widen = widen, .carry = carry, .joins = CTW_P_O, .key_flops = key_flops, .run = run};
