/* A mixture of experts: its builder (family.h), and its facts. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"

enum { MAX_NAME = 512 };

/* "MODULE.NAME", "MODULE.3.NAME" for expert 3, or NAME alone; `end` follows. */
static void join(char out[MAX_NAME], const struct ctw_experts *x, int64_t expert, const char *name,
                 const char *end)
{
    const char *module = ctw_name_or(x->module, "mlp.experts");
    if (expert >= 0)
        (void)snprintf(out, MAX_NAME, "%s.%" PRId64 ".%s%s", module, expert, name, end);
    else if (module[0] != '\0')
        (void)snprintf(out, MAX_NAME, "%s.%s%s", module, name, end);
    else
        (void)snprintf(out, MAX_NAME, "%s%s", name, end);
}

static int branch_of(const struct ctw_experts *x)
{
    return x->branch != 0 ? x->branch : CTW_MLP;
}

/* ---- what no checkpoint can have ---- */

static void refuse(struct ctw_config *c, int64_t i, const char *why, int64_t found, int64_t most)
{
    if (c->status == CTW_OK)
        c->status =
            ctw_json_fail(c->text, &c->err, CTW_EFORMAT,
                          "layer %" PRId64 ": %s: found %" PRId64 ", expected 1 to %" PRId64, i,
                          why, found, most);
}

static void check_numbers(struct ctw_config *c, int64_t i, const struct ctw_experts *x)
{
    const struct ctw_router *r = &x->router;
    const int64_t free = CTW_MAX_CHOSEN - x->n_always, n = x->n + x->n_identity;
    const int64_t most = n < free ? n : free;
    if (x->n < 1 || n > CTW_MAX_EXPERTS - x->n_always)
        refuse(c, i, "the number of experts", n, CTW_MAX_EXPERTS - x->n_always);
    else if (x->chosen < 1 || x->chosen > most)
        refuse(c, i, "the experts that a token chooses", x->chosen, most);
    else if (x->latent > c->model->hidden)
        refuse(c, i, "the latent width of the experts", x->latent, c->model->hidden);
    if (r->n_groups <= 1 || c->status != CTW_OK)
        return;
    if (x->n % r->n_groups != 0 || x->n / r->n_groups < r->group_best)
        refuse(c, i, "the groups of experts, which must be of equal sizes", r->n_groups,
               x->n / r->group_best);
    else if (r->kept_groups < 1 || r->kept_groups > r->n_groups)
        refuse(c, i, "the groups that a token chooses from", r->kept_groups, r->n_groups);
    else if (x->chosen > r->kept_groups * (x->n / r->n_groups))
        refuse(c, i, "the experts that a token chooses from its groups", x->chosen,
               r->kept_groups * (x->n / r->n_groups));
}

/* ---- the router ---- */

static struct ctw_route_rule rule_of(const struct ctw_experts *x)
{
    const struct ctw_router *r = &x->router;
    bool grouped = r->n_groups > 1 && r->kept_groups < r->n_groups;
    return (struct ctw_route_rule){.score = r->score,
                                   .n_experts = (int)(x->n + x->n_always + x->n_identity),
                                   .chosen = (int)(x->chosen + x->n_always),
                                   .always = (int)x->n_always,
                                   .n_identity = (int)x->n_identity,
                                   .n_groups = grouped ? (int)r->n_groups : 0,
                                   .kept_groups = grouped ? (int)r->kept_groups : 0,
                                   .group_best = r->group_best,
                                   .corrects_logits = r->correction_of_logits,
                                   .normalised = r->normalised,
                                   .sum_add = (float)r->sum_add,
                                   .sum_least = (float)r->sum_least,
                                   .factor = (float)(r->factor != 0 ? r->factor : 1),
                                   .softcap = (float)r->softcap,
                                   .scale = (float)(r->scale != 0 ? r->scale : 1),
                                   .jitter = (float)r->jitter};
}

static void describe_router(struct ctw_config *c, int64_t i, const struct ctw_experts *x)
{
    const struct ctw_router *r = &x->router;
    const int64_t n = x->n + x->n_identity; /* to choose from */
    ctw_describe_linear(
        c, i, branch_of(x),
        &(struct ctw_linear_rules){CTW_P_ROUTER, CTW_M_ROUTER, r->bias ? CTW_V_ROUTER_BIAS : 0,
                                   ctw_name_or(r->module, "mlp.gate"),
                                   x->n + x->n_always + x->n_identity, c->model->hidden});
    if (r->correction != NULL)
        ctw_describe_want(c,
                          (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                            .layer = (int)i + 1,
                                            .role = ctw_vector_at(branch_of(x), CTW_V_CORRECTION),
                                            .n = r->correction_is_row ? 1 : n,
                                            .k = r->correction_is_row ? n : 0},
                          r->correction);
    if (r->expert_scale != NULL)
        ctw_describe_vector(c, i, ctw_vector_at(branch_of(x), CTW_V_EXPERT_SCALE), r->expert_scale,
                            x->n);
    if (r->table != NULL)
        ctw_describe_want(
            c,
            (struct ctw_want){.kind = CTW_WANT_VECTOR,
                              .layer = (int)i + 1,
                              .role = ctw_vector_at(branch_of(x), CTW_V_TOKEN_EXPERTS),
                              .n = c->model->vocab,
                              .k = x->chosen,
                              .below = x->n},
            r->table);
}

/* ---- the experts ---- */

/* All experts' matrices of one role, of experts `first` and on, and their biases (-1: none). */
static void describe_matrices(struct ctw_config *c, int64_t i, const struct ctw_experts *x,
                              int64_t first, enum ctw_expert_role role, int bias, const char *name,
                              int64_t n, int64_t k)
{
    char full[MAX_NAME];
    struct ctw_want w = {.kind = CTW_WANT_EXPERT,
                         .layer = (int)i + 1,
                         .role = role,
                         .class_name = x->stacked ? CTW_CLASS_EXPERTS : "Linear",
                         .n = n,
                         .k = k,
                         .transposed = x->transposed || (x->flat && role == CTW_X_DOWN),
                         .n_stacked = x->stacked ? x->n : 0,
                         .flat = x->flat};
    for (int64_t e = 0; e < (x->stacked ? 1 : x->n); e++) {
        w.expert = first + e;
        join(full, x, x->stacked ? -1 : e, name, "");
        ctw_describe_want(c, w, full);
        if (bias < 0)
            continue;
        join(full, x, x->stacked ? -1 : e, name,
             x->stacked && !c->experts.switches ? "_bias" : ".bias");
        ctw_describe_want(c,
                          (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                            .layer = w.layer,
                                            .role = bias,
                                            .n = x->stacked ? x->n : n,
                                            .k = x->stacked ? n : 0},
                          full);
    }
}

static void add(struct ctw_product *p, enum ctw_expert_role role, int64_t row0, int64_t n,
                int64_t step, int bias)
{
    p->shard[p->n_shards++] =
        (struct ctw_rows){.matrix = role, .row0 = row0, .n = n, .bias = bias, .step = step};
}

/* The number of values that the experts read and write. */
static int64_t width_of(const struct ctw_config *c, const struct ctw_experts *x)
{
    return x->latent > 0 ? x->latent : c->model->hidden;
}

static void describe_up(struct ctw_config *c, int64_t i, const struct ctw_experts *x,
                        struct ctw_product *up)
{
    int64_t width = width_of(c, x), inner = x->inner;
    if (x->fused) {
        int bias = x->bias ? ctw_vector_at(branch_of(x), CTW_V_EXPERT_GATE_UP_BIAS) : -1;
        int64_t step = x->interleaved ? 2 : 1;
        describe_matrices(c, i, x, 0, CTW_X_GATE_UP, bias, ctw_name_or(x->gate_up, "gate_up_proj"),
                          2 * inner, width);
        add(up, CTW_X_GATE_UP, 0, inner, step, bias);
        add(up, CTW_X_GATE_UP, x->interleaved ? 1 : inner, inner, step, bias);
        return;
    }
    int gate_bias = x->bias ? ctw_vector_at(branch_of(x), CTW_V_EXPERT_GATE_BIAS) : -1;
    int up_bias = x->bias ? ctw_vector_at(branch_of(x), CTW_V_EXPERT_UP_BIAS) : -1;
    if (!x->plain) {
        describe_matrices(c, i, x, 0, CTW_X_GATE, gate_bias, ctw_name_or(x->gate, "gate_proj"),
                          inner, width);
        add(up, CTW_X_GATE, 0, inner, 1, gate_bias);
    }
    describe_matrices(c, i, x, 0, CTW_X_UP, up_bias, ctw_name_or(x->up, "up_proj"), inner, width);
    add(up, CTW_X_UP, 0, inner, 1, up_bias);
}

static void describe_latent(struct ctw_config *c, int64_t i, const struct ctw_experts *x)
{
    int64_t hidden = c->model->hidden;
    ctw_describe_linear(c, i, branch_of(x),
                        &(struct ctw_linear_rules){CTW_P_LATENT_IN, CTW_M_LATENT_IN,
                                                   x->latent_bias ? CTW_V_LATENT_IN_BIAS : 0,
                                                   x->latent_in, x->latent, hidden});
    ctw_describe_linear(c, i, branch_of(x),
                        &(struct ctw_linear_rules){CTW_P_LATENT_OUT, CTW_M_LATENT_OUT,
                                                   x->latent_bias ? CTW_V_LATENT_OUT_BIAS : 0,
                                                   x->latent_out, hidden, x->latent});
}

/*
 * mlx-lm joins the experts' modules in a module of stacks, whatever the family's own files have:
 * "mlp.switch_mlp.gate_proj" for "mlp.experts" (the names of two matrices without a gate are fc1
 * and fc2), "experts.switch_glu.gate_proj", or "mlp.experts.gate_proj".
 */
static void as_switches(struct ctw_config *c, struct ctw_experts *x, char module[MAX_NAME])
{
    const char *from = ctw_name_or(x->module, "mlp.experts");
    if (from[0] == '\0') /* names of a layer, such as "block_sparse_moe.input_linear" */
        from = ctw_name_or(x->gate_up, "");
    const char *end = strrchr(from, '.');
    int parent = end != NULL ? (int)(end - from) : 0;
    if (ctw_files_find(c, ".switch_mlp.") != NULL)
        (void)snprintf(module, MAX_NAME, "%.*s.switch_mlp", parent, from);
    else
        (void)snprintf(module, MAX_NAME, "%s%s", from,
                       ctw_files_find(c, ".switch_glu.") != NULL ? ".switch_glu" : "");
    x->module = module;
    x->gate = NULL;
    x->up = x->plain ? "fc1" : NULL;
    x->down = x->plain ? "fc2" : NULL;
    x->stacked = true;
    x->transposed = x->fused = x->interleaved = false;
}

/*
 * Tools quantise experts as modules of these names. They save these modules, or the one tensor for
 * all experts that transformers 5's class has in memory. (struct ctw_renamed has the class's name
 * of the experts' block.)
 */
static struct ctw_experts as_stored(struct ctw_config *c, const struct ctw_experts *x,
                                    char module[MAX_NAME])
{
    struct ctw_experts stored = *x;
    if (!c->experts.known) {
        c->experts.apart = ctw_files_find(c, ".experts.0.down_proj.") != NULL;
        c->experts.stacked =
            !c->experts.apart && ctw_files_find(c, ".experts.gate_up_proj") != NULL;
        c->experts.switches = ctw_files_find(c, ".switch_mlp.") != NULL ||
                              ctw_files_find(c, ".switch_glu.") != NULL ||
                              ctw_files_find(c, ".experts.gate_proj.weight") != NULL;
        c->experts.known = true;
    }
    if (c->experts.switches) {
        as_switches(c, &stored, module);
        return stored;
    }
    if (c->experts.stacked && !x->fused && !x->plain) {
        stored.stacked = stored.fused = true;
        stored.down = NULL;
    }
    if (!c->experts.apart)
        return stored;
    stored.stacked = stored.transposed = stored.fused = stored.interleaved = false;
    stored.gate = stored.up = stored.down = NULL;
    stored.module = ctw_name_or(x->apart, stored.module);
    return stored;
}

/* The experts that every token has, behind the others. */
static void describe_always(struct ctw_config *c, int64_t i, const struct ctw_experts *x)
{
    struct ctw_experts all = *x;
    all.n = x->n_always;
    all.stacked = true;
    all.module = x->always;
    assert(!x->bias && x->shared == NULL && x->fused);
    describe_matrices(c, i, &all, x->n, CTW_X_GATE_UP, -1, x->always_gate_up, 2 * x->inner,
                      width_of(c, x));
    describe_matrices(c, i, &all, x->n, CTW_X_DOWN, -1, x->always_down, width_of(c, x), x->inner);
}

void ctw_describe_experts(struct ctw_config *c, int64_t i, const struct ctw_experts *family)
{
    char module[MAX_NAME];
    const struct ctw_experts stored = as_stored(c, family, module), *x = &stored;
    check_numbers(c, i, x);
    if (c->status != CTW_OK)
        return;
    assert(x->shared == NULL || branch_of(x) == CTW_MLP);
    const int64_t n = x->n + x->n_always;
    struct ctw_matrix *matrix = ctw_calloc((size_t)n * CTW_N_EXPERT_MATRICES, sizeof(*matrix));
    if (matrix == NULL) {
        c->status = ctw_fail(&c->err, CTW_ENOMEM, "out of memory for %" PRId64 " experts", n);
        return;
    }
    struct ctw_mixture *m = &ctw_describe_kind(c, i, branch_of(x), CTW_KIND_mixture)->mixture;
    struct ctw_layer *l = &c->model->layers[i + 1];
    l->expert = matrix;
    l->n_experts = (int)n;
    *m = (struct ctw_mixture){.route = rule_of(x),
                              .on_input = x->router.on_input,
                              .width = width_of(c, x),
                              .latent = x->latent > 0,
                              .inner = x->inner,
                              .gated = !x->plain,
                              .act = x->act,
                              .glu = x->glu};
    describe_router(c, i, x);
    describe_up(c, i, x, &m->up);
    int bias = x->bias ? ctw_vector_at(branch_of(x), CTW_V_EXPERT_DOWN_BIAS) : -1;
    describe_matrices(c, i, x, 0, CTW_X_DOWN, bias, ctw_name_or(x->down, "down_proj"), m->width,
                      x->inner);
    add(&m->down, CTW_X_DOWN, 0, m->width, 1, bias);
    if (x->n_always > 0)
        describe_always(c, i, x);
    if (m->latent)
        describe_latent(c, i, x);
    m->has_shared = x->shared != NULL;
    if (x->shared != NULL)
        m->shared = ctw_describe_dense(c, i, x->shared);
    if (x->shared_gate != NULL)
        ctw_describe_linear(c, i, branch_of(x),
                            &(struct ctw_linear_rules){CTW_P_SHARED_GATE, CTW_M_SHARED_GATE, 0,
                                                       x->shared_gate, 1, c->model->hidden});
}

_Static_assert((int)CTW_V_LATENT_OUT_BIAS < CTW_BRANCH_VECTORS &&
                   (int)CTW_AT_LATENT < CTW_BRANCH_NORMS,
               "a mixture's roles");

/* ---- facts -------------------------------------------------------------------------------- */

static struct ctw_facts facts(const struct ctw_branch *b)
{
    return (struct ctw_facts){.inner = b->mixture.shared.inner};
}

static void take_numbers(struct ctw_branch *b, const double *values)
{
    ctw_dense_take_numbers(&b->mixture.shared, values);
}

static const char *rotated_output(const struct ctw_branch *b, int product)
{
    if (product == CTW_P_SHARED_GATE)
        return "outputs of gates of experts are not supported";
    if (product == CTW_P_DOWN)
        return "the output of a shared expert is not supported";
    return ctw_dense_rotated_output(&b->mixture.shared, product);
}

static bool changes_inputs(const struct ctw_branch *b)
{
    return !b->mixture.on_input;
}

const struct ctw_kind_row ctw_kind_mixture = {.name = "mixture",
                                              .facts = facts,
                                              .not_meant =
                                                  1u << CTW_M_ROUTER | 1u << CTW_M_SHARED_GATE,
                                              .router = 1u << CTW_M_ROUTER,
                                              .numbers = CTW_V_ACT,
                                              .n_numbers = 4,
                                              .take_numbers = take_numbers,
                                              .rotated_output = rotated_output,
                                              .changes_inputs = changes_inputs};
