/* Qwen 2 and 2.5: biases on q, k and v always; windows by layer. Defaults: Qwen2Config. */
#include "worker/model/families/qwen.h"

extern const struct ctw_family ctw_family_qwen2;

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 151936,
                                                                    .hidden = 4096,
                                                                    .inner = 22016,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 32,
                                                                    .max_length = 32768});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    const int64_t *windows = qwen_windows(c, s.n_layers);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention){.n_head = s.n_head,
                                                       .n_kv = s.n_kv,
                                                       .head = head,
                                                       .rope = rope,
                                                       .window = windows[i],
                                                       .qkv_bias = true});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

const struct ctw_family ctw_family_qwen2 = {
    .model_type = "qwen2", .architecture = "Qwen2ForCausalLM", .describe = describe};
