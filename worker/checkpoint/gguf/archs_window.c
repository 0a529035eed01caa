/* Models in which some layers have a window: Command R7B and its mixtures, EXAONE 4. */
#include <stddef.h>
#include <stdint.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

/* Cohere2Model. Without a pattern, llama.cpp has windows in three of four layers, as transformers'
 * default. */
static const struct ctw_gguf_key cohere2_keys[] = {
    {"layer_norm_eps", "attention.layer_norm_epsilon", true},
    {"logit_scale", "logit_scale", true},
    {"sliding_window", "attention.sliding_window", true},
    {NULL, NULL, false},
};

/* Cohere2MoeModel: the average of experts and shared expert only. */
static const struct ctw_gguf_name cohere2moe_layers[] = {
    CTW_GGUF_SHARED_EXPERTS,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key cohere2moe_keys[] = {
    {"layer_norm_eps", "attention.layer_norm_epsilon", false},
    {"logit_scale", "logit_scale", true},
    {"sliding_window", "attention.sliding_window", true},
    {"intermediate_size", "expert_feed_forward_length", true},
    {"prefix_dense_intermediate_size", "feed_forward_length", true},
    {"num_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"num_shared_experts", "expert_shared_count", false},
    {"first_k_dense_replace", "leading_dense_block_count", true},
    {"norm_topk_prob", "expert_weights_norm", false},
    {NULL, NULL, false},
};

/* Exaone4Model. */
static const struct ctw_gguf_name exaone4_layers[] = {
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"post_ffw_norm", "post_feedforward_layernorm", 0},
    {NULL, NULL, 0},
};

static void write_exaone4(struct ctw_gguf_keys *k)
{
    static const char window[] = "attention.sliding_window";
    if (ctw_gguf_int(k, window, 0) > 0) {
        ctw_gguf_write(k, "sliding_window", window, true);
        ctw_gguf_write_windows(k);
    } else {
        ctw_json_write_key(&k->writer, "sliding_window");
        ctw_json_write_null(&k->writer);
    }
}

/* ExaoneMoEModel. */
static const struct ctw_gguf_name exaone_moe_layers[] = {
    CTW_GGUF_SHARED_EXPERTS,
    {"exp_probs_b.bias", "mlp.e_score_correction_bias", CTW_GGUF_WHOLE},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key exaone_moe_keys[] = {
    {"num_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"num_shared_experts", "expert_shared_count", false},
    {"first_k_dense_replace", "leading_dense_block_count", false},
    {"routed_scaling_factor", "expert_weights_scale", false},
    {"norm_topk_prob", "expert_weights_norm", false},
    {"n_group", "expert_group_count", false},
    {"topk_group", "expert_group_used_count", false},
    {"sliding_window", "attention.sliding_window", true},
    {NULL, NULL, false},
};

const struct ctw_gguf_arch ctw_gguf_archs_window[] = {
    {.name = "cohere2",
     .model_type = "cohere2",
     .class_name = "Cohere2ForCausalLM",
     .keys = cohere2_keys,
     .more = ctw_gguf_write_windows},
    {.name = "cohere2moe",
     .model_type = "cohere2_moe",
     .class_name = "Cohere2MoeForCausalLM",
     .layers = cohere2moe_layers,
     .keys = cohere2moe_keys,
     .fixed = "\"expert_selection_fn\":\"sigmoid\"",
     .gating = CTW_GGUF_SIGMOID,
     .more = ctw_gguf_write_windows},
    {.name = "exaone4",
     .model_type = "exaone4",
     .class_name = "Exaone4ForCausalLM",
     .layers = exaone4_layers,
     .more = write_exaone4},
    {.name = "exaone-moe",
     .model_type = "exaone_moe",
     .class_name = "ExaoneMoeForCausalLM",
     .layers = exaone_moe_layers,
     .keys = exaone_moe_keys,
     .gating = CTW_GGUF_SIGMOID,
     .more = ctw_gguf_write_windows},
    {0},
};
