/* Helium: Llama's layers with interleaved RoPE. Defaults: HeliumConfig. */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 48000,
                                                                    .hidden = 2560,
                                                                    .inner = 7040,
                                                                    .n_layers = 24,
                                                                    .n_head = 20,
                                                                    .n_kv = 20,
                                                                    .max_length = 4096});
    int64_t head = ctw_key_head_dim(c, &s, 128, CTW_NULL_REFUSED);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    bool mlp_bias = ctw_key_bool(c, "mlp_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-8);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(
        c,
        &(struct ctw_rope_rules){.head = head, .pairing = CTW_ROPE_INTERLEAVED, .theta = 100000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i, &(struct ctw_attention_rules){.head = head, .rope = rope, .qkv_bias = bias});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act, .bias = mlp_bias});
    }
}

const struct ctw_family ctw_family_helium = {
    .model_type = "helium", .architecture = "HeliumForCausalLM", .describe = describe};
