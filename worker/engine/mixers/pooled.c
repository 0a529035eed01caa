/*
 * Attention over pooled keys and a window. The carries are rows of tokens: keys, the inputs of
 * blocks' keys, and these keys, each in the row of its block's last token (kernels/pool.h). A block
 * that is not complete is computed with its last token, from the inputs' rows, so that no bits
 * depend on where sequences are cut, or shared.
 *
 * f->wide holds the queries' latent with the weights of the indexer's heads [chunk, ld]; queries,
 * the indexer's first, and in the end the products of output groups; and attention's output.
 */
#include "kernels/pool.h"
#include "kernels/turn.h"
#include "worker/engine/pass/step.h"

enum { CARRY_KEYS, CARRY_INPUTS, CARRY_POOLED, CARRY_CHOICE };

struct parts {
    char *latent, *queries, *out;
    int64_t ld; /* of latent */
};

static const struct ctw_pooled *pooled_of(const struct ctw_step *s)
{
    return &s->branch->pooled;
}

/* Does the layer choose blocks in sequences of up to `longest` tokens? */
static bool is_sparse(const struct ctw_pooled *x, int64_t longest)
{
    return x->index.chosen > 0 && longest / x->block > x->index.chosen;
}

/* Words of a query's choice: a bit for each block. */
static int64_t choice_words(const struct ctw_pooled *x, int64_t longest)
{
    return (longest / x->block + 31) / 32;
}

static int64_t index_columns(const struct ctw_pooled *x)
{
    return (int64_t)x->index.n_head * x->index.head;
}

static int64_t query_columns(const struct ctw_pooled *x)
{
    return ctw_max64(ctw_max64((int64_t)x->n_head * x->head, index_columns(x)),
                     x->o_groups * x->o_rank);
}

/* Columns of a row of inputs: x and gates of keys, then those of the indexer's. */
static int64_t key_inputs(const struct ctw_pooled *x)
{
    return 2 * ctw_pooled_columns(x, x->head);
}

static int64_t input_columns(const struct ctw_pooled *x, bool sparse)
{
    return key_inputs(x) + (sparse ? 2 * ctw_pooled_columns(x, x->index.head) : 0);
}

/* Columns of a row of pooled keys: a key, then the indexer's. */
static int64_t pooled_columns(const struct ctw_pooled *x, bool sparse)
{
    return x->head + (sparse ? x->index.head : 0);
}

static char *element(const struct ctw_step *s, void *base, int64_t i)
{
    return (char *)base + (size_t)i * ctw_dtype_bytes(s->f->dtype);
}

static struct parts parts_of(const struct ctw_step *s)
{
    const int64_t chunk = s->f->plan.chunk_tokens;
    const int64_t ld = ctw_plan_columns(ctw_step_product_of(s, CTW_P_POOLED_LATENT));
    const int64_t queries = ctw_wide_up(chunk * ld);
    const int64_t out = ctw_wide_up(queries + chunk * query_columns(pooled_of(s)));
    return (struct parts){.latent = s->f->wide,
                          .queries = element(s, s->f->wide, queries),
                          .out = element(s, s->f->wide, out),
                          .ld = ld};
}

/* The norm of n_heads heads of `dim` elements, in place. */
static enum ctw_status norm_heads(const struct ctw_step *s, int place, void *x, int n_heads,
                                  int64_t dim, int64_t ld, struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, place);
    op.dim = dim;
    op.n_groups = n_heads;
    op.x = op.y = x;
    op.ldx = op.ldy = ld;
    op.x_dtype = op.dtype = s->f->dtype;
    return ctw_norm(s->f->be, &op, err);
}

static enum ctw_status turn(const struct ctw_step *s, void *x, int n_head, int head, bool back,
                            struct ctw_err *err)
{
    const struct ctw_pooled *p = pooled_of(s);
    return ctw_turn(s->f->be,
                    &(struct ctw_op_turn){.dtype = s->f->dtype,
                                          .n_tok = s->chunk->n_tok,
                                          .n_head = n_head,
                                          .head = head,
                                          .turning = p->turning,
                                          .back = back,
                                          .pairing = s->f->model->rope[p->rope].pairing,
                                          .positions = s->f->positions + s->chunk->tok0,
                                          .cos_sin = s->f->cos_sin[p->rope],
                                          .x = x,
                                          .ldx = (int64_t)n_head * head},
                    err);
}

/* A product of what the branch reads. */
static enum ctw_status project(const struct ctw_step *s, int product, void *y, int64_t ldy,
                               struct ctw_err *err)
{
    return ctw_step_product(s, product, s->f->norm, s->f->model->hidden, y, ldy, err);
}

static enum ctw_status make_latent(const struct ctw_step *s, const struct parts *p,
                                   struct ctw_err *err)
{
    enum ctw_status st = project(s, CTW_P_POOLED_LATENT, p->latent, p->ld, err);
    return st == CTW_OK
               ? norm_heads(s, CTW_AT_POOLED_Q_A, p->latent, 1, pooled_of(s)->q_rank, p->ld, err)
               : st;
}

static enum ctw_status make_keys(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_pooled *x = pooled_of(s);
    void *keys = ctw_step_carry(s, CARRY_KEYS).here;
    enum ctw_status st = project(s, CTW_P_POOLED_KV, keys, x->head, err);
    if (st == CTW_OK)
        st = norm_heads(s, CTW_AT_POOLED_KV, keys, 1, x->head, x->head, err);
    return st == CTW_OK ? turn(s, keys, 1, x->head, false, err) : st;
}

/* ---- keys of blocks ----------------------------------------------------------------------- */

/* The keys of the blocks that end in the chunk: `dim` elements, from inputs in columns `from` on to
 * columns `to` on. */
static enum ctw_status pool(const struct ctw_step *s, bool sparse, int place, int bias, int64_t dim,
                            int64_t from, int64_t to, struct ctw_err *err)
{
    const struct ctw_pooled *x = pooled_of(s);
    const struct ctw_carried in = ctw_step_carry(s, CARRY_INPUTS);
    const struct ctw_op_norm norm = ctw_step_norm(s, place);
    const struct ctw_op_pool op = {
        .dtype = s->f->dtype,
        .block = (int)x->block,
        .overlaps = x->overlaps,
        .dim = (int)dim,
        .turning = x->turning,
        .x = element(s, in.all, from),
        .gate = element(s, in.all, from + ctw_pooled_columns(x, dim)),
        .ldx = input_columns(x, sparse),
        .bias = ctw_step_vector_data(s, bias),
        .bias_dtype = ctw_step_vector(s, bias)->dtype,
        .norm = norm.weight,
        .norm_dtype = norm.weight_dtype,
        .norm_eps = norm.eps,
        .pairing = s->f->model->rope[x->rope].pairing,
        .cos_sin = s->f->cos_sin[x->rope],
        .seqs = s->chunk->seqs[in.life],
        .n_seqs = s->chunk->n_seqs,
        .y = element(s, ctw_step_carry(s, CARRY_POOLED).all, to),
        .ldy = pooled_columns(x, sparse),
    };
    return ctw_pool(s->f->be, &op, err);
}

static enum ctw_status pool_keys(const struct ctw_step *s, bool sparse, struct ctw_err *err)
{
    const struct ctw_pooled *x = pooled_of(s);
    char *inputs = ctw_step_carry(s, CARRY_INPUTS).here;
    const int64_t ld = input_columns(x, sparse), own = key_inputs(x);
    enum ctw_status st = project(s, CTW_P_POOLED_X, inputs, ld, err);
    if (st == CTW_OK && sparse)
        st = project(s, CTW_P_POOLED_INDEX_X, element(s, inputs, own), ld, err);
    if (st == CTW_OK)
        st = pool(s, sparse, CTW_AT_POOLED_X, CTW_V_POOLED_BIAS, x->head, 0, 0, err);
    return st == CTW_OK && sparse ? pool(s, sparse, CTW_AT_POOLED_INDEX_X, CTW_V_POOLED_INDEX_BIAS,
                                         x->index.head, own, x->head, err)
                                  : st;
}

/* Which blocks the chunk's queries see. */
static enum ctw_status choose_blocks(const struct ctw_step *s, const struct parts *p,
                                     struct ctw_err *err)
{
    const struct ctw_pooled *x = pooled_of(s);
    const struct ctw_carried keys = ctw_step_carry(s, CARRY_POOLED);
    const int64_t n = index_columns(x);
    const struct ctw_op_index op = {
        .dtype = s->f->dtype,
        .n_head = x->index.n_head,
        .head = x->index.head,
        .chosen = x->index.chosen,
        .q = p->queries,
        .k = element(s, keys.all, x->head),
        .ld_k = pooled_columns(x, true),
        .block = x->block,
        .weights = element(s, p->latent, x->q_rank),
        .ld_weights = p->ld,
        .seqs = s->chunk->seqs[keys.life],
        .n_seqs = s->chunk->n_seqs,
        .seen = ctw_step_carry(s, CARRY_CHOICE).here,
        .ld_seen = choice_words(x, s->f->plan.longest),
    };
    enum ctw_status st =
        ctw_step_product(s, CTW_P_POOLED_INDEX_Q, p->latent, p->ld, p->queries, n, err);
    if (st == CTW_OK)
        st = turn(s, p->queries, x->index.n_head, x->index.head, false, err);
    return st == CTW_OK ? ctw_index(s->f->be, &op, err) : st;
}

/* ---- attention ---------------------------------------------------------------------------- */

static enum ctw_status make_queries(const struct ctw_step *s, const struct parts *p,
                                    struct ctw_err *err)
{
    const struct ctw_pooled *x = pooled_of(s);
    const int64_t n = (int64_t)x->n_head * x->head;
    enum ctw_status st =
        ctw_step_product(s, CTW_P_POOLED_Q_B, p->latent, p->ld, p->queries, n, err);
    if (st == CTW_OK)
        st = norm_heads(s, CTW_AT_POOLED_Q, p->queries, x->n_head, x->head, n, err);
    return st == CTW_OK ? turn(s, p->queries, x->n_head, x->head, false, err) : st;
}

/* Over the window alone. */
static enum ctw_status attend_near(const struct ctw_step *s, const struct parts *p,
                                   struct ctw_err *err)
{
    const struct ctw_pooled *x = pooled_of(s);
    const struct ctw_carried keys = ctw_step_carry(s, CARRY_KEYS);
    return ctw_attention(
        s->f->be,
        &(struct ctw_op_attention){.dtype = s->f->dtype,
                                   .n_head = x->n_head,
                                   .n_kv = 1,
                                   .head = x->head,
                                   .scale = x->scale,
                                   .window = x->window,
                                   .sinks = ctw_step_vector_data(s, CTW_V_POOLED_SINKS),
                                   .sinks_dtype = ctw_step_vector(s, CTW_V_POOLED_SINKS)->dtype,
                                   .q = p->queries,
                                   .k = keys.all,
                                   .v = keys.all,
                                   .out = p->out,
                                   .seqs = s->chunk->seqs[keys.life],
                                   .n_seqs = s->chunk->n_seqs},
        err);
}

static enum ctw_status attend(const struct ctw_step *s, const struct parts *p, bool sparse,
                              struct ctw_err *err)
{
    const struct ctw_pooled *x = pooled_of(s);
    const struct ctw_carried keys = ctw_step_carry(s, CARRY_KEYS);
    if (x->block == 0)
        return attend_near(s, p, err);
    const struct ctw_op_pool_attention op = {
        .dtype = s->f->dtype,
        .n_head = x->n_head,
        .head = x->head,
        .scale = x->scale,
        .window = x->window,
        .block = x->block,
        .q = p->queries,
        .k = keys.all,
        .pooled = ctw_step_carry(s, CARRY_POOLED).all,
        .ld_pooled = pooled_columns(x, sparse),
        .seen = sparse ? ctw_step_carry(s, CARRY_CHOICE).here : NULL,
        .ld_seen = choice_words(x, s->f->plan.longest),
        .seen_from = x->index.chosen,
        .sinks = ctw_step_vector_data(s, CTW_V_POOLED_SINKS),
        .sinks_dtype = ctw_step_vector(s, CTW_V_POOLED_SINKS)->dtype,
        .seqs = s->chunk->seqs[keys.life],
        .n_seqs = s->chunk->n_seqs,
        .out = p->out,
    };
    return ctw_pool_attention(s->f->be, &op, err);
}

/* The groups' products, where the queries were, and the product of them. */
static enum ctw_status leave(const struct ctw_step *s, const struct parts *p, struct ctw_err *err)
{
    const struct ctw_pooled *x = pooled_of(s);
    const int64_t n = (int64_t)x->n_head * x->head, low = x->o_groups * x->o_rank;
    enum ctw_status st = turn(s, p->out, x->n_head, x->head, true, err);
    for (int g = 0; g < x->o_groups && st == CTW_OK; g++)
        st = ctw_step_product(s, CTW_P_POOLED_O_A + g, element(s, p->out, n / x->o_groups * g), n,
                              element(s, p->queries, g * x->o_rank), low, err);
    return st == CTW_OK ? ctw_step_join(s, CTW_P_POOLED_O_B, p->queries, low, err) : st;
}

static enum ctw_status run(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_pooled *x = pooled_of(s);
    const struct parts p = parts_of(s);
    const bool sparse = is_sparse(x, s->f->plan.longest);
    enum ctw_status st = make_latent(s, &p, err);
    if (st == CTW_OK)
        st = make_keys(s, err);
    if (st == CTW_OK && x->block > 0)
        st = pool_keys(s, sparse, err);
    if (st == CTW_OK && sparse)
        st = choose_blocks(s, &p, err);
    if (st == CTW_OK)
        st = make_queries(s, &p, err);
    if (st == CTW_OK)
        st = attend(s, &p, sparse, err);
    return st == CTW_OK ? leave(s, &p, err) : st;
}

/* ---- memory and time ---------------------------------------------------------------------- */

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    const struct ctw_pooled *x = &l->branch[branch].pooled;
    const int64_t latent =
        ctw_plan_columns(&l->product[ctw_product_at(branch, CTW_P_POOLED_LATENT)]);
    w->wide = ctw_max64(w->wide, latent + query_columns(x) + (int64_t)x->n_head * x->head);
    w->inner_k =
        ctw_max64(ctw_max64(w->inner_k, x->q_rank),
                  ctw_max64((int64_t)x->n_head * x->head / x->o_groups, x->o_groups * x->o_rank));
    w->head = ctw_max64(w->head, x->head);
    w->group = ctw_max64(w->group, x->n_head);
    w->chooses |= is_sparse(x, longest);
}

static void carry(const struct ctw_model *m, const struct ctw_branch *b, int64_t longest,
                  enum ctw_dtype dtype, struct ctw_carry_rule rules[CTW_BRANCH_CARRIES])
{
    const struct ctw_pooled *x = &b->pooled;
    const size_t es = ctw_dtype_bytes(dtype);
    const bool sparse = is_sparse(x, longest);
    (void)m;
    rules[CARRY_KEYS] =
        (struct ctw_carry_rule){.bytes = (size_t)x->head * es, .life = CTW_FOR_LAYER};
    if (x->block == 0)
        return;
    rules[CARRY_INPUTS] = (struct ctw_carry_rule){.bytes = (size_t)input_columns(x, sparse) * es,
                                                  .life = CTW_FOR_LAYER};
    rules[CARRY_POOLED] = (struct ctw_carry_rule){.bytes = (size_t)pooled_columns(x, sparse) * es,
                                                  .life = CTW_FOR_LAYER};
    if (sparse)
        rules[CARRY_CHOICE] = (struct ctw_carry_rule){
            .bytes = (size_t)choice_words(x, longest) * sizeof(uint32_t), .life = CTW_FOR_CHUNK};
}

/* The window's keys, and the blocks' that are chosen. */
static double key_flops(const struct ctw_branch *b, int64_t n_keys)
{
    const struct ctw_pooled *x = &b->pooled;
    int64_t blocks = x->block > 0 ? n_keys / x->block : 0;
    if (x->index.chosen > 0)
        blocks = ctw_min64(blocks, x->index.chosen);
    return 4.0 * x->n_head * x->head * (double)(ctw_min64(n_keys, x->window) + blocks);
}

const struct ctw_kind_ops ctw_ops_pooled = {
    .widen = widen, .carry = carry, .joins = CTW_P_POOLED_O_B, .key_flops = key_flops, .run = run};
