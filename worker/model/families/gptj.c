/*
 * GPT-J: mixer and MLP side by side under one layer norm, RoPE on neighbouring elements of a part
 * of each head, a head with a bias. CodeGen: the same, with one projection for q, k and v.
 * Defaults: GPTJConfig, CodeGenConfig.
 */
#include "worker/model/families/family.h"

enum { BLOCKS = 4 }; /* cores of the machine that CodeGen was trained on */

static struct ctw_sizes key_sizes(struct ctw_config *c)
{
    struct ctw_sizes s = ctw_key_sizes_as(
        c,
        &(struct ctw_sizes){
            .vocab = 50400, .hidden = 4096, .n_layers = 28, .n_head = 16, .max_length = 2048},
        &(struct ctw_size_keys){.hidden = "n_embd",
                                .inner = "",
                                .n_layers = "n_layer",
                                .n_head = "n_head",
                                .n_kv = "",
                                .max_length = "n_positions"});
    s.inner = ctw_key_int(c, "n_inner", 4 * s.hidden, 4 * s.hidden, 1, 1 << 20);
    return s;
}

/* The table of sines ends at n_positions. */
static void limit_length(struct ctw_config *c)
{
    c->model->length_limit = c->model->max_length;
    c->model->limited_by = "table of sines";
}

static void describe_with(struct ctw_config *c, bool codegen)
{
    static const char *const masks[] = {".attn.causal_mask", ".attn.bias", ".attn.masked_bias",
                                        NULL};
    const struct ctw_sizes s = key_sizes(c);
    if (codegen && s.n_head % BLOCKS != 0)
        ctw_key_fail(c, "n_head", CTW_EUNSUP, "found %lld, expected a multiple of %d",
                     (long long)s.n_head, BLOCKS);
    int64_t head = ctw_head_of(c, &s);
    int64_t rotated = ctw_key_int(c, "rotary_dim", 64, CTW_NULL_REFUSED, 2, head);
    const struct ctw_norm_form norm = ctw_key_layer_norm(c, "layer_norm_epsilon", 1e-5);
    enum ctw_activation act = ctw_key_activation(c, "activation_function", CTW_ACT_GELU_TANH);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.layers = "transformer.h",
                                                 .embed = "transformer.wte",
                                                 .final_norm = "transformer.ln_f",
                                                 .norm = norm,
                                                 .head_bias = true});
    limit_length(c);
    ctw_describe_buffers(c, masks);
    const struct ctw_attention_rules attention = {
        .head = head,
        .rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                              .pairing = CTW_ROPE_INTERLEAVED,
                                                              .theta = 10000.0,
                                                              .rotated = rotated}),
        .order = codegen ? CTW_QKV_IN_BLOCKS : CTW_QKV_SPLIT,
        .blocks = BLOCKS,
        .qkv = "attn.qkv_proj",
        .q = "attn.q_proj",
        .k = "attn.k_proj",
        .v = "attn.v_proj",
        .o = "attn.out_proj"};
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = act,
                                .plain = true,
                                .bias = true,
                                .up = "mlp.fc_in",
                                .down = "mlp.fc_out"};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_branch(c, i, CTW_MLP)->beside = true;
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "ln_1", 0);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

static void describe(struct ctw_config *c)
{
    describe_with(c, false);
}

static void describe_codegen(struct ctw_config *c)
{
    describe_with(c, true);
}

const struct ctw_family ctw_family_gptj = {
    .model_type = "gptj", .architecture = "GPTJForCausalLM", .describe = describe};

const struct ctw_family ctw_family_codegen = {
    .model_type = "codegen", .architecture = "CodeGenForCausalLM", .describe = describe_codegen};
