/*
 * OLMoE: norms over all heads of q and of k together, after which q, k and v may be clamped; a
 * mixture in all layers. Defaults: OlmoeConfig.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    enum { NO = CTW_NULL_REFUSED };
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 50304,
                                                                    .hidden = 2048,
                                                                    .inner = 2048,
                                                                    .n_layers = 16,
                                                                    .n_head = 16,
                                                                    .n_kv = 0,
                                                                    .max_length = 4096});
    int64_t head = ctw_key_same_head(c, &s);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    double limit = ctw_key_number(c, "clip_qkv", 0, 0, 1e-6, 1e9);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_qk_norms qk_norms = {.form = norm, .heads = CTW_HEADS_WIDE};
    const char *n = ctw_key_either(c, "num_experts", "num_local_experts");
    const struct ctw_experts experts = {
        .n = ctw_key_int(c, n, 64, NO, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 8, NO, 1, CTW_MAX_CHOSEN),
        .inner = s.inner,
        .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
        .router = {.score = CTW_SCORE_SOFTMAX,
                   .normalised = ctw_key_bool(c, "norm_topk_prob", false)}};
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
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

const struct ctw_family ctw_family_olmoe = {
    .model_type = "olmoe", .architecture = "OlmoeForCausalLM", .describe = describe};
