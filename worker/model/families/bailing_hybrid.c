/*
 * Bailing Hybrid (Ling 3): delta rules with a decay for each channel, which has a bound, and in the
 * last layer of each group latent attention with a gate for each head; sigmoid routing in groups.
 * Defaults: BailingHybridConfig.
 */
#include "worker/model/families/kda_keys.h"

static const struct ctw_delta_names names = {.module = "attention", .a = "f", .out = "dense"};

static struct ctw_delta_rule key_delta(struct ctw_config *c, const struct ctw_sizes *s)
{
    struct ctw_delta_rule d = {.gate = CTW_ACT_SIGMOID, .by_channel = true};
    d.n_key = d.n_value = (int)s->n_head;
    d.key = d.value =
        (int)ctw_key_int(c, "head_dim", 128, CTW_NULL_REFUSED, 1, CTW_MAX_DELTA_CHANNELS);
    d.taps = (int)ctw_key_int(c, "short_conv_kernel_size", 4, CTW_NULL_REFUSED, 1, CTW_MAX_TAPS);
    double bound = ctw_key_number(c, "kda_lower_bound", -5, CTW_NULL_REFUSED, -1e3, -1e-3);
    if (ctw_key_bool(c, "kda_safe_gate", true))
        d.least_log = (float)bound;
    return d;
}

static void key_linear(struct ctw_config *c, int64_t n, bool *linear)
{
    const bool *named =
        ctw_key_layers_called(c, "layer_types", n, "linear_attention", "full_attention");
    const int64_t group =
        ctw_key_int(c, "layer_group_size", 6, CTW_NULL_REFUSED, 1, CTW_MAX_DECODERS);
    for (int64_t i = 0; i < n; i++)
        linear[i] = named != NULL ? named[i] : (i + 1) % group != 0;
}

static void describe(struct ctw_config *c)
{
    static const struct latent_absent absent = {.kv_rank = 512,
                                                .nope = 128,
                                                .rope = 64,
                                                .head_v = 128,
                                                .always_interleaved = true,
                                                .rope_rules = {.theta = 6000000.0}};
    static const struct kda_mixture mixture = {.n = 512,
                                               .inner = 768,
                                               .n_groups = 8,
                                               .kept_groups = 4,
                                               .scale = 2.5,
                                               .correction = "mlp.gate.expert_bias",
                                               .shared = {"mlp.shared_experts.gate_proj",
                                                          "mlp.shared_experts.up_proj",
                                                          "mlp.shared_experts.down_proj"}};
    const struct ctw_sizes s = ctw_key_sizes_as(
        c,
        &(struct ctw_sizes){.vocab = 157184,
                            .hidden = 2560,
                            .inner = 6144,
                            .n_layers = 42,
                            .n_head = 32,
                            .n_kv = 32,
                            .max_length = 262144},
        &(struct ctw_size_keys){
            .max_length = ctw_key_either(c, "model_max_length", "max_position_embeddings")});
    const char *drafts = ctw_key_either(c, "num_nextn_predict_layers", "num_mtp_layers");
    struct ctw_latent_attention attention = latent_keys(c, &s, &absent);
    attention.module = "attention";
    attention.out = "dense";
    attention.gate = "g_proj";
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_delta_rule delta = key_delta(c, &s);
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
    kda_dense(c, s.n_layers, 2, layers.dense);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.embed = "model.word_embeddings", .norm = norm});
    ctw_describe_drafts(c, ctw_key_int(c, drafts, 1, 0, 0, 64));
    latent_rope(c, &attention, &absent);
    kda_describe(c, s.n_layers, &layers);
}

const struct ctw_family ctw_family_bailing_hybrid = {.model_type = "bailing_hybrid",
                                                     .architecture = "BailingHybridForCausalLM",
                                                     .describe = describe};
