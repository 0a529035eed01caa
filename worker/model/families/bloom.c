/*
 * BLOOM: layer norms, also of the embedding, ALiBi, one projection whose rows are each head's
 * query, key and value, a plain MLP. Defaults: BloomConfig.
 */
#include "worker/model/families/family.h"

static void refuse_variants(struct ctw_config *c)
{
    if (ctw_key_bool(c, "apply_residual_connection_post_layernorm", false))
        ctw_key_fail(c, "apply_residual_connection_post_layernorm", CTW_EUNSUP,
                     "true is not supported");
    /* transformers then leaves out biases. */
    if (ctw_key_bool(c, "slow_but_exact", false) &&
        ctw_key_int(c, "pretraining_tp", 1, CTW_NULL_REFUSED, 1, 1 << 20) > 1)
        ctw_key_fail(c, "slow_but_exact", CTW_EUNSUP,
                     "true is not supported with a pretraining_tp of more than 1");
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct ctw_sizes *s, int64_t head,
                           const struct ctw_norm_form *norm)
{
    ctw_describe_norms(c, i, norm);
    ctw_describe_attention(c, i,
                           &(struct ctw_attention_rules){.head = head,
                                                         .rope = -1,
                                                         .order = CTW_QKV_BY_HEAD,
                                                         .qkv = "self_attention.query_key_value",
                                                         .o = "self_attention.dense",
                                                         .qkv_bias = true,
                                                         .o_bias = true});
    ctw_describe_mlp(c, i,
                     &(struct ctw_mlp){.inner = s->inner,
                                       .act = CTW_ACT_GELU_TANH,
                                       .plain = true,
                                       .bias = true,
                                       .up = "mlp.dense_h_to_4h",
                                       .down = "mlp.dense_4h_to_h"});
}

static void describe(struct ctw_config *c)
{
    struct ctw_sizes s = ctw_key_sizes_as(
        c,
        /* The class has no length: ALiBi knows none. The models were trained with 2048. */
        &(struct ctw_sizes){
            .vocab = 250880, .hidden = 64, .n_layers = 2, .n_head = 8, .max_length = 2048},
        &(struct ctw_size_keys){.inner = "",
                                .n_layers = ctw_key_either(c, "n_layer", "num_hidden_layers"),
                                .n_head = ctw_key_either(c, "n_head", "num_attention_heads"),
                                .n_kv = "",
                                .max_length = ""});
    s.hidden = ctw_key_int(c, "n_embed", s.hidden, s.hidden, 1, 1 << 18);
    s.inner = 4 * s.hidden;
    int64_t head = ctw_head_of(c, &s);
    const struct ctw_norm_form norm = ctw_key_layer_norm(c, "layer_norm_epsilon", 1e-5);
    refuse_variants(c);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.layers = "transformer.h",
                                                 .embed = "transformer.word_embeddings",
                                                 .final_norm = "transformer.ln_f",
                                                 .norm = norm,
                                                 .tied = true});
    ctw_describe_norm(c, CTW_EMBEDDING, CTW_AT_EMBED, &norm,
                      "transformer.word_embeddings_layernorm", 0);
    ctw_describe_alibi(c, s.n_head, 8, 1);
    for (int64_t i = 0; i < s.n_layers; i++)
        describe_layer(c, i, &s, head, &norm);
}

const struct ctw_family ctw_family_bloom = {.model_type = "bloom",
                                            .architecture = "BloomForCausalLM",
                                            .prefix = "transformer.",
                                            .spellings = ctw_transformer_spellings,
                                            .describe = describe};
