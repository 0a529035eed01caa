/*
 * Latent attention (MLA): queries, and keys with their values, are products of two latents. A key
 * or query head is [part of its own | part that turns]; the turning part of a token's keys is the
 * same in all heads. Keys and values are expanded for the chunk's own tokens, and carried so.
 *
 * f->wide holds the product of the latents [chunk, q_rank + kv_rank + turning], the queries and the
 * product of keys and values; then attention's output, which overwrites the last. With an indexer,
 * the product has its key and its heads' weights, too, and its queries come first.
 */
#include "worker/engine/mixers/keys.h"

struct parts {
    char *latents, *queries, *expanded;
    int64_t ld; /* of latents */
};

static struct parts parts_of(const struct ctw_step *s)
{
    const int64_t chunk = s->f->plan.chunk_tokens;
    const size_t es = ctw_dtype_bytes(s->f->dtype);
    char *wide = s->f->wide;
    return (struct parts){.latents = wide,
                          .queries = wide + (size_t)ctw_plan_queries_at(s->layer, chunk) * es,
                          .expanded = wide + (size_t)ctw_plan_expanded_at(s->layer, chunk) * es,
                          .ld = ctw_plan_qkv_columns(s->layer)};
}

/* The norm of `dim` columns of the latents from column `col` on, in place. */
static enum ctw_status norm_latent(const struct ctw_step *s, enum ctw_norm_place place,
                                   const struct parts *p, int64_t col, int64_t dim,
                                   struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, place);
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
        ctw_step_product(s, CTW_SLOT_QKV, s->f->norm, s->f->model->hidden, p->latents, p->ld, err);
    return st == CTW_OK && s->layer->q_rank > 0
               ? norm_latent(s, CTW_AT_Q_A, p, 0, s->layer->q_rank, err)
               : st;
}

static enum ctw_status project_queries(const struct ctw_step *s, const struct parts *p,
                                       struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    bool low = l->q_rank > 0;
    return ctw_step_product(s, CTW_SLOT_Q_B, low ? p->latents : s->f->norm,
                            low ? p->ld : s->f->model->hidden, p->queries,
                            (int64_t)l->n_head * l->head, err);
}

/* ---- the indexer -------------------------------------------------------------------------- */

/* Rotates n_head heads per token: to [n_tok, n_head * head], from columns `col` on of rows that are
 * ld elements apart. */
static enum ctw_status turn_index(const struct ctw_step *s, int n_head, const void *from,
                                  int64_t col, int64_t ld, void *to, struct ctw_err *err)
{
    const struct ctw_indexer *x = &s->layer->index;
    const struct ctw_rope *rope = &s->f->model->rope[x->rope];
    return ctw_qkv(s->f->be,
                   &(struct ctw_op_qkv){.dtype = s->f->dtype,
                                        .n_tok = s->chunk->n_tok,
                                        .n_head = n_head,
                                        .n_kv = 1,
                                        .head = x->head,
                                        .qkv = from,
                                        .columns = {.ld = ld, .q = col},
                                        .pairing = rope->pairing,
                                        .rot_dim = rope->rot_dim,
                                        .positions = s->f->positions + s->chunk->tok0,
                                        .cos_sin = s->f->cos_sin[x->rope],
                                        .q = to},
                   err);
}

/* Which keys the chunk's queries see. */
static enum ctw_status choose_keys(const struct ctw_step *s, const struct parts *p,
                                   const struct ctw_keys *keys, struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    const struct ctw_indexer *x = &l->index;
    const int64_t col = l->q_rank + l->kv_rank + l->turning, n = (int64_t)x->n_head * x->head;
    const struct ctw_op_index op = {
        .dtype = s->f->dtype,
        .n_head = x->n_head,
        .head = x->head,
        .chosen = x->chosen,
        .q = p->queries,
        .k = s->f->index_keys,
        .weights = p->latents + (size_t)(col + x->head) * ctw_dtype_bytes(s->f->dtype),
        .ld_weights = p->ld,
        .seqs = s->chunk->seqs,
        .n_seqs = s->chunk->n_seqs,
        .seen = ctw_keys_seen(s),
        .ld_seen = s->f->plan.seen_words,
    };
    enum ctw_status st = norm_latent(s, CTW_AT_INDEX_K, p, col, x->head, err);
    if (st == CTW_OK)
        st = turn_index(s, 1, p->latents, col, p->ld, keys->index_here, err);
    if (st == CTW_OK)
        st = ctw_step_product(s, CTW_SLOT_INDEX_Q, p->latents, p->ld, p->expanded, n, err);
    if (st == CTW_OK)
        st = turn_index(s, x->n_head, p->expanded, 0, n, p->queries, err);
    return st == CTW_OK ? ctw_index(s->f->be, &op, err) : st;
}

/* ---- attention ---------------------------------------------------------------------------- */

/* What is left to quantise once keys and values are expanded. A cache of latents has these as its
 * keys, and as its values the rotated elements that all heads of a key share. */
static enum ctw_status quantise_expanded(const struct ctw_step *s, const struct parts *p,
                                         const struct ctw_keys *keys, struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    const int64_t k = (int64_t)l->n_head * l->head, v = (int64_t)l->n_head * l->head_v;
    const size_t es = ctw_dtype_bytes(s->f->dtype), own = (size_t)(l->head - l->turning);
    enum ctw_status st = ctw_heads_quantise(s, CTW_HEADS_Q, p->queries, l->n_head, l->head, k, err);
    if (!ctw_layer_caches_latents(l)) {
        if (st == CTW_OK)
            st = ctw_heads_quantise(s, CTW_HEADS_K, keys->k_here, l->n_kv, l->head, k, err);
        if (st == CTW_OK)
            st = ctw_heads_quantise(s, CTW_HEADS_V, keys->v_here, l->n_kv, l->head_v, v, err);
        return st;
    }
    for (int h = 0; h < l->n_head && st == CTW_OK; h++) {
        char *shared = (char *)keys->k_here + ((size_t)h * (size_t)l->head + own) * es;
        st = ctw_heads_quantise(s, CTW_HEADS_V, shared, 1, l->turning, k, err);
    }
    return st;
}

/* Keys and values of the chunk's tokens; finishes the queries. */
static enum ctw_status expand(const struct ctw_step *s, const struct parts *p,
                              const struct ctw_keys *keys, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const struct ctw_layer *l = s->layer;
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
        .k = keys->k_here,
        .v = keys->v_here,
    };
    enum ctw_status st = norm_latent(s, CTW_AT_KV_A, p, l->q_rank, l->kv_rank, err);
    if (st == CTW_OK && ctw_layer_caches_latents(l))
        st = ctw_heads_quantise(s, CTW_HEADS_K, p->latents + (size_t)l->q_rank * es, 1, l->kv_rank,
                                p->ld, err);
    if (st == CTW_OK)
        st = ctw_step_product(s, CTW_SLOT_KV_B, p->latents + (size_t)l->q_rank * es, p->ld,
                              p->expanded, (int64_t)l->n_head * (own + l->head_v), err);
    if (st == CTW_OK)
        st = ctw_latent(f->be, &op, err);
    return st == CTW_OK ? quantise_expanded(s, p, keys, err) : st;
}

enum ctw_status ctw_mixer_latent(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    const struct parts p = parts_of(s);
    const struct ctw_join join = {CTW_SLOT_O, CTW_AT_MIXER_OUT, CTW_AT_MIXER_SUM, l->mixer_factor};
    struct ctw_keys keys;
    enum ctw_status st = ctw_keys_begin(s, &keys, err);
    if (st == CTW_OK)
        st = project_latents(s, &p, err);
    if (st == CTW_OK && !l->index.shared && ctw_plan_is_sparse(l, s->f->plan.longest))
        st = choose_keys(s, &p, &keys, err);
    if (st == CTW_OK)
        st = project_queries(s, &p, err);
    if (st == CTW_OK)
        st = expand(s, &p, &keys, err);
    if (st == CTW_OK)
        st = ctw_keys_attend(s, &keys, p.queries, p.expanded, err);
    return st == CTW_OK ? ctw_step_join(s, &join, p.expanded, (int64_t)l->n_head * l->head_v, err)
                        : st;
}
