/*
 * dots.llm1: Qwen 3's attention, a mixture behind the first layers. Windows only from
 * max_window_layers on. Defaults: Dots1Config.
 */
#include "worker/model/families/routed.h"

static void describe(struct ctw_config *c)
{
    enum { NO = CTW_NULL_REFUSED };
    static const struct routed_absent absent = {
        .n = NO, .chosen = NO, .inner = 1408, .n_shared = NO, .normalised = false};
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 152064,
                                                                    .hidden = 4608,
                                                                    .inner = 10944,
                                                                    .n_layers = 62,
                                                                    .n_head = 32,
                                                                    .n_kv = 32,
                                                                    .max_length = 2048});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    int64_t window = ctw_key_int(c, "sliding_window", 4096, 0, 1, 1 << 30);
    int64_t first = ctw_key_int(c, "max_window_layers", 62, NO, 0, 1 << 20);
    const int64_t *windows =
        ctw_key_windows(c, s.n_layers, window, &(struct ctw_window_rule){.first = first});
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_qk_norms qk_norms = {.form = norm};
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    struct routed mixture = routed_keys(c, &absent, act);
    routed_key_shared(c, &absent, &mixture);
    int64_t dense = ctw_key_int(c, "first_k_dense_replace", 0, NO, 0, 1 << 20);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){.head = head,
                                                             .rope = rope,
                                                             .window = windows[i],
                                                             .qkv_bias = bias,
                                                             .o_bias = bias,
                                                             .norms = &qk_norms});
        if (i < dense)
            ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
        else
            routed_describe(c, i, &mixture);
    }
}

const struct ctw_family ctw_family_dots1 = {
    .model_type = "dots1", .architecture = "Dots1ForCausalLM", .describe = describe};
