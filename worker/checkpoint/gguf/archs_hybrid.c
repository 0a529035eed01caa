/* Models in which some layers have no attention. The converter lists no key heads there. */
#include <stddef.h>
#include <stdint.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

/* LFM2Model and LFM2MoeModel. */
#define LFM2_NAMES                                                                                 \
    {"attn_norm", "operator_norm", 0}, {"ffn_norm", "ffn_norm", 0},                                \
        {"attn_output", "self_attn.out_proj", 0}, {"attn_q_norm", "self_attn.q_layernorm", 0},     \
        {"attn_k_norm", "self_attn.k_layernorm", 0}, {"shortconv.in_proj", "conv.in_proj", 0},     \
        {"shortconv.out_proj", "conv.out_proj", 0},                                                \
        {"shortconv.conv", "conv.conv", CTW_GGUF_TAPS},                                            \
        {"token_embd_norm", "model.embedding_norm", 0}, {"ffn_gate", "feed_forward.w1", 0},        \
        {"ffn_up", "feed_forward.w3", 0},                                                          \
    {                                                                                              \
        "ffn_down", "feed_forward.w2", 0                                                           \
    }

#define LFM2_KEYS                                                                                  \
    {"num_key_value_heads", NULL, false}, {"norm_eps", "attention.layer_norm_rms_epsilon", true},  \
    {                                                                                              \
        "conv_L_cache", "shortconv.l_cache", true                                                  \
    }

static const struct ctw_gguf_name lfm2_layers[] = {
    LFM2_NAMES,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key lfm2_keys[] = {
    LFM2_KEYS,
    {NULL, NULL, false},
};

static const struct ctw_gguf_name lfm2moe_layers[] = {
    LFM2_NAMES,
    {"ffn_gate_inp", "feed_forward.gate", 0},
    {"exp_probs_b.bias", "feed_forward.expert_bias", CTW_GGUF_WHOLE},
    {"ffn_gate_exps", "feed_forward.experts.#.w1", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "feed_forward.experts.#.w3", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "feed_forward.experts.#.w2", CTW_GGUF_EXPERTS},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key lfm2moe_keys[] = {
    LFM2_KEYS,
    {"num_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"num_dense_layers", "leading_dense_block_count", true},
    {NULL, NULL, false},
};

static void write_lfm2(struct ctw_gguf_keys *k)
{
    static const char kv[] = "attention.head_count_kv";
    ctw_json_write_key_int(&k->writer, "num_key_value_heads", ctw_gguf_largest(k, kv, 0));
    ctw_gguf_write_layers(k, "layer_types", kv, "conv", "full_attention");
}

/* MiniMaxText01Model: one alpha for all branches, and betas of 1, as it asserts. Layers with
 * lightning attention have one projection and a gate. */
static const struct ctw_gguf_name minimax_layers[] = {
    {"attn_qkv", "self_attn.qkv_proj", 0},
    {"attn_gate", "self_attn.output_gate", 0},
    {"attn_norm_2", "self_attn.norm", 0},
    {"attn_output", "self_attn.out_proj", CTW_GGUF_LINEAR},
    {"ffn_gate_inp", "block_sparse_moe.gate", 0},
    {"ffn_gate_exps", "block_sparse_moe.experts.#.w1", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "block_sparse_moe.experts.#.w3", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "block_sparse_moe.experts.#.w2", CTW_GGUF_EXPERTS},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key minimax_keys[] = {
    {"num_local_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"rotary_dim", "rope.dimension_count", true},
    {"layernorm_full_attention_alpha", "residual_scale", true},
    {"layernorm_linear_attention_alpha", "residual_scale", true},
    {"layernorm_mlp_alpha", "residual_scale", true},
    {NULL, NULL, false},
};

static void write_minimax(struct ctw_gguf_keys *k)
{
    ctw_json_write_key(&k->writer, "attn_type_list");
    ctw_json_write_open(&k->writer, '[');
    for (int64_t i = 0; i < ctw_gguf_layers(k); i++)
        ctw_json_write_int(&k->writer, ctw_gguf_layer_tensor(k, i, "attn_q") != NULL);
    ctw_json_write_close(&k->writer, ']');
}

const struct ctw_gguf_arch ctw_gguf_archs_hybrid[] = {
    {.name = "minimax-01",
     .model_type = "minimax_text_01",
     .class_name = "MiniMaxText01ForCausalLM",
     .layers = minimax_layers,
     .keys = minimax_keys,
     .fixed = "\"postnorm\":true",
     .rope = ctw_gguf_write_rope_of_count,
     .more = write_minimax},
    {.name = "lfm2",
     .model_type = "lfm2",
     .class_name = "Lfm2ForCausalLM",
     .layers = lfm2_layers,
     .keys = lfm2_keys,
     .fixed = "\"block_auto_adjust_ff_dim\":false",
     .more = write_lfm2},
    {.name = "lfm2moe",
     .model_type = "lfm2_moe",
     .class_name = "Lfm2MoeForCausalLM",
     .layers = lfm2moe_layers,
     .keys = lfm2moe_keys,
     .gating = CTW_GGUF_SIGMOID,
     .more = write_lfm2},
    {0},
};
