/*
 * Gemma 3: Gemma 2's layers with norms on the heads of q and k; layers with a window, five of six
 * by default, have a RoPE of their own. The classes do not use attn_logit_softcapping, and the
 * multimodal class does not use final_logit_softcapping. Defaults: Gemma3TextConfig.
 */
#include "worker/model/families/gemma.h"

static const struct ctw_sizes absent = {.vocab = 262208,
                                        .hidden = 2304,
                                        .inner = 9216,
                                        .n_layers = 26,
                                        .n_head = 8,
                                        .n_kv = 4,
                                        .max_length = 131072};

static void describe_with(struct ctw_config *c, bool vision)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &absent);
    int64_t head = ctw_key_head_dim(c, &s, 256, CTW_NULL_REFUSED);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = gemma_key_norm(c);
    const struct ctw_qk_norms qk_norms = {.form = norm};
    enum ctw_activation act = ctw_key_activation(c, "hidden_activation", CTW_ACT_GELU_TANH);
    double scale = gemma_key_scale(c);
    double cap = vision ? 0 : ctw_key_number(c, "final_logit_softcapping", 0, 0, 1e-6, 1e9);
    int64_t window = ctw_key_int(c, "sliding_window", 4096, 0, 1, 1 << 30);
    int64_t every = ctw_key_int(c, "sliding_window_pattern", 6, CTW_NULL_REFUSED, 1, 1 << 20);
    const int64_t *windows =
        ctw_key_windows(c, s.n_layers, window, &(struct ctw_window_rule){.every = every});
    gemma_check_causal(c);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.norm = norm,
                                                 .tied = true,
                                                 .embed_scale = gemma_embed_scale(s.hidden),
                                                 .head_softcap = cap});
    for (int64_t i = 0; i < s.n_layers; i++) {
        gemma_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){.head = head,
                                          .rope = gemma_describe_rope(c, head, windows[i] != 0),
                                          .window = windows[i],
                                          .scale = scale,
                                          .qkv_bias = bias,
                                          .o_bias = bias,
                                          .norms = &qk_norms});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

static void describe(struct ctw_config *c)
{
    describe_with(c, false);
}

static void describe_vision(struct ctw_config *c)
{
    describe_with(c, true);
}

const struct ctw_family ctw_family_gemma3_text = {
    .model_type = "gemma3_text", .architecture = "Gemma3ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_gemma3 = {
    .model_type = "gemma3",
    .architecture = "Gemma3ForConditionalGeneration",
    .wrapper =
        &(const struct ctw_wrapper){.text_type = "gemma3_text", .is_default = true, .tied = true},
    .spellings = ctw_wrapped_spellings,
    .describe = describe_vision};
