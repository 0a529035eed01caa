/*
 * Latent attention (MLA): queries, and keys with their values, are products of two latents. A key
 * or query head is [part of its own | part that turns]; the turning part of a token's keys is the
 * same in all heads. Keys and values are expanded for the chunk's own tokens, and carried so.
 *
 * f->wide holds the product of the latents [chunk, q_rank + kv_rank + turning], the queries and the
 * product of keys and values; then attention's output, which overwrites the last.
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

/* The latents, and from them the queries. */
static enum ctw_status project_queries(const struct ctw_step *s, const struct parts *p,
                                       struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    const int64_t hidden = s->f->model->hidden, n = (int64_t)l->n_head * l->head;
    enum ctw_status st =
        ctw_step_product(s, CTW_SLOT_QKV, s->f->norm, hidden, p->latents, p->ld, err);
    if (st == CTW_OK && l->q_rank == 0)
        return ctw_step_product(s, CTW_SLOT_Q_B, s->f->norm, hidden, p->queries, n, err);
    if (st == CTW_OK)
        st = norm_latent(s, CTW_AT_Q_A, p, 0, l->q_rank, err);
    return st == CTW_OK ? ctw_step_product(s, CTW_SLOT_Q_B, p->latents, p->ld, p->queries, n, err)
                        : st;
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
    if (st == CTW_OK)
        st = ctw_step_product(s, CTW_SLOT_KV_B, p->latents + (size_t)l->q_rank * es, p->ld,
                              p->expanded, (int64_t)l->n_head * (own + l->head_v), err);
    return st == CTW_OK ? ctw_latent(f->be, &op, err) : st;
}

enum ctw_status ctw_mixer_latent(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    const struct parts p = parts_of(s);
    const struct ctw_join join = {CTW_SLOT_O, CTW_AT_MIXER_OUT, CTW_AT_MIXER_SUM, l->mixer_factor};
    struct ctw_keys keys;
    enum ctw_status st = ctw_keys_begin(s, &keys, err);
    if (st == CTW_OK)
        st = project_queries(s, &p, err);
    if (st == CTW_OK)
        st = expand(s, &p, &keys, err);
    if (st == CTW_OK)
        st = ctw_keys_attend(s, &keys, p.queries, p.expanded, err);
    return st == CTW_OK ? ctw_step_join(s, &join, p.expanded, (int64_t)l->n_head * l->head_v, err)
                        : st;
}
