/*
 * HyperCLOVA X SEED Think: Granite's layers and factors, with norms of the branches' outputs, and
 * logits that are multiplied by their factor. Defaults: HyperCLOVAXConfig.
 */
#include "worker/model/families/family.h"

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
    const int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    const bool bias = ctw_key_bool(c, "attention_bias", false);
    const bool post_norms = ctw_key_bool(c, "use_post_norm", true);
    const double scale = ctw_key_number(c, "attention_multiplier", 0, 0, 1e-9, 1e9);
    const float factor = (float)key_factor(c, "residual_multiplier");
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
                                .bias = ctw_key_bool(c, "mlp_bias", false)};
    const double embed_scale = key_factor(c, "embedding_multiplier");
    const double head_scale = key_factor(c, "logits_scaling");
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){
                           .norm = norm, .embed_scale = embed_scale, .head_scale = head_scale});
    const struct ctw_attention_rules attention = {
        .head = head,
        .rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0}),
        .scale = scale,
        .qkv_bias = bias,
        .o_bias = bias};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_branch(c, i, CTW_MIXER)->factor = ctw_describe_branch(c, i, CTW_MLP)->factor =
            factor;
        ctw_describe_norms(c, i, &norm);
        if (post_norms) {
            ctw_describe_norm(c, i, CTW_AT_MIXER_OUT, &norm, "post_norm1", 0);
            ctw_describe_norm(c, i, CTW_AT_MLP_OUT, &norm, "post_norm2", 0);
        }
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_hyperclovax = {
    .model_type = "hyperclovax", .architecture = "HyperCLOVAXForCausalLM", .describe = describe};
