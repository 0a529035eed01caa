#include "worker/engine/plan.h"

#include <math.h>
#include <stdio.h>

#include "base/text.h"

enum { CHUNK_TOKENS_MIN = 64, PASS_TOKENS_MIN = 8192 };

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The largest widths over all layers, in elements. */
struct widths {
    int64_t norm, k, v, wide;  /* wide: see ctw_plan_queries_at() */
    int64_t kept;              /* keys of a layer that other layers use */
    int64_t inner_k;           /* the largest inner dimension of a product */
    int64_t rot;               /* of all tables of positions together */
    int64_t n_experts, chosen; /* of a mixture */
    int64_t expert_inner;
    bool sum; /* some layer has an array for its experts' sum */
};

/* In elements. What is in `wide` begins at a multiple of this. */
enum { WIDE_ALIGN = 128, PARTS_OF_WIDE = 2 /* that begin so, beside the first */ };

int64_t ctw_plan_long_from(const struct ctw_model *model)
{
    for (int i = 0; i < model->n_ropes; i++)
        if (model->rope[i].long_inv_freq != NULL)
            return model->rope[i].long_from;
    return 0;
}

int64_t ctw_plan_rope_rows(const struct ctw_model *model, int64_t longest)
{
    int64_t long_from = ctw_plan_long_from(model);
    return long_from > 0 && longest > long_from ? 2 * longest : longest;
}

int64_t ctw_plan_qkv_columns(const struct ctw_layer *l)
{
    int64_t n = 0;
    for (int i = 0; i < l->product[CTW_SLOT_QKV].n_shards; i++)
        n += l->product[CTW_SLOT_QKV].shard[i].n;
    return n;
}

/* Columns of the product's place, where attention's output follows while it reads the queries,
 * which may be wider: of few key heads, with value heads larger than the others. Latent attention
 * has its output elsewhere. */
static int64_t product_columns(const struct ctw_layer *l)
{
    int64_t out = l->kv_rank == 0 ? (int64_t)l->n_head * l->head_v : 0;
    return max64(ctw_plan_qkv_columns(l), out);
}

/* Columns of the indexer's queries. */
static int64_t indexer_columns(const struct ctw_layer *l)
{
    return (int64_t)l->index.n_head * l->index.head;
}

/* Columns of the queries' place, which the indexer uses first. */
static int64_t queries_columns(const struct ctw_layer *l)
{
    return max64((int64_t)l->n_head * l->head, indexer_columns(l));
}

bool ctw_plan_is_sparse(const struct ctw_layer *l, int64_t longest)
{
    return l->index.chosen > 0 && longest > l->index.chosen;
}

/* Columns of the product of latent attention's keys and values. */
static int64_t expanded_columns(const struct ctw_layer *l)
{
    return l->kv_rank == 0
               ? 0
               : max64((int64_t)l->n_head * (l->head - l->turning + l->head_v), indexer_columns(l));
}

/* Elements of `wide` per token. */
static int64_t wide_of(const struct ctw_layer *l)
{
    return max64(product_columns(l) + queries_columns(l) + expanded_columns(l),
                 max64(l->inner, 2 * l->mixture.inner));
}

static int64_t round_up(int64_t elements)
{
    return (elements + WIDE_ALIGN - 1) / WIDE_ALIGN * WIDE_ALIGN;
}

int64_t ctw_plan_queries_at(const struct ctw_layer *l, int64_t chunk_tokens)
{
    return round_up(chunk_tokens * product_columns(l));
}

int64_t ctw_plan_expanded_at(const struct ctw_layer *l, int64_t chunk_tokens)
{
    int64_t queries = chunk_tokens * queries_columns(l);
    return round_up(ctw_plan_queries_at(l, chunk_tokens) + queries);
}

static struct widths model_widths(const struct ctw_model *model)
{
    struct widths w = {.norm = max64(model->hidden, model->embed_dim)};
    w.inner_k = max64(w.norm, model->input_dim);
    w.wide = max64(model->input_dim, model->hidden);
    for (int i = 1; i <= model->n_decoders; i++) {
        const struct ctw_layer *l = &model->layers[i];
        w.k = max64(w.k, (int64_t)l->n_kv * l->head);
        w.v = max64(w.v, (int64_t)l->n_kv * l->head_v);
        w.kept = l->keeps_kv >= 0 ? max64(w.kept, (int64_t)l->n_kv * l->head) : w.kept;
        w.wide = max64(w.wide, wide_of(l));
        w.inner_k = max64(w.inner_k, max64((int64_t)l->n_head * l->head_v, l->inner));
        w.inner_k = max64(w.inner_k, max64(l->q_rank, l->kv_rank));
        w.inner_k = max64(w.inner_k, l->mixture.inner);
        w.n_experts = max64(w.n_experts, l->mixture.route.n_experts);
        w.chosen = max64(w.chosen, l->mixture.route.chosen);
        w.expert_inner = max64(w.expert_inner, l->mixture.inner);
        w.sum |= ctw_layer_has_sum(l);
    }
    for (int i = 0; i < model->n_ropes; i++)
        w.rot += model->rope[i].rot_dim;
    w.rot += model->q_factor_beta != 0;
    return w;
}

int ctw_plan_shards(const struct ctw_model *model, const struct ctw_product *p,
                    const struct ctw_matrix *matrices, struct ctw_shard shards[CTW_MAX_SHARDS])
{
    for (int i = 0; i < p->n_shards; i++) {
        const struct ctw_matrix *m = &matrices[p->shard[i].matrix];
        shards[i] = (struct ctw_shard){
            .weight = &m->weight,
            .n = p->shard[i].n,
            .input = m->input.codes != CTW_CODES_NONE ? &m->input : NULL,
            .rotate_in = m->rotate_in != 0 ? &model->rotations[m->rotate_in - 1] : NULL,
            .rotate_out = m->rotate_out != 0 ? &model->rotations[m->rotate_out - 1] : NULL};
    }
    return p->n_shards;
}

/* Elements per row of what a product of these matrices has of its own. */
static int64_t input_elems(const struct ctw_model *model, const struct ctw_product *p,
                           const struct ctw_matrix *matrices, enum ctw_epilogue epilogue)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    const struct ctw_op_linear op = {.shards = shards,
                                     .n_shards = ctw_plan_shards(model, p, matrices, shards),
                                     .epilogue = epilogue};
    return ctw_input_elems(&op);
}

/* Counts a product of experts: each of their slots may hold one. */
static void reserve_expert(struct ctw_reserve *r, const struct ctw_model *model,
                           const struct ctw_mixture *x, int64_t k, bool down)
{
    const struct ctw_product *p = down ? &x->down : &x->up;
    int64_t n = 0;
    for (int e = 0; e < x->route.n_experts; e++)
        r->input_elems = max64(r->input_elems,
                               input_elems(model, p, &x->matrix[(int64_t)e * CTW_N_EXPERT_MATRICES],
                                           down       ? CTW_EPI_SCATTER
                                           : x->gated ? CTW_EPI_GATE
                                                      : CTW_EPI_STORE));
    for (int i = 0; i < p->n_shards; i++)
        n += p->shard[i].n;
    r->max_n = max64(r->max_n, n);
    for (int64_t i = 0; i < CTW_EXPERTS_IN_FLIGHT; i++) {
        int64_t *elems = &r->slot_elems[ctw_expert_slot(i, down)];
        *elems = max64(*elems, n * k);
    }
}

struct ctw_reserve ctw_plan_reserve(const struct ctw_model *model, enum ctw_dtype dtype,
                                    const struct ctw_plan *plan)
{
    struct ctw_reserve r = {.dtype = dtype,
                            .n_tok = plan->chunk_tokens,
                            .n_rows = max64(plan->chunk_tokens, plan->expert_rows),
                            .max_k = model_widths(model).inner_k,
                            .n_seqs = plan->chunk_tokens,
                            .n_vocab = model->vocab,
                            .head_k = model->embed_dim};
    const struct widths w = model_widths(model);
    r.n_experts = (int)w.n_experts;
    r.chosen = (int)w.chosen;
    r.n_grouped = w.n_experts > 0 ? plan->pass_tokens : 0;
    r.index_keys = plan->seen_words * 32;
    for (int i = 0; i < model->n_rotations; i++)
        r.rotation = max64(r.rotation, model->rotations[i].size);
    for (int i = 0; i < model->n_layers; i++) {
        const struct ctw_layer *l = &model->layers[i];
        if (l->n_kv > 0) {
            r.max_head = (int)max64(r.max_head, max64(l->head, l->head_v));
            r.max_group = l->n_head / l->n_kv > r.max_group ? l->n_head / l->n_kv : r.max_group;
        }
        for (int s = 0; s < CTW_SLOT_EXPERTS; s++) {
            const struct ctw_product *p = &l->product[s];
            int64_t n = 0, elems = 0;
            for (int j = 0; j < p->n_shards; j++) {
                n += p->shard[j].n;
                elems += p->shard[j].n * l->matrix[p->shard[j].matrix].weight.k;
            }
            r.max_n = max64(r.max_n, n);
            r.slot_elems[s] = max64(r.slot_elems[s], elems);
            bool gate = s == CTW_SLOT_GATE_UP && l->gated,
                 adds = s == CTW_SLOT_O || s == CTW_SLOT_DOWN;
            r.input_elems = max64(r.input_elems, input_elems(model, p, l->matrix,
                                                             gate   ? CTW_EPI_GATE
                                                             : adds ? CTW_EPI_ADD
                                                                    : CTW_EPI_STORE));
        }
        if (l->matrix[CTW_M_HEAD].input.codes != CTW_CODES_NONE ||
            l->matrix[CTW_M_HEAD].rotate_in != 0)
            r.input_elems = max64(r.input_elems, model->embed_dim);
        reserve_expert(&r, model, &l->mixture, model->hidden, false);
        reserve_expert(&r, model, &l->mixture, l->mixture.inner, true);
    }
    return r;
}

/* Rows of an expert that are computed together: on a GPU as many as `wide` holds the inner
 * activations of, twice. On the CPU a chunk, which stays in its cache. */
static int64_t expert_rows(const struct ctw_plan *plan, const struct ctw_plan_request *r,
                           const struct widths *w)
{
    enum { TILE = 256 };
    if (ctw_backend_traits(r->backend)->host_memory || w->n_experts == 0)
        return plan->chunk_tokens;
    int64_t most = plan->chunk_tokens * w->wide / (2 * w->expert_inner);
    return min64(max64(most - most % TILE, plan->chunk_tokens), plan->pass_tokens);
}

static void add_up_sparse(struct ctw_plan *plan, const struct ctw_model *model, size_t es)
{
    size_t head = 0;
    plan->seen_by_pass = false;
    plan->seen_words = 0;
    for (int i = 1; i <= model->n_decoders; i++) {
        const struct ctw_layer *l = &model->layers[i];
        if (!ctw_plan_is_sparse(l, plan->longest))
            continue;
        head = (size_t)l->index.head > head ? (size_t)l->index.head : head;
        plan->seen_words = (plan->longest + 31) / 32;
        plan->seen_by_pass = plan->seen_by_pass || l->index.shared;
    }
    int64_t rows = plan->seen_by_pass ? plan->pass_tokens : plan->chunk_tokens;
    plan->index_keys = (size_t)plan->kv_tokens * head * es;
    plan->seen = (size_t)(rows * plan->seen_words) * sizeof(uint32_t);
}

/* Opening the model checked the ranges of dimensions, and token counts are below 2^32, so no
 * product here reaches 2^63. */
static void add_up(struct ctw_plan *plan, const struct ctw_plan_request *r, struct widths w)
{
    size_t es = ctw_dtype_bytes(r->dtype);
    size_t chunk = (size_t)plan->chunk_tokens, pass = (size_t)plan->pass_tokens;
    plan->kv_tokens = r->longest + plan->chunk_tokens;
    plan->expert_rows = expert_rows(plan, r, &w);
    plan->residual = pass * (size_t)r->model->hidden * ctw_dtype_bytes(CTW_RESIDUAL);
    plan->wide = (chunk * (size_t)w.wide + PARTS_OF_WIDE * WIDE_ALIGN) * es;
    plan->activations = chunk * (size_t)w.norm * es + plan->wide;
    plan->inputs = pass * (size_t)(r->model->n_decoders * r->model->input_dim) * es;
    plan->kept = 2 * pass * (size_t)w.kept * (size_t)r->model->n_kept * es;
    plan->keys = (size_t)plan->kv_tokens * (size_t)w.k * es;
    plan->values = (size_t)plan->kv_tokens * (size_t)w.v * es;
    add_up_sparse(plan, r->model, es);
    if (w.n_experts > 0) {
        plan->mixed = pass * (size_t)r->model->hidden * es;
        plan->sum = w.sum ? pass * (size_t)r->model->hidden * sizeof(float) : 0;
        plan->logits = chunk * (size_t)w.n_experts * sizeof(float);
        plan->factor = chunk * sizeof(float);
        plan->choices = pass * (size_t)w.chosen * sizeof(float);
        plan->starts = ((size_t)w.n_experts + 1) * sizeof(int32_t);
    }
    /* tokens, positions, bad marks; row, target, result per scored position; RoPE, ALiBi */
    plan->tables = pass * (2 * sizeof(int32_t) + sizeof(int16_t)) +
                   pass * (sizeof(int64_t) + sizeof(int32_t) + sizeof(struct ctw_head_result)) +
                   (size_t)ctw_plan_rope_rows(r->model, r->longest) * (size_t)w.rot * sizeof(float);
    if (r->model->alibi != NULL)
        plan->tables += (size_t)r->model->layers[1].n_head * sizeof(float);
    for (int i = 0; i < r->model->n_rotations; i++) {
        const struct ctw_rotation *turn = &r->model->rotations[i];
        size_t size = (size_t)turn->size;
        plan->tables += (turn->matrix != NULL  ? size * size
                         : turn->signs != NULL ? size
                                               : 0) *
                        sizeof(float);
    }
    const struct ctw_reserve reserve = ctw_plan_reserve(r->model, r->dtype, plan);
    plan->scratch = ctw_backend_scratch_bytes(r->backend, &reserve);
    plan->total = plan->residual + plan->activations + plan->inputs + plan->keys + plan->values +
                  plan->kept + plan->mixed + plan->sum + plan->logits + plan->factor +
                  4 * plan->choices + plan->starts + plan->index_keys + plan->seen + plan->tables +
                  plan->scratch;
}

/* Half a chunk, rounded down to whole tiles of rows, in which products are computed. */
static int64_t smaller_chunk(int64_t chunk)
{
    enum { TILE = 256 };
    chunk = max64(chunk / 2, CHUNK_TOKENS_MIN);
    return chunk > TILE ? chunk - chunk % TILE : chunk;
}

/* Tokens from which on a pass is long enough: twice as many if an expert then gets fewer rows than
 * a chunk has. */
static int64_t enough_tokens(const struct ctw_backend_traits *traits, const struct widths *w)
{
    if (w->n_experts == 0)
        return traits->pass_tokens;
    int64_t pass = traits->mixture_pass_tokens, rows = pass * w->chosen / w->n_experts;
    return rows < traits->chunk_tokens ? 2 * pass : pass;
}

/* A mixture's pass may be up to an eighth longer if that saves a short one, which would decode all
 * experts for few tokens. */
static int64_t stretch(int64_t pass, int64_t total, int64_t longest)
{
    int64_t n = total / pass, share = n > 0 ? total / n + longest : 0;
    return n <= 8 && share > pass && share <= pass + pass / 8 ? share : pass;
}

/* The largest plan within the limit. If no plan fits: false, and the smallest plan. */
static bool find_plan(struct ctw_plan *out, const struct ctw_plan_request *r)
{
    struct widths w = model_widths(r->model);
    const struct ctw_backend_traits *traits = ctw_backend_traits(r->backend);
    struct ctw_plan plan = {.longest = r->longest};
    int64_t pass = r->pass_tokens;
    /* A model may consist of an embedding and a head. */
    double flops = fmax(ctw_plan_layer_flops(r->model), traits->pass_flops / CTW_PLAN_PASS_MOST);
    const int64_t enough = enough_tokens(traits, &w);
    if (pass == 0)
        pass = max64(min64(PASS_TOKENS_MIN, enough),
                     min64(enough, (int64_t)(traits->pass_flops / flops)));
    const int64_t usual = pass;
    if (r->pass_tokens == 0)
        pass = max64(pass, r->hide_tokens);
    if (r->pass_tokens == 0 && w.n_experts > 0)
        pass = stretch(pass, r->total, r->longest);
    pass = max64(min64(pass, r->total), r->longest);
    int64_t chunk = r->chunk_tokens != 0 ? r->chunk_tokens : traits->chunk_tokens;
    for (;;) {
        plan.pass_tokens = pass;
        plan.chunk_tokens = min64(chunk, pass);
        add_up(&plan, r, w);
        if (plan.total <= r->memory_limit)
            break;
        /* First reduce the tokens in a pass, then the chunks. */
        if (pass > max64(usual, max64(r->longest, chunk)) && r->pass_tokens == 0)
            pass = max64(max64(usual, r->longest), pass - (pass + 7) / 8);
        else if (pass > max64(r->longest, chunk) && r->pass_tokens == 0)
            pass = max64(max64(r->longest, chunk), pass / 2);
        else if (chunk > CHUNK_TOKENS_MIN && r->chunk_tokens == 0)
            chunk = smaller_chunk(chunk);
        else
            break;
    }
    *out = plan;
    return plan.total <= r->memory_limit;
}

/* The longest sequence that fits alone in a pass; 0: none. */
static int64_t longest_that_fits(const struct ctw_plan_request *r)
{
    struct ctw_plan plan;
    int64_t fits = 0, too_long = r->longest;
    while (too_long - fits > 1) {
        struct ctw_plan_request shorter = *r;
        shorter.longest = shorter.total = fits + (too_long - fits) / 2;
        if (find_plan(&plan, &shorter))
            fits = shorter.longest;
        else
            too_long = shorter.longest;
    }
    return fits;
}

int64_t ctw_plan_longest(const struct ctw_plan_request *request)
{
    struct ctw_plan plan;
    struct ctw_plan_request alone = *request;
    alone.total = alone.longest;
    return find_plan(&plan, &alone) ? alone.longest : longest_that_fits(&alone);
}

enum ctw_status ctw_plan_make(struct ctw_plan *out, const struct ctw_plan_request *r,
                              struct ctw_err *err)
{
    char need[32], have[32], enough[64] = "";
    if (find_plan(out, r))
        return CTW_OK;
    const char *smaller = r->pass_tokens != 0    ? " or lower --pass-tokens"
                          : r->chunk_tokens != 0 ? " or lower --chunk-tokens"
                                                 : "";
    int64_t fits = smaller[0] == '\0' ? longest_that_fits(r) : 0;
    if (fits > 0) {
        snprintf(enough, sizeof(enough), ", enough for %lld tokens", (long long)fits);
        smaller = " or lower --max-length";
    }
    ctw_format_bytes(need, sizeof(need), (double)out->total);
    ctw_format_bytes(have, sizeof(have), (double)r->memory_limit);
    if (r->limit_is_free)
        return ctw_fail(err, CTW_ENOMEM,
                        "a sequence of %lld tokens needs %s beyond the weights, but the memory "
                        "that is free leaves %s%s: end other programs or raise the limit of the "
                        "container or control group%s",
                        (long long)r->longest, need, have, enough, smaller);
    return ctw_fail(err, CTW_ENOMEM,
                    "a sequence of %lld tokens needs %s beyond the weights, but the memory limit "
                    "is %s%s: raise "
                    "--memory-limit%s%s",
                    (long long)r->longest, need, have, enough,
                    ctw_backend_traits(r->backend)->host_memory ? ""
                    : smaller[0] == '\0'                        ? " or use another GPU"
                                                                : ", use another GPU",
                    smaller);
}
