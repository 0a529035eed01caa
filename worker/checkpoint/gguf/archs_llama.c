/* Names that architectures share, and Llama's own architecture. */
#include <math.h>
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

static void write_biases(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_bool(&k->writer, "attention_bias", ctw_gguf_has(k, "attn_output.bias"));
    ctw_json_write_key_bool(&k->writer, "mlp_bias", ctw_gguf_has(k, "ffn_down.bias"));
}

/* Llama4Model: gate and up of the experts apart, RoPE on adjacent pairs as in the checkpoint. What
 * no key holds is in llama4.cpp: heads have norms unless there are 128 experts, three of four
 * layers have RoPE and see their own chunk of 8192 positions, queries of the others grow. */
static const struct ctw_gguf_name llama4_layers[] = {
    {"ffn_gate", "feed_forward.gate_proj", 0},
    {"ffn_up", "feed_forward.up_proj", 0},
    {"ffn_down", "feed_forward.down_proj", 0},
    {"ffn_gate_inp", "feed_forward.router", 0},
    {"ffn_gate_exps", "feed_forward.experts.#.gate_proj", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "feed_forward.experts.#.up_proj", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "feed_forward.experts.#.down_proj", CTW_GGUF_EXPERTS},
    {"ffn_gate_shexp", "feed_forward.shared_expert.gate_proj", 0},
    {"ffn_up_shexp", "feed_forward.shared_expert.up_proj", 0},
    {"ffn_down_shexp", "feed_forward.shared_expert.down_proj", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key llama4_keys[] = {
    {"intermediate_size", "expert_feed_forward_length", true},
    {"intermediate_size_mlp", "feed_forward_length", true},
    {"num_local_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"interleave_moe_layer_step", "interleave_moe_layer_step", true},
    {NULL, NULL, false},
};

static void write_llama4(struct ctw_gguf_keys *k)
{
    static const char window[] = "attention.sliding_window";
    ctw_json_write_key_bool(&k->writer, "use_qk_norm", ctw_gguf_int(k, "expert_count", 0) != 128);
    if (ctw_gguf_meta(k, window) != NULL)
        ctw_gguf_refuse(k, window,
                        "layers that see all positions, with RoPE, are not supported for this "
                        "architecture");
}

/* ApertusModel: xIELU's numbers of all layers are arrays. */
static const struct ctw_gguf_name apertus_layers[] = {
    {"attn_norm", "attention_layernorm", 0},
    {"ffn_norm", "feedforward_layernorm", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key apertus_numbers[] = {
    {"mlp.act_fn.alpha_p", "xielu.alpha_p", true},
    {"mlp.act_fn.alpha_n", "xielu.alpha_n", true},
    {"mlp.act_fn.beta", "xielu.beta", true},
    {"mlp.act_fn.eps", "xielu.eps", true},
    {NULL, NULL, false},
};

static void write_apertus(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_bool(&k->writer, "attention_bias", ctw_gguf_has(k, "attn_output.bias"));
}

/* GraniteModel. */
static const struct ctw_gguf_key granite_keys[] = {
    {"attention_multiplier", "attention.scale", true},
    {"embedding_multiplier", "embedding_scale", true},
    {"residual_multiplier", "residual_scale", true},
    {"logits_scaling", "logit_scale", true},
    {NULL, NULL, false},
};

/* OlmoModel, whose order of q and k is Llama's. */
static const struct ctw_gguf_key olmo_keys[] = {
    {"clip_qkv", "attention.clamp_kqv", false},
    {NULL, NULL, false},
};

/* ExaoneModel: EXAONE 3 and 3.5. */
static const struct ctw_gguf_name exaone_layers[] = {
    {"token_embd", "transformer.wte", 0},
    {"output_norm", "transformer.ln_f", 0},
    {"attn_norm", "ln_1", 0},
    {"ffn_norm", "ln_2", 0},
    {"attn_q", "attn.attention.q_proj", 0},
    {"attn_k", "attn.attention.k_proj", 0},
    {"attn_v", "attn.attention.v_proj", 0},
    {"attn_output", "attn.attention.out_proj", 0},
    {"ffn_gate", "mlp.c_fc_0", 0},
    {"ffn_up", "mlp.c_fc_1", 0},
    {"ffn_down", "mlp.c_proj", 0},
    {NULL, NULL, 0},
};

/* MiniCPMModel: the order of q and k likewise. Older files have none of the factors, which are then
 * those of the 2B, as in minicpm.cpp. */
static void write_minicpm(struct ctw_gguf_keys *k)
{
    double hidden = ctw_gguf_number(k, "embedding_length", 1);
    double root = sqrt((double)ctw_gguf_layers(k));
    double residual = ctw_gguf_number(k, "residual_scale", 1.4 / root);
    double logits = ctw_gguf_number(k, "logit_scale", hidden / 256);
    ctw_json_write_key_double(&k->writer, "scale_emb", ctw_gguf_number(k, "embedding_scale", 12));
    ctw_json_write_key_double(&k->writer, "scale_depth", residual * root);
    ctw_json_write_key_double(&k->writer, "dim_model_base", hidden / logits);
    write_biases(k);
}

/* Ministral3Model, which is LlamaModel with its own architecture's name. Yarn's factor of cosines
 * and sines is 1. */
static const struct ctw_gguf_key ministral_yarn[] = {
    {"llama_4_scaling_beta", "attention.temperature_scale", true},
    {"mscale", "rope.scaling.yarn_log_multiplier", true},
    {"mscale_all_dim", "rope.scaling.yarn_log_multiplier", true},
    {NULL, NULL, false},
};

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
    {.name = "llama4",
     .model_type = "llama4_text",
     .class_name = "Llama4ForCausalLM",
     .layers = llama4_layers,
     .keys = llama4_keys,
     .fixed = "\"no_rope_layer_interval\":4,\"attention_chunk_size\":8192,\"floor_scale\":8192,"
              "\"attn_scale\":0.1,\"attn_temperature_tuning\":true",
     .gating = CTW_GGUF_SIGMOID,
     .more = write_llama4},
    {.name = "apertus",
     .model_type = "apertus",
     .class_name = "ApertusForCausalLM",
     .layers = apertus_layers,
     .numbers = apertus_numbers,
     .more = write_apertus},
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
    {.name = "olmo",
     .model_type = "olmo",
     .class_name = "OlmoForCausalLM",
     .layers = llama_layers,
     .keys = olmo_keys},
    {.name = "minicpm",
     .model_type = "minicpm",
     .class_name = "MiniCPMForCausalLM",
     .layers = llama_layers,
     .longrope = true,
     .more = write_minicpm},
    {.name = "exaone",
     .model_type = "exaone",
     .class_name = "ExaoneForCausalLM",
     .prefix = "transformer.h.",
     .layers = exaone_layers},
    /* InternLM2Model: its one projection for q, k and v is apart, so that nothing differs from a
       Llama. */
    {.name = "internlm2",
     .model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .layers = llama_layers,
     .more = write_biases},
    {0},
};
