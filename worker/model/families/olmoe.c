/*
 * OLMoE: norms over all heads of q and of k together, after which q, k and v may be clamped; a
 * mixture in all layers. FlexOlmo: the same with norms after the branches instead of before, and
 * nothing clamped. Defaults: OlmoeConfig, FlexOlmoConfig.
 */
#include "worker/model/families/family.h"

static struct ctw_experts key_experts(struct ctw_config *c, int64_t inner, int64_t n,
                                      int64_t chosen)
{
    enum { NO = CTW_NULL_REFUSED };
    const char *n_key = ctw_key_either(c, "num_experts", "num_local_experts");
    return (struct ctw_experts){
        .n = ctw_key_int(c, n_key, n, NO, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", chosen, NO, 1, CTW_MAX_CHOSEN),
        .inner = inner,
        .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
        .router = {.score = CTW_SCORE_SOFTMAX,
                   .normalised = ctw_key_bool(c, "norm_topk_prob", false)}};
}

static void describe_with(struct ctw_config *c, bool flex)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = flex ? 100352 : 50304,
                                                                    .hidden = flex ? 4096 : 2048,
                                                                    .inner = flex ? 11008 : 2048,
                                                                    .n_layers = flex ? 32 : 16,
                                                                    .n_head = flex ? 32 : 16,
                                                                    .n_kv = 0,
                                                                    .max_length = 4096});
    /* FlexOlmo: no field of the class, but read if present. */
    int64_t head = flex ? ctw_key_head_dim(c, &s, 0, 0) : ctw_key_same_head(c, &s);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    double limit = flex ? 0 : ctw_key_number(c, "clip_qkv", 0, 0, 1e-6, 1e9);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", flex ? 1e-6 : 1e-5);
    const struct ctw_qk_norms qk_norms = {.form = norm, .heads = CTW_HEADS_WIDE};
    const struct ctw_experts experts = key_experts(c, s.inner, flex ? 7 : 64, flex ? 5 : 8);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(
        c, &(struct ctw_rope_rules){.head = head, .theta = flex ? 500000.0 : 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        if (flex) {
            ctw_describe_norm(c, i, CTW_AT_MIXER_OUT, &norm, "post_attention_layernorm", 0);
            ctw_describe_norm(c, i, CTW_AT_MLP_OUT, &norm, "post_feedforward_layernorm", 0);
        } else {
            ctw_describe_norms(c, i, &norm);
        }
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){.head = head,
                                                             .rope = rope,
                                                             .limit = limit,
                                                             .limit_normed = true,
                                                             .qkv_bias = bias,
                                                             .o_bias = bias,
                                                             .norms = &qk_norms});
        ctw_describe_experts(c, i, &experts);
    }
}

static void describe(struct ctw_config *c)
{
    describe_with(c, false);
}

static void describe_flex(struct ctw_config *c)
{
    describe_with(c, true);
}

const struct ctw_family ctw_family_olmoe = {
    .model_type = "olmoe", .architecture = "OlmoeForCausalLM", .describe = describe};

const struct ctw_family ctw_family_flex_olmo = {
    .model_type = "flex_olmo", .architecture = "FlexOlmoForCausalLM", .describe = describe_flex};
