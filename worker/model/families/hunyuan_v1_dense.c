/*
 * HunYuan's dense models: Llama's layers, with norms of query and key heads after RoPE, whose theta
 * may be scaled by alpha. Defaults: HunYuanDenseV1Config.
 */
#include "worker/model/families/family.h"

extern const struct ctw_family ctw_family_hunyuan_v1_dense;

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 290943,
                                                                    .hidden = 4096,
                                                                    .inner = 11008,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 0,
                                                                    .max_length = 2048});
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_qk_norms qk_norms = {.form = norm,
                                          .heads = CTW_HEADS_ALIKE,
                                          .after_rope = true,
                                          .q = "self_attn.query_layernorm",
                                          .k = "self_attn.key_layernorm"};
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(
        c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0, .alpha = true});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention){.n_head = s.n_head,
                                                       .n_kv = s.n_kv,
                                                       .head = head,
                                                       .rope = rope,
                                                       .qkv_bias = bias,
                                                       .o_bias = bias,
                                                       .norms = &qk_norms});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

const struct ctw_family ctw_family_hunyuan_v1_dense = {.model_type = "hunyuan_v1_dense",
                                                       .architecture = "HunYuanDenseV1ForCausalLM",
                                                       .describe = describe};
