/*
 * Qwen 3 Next, and Qwen 3.5 and later, dense and with mixtures: gated delta rules, and attention
 * with gates in some layers; norms that multiply by 1 + weight. Defaults: Qwen3NextConfig,
 * Qwen3_5TextConfig, Qwen3_5MoeTextConfig.
 */
#include "worker/model/families/qwen_hybrid.h"

static void describe_mixers(struct ctw_config *c, const struct qwen_hybrid *k)
{
    const struct ctw_qk_norms qk_norms = {.form = k->norm};
    ctw_describe_model(c, &k->s, &(struct ctw_model_rules){.norm = k->norm});
    const struct ctw_attention_rules attention = {
        .n_head = k->s.n_head,
        .n_kv = k->s.n_kv,
        .head = k->head,
        .rope =
            ctw_describe_rope(c, &(struct ctw_rope_rules){.head = k->head,
                                                          .theta = 10000.0,
                                                          .partial_key = "partial_rotary_factor",
                                                          .partial = 0.25}),
        .qkv_bias = k->bias,
        .o_bias = k->bias,
        .norms = &qk_norms,
        .gate = CTW_GATE_SIGMOID,
        .gate_in_q = true};
    for (int64_t i = 0; i < k->s.n_layers; i++) {
        ctw_describe_norms(c, i, &k->norm);
        if (k->linear != NULL ? k->linear[i] : (i + 1) % k->interval != 0)
            ctw_describe_delta_rule(c, i, &k->delta, &k->heads_norm);
        else
            ctw_describe_attention(c, i, &attention);
    }
}

static void describe_next(struct ctw_config *c)
{
    const struct qwen_hybrid k = qwen_hybrid_keys(c,
                                                  &(struct ctw_sizes){.vocab = 151936,
                                                                      .hidden = 2048,
                                                                      .inner = 5632,
                                                                      .n_layers = 48,
                                                                      .n_head = 16,
                                                                      .n_kv = 2,
                                                                      .max_length = 32768},
                                                  true, "full_attention");
    bool sparse[CTW_MAX_DECODERS];
    struct ctw_mlp shared;
    struct ctw_experts experts = qwen_hybrid_experts(c, &shared, 512, 10);
    experts.router.normalised = ctw_key_bool(c, "norm_topk_prob", true);
    qwen_sparse_layers(c, k.s.n_layers, experts.n, sparse);
    describe_mixers(c, &k);
    for (int64_t i = 0; i < k.s.n_layers; i++)
        if (sparse[i])
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = k.s.inner, .act = CTW_ACT_SILU});
}

static void describe_dense(struct ctw_config *c)
{
    const struct qwen_hybrid k = qwen_hybrid_keys(c,
                                                  &(struct ctw_sizes){.vocab = 248320,
                                                                      .hidden = 4096,
                                                                      .inner = 12288,
                                                                      .n_layers = 32,
                                                                      .n_head = 16,
                                                                      .n_kv = 4,
                                                                      .max_length = 32768},
                                                  false, "full_attention");
    describe_mixers(c, &k);
    for (int64_t i = 0; i < k.s.n_layers; i++)
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = k.s.inner, .act = CTW_ACT_SILU});
}

static void describe_moe(struct ctw_config *c)
{
    const struct qwen_hybrid k = qwen_hybrid_keys(c,
                                                  &(struct ctw_sizes){.vocab = 248320,
                                                                      .hidden = 2048,
                                                                      .n_layers = 40,
                                                                      .n_head = 16,
                                                                      .n_kv = 2,
                                                                      .max_length = 32768},
                                                  false, "full_attention");
    struct ctw_mlp shared;
    struct ctw_experts experts = qwen_hybrid_experts(c, &shared, 256, 8);
    experts.stacked = experts.fused = true;
    describe_mixers(c, &k);
    for (int64_t i = 0; i < k.s.n_layers; i++)
        ctw_describe_experts(c, i, &experts);
}

const struct ctw_family ctw_family_qwen3_next = {
    .model_type = "qwen3_next", .architecture = "Qwen3NextForCausalLM", .describe = describe_next};

const struct ctw_family ctw_family_qwen3_5_text = {.model_type = "qwen3_5_text",
                                                   .architecture = "Qwen3_5ForCausalLM",
                                                   .old_architecture =
                                                       "Qwen3_5ForConditionalGeneration",
                                                   .spellings = ctw_wrapped_spellings,
                                                   .describe = describe_dense};

const struct ctw_family ctw_family_qwen3_5 = {.model_type = "qwen3_5",
                                              .architecture = "Qwen3_5ForConditionalGeneration",
                                              .wrapper = &(const struct ctw_wrapper){0},
                                              .spellings = ctw_wrapped_spellings,
                                              .describe = describe_dense};

const struct ctw_family ctw_family_qwen3_5_moe_text = {.model_type = "qwen3_5_moe_text",
                                                       .architecture = "Qwen3_5MoeForCausalLM",
                                                       .old_architecture =
                                                           "Qwen3_5MoeForConditionalGeneration",
                                                       .spellings = ctw_wrapped_spellings,
                                                       .describe = describe_moe};

const struct ctw_family ctw_family_qwen3_5_moe = {.model_type = "qwen3_5_moe",
                                                  .architecture =
                                                      "Qwen3_5MoeForConditionalGeneration",
                                                  .wrapper = &(const struct ctw_wrapper){0},
                                                  .spellings = ctw_wrapped_spellings,
                                                  .describe = describe_moe};
