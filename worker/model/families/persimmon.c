/*
 * Persimmon: layer norms, also of query and key heads, one projection whose rows are each head's
 * query, key and value, RoPE on a part of each head, a plain MLP with the square of relu. Defaults:
 * PersimmonConfig.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes_as(c,
                                                &(struct ctw_sizes){.vocab = 262144,
                                                                    .hidden = 4096,
                                                                    .inner = 16384,
                                                                    .n_layers = 36,
                                                                    .n_head = 64,
                                                                    .max_length = 16384},
                                                &(struct ctw_size_keys){.n_kv = ""});
    const int64_t head = ctw_key_same_head(c, &s);
    const struct ctw_norm_form norm = ctw_key_layer_norm(c, "layer_norm_eps", 1e-5);
    const struct ctw_qk_norms qk_norms = {
        .form = norm, .q = "self_attn.q_layernorm", .k = "self_attn.k_layernorm"};
    const bool has_qk_norms = ctw_key_bool(c, "qk_layernorm", true);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_RELU2),
                                .plain = true,
                                .bias = true,
                                .up = "mlp.dense_h_to_4h",
                                .down = "mlp.dense_4h_to_h"};
    ctw_describe_model(
        c, &s, &(struct ctw_model_rules){.final_norm = "model.final_layernorm", .norm = norm});
    const int rope =
        ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                      .theta = 10000.0,
                                                      .partial_key = "partial_rotary_factor",
                                                      .partial = 0.5});
    const struct ctw_attention_rules attention = {.head = head,
                                                  .rope = rope,
                                                  .order = CTW_QKV_BY_HEAD,
                                                  .qkv = "self_attn.query_key_value",
                                                  .o = "self_attn.dense",
                                                  .qkv_bias = true,
                                                  .o_bias = true,
                                                  .norms = has_qk_norms ? &qk_norms : NULL};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_persimmon = {
    .model_type = "persimmon", .architecture = "PersimmonForCausalLM", .describe = describe};
