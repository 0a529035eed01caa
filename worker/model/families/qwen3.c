/*
 * Qwen 3 (dense): norms on the heads of q and k, an independent head_dim. Defaults: Qwen3Config.
 * The text model of Qwen 3 VL has no windows: Qwen3VLTextConfig.
 */
#include "worker/model/families/qwen.h"

static void describe_with(struct ctw_config *c, int64_t max_length, double rope_theta, bool windows)
{
    static const int64_t none[CTW_MAX_DECODERS];
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 151936,
                                                                    .hidden = 4096,
                                                                    .inner = 22016,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 32,
                                                                    .max_length = max_length});
    int64_t head = ctw_key_head_dim(c, &s, 128, CTW_NULL_REFUSED);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const int64_t *window = windows ? qwen_windows(c, s.n_layers, 28) : none;
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = rope_theta});
    const struct ctw_qk_norms head_norms = {.form = norm};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){.head = head,
                                                             .rope = rope,
                                                             .window = window[i],
                                                             .qkv_bias = bias,
                                                             .o_bias = bias,
                                                             .norms = &head_norms});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

static void describe(struct ctw_config *c)
{
    describe_with(c, 32768, 10000.0, true);
}

static void describe_vl(struct ctw_config *c)
{
    describe_with(c, 128000, 500000.0, false);
}

const struct ctw_family ctw_family_qwen3 = {
    .model_type = "qwen3", .architecture = "Qwen3ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_qwen3_vl = {.model_type = "qwen3_vl",
                                               .architecture = "Qwen3VLForConditionalGeneration",
                                               .wrapper = &(const struct ctw_wrapper){0},
                                               .spellings = ctw_wrapped_spellings,
                                               .describe = describe_vl};
