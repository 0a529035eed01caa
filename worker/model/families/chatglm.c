/*
 * ChatGLM 2 and 3, and GLM 4 in its first files: RMS norms, few key heads, RoPE on neighbouring
 * elements of half of each head, fused projections. Defaults: its own configuration_chatglm.py.
 */
#include "worker/model/families/family.h"

enum { CHATGLM_VOCAB = 65024 }; /* of ChatGLM 2 and 3 */

static struct ctw_sizes key_sizes(struct ctw_config *c)
{
    struct ctw_sizes s = ctw_key_sizes_as(c,
                                          &(struct ctw_sizes){.vocab = CHATGLM_VOCAB,
                                                              .hidden = 4096,
                                                              .inner = 13696,
                                                              .n_layers = 28,
                                                              .n_head = 32,
                                                              .max_length = 2048},
                                          &(struct ctw_size_keys){.vocab = "padded_vocab_size",
                                                                  .inner = "ffn_hidden_size",
                                                                  .n_layers = "num_layers",
                                                                  .n_kv = "",
                                                                  .max_length = "seq_length"});
    bool few = ctw_key_bool(c, "multi_query_attention", false);
    int64_t n_kv = ctw_key_int(c, "multi_query_group_num", 1, CTW_NULL_REFUSED, 1, 4096);
    if (few && s.n_head % n_kv != 0)
        ctw_key_fail(c, "multi_query_group_num", CTW_EFORMAT,
                     "is not a divisor of num_attention_heads");
    else if (few)
        s.n_kv = n_kv;
    return s;
}

/* Refuses a value of a switch that no published model has. */
static void check_switch(struct ctw_config *c, const char *name, bool absent)
{
    if (ctw_key_bool(c, name, absent) != absent)
        ctw_key_fail(c, name, CTW_EUNSUP, "this value is not supported");
}

static void check_keys(struct ctw_config *c)
{
    check_switch(c, "rmsnorm", true);
    check_switch(c, "add_bias_linear", false);
    check_switch(c, "apply_residual_connection_post_layernorm", false);
    if (ctw_key_int(c, "quantization_bit", 0, 0, 0, 64) != 0)
        ctw_key_fail(c, "quantization_bit", CTW_EUNSUP, "quantised files are not supported");
    if (ctw_key_int(c, "pre_seq_len", 0, 0, 0, 1 << 30) != 0)
        ctw_key_fail(c, "pre_seq_len", CTW_EUNSUP, "learned prefixes are not supported");
}

/* The factor of theta. ChatGLM 2, whose files look like ChatGLM 3's, divides positions by the
 * factor instead. */
static double key_rope_ratio(struct ctw_config *c, int64_t vocab)
{
    double ratio = ctw_key_number(c, "rope_ratio", 1, CTW_NULL_REFUSED, 1e-3, 1e9);
    if (ratio != 1 && vocab == CHATGLM_VOCAB)
        ctw_key_fail(c, "rope_ratio", CTW_EUNSUP,
                     "found %g, which is a factor of theta in ChatGLM 3's own code, and of "
                     "positions in ChatGLM 2's",
                     ratio);
    return ratio;
}

static void describe(struct ctw_config *c)
{
    static const char *const frequencies[] = {"rotary_pos_emb.inv_freq", NULL};
    const struct ctw_sizes s = key_sizes(c);
    int64_t head = ctw_key_int(c, "kv_channels", 128, CTW_NULL_REFUSED, 4, CTW_MAX_HEAD);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "layernorm_epsilon", 1e-5);
    bool qkv_bias = ctw_key_bool(c, "add_qkv_bias", false);
    bool final = ctw_key_bool(c, "post_layer_norm", true);
    double theta = 10000.0 * key_rope_ratio(c, s.vocab);
    check_keys(c);
    ctw_describe_model(
        c, &s,
        &(struct ctw_model_rules){.layers = "transformer.encoder.layers",
                                  .embed = "transformer.embedding.word_embeddings",
                                  .final_norm = final ? "transformer.encoder.final_layernorm" : "",
                                  .head = "transformer.output_layer",
                                  .norm = norm});
    ctw_describe_buffers(c, frequencies);
    const struct ctw_attention_rules attention = {
        .head = head,
        .rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                              .pairing = CTW_ROPE_INTERLEAVED,
                                                              .theta = theta,
                                                              .rotated = head / 2}),
        .order = CTW_QKV_IN_ORDER,
        .qkv = "self_attention.query_key_value",
        .o = "self_attention.dense",
        .qkv_bias = qkv_bias};
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = CTW_ACT_SILU,
                                .fused = true,
                                .gate_up = "mlp.dense_h_to_4h",
                                .down = "mlp.dense_4h_to_h"};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_chatglm = {.model_type = "chatglm",
                                              .architecture = "ChatGLMModel",
                                              .old_architecture = "ChatGLMForConditionalGeneration",
                                              .describe = describe};
