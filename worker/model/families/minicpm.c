/*
 * MiniCPM 1, 2 and 4: Llama's layers, with factors of the embedding, of the branches' outputs, and
 * of the logits. Defaults: its own configuration_minicpm.py.
 */
#include <math.h>

#include "worker/model/families/family.h"

/* Its code takes the long factors at every length if the model is longer than the original. */
static void check_rope(struct ctw_config *c)
{
    const struct ctw_rope_params *p = &c->rope[0];
    if (c->status == CTW_OK && p->type == CTW_ROPE_LONGROPE &&
        p->original_length != (double)c->model->max_length)
        ctw_key_fail(c, "rope_scaling", CTW_EUNSUP,
                     "original_max_position_embeddings is %g, but is supported only if it equals "
                     "max_position_embeddings",
                     p->original_length);
}

static void check_keys(struct ctw_config *c)
{
    if (ctw_key_int(c, "num_experts", 0, 0, 0, 1 << 20) != 0)
        ctw_key_fail(c, "num_experts", CTW_EUNSUP, "mixtures of experts are not supported");
    if (ctw_key_is_given(c, "sparse_config"))
        ctw_key_fail(c, "sparse_config", CTW_EUNSUP, "sparse attention is not supported");
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
    int64_t head = ctw_head_of(c, &s);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    double embed = ctw_key_number(c, "scale_emb", 1, CTW_NULL_REFUSED, 1e-6, 1e6);
    double depth = ctw_key_number(c, "scale_depth", 1, CTW_NULL_REFUSED, 1e-6, 1e6);
    double base = ctw_key_number(c, "dim_model_base", 1, CTW_NULL_REFUSED, 1e-6, 1e6);
    check_keys(c);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.norm = norm,
                                                 .tied = true,
                                                 .embed_scale = embed,
                                                 .head_scale = base / (double)s.hidden});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    check_rope(c);
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_branch(c, i, CTW_MIXER)->factor = ctw_describe_branch(c, i, CTW_MLP)->factor =
            (float)(depth / sqrt((double)s.n_layers));
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){
                                   .head = head, .rope = rope, .qkv_bias = bias, .o_bias = bias});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

const struct ctw_family ctw_family_minicpm = {
    .model_type = "minicpm", .architecture = "MiniCPMForCausalLM", .describe = describe};
