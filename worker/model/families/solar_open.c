/* Solar Open: Llama's attention, a mixture in all layers. Defaults: SolarOpenConfig. */
#include "worker/model/families/routed.h"

static void describe(struct ctw_config *c)
{
    static const struct routed_absent absent = {
        .n = 128, .chosen = 8, .inner = 1280, .n_shared = 1, .normalised = true};
    const struct ctw_sizes s = ctw_key_sizes_as(c,
                                                &(struct ctw_sizes){.vocab = 196608,
                                                                    .hidden = 4096,
                                                                    .n_layers = 48,
                                                                    .n_head = 64,
                                                                    .n_kv = 8,
                                                                    .max_length = 131072},
                                                &(struct ctw_size_keys){.inner = ""});
    int64_t head = ctw_key_head_dim(c, &s, 128, CTW_NULL_REFUSED);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    struct routed mixture = routed_keys(c, &absent, act);
    routed_key_shared(c, &absent, &mixture);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(
        c, &(struct ctw_rope_rules){
               .head = head, .theta = 1000000.0, .partial_key = "partial_rotary_factor"});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i, &(struct ctw_attention_rules){.head = head, .rope = rope, .qkv_bias = bias});
        routed_describe(c, i, &mixture);
    }
}

const struct ctw_family ctw_family_solar_open = {
    .model_type = "solar_open", .architecture = "SolarOpenForCausalLM", .describe = describe};
