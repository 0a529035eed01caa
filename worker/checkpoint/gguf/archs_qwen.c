/* Qwen 2 and 3 and their mixtures. The converter changes no values. */
#include <stddef.h>

#include "worker/checkpoint/gguf/archs.h"

/* Qwen2MoeModel and Qwen3MoeModel. */
static const struct ctw_gguf_key mixture_keys[] = {
    {"num_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length", false},
    {NULL, NULL, false},
};

const struct ctw_gguf_arch ctw_gguf_archs_qwen[] = {
    {.name = "qwen2", .model_type = "qwen2", .class_name = "Qwen2ForCausalLM"},
    /* llama.cpp's qwen2moe.cpp does not normalise the chosen experts' weights, qwen3moe.cpp does.
     */
    {.name = "qwen2moe",
     .model_type = "qwen2_moe",
     .class_name = "Qwen2MoeForCausalLM",
     .keys = mixture_keys,
     .fixed = "\"norm_topk_prob\":false"},
    {.name = "qwen3", .model_type = "qwen3", .class_name = "Qwen3ForCausalLM"},
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
