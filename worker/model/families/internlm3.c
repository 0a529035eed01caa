/*
 * InternLM 3: Llama's layers, with keys of their own for biases. transformers' class takes both
 * biases or none. Defaults: InternLM3Config.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 128512,
                                                                    .hidden = 4096,
                                                                    .inner = 10240,
                                                                    .n_layers = 48,
                                                                    .n_head = 32,
                                                                    .n_kv = 2,
                                                                    .max_length = 32768});
    const int64_t head = ctw_key_head_dim(c, &s, 128, 0);
    const char *qkv_key = ctw_key_either(c, "qkv_bias", "attention_bias");
    const bool bias = ctw_key_bool(c, ctw_key_either(c, "bias", "mlp_bias"), false);
    if (ctw_key_bool(c, qkv_key, false) != bias)
        ctw_key_fail(c, qkv_key, CTW_EUNSUP, "expected %s, as the bias of the other products",
                     bias ? "true" : "false");
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_mlp mlp = {
        .inner = s.inner, .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU), .bias = bias};
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    const int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){
                                   .head = head, .rope = rope, .qkv_bias = bias, .o_bias = bias});
        ctw_describe_mlp(c, i, &mlp);
    }
}

/* transformers 5 uses, and names, its class for Llama. */
const struct ctw_family ctw_family_internlm3 = {.model_type = "internlm3",
                                                .architecture = "InternLM3ForCausalLM",
                                                .old_architecture = "LlamaForCausalLM",
                                                .describe = describe};
