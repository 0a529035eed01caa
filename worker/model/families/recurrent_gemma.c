/*
 * RecurrentGemma: gated linear recurrences (RG-LRU), in the layers that block_types calls attention
 * instead attention with a window, whose RoPE turns half of each head; gated MLPs. Defaults:
 * RecurrentGemmaConfig.
 */
#include "kernels/conv.h"
#include "worker/model/families/gemma.h"
#include "worker/model/recipe/recurrence.h"

static struct ctw_sizes key_sizes(struct ctw_config *c)
{
    enum { LONGEST = 2048 }; /* no key says how long; lm-eval takes so many tokens then */
    return ctw_key_sizes_as(c,
                            &(struct ctw_sizes){.vocab = 256000,
                                                .hidden = 2560,
                                                .inner = 7680,
                                                .n_layers = 26,
                                                .n_head = 10,
                                                .max_length = LONGEST},
                            &(struct ctw_size_keys){.max_length = ""});
}

/* Which of n layers have attention: block_types, again and again. */
static void key_layers(struct ctw_config *c, int64_t n, bool *attends)
{
    static const char name[] = "block_types";
    const bool given = ctw_key_is_given(c, name);
    const int64_t n_types = given ? ctw_json_count(ctw_json_get(c->text, name)) : 3;
    const struct ctw_json_node *node = given ? ctw_key_list(c, name, n_types) : NULL;
    if (n_types < 1)
        ctw_key_fail(c, name, CTW_EFORMAT, "expected \"recurrent\" or \"attention\", or both");
    attends[2] = !given;
    for (int64_t i = 0; i < n_types && node != NULL; i++, node = ctw_json_next(node)) {
        const char *text = NULL;
        c->status = ctw_json_as_string(node, &text, &c->err);
        if (c->status != CTW_OK)
            return;
        if (strcmp(text, "recurrent") != 0 && strcmp(text, "attention") != 0)
            ctw_key_fail(c, name, CTW_EUNSUP,
                         "\"%s\" is not supported; supported: recurrent, attention", text);
        if (i < n)
            attends[i] = strcmp(text, "attention") == 0;
    }
    for (int64_t i = n_types; c->status == CTW_OK && i < n; i++)
        attends[i] = attends[i - n_types];
}

static struct ctw_recurrence key_lru(struct ctw_config *c, const struct ctw_sizes *s,
                                     enum ctw_activation act)
{
    static const char name[] = "lru_width";
    const int64_t width = ctw_key_int(c, name, s->hidden, s->hidden, 1, 1 << 24);
    if (width % s->n_head != 0)
        ctw_key_fail(c, name, CTW_EFORMAT, "found %lld, which %s (%lld) does not divide",
                     (long long)width, s->n_head_key, (long long)s->n_head);
    if (s->n_head > CTW_MAX_LRU_HEADS)
        ctw_key_fail(c, s->n_head_key, CTW_EUNSUP, "recurrences have up to %d heads",
                     CTW_MAX_LRU_HEADS);
    return (struct ctw_recurrence){
        .n_head = s->n_head,
        .head = width / s->n_head,
        .taps = (int)ctw_key_int(c, "conv1d_width", 4, CTW_NULL_REFUSED, 1, CTW_MAX_TAPS),
        .act = act};
}

static struct ctw_attention_rules key_attention(struct ctw_config *c, const struct ctw_sizes *s)
{
    const char *window = ctw_key_either(c, "attention_window_size", "sliding_window");
    return (struct ctw_attention_rules){
        .head = ctw_key_head_dim(c, s, 0, CTW_NULL_REFUSED),
        .window = ctw_key_int(c, window, 2048, CTW_NULL_REFUSED, 1, 1 << 30),
        .qkv_bias = ctw_key_bool(c, "attention_bias", false),
        .o_bias = true,
        .q = "temporal_block.q_proj",
        .k = "temporal_block.k_proj",
        .v = "temporal_block.v_proj",
        .o = "temporal_block.o_proj"};
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = key_sizes(c);
    const struct ctw_norm_form norm = gemma_key_norm(c);
    const enum ctw_activation act = ctw_key_activation(c, "hidden_activation", CTW_ACT_GELU_TANH);
    const struct ctw_recurrence lru = key_lru(c, &s, act);
    struct ctw_attention_rules attention = key_attention(c, &s);
    const struct ctw_mlp mlp = {.inner = s.inner / 2,
                                .act = act,
                                .bias = true,
                                .gate = "mlp_block.gate_proj",
                                .up = "mlp_block.up_proj",
                                .down = "mlp_block.down_proj"};
    const double cap = ctw_key_number(c, "logits_soft_cap", 30, CTW_NULL_REFUSED, 1e-6, 1e9);
    bool attends[CTW_MAX_DECODERS] = {false};
    key_layers(c, s.n_layers, attends);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.final_norm = "model.final_norm",
                                                 .norm = norm,
                                                 .tied = true,
                                                 .embed_scale = gemma_embed_scale(s.hidden),
                                                 .head_softcap = cap});
    attention.rope =
        ctw_describe_rope(c, &(struct ctw_rope_rules){.head = attention.head,
                                                      .theta = 10000.0,
                                                      .partial_key = "partial_rotary_factor",
                                                      .partial = 0.5});
    if (c->status == CTW_OK)
        c->model->own_length = 0;
    for (int64_t i = 0; c->status == CTW_OK && i < s.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "temporal_pre_norm", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "channel_pre_norm", 0);
        if (attends[i])
            ctw_describe_attention(c, i, &attention);
        else
            ctw_describe_recurrence(c, i, &lru);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_recurrent_gemma = {.model_type = "recurrent_gemma",
                                                      .architecture = "RecurrentGemmaForCausalLM",
                                                      .describe = describe};
