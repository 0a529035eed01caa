/* Mixtures whose attention is Llama's or Qwen's. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

/* OlmoeModel: keeps no clip_qkv, which no published model has. */
static const struct ctw_gguf_key olmoe_keys[] = {
    {"num_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {NULL, NULL, false},
};

/* GraniteMoeModel: LlamaModel's order of q and k; gate and up of the experts apart. */
static const struct ctw_gguf_name granitemoe_layers[] = {
    {"attn_q", "self_attn.q_proj", CTW_GGUF_PAIRS_Q},
    {"attn_k", "self_attn.k_proj", CTW_GGUF_PAIRS_K},
    {"ffn_gate_inp", "block_sparse_moe.router.layer", 0},
    {"ffn_gate_exps", "block_sparse_moe.experts.#.gate_proj", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "block_sparse_moe.experts.#.up_proj", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "block_sparse_moe.experts.#.down_proj", CTW_GGUF_EXPERTS},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key granitemoe_keys[] = {
    {"attention_multiplier", "attention.scale", true},
    {"embedding_multiplier", "embedding_scale", true},
    {"residual_multiplier", "residual_scale", true},
    {"logits_scaling", "logit_scale", true},
    {"num_local_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {NULL, NULL, false},
};

/* Ernie4_5MoeModel. */
static const struct ctw_gguf_name ernie_layers[] = {
    CTW_GGUF_SHARED_EXPERTS,
    {"exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias", CTW_GGUF_WHOLE},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key ernie_keys[] = {
    {"moe_num_experts", "expert_count", true},
    {"moe_k", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"moe_num_shared_experts", "expert_shared_count", false},
    {"moe_layer_start_index", "leading_dense_block_count", true},
    {"moe_layer_interval", "interleave_moe_layer_step", false},
    {NULL, NULL, false},
};

static void write_ernie(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_bool(&k->writer, "use_bias", ctw_gguf_has(k, "attn_q.bias"));
}

/* Dots1Model. */
static const struct ctw_gguf_name routed_layers[] = {
    CTW_GGUF_ROUTED_NAMES,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key routed_keys[] = {
    CTW_GGUF_ROUTED_KEYS,
    {NULL, NULL, false},
};

/* MiniMaxM2Model. */
static const struct ctw_gguf_name minimax_layers[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate", 0},
    {"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias", CTW_GGUF_WHOLE},
    {"ffn_gate_exps", "block_sparse_moe.experts.#.w1", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "block_sparse_moe.experts.#.w3", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "block_sparse_moe.experts.#.w2", CTW_GGUF_EXPERTS},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key minimax_keys[] = {
    {"num_local_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"intermediate_size", "expert_feed_forward_length", true},
    {NULL, NULL, false},
};

/* MiniMaxM3Model: norms of the indexer likewise stored as 1 + w. minimax-m3.cpp has the family's
 * default limit and alpha. */
static const struct ctw_gguf_name minimax_m3_layers[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate", 0},
    {"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias", CTW_GGUF_WHOLE},
    {"ffn_gate_exps", "block_sparse_moe.experts.#.w1", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "block_sparse_moe.experts.#.w3", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "block_sparse_moe.experts.#.w2", CTW_GGUF_EXPERTS},
    {"ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj", 0},
    {"ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj", 0},
    {"ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj", 0},
    {"indexer.q_proj", "self_attn.index_q_proj", 0},
    {"indexer.k_proj", "self_attn.index_k_proj", 0},
    {"indexer.q_norm", "self_attn.index_q_norm", 0},
    {"indexer.k_norm", "self_attn.index_k_norm", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key minimax_m3_keys[] = {
    {"num_local_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"intermediate_size", "expert_feed_forward_length", true},
    {"dense_intermediate_size", "feed_forward_length", true},
    {"routed_scaling_factor", "expert_weights_scale", true},
    {"index_n_heads", "attention.indexer.head_count", true},
    {"index_head_dim", "attention.indexer.key_length", true},
    {"index_topk_blocks", "attention.indexer.top_k", true},
    {"index_block_size", "attention.indexer.block_size", true},
    {"index_local_blocks", "attention.indexer.local_blocks", true},
    {NULL, NULL, false},
};

static void write_minimax_m3(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_rows(k, "shared_intermediate_size", ctw_gguf_first_tensor(k, "ffn_up_shexp"));
    ctw_gguf_write_layers_with(k, "layer_types", "indexer.q_proj", "full_attention",
                               "minimax_m3_sparse");
    ctw_gguf_write_layers_with(k, "mlp_layer_types", "ffn_gate_inp", "dense", "sparse");
}

/* BailingMoeV2Model (Ling 2, Ring 2): GLM 4.5's numbers under other names. Also SarvamMoEModel,
 * whose heads are rotated whole. */
static const struct ctw_gguf_key bailing_keys[] = {
    CTW_GGUF_ROUTED_KEYS,
    {"num_nextn_predict_layers", "nextn_predict_layers", false},
    {NULL, NULL, false},
};

static void write_bailing(struct ctw_gguf_keys *k)
{
    ctw_gguf_check_shared_width(k);
    ctw_gguf_write_qkv_bias(k);
    ctw_json_write_key_bool(&k->writer, "use_qk_norm", ctw_gguf_has(k, "attn_q_norm.weight"));
}

/* AfmoeModel. afmoe.cpp scales the embedding, and has windows and RoPE in three of four layers. */
static const struct ctw_gguf_name afmoe_layers[] = {
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"attn_gate", "self_attn.gate_proj", 0},
    {"ffn_norm", "pre_mlp_layernorm", 0},
    {"post_ffw_norm", "post_mlp_layernorm", 0},
    {"ffn_gate_inp", "mlp.router.gate", 0},
    {"exp_probs_b.bias", "mlp.expert_bias", CTW_GGUF_WHOLE},
    CTW_GGUF_SHARED_EXPERTS,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key afmoe_keys[] = {
    {"num_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"num_shared_experts", "expert_shared_count", true},
    {"num_dense_layers", "leading_dense_block_count", true},
    {"route_scale", "expert_weights_scale", false},
    {"sliding_window", "attention.sliding_window", true},
    {NULL, NULL, false},
};

static void write_afmoe(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_qkv_bias(k);
    ctw_gguf_refuse_unnormalised(k);
}

/* HYV3Model; the correction's name has no ending. */
static const struct ctw_gguf_name hy_v3_layers[] = {
    {"ffn_gate_inp", "mlp.router.gate", 0},
    {"exp_probs_b", "mlp.expert_bias", CTW_GGUF_WHOLE},
    {"ffn_gate_shexp", "mlp.shared_mlp.gate_proj", 0},
    {"ffn_up_shexp", "mlp.shared_mlp.up_proj", 0},
    {"ffn_down_shexp", "mlp.shared_mlp.down_proj", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key hy_v3_keys[] = {
    {"num_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"router_scaling_factor", "expert_weights_scale", true},
    {NULL, NULL, false},
};

/* DbrxModel: stacks of experts, of which down is transposed. Weights of chosen experts add up to 1
 * (dbrx.cpp). */
static const struct ctw_gguf_name dbrx_layers[] = {
    {"token_embd", "transformer.wte", 0},
    {"output_norm", "transformer.norm_f", 0},
    {"attn_norm", "norm_attn_norm.norm_1", 0},
    {"attn_qkv", "norm_attn_norm.attn.Wqkv", 0},
    {"attn_output", "norm_attn_norm.attn.out_proj", 0},
    {"attn_output_norm", "norm_attn_norm.norm_2", 0},
    {"ffn_gate_inp", "ffn.router.layer", 0},
    {"ffn_gate_exps", "ffn.experts.#.w1", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "ffn.experts.#.v1", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "ffn.experts.#.w2", CTW_GGUF_EXPERTS},
    {NULL, NULL, 0},
};

static void write_dbrx_object(struct ctw_gguf_keys *k, const char *name,
                              const struct ctw_gguf_key *members)
{
    ctw_json_write_key(&k->writer, name);
    ctw_json_write_open(&k->writer, '{');
    for (; members->name != NULL; members++)
        ctw_gguf_write(k, members->name, members->stored, members->needed);
    ctw_json_write_close(&k->writer, '}');
}

static const struct ctw_gguf_key dbrx_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"intermediate_size", NULL, false},
    {NULL, NULL, false},
};

static void write_dbrx(struct ctw_gguf_keys *k)
{
    static const char epsilon[] = "attention.layer_norm_epsilon";
    static const struct ctw_gguf_key attention[] = {
        {"kv_n_heads", "attention.head_count_kv", true},
        {"rope_theta", "rope.freq_base", true},
        {"clip_qkv", "attention.clamp_kqv", true},
        {NULL, NULL, false},
    };
    static const struct ctw_gguf_key experts[] = {
        {"ffn_hidden_size", "feed_forward_length", true},
        {"moe_num_experts", "expert_count", true},
        {"moe_top_k", "expert_used_count", true},
        {NULL, NULL, false},
    };
    write_dbrx_object(k, "attn_config", attention);
    write_dbrx_object(k, "ffn_config", experts);
    if (!(fabs(ctw_gguf_number(k, epsilon, 1e-5) - 1e-5) < 1e-11))
        ctw_gguf_refuse(k, epsilon, "found %g; this architecture is read with 1e-05 only",
                        ctw_gguf_number(k, epsilon, 1e-5));
}

const struct ctw_gguf_arch ctw_gguf_archs_mixture[] = {
    {.name = "dbrx",
     .model_type = "dbrx",
     .class_name = "DbrxForCausalLM",
     .prefix = "transformer.blocks.",
     .layers = dbrx_layers,
     .keys = dbrx_keys,
     .rope = ctw_gguf_write_no_rope,
     .more = write_dbrx},
    {.name = "olmoe",
     .model_type = "olmoe",
     .class_name = "OlmoeForCausalLM",
     .keys = olmoe_keys,
     .fixed = "\"norm_topk_prob\":false"},
    {.name = "granitemoe",
     .model_type = "granitemoe",
     .class_name = "GraniteMoeForCausalLM",
     .layers = granitemoe_layers,
     .keys = granitemoe_keys},
    {.name = "ernie4_5",
     .model_type = "ernie4_5",
     .class_name = "Ernie4_5ForCausalLM",
     .more = write_ernie},
    {.name = "ernie4_5-moe",
     .model_type = "ernie4_5_moe",
     .class_name = "Ernie4_5_MoeForCausalLM",
     .layers = ernie_layers,
     .keys = ernie_keys,
     .more = write_ernie},
    {.name = "dots1",
     .model_type = "dots1",
     .class_name = "Dots1ForCausalLM",
     .layers = routed_layers,
     .keys = routed_keys,
     .fixed = "\"sliding_window\":null",
     .gating = CTW_GGUF_SIGMOID},
    {.name = "minimax-m2",
     .model_type = "minimax_m2",
     .class_name = "MiniMaxM2ForCausalLM",
     .layers = minimax_layers,
     .keys = minimax_keys,
     .partial_rope = true,
     .gating = CTW_GGUF_SIGMOID},
    {.name = "minimax-m3",
     .model_type = "minimax_m3",
     .class_name = "MiniMaxM3ForCausalLM",
     .layers = minimax_m3_layers,
     .keys = minimax_m3_keys,
     .norms_plus_one = true,
     .partial_rope = true,
     .gating = CTW_GGUF_SIGMOID,
     .more = write_minimax_m3},
    {.name = "bailingmoe2",
     .model_type = "glm4_moe",
     .class_name = "Glm4MoeForCausalLM",
     .layers = routed_layers,
     .keys = bailing_keys,
     .partial_rope = true,
     .gating = CTW_GGUF_SIGMOID,
     .more = write_bailing},
    {.name = "afmoe",
     .model_type = "afmoe",
     .class_name = "AfmoeForCausalLM",
     .layers = afmoe_layers,
     .keys = afmoe_keys,
     .fixed = "\"mup_enabled\":true,\"global_attn_every_n_layers\":4",
     .gating = CTW_GGUF_SIGMOID,
     .more = write_afmoe},
    {.name = "hy_v3",
     .model_type = "hy_v3",
     .class_name = "HYV3ForCausalLM",
     .layers = hy_v3_layers,
     .keys = hy_v3_keys,
     .gating = CTW_GGUF_SIGMOID},
    {0},
};
