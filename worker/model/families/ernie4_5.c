/* ERNIE 4.5: Llama's layers, with RoPE on neighbouring elements. Defaults: Ernie4_5Config. */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 103424,
                                                                    .hidden = 1024,
                                                                    .inner = 3072,
                                                                    .n_layers = 18,
                                                                    .n_head = 16,
                                                                    .n_kv = 2,
                                                                    .max_length = 131072});
    int64_t head = ctw_key_head_dim(c, &s, 128, 0);
    bool bias = ctw_key_is_true(c, "use_bias");
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm, .tied = true});
    int rope = ctw_describe_rope(
        c,
        &(struct ctw_rope_rules){.head = head, .pairing = CTW_ROPE_INTERLEAVED, .theta = 500000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){
                                   .head = head, .rope = rope, .qkv_bias = bias, .o_bias = bias});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act, .bias = bias});
    }
}

const struct ctw_family ctw_family_ernie4_5 = {
    .model_type = "ernie4_5", .architecture = "Ernie4_5ForCausalLM", .describe = describe};
