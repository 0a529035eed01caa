/*
 * Phi 1, 1.5 and 2: one layer norm for mixer and MLP, which are side by side, biases everywhere,
 * RoPE on a part of each head. Defaults: PhiConfig.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 51200,
                                                                    .hidden = 2048,
                                                                    .inner = 8192,
                                                                    .n_layers = 24,
                                                                    .n_head = 32,
                                                                    .n_kv = 0,
                                                                    .max_length = 2048});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, CTW_NULL_REFUSED);
    const struct ctw_norm_form norm = ctw_key_layer_norm(c, "layer_norm_eps", 1e-5);
    const struct ctw_qk_norms qk_norms = {
        .form = norm, .q = "self_attn.q_layernorm", .k = "self_attn.k_layernorm"};
    bool has_qk_norms = ctw_key_bool(c, "qk_layernorm", false);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_GELU_TANH);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){
                           .final_norm = "model.final_layernorm", .norm = norm, .head_bias = true});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                             .theta = 10000.0,
                                                             .partial_key = "partial_rotary_factor",
                                                             .partial = 0.5});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_branch(c, i, CTW_MLP)->beside = true;
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "input_layernorm", 0);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){.head = head,
                                          .rope = rope,
                                          .o = "self_attn.dense",
                                          .qkv_bias = true,
                                          .o_bias = true,
                                          .norms = has_qk_norms ? &qk_norms : NULL});
        ctw_describe_mlp(c, i,
                         &(struct ctw_mlp){.inner = s.inner,
                                           .act = act,
                                           .plain = true,
                                           .bias = true,
                                           .up = "mlp.fc1",
                                           .down = "mlp.fc2"});
    }
}

const struct ctw_family ctw_family_phi = {
    .model_type = "phi", .architecture = "PhiForCausalLM", .describe = describe};
