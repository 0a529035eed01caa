/*
 * Qwen 1.5 and 2 with mixtures of experts: Qwen 2's attention, and layers that are dense or
 * mixtures, with a shared expert that has a gate. Defaults: Qwen2MoeConfig.
 */
#include "worker/model/families/qwen.h"

/* Without layer_types, every other layer below max_window_layers has the window, the first too. */
static const int64_t *key_windows(struct ctw_config *c, int64_t n_layers)
{
    bool full[CTW_MAX_DECODERS];
    bool on = ctw_key_bool(c, "use_sliding_window", false);
    int64_t window = ctw_key_int(c, "sliding_window", 4096, 0, 0, 1 << 30);
    int64_t last = ctw_key_int(c, "max_window_layers", 28, CTW_NULL_REFUSED, 0, 1 << 20);
    for (int64_t i = 0; i < CTW_MAX_DECODERS; i++)
        full[i] = i % 2 != 0 || i >= last;
    return ctw_key_windows(c, n_layers, on ? window : 0, &(struct ctw_window_rule){.full = full});
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 151936,
                                                                    .hidden = 2048,
                                                                    .inner = 5632,
                                                                    .n_layers = 24,
                                                                    .n_head = 16,
                                                                    .n_kv = 16,
                                                                    .max_length = 32768});
    int64_t head = ctw_key_head_dim(c, &s, 0, 0); /* not a field of the class */
    bool bias = ctw_key_bool(c, "qkv_bias", true);
    const int64_t *windows = key_windows(c, s.n_layers);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_mlp dense = {.inner = s.inner,
                                  .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    struct ctw_mlp shared;
    struct ctw_experts experts =
        qwen_experts(c, dense.act, &(struct qwen_absent){60, 4, 1408, false});
    qwen_shared_expert(c, &experts, 5632, &shared);
    experts.shared_gate = "mlp.shared_expert_gate";
    bool sparse[CTW_MAX_DECODERS];
    qwen_sparse_layers(c, s.n_layers, experts.n, sparse);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){
                .head = head, .rope = rope, .window = windows[i], .qkv_bias = bias});
        if (sparse[i])
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &dense);
    }
}

const struct ctw_family ctw_family_qwen2_moe = {
    .model_type = "qwen2_moe", .architecture = "Qwen2MoeForCausalLM", .describe = describe};
