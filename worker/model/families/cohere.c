/*
 * Cohere (Command R) and Cohere 2 (Command R7B): attention and MLP side by side under one layer
 * norm without bias, interleaved RoPE, scaled logits. Cohere 2: layers without a window have no
 * RoPE. Defaults: CohereConfig, Cohere2Config.
 */
#include "worker/model/families/family.h"

/* What both have; window and rope per layer. */
struct cohere {
    struct ctw_sizes sizes;
    int64_t head;
    struct ctw_norm_form norm;
    enum ctw_activation act;
    bool bias, qk_norm;
    int rope;
};

static struct cohere begin(struct ctw_config *c, double theta)
{
    struct cohere m = {.sizes = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 256000,
                                                                     .hidden = 8192,
                                                                     .inner = 22528,
                                                                     .n_layers = 40,
                                                                     .n_head = 64,
                                                                     .n_kv = 0,
                                                                     .max_length = 8192})};
    /* head_dim is not a field of the classes, but is read if present. */
    m.head = ctw_key_head_dim(c, &m.sizes, 0, CTW_NULL_REFUSED);
    m.norm = ctw_key_layer_norm(c, "layer_norm_eps", 1e-5);
    m.norm.bias = false;
    m.act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    m.bias = ctw_key_bool(c, "attention_bias", false);
    double scale = ctw_key_number(c, "logit_scale", 0.0625, CTW_NULL_REFUSED, 1e-9, 1e9);
    ctw_describe_model(
        c, &m.sizes, &(struct ctw_model_rules){.norm = m.norm, .tied = true, .head_scale = scale});
    m.rope = ctw_describe_rope(
        c,
        &(struct ctw_rope_rules){.head = m.head, .pairing = CTW_ROPE_INTERLEAVED, .theta = theta});
    return m;
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct cohere *m, int64_t window,
                           int rope)
{
    const struct ctw_qk_norms qk_norms = {.form = m->norm, .heads = CTW_HEADS_OWN};
    ctw_describe_branch(c, i, CTW_MLP)->beside = true;
    ctw_describe_norm(c, i, CTW_AT_MIXER, &m->norm, "input_layernorm", 0);
    ctw_describe_attention(c, i,
                           &(struct ctw_attention_rules){.n_head = m->sizes.n_head,
                                                         .n_kv = m->sizes.n_kv,
                                                         .head = m->head,
                                                         .rope = rope,
                                                         .window = window,
                                                         .qkv_bias = m->bias,
                                                         .o_bias = m->bias,
                                                         .norms = m->qk_norm ? &qk_norms : NULL});
    ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = m->sizes.inner, .act = m->act});
}

static void describe(struct ctw_config *c)
{
    struct cohere m = begin(c, 500000.0);
    m.qk_norm = ctw_key_is_true(c, "use_qk_norm");
    for (int64_t i = 0; i < m.sizes.n_layers; i++)
        describe_layer(c, i, &m, 0, m.rope);
}

static void describe2(struct ctw_config *c)
{
    struct cohere m = begin(c, 10000.0);
    int64_t window = ctw_key_int(c, "sliding_window", 4096, CTW_NULL_REFUSED, 1, 1 << 30);
    int64_t every = ctw_key_int(c, "sliding_window_pattern", 4, CTW_NULL_REFUSED, 1, 1 << 30);
    const int64_t *windows =
        ctw_key_windows(c, m.sizes.n_layers, window, &(struct ctw_window_rule){.every = every});
    for (int64_t i = 0; i < m.sizes.n_layers; i++)
        describe_layer(c, i, &m, windows[i], windows[i] > 0 ? m.rope : -1);
}

const struct ctw_family ctw_family_cohere = {
    .model_type = "cohere", .architecture = "CohereForCausalLM", .describe = describe};

const struct ctw_family ctw_family_cohere2 = {
    .model_type = "cohere2", .architecture = "Cohere2ForCausalLM", .describe = describe2};
