/*
 * Kimi Linear: delta rules with a decay for each channel (KDA), latent attention without positions
 * in some layers, sigmoid routing. Defaults: KimiLinearConfig.
 */
#include "kernels/conv.h"
#include "kernels/delta.h"
#include "worker/model/families/latent_keys.h"
#include "worker/model/recipe/delta_rule.h"

static const struct ctw_delta_names names = {.module = "self_attn", .a = "f", .out = "o_proj"};

/* Which layers have delta rules: by name, or by two lists that count from 1, or all but every
 * fourth. */
static void key_linear(struct ctw_config *c, int64_t n, bool *linear)
{
    static const char full_key[] = "linear_attn_config.full_attn_layers";
    const bool *named =
        ctw_key_layers_called(c, "layer_types", n, "linear_attention", "full_attention");
    const bool *full = named == NULL ? ctw_key_layer_set(c, full_key, n + 1) : NULL;
    const bool *delta =
        full != NULL ? ctw_key_layer_set(c, "linear_attn_config.kda_layers", n + 1) : NULL;
    for (int64_t i = 0; i < n && c->status == CTW_OK; i++) {
        linear[i] = named != NULL ? named[i] : delta != NULL ? delta[i + 1] : i == 0 || i % 4 != 0;
        if (delta != NULL && !delta[i + 1] && !full[i + 1])
            ctw_key_fail(c, full_key, CTW_EFORMAT,
                         "layer %lld, counted from 1, is neither here nor in kda_layers",
                         (long long)i + 1);
    }
}

/* Which layers have an MLP instead of a mixture. */
static void key_dense(struct ctw_config *c, int64_t n, bool *dense)
{
    const bool *named = ctw_key_layers_called(c, "mlp_layer_types", n, "dense", "sparse");
    const int64_t first =
        ctw_key_int(c, "first_k_dense_replace", 1, CTW_NULL_REFUSED, 0, CTW_MAX_DECODERS);
    for (int64_t i = 0; i < n; i++)
        dense[i] = named != NULL ? named[i] : i < first;
}

static int key_count(struct ctw_config *c, const char *in_object, const char *name, int64_t absent,
                     int64_t most)
{
    absent = ctw_key_int(c, name, absent, CTW_NULL_REFUSED, 1, most);
    return (int)ctw_key_int(c, in_object, absent, CTW_NULL_REFUSED, 1, most);
}

static struct ctw_delta_rule key_delta(struct ctw_config *c)
{
    struct ctw_delta_rule d = {.gate = CTW_ACT_SIGMOID, .by_channel = true};
    d.n_key = d.n_value =
        key_count(c, "linear_attn_config.num_heads", "linear_num_heads", 32, 4096);
    d.key = d.value = d.rank =
        key_count(c, "linear_attn_config.head_dim", "linear_head_dim", 128, CTW_MAX_DELTA_CHANNELS);
    d.taps = key_count(c, "linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim", 4,
                       CTW_MAX_TAPS);
    return d;
}

static int64_t key_either(struct ctw_config *c, const char *name, const char *other, int64_t absent,
                          int64_t most)
{
    return ctw_key_int(c, ctw_key_either(c, name, other), absent, CTW_NULL_REFUSED, 1, most);
}

static struct ctw_experts key_experts(struct ctw_config *c, enum ctw_activation act,
                                      struct ctw_mlp *shared)
{
    struct ctw_experts x = {.act = act,
                            .module = "block_sparse_moe.experts",
                            .gate = "w1",
                            .up = "w3",
                            .down = "w2",
                            .shared = shared};
    x.n = key_either(c, "num_experts", "num_local_experts", 256, CTW_MAX_EXPERTS);
    x.chosen = key_either(c, "num_experts_per_token", "num_experts_per_tok", 8,
                          x.n < CTW_MAX_CHOSEN ? x.n : CTW_MAX_CHOSEN);
    x.inner = ctw_key_int(c, "moe_intermediate_size", 1024, CTW_NULL_REFUSED, 1, 1 << 24);
    *shared = (struct ctw_mlp){
        .inner = x.inner * key_either(c, "num_shared_experts", "n_shared_experts", 1, 1024),
        .act = act,
        .gate = "block_sparse_moe.shared_experts.gate_proj",
        .up = "block_sparse_moe.shared_experts.up_proj",
        .down = "block_sparse_moe.shared_experts.down_proj"};
    const char *renormalise = ctw_key_either(c, "moe_renormalize", "norm_topk_prob");
    x.router = (struct ctw_router){
        .module = "block_sparse_moe.gate",
        .correction = "block_sparse_moe.gate.e_score_correction_bias",
        .score = CTW_SCORE_SIGMOID,
        .n_groups = key_either(c, "num_expert_group", "n_group", 1, x.n),
        .group_best = 2,
        .normalised = ctw_key_bool(c, renormalise, true),
        .sum_add = 1e-20,
        .scale = ctw_key_number(c, "routed_scaling_factor", 2.446, CTW_NULL_REFUSED, 1e-6, 1e6)};
    x.router.kept_groups = ctw_key_int(c, "topk_group", 1, CTW_NULL_REFUSED, 1, x.router.n_groups);
    return x;
}

static void describe(struct ctw_config *c)
{
    static const struct latent_absent absent = {
        .kv_rank = 512, .nope = 128, .rope = 64, .head_v = 128};
    const struct ctw_sizes s = ctw_key_sizes_as(
        c,
        &(struct ctw_sizes){.vocab = 163840,
                            .hidden = 2304,
                            .inner = 9216,
                            .n_layers = 27,
                            .n_head = 32,
                            .n_kv = 32,
                            .max_length = 1048576},
        &(struct ctw_size_keys){
            .max_length = ctw_key_either(c, "model_max_length", "max_position_embeddings")});
    struct ctw_latent_attention attention = latent_keys(c, &s, &absent);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    bool linear[CTW_MAX_DECODERS], dense[CTW_MAX_DECODERS];
    key_linear(c, s.n_layers, linear);
    key_dense(c, s.n_layers, dense);
    const struct ctw_delta_rule delta = key_delta(c);
    struct ctw_mlp shared;
    const struct ctw_experts experts = key_experts(c, act, &shared);
    const struct ctw_mlp mlp = {.inner = s.inner, .act = act};
    if (act != CTW_ACT_SILU)
        ctw_key_fail(c, "hidden_act", CTW_EUNSUP, "delta rules have silu alone");
    attention.rope_index = -1;
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    for (int64_t i = 0; i < s.n_layers && c->status == CTW_OK; i++) {
        ctw_describe_norms(c, i, &norm);
        if (linear[i])
            ctw_describe_delta_apart(c, i, &delta, &norm, &names);
        else
            ctw_describe_latent_attention(c, i, &attention);
        if (dense[i])
            ctw_describe_mlp(c, i, &mlp);
        else
            ctw_describe_experts(c, i, &experts);
    }
}

const struct ctw_family ctw_family_kimi_linear = {
    .model_type = "kimi_linear", .architecture = "KimiLinearForCausalLM", .describe = describe};
