/*
 * GPT-2: layer norms, learned positions, one projection for q, k and v, a plain MLP; linear weights
 * are stored [in, out]. Defaults: GPT2Config.
 */
#include <math.h>

#include "worker/model/families/family.h"

static void describe_layer(struct ctw_config *c, int64_t i, const struct ctw_sizes *s,
                           const struct ctw_norm_form *norm, double scale, enum ctw_activation act)
{
    ctw_describe_norm(c, i, CTW_AT_MIXER, norm, "ln_1", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP, norm, "ln_2", 0);
    ctw_describe_attention(c, i,
                           &(struct ctw_attention_rules){.head = s->hidden / s->n_head,
                                                         .rope = -1,
                                                         .scale = scale,
                                                         .order = CTW_QKV_IN_ORDER,
                                                         .qkv = "attn.c_attn",
                                                         .o = "attn.c_proj",
                                                         .qkv_bias = true,
                                                         .o_bias = true});
    ctw_describe_mlp(c, i,
                     &(struct ctw_mlp){.inner = s->inner,
                                       .act = act,
                                       .plain = true,
                                       .bias = true,
                                       .up = "mlp.c_fc",
                                       .down = "mlp.c_proj"});
}

static void describe(struct ctw_config *c)
{
    static const char *const masks[] = {".attn.bias", ".attn.masked_bias", NULL};
    struct ctw_sizes s = ctw_key_sizes_as(
        c,
        &(struct ctw_sizes){
            .vocab = 50257, .hidden = 768, .n_layers = 12, .n_head = 12, .max_length = 1024},
        &(struct ctw_size_keys){.hidden = ctw_key_either(c, "n_embd", "hidden_size"),
                                .inner = "",
                                .n_layers = ctw_key_either(c, "n_layer", "num_hidden_layers"),
                                .n_head = ctw_key_either(c, "n_head", "num_attention_heads"),
                                .n_kv = "",
                                .max_length =
                                    ctw_key_either(c, "n_positions", "max_position_embeddings")});
    s.inner = ctw_key_int(c, "n_inner", 4 * s.hidden, 4 * s.hidden, 1, 1 << 20);
    int64_t head = ctw_head_of(c, &s);
    const struct ctw_norm_form norm = ctw_key_layer_norm(c, "layer_norm_epsilon", 1e-5);
    enum ctw_activation act = ctw_key_activation(c, "activation_function", CTW_ACT_GELU_TANH);
    bool scaled = ctw_key_bool(c, "scale_attn_weights", true);
    bool by_layer = ctw_key_bool(c, "scale_attn_by_inverse_layer_idx", false);
    if (ctw_key_bool(c, "add_cross_attention", false))
        ctw_key_fail(c, "add_cross_attention", CTW_EUNSUP,
                     "attention to an encoder is not supported");
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.layers = "transformer.h",
                                                 .embed = "transformer.wte",
                                                 .final_norm = "transformer.ln_f",
                                                 .norm = norm,
                                                 .tied = true,
                                                 .conv1d = true});
    ctw_describe_positions(c, "transformer.wpe", 0);
    ctw_describe_buffers(c, masks);
    for (int64_t i = 0; i < s.n_layers; i++) {
        double scale = scaled ? 1 / sqrt((double)head) : 1;
        describe_layer(c, i, &s, &norm, by_layer ? scale / (double)(i + 1) : scale, act);
    }
}

const struct ctw_family ctw_family_gpt2 = {.model_type = "gpt2",
                                           .architecture = "GPT2LMHeadModel",
                                           .prefix = "transformer.",
                                           .spellings = ctw_transformer_spellings,
                                           .describe = describe};
