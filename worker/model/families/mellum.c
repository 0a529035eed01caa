/*
 * Mellum 2: Qwen 3's attention, a RoPE of its own for layers with a window, and a mixture in every
 * layer that mlp_layer_types does not call dense. Layers for drafts are not read. Defaults:
 * MellumConfig.
 */
#include "worker/model/families/layer_ropes.h"
#include "worker/model/families/qwen.h"

static int describe_rope(struct ctw_config *c, int64_t head, bool full)
{
    const struct ctw_rope_rules both = {
        .head = head, .theta = 10000.0, .partial_key = "partial_rotary_factor"};
    return layer_rope(c, both, full, "{\"rope_theta\": 500000.0}", "{\"rope_theta\": 10000.0}");
}

static void describe(struct ctw_config *c)
{
    enum { NO = CTW_NULL_REFUSED };
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 98304,
                                                                    .hidden = 2304,
                                                                    .inner = 7168,
                                                                    .n_layers = 28,
                                                                    .n_head = 32,
                                                                    .n_kv = 4,
                                                                    .max_length = 131072});
    const int64_t head = ctw_key_head_dim(c, &s, 128, NO);
    const bool bias = ctw_key_bool(c, "attention_bias", false);
    const int64_t window = ctw_key_int(c, "sliding_window", 1024, 0, 1, 1 << 30);
    const int64_t *windows =
        ctw_key_windows(c, s.n_layers, window, &(struct ctw_window_rule){.every = 1});
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_qk_norms qk_norms = {.form = norm};
    const struct ctw_mlp dense = {.inner = s.inner,
                                  .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    const struct ctw_experts experts =
        qwen_experts(c, dense.act, &(struct qwen_absent){64, 8, 896, true});
    const bool *sparse = ctw_key_layers_called(c, "mlp_layer_types", s.n_layers, "sparse", "dense");
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){.head = head,
                                          .rope = describe_rope(c, head, windows[i] == 0),
                                          .window = windows[i],
                                          .qkv_bias = bias,
                                          .o_bias = bias,
                                          .norms = &qk_norms});
        if (sparse == NULL || sparse[i])
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &dense);
    }
}

const struct ctw_family ctw_family_mellum = {
    .model_type = "mellum", .architecture = "MellumForCausalLM", .describe = describe};
