/* Models with one projection for q, k and v, all of which the converter stores one after another
 * (struct ctw_config, in_turn). */
#include <stddef.h>
#include <stdint.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

/* The width of MLPs, which the converter takes as 4 * hidden. */
static void write_inner(struct ctw_gguf_keys *k, const char *name)
{
    ctw_gguf_write_rows(k, name, ctw_gguf_layer_tensor(k, 0, "ffn_up"));
}

/* ---- GPT-NeoX: keeps no rotary_emb_base, which llama.cpp takes as 10000 ---- */

static const struct ctw_gguf_name neox_names[] = {
    {"token_embd", "gpt_neox.embed_in", 0},
    {"output_norm", "gpt_neox.final_layer_norm", 0},
    {"output", "embed_out", 0},
    {"attn_qkv", "attention.query_key_value", 0},
    {"attn_output", "attention.dense", 0},
    {"ffn_up", "mlp.dense_h_to_4h", 0},
    {"ffn_down", "mlp.dense_4h_to_h", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key neox_keys[] = {
    {"layer_norm_eps", "attention.layer_norm_epsilon", true},
    {"use_parallel_residual", "use_parallel_residual", true},
    {NULL, NULL, false},
};

static void write_neox_rope(struct ctw_gguf_keys *k)
{
    int64_t head = ctw_gguf_head(k);
    if (k->st != CTW_OK)
        return;
    double rotated = (double)ctw_gguf_int(k, "rope.dimension_count", head);
    ctw_json_write_key_double(&k->writer, "rotary_emb_base",
                              ctw_gguf_number(k, "rope.freq_base", 10000));
    ctw_json_write_key_double(&k->writer, "rotary_pct", rotated / (double)head);
}

/* ---- BLOOM ---- */

static const struct ctw_gguf_name bloom_names[] = {
    {"token_embd", "transformer.word_embeddings", 0},
    {"token_embd_norm", "transformer.word_embeddings_layernorm", 0},
    {"output_norm", "transformer.ln_f", 0},
    {"attn_qkv", "self_attention.query_key_value", 0},
    {"attn_output", "self_attention.dense", 0},
    {"ffn_up", "mlp.dense_h_to_4h", 0},
    {"ffn_down", "mlp.dense_4h_to_h", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key epsilon_keys[] = {
    {"layer_norm_epsilon", "attention.layer_norm_epsilon", true},
    {NULL, NULL, false},
};

/* ---- GPT-2: linear weights are [outputs, inputs], other than in the checkpoint ---- */

static const struct ctw_gguf_name gpt2_names[] = {
    {"token_embd", "transformer.wte", 0},
    {"position_embd", "transformer.wpe", 0},
    {"output_norm", "transformer.ln_f", 0},
    {"attn_norm", "ln_1", 0},
    {"ffn_norm", "ln_2", 0},
    {"attn_qkv", "attn.c_attn", 0},
    {"attn_output", "attn.c_proj", 0},
    {"ffn_up", "mlp.c_fc", 0},
    {"ffn_down", "mlp.c_proj", 0},
    {NULL, NULL, 0},
};

static void write_gpt2(struct ctw_gguf_keys *k)
{
    write_inner(k, "n_inner");
}

/* ---- StarCoder 1: GPT-2's names, one key head. Its activation, gelu, is not stored ---- */

static const struct ctw_gguf_key starcoder_keys[] = {
    {"n_embd", "embedding_length", true},
    {"n_layer", "block_count", true},
    {"n_head", "attention.head_count", true},
    {"n_positions", "context_length", true},
    {"layer_norm_epsilon", "attention.layer_norm_epsilon", true},
    {NULL, NULL, false},
};

static void write_starcoder(struct ctw_gguf_keys *k)
{
    write_inner(k, "n_inner");
    ctw_json_write_key_bool(&k->writer, "multi_query", true);
}

/* ---- Qwen 1: keeps no seq_length, above which the model itself changes theta and scale ---- */

static const struct ctw_gguf_name qwen_names[] = {
    {"token_embd", "transformer.wte", 0},
    {"output_norm", "transformer.ln_f", 0},
    {"attn_norm", "ln_1", 0},
    {"ffn_norm", "ln_2", 0},
    {"attn_qkv", "attn.c_attn", 0},
    {"attn_output", "attn.c_proj", 0},
    {"ffn_gate", "mlp.w2", 0},
    {"ffn_up", "mlp.w1", 0},
    {"ffn_down", "mlp.c_proj", 0},
    {NULL, NULL, 0},
};

/* Newer converters write the RMS norm's epsilon under layer norms' key. */
static void write_qwen(struct ctw_gguf_keys *k)
{
    static const char rms[] = "attention.layer_norm_rms_epsilon";
    bool older = ctw_gguf_meta(k, rms) != NULL;
    ctw_gguf_write(k, "layer_norm_epsilon", older ? rms : "attention.layer_norm_epsilon", true);
    ctw_json_write_key_int(&k->writer, "kv_channels", ctw_gguf_head(k));
    ctw_json_write_key_bool(&k->writer, "no_bias", !ctw_gguf_has(k, "attn_output.bias"));
}

static void write_qwen_rope(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_double(&k->writer, "rotary_emb_base",
                              ctw_gguf_number(k, "rope.freq_base", 10000));
}

static const struct ctw_gguf_key qwen_keys[] = {
    {"rms_norm_eps", NULL, false},
    {NULL, NULL, false},
};

/* ---- Falcon: no key tells the models apart ---- */

#define FALCON_NAMES                                                                               \
    {"token_embd", "transformer.word_embeddings", 0}, {"output_norm", "transformer.ln_f", 0},      \
        {"attn_qkv", "self_attention.query_key_value", 0},                                         \
        {"attn_output", "self_attention.dense", 0}, {"ffn_up", "mlp.dense_h_to_4h", 0},            \
    {                                                                                              \
        "ffn_down", "mlp.dense_4h_to_h", 0                                                         \
    }

static const struct ctw_gguf_name falcon_names[] = {
    FALCON_NAMES,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_name falcon_names_of_2_norms[] = {
    FALCON_NAMES,
    {"attn_norm", "ln_mlp", 0},
    {"attn_norm_2", "ln_attn", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key falcon_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"num_kv_heads", "attention.head_count_kv", true},
    {"layer_norm_epsilon", "attention.layer_norm_epsilon", true},
    {NULL, NULL, false},
};

/* The 7B has one key head, Falcon 2 several and one norm. llama.cpp knows no models with ALiBi. */
static void write_falcon(struct ctw_gguf_keys *k)
{
    bool two = ctw_gguf_has(k, "attn_norm_2.weight");
    bool grouped = two || ctw_gguf_int(k, "attention.head_count_kv", 1) > 1;
    write_inner(k, "ffn_hidden_size");
    ctw_json_write_key_bool(&k->writer, "new_decoder_architecture", grouped);
    if (grouped)
        ctw_json_write_key_int(&k->writer, "num_ln_in_parallel_attn", two ? 2 : 1);
}

/* ---- MPT ---- */

static const struct ctw_gguf_name mpt_names[] = {
    {"token_embd", "transformer.wte", 0},
    {"output_norm", "transformer.norm_f", 0},
    {"attn_norm", "norm_1", 0},
    {"ffn_norm", "norm_2", 0},
    {"attn_qkv", "attn.Wqkv", 0},
    {"attn_output", "attn.out_proj", 0},
    {"ffn_up", "ffn.up_proj", 0},
    {"ffn_down", "ffn.down_proj", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key mpt_keys[] = {
    {"max_position_embeddings", NULL, false},
    {"max_seq_len", "context_length", true},
    {"layer_norm_epsilon", "attention.layer_norm_epsilon", true},
    {NULL, NULL, false},
};

static void write_mpt(struct ctw_gguf_keys *k)
{
    double bias = ctw_gguf_number(k, "attention.max_alibi_bias", 0);
    ctw_json_write_key(&k->writer, "attn_config");
    ctw_json_write_open(&k->writer, '{');
    ctw_json_write_key_bool(&k->writer, "alibi", bias > 0);
    ctw_json_write_key_double(&k->writer, "alibi_bias_max", bias);
    ctw_gguf_write(k, "clip_qkv", "attention.clamp_kqv", false);
    ctw_json_write_close(&k->writer, '}');
}

const struct ctw_gguf_arch ctw_gguf_archs_fused[] = {
    {.name = "gptneox",
     .model_type = "gpt_neox",
     .class_name = "GPTNeoXForCausalLM",
     .prefix = "gpt_neox.layers.",
     .layers = neox_names,
     .keys = neox_keys,
     .rope = write_neox_rope},
    {.name = "bloom",
     .model_type = "bloom",
     .class_name = "BloomForCausalLM",
     .prefix = "transformer.h.",
     .layers = bloom_names,
     .keys = epsilon_keys,
     .rope = ctw_gguf_write_no_rope},
    {.name = "gpt2",
     .model_type = "gpt2",
     .class_name = "GPT2LMHeadModel",
     .prefix = "transformer.h.",
     .layers = gpt2_names,
     .keys = epsilon_keys,
     .rope = ctw_gguf_write_no_rope,
     .more = write_gpt2},
    {.name = "starcoder",
     .model_type = "gpt_bigcode",
     .class_name = "GPTBigCodeForCausalLM",
     .prefix = "transformer.h.",
     .layers = gpt2_names,
     .keys = starcoder_keys,
     .fixed = "\"activation_function\":\"gelu\"",
     .rope = ctw_gguf_write_no_rope,
     .more = write_starcoder},
    {.name = "qwen",
     .model_type = "qwen",
     .class_name = "QWenLMHeadModel",
     .prefix = "transformer.h.",
     .layers = qwen_names,
     .keys = qwen_keys,
     .fixed = "\"use_dynamic_ntk\":false,\"use_logn_attn\":false",
     .rope = write_qwen_rope,
     .more = write_qwen},
    {.name = "falcon",
     .model_type = "falcon",
     .class_name = "FalconForCausalLM",
     .only_with_tensor = "attn_norm_2.weight",
     .prefix = "transformer.h.",
     .layers = falcon_names_of_2_norms,
     .keys = falcon_keys,
     .more = write_falcon},
    {.name = "falcon",
     .model_type = "falcon",
     .class_name = "FalconForCausalLM",
     .prefix = "transformer.h.",
     .layers = falcon_names,
     .keys = falcon_keys,
     .more = write_falcon},
    {.name = "mpt",
     .model_type = "mpt",
     .class_name = "MptForCausalLM",
     .prefix = "transformer.blocks.",
     .layers = mpt_names,
     .keys = mpt_keys,
     .rope = ctw_gguf_write_no_rope,
     .more = write_mpt},
    {0},
};
