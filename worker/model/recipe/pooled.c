/* Attention over pooled keys and a window: its builder, and its facts. */
#include <stdio.h>

#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"

enum { MAX_NAME = 96 };

static void linear(struct ctw_config *c, int64_t i, int product, int matrix, const char *module,
                   int64_t n, int64_t k)
{
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){product, matrix, 0, module, n, k});
}

/* The modules that make keys of `dim` elements of blocks, "MODULE.wkv" and so on. */
struct maker {
    const char *module;
    int product, x, gate, norm, bias;
    int64_t dim;
};

static void describe_maker(struct ctw_config *c, int64_t i, const struct ctw_pooled *x,
                           const struct ctw_norm_form *norm, const struct maker *m)
{
    const int64_t columns = ctw_pooled_columns(x, m->dim), hidden = c->model->hidden;
    char name[MAX_NAME];
    (void)snprintf(name, sizeof(name), "%s.wkv", m->module);
    linear(c, i, m->product, m->x, name, columns, hidden);
    (void)snprintf(name, sizeof(name), "%s.wgate", m->module);
    linear(c, i, m->product, m->gate, name, columns, hidden);
    (void)snprintf(name, sizeof(name), "%s.norm", m->module);
    ctw_describe_norm(c, i, m->norm, norm, name, m->dim);
    (void)snprintf(name, sizeof(name), "%s.ape", m->module);
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_vector_at(CTW_MIXER, m->bias),
                                        .n = x->block,
                                        .k = columns},
                      name);
}

static void describe_indexer(struct ctw_config *c, int64_t i, const struct ctw_pooled *x,
                             const struct ctw_norm_form *norm)
{
    const struct maker keys = {.module = "attn.indexer.compressor",
                               .product = CTW_P_POOLED_INDEX_X,
                               .x = CTW_M_POOLED_INDEX_X,
                               .gate = CTW_M_POOLED_INDEX_GATE,
                               .norm = CTW_AT_POOLED_INDEX_X,
                               .bias = CTW_V_POOLED_INDEX_BIAS,
                               .dim = x->index.head};
    linear(c, i, CTW_P_POOLED_LATENT, CTW_M_POOLED_INDEX_WEIGHTS, "attn.indexer.weights_proj",
           x->index.n_head, c->model->hidden);
    linear(c, i, CTW_P_POOLED_INDEX_Q, CTW_M_POOLED_INDEX_Q, "attn.indexer.wq_b",
           (int64_t)x->index.n_head * x->index.head, x->q_rank);
    describe_maker(c, i, x, norm, &keys);
}

/* Groups of rows of one matrix, each with an input of its own: a product each. */
static void describe_output(struct ctw_config *c, int64_t i, const struct ctw_pooled *x)
{
    const int64_t all = x->o_groups * x->o_rank;
    const int matrix = ctw_matrix_at(CTW_MIXER, CTW_M_POOLED_O_A);
    ctw_describe_matrix(c, i, matrix, "attn.wo_a", all, (int64_t)x->n_head * x->head / x->o_groups);
    for (int g = 0; g < x->o_groups; g++)
        ctw_describe_shard(c, i, ctw_product_at(CTW_MIXER, CTW_P_POOLED_O_A + g),
                           (struct ctw_rows){matrix, g * x->o_rank, x->o_rank, -1, 1});
    linear(c, i, CTW_P_POOLED_O_B, CTW_M_POOLED_O_B, "attn.wo_b", c->model->hidden, all);
}

void ctw_describe_pooled(struct ctw_config *c, int64_t i, const struct ctw_pooled *x,
                         const struct ctw_norm_form *norm)
{
    const int64_t hidden = c->model->hidden;
    const struct ctw_norm_form heads = {.kind = norm->kind, .eps = norm->eps, .weightless = true};
    const struct maker keys = {.module = "attn.compressor",
                               .product = CTW_P_POOLED_X,
                               .x = CTW_M_POOLED_X,
                               .gate = CTW_M_POOLED_GATE,
                               .norm = CTW_AT_POOLED_X,
                               .bias = CTW_V_POOLED_BIAS,
                               .dim = x->head};
    ctw_describe_kind(c, i, CTW_MIXER, CTW_KIND_pooled)->pooled = *x;
    linear(c, i, CTW_P_POOLED_LATENT, CTW_M_POOLED_Q_A, "attn.wq_a", x->q_rank, hidden);
    ctw_describe_norm(c, i, CTW_AT_POOLED_Q_A, norm, "attn.q_norm", x->q_rank);
    linear(c, i, CTW_P_POOLED_Q_B, CTW_M_POOLED_Q_B, "attn.wq_b", (int64_t)x->n_head * x->head,
           x->q_rank);
    ctw_describe_norm(c, i, CTW_AT_POOLED_Q, &heads, "", x->head);
    linear(c, i, CTW_P_POOLED_KV, CTW_M_POOLED_KV, "attn.wkv", x->head, hidden);
    ctw_describe_norm(c, i, CTW_AT_POOLED_KV, norm, "attn.kv_norm", x->head);
    ctw_describe_vector(c, i, ctw_vector_at(CTW_MIXER, CTW_V_POOLED_SINKS), "attn.attn_sink",
                        x->n_head);
    if (x->block > 0)
        describe_maker(c, i, x, norm, &keys);
    if (x->index.chosen > 0)
        describe_indexer(c, i, x, norm);
    describe_output(c, i, x);
}

/* ---- facts -------------------------------------------------------------------------------- */

static struct ctw_facts facts(const struct ctw_branch *b)
{
    const struct ctw_pooled *x = &b->pooled;
    return (struct ctw_facts){.n_head = x->n_head, .n_kv = 1, .head = x->head, .window = x->window};
}

const struct ctw_kind_row ctw_kind_pooled = {.name = "pooled attention", .facts = facts};
