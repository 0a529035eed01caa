/* Names that architectures share, and Llama's own architecture. */
#include <stddef.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

const struct ctw_gguf_name ctw_gguf_top_names[] = {
    {"token_embd", "model.embed_tokens", 0},
    {"output_norm", "model.norm", 0},
    {"output", "lm_head", 0},
    {NULL, NULL, 0},
};

const struct ctw_gguf_name ctw_gguf_layer_names[] = {
    {"attn_norm", "input_layernorm", 0},
    {"ffn_norm", "post_attention_layernorm", 0},
    {"attn_q", "self_attn.q_proj", 0},
    {"attn_k", "self_attn.k_proj", 0},
    {"attn_v", "self_attn.v_proj", 0},
    {"attn_output", "self_attn.o_proj", 0},
    {"attn_q_norm", "self_attn.q_norm", 0},
    {"attn_k_norm", "self_attn.k_norm", 0},
    {"ffn_gate", "mlp.gate_proj", 0},
    {"ffn_up", "mlp.up_proj", 0},
    {"ffn_down", "mlp.down_proj", 0},
    {"ffn_gate_inp", "mlp.gate", 0},
    {"ffn_gate_exps", "mlp.experts.#.gate_proj", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "mlp.experts.#.up_proj", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "mlp.experts.#.down_proj", CTW_GGUF_EXPERTS},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj", 0},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj", 0},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj", 0},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", CTW_GGUF_ONE_ROW},
    {NULL, NULL, 0},
};

/* LlamaModel: permute() of q and k. */
static const struct ctw_gguf_name llama_layers[] = {
    {"attn_q", "self_attn.q_proj", CTW_GGUF_PAIRS_Q},
    {"attn_k", "self_attn.k_proj", CTW_GGUF_PAIRS_K},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_name mixtral_layers[] = {
    {"attn_q", "self_attn.q_proj", CTW_GGUF_PAIRS_Q},
    {"attn_k", "self_attn.k_proj", CTW_GGUF_PAIRS_K},
    {"ffn_gate_inp", "block_sparse_moe.gate", 0},
    {"ffn_gate_exps", "block_sparse_moe.experts.#.w1", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "block_sparse_moe.experts.#.w3", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "block_sparse_moe.experts.#.w2", CTW_GGUF_EXPERTS},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key mixtral_keys[] = {
    {"num_local_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {NULL, NULL, false},
};

/* GraniteModel. */
static const struct ctw_gguf_key granite_keys[] = {
    {"attention_multiplier", "attention.scale", true},
    {"embedding_multiplier", "embedding_scale", true},
    {"residual_multiplier", "residual_scale", true},
    {"logits_scaling", "logit_scale", true},
    {NULL, NULL, false},
};

/* Ministral3Model, which is LlamaModel with its own architecture's name. Yarn's factor of cosines
 * and sines is 1. */
static const struct ctw_gguf_key ministral_yarn[] = {
    {"llama_4_scaling_beta", "attention.temperature_scale", true},
    {"mscale", "rope.scaling.yarn_log_multiplier", true},
    {"mscale_all_dim", "rope.scaling.yarn_log_multiplier", true},
    {NULL, NULL, false},
};

static void write_biases(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_bool(&k->writer, "attention_bias", ctw_gguf_has(k, "attn_output.bias"));
    ctw_json_write_key_bool(&k->writer, "mlp_bias", ctw_gguf_has(k, "ffn_down.bias"));
}

const struct ctw_gguf_arch ctw_gguf_archs_llama[] = {
    /* Mixtral, which the converter's LlamaModel makes, too. */
    {.name = "llama",
     .model_type = "mixtral",
     .class_name = "MixtralForCausalLM",
     .only_with = "expert_count",
     .layers = mixtral_layers,
     .keys = mixtral_keys},
    /* LlamaModel: Llama, Mistral, SmolLM, and others stored as Llama. */
    {.name = "llama",
     .model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .layers = llama_layers,
     .more = write_biases},
    {.name = "arcee",
     .model_type = "arcee",
     .class_name = "ArceeForCausalLM",
     .layers = llama_layers,
     .more = write_biases},
    /* Ministral 3, and Mistral Small 3.1 and 3.2. */
    {.name = "mistral3",
     .model_type = "ministral3",
     .class_name = "Ministral3ForCausalLM",
     .only_with = "attention.temperature_scale",
     .layers = llama_layers,
     .yarn_keys = ministral_yarn},
    {.name = "mistral3",
     .model_type = "mistral",
     .class_name = "MistralForCausalLM",
     .layers = llama_layers,
     .fixed = "\"sliding_window\":null"},
    {.name = "granite",
     .model_type = "granite",
     .class_name = "GraniteForCausalLM",
     .layers = llama_layers,
     .keys = granite_keys,
     .more = write_biases},
    /* SmolLM3Model: llama.cpp's smollm3.cpp leaves out RoPE in every fourth layer. */
    {.name = "smollm3",
     .model_type = "smollm3",
     .class_name = "SmolLM3ForCausalLM",
     .layers = llama_layers,
     .fixed = "\"no_rope_layer_interval\":4"},
    {0},
};
