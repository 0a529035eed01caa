/*
 * StarCoder 2: layer norms, biases everywhere, a plain MLP, and one sliding window for all layers.
 * Defaults: Starcoder2Config.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 49152,
                                                                    .hidden = 3072,
                                                                    .inner = 12288,
                                                                    .n_layers = 30,
                                                                    .n_head = 24,
                                                                    .n_kv = 2,
                                                                    .max_length = 4096});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    int64_t window = ctw_key_int(c, "sliding_window", 0, 0, 1, 1 << 30);
    bool bias = ctw_key_bool(c, "use_bias", true);
    const struct ctw_norm_form norm = ctw_key_layer_norm(c, "norm_epsilon", 1e-5);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_GELU_TANH);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm, .tied = true});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){
                .head = head, .rope = rope, .window = window, .qkv_bias = bias, .o_bias = bias});
        ctw_describe_mlp(c, i,
                         &(struct ctw_mlp){.inner = s.inner,
                                           .act = act,
                                           .plain = true,
                                           .bias = bias,
                                           .up = "mlp.c_fc",
                                           .down = "mlp.c_proj"});
    }
}

const struct ctw_family ctw_family_starcoder2 = {
    .model_type = "starcoder2", .architecture = "Starcoder2ForCausalLM", .describe = describe};
