/*
 * GLM (GLM-4-9B of 2024, GLM-Edge): Llama's layers with interleaved RoPE on half of each head, and
 * one module for gate and up. GLM 4 (0414): norms after both branches as well. Defaults: GlmConfig,
 * Glm4Config.
 */
#include "worker/model/families/family.h"

extern const struct ctw_family ctw_family_glm;
extern const struct ctw_family ctw_family_glm4;

static void describe_with(struct ctw_config *c, bool norms_after)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 151552,
                                                                    .hidden = 4096,
                                                                    .inner = 13696,
                                                                    .n_layers = 40,
                                                                    .n_head = 32,
                                                                    .n_kv = 2,
                                                                    .max_length = 131072});
    int64_t head = ctw_key_head_dim(c, &s, 128, CTW_NULL_REFUSED);
    bool bias = ctw_key_bool(c, "attention_bias", true);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1.5625e-7);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                             .pairing = CTW_ROPE_INTERLEAVED,
                                                             .theta = 10000.0,
                                                             .partial_key = "partial_rotary_factor",
                                                             .partial = 0.5});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        if (norms_after) {
            ctw_describe_norm(c, i, CTW_AT_MIXER_OUT, &norm, "post_self_attn_layernorm", 0);
            ctw_describe_norm(c, i, CTW_AT_MLP_OUT, &norm, "post_mlp_layernorm", 0);
        }
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention){
                .n_head = s.n_head, .n_kv = s.n_kv, .head = head, .rope = rope, .qkv_bias = bias});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act, .fused = true});
    }
}

static void describe(struct ctw_config *c)
{
    describe_with(c, false);
}

static void describe4(struct ctw_config *c)
{
    describe_with(c, true);
}

const struct ctw_family ctw_family_glm = {
    .model_type = "glm", .architecture = "GlmForCausalLM", .describe = describe};

const struct ctw_family ctw_family_glm4 = {
    .model_type = "glm4", .architecture = "Glm4ForCausalLM", .describe = describe4};
