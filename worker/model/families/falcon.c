/*
 * Falcon: the 7B (one key head, one layer norm), the 40B and Falcon 2 (grouped heads, one or two
 * layer norms), and the RW models (ALiBi, mixer and MLP in turn, biases). Defaults: FalconConfig.
 */
#include <math.h>

#include "worker/model/families/family.h"

struct falcon {
    struct ctw_sizes sizes;
    bool grouped; /* the 40B's layers */
    bool parallel, two_norms, alibi, bias;
    enum ctw_qkv_order order;
    int64_t head;
    struct ctw_norm_form norm;
    enum ctw_activation act;
};

/* The layout that the keys select. Combinations that crash transformers are refused. */
static void read_layout(struct ctw_config *c, struct falcon *f)
{
    f->grouped = ctw_key_is_true(c, "new_decoder_architecture");
    bool multi_query = ctw_key_bool(c, "multi_query", true);
    int64_t n_kv = ctw_key_int(c, "num_kv_heads", f->sizes.n_head, f->sizes.n_head, 1, 4096);
    int64_t n_norms = f->grouped ? 2 : 1;
    n_norms = ctw_key_int(c, "num_ln_in_parallel_attn", n_norms, n_norms, 1, 2);
    f->parallel = ctw_key_bool(c, "parallel_attn", true);
    if (f->grouped && !f->parallel)
        ctw_key_fail(c, "parallel_attn", CTW_EUNSUP,
                     "false is not supported with new_decoder_architecture");
    if (!f->grouped && f->parallel && n_norms == 2)
        ctw_key_fail(c, "num_ln_in_parallel_attn", CTW_EUNSUP,
                     "2 is not supported without new_decoder_architecture");
    if (f->grouped && f->sizes.n_head % n_kv != 0)
        ctw_key_fail(c, "num_kv_heads", CTW_EFORMAT, "num_attention_heads is not a multiple of it");
    f->two_norms = f->grouped && n_norms == 2;
    f->order = multi_query && !f->grouped ? CTW_QKV_IN_ORDER : CTW_QKV_BY_HEAD;
    f->sizes.n_kv = f->grouped ? n_kv : multi_query ? 1 : f->sizes.n_head;
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct falcon *f, int rope)
{
    ctw_describe_branch(c, i, CTW_MLP)->beside = f->parallel;
    ctw_describe_norm(c, i, CTW_AT_MIXER, &f->norm, f->two_norms ? "ln_attn" : "input_layernorm",
                      0);
    if (f->two_norms)
        ctw_describe_norm(c, i, CTW_AT_MLP, &f->norm, "ln_mlp", 0);
    else if (!f->parallel)
        ctw_describe_norm(c, i, CTW_AT_MLP, &f->norm, "post_attention_layernorm", 0);
    ctw_describe_attention(c, i,
                           &(struct ctw_attention_rules){.n_head = f->sizes.n_head,
                                                         .n_kv = f->sizes.n_kv,
                                                         .head = f->head,
                                                         .rope = rope,
                                                         .order = f->order,
                                                         .qkv = "self_attention.query_key_value",
                                                         .o = "self_attention.dense",
                                                         .qkv_bias = f->bias,
                                                         .o_bias = f->bias});
    ctw_describe_mlp(c, i,
                     &(struct ctw_mlp){.inner = f->sizes.inner,
                                       .act = f->act,
                                       .plain = true,
                                       .bias = f->bias,
                                       .up = "mlp.dense_h_to_4h",
                                       .down = "mlp.dense_4h_to_h"});
}

static void describe(struct ctw_config *c)
{
    struct falcon f = {
        .sizes = ctw_key_sizes_as(
            c,
            &(struct ctw_sizes){
                .vocab = 65024, .hidden = 4544, .n_layers = 32, .n_head = 71, .max_length = 2048},
            &(struct ctw_size_keys){.inner = "", .n_kv = ""})};
    struct ctw_sizes *s = &f.sizes;
    s->hidden = ctw_key_int(c, "n_embed", s->hidden, s->hidden, 1, 1 << 18);
    s->inner = ctw_key_int(c, "ffn_hidden_size", 4 * s->hidden, 4 * s->hidden, 1, 1 << 20);
    read_layout(c, &f);
    f.head = ctw_head_of(c, s);
    f.alibi = ctw_key_is_true(c, "alibi");
    f.bias = ctw_key_is_true(c, "bias");
    f.norm = ctw_key_layer_norm(c, "layer_norm_epsilon", 1e-5);
    f.act = ctw_key_activation(c, "activation", CTW_ACT_GELU);
    ctw_describe_model(c, s,
                       &(struct ctw_model_rules){.layers = "transformer.h",
                                                 .embed = "transformer.word_embeddings",
                                                 .final_norm = "transformer.ln_f",
                                                 .norm = f.norm,
                                                 .tied = true});
    int rope = -1;
    if (f.alibi) /* which is divided by the square root of the head's size, as the scores are */
        ctw_describe_alibi(c, s->n_head, 8, 1 / sqrt((double)f.head));
    else
        rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = f.head, .theta = 10000.0});
    for (int64_t i = 0; i < s->n_layers; i++)
        describe_layer(c, i, &f, rope);
}

const struct ctw_family ctw_family_falcon = {.model_type = "falcon",
                                             .architecture = "FalconForCausalLM",
                                             .prefix = "transformer.",
                                             .spellings = ctw_transformer_spellings,
                                             .describe = describe};
