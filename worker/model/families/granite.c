/*
 * Granite 3 and the dense Granite 4: Llama's layers, with factors of the embedding, the scores, the
 * branches and the logits. Defaults: GraniteConfig.
 */
#include "worker/model/families/family.h"

extern const struct ctw_family ctw_family_granite;

static double key_factor(struct ctw_config *c, const char *name)
{
    return ctw_key_number(c, name, 1, CTW_NULL_REFUSED, 1e-9, 1e9);
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 32000,
                                                                    .hidden = 4096,
                                                                    .inner = 11008,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 0,
                                                                    .max_length = 2048});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, CTW_NULL_REFUSED);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    bool mlp_bias = ctw_key_bool(c, "mlp_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    double embed_scale = key_factor(c, "embedding_multiplier");
    double head_scale = 1 / key_factor(c, "logits_scaling");
    double scale = key_factor(c, "attention_multiplier");
    float factor = (float)key_factor(c, "residual_multiplier");
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){
                           .norm = norm, .embed_scale = embed_scale, .head_scale = head_scale});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        struct ctw_layer *l = ctw_describe_layer(c, i);
        l->mixer_factor = l->mlp_factor = factor;
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention){.n_head = s.n_head,
                                                       .n_kv = s.n_kv,
                                                       .head = head,
                                                       .rope = rope,
                                                       .scale = scale,
                                                       .qkv_bias = bias,
                                                       .o_bias = bias});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act, .bias = mlp_bias});
    }
}

const struct ctw_family ctw_family_granite = {
    .model_type = "granite", .architecture = "GraniteForCausalLM", .describe = describe};
