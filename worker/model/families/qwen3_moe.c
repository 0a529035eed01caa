/* Qwen 3 with mixtures of experts: Qwen 3's attention, and layers that are dense or mixtures.
 * Defaults: Qwen3MoeConfig. */
#include "worker/model/families/qwen.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 151936,
                                                                    .hidden = 2048,
                                                                    .inner = 6144,
                                                                    .n_layers = 24,
                                                                    .n_head = 32,
                                                                    .n_kv = 4,
                                                                    .max_length = 32768});
    int64_t head = ctw_key_head_dim(c, &s, 0, 0); /* not a field of the class */
    bool bias = ctw_key_bool(c, "attention_bias", false);
    bool windows = ctw_key_bool(c, "use_sliding_window", false);
    int64_t window = ctw_key_int(c, "sliding_window", 4096, 0, 0, 1 << 30);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_mlp dense = {.inner = s.inner,
                                  .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    const struct ctw_experts experts =
        qwen_experts(c, dense.act, &(struct qwen_absent){128, 8, 768, false});
    bool sparse[CTW_MAX_DECODERS];
    qwen_sparse_layers(c, s.n_layers, experts.n, sparse);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    const struct ctw_qk_norms head_norms = {.form = norm};
    const struct ctw_attention_rules attention = {
        .head = head,
        .rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0}),
        .window = windows ? window : 0,
        .qkv_bias = bias,
        .o_bias = bias,
        .norms = &head_norms};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i, &attention);
        if (sparse[i])
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &dense);
    }
}

const struct ctw_family ctw_family_qwen3_moe = {
    .model_type = "qwen3_moe", .architecture = "Qwen3MoeForCausalLM", .describe = describe};
