/*
 * StableLM: Llama's layers with layer norms, and RoPE on a part of each head. The 12B model has
 * mixer and MLP side by side, and a norm of its own for each head of q and k. Defaults:
 * StableLmConfig.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 50304,
                                                                    .hidden = 2560,
                                                                    .inner = 6912,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 32,
                                                                    .max_length = 4096});
    int64_t head = ctw_key_same_head(c, &s);
    bool bias = ctw_key_bool(c, "use_qkv_bias", false);
    bool parallel = ctw_key_bool(c, "use_parallel_residual", false);
    bool has_qk_norms = ctw_key_bool(c, "qk_layernorm", false);
    const struct ctw_norm_form norm = ctw_key_layer_norm(c, "layer_norm_eps", 1e-5);
    struct ctw_qk_norms qk_norms = {.form = norm,
                                    .heads = CTW_HEADS_OWN,
                                    .apart = true,
                                    .q = "self_attn.q_layernorm.norms",
                                    .k = "self_attn.k_layernorm.norms"};
    qk_norms.form.bias = false;
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                             .theta = 10000.0,
                                                             .partial_key = "partial_rotary_factor",
                                                             .partial = 0.25});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_branch(c, i, CTW_MLP)->beside = parallel;
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "input_layernorm", 0);
        if (!parallel)
            ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "post_attention_layernorm", 0);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){.head = head,
                                          .rope = rope,
                                          .qkv_bias = bias,
                                          .norms = has_qk_norms ? &qk_norms : NULL});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

const struct ctw_family ctw_family_stablelm = {
    .model_type = "stablelm", .architecture = "StableLmForCausalLM", .describe = describe};
