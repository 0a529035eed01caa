/*
 * The queries and the key of the choice are columns of the product, behind q, k and v. The carry
 * keeps, in a token's row, its key as it is and, if a pool ends with the token, the pool's key, so
 * that no bits depend on where sequences are cut; and for the chunk the choice, a bit for each key.
 */
#include "worker/engine/mixers/pool_choice.h"

#include "kernels/indexing.h"
#include "kernels/pool.h"

static const struct ctw_attention *attention_of(const struct ctw_step *s)
{
    return &s->branch->attention;
}

static int64_t choice_words(int64_t longest)
{
    return (longest + 31) / 32;
}

static char *element(const struct ctw_step *s, void *base, int64_t i)
{
    return (char *)base + (size_t)i * ctw_dtype_bytes(s->f->dtype);
}

static int64_t query_columns(const struct ctw_pool_choice *p)
{
    return (int64_t)p->n_head * p->head;
}

bool ctw_pools_are_chosen(const struct ctw_attention *a, int64_t longest)
{
    const struct ctw_pool_choice *p = &a->pools;
    return p->chosen > 0 && longest / p->pool > p->chosen / p->pool;
}

int64_t ctw_pools_wide(const struct ctw_attention *a, int64_t longest)
{
    return ctw_pools_are_chosen(a, longest) ? query_columns(&a->pools) : 0;
}

void ctw_pools_carry(const struct ctw_attention *a, int64_t longest, enum ctw_dtype dtype,
                     struct ctw_carry_rule rules[CTW_BRANCH_CARRIES])
{
    const size_t keys = 2 * (size_t)a->pools.head * ctw_dtype_bytes(dtype);
    const size_t choice = (size_t)choice_words(longest) * sizeof(uint32_t);
    rules[CTW_CARRY_INDEX] = (struct ctw_carry_rule){.bytes = keys, .life = CTW_FOR_LAYER};
    rules[CTW_CARRY_CHOICE] = (struct ctw_carry_rule){.bytes = choice, .life = CTW_FOR_CHUNK};
}

/* The chunk's queries [n_tok, n_head * head]: normalised in their columns, and turned. */
static enum ctw_status make_queries(const struct ctw_step *s, void *queries, struct ctw_err *err)
{
    const struct ctw_attention *a = attention_of(s);
    const struct ctw_pool_choice *p = &a->pools;
    const struct ctw_rope *rope = &s->f->model->rope[a->rope];
    const int64_t column = a->columns.ld - p->head - query_columns(p);
    struct ctw_op_norm norm = ctw_step_norm(s, CTW_AT_BLOCK_Q);
    const struct ctw_op_qkv turn = {.dtype = s->f->dtype,
                                    .n_tok = s->chunk->n_tok,
                                    .n_head = p->n_head,
                                    .n_kv = 1,
                                    .head = p->head,
                                    .qkv = s->f->wide,
                                    .columns = {.ld = a->columns.ld, .q = column},
                                    .pairing = rope->pairing,
                                    .rot_dim = rope->rot_dim,
                                    .positions = s->f->positions + s->chunk->tok0,
                                    .cos_sin = s->f->cos_sin[a->rope],
                                    .q = queries};
    norm.dim = p->head;
    norm.n_groups = p->n_head;
    norm.x = norm.y = element(s, s->f->wide, column);
    norm.ldx = norm.ldy = a->columns.ld;
    norm.x_dtype = norm.dtype = s->f->dtype;
    enum ctw_status st = ctw_norm(s->f->be, &norm, err);
    return st == CTW_OK ? ctw_qkv(s->f->be, &turn, err) : st;
}

/* The chunk's keys, and those of the pools that end in the chunk. */
static enum ctw_status make_keys(const struct ctw_step *s, const struct ctw_carried *carry,
                                 struct ctw_err *err)
{
    const struct ctw_attention *a = attention_of(s);
    const struct ctw_rope *rope = &s->f->model->rope[a->rope];
    const int64_t head = a->pools.head;
    const struct ctw_op_norm norm = ctw_step_norm(s, CTW_AT_BLOCK_K);
    const struct ctw_op_norm copy = {.kind = CTW_NORM_NONE,
                                     .dtype = s->f->dtype,
                                     .n_tok = s->chunk->n_tok,
                                     .dim = head,
                                     .x = element(s, s->f->wide, a->columns.ld - head),
                                     .ldx = a->columns.ld,
                                     .x_dtype = s->f->dtype,
                                     .y = carry->here,
                                     .ldy = 2 * head};
    const struct ctw_op_pool pool = {.dtype = s->f->dtype,
                                     .block = a->pools.pool,
                                     .dim = a->pools.head,
                                     .turning = rope->rot_dim,
                                     .turns_first = true,
                                     .x = carry->all,
                                     .ldx = 2 * head,
                                     .norm = norm.weight,
                                     .norm_dtype = norm.weight_dtype,
                                     .norm_eps = norm.eps,
                                     .norm_offset = norm.weight_offset,
                                     .pairing = rope->pairing,
                                     .cos_sin = s->f->cos_sin[a->rope],
                                     .seqs = s->chunk->seqs[carry->life],
                                     .n_seqs = s->chunk->n_seqs,
                                     .y = element(s, carry->all, head),
                                     .ldy = 2 * head};
    enum ctw_status st = ctw_norm(s->f->be, &copy, err);
    return st == CTW_OK ? ctw_pool(s->f->be, &pool, err) : st;
}

enum ctw_status ctw_pools_choose(const struct ctw_step *s, void *behind_queries,
                                 struct ctw_err *err)
{
    const struct ctw_carried keys = ctw_step_carry(s, CTW_CARRY_INDEX);
    const struct ctw_pool_choice *p = &attention_of(s)->pools;
    const struct ctw_op_index op = {.dtype = s->f->dtype,
                                    .n_head = p->n_head,
                                    .head = p->head,
                                    .chosen = p->chosen / p->pool,
                                    .q = behind_queries,
                                    .k = element(s, keys.all, p->head),
                                    .ld_k = 2 * (int64_t)p->head,
                                    .block = p->pool,
                                    .by_token = true,
                                    .seqs = s->chunk->seqs[keys.life],
                                    .n_seqs = s->chunk->n_seqs,
                                    .seen = ctw_step_carry(s, CTW_CARRY_CHOICE).here,
                                    .ld_seen = choice_words(s->f->plan.longest)};
    enum ctw_status st = make_queries(s, behind_queries, err);
    if (st == CTW_OK)
        st = make_keys(s, &keys, err);
    return st == CTW_OK ? ctw_index(s->f->be, &op, err) : st;
}

void ctw_pools_show(const struct ctw_step *s, struct ctw_op_attention *op)
{
    const struct ctw_pool_choice *p = &attention_of(s)->pools;
    op->seen = ctw_step_carry(s, CTW_CARRY_CHOICE).here;
    op->ld_seen = choice_words(s->f->plan.longest);
    op->seen_from = p->chosen + p->pool - 1;
}
