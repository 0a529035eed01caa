/* DeepSeek V4: several residual streams, attention over pooled keys. */
#include <stddef.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

/* DeepseekV4Model, from the makers' files: experts stay in MXFP4, matrices in FP8 are multiplied by
 * their scales and rounded to Q8_0. The biases of the choice for images are not for text. */
static const struct ctw_gguf_name deepseek_layers[] = {
    {"token_embd", "embed", 0},
    {"output_norm", "norm", 0},
    {"output", "head", 0},
    {"output_hc_fn.weight", "hc_head_fn", CTW_GGUF_WHOLE},
    {"output_hc_base.weight", "hc_head_base", CTW_GGUF_WHOLE},
    {"output_hc_scale.weight", "hc_head_scale", CTW_GGUF_WHOLE},
    CTW_GGUF_STREAMS,
    {"attn_norm", "attn_norm", 0},
    {"ffn_norm", "ffn_norm", 0},
    {"attn_q_a", "attn.wq_a", 0},
    {"attn_q_a_norm", "attn.q_norm", 0},
    {"attn_q_b", "attn.wq_b", 0},
    {"attn_kv", "attn.wkv", 0},
    {"attn_kv_a_norm", "attn.kv_norm", 0},
    {"attn_output_a", "attn.wo_a", 0},
    {"attn_output_b", "attn.wo_b", 0},
    {"attn_sinks.weight", "attn.attn_sink", CTW_GGUF_WHOLE},
    {"attn_compressor_kv", "attn.compressor.wkv", 0},
    {"attn_compressor_gate", "attn.compressor.wgate", 0},
    {"attn_compressor_ape.weight", "attn.compressor.ape", CTW_GGUF_WHOLE},
    {"attn_compressor_norm", "attn.compressor.norm", 0},
    {"indexer.attn_q_b", "attn.indexer.wq_b", 0},
    {"indexer.proj", "attn.indexer.weights_proj", 0},
    {"indexer_compressor_kv", "attn.indexer.compressor.wkv", 0},
    {"indexer_compressor_gate", "attn.indexer.compressor.wgate", 0},
    {"indexer_compressor_ape.weight", "attn.indexer.compressor.ape", CTW_GGUF_WHOLE},
    {"indexer_compressor_norm", "attn.indexer.compressor.norm", 0},
    {"ffn_gate_inp", "ffn.gate", 0},
    {"ffn_gate_tid2eid.weight", "ffn.gate.tid2eid", CTW_GGUF_WHOLE},
    {"exp_probs_b.bias", "ffn.gate.bias", CTW_GGUF_WHOLE},
    {"exp_probs_b_vl.bias", "", CTW_GGUF_WHOLE | CTW_GGUF_LEFT_OUT},
    {"ffn_gate_exps", "ffn.experts.#.w1", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "ffn.experts.#.w2", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "ffn.experts.#.w3", CTW_GGUF_EXPERTS},
    {"ffn_gate_shexp", "ffn.shared_experts.w1", 0},
    {"ffn_down_shexp", "ffn.shared_experts.w2", 0},
    {"ffn_up_shexp", "ffn.shared_experts.w3", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key deepseek_keys[] = {
    {"intermediate_size", NULL, false},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"qk_rope_head_dim", "rope.dimension_count", true},
    {"q_lora_rank", "attention.q_lora_rank", true},
    {"sliding_window", "attention.sliding_window", true},
    {"o_groups", "attention.output_group_count", true},
    {"o_lora_rank", "attention.output_lora_rank", true},
    {"index_n_heads", "attention.indexer.head_count", true},
    {"index_head_dim", "attention.indexer.key_length", true},
    {"index_topk", "attention.indexer.top_k", true},
    {"compress_rope_theta", "attention.compress_rope_freq_base", true},
    {"hc_mult", "hyper_connection.count", true},
    {"hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations", true},
    {"hc_eps", "hyper_connection.epsilon", true},
    {"num_hash_layers", "hash_layer_count", true},
    {"n_routed_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"routed_scaling_factor", "expert_weights_scale", true},
    {"num_nextn_predict_layers", "nextn_predict_layers", false},
    {NULL, NULL, false},
};

static void write_deepseek(struct ctw_gguf_keys *k)
{
    static const char ratios[] = "attention.compress_ratios", clamp[] = "swiglu_clamp_exp",
                      clamp_shared[] = "swiglu_clamp_shexp", shared[] = "expert_shared_count";
    const double limit = ctw_gguf_same_number(k, clamp, 0);
    if (!(limit > 0) || ctw_gguf_same_number(k, clamp_shared, limit) != limit)
        ctw_gguf_refuse(k, clamp,
                        "expected one number above 0 for all layers, also in swiglu_clamp_shexp");
    if (ctw_gguf_int(k, shared, 1) != 1)
        ctw_gguf_refuse(k, shared, "only one shared expert is supported for this architecture");
    if (ctw_gguf_meta(k, ratios) == NULL)
        ctw_gguf_refuse(k, ratios, "the key is missing, which a model of this architecture needs");
    ctw_gguf_refuse_unnormalised(k);
    ctw_json_write_key(&k->writer, "swiglu_limit");
    ctw_json_write_float(&k->writer, (float)limit);
    ctw_gguf_write_each(k, "compress_ratios", ratios);
}

const struct ctw_gguf_arch ctw_gguf_archs_streams[] = {
    {.name = "deepseek4",
     .model_type = "deepseek_v4",
     .class_name = "DeepseekV4ForCausalLM",
     .prefix = "layers.",
     .layers = deepseek_layers,
     .keys = deepseek_keys,
     .gating = CTW_GGUF_SQRT_SOFTPLUS,
     .rope = ctw_gguf_write_rope_of_count,
     .more = write_deepseek},
    {0},
};
