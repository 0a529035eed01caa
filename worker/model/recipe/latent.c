/* Latent attention: its builder (family.h), and its facts. */
#include <math.h>
#include <stdio.h>

#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"

enum { MAX_NAME = 128 };

/* The indexer's modules: a product of the queries' latent, and two products of the mixer's
 * input. */
static void describe_indexer(struct ctw_config *c, int64_t i, const struct ctw_latent_attention *a)
{
    const struct ctw_norm_form norm = {
        .kind = CTW_NORM_LAYER, .eps = a->index_eps != 0 ? a->index_eps : 1e-6, .bias = true};
    const struct ctw_indexer *x = &a->index;
    int64_t hidden = c->model->hidden;
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_LATENTS, CTW_M_INDEX_K, 0,
                                                   "self_attn.indexer.wk", x->head, hidden});
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_LATENTS, CTW_M_INDEX_WEIGHTS, 0,
                                                   "self_attn.indexer.weights_proj", x->n_head,
                                                   hidden});
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_INDEX_Q, CTW_M_INDEX_Q, 0,
                                                   "self_attn.indexer.wq_b",
                                                   (int64_t)x->n_head * x->head, a->q_rank});
    ctw_describe_norm(c, i, CTW_AT_INDEX_K, &norm, "self_attn.indexer.k_norm", x->head);
    if (x->pool == 0)
        return;
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_INDEX_POOL, CTW_M_INDEX_POOL, 0,
                                                   "self_attn.indexer.index_kpool_compress_gate",
                                                   x->head, hidden});
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_vector_at(CTW_MIXER, CTW_V_INDEX_POOL),
                                        .n = x->pool,
                                        .k = x->head},
                      "self_attn.indexer.index_kpool_compress_ape");
}

/* A Linear module of the attention's. */
static void linear(struct ctw_config *c, int64_t i, const struct ctw_latent_attention *a,
                   const char *name, const struct ctw_linear_rules *as)
{
    char module[MAX_NAME];
    struct ctw_linear_rules r = *as;
    (void)snprintf(module, sizeof(module), "%s.%s", ctw_name_or(a->module, "self_attn"), name);
    r.module = module;
    ctw_describe_linear(c, i, CTW_MIXER, &r);
}

static void norm(struct ctw_config *c, int64_t i, const struct ctw_latent_attention *a, int place,
                 const char *name, int64_t n)
{
    char module[MAX_NAME];
    (void)snprintf(module, sizeof(module), "%s.%s", ctw_name_or(a->module, "self_attn"), name);
    ctw_describe_norm(c, i, place, &a->norm, module, n);
}

static void describe_queries(struct ctw_config *c, int64_t i, const struct ctw_latent_attention *a)
{
    const int64_t hidden = c->model->hidden, q = a->n_head * (a->nope + a->rope);
    if (a->q_rank == 0) {
        linear(c, i, a, "q_proj",
               &(struct ctw_linear_rules){CTW_P_Q_B, CTW_M_LATENT_Q, 0, NULL, q, hidden});
        return;
    }
    linear(c, i, a, "q_a_proj",
           &(struct ctw_linear_rules){CTW_P_LATENTS, CTW_M_Q_A, a->bias ? CTW_V_Q_A_BIAS : 0, NULL,
                                      a->q_rank, hidden});
    norm(c, i, a, CTW_AT_Q_A, "q_a_layernorm", a->q_rank);
    linear(c, i, a, "q_b_proj",
           &(struct ctw_linear_rules){CTW_P_Q_B, CTW_M_Q_B, 0, NULL, q, a->q_rank});
}

void ctw_describe_latent_attention(struct ctw_config *c, int64_t i,
                                   const struct ctw_latent_attention *a)
{
    struct ctw_latent *l = &ctw_describe_kind(c, i, CTW_MIXER, CTW_KIND_latent)->latent;
    int64_t hidden = c->model->hidden, head = a->nope + a->rope;
    l->n_head = (int)a->n_head;
    l->head = (int)head;
    l->head_v = (int)a->head_v;
    l->turning = (int)a->rope;
    l->q_rank = a->q_rank;
    l->kv_rank = a->kv_rank;
    l->kv_factor = (float)(a->kv_factor != 0 ? a->kv_factor : 1);
    l->rope = a->rope_index;
    l->q_factors = a->q_factors;
    l->gate = a->gate != NULL ? CTW_GATE_SIGMOID : CTW_GATE_NONE;
    l->n_gates = a->gate == NULL ? 0 : a->n_head * (a->gate_values ? a->head_v : 1);
    l->index = a->index;
    if (a->index.shared)
        l->index = (struct ctw_indexer){.chosen = a->index.chosen, .shared = true};
    c->model->shares_choices |= a->index.shared;
    l->scale = (float)(a->scale != 0 ? a->scale : 1 / sqrt((double)head));
    describe_queries(c, i, a);
    linear(c, i, a, "kv_a_proj_with_mqa",
           &(struct ctw_linear_rules){CTW_P_LATENTS, CTW_M_KV_A, a->bias ? CTW_V_KV_A_BIAS : 0,
                                      NULL, a->kv_rank + a->rope, hidden});
    if (a->index.chosen > 0 && !a->index.shared)
        describe_indexer(c, i, a);
    norm(c, i, a, CTW_AT_KV_A, "kv_a_layernorm", a->kv_rank);
    linear(c, i, a, "kv_b_proj",
           &(struct ctw_linear_rules){CTW_P_KV_B, CTW_M_KV_B, 0, NULL,
                                      a->n_head * (a->nope + a->head_v), a->kv_rank});
    linear(c, i, a, ctw_name_or(a->out, "o_proj"),
           &(struct ctw_linear_rules){CTW_P_LATENT_O, CTW_M_LATENT_O,
                                      a->bias ? CTW_V_LATENT_O_BIAS : 0, NULL, hidden,
                                      a->n_head * a->head_v});
    if (a->sinks != NULL)
        ctw_describe_vector(c, i, ctw_vector_at(CTW_MIXER, CTW_V_LATENT_SINKS), a->sinks,
                            a->n_head);
    if (a->gate != NULL)
        linear(c, i, a, a->gate,
               &(struct ctw_linear_rules){CTW_P_LATENT_GATE, CTW_M_LATENT_GATE, 0, NULL, l->n_gates,
                                          hidden});
}

/* ---- facts -------------------------------------------------------------------------------- */

static struct ctw_facts facts(const struct ctw_branch *b)
{
    const struct ctw_latent *x = &b->latent;
    return (struct ctw_facts){.n_head = x->n_head, .n_kv = x->n_head, .head = x->head};
}

static struct ctw_head_inputs *inputs(struct ctw_branch *b)
{
    return &b->latent.inputs;
}

static struct ctw_heads_shape heads(const struct ctw_branch *b, enum ctw_heads which)
{
    const struct ctw_latent *x = &b->latent;
    bool latent = ctw_latent_is_cached(x) && which != CTW_HEADS_Q;
    int64_t own = which == CTW_HEADS_V ? x->head_v : x->head;
    return (struct ctw_heads_shape){.n = x->n_head,
                                    .width = !latent                ? own
                                             : which == CTW_HEADS_K ? x->kv_rank
                                                                    : x->turning,
                                    .latent = latent};
}

const struct ctw_kind_row ctw_kind_latent = {
    .name = "latent attention",
    .facts = facts,
    .in_attention = 1u << CTW_M_LATENT_Q | 1u << CTW_M_Q_A | 1u << CTW_M_Q_B | 1u << CTW_M_KV_A |
                    1u << CTW_M_KV_B | 1u << CTW_M_LATENT_O,
    .module = 1u << CTW_M_KV_B,
    .inputs = inputs,
    .heads = heads};
