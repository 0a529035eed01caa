/*
 * Jais 2: Llama's attention with biases, layer norms, a plain MLP with the square of relu.
 * Defaults: Jais2Config.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 150272,
                                                                    .hidden = 3328,
                                                                    .inner = 26624,
                                                                    .n_layers = 32,
                                                                    .n_head = 26,
                                                                    .n_kv = 0,
                                                                    .max_length = 8192});
    const int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    const bool bias = ctw_key_bool(c, "attention_bias", true);
    const struct ctw_norm_form norm = ctw_key_layer_norm(c, "layer_norm_eps", 1e-5);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_RELU2),
                                .plain = true,
                                .bias = ctw_key_bool(c, "mlp_bias", true)};
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    const struct ctw_attention_rules attention = {
        .head = head,
        .rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0}),
        .qkv_bias = bias,
        .o_bias = bias};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_jais2 = {
    .model_type = "jais2", .architecture = "Jais2ForCausalLM", .describe = describe};
