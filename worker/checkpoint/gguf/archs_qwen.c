/* Qwen 2 to 3.5 and their mixtures. Without delta rules, the converter changes no values. */
#include <inttypes.h>
#include <stddef.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

/* Qwen2MoeModel and Qwen3MoeModel. */
static const struct ctw_gguf_key mixture_keys[] = {
    {"num_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length", false},
    {NULL, NULL, false},
};

/* ---- with delta rules ---- */

/* Qwen3NextModel. Up to Qwen 3 Next, the heads of values stay in the order of their key heads. */
#define DELTA_NAMES                                                                                \
    {"post_attention_norm", "post_attention_layernorm", 0},                                        \
        {"attn_qkv", "linear_attn.in_proj_qkv", 0}, {"attn_gate", "linear_attn.in_proj_z", 0},     \
        {"ssm_alpha", "linear_attn.in_proj_a", 0}, {"ssm_beta", "linear_attn.in_proj_b", 0},       \
        {"ssm_ba", "linear_attn.in_proj_ba", 0},                                                   \
        {"ssm_dt.bias", "linear_attn.dt_bias", CTW_GGUF_WHOLE},                                    \
        {"ssm_conv1d", "linear_attn.conv1d", CTW_GGUF_TAPS},                                       \
        {"ssm_norm", "linear_attn.norm", CTW_GGUF_AS_IS},                                          \
    {                                                                                              \
        "ssm_out", "linear_attn.out_proj", 0                                                       \
    }

static const struct ctw_gguf_name next_layers[] = {
    DELTA_NAMES,
    {"ssm_a", "linear_attn.A_log", CTW_GGUF_WHOLE | CTW_GGUF_RATES},
    {NULL, NULL, 0},
};

/* Qwen3_5TextModel: value head j belongs to key head j % n. */
static const struct ctw_gguf_name qwen35_layers[] = {
    DELTA_NAMES,
    {"ssm_a", "linear_attn.A_log", CTW_GGUF_WHOLE | CTW_GGUF_RATES | CTW_GGUF_TILED},
    {NULL, NULL, 0},
};

#define DELTA_KEYS                                                                                 \
    {"linear_conv_kernel_dim", "ssm.conv_kernel", true},                                           \
        {"linear_key_head_dim", "ssm.state_size", true},                                           \
        {"linear_num_key_heads", "ssm.group_count", true},                                         \
        {"linear_num_value_heads", "ssm.time_step_rank", true},                                    \
    {                                                                                              \
        "full_attention_interval", "full_attention_interval", false                                \
    }

static const struct ctw_gguf_key delta_keys[] = {
    DELTA_KEYS,
    {NULL, NULL, false},
};

static const struct ctw_gguf_key delta_mixture_keys[] = {
    DELTA_KEYS,
    {"num_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length", true},
    {NULL, NULL, false},
};

static void write_delta(struct ctw_gguf_keys *k)
{
    int64_t heads = ctw_gguf_int(k, "ssm.time_step_rank", 0);
    int64_t values = ctw_gguf_int(k, "ssm.inner_size", 0);
    if (heads < 1 || values % heads != 0)
        ctw_gguf_refuse(k, "ssm.inner_size",
                        "found %" PRId64 ", not a multiple of %" PRId64 " heads", values, heads);
    else
        ctw_json_write_key_int(&k->writer, "linear_value_head_dim", values / heads);
    ctw_gguf_write_layers(k, "layer_types", "attention.recurrent_layers", "full_attention",
                          "linear_attention");
}

/* ---- Qwen 4 (experimental) ---- */

/* Qwen4ExpTextModel: 1 is added to the weights of all norms; one table of n-grams for one layer,
 * whose numbers are in the metadata; the indexer's queries and key apart. qwen4exp.cpp has sigmoid
 * gates of the delta rule's output, and normalised weights of chosen experts. */
#define HYPER_CONNECTION(stored, module)                                                           \
    {"hc_" stored "_norm", module ".hc_norm", 0},                                                  \
        {"hc_" stored "_down", module ".input_mix_weight_down", 0},                                \
        {"hc_" stored "_up", module ".input_mix_weight_up", 0},                                    \
    {                                                                                              \
        "hc_" stored "_inject", module ".block_inject_weight", 0                                   \
    }

static const struct ctw_gguf_name qwen4_layers[] = {
    DELTA_NAMES,
    {"ssm_a", "linear_attn.A_log", CTW_GGUF_WHOLE | CTW_GGUF_RATES | CTW_GGUF_TILED},
    HYPER_CONNECTION("attn", "attn_hyper_connection"),
    HYPER_CONNECTION("ffn", "mlp_hyper_connection"),
    {"output_hc_norm", "model.hyper_connection_mixer.hc_norm", 0},
    {"output_hc_down", "model.hyper_connection_mixer.input_mix_weight_down", 0},
    {"output_hc_up", "model.hyper_connection_mixer.input_mix_weight_up", 0},
    {"indexer.q_proj", "self_attn.indexer.q_proj", 0},
    {"indexer.k_proj", "self_attn.indexer.k_proj", 0},
    {"indexer.q_norm", "self_attn.indexer.q_layernorm", 0},
    {"indexer.k_norm", "self_attn.indexer.k_layernorm", 0},
    {"per_layer_token_embd.weight",
     "model.layers.#.ple.ple_embedding.ngram_embedding.shard_0.weight", CTW_GGUF_WHOLE},
    {"ple_key", "ple.key_proj", 0},
    {"ple_value", "ple.value_proj", 0},
    {"ple_norm_key", "ple.norm_key", CTW_GGUF_PLUS_ONE},
    {"ple_norm_query", "ple.norm_query", CTW_GGUF_PLUS_ONE},
    {"ple_norm_conv", "ple.norm_conv", CTW_GGUF_PLUS_ONE},
    {"ple_conv1d", "ple.conv1d", CTW_GGUF_TAPS},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key qwen4_keys[] = {
    DELTA_KEYS,
    {"num_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length", true},
    {"hc_count", "hyper_connection.count", true},
    {"hc_lowrank", "hyper_connection.low_rank", true},
    {"indexer_n_heads", "attention.indexer.head_count", true},
    {"indexer_head_dim", "attention.indexer.key_length", true},
    {"indexer_budget", "attention.indexer.top_k", true},
    {NULL, NULL, false},
};

static const struct ctw_gguf_key qwen4_lists[] = {
    {"model.layers.#.ple.ple_embedding.layer_multipliers", "ple.layer_multipliers", true},
    {"model.layers.#.ple.ple_embedding.ngram_heads_offsets", "ple.head_offsets", true},
    {"model.layers.#.ple.ple_embedding.ngram_heads_vocab_sizes", "ple.head_vocab_sizes", true},
    {NULL, NULL, false},
};

/* The keys from which the family computes the numbers of the lists above, which must be equal: the
 * first table's size is the base, and the rows of all tables the number that divides them. */
static void write_ngrams(struct ctw_gguf_keys *k)
{
    enum { MOST = 1 << 20 };
    const struct ctw_tensor *t = ctw_container_find(k->files, "per_layer_token_embd.weight");
    const int64_t layer = ctw_gguf_int(k, "ple.layers", -1),
                  n = ctw_gguf_int(k, "ple.ngram_size", 0),
                  each = ctw_gguf_int(k, "ple.heads_per_ngram", 0),
                  dim = ctw_gguf_int(k, "embedding_length_per_layer_input", 0);
    if (ctw_gguf_meta(k, "ple.layers") == NULL)
        return;
    if (layer < 0 || layer >= ctw_gguf_layers(k))
        ctw_gguf_refuse(k, "ple.layers", "found %" PRId64 " of %" PRId64 " layers", layer,
                        ctw_gguf_layers(k));
    if (n < 2 || n > MOST || each < 1 || each > MOST || dim < 1 || dim > MOST || t == NULL ||
        t->n_dims != 2)
        ctw_gguf_refuse(k, "ple.ngram_size",
                        "n-grams of %" PRId64 " tokens, %" PRId64 " heads each, of %" PRId64
                        " elements, or without a table per_layer_token_embd.weight",
                        n, each, dim);
    if (k->st != CTW_OK)
        return;
    ctw_json_write_key(&k->writer, "ple_layer_ids");
    ctw_json_write_open(&k->writer, '[');
    ctw_json_write_int(&k->writer, layer + 1);
    ctw_json_write_close(&k->writer, ']');
    ctw_gguf_write(k, "ngram_size", "ple.ngram_size", true);
    ctw_gguf_write(k, "heads_per_ngram", "ple.heads_per_ngram", true);
    ctw_gguf_write(k, "ple_conv_kernel_size", "ple.conv_kernel", true);
    ctw_gguf_write(k, "eos_token_id", "ple.eos_token_id", true);
    ctw_json_write_key_int(&k->writer, "ple_embed_dim", (n - 1) * each * dim);
    ctw_json_write_key_int(&k->writer, "ngram_vocab_size_base",
                           ctw_gguf_of_layer(k, "ple.head_vocab_sizes", 0, 0));
    ctw_json_write_key_int(&k->writer, "make_ngram_vocab_size_divisible_by", t->shape[0]);
    ctw_json_write_key_int(&k->writer, "split_ngram_parts", 1);
}

static void write_qwen4(struct ctw_gguf_keys *k)
{
    static const char ratios[] = "attention.compress_ratios";
    if (ctw_gguf_meta(k, ratios) == NULL)
        ctw_gguf_refuse(k, ratios, "the key is missing, which a model of this architecture needs");
    write_delta(k);
    if (ctw_gguf_meta(k, "attention.recurrent_layers") == NULL)
        ctw_gguf_write_layers(k, "layer_types", ratios, "linear_attention", "full_attention");
    ctw_json_write_key_int(&k->writer, "indexer_compress_ratio", ctw_gguf_largest(k, ratios, 0));
    write_ngrams(k);
}

const struct ctw_gguf_arch ctw_gguf_archs_qwen[] = {
    {.name = "qwen4exp",
     .model_type = "qwen4_exp_text",
     .class_name = "Qwen4ExpForCausalLM",
     .layers = qwen4_layers,
     .keys = qwen4_keys,
     .lists = qwen4_lists,
     .number = "ple.layers",
     .fixed = "\"indexer_kv_heads\":1,\"norm_topk_prob\":true,\"output_gate_type\":\"sigmoid\"",
     .norms_plus_one = true,
     .partial_rope = true,
     .more = write_qwen4},
    {.name = "qwen2", .model_type = "qwen2", .class_name = "Qwen2ForCausalLM"},
    /* llama.cpp's qwen2moe.cpp does not normalise the chosen experts' weights, qwen3moe.cpp does.
     */
    {.name = "qwen2moe",
     .model_type = "qwen2_moe",
     .class_name = "Qwen2MoeForCausalLM",
     .keys = mixture_keys,
     .fixed = "\"norm_topk_prob\":false"},
    {.name = "qwen3", .model_type = "qwen3", .class_name = "Qwen3ForCausalLM"},
    {.name = "qwen3next",
     .model_type = "qwen3_next",
     .class_name = "Qwen3NextForCausalLM",
     .layers = next_layers,
     .keys = delta_mixture_keys,
     .fixed = "\"norm_topk_prob\":true",
     .norms_plus_one = true,
     .partial_rope = true,
     .more = write_delta},
    {.name = "qwen35",
     .model_type = "qwen3_5_text",
     .class_name = "Qwen3_5ForCausalLM",
     .layers = qwen35_layers,
     .keys = delta_keys,
     .norms_plus_one = true,
     .partial_rope = true,
     .more = write_delta},
    {.name = "qwen35moe",
     .model_type = "qwen3_5_moe_text",
     .class_name = "Qwen3_5MoeForCausalLM",
     .layers = qwen35_layers,
     .keys = delta_mixture_keys,
     .norms_plus_one = true,
     .partial_rope = true,
     .more = write_delta},
    /* Text models of the vision models, whose positions in sections are equal for text. */
    {.name = "qwen2vl", .model_type = "qwen2", .class_name = "Qwen2ForCausalLM"},
    {.name = "qwen3vl", .model_type = "qwen3", .class_name = "Qwen3ForCausalLM"},
    {.name = "qwen3vlmoe",
     .model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .keys = mixture_keys,
     .fixed = "\"norm_topk_prob\":true"},
    {.name = "qwen3moe",
     .model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .keys = mixture_keys,
     .fixed = "\"norm_topk_prob\":true"},
    {0},
};
