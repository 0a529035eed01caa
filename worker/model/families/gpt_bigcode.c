/*
 * GPT BigCode (StarCoder 1): GPT-2 with one key head, or with each head's query, key and value side
 * by side, and with linear weights stored [out, in]. Defaults: GPTBigCodeConfig.
 */
#include "worker/model/families/family.h"

static struct ctw_sizes key_sizes(struct ctw_config *c)
{
    struct ctw_sizes s = ctw_key_sizes_as(
        c,
        &(struct ctw_sizes){
            .vocab = 50257, .hidden = 768, .n_layers = 12, .n_head = 12, .max_length = 1024},
        &(struct ctw_size_keys){.hidden = "n_embd",
                                .inner = "",
                                .n_layers = "n_layer",
                                .n_head = "n_head",
                                .n_kv = "",
                                .max_length = "n_positions"});
    s.inner = ctw_key_int(c, "n_inner", 4 * s.hidden, 4 * s.hidden, 1, 1 << 20);
    return s;
}

static void describe(struct ctw_config *c)
{
    static const char *const masks[] = {".attn.bias", ".attn.masked_bias", NULL};
    const struct ctw_sizes s = key_sizes(c);
    int64_t head = ctw_head_of(c, &s);
    const struct ctw_norm_form norm = ctw_key_layer_norm(c, "layer_norm_epsilon", 1e-5);
    enum ctw_activation act = ctw_key_activation(c, "activation_function", CTW_ACT_GELU_TANH);
    bool scaled = ctw_key_bool(c, "scale_attn_weights", true);
    bool one_key = ctw_key_bool(c, "multi_query", true);
    if (ctw_key_bool(c, "add_cross_attention", false))
        ctw_key_fail(c, "add_cross_attention", CTW_EUNSUP,
                     "attention to an encoder is not supported");
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.layers = "transformer.h",
                                                 .embed = "transformer.wte",
                                                 .final_norm = "transformer.ln_f",
                                                 .norm = norm,
                                                 .tied = true});
    ctw_describe_positions(c, "transformer.wpe", 0);
    ctw_describe_buffers(c, masks);
    const struct ctw_attention_rules attention = {.n_kv = one_key ? 1 : s.n_head,
                                                  .head = head,
                                                  .rope = -1,
                                                  .scale = scaled ? 0 : 1,
                                                  .order =
                                                      one_key ? CTW_QKV_IN_ORDER : CTW_QKV_BY_HEAD,
                                                  .qkv = "attn.c_attn",
                                                  .o = "attn.c_proj",
                                                  .qkv_bias = true,
                                                  .o_bias = true};
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = act,
                                .plain = true,
                                .bias = true,
                                .up = "mlp.c_fc",
                                .down = "mlp.c_proj"};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "ln_1", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "ln_2", 0);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_gpt_bigcode = {
    .model_type = "gpt_bigcode", .architecture = "GPTBigCodeForCausalLM", .describe = describe};
