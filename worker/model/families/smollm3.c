/*
 * SmolLM3: Llama's layers, some without RoPE; those may have a window. Defaults: SmolLM3Config.
 */
#include "worker/model/families/family.h"

/* Without layer_types, a window is for the layers without RoPE. */
static const int64_t *key_windows(struct ctw_config *c, int64_t n_layers, const bool *has_rope)
{
    bool on = ctw_key_bool(c, "use_sliding_window", false);
    int64_t window = ctw_key_int(c, "sliding_window", 0, 0, 1, 1 << 30);
    return ctw_key_windows(c, n_layers, on ? window : 0,
                           &(struct ctw_window_rule){.full = has_rope});
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 128256,
                                                                    .hidden = 2048,
                                                                    .inner = 11008,
                                                                    .n_layers = 36,
                                                                    .n_head = 16,
                                                                    .n_kv = 4,
                                                                    .max_length = 32768});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, CTW_NULL_REFUSED);
    int64_t every = ctw_key_int(c, "no_rope_layer_interval", 4, CTW_NULL_REFUSED, 1, 1 << 30);
    const bool *has_rope = ctw_key_layers(c, "no_rope_layers", s.n_layers, every);
    const int64_t *windows = key_windows(c, s.n_layers, has_rope);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    bool mlp_bias = ctw_key_bool(c, "mlp_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm, .tied = true});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 2000000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){.head = head,
                                                             .rope = has_rope[i] ? rope : -1,
                                                             .window = windows[i],
                                                             .qkv_bias = bias,
                                                             .o_bias = bias});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act, .bias = mlp_bias});
    }
}

const struct ctw_family ctw_family_smollm3 = {
    .model_type = "smollm3", .architecture = "SmolLM3ForCausalLM", .describe = describe};
