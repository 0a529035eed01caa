/* The choice of keys by an indexer, of tokens or of pools of tokens. */
#include "worker/engine/mixers/indexer.h"

#include "kernels/pool.h"
#include "kernels/turn.h"
#include "worker/engine/mixers/keys.h"

static const struct ctw_indexer *indexer_of(const struct ctw_step *s)
{
    return &s->branch->latent.index;
}

static char *element(const struct ctw_step *s, void *base, int64_t i)
{
    return (char *)base + (size_t)i * ctw_dtype_bytes(s->f->dtype);
}

/* The norm of the keys: from the latents, to rows that are ldy elements apart. */
static enum ctw_status norm_keys(const struct ctw_step *s, const struct ctw_index_places *p,
                                 void *y, int64_t ldy, struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, CTW_AT_INDEX_K);
    op.dim = indexer_of(s)->head;
    op.x = element(s, p->latents, p->column);
    op.y = y;
    op.ldx = p->ld;
    op.ldy = ldy;
    op.x_dtype = op.dtype = s->f->dtype;
    return ctw_norm(s->f->be, &op, err);
}

/* Rotates the first elements of n_head heads per token: to [n_tok, n_head * head], from columns
 * `col` on of rows that are ld elements apart. */
static enum ctw_status turn_first(const struct ctw_step *s, int n_head, const void *from,
                                  int64_t col, int64_t ld, void *to, struct ctw_err *err)
{
    const struct ctw_indexer *x = indexer_of(s);
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

/* Rotates the last elements of n_head heads per token, in place. */
static enum ctw_status turn_last(const struct ctw_step *s, int n_head, void *heads, int64_t ld,
                                 struct ctw_err *err)
{
    const struct ctw_indexer *x = indexer_of(s);
    const struct ctw_rope *rope = &s->f->model->rope[x->rope];
    return ctw_turn(s->f->be,
                    &(struct ctw_op_turn){.dtype = s->f->dtype,
                                          .n_tok = s->chunk->n_tok,
                                          .n_head = n_head,
                                          .head = x->head,
                                          .turning = rope->rot_dim,
                                          .pairing = rope->pairing,
                                          .positions = s->f->positions + s->chunk->tok0,
                                          .cos_sin = s->f->cos_sin[x->rope],
                                          .x = heads,
                                          .ldx = ld},
                    err);
}

/* The keys of the pools that end in the chunk. */
static enum ctw_status pool_keys(const struct ctw_step *s, const struct ctw_carried *carry,
                                 struct ctw_err *err)
{
    const struct ctw_indexer *x = indexer_of(s);
    const int64_t ld = ctw_index_row(x);
    const struct ctw_op_pool op = {
        .dtype = s->f->dtype,
        .block = x->pool,
        .dim = x->head,
        .x = carry->all,
        .gate = element(s, carry->all, x->head),
        .ldx = ld,
        .bias = ctw_step_vector_data(s, CTW_V_INDEX_POOL),
        .bias_dtype = ctw_step_vector(s, CTW_V_INDEX_POOL)->dtype,
        .seqs = s->chunk->seqs[carry->life],
        .n_seqs = s->chunk->n_seqs,
        .y = element(s, carry->all, 2 * (int64_t)x->head),
        .ldy = ld,
    };
    enum ctw_status st = ctw_step_product(s, CTW_P_INDEX_POOL, s->f->norm, s->f->model->hidden,
                                          element(s, carry->here, x->head), ld, err);
    return st == CTW_OK ? ctw_pool(s->f->be, &op, err) : st;
}

static enum ctw_status make_keys(const struct ctw_step *s, const struct ctw_index_places *p,
                                 const struct ctw_carried *carry, struct ctw_err *err)
{
    const struct ctw_indexer *x = indexer_of(s);
    enum ctw_status st;
    if (x->rope >= 0 && !x->turns_last) {
        st = norm_keys(s, p, element(s, p->latents, p->column), p->ld, err);
        return st == CTW_OK ? turn_first(s, 1, p->latents, p->column, p->ld, carry->here, err) : st;
    }
    st = norm_keys(s, p, carry->here, ctw_index_row(x), err);
    if (st == CTW_OK && x->rope >= 0)
        st = turn_last(s, 1, carry->here, ctw_index_row(x), err);
    return st == CTW_OK && x->pool > 0 ? pool_keys(s, carry, err) : st;
}

static enum ctw_status make_queries(const struct ctw_step *s, const struct ctw_index_places *p,
                                    struct ctw_err *err)
{
    const struct ctw_indexer *x = indexer_of(s);
    const int64_t n = ctw_index_columns(x);
    const bool first = x->rope >= 0 && !x->turns_last;
    char *to = first ? p->other : p->queries;
    enum ctw_status st = ctw_step_product(s, CTW_P_INDEX_Q, p->latents, p->ld, to, n, err);
    if (st != CTW_OK || x->rope < 0)
        return st;
    return first ? turn_first(s, x->n_head, to, 0, n, p->queries, err)
                 : turn_last(s, x->n_head, to, n, err);
}

enum ctw_status ctw_choose_keys(const struct ctw_step *s, const struct ctw_index_places *p,
                                struct ctw_err *err)
{
    const struct ctw_carried carry = ctw_step_carry(s, CTW_CARRY_INDEX);
    const struct ctw_indexer *x = indexer_of(s);
    const bool pools = x->pool > 0;
    const struct ctw_op_index op = {
        .dtype = s->f->dtype,
        .n_head = x->n_head,
        .head = x->head,
        .chosen = pools ? x->chosen / x->pool : x->chosen,
        .q = p->queries,
        .k = element(s, carry.all, pools ? 2 * (int64_t)x->head : 0),
        .ld_k = ctw_index_row(x),
        .block = x->pool,
        .by_token = pools,
        .weights = element(s, p->latents, p->column + x->head),
        .ld_weights = p->ld,
        .seqs = s->chunk->seqs[carry.life],
        .n_seqs = s->chunk->n_seqs,
        .seen = ctw_step_carry(s, CTW_CARRY_CHOICE).here,
        .ld_seen = ctw_choice_words(s->f->plan.longest),
    };
    enum ctw_status st = make_keys(s, p, &carry, err);
    if (st == CTW_OK)
        st = make_queries(s, p, err);
    return st == CTW_OK ? ctw_index(s->f->be, &op, err) : st;
}
