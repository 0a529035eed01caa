/*
 * GLM (GLM-4-9B of 2024, GLM-Edge): Llama's layers with interleaved RoPE on half of each head, and
 * one module for gate and up. GLM 4 (0414), and the text model of GLM-4.1V: norms after both
 * branches as well. Defaults: GlmConfig, Glm4Config, Glm4vTextConfig.
 */
#include "worker/model/families/family.h"

/* What classes differ in; the numbers are defaults. */
struct rules {
    bool norms_after;
    bool fixed; /* biases of q, k and v, and the heads' size, have no keys */
    double eps, partial;
    int64_t max_length;
};

static void describe_with(struct ctw_config *c, const struct rules *rules)
{
    const struct ctw_sizes s =
        ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 151552,
                                             .hidden = 4096,
                                             .inner = 13696,
                                             .n_layers = 40,
                                             .n_head = 32,
                                             .n_kv = 2,
                                             .max_length = rules->max_length});
    int64_t head =
        rules->fixed ? ctw_key_same_head(c, &s) : ctw_key_head_dim(c, &s, 128, CTW_NULL_REFUSED);
    bool bias = rules->fixed || ctw_key_bool(c, "attention_bias", true);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", rules->eps);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                             .pairing = CTW_ROPE_INTERLEAVED,
                                                             .theta = 10000.0,
                                                             .partial_key = "partial_rotary_factor",
                                                             .partial = rules->partial});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        if (rules->norms_after) {
            ctw_describe_norm(c, i, CTW_AT_MIXER_OUT, &norm, "post_self_attn_layernorm", 0);
            ctw_describe_norm(c, i, CTW_AT_MLP_OUT, &norm, "post_mlp_layernorm", 0);
        }
        ctw_describe_attention(
            c, i, &(struct ctw_attention_rules){.head = head, .rope = rope, .qkv_bias = bias});
        ctw_describe_mlp(
            c, i, &(struct ctw_mlp){.inner = s.inner, .act = act, .fused = !ctw_is_unfused(c)});
    }
}

static void describe(struct ctw_config *c)
{
    describe_with(c, &(struct rules){.eps = 1.5625e-7, .partial = 0.5, .max_length = 131072});
}

static void describe4(struct ctw_config *c)
{
    describe_with(c,
                  &(struct rules){
                      .norms_after = true, .eps = 1.5625e-7, .partial = 0.5, .max_length = 131072});
}

static void describe4v(struct ctw_config *c)
{
    describe_with(
        c, &(struct rules){
               .norms_after = true, .fixed = true, .eps = 1e-5, .partial = 1, .max_length = 32768});
}

const struct ctw_family ctw_family_glm = {
    .model_type = "glm", .architecture = "GlmForCausalLM", .describe = describe};

const struct ctw_family ctw_family_glm4 = {
    .model_type = "glm4", .architecture = "Glm4ForCausalLM", .describe = describe4};

const struct ctw_family ctw_family_glm4v = {.model_type = "glm4v",
                                            .architecture = "Glm4vForConditionalGeneration",
                                            .wrapper = &(const struct ctw_wrapper){.flat = true},
                                            .spellings = ctw_wrapped_spellings,
                                            .describe = describe4v};

/* GLM 4.6 V's wrapper takes either text model of the GLM 4 V's. */
static const struct ctw_wrapper dense_in_v = {.text_type = "glm4v_text", .is_default = true};

const struct ctw_family ctw_family_glm46v = {.model_type = "glm46v",
                                             .architecture = "Glm46VForConditionalGeneration",
                                             .wrapper = &dense_in_v,
                                             .spellings = ctw_wrapped_spellings,
                                             .describe = describe4v};

const struct ctw_family ctw_family_glmga = {.model_type = "glmga",
                                            .architecture = "Glm46VForConditionalGeneration",
                                            .wrapper = &dense_in_v,
                                            .spellings = ctw_wrapped_spellings,
                                            .describe = describe4v};
