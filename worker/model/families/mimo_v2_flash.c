/*
 * MiMo V2 Flash: layers with a window have sinks and twice the key heads of full layers. Value
 * heads have their own size, and values a factor. The first layer is dense, the others are mixtures
 * without a shared expert. Layers for drafts are not read. Defaults: MiMoV2FlashConfig.
 */
#include "worker/model/families/layer_ropes.h"
#include "worker/model/families/routed.h"

/* sliding_window_size counts the keys before a query; it takes precedence in the class. */
static int64_t key_window(struct ctw_config *c)
{
    int64_t before = ctw_key_int(c, "sliding_window_size", 0, 0, 1, 1 << 30);
    int64_t window = ctw_key_int(c, "sliding_window", 129, CTW_NULL_REFUSED, 1, 1 << 30);
    return before > 0 ? before + 1 : window;
}

static int describe_rope(struct ctw_config *c, int64_t head, bool full)
{
    const struct ctw_rope_rules both = {
        .head = head, .theta = 10000.0, .partial_key = "partial_rotary_factor"};
    return layer_rope(c, both, full,
                      "{\"rope_theta\": 5000000.0, \"partial_rotary_factor\": 0.334}",
                      "{\"rope_theta\": 10000.0, \"partial_rotary_factor\": 0.334}");
}

static void describe(struct ctw_config *c)
{
    enum { NO = CTW_NULL_REFUSED };
    static const struct routed_absent absent = {
        .n = 256, .chosen = 8, .inner = 2048, .normalised = true};
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 152576,
                                                                    .hidden = 4096,
                                                                    .inner = 16384,
                                                                    .n_layers = 48,
                                                                    .n_head = 64,
                                                                    .n_kv = 4,
                                                                    .max_length = 131072});
    int64_t head = ctw_key_head_dim(c, &s, 192, NO);
    int64_t head_v = ctw_key_int(c, "v_head_dim", 128, NO, 2, CTW_MAX_HEAD);
    double v_factor = ctw_key_number(c, "attention_value_scale", 0.707, 1, 1e-6, 1e6);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    int64_t window = key_window(c);
    const int64_t *windows =
        ctw_key_windows(c, s.n_layers, window, &(struct ctw_window_rule){.first = 1, .every = 6});
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    const struct routed mixture = routed_keys(c, &absent, act);
    const bool *sparse = ctw_key_layers_called(c, "mlp_layer_types", s.n_layers, "sparse", "dense");
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    for (int64_t i = 0; i < s.n_layers; i++) {
        bool full = windows[i] == 0;
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){.n_kv = full ? s.n_kv : 2 * s.n_kv,
                                          .head = head,
                                          .head_v = head_v,
                                          .v_factor = v_factor,
                                          .rope = describe_rope(c, head, full),
                                          .window = windows[i],
                                          .sinks = full ? NULL : "self_attn.attention_sink_bias",
                                          .qkv_bias = bias});
        if (sparse != NULL ? sparse[i] : i > 0)
            routed_describe(c, i, &mixture);
        else
            ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

static const struct ctw_renamed in_memory[] = {
    {"self_attn.attention_sink_bias", "self_attn.sinks"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_mimo_v2_flash = {.model_type = "mimo_v2_flash",
                                                    .architecture = "MiMoV2FlashForCausalLM",
                                                    .in_memory = in_memory,
                                                    .describe = describe};
