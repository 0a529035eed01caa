/*
 * Latent attention (MLA): queries, and keys with their values, are products of two latents. A key
 * or query head is [part of its own | part that turns]; the turning part of a token's keys is the
 * same in all heads. Keys and values are expanded for the chunk's own tokens, and the carry holds
 * them expanded.
 *
 * f->wide holds the product of the latents [chunk, q_rank + kv_rank + turning], the queries and the
 * product of keys and values; then attention's output, which overwrites the last. With an indexer,
 * the product has its key and its heads' weights, too, and its queries come first.
 */
#include "worker/engine/mixers/indexer.h"
#include "worker/engine/mixers/keys.h"

struct parts {
    char *latents, *queries, *expanded;
    int64_t ld; /* of latents */
};

static const struct ctw_latent *latent_of(const struct ctw_step *s)
{
    return &s->branch->latent;
}

/* Columns of the queries' place, which the indexer uses first, and the gates last; of the product
 * of keys and values. */
static int64_t query_columns(const struct ctw_latent *x)
{
    return ctw_max64(ctw_max64((int64_t)x->n_head * x->head, ctw_index_columns(&x->index)),
                     x->n_gates);
}

static int64_t expanded_columns(const struct ctw_latent *x)
{
    return ctw_max64((int64_t)x->n_head * (x->head - x->turning + x->head_v),
                     ctw_index_columns(&x->index));
}

/* Does the layer choose keys, or use a choice, in sequences of up to `longest` tokens? Queries of
 * shorter sequences see all keys. */
static bool is_sparse(const struct ctw_latent *x, int64_t longest)
{
    return x->index.chosen > 0 && longest > x->index.chosen;
}

static struct parts parts_of(const struct ctw_step *s)
{
    const int64_t chunk = s->f->plan.chunk_tokens;
    const int64_t ld = ctw_plan_columns(ctw_step_product_of(s, CTW_P_LATENTS));
    const int64_t queries = ctw_wide_up(chunk * ld);
    const int64_t expanded = ctw_wide_up(queries + chunk * query_columns(latent_of(s)));
    const size_t es = ctw_dtype_bytes(s->f->dtype);
    char *wide = s->f->wide;
    return (struct parts){.latents = wide,
                          .queries = wide + (size_t)queries * es,
                          .expanded = wide + (size_t)expanded * es,
                          .ld = ld};
}

/* The norm of `dim` columns of the latents from column `col` on, in place. */
static enum ctw_status norm_latent(const struct ctw_step *s, int place, const struct parts *p,
                                   int64_t col, int64_t dim, struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, place);
    op.factor = place == CTW_AT_KV_A ? latent_of(s)->kv_factor : 1;
    op.dim = dim;
    op.x = op.y = p->latents + (size_t)col * ctw_dtype_bytes(s->f->dtype);
    op.ldx = op.ldy = p->ld;
    op.x_dtype = op.dtype = s->f->dtype;
    return ctw_norm(s->f->be, &op, err);
}

static enum ctw_status project_latents(const struct ctw_step *s, const struct parts *p,
                                       struct ctw_err *err)
{
    enum ctw_status st =
        ctw_step_product(s, CTW_P_LATENTS, s->f->norm, s->f->model->hidden, p->latents, p->ld, err);
    return st == CTW_OK && latent_of(s)->q_rank > 0
               ? norm_latent(s, CTW_AT_Q_A, p, 0, latent_of(s)->q_rank, err)
               : st;
}

static enum ctw_status project_queries(const struct ctw_step *s, const struct parts *p,
                                       struct ctw_err *err)
{
    const struct ctw_latent *l = latent_of(s);
    bool low = l->q_rank > 0;
    return ctw_step_product(s, CTW_P_Q_B, low ? p->latents : s->f->norm,
                            low ? p->ld : s->f->model->hidden, p->queries,
                            (int64_t)l->n_head * l->head, err);
}

/* ---- attention ---------------------------------------------------------------------------- */

/* Quantises queries, and keys and values after they are expanded. The keys of a cache of latents
 * are the latents, quantised before; its values are the rotated elements that all heads of a key
 * share. */
static enum ctw_status quantise_expanded(const struct ctw_step *s, const struct parts *p,
                                         const struct ctw_keys *keys, struct ctw_err *err)
{
    const struct ctw_latent *l = latent_of(s);
    const int64_t k = (int64_t)l->n_head * l->head, v = (int64_t)l->n_head * l->head_v;
    const size_t es = ctw_dtype_bytes(s->f->dtype), own = (size_t)(l->head - l->turning);
    enum ctw_status st =
        ctw_heads_quantise(s, &l->inputs.of[CTW_HEADS_Q], p->queries, l->n_head, l->head, k, err);
    if (!ctw_latent_is_cached(l)) {
        if (st == CTW_OK)
            st = ctw_heads_quantise(s, &l->inputs.of[CTW_HEADS_K], keys->k.here, l->n_head, l->head,
                                    k, err);
        if (st == CTW_OK)
            st = ctw_heads_quantise(s, &l->inputs.of[CTW_HEADS_V], keys->v.here, l->n_head,
                                    l->head_v, v, err);
        return st;
    }
    for (int h = 0; h < l->n_head && st == CTW_OK; h++) {
        char *shared = (char *)keys->k.here + ((size_t)h * (size_t)l->head + own) * es;
        st = ctw_heads_quantise(s, &l->inputs.of[CTW_HEADS_V], shared, 1, l->turning, k, err);
    }
    return st;
}

/* Keys and values of the chunk's tokens; finishes the queries. */
static enum ctw_status expand(const struct ctw_step *s, const struct parts *p,
                              const struct ctw_keys *keys, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const struct ctw_latent *l = latent_of(s);
    const struct ctw_rope *rope = l->rope < 0 ? NULL : &f->model->rope[l->rope];
    const size_t es = ctw_dtype_bytes(f->dtype);
    const int own = l->head - l->turning;
    const struct ctw_op_latent op = {
        .dtype = f->dtype,
        .n_tok = s->chunk->n_tok,
        .n_head = l->n_head,
        .own = own,
        .turning = l->turning,
        .head_v = l->head_v,
        .q = p->queries,
        .kv = p->expanded,
        .k_turned = p->latents + (size_t)(l->q_rank + l->kv_rank) * es,
        .ld_turned = p->ld,
        .pairing = rope == NULL ? CTW_ROPE_HALVES : rope->pairing,
        .positions = f->positions + s->chunk->tok0,
        .cos_sin = rope == NULL ? NULL : f->cos_sin[l->rope],
        .q_factor = l->q_factors ? f->q_factor : NULL,
        .k = keys->k.here,
        .v = keys->v.here,
    };
    enum ctw_status st = norm_latent(s, CTW_AT_KV_A, p, l->q_rank, l->kv_rank, err);
    if (st == CTW_OK && ctw_latent_is_cached(l))
        st = ctw_heads_quantise(s, &l->inputs.of[CTW_HEADS_K], p->latents + (size_t)l->q_rank * es,
                                1, l->kv_rank, p->ld, err);
    if (st == CTW_OK)
        st = ctw_step_product(s, CTW_P_KV_B, p->latents + (size_t)l->q_rank * es, p->ld,
                              p->expanded, (int64_t)l->n_head * (own + l->head_v), err);
    if (st == CTW_OK)
        st = ctw_latent(f->be, &op, err);
    return st == CTW_OK ? quantise_expanded(s, p, keys, err) : st;
}

static enum ctw_status attend(const struct ctw_step *s, const struct parts *p,
                              const struct ctw_keys *keys, bool sparse, struct ctw_err *err)
{
    const struct ctw_latent *l = latent_of(s);
    const struct ctw_tensor *sinks = ctw_step_vector(s, CTW_V_LATENT_SINKS);
    const struct ctw_op_attention op = {.n_head = l->n_head,
                                        .n_kv = l->n_head,
                                        .head = l->head,
                                        .head_v = l->head_v,
                                        .scale = l->scale,
                                        .seen = sparse ? ctw_step_carry(s, CTW_CARRY_CHOICE).here
                                                       : NULL,
                                        .ld_seen = ctw_choice_words(s->f->plan.longest),
                                        .seen_from = l->index.chosen,
                                        .alibi = s->f->alibi,
                                        .sinks = ctw_step_vector_data(s, CTW_V_LATENT_SINKS),
                                        .sinks_dtype = sinks != NULL ? sinks->dtype : CTW_F32,
                                        .q = p->queries,
                                        .out = p->expanded};
    return ctw_keys_attend(s, keys, op, err);
}

/* Attention's output times its gate. The queries are no longer needed: the gate is there. */
static enum ctw_status gate_heads(const struct ctw_step *s, const struct parts *p,
                                  struct ctw_err *err)
{
    const struct ctw_latent *l = latent_of(s);
    enum ctw_status st = ctw_step_product(s, CTW_P_LATENT_GATE, s->f->norm, s->f->model->hidden,
                                          p->queries, l->n_gates, err);
    if (st != CTW_OK)
        return st;
    return ctw_gate(s->f->be,
                    &(struct ctw_op_gate){.kind = l->gate,
                                          .dtype = s->f->dtype,
                                          .n_tok = s->chunk->n_tok,
                                          .n_groups = l->n_gates,
                                          .size = l->n_head * (int64_t)l->head_v / l->n_gates,
                                          .x = p->queries,
                                          .ldx = l->n_gates,
                                          .y = p->expanded,
                                          .ldy = (int64_t)l->n_head * l->head_v},
                    err);
}

static enum ctw_status run(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_latent *l = latent_of(s);
    const struct parts p = parts_of(s);
    const struct ctw_index_places index = {.latents = p.latents,
                                           .ld = p.ld,
                                           .column = l->q_rank + l->kv_rank + l->turning,
                                           .queries = p.queries,
                                           .other = p.expanded};
    bool sparse = is_sparse(l, s->f->plan.longest);
    const struct ctw_keys keys = {.k = ctw_step_carry(s, CTW_CARRY_K),
                                  .v = ctw_step_carry(s, CTW_CARRY_V)};
    enum ctw_status st = project_latents(s, &p, err);
    if (st == CTW_OK && !l->index.shared && sparse)
        st = ctw_choose_keys(s, &index, err);
    if (st == CTW_OK)
        st = project_queries(s, &p, err);
    if (st == CTW_OK)
        st = expand(s, &p, &keys, err);
    if (st == CTW_OK)
        st = attend(s, &p, &keys, sparse, err);
    if (st == CTW_OK && l->gate != CTW_GATE_NONE)
        st = gate_heads(s, &p, err);
    return st == CTW_OK
               ? ctw_step_join(s, CTW_P_LATENT_O, p.expanded, (int64_t)l->n_head * l->head_v, err)
               : st;
}

/* ---- memory and time ---------------------------------------------------------------------- */

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    const struct ctw_latent *x = &l->branch[branch].latent;
    const struct ctw_product *latents = &l->product[ctw_product_at(branch, CTW_P_LATENTS)];
    int64_t out = (int64_t)x->n_head * x->head_v;
    w->wide =
        ctw_max64(w->wide, ctw_plan_columns(latents) + query_columns(x) + expanded_columns(x));
    w->inner_k = ctw_max64(ctw_max64(w->inner_k, out), ctw_max64(x->q_rank, x->kv_rank));
    w->head = ctw_max64(w->head, ctw_max64(x->head, x->head_v));
    w->group = ctw_max64(w->group, 1);
    w->chooses |= is_sparse(x, longest);
}

static void carry(const struct ctw_model *m, const struct ctw_branch *b, int64_t longest,
                  enum ctw_dtype dtype, struct ctw_carry_rule rules[CTW_BRANCH_CARRIES])
{
    const struct ctw_latent *x = &b->latent;
    size_t es = ctw_dtype_bytes(dtype), heads = (size_t)x->n_head * es;
    rules[CTW_CARRY_K].bytes = heads * (size_t)x->head;
    rules[CTW_CARRY_V].bytes = heads * (size_t)x->head_v;
    rules[CTW_CARRY_K].life = rules[CTW_CARRY_V].life = CTW_FOR_LAYER;
    if (!is_sparse(x, longest))
        return;
    rules[CTW_CARRY_INDEX] = (struct ctw_carry_rule){.bytes = (size_t)ctw_index_row(&x->index) * es,
                                                     .life = CTW_FOR_LAYER};
    rules[CTW_CARRY_CHOICE] =
        (struct ctw_carry_rule){.bytes = (size_t)ctw_choice_words(longest) * sizeof(uint32_t),
                                .life = m->shares_choices ? CTW_FOR_PASS : CTW_FOR_CHUNK,
                                .alone = true};
}

static double key_flops(const struct ctw_branch *b, int64_t n_keys)
{
    const struct ctw_latent *x = &b->latent;
    return 2.0 * x->n_head * (double)(x->head + x->head_v) * (double)n_keys;
}

const struct ctw_kind_ops ctw_ops_latent = {
    .widen = widen, .carry = carry, .joins = CTW_P_LATENT_O, .key_flops = key_flops, .run = run};
