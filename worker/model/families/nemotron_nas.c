/*
 * Nemotron from an architecture search (Llama-Nemotron Super, Ultra): Llama's layers, each with its
 * own number of key heads and size of MLP, or without attention or MLP. Defaults: its own
 * configuration_decilm.py.
 */
#include "base/json.h"
#include "worker/model/families/family.h"

/* A layer, as block_configs has it. */
struct block {
    int64_t group; /* query heads per key head; 0: no attention */
    int64_t inner; /* 0: no MLP */
};

/* Refuses members of a half of a block that request anything else. */
static void check_half(struct ctw_config *c, const struct ctw_json_node *half, bool *no_op)
{
    static const char *const others[] = {"window_length", "num_sink_tokens", "sparsify",
                                         "mamba",         "llama4",          "moe"};
    bool linear = false;
    if (c->status == CTW_OK)
        c->status = ctw_json_read_bool(half, "no_op", CTW_JSON_OPTIONAL, no_op, &c->err);
    if (c->status == CTW_OK)
        c->status =
            ctw_json_read_bool(half, "replace_with_linear", CTW_JSON_OPTIONAL, &linear, &c->err);
    if (c->status == CTW_OK && linear && !*no_op)
        c->status = ctw_json_fail(ctw_json_get(half, "replace_with_linear"), &c->err, CTW_EUNSUP,
                                  "a linear layer in its place is not supported");
    for (size_t i = 0; i < CTW_COUNT(others) && c->status == CTW_OK && !*no_op; i++)
        if (ctw_json_has(half, others[i]))
            c->status = ctw_json_fail(ctw_json_get(half, others[i]), &c->err, CTW_EUNSUP,
                                      "is not supported, expected null");
}

/* The rows of up: a multiple of 256. */
static int64_t inner_of(struct ctw_config *c, const struct ctw_json_node *ffn, int64_t hidden)
{
    double factor = 0;
    c->status = ctw_json_read_double(ffn, "ffn_mult", CTW_JSON_REQUIRED, &factor, &c->err);
    if (c->status == CTW_OK && (factor <= 0 || factor > 64))
        c->status = ctw_json_fail(ctw_json_get(ffn, "ffn_mult"), &c->err, CTW_EFORMAT,
                                  "found %g, expected more than 0 and at most 64", factor);
    return ((int64_t)(2 * factor * (double)hidden / 3) + 255) / 256 * 256;
}

static struct block read_block(struct ctw_config *c, const struct ctw_json_node *node,
                               const struct ctw_sizes *s)
{
    const struct ctw_json_node *attention = NULL, *ffn = NULL;
    struct block b = {0};
    bool no_attention = false, no_mlp = false;
    if (c->status == CTW_OK)
        c->status = ctw_json_read_node(node, "attention", CTW_JSON_REQUIRED, CTW_JSON_OBJECT,
                                       &attention, &c->err);
    if (c->status == CTW_OK)
        c->status =
            ctw_json_read_node(node, "ffn", CTW_JSON_REQUIRED, CTW_JSON_OBJECT, &ffn, &c->err);
    check_half(c, attention, &no_attention);
    check_half(c, ffn, &no_mlp);
    if (c->status == CTW_OK && !no_attention)
        c->status = ctw_json_read_int(attention, "n_heads_in_group", CTW_JSON_REQUIRED, 1,
                                      s->n_head, &b.group, &c->err);
    if (c->status == CTW_OK && !no_attention && s->n_head % b.group != 0)
        c->status = ctw_json_fail(ctw_json_get(attention, "n_heads_in_group"), &c->err, CTW_EFORMAT,
                                  "is not a divisor of num_attention_heads");
    if (c->status == CTW_OK && !no_mlp)
        b.inner = inner_of(c, ffn, s->hidden);
    return b;
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes_as(
        c,
        &(struct ctw_sizes){
            .vocab = 32000, .hidden = 4096, .n_layers = 32, .n_head = 32, .max_length = 2048},
        &(struct ctw_size_keys){.inner = "", .n_kv = ""});
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    bool mlp_bias = ctw_key_bool(c, "mlp_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    const struct ctw_json_node *node = ctw_key_list(c, "block_configs", s.n_layers);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    struct ctw_attention_rules attention = {
        .head = head,
        .rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0}),
        .qkv_bias = bias,
        .o_bias = bias};
    for (int64_t i = 0; i < s.n_layers && c->status == CTW_OK; i++, node = ctw_json_next(node)) {
        const struct block b = read_block(c, node, &s);
        if (c->status == CTW_OK && b.group > 0) {
            attention.n_kv = s.n_head / b.group;
            ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "input_layernorm", 0);
            ctw_describe_attention(c, i, &attention);
        }
        if (c->status == CTW_OK && b.inner > 0) {
            ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "post_attention_layernorm", 0);
            ctw_describe_mlp(c, i,
                             &(struct ctw_mlp){.inner = b.inner, .act = act, .bias = mlp_bias});
        }
    }
}

const struct ctw_family ctw_family_nemotron_nas = {
    .model_type = "nemotron-nas", .architecture = "DeciLMForCausalLM", .describe = describe};
