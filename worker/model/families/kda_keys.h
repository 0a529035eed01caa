/* Keys that Kimi Linear, Bailing Hybrid and GLM 5 Next share: transformers' names, which stand for
 * the makers', and mixtures with sigmoid routing. */
#ifndef CTW_WORKER_KDA_KEYS_H
#define CTW_WORKER_KDA_KEYS_H

#include "kernels/conv.h"
#include "kernels/delta.h"
#include "worker/model/families/latent_keys.h"
#include "worker/model/recipe/delta_rule.h"

/* transformers' defaults, and names in files. */
struct kda_mixture {
    int64_t n, inner, n_groups, kept_groups;
    double scale;
    const char *module, *gate, *up, *down; /* of experts; NULL: Qwen's */
    const char *router, *correction;
    const char *shared[3]; /* gate, up and down of the shared expert */
    struct ctw_glu glu;
};

/* A number under one name or another, at least 1. */
static inline int64_t kda_either(struct ctw_config *c, const char *name, const char *other,
                                 int64_t absent, int64_t most)
{
    return ctw_key_int(c, ctw_key_either(c, name, other), absent, CTW_NULL_REFUSED, 1, most);
}

static inline struct ctw_experts kda_experts(struct ctw_config *c, const struct kda_mixture *m,
                                             enum ctw_activation act, struct ctw_mlp *shared)
{
    struct ctw_experts x = {.act = act,
                            .glu = m->glu,
                            .module = m->module,
                            .gate = m->gate,
                            .up = m->up,
                            .down = m->down,
                            .shared = shared};
    x.n = kda_either(c, "num_experts", "num_local_experts", m->n, CTW_MAX_EXPERTS);
    x.chosen = kda_either(c, "num_experts_per_token", "num_experts_per_tok", 8,
                          x.n < CTW_MAX_CHOSEN ? x.n : CTW_MAX_CHOSEN);
    x.inner = ctw_key_int(c, "moe_intermediate_size", m->inner, CTW_NULL_REFUSED, 1, 1 << 24);
    *shared = (struct ctw_mlp){
        .inner = x.inner * kda_either(c, "num_shared_experts", "n_shared_experts", 1, 1024),
        .act = act,
        .glu = m->glu,
        .gate = m->shared[0],
        .up = m->shared[1],
        .down = m->shared[2]};
    const char *renormalise = ctw_key_either(c, "moe_renormalize", "norm_topk_prob");
    x.router = (struct ctw_router){
        .module = m->router,
        .correction = m->correction,
        .score = CTW_SCORE_SIGMOID,
        .n_groups = kda_either(c, "num_expert_group", "n_group", m->n_groups, x.n),
        .group_best = 2,
        .normalised = ctw_key_bool(c, renormalise, true),
        .sum_add = 1e-20,
        .scale = ctw_key_number(c, "routed_scaling_factor", m->scale, CTW_NULL_REFUSED, 1e-6, 1e6)};
    x.router.kept_groups =
        ctw_key_int(c, "topk_group", m->kept_groups, CTW_NULL_REFUSED, 1, x.router.n_groups);
    return x;
}

/* Which of n layers have an MLP instead of a mixture. */
static inline void kda_dense(struct ctw_config *c, int64_t n, int64_t absent, bool *dense)
{
    const bool *named = ctw_key_layers_called(c, "mlp_layer_types", n, "dense", "sparse");
    const int64_t first =
        ctw_key_int(c, "first_k_dense_replace", absent, CTW_NULL_REFUSED, 0, CTW_MAX_DECODERS);
    for (int64_t i = 0; i < n; i++)
        dense[i] = named != NULL ? named[i] : i < first;
}

struct kda_layers {
    bool linear[CTW_MAX_DECODERS], dense[CTW_MAX_DECODERS];
    const struct ctw_norm_form *norm;
    const struct ctw_delta_rule *delta;
    const struct ctw_delta_names *names;
    const struct ctw_latent_attention *attention;
    const bool *own_choice; /* with an indexer: the layers that have one; NULL: all */
    const struct ctw_mlp *mlp;
    const struct ctw_experts *experts;
};

static inline void kda_describe(struct ctw_config *c, int64_t n, const struct kda_layers *l)
{
    for (int64_t i = 0; i < n && c->status == CTW_OK; i++) {
        struct ctw_latent_attention attention = *l->attention;
        attention.index.shared = l->own_choice != NULL && !l->own_choice[i];
        ctw_describe_norms(c, i, l->norm);
        if (l->linear[i])
            ctw_describe_delta_apart(c, i, l->delta, l->norm, l->names);
        else
            ctw_describe_latent_attention(c, i, &attention);
        if (l->dense[i])
            ctw_describe_mlp(c, i, l->mlp);
        else
            ctw_describe_experts(c, i, l->experts);
    }
}

static inline int kda_count(struct ctw_config *c, const char *in_object, const char *name,
                            int64_t absent, int64_t most)
{
    absent = ctw_key_int(c, name, absent, CTW_NULL_REFUSED, 1, most);
    return (int)ctw_key_int(c, in_object, absent, CTW_NULL_REFUSED, 1, most);
}

/* Of transformers' names or those of linear_attn_config. */
static inline struct ctw_delta_rule kda_delta(struct ctw_config *c, int64_t heads)
{
    struct ctw_delta_rule d = {.gate = CTW_ACT_SIGMOID, .by_channel = true};
    d.n_key = d.n_value =
        kda_count(c, "linear_attn_config.num_heads", "linear_num_heads", heads, 4096);
    d.key = d.value = d.rank =
        kda_count(c, "linear_attn_config.head_dim", "linear_head_dim", 128, CTW_MAX_DELTA_CHANNELS);
    d.taps = kda_count(c, "linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim", 4,
                       CTW_MAX_TAPS);
    return d;
}

/* The activation of MLPs, and of the delta rules' convolutions. */
static inline enum ctw_activation kda_activation(struct ctw_config *c)
{
    const enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    if (act != CTW_ACT_SILU)
        ctw_key_fail(c, "hidden_act", CTW_EUNSUP, "delta rules have silu alone");
    return act;
}

#endif
