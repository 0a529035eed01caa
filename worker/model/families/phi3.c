/*
 * Phi 3, 3.5 and 4: Llama's layers with fused projections, and one sliding window for all layers.
 * Defaults: Phi3Config.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 32064,
                                                                    .hidden = 3072,
                                                                    .inner = 8192,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 0,
                                                                    .max_length = 4096});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    int64_t window = ctw_key_int(c, "sliding_window", 0, 0, 1, 1 << 30);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                             .theta = 10000.0,
                                                             .partial_key = "partial_rotary_factor",
                                                             .old_longrope = true,
                                                             .original_length = 4096});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){
                                   .head = head,
                                   .rope = rope,
                                   .window = window,
                                   .order = ctw_is_unfused(c) ? CTW_QKV_SPLIT : CTW_QKV_IN_ORDER});
        ctw_describe_mlp(
            c, i, &(struct ctw_mlp){.inner = s.inner, .act = act, .fused = !ctw_is_unfused(c)});
    }
}

const struct ctw_family ctw_family_phi3 = {
    .model_type = "phi3", .architecture = "Phi3ForCausalLM", .describe = describe};
