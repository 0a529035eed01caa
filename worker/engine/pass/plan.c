#include "worker/engine/pass/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "worker/engine/pass/before.h"
#include "worker/engine/pass/kinds.h"
#include "worker/engine/pass/layout.h"

enum { CHUNK_TOKENS_MIN = 64, PASS_TOKENS_MIN = 8192 };

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

int64_t ctw_plan_columns(const struct ctw_product *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->n_shards; i++)
        n += p->shard[i].n;
    return n;
}

static struct ctw_widths model_widths(const struct ctw_model *model, int64_t longest)
{
    struct ctw_widths w = {.norm = model->embed_dim};
    ctw_residual_of(&model->layers[0])->widen(&w, model);
    w.inner_k = ctw_max64(w.norm, model->input_dim);
    w.wide = ctw_max64(w.wide, ctw_max64(model->input_dim, model->hidden));
    if (model->wide_head) /* its input */
        w.wide = ctw_max64(w.wide, 2 * model->embed_dim);
    for (int i = 1; i <= model->n_decoders; i++) {
        const struct ctw_layer *l = &model->layers[i];
        for (int b = 0; b < l->n_branches; b++) {
            if (ctw_ops_of(&l->branch[b])->widen != NULL)
                ctw_ops_of(&l->branch[b])->widen(&w, l, b, longest);
            if (l->branch[b].conv_taps > 0) /* its output, which may be fp32 */
                w.wide = ctw_max64(w.wide, 2 * model->hidden);
        }
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
            .output = m->output.codes != CTW_CODES_NONE ? &m->output : NULL,
            .rotate_in = m->rotate_in != 0 ? &model->rotations[m->rotate_in - 1] : NULL,
            .rotate_out = m->rotate_out != 0 ? &model->rotations[m->rotate_out - 1] : NULL};
    }
    return p->n_shards;
}

/* Elements per row of a product's own scratch memory. */
static int64_t input_elems(const struct ctw_model *model, const struct ctw_product *p,
                           const struct ctw_matrix *matrices, enum ctw_epilogue epilogue)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    const struct ctw_op_linear op = {.shards = shards,
                                     .n_shards = ctw_plan_shards(model, p, matrices, shards),
                                     .epilogue = epilogue};
    return ctw_input_elems(&op);
}

/* Counts products of experts: each of their slots may hold one. */
static void reserve_experts(struct ctw_reserve *r, const struct ctw_model *model,
                            const struct ctw_layer *l, const struct ctw_expert_products *x)
{
    for (int down = 0; down < 2; down++) {
        const struct ctw_product *p = down ? x->down : x->up;
        enum ctw_epilogue epilogue = down       ? CTW_EPI_SCATTER
                                     : x->gated ? CTW_EPI_GATE
                                                : CTW_EPI_STORE;
        int64_t n = ctw_plan_columns(p), k = down ? x->inner : x->width;
        for (int e = 0; e < l->n_experts; e++)
            r->input_elems =
                ctw_max64(r->input_elems,
                          input_elems(model, p, &l->expert[e * CTW_N_EXPERT_MATRICES], epilogue));
        r->max_n = ctw_max64(r->max_n, n);
        for (int64_t i = 0; i < CTW_EXPERTS_IN_FLIGHT; i++) {
            int64_t *elems = &r->slot_elems[ctw_expert_slot(i, down)];
            *elems = ctw_max64(*elems, n * k);
        }
    }
}

static void reserve_product(struct ctw_reserve *r, const struct ctw_model *model,
                            const struct ctw_layer *l, int product)
{
    const struct ctw_product *p = &l->product[product];
    int64_t n = ctw_plan_columns(p), elems = 0;
    for (int j = 0; j < p->n_shards; j++)
        elems += p->shard[j].n * l->matrix[p->shard[j].matrix].weight.k;
    r->max_n = ctw_max64(r->max_n, n);
    r->slot_elems[product] = ctw_max64(r->slot_elems[product], elems);
    r->input_elems = ctw_max64(r->input_elems,
                               input_elems(model, p, l->matrix, ctw_product_epilogue(l, product)));
}

/* Of the head's rows, in elements of dtype. */
static int64_t head_width(const struct ctw_model *model, enum ctw_dtype dtype)
{
    const size_t bytes = ctw_dtype_bytes(ctw_plan_head_dtype(model, dtype));
    return model->embed_dim * (int64_t)(bytes / ctw_dtype_bytes(dtype));
}

struct ctw_reserve ctw_plan_reserve(const struct ctw_model *model, enum ctw_dtype dtype,
                                    const struct ctw_plan *plan)
{
    const struct ctw_widths w = model_widths(model, plan->longest);
    struct ctw_reserve r = {.dtype = dtype,
                            .n_tok = plan->chunk_tokens,
                            .n_rows = ctw_max64(plan->chunk_tokens, plan->expert_rows),
                            .max_k = w.inner_k,
                            .max_head = (int)w.head,
                            .max_group = (int)w.group,
                            .relative = w.relative,
                            .n_seqs = plan->chunk_tokens,
                            .state = w.state,
                            .n_vocab = model->vocab,
                            .head_k = head_width(model, dtype),
                            .n_experts = (int)w.n_experts,
                            .chosen = (int)w.chosen,
                            .n_grouped = w.n_experts > 0 ? plan->pass_tokens : 0,
                            .index_keys = w.chooses ? (plan->longest + 31) / 32 * 32 : 0};
    const struct ctw_matrix *head = &model->layers[model->n_layers - 1].matrix[CTW_M_HEAD];
    for (int i = 0; i < model->n_rotations; i++)
        r.rotation = ctw_max64(r.rotation, model->rotations[i].size);
    for (int i = 0; i < model->n_layers; i++) {
        const struct ctw_layer *l = &model->layers[i];
        for (int p = 0; p < CTW_LAYER_SLOTS; p++)
            reserve_product(&r, model, l, p);
        for (int b = 0; b < l->n_branches; b++) {
            const struct ctw_kind_ops *ops = ctw_ops_of(&l->branch[b]);
            if (ops->experts != NULL) {
                const struct ctw_expert_products x = ops->experts(&l->branch[b]);
                reserve_experts(&r, model, l, &x);
            }
        }
    }
    if (head->input.codes != CTW_CODES_NONE || head->rotate_in != 0)
        r.input_elems = ctw_max64(r.input_elems, model->embed_dim);
    return r;
}

/* Rows of an expert that are computed together. On a GPU `wide` holds the inner activations of
 * twice this number. On the CPU the rows are a chunk, which stays in its cache. */
static int64_t expert_rows(const struct ctw_plan *plan, const struct ctw_plan_request *r,
                           const struct ctw_widths *w)
{
    enum { TILE = 256 };
    if (ctw_backend_traits(r->backend)->host_memory || w->n_experts == 0)
        return plan->chunk_tokens;
    int64_t most = plan->chunk_tokens * w->wide / (2 * w->expert_inner);
    return ctw_min64(ctw_max64(most - most % TILE, plan->chunk_tokens), plan->pass_tokens);
}

/* Carry beyond what a sequence needs, for sequences that share beginnings. */
struct spare {
    int64_t chunks, states;
    int trunk; /* a trunk of one in so many of the tokens that passes may share; 0: none */
};

/*
 * The least tokens of a trunk whose two copies, to and from its memory, take less time than
 * computing them; 0: a longer trunk gains nothing, either. On a GPU, and on a CPU, a byte takes the
 * time of so many operations.
 */
static int64_t least_trunk(const struct ctw_plan_request *r, const struct ctw_trunk_size *size)
{
    const double per_byte = ctw_backend_traits(r->backend)->host_memory ? 16 : 128;
    double gain = ctw_plan_layer_flops(r->model) - 2 * per_byte * (double)size->row;
    double n = gain > 0 ? ceil(2 * per_byte * (double)size->state / gain) : 0;
    if (gain <= 0 || n > (double)r->trunk)
        return 0;
    return ctw_max64((int64_t)n, CTW_BRANCH_TOKENS);
}

/* Passes that follow one another are worth a trunk. Memory is all it costs. */
static void add_up_trunk(struct ctw_plan *plan, const struct ctw_plan_request *r,
                         const struct spare *spare)
{
    const bool follows = r->follows || r->total > plan->pass_tokens;
    plan->trunk_tokens = plan->trunk_from = 0;
    plan->trunk = 0;
    if (spare->trunk == 0 || r->trunk == 0 || !follows)
        return;
    const struct ctw_trunk_size size = ctw_trunk_size(r->model, r->dtype, r->longest, 0, NULL);
    int64_t least = least_trunk(r, &size), n = r->trunk / spare->trunk;
    if (least == 0 || n < least)
        return;
    plan->trunk_tokens = n;
    plan->trunk_from = least;
    plan->trunk = (size_t)n * size.row + size.state;
}

static void add_up_carry(struct ctw_plan *plan, const struct ctw_plan_request *r,
                         const struct spare *spare)
{
    const int64_t trunk = plan->trunk_tokens, two = trunk > 0 ? 2 : 0;
    const int64_t rows[CTW_N_LIVES] = {[CTW_FOR_CHUNK] = plan->chunk_tokens,
                                       [CTW_FOR_LAYER] = plan->carry_rows + trunk,
                                       [CTW_FOR_PASS] = plan->pass_tokens + trunk,
                                       [CTW_STATE] = CTW_STATES + spare->states + two};
    memset(plan->carry, 0, sizeof(plan->carry));
    plan->carried = 0;
    plan->states = 0;
    for (int i = 1; i <= r->model->n_decoders; i++)
        for (int b = 0; b < r->model->layers[i].n_branches; b++) {
            const struct ctw_branch *branch = &r->model->layers[i].branch[b];
            struct ctw_carry_rule rules[CTW_BRANCH_CARRIES];
            ctw_branch_carry(r->model, branch, r->longest, r->dtype, rules);
            for (int j = 0; j < CTW_BRANCH_CARRIES; j++) {
                size_t *bytes = &plan->carry[ctw_carry_array(&rules[j], b, j)];
                size_t need = (size_t)rows[rules[j].life] * rules[j].bytes;
                if (rules[j].life == CTW_STATE && need > 0)
                    plan->states = rows[CTW_STATE] - two;
                plan->carried += need > *bytes ? need - *bytes : 0;
                *bytes = need > *bytes ? need : *bytes;
            }
        }
}

/* Opening the model checked the ranges of dimensions, and token counts are below 2^32, so no
 * product here reaches 2^63. */
static void add_up(struct ctw_plan *plan, const struct ctw_plan_request *r, struct ctw_widths w,
                   const struct spare *spare)
{
    size_t es = ctw_dtype_bytes(r->dtype);
    size_t chunk = (size_t)plan->chunk_tokens, pass = (size_t)plan->pass_tokens;
    plan->carry_rows =
        ctw_layout_carry_rows(r->longest, plan->chunk_tokens, spare->chunks, plan->pass_tokens);
    plan->expert_rows = expert_rows(plan, r, &w);
    plan->residual = ctw_residual_bytes(r->model, plan->pass_tokens);
    plan->wide = (chunk * (size_t)w.wide + CTW_PARTS_OF_WIDE * CTW_WIDE_ALIGN) * es;
    plan->activations = chunk * (size_t)w.norm * es + plan->wide;
    plan->inputs = pass * (size_t)(r->model->n_decoders * r->model->input_dim) * es;
    plan->gathered = ctw_gathered_bytes(r->model, plan->chunk_tokens);
    add_up_trunk(plan, r, spare);
    add_up_carry(plan, r, spare);
    if (w.n_experts > 0) {
        plan->mixed = pass * (size_t)r->model->hidden * es;
        plan->sum = w.sum ? pass * (size_t)r->model->hidden * sizeof(float) : 0;
        plan->logits = chunk * (size_t)w.n_experts * sizeof(float);
        plan->factor = chunk * sizeof(float);
        plan->identity = w.identity ? pass * sizeof(float) : 0;
        plan->choices = pass * (size_t)w.chosen * sizeof(float);
        plan->starts = ((size_t)w.n_experts + 1) * sizeof(int32_t);
    }
    /* tokens, positions, bad marks; row, target, result per scored position; RoPE, ALiBi, rates */
    plan->tables = pass * (2 * sizeof(int32_t) + sizeof(int16_t)) +
                   pass * (sizeof(int64_t) + sizeof(int32_t) + sizeof(struct ctw_head_result)) +
                   (pass + 1) * sizeof(int32_t) +
                   (size_t)ctw_plan_rope_rows(r->model, r->longest) * (size_t)w.rot * sizeof(float);
    if (r->model->alibi != NULL)
        plan->tables += (size_t)r->model->n_alibi * sizeof(float);
    plan->tables += (size_t)r->model->n_rates * sizeof(float);
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
    plan->total = plan->residual + plan->activations + plan->inputs + plan->carried + plan->trunk +
                  plan->mixed + plan->sum + plan->logits + plan->factor + plan->identity +
                  4 * plan->choices + plan->starts + plan->gathered + plan->tables + plan->scratch;
}

/* Half a chunk, rounded down to whole tiles of rows, in which products are computed. */
static int64_t smaller_chunk(int64_t chunk)
{
    enum { TILE = 256 };
    chunk = ctw_max64(chunk / 2, CHUNK_TOKENS_MIN);
    return chunk > TILE ? chunk - chunk % TILE : chunk;
}

/* The number of tokens that make a pass long enough: twice as many if an expert otherwise gets
 * fewer rows than a chunk has. */
static int64_t enough_tokens(const struct ctw_backend_traits *traits, const struct ctw_widths *w)
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

/* The plan of so many tokens, with as much spare carry as fits. False: not even without. */
static bool fits(struct ctw_plan *plan, const struct ctw_plan_request *r,
                 const struct ctw_widths *w)
{
    static const struct spare spares[] = {{8, 32, 1}, {2, 8, 1}, {2, 8, 2}, {2, 8, 0},
                                          {0, 0, 1},  {0, 0, 2}, {0, 0, 4}, {0, 0, 0}};
    for (size_t i = r->shares ? 0 : CTW_COUNT(spares) - 1; i < CTW_COUNT(spares); i++) {
        add_up(plan, r, *w, &spares[i]);
        if (plan->total <= r->memory_limit)
            return true;
    }
    return false;
}

/* The largest plan within the limit. If no plan fits: false, and the smallest plan. */
static bool find_plan(struct ctw_plan *out, const struct ctw_plan_request *r)
{
    struct ctw_widths w = model_widths(r->model, r->longest);
    const struct ctw_backend_traits *traits = ctw_backend_traits(r->backend);
    struct ctw_plan plan = {.longest = r->longest};
    int64_t pass = r->pass_tokens;
    /* A model may consist of an embedding and a head. */
    double flops = fmax(ctw_plan_layer_flops(r->model), traits->pass_flops / CTW_PLAN_PASS_MOST);
    const int64_t enough = enough_tokens(traits, &w);
    if (pass == 0)
        pass = ctw_max64(ctw_min64(PASS_TOKENS_MIN, enough),
                         ctw_min64(enough, (int64_t)(traits->pass_flops / flops)));
    const int64_t usual = pass;
    if (r->pass_tokens == 0)
        pass = ctw_max64(pass, r->hide_tokens);
    if (r->pass_tokens == 0 && w.n_experts > 0)
        pass = stretch(pass, r->total, r->longest);
    pass = ctw_max64(ctw_min64(pass, r->total), r->longest);
    int64_t chunk = r->chunk_tokens != 0 ? r->chunk_tokens : traits->chunk_tokens;
    for (;;) {
        plan.pass_tokens = pass;
        plan.chunk_tokens = ctw_min64(chunk, pass);
        if (fits(&plan, r, &w))
            break;
        /* First reduce the tokens in a pass, then the chunks. */
        if (pass > ctw_max64(usual, ctw_max64(r->longest, chunk)) && r->pass_tokens == 0)
            pass = ctw_max64(ctw_max64(usual, r->longest), pass - (pass + 7) / 8);
        else if (pass > ctw_max64(r->longest, chunk) && r->pass_tokens == 0)
            pass = ctw_max64(ctw_max64(r->longest, chunk), pass / 2);
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
