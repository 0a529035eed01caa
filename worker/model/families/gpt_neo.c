/*
 * GPT-Neo: layer norms, learned positions, scores without a scale, a window in every other layer, a
 * plain MLP. Defaults: GPTNeoConfig.
 */
#include <string.h>

#include "worker/model/families/family.h"

/* Which layers have a window: [[["global", "local"], 12]], the types that repeat so many times. */
static void key_types(struct ctw_config *c, int64_t n, bool *local)
{
    static const char key[] = "attention_types";
    const struct ctw_json_node *types[CTW_MAX_DECODERS], *node = NULL;
    int64_t n_types = 0, times = n;
    for (int64_t i = 0; i < n; i++)
        local[i] = i % 2 != 0;
    if (ctw_key_is_given(c, key))
        node = ctw_key_list(c, key, 1);
    if (node == NULL || c->status != CTW_OK)
        return;
    const struct ctw_json_node *list = ctw_json_first(node);
    const struct ctw_json_node *count = list != NULL ? ctw_json_next(list) : NULL;
    if (count == NULL) {
        ctw_key_fail(c, key, CTW_EFORMAT, "expected [[[TYPE, ..], TIMES]]");
        return;
    }
    c->status = ctw_json_as_int(count, 1, CTW_MAX_DECODERS, &times, &c->err);
    for (node = ctw_json_first(list); node != NULL && n_types < CTW_MAX_DECODERS;
         node = ctw_json_next(node))
        types[n_types++] = node;
    if (c->status == CTW_OK && n_types * times != n)
        ctw_key_fail(c, key, CTW_EFORMAT, "found %lld types %lld times, expected %lld layers",
                     (long long)n_types, (long long)times, (long long)n);
    for (int64_t i = 0; i < n && c->status == CTW_OK; i++) {
        const char *name = "";
        c->status = ctw_json_as_string(types[i % n_types], &name, &c->err);
        local[i] = strcmp(name, "local") == 0;
        if (c->status == CTW_OK && !local[i] && strcmp(name, "global") != 0)
            ctw_key_fail(c, key, CTW_EUNSUP, "\"%s\" is not supported; supported: global, local",
                         name);
    }
}

static void describe(struct ctw_config *c)
{
    static const char *const masks[] = {".attn.attention.bias", ".attn.attention.masked_bias",
                                        NULL};
    bool local[CTW_MAX_DECODERS];
    struct ctw_sizes s = ctw_key_sizes_as(
        c,
        &(struct ctw_sizes){
            .vocab = 50257, .hidden = 2048, .n_layers = 24, .n_head = 16, .max_length = 2048},
        &(struct ctw_size_keys){.inner = "",
                                .n_layers = ctw_key_either(c, "num_layers", "num_hidden_layers"),
                                .n_head = ctw_key_either(c, "num_heads", "num_attention_heads"),
                                .n_kv = ""});
    s.inner = ctw_key_int(c, "intermediate_size", 4 * s.hidden, 4 * s.hidden, 1, 1 << 20);
    const int64_t head = ctw_head_of(c, &s);
    const int64_t window = ctw_key_int(c, "window_size", 256, CTW_NULL_REFUSED, 1, 1 << 30);
    const struct ctw_norm_form norm = ctw_key_layer_norm(c, "layer_norm_epsilon", 1e-5);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act =
                                    ctw_key_activation(c, "activation_function", CTW_ACT_GELU_TANH),
                                .plain = true,
                                .bias = true,
                                .up = "mlp.c_fc",
                                .down = "mlp.c_proj"};
    struct ctw_attention_rules attention = {.head = head,
                                            .rope = -1,
                                            .scale = 1,
                                            .q = "attn.attention.q_proj",
                                            .k = "attn.attention.k_proj",
                                            .v = "attn.attention.v_proj",
                                            .o = "attn.attention.out_proj",
                                            .o_bias = true};
    key_types(c, s.n_layers, local);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.layers = "transformer.h",
                                                 .embed = "transformer.wte",
                                                 .final_norm = "transformer.ln_f",
                                                 .norm = norm,
                                                 .tied = true});
    ctw_describe_positions(c, "transformer.wpe", 0);
    ctw_describe_buffers(c, masks);
    for (int64_t i = 0; i < s.n_layers && c->status == CTW_OK; i++) {
        attention.window = local[i] ? window : 0;
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "ln_1", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "ln_2", 0);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_gpt_neo = {
    .model_type = "gpt_neo", .architecture = "GPTNeoForCausalLM", .describe = describe};
