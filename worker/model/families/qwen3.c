/* Qwen 3 (dense): norms on the heads of q and k, an independent head_dim. Defaults: Qwen3Config. */
#include "worker/model/families/qwen.h"

extern const struct ctw_family ctw_family_qwen3;

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 151936,
                                                                    .hidden = 4096,
                                                                    .inner = 22016,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 32,
                                                                    .max_length = 32768});
    int64_t head = ctw_key_head_dim(c, &s, 128, CTW_NULL_REFUSED);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const int64_t *windows = qwen_windows(c, s.n_layers);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm_eps = 1e-6});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention){.n_head = s.n_head,
                                                       .n_kv = s.n_kv,
                                                       .head = head,
                                                       .rope = rope,
                                                       .window = windows[i],
                                                       .qkv_bias = bias,
                                                       .o_bias = bias,
                                                       .head_norms = true});
        ctw_describe_gated_mlp(c, i, &(struct ctw_gated_mlp){.inner = s.inner});
    }
}

const struct ctw_family ctw_family_qwen3 = {
    .model_type = "qwen3", .architecture = "Qwen3ForCausalLM", .describe = describe};
