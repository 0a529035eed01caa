/*
 * The queries and the key of the choice are columns of the product, behind q, k and v. The carry
 * keeps the keys of the choice, and for the chunk the choice: for each key head a bit for each key.
 */
#include "worker/engine/mixers/block_choice.h"

#include "kernels/blocks.h"

static const struct ctw_attention *attention_of(const struct ctw_step *s)
{
    return &s->branch->attention;
}

/* Words of a key head's choice. */
static int64_t choice_words(int64_t longest)
{
    return (longest + 31) / 32;
}

bool ctw_blocks_are_chosen(const struct ctw_attention *a, int64_t longest)
{
    const struct ctw_block_choice *b = &a->choice;
    return b->block > 0 && ctw_blocks_of(longest, b->block) > b->chosen;
}

/* Queries, and scores in fp32. */
int64_t ctw_blocks_wide(const struct ctw_attention *a, int64_t longest)
{
    enum { ELEMENTS_OF_FLOAT = 2 }; /* 16-bit ones */
    if (!ctw_blocks_are_chosen(a, longest))
        return 0;
    return a->n_kv * (a->choice.head + ELEMENTS_OF_FLOAT * ctw_blocks_of(longest, a->choice.block));
}

void ctw_blocks_carry(const struct ctw_attention *a, int64_t longest, enum ctw_dtype dtype,
                      struct ctw_carry_rule rules[CTW_BRANCH_CARRIES])
{
    size_t key = (size_t)a->choice.head * ctw_dtype_bytes(dtype);
    size_t choice = (size_t)(a->n_kv * choice_words(longest)) * sizeof(uint32_t);
    rules[CTW_CARRY_INDEX] = (struct ctw_carry_rule){.bytes = key, .life = CTW_FOR_LAYER};
    rules[CTW_CARRY_CHOICE] = (struct ctw_carry_rule){.bytes = choice, .life = CTW_FOR_CHUNK};
}

/* n_heads heads of the product's columns from `column` on, in place. */
static enum ctw_status norm_heads(const struct ctw_step *s, int place, int64_t column, int n_heads,
                                  struct ctw_err *err)
{
    const struct ctw_attention *a = attention_of(s);
    struct ctw_op_norm op = ctw_step_norm(s, place);
    op.dim = a->choice.head;
    op.n_groups = n_heads;
    op.x = op.y = (char *)s->f->wide + (size_t)column * ctw_dtype_bytes(s->f->dtype);
    op.ldx = op.ldy = a->columns.ld;
    op.x_dtype = op.dtype = s->f->dtype;
    return ctw_norm(s->f->be, &op, err);
}

/* The chunk's queries [n_tok, n_kv * head] and keys. */
static enum ctw_status split(const struct ctw_step *s, void *queries, void *keys,
                             struct ctw_err *err)
{
    const struct ctw_attention *a = attention_of(s);
    const struct ctw_rope *rope = &s->f->model->rope[a->rope];
    const int64_t head = a->choice.head, k = a->columns.ld - head, q = k - a->n_kv * head;
    const struct ctw_op_qkv op = {
        .dtype = s->f->dtype,
        .n_tok = s->chunk->n_tok,
        .n_head = a->n_kv,
        .n_kv = 1,
        .head = a->choice.head,
        .qkv = s->f->wide,
        .columns = {.ld = a->columns.ld, .q = q, .k = k, .v = k, .q_step = a->n_kv * head},
        .pairing = rope->pairing,
        .rot_dim = rope->rot_dim,
        .positions = s->f->positions + s->chunk->tok0,
        .cos_sin = s->f->cos_sin[a->rope],
        .q = queries,
        .k = keys,
    };
    enum ctw_status st = norm_heads(s, CTW_AT_BLOCK_Q, q, a->n_kv, err);
    if (st == CTW_OK)
        st = norm_heads(s, CTW_AT_BLOCK_K, k, 1, err);
    return st == CTW_OK ? ctw_qkv(s->f->be, &op, err) : st;
}

enum ctw_status ctw_blocks_choose(const struct ctw_step *s, void *behind_queries,
                                  struct ctw_err *err)
{
    const struct ctw_carried keys = ctw_step_carry(s, CTW_CARRY_INDEX);
    const struct ctw_attention *a = attention_of(s);
    const struct ctw_block_choice *b = &a->choice;
    const int64_t words = choice_words(s->f->plan.longest);
    const int64_t queries = ctw_wide_up(s->f->plan.chunk_tokens * a->n_kv * b->head);
    const struct ctw_op_blocks op = {
        .dtype = s->f->dtype,
        .n_head = a->n_kv,
        .head = b->head,
        .block = b->block,
        .chosen = b->chosen,
        .local = b->local,
        .q = behind_queries,
        .k = keys.all,
        .seqs = s->chunk->seqs[keys.life],
        .n_seqs = s->chunk->n_seqs,
        .scores = (float *)(void *)((char *)behind_queries +
                                    (size_t)queries * ctw_dtype_bytes(s->f->dtype)),
        .ld_scores = ctw_blocks_of(s->f->plan.longest, b->block),
        .seen = ctw_step_carry(s, CTW_CARRY_CHOICE).here,
        .ld_seen = a->n_kv * words,
        .seen_head = words,
    };
    enum ctw_status st = split(s, behind_queries, keys.here, err);
    return st == CTW_OK ? ctw_blocks(s->f->be, &op, err) : st;
}

void ctw_blocks_show(const struct ctw_step *s, struct ctw_op_attention *op)
{
    const struct ctw_attention *a = attention_of(s);
    op->seen = ctw_step_carry(s, CTW_CARRY_CHOICE).here;
    op->seen_head = choice_words(s->f->plan.longest);
    op->ld_seen = a->n_kv * op->seen_head;
    op->seen_from = a->choice.chosen * a->choice.block;
}
