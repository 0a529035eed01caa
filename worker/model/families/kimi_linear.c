/*
 * Kimi Linear: delta rules with a decay for each channel (KDA), latent attention without positions
 * in some layers, sigmoid routing. Kimi K3, the text model: the same with attention residuals
 * (branches read weighted sums of blocks of layers), a bounded decay, gates of attention's output,
 * experts with a latent width, and an activation that bounds gate and up. Defaults:
 * KimiLinearConfig; for K3, which transformers does not have, those of mlx-lm's class.
 */
#include <math.h>

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

static const struct kda_mixture mixture_names = {
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

static struct ctw_sizes key_sizes(struct ctw_config *c, const struct ctw_sizes *absent)
{
    const char *longest = ctw_key_either(c, "model_max_length", "max_position_embeddings");
    return ctw_key_sizes_as(c, absent, &(struct ctw_size_keys){.max_length = longest});
}

static void describe(struct ctw_config *c)
{
    static const struct latent_absent absent = {
        .kv_rank = 512, .nope = 128, .rope = 64, .head_v = 128};
    const struct ctw_sizes s = key_sizes(c, &(struct ctw_sizes){.vocab = 163840,
                                                                .hidden = 2304,
                                                                .inner = 9216,
                                                                .n_layers = 27,
                                                                .n_head = 32,
                                                                .n_kv = 32,
                                                                .max_length = 1048576});
    struct ctw_latent_attention attention = latent_keys(c, &s, &absent);
    attention.rope_index = -1;
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_delta_rule delta = kda_delta(c, 32);
    const struct ctw_mlp mlp = {.inner = s.inner, .act = kda_activation(c)};
    struct ctw_mlp shared;
    const struct ctw_experts experts = kda_experts(c, &mixture_names, mlp.act, &shared);
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

/* ---- Kimi K3: its keys and their defaults are those of the makers' files ---- */

/* The MLPs' activation, which bounds gate and up. */
static struct ctw_glu key_situ(struct ctw_config *c)
{
    if (!ctw_key_is(c, "hidden_act", "situ"))
        ctw_key_fail(c, "hidden_act", CTW_EUNSUP, "expected \"situ\"");
    return (struct ctw_glu){
        .kind = CTW_GLU_BOUNDED,
        .alpha = (float)ctw_key_number(c, "activation_situ_beta", 1, 1, 1e-6, 1e6),
        .limit = (float)ctw_key_number(c, "activation_situ_linear_beta", (double)INFINITY,
                                       (double)INFINITY, 1e-6, (double)INFINITY)};
}

static struct ctw_delta_rule key_k3_delta(struct ctw_config *c)
{
    struct ctw_delta_rule d = kda_delta(c, 32);
    d.least_log =
        (float)ctw_key_number(c, "linear_attn_config.gate_lower_bound", 0, 0, -1e3, -1e-3);
    d.z_is_whole = ctw_key_bool(c, "linear_attn_config.use_full_rank_gate", false);
    return d;
}

static struct ctw_latent_attention key_k3_attention(struct ctw_config *c, const struct ctw_sizes *s)
{
    static const struct latent_absent absent = {
        .q_rank = 1536, .kv_rank = 512, .nope = 128, .rope = 64, .head_v = 128};
    struct ctw_latent_attention a = latent_keys(c, s, &absent);
    if (!ctw_key_bool(c, "mla_use_nope", true))
        ctw_key_fail(c, "mla_use_nope", CTW_EUNSUP, "false is not supported");
    a.rope_index = -1;
    a.gate_values = true;
    a.gate = ctw_key_bool(c, "mla_use_output_gate", false) ? "g_proj" : NULL;
    return a;
}

/* Which layers have an MLP instead of a mixture. */
static void key_k3_dense(struct ctw_config *c, int64_t n, bool *dense)
{
    const int64_t every = ctw_key_int(c, "moe_layer_freq", 1, CTW_NULL_REFUSED, 1, 1 << 20);
    kda_dense(c, n, 0, dense);
    for (int64_t i = 0; i < n; i++)
        dense[i] |= i % every != 0;
}

/* GGUF files have one vector in place of two, their product. */
static void describe_blends(struct ctw_config *c, int64_t n)
{
    const bool one = ctw_files_find(c, "output_attn_res.weight") != NULL;
    for (int64_t i = 0; i < n; i++) {
        ctw_describe_blend(c, i, CTW_MIXER, one ? "self_attention_res" : "self_attention_res_norm",
                           one ? NULL : "self_attention_res_proj");
        ctw_describe_blend(c, i, CTW_MLP, one ? "mlp_res" : "mlp_res_norm",
                           one ? NULL : "mlp_res_proj");
    }
    ctw_describe_blend(c, n, 0, one ? "model.output_attn_res" : "model.output_attn_res_norm",
                       one ? NULL : "model.output_attn_res_proj");
}

static void describe_k3(struct ctw_config *c)
{
    const struct ctw_sizes s = key_sizes(c, &(struct ctw_sizes){.vocab = 163840,
                                                                .hidden = 7168,
                                                                .inner = 33792,
                                                                .n_layers = 93,
                                                                .n_head = 96,
                                                                .n_kv = 96,
                                                                .max_length = 1048576});
    const struct ctw_latent_attention attention = key_k3_attention(c, &s);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_delta_rule delta = key_k3_delta(c);
    const struct ctw_mlp mlp = {.inner = s.inner, .glu = key_situ(c)};
    struct kda_mixture mixture = mixture_names;
    struct ctw_mlp shared;
    mixture.glu = mlp.glu;
    mixture.scale = 1;
    struct ctw_experts experts = kda_experts(c, &mixture, mlp.act, &shared);
    experts.latent = ctw_key_int(c, "routed_expert_hidden_size", 0, 0, 1, 1 << 20);
    experts.latent_in = "block_sparse_moe.routed_expert_down_proj";
    experts.latent_out = "block_sparse_moe.routed_expert_up_proj";
    const bool normed = ctw_key_bool(c, "latent_moe_use_norm", false) && experts.latent > 0;
    const int64_t block = ctw_key_int(c, "attn_res_block_size", 0, 0, 1, CTW_MAX_DECODERS);
    struct kda_layers layers = {.norm = &norm,
                                .delta = &delta,
                                .names = &names,
                                .attention = &attention,
                                .mlp = &mlp,
                                .experts = &experts};
    key_linear(c, s.n_layers, layers.linear);
    key_k3_dense(c, s.n_layers, layers.dense);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    ctw_describe_drafts(c, ctw_key_int(c, "num_nextn_predict_layers", 0, 0, 0, 64));
    kda_describe(c, s.n_layers, &layers);
    for (int64_t i = 0; i < s.n_layers && normed; i++)
        if (!layers.dense[i])
            ctw_describe_norm(c, i, ctw_norm_at(CTW_MLP, CTW_AT_LATENT), &norm,
                              "block_sparse_moe.routed_expert_norm", experts.latent);
    if (block > 0) {
        ctw_describe_block_sums(c, block, norm.eps);
        describe_blends(c, s.n_layers);
    }
}

const struct ctw_family ctw_family_kimi_linear = {
    .model_type = "kimi_linear", .architecture = "KimiLinearForCausalLM", .describe = describe};

const struct ctw_family ctw_family_kimi_k3 = {
    .model_type = "kimi_k3",
    .architecture = "KimiK3ForConditionalGeneration",
    .wrapper = &(const struct ctw_wrapper){.text_type = "kimi_linear", .is_default = true},
    .spellings = ctw_wrapped_spellings,
    .describe = describe_k3};
