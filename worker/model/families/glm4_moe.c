/*
 * GLM-4.5 and 4.6: Llama's attention with RoPE on half of each head and, in the larger models,
 * norms of heads; a mixture behind the first layers; a layer for drafts. The text model of GLM-4.5V
 * and 4.6V: without norms of heads. Defaults: Glm4MoeConfig, Glm4vMoeTextConfig.
 */
#include "worker/model/families/routed.h"

static void describe_with(struct ctw_config *c, bool vision)
{
    static const struct routed_absent absent = {
        .n = 128, .chosen = 8, .inner = 1408, .n_shared = 1, .normalised = true};
    const struct ctw_sizes s =
        ctw_key_sizes(c, &(struct ctw_sizes){.vocab = vision ? 151424 : 151552,
                                             .hidden = 4096,
                                             .inner = 10944,
                                             .n_layers = 46,
                                             .n_head = 96,
                                             .n_kv = 8,
                                             .max_length = vision ? 65536 : 131072});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    bool bias = ctw_key_bool(c, "attention_bias", vision);
    bool has_norms = !vision && ctw_key_bool(c, "use_qk_norm", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_qk_norms qk_norms = {.form = norm};
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    struct routed mixture = routed_keys(c, &absent, act);
    routed_key_shared(c, &absent, &mixture);
    int64_t dense = ctw_key_int(c, "first_k_dense_replace", 1, CTW_NULL_REFUSED, 0, 1 << 20);
    int64_t drafts = ctw_key_int(c, "num_nextn_predict_layers", vision ? 0 : 1, 0, 0, 64);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    ctw_describe_drafts(c, drafts);
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                             .theta = 10000.0,
                                                             .partial_key = "partial_rotary_factor",
                                                             .partial = 0.5});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){.head = head,
                                          .rope = rope,
                                          .qkv_bias = bias,
                                          .norms = has_norms ? &qk_norms : NULL});
        if (i < dense)
            ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
        else
            routed_describe(c, i, &mixture);
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

const struct ctw_family ctw_family_glm4_moe = {
    .model_type = "glm4_moe", .architecture = "Glm4MoeForCausalLM", .describe = describe};

const struct ctw_family ctw_family_glm4v_moe = {.model_type = "glm4v_moe",
                                                .architecture = "Glm4vMoeForConditionalGeneration",
                                                .wrapper =
                                                    &(const struct ctw_wrapper){.flat = true},
                                                .spellings = ctw_wrapped_spellings,
                                                .describe = describe_vision};

static const struct ctw_wrapper mixture_in_v = {.text_type = "glm4v_moe_text"};

const struct ctw_family ctw_family_glm46v_moe = {.model_type = "glm46v",
                                                 .architecture = "Glm46VForConditionalGeneration",
                                                 .wrapper = &mixture_in_v,
                                                 .spellings = ctw_wrapped_spellings,
                                                 .describe = describe_vision};

const struct ctw_family ctw_family_glmga_moe = {.model_type = "glmga",
                                                .architecture = "Glm46VForConditionalGeneration",
                                                .wrapper = &mixture_in_v,
                                                .spellings = ctw_wrapped_spellings,
                                                .describe = describe_vision};
