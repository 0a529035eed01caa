/*
 * BioGPT: layer norms, learned positions, a scaled embedding, a plain MLP. Defaults: BioGptConfig.
 * The class does not read its layer_norm_eps.
 */
#include <math.h>

#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    enum { POSITION0 = 2 }; /* the table's first two rows have no use */
    const struct ctw_sizes s = ctw_key_sizes_as(c,
                                                &(struct ctw_sizes){.vocab = 42384,
                                                                    .hidden = 1024,
                                                                    .inner = 4096,
                                                                    .n_layers = 24,
                                                                    .n_head = 16,
                                                                    .max_length = 1024},
                                                &(struct ctw_size_keys){.n_kv = ""});
    const struct ctw_norm_form norm = {.kind = CTW_NORM_LAYER, .eps = 1e-5, .bias = true};
    const struct ctw_attention_rules attention = {.head = ctw_head_of(c, &s),
                                                  .rope = -1,
                                                  .o = "self_attn.out_proj",
                                                  .qkv_bias = true,
                                                  .o_bias = true};
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_GELU),
                                .plain = true,
                                .bias = true,
                                .up = "fc1",
                                .down = "fc2"};
    const bool scaled = ctw_key_bool(c, "scale_embedding", true);
    ctw_describe_model(
        c, &s,
        &(struct ctw_model_rules){.layers = "biogpt.layers",
                                  .embed = "biogpt.embed_tokens",
                                  .final_norm = "biogpt.layer_norm",
                                  .head = "output_projection",
                                  .norm = norm,
                                  .tied = true,
                                  .embed_scale = scaled ? sqrt((double)s.hidden) : 1});
    ctw_describe_positions(c, "biogpt.embed_positions", POSITION0);
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "self_attn_layer_norm", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "final_layer_norm", 0);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_biogpt = {
    .model_type = "biogpt", .architecture = "BioGptForCausalLM", .describe = describe};
