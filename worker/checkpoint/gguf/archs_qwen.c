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
