/*
 * Kimi Linear: delta rules with a decay for each channel (KDA), latent attention without positions
 * in some layers, sigmoid routing. Defaults: KimiLinearConfig.
 */
#include "worker/model/families/kda_keys.h"

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

static void describe(struct ctw_config *c)
{
    static const struct latent_absent absent = {
        .kv_rank = 512, .nope = 128, .rope = 64, .head_v = 128};
    static const struct kda_mixture mixture = {
        .n = 256,
        .inner = 1024,
        .n_groups = 1,
        .kept_groups = 1,
        .scale = 2.446,
        .module = "block_sparse_moe.experts",
        .gate = "w1",
        .up = "w3",
        .down = "w2",
        .router = "block_sparse_moe.gate",
        .correction = "block_sparse_moe.gate.e_score_correction_bias",
        .shared = {"block_sparse_moe.shared_experts.gate_proj",
                   "block_sparse_moe.shared_experts.up_proj",
                   "block_sparse_moe.shared_experts.down_proj"}};
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
    attention.rope_index = -1;
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_delta_rule delta = key_delta(c);
    const struct ctw_mlp mlp = {.inner = s.inner, .act = kda_activation(c)};
    struct ctw_mlp shared;
    const struct ctw_experts experts = kda_experts(c, &mixture, mlp.act, &shared);
    struct kda_layers layers = {.norm = &norm,
                                .delta = &delta,
                                .names = &names,
                                .attention = &attention,
                                .mlp = &mlp,
                                .experts = &experts};
    key_linear(c, s.n_layers, layers.linear);
    kda_dense(c, s.n_layers, 1, layers.dense);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    kda_describe(c, s.n_layers, &layers);
}

const struct ctw_family ctw_family_kimi_linear = {
    .model_type = "kimi_linear", .architecture = "KimiLinearForCausalLM", .describe = describe};
