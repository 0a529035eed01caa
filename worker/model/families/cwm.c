/*
 * CWM (Code World Model): Llama's layers, three of four with a window. Defaults: CwmConfig.
 */
#include "worker/model/families/family.h"

/* transformers' RoPE for a file without one. */
static const char absent_rope[] =
    "{\"rope_type\": \"llama3\", \"rope_theta\": 1000000.0, \"factor\": 16.0, "
    "\"original_max_position_embeddings\": 8192, \"low_freq_factor\": 1.0, "
    "\"high_freq_factor\": 4.0}";

static void check_rope_scaling(struct ctw_config *c)
{
    const struct ctw_json_node *node = ctw_json_get(c->text, "rope_scaling");
    if (node != NULL && ctw_json_is_null(node) && !ctw_key_is_given(c, "rope_parameters"))
        ctw_key_fail(c, "rope_scaling", CTW_EUNSUP,
                     "found null, which is type llama3 with factor 16 in transformers: leave the "
                     "key out, or give the type");
}

/* The first of four layers sees everything. */
static const int64_t *key_windows(struct ctw_config *c, int64_t n_layers)
{
    bool full[CTW_MAX_DECODERS];
    for (int64_t i = 0; i < n_layers && i < CTW_MAX_DECODERS; i++)
        full[i] = i % 4 == 0;
    int64_t window = ctw_key_int(c, "sliding_window", 8192, 0, 0, 1 << 30);
    return ctw_key_windows(c, n_layers, window, &(struct ctw_window_rule){.full = full});
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 128256,
                                                                    .hidden = 6144,
                                                                    .inner = 21504,
                                                                    .n_layers = 64,
                                                                    .n_head = 48,
                                                                    .n_kv = 8,
                                                                    .max_length = 131072});
    int64_t head = ctw_key_head_dim(c, &s, 128, 0);
    const int64_t *windows = key_windows(c, s.n_layers);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
                                .bias = ctw_key_bool(c, "mlp_bias", false)};
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    check_rope_scaling(c);
    int rope = ctw_describe_rope(
        c, &(struct ctw_rope_rules){.head = head, .theta = 1000000.0, .absent = absent_rope});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i, &(struct ctw_attention_rules){.head = head, .rope = rope, .window = windows[i]});
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_cwm = {
    .model_type = "cwm", .architecture = "CwmForCausalLM", .describe = describe};
