/* Gemma 1 to 3. The converter adds 1 to the weights of all norms, and omits the embedding's rows
 * behind the tokenizer's last token. */
#include <stddef.h>
#include <stdint.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

static const struct ctw_gguf_name layers_with_4_norms[] = {
    {"ffn_norm", "pre_feedforward_layernorm", 0},
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"post_ffw_norm", "post_feedforward_layernorm", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key gemma2_keys[] = {
    {"attn_logit_softcapping", "attn_logit_softcapping", true},
    {"final_logit_softcapping", "final_logit_softcapping", true},
    {"sliding_window", "attention.sliding_window", true},
    {NULL, NULL, false},
};

static const struct ctw_gguf_key gemma3_keys[] = {
    {"final_logit_softcapping", "final_logit_softcapping", false},
    {"sliding_window", "attention.sliding_window", true},
    {"rope_local_base_freq", "rope.freq_base_swa", false},
    {NULL, NULL, false},
};

/* No key holds query_pre_attn_scalar. llama.cpp (gemma2.cpp, gemma3.cpp) takes the size of a head,
 * but hidden / heads for the model of 27B, which it knows by its number of layers. */
static void write_scalar(struct ctw_gguf_keys *k, int64_t layers_of_27b)
{
    int64_t heads = ctw_gguf_int(k, "attention.head_count", 1), scalar = ctw_gguf_head(k);
    if (k->st == CTW_OK && ctw_gguf_int(k, "block_count", 0) == layers_of_27b)
        scalar = ctw_gguf_int(k, "embedding_length", 0) / heads;
    ctw_json_write_key_int(&k->writer, "query_pre_attn_scalar", scalar);
}

static void write_gemma2(struct ctw_gguf_keys *k)
{
    write_scalar(k, 46);
}

static void write_gemma3(struct ctw_gguf_keys *k)
{
    write_scalar(k, 62);
}

const struct ctw_gguf_arch ctw_gguf_archs_gemma[] = {
    {.name = "gemma",
     .model_type = "gemma",
     .class_name = "GemmaForCausalLM",
     .norms_plus_one = true,
     .wide = true,
     .fixed = "\"hidden_act\":\"gelu_pytorch_tanh\""},
    /* Windows in layers 0, 2, 4, ..., as transformers' default. */
    {.name = "gemma2",
     .model_type = "gemma2",
     .class_name = "Gemma2ForCausalLM",
     .layers = layers_with_4_norms,
     .keys = gemma2_keys,
     .norms_plus_one = true,
     .wide = true,
     .more = write_gemma2},
    /* Windows in five of six layers, as transformers' default. */
    {.name = "gemma3",
     .model_type = "gemma3_text",
     .class_name = "Gemma3ForCausalLM",
     .layers = layers_with_4_norms,
     .keys = gemma3_keys,
     .norms_plus_one = true,
     .wide = true,
     .more = write_gemma3},
    {0},
};
