/* Architectures of other makers. */
#include <stddef.h>
#include <stdint.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

/* Phi3MiniModel: fused matrices as in the checkpoint. */
static const struct ctw_gguf_name phi3_layers[] = {
    {"attn_qkv", "self_attn.qkv_proj", 0},
    {"ffn_up", "mlp.gate_up_proj", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key phi3_keys[] = {
    {"head_dim", NULL, false}, /* is not read */
    {NULL, NULL, false},
};

static void write_phi3(struct ctw_gguf_keys *k)
{
    int64_t window = ctw_gguf_int(k, "attention.sliding_window", 0);
    if (window > 0)
        ctw_json_write_key_int(&k->writer, "sliding_window", window);
}

/* CommandR2Model: RoPE on adjacent pairs, as the checkpoint; heads' norms in the large model only.
 */
static const struct ctw_gguf_key cohere_keys[] = {
    {"layer_norm_eps", "attention.layer_norm_epsilon", true},
    {"logit_scale", "logit_scale", true},
    {NULL, NULL, false},
};

static void write_cohere(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_bool(&k->writer, "use_qk_norm", ctw_gguf_has(k, "attn_q_norm.weight"));
}

/* Olmo2Model. */
static const struct ctw_gguf_name olmo2_layers[] = {
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"post_ffw_norm", "post_feedforward_layernorm", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key olmo3_keys[] = {
    {"sliding_window", "attention.sliding_window", true},
    {NULL, NULL, false},
};

/* GptOssModel: gate and up of the experts apart; one bias for each expert. llama.cpp's
 * openai-moe.cpp has windows in layers 0, 2, 4, ..., as transformers' default. */
static const struct ctw_gguf_name gpt_oss_layers[] = {
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"attn_sinks.weight", "self_attn.sinks", CTW_GGUF_WHOLE},
    {"ffn_gate_inp", "mlp.router", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key gpt_oss_keys[] = {
    {"intermediate_size", "expert_feed_forward_length", true},
    {"num_local_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"sliding_window", "attention.sliding_window", true},
    {NULL, NULL, false},
};

/* SeedOssModel. */
static const struct ctw_gguf_name seed_oss_layers[] = {
    {"post_attention_norm", "post_attention_layernorm", 0},
    {NULL, NULL, 0},
};

static void write_seed_oss(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_qkv_bias(k);
    ctw_json_write_key_bool(&k->writer, "attention_out_bias", ctw_gguf_has(k, "attn_output.bias"));
}

/* HunYuanModel: theta is already scaled by alpha ^ (head / (head - 2)), and alpha is a whole
 * number.
 */
static const struct ctw_gguf_name hunyuan_layers[] = {
    {"attn_q_norm", "self_attn.query_layernorm", 0},
    {"attn_k_norm", "self_attn.key_layernorm", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_name hunyuan_moe_layers[] = {
    {"attn_q_norm", "self_attn.query_layernorm", 0},
    {"attn_k_norm", "self_attn.key_layernorm", 0},
    {"ffn_gate_inp", "mlp.gate.wg", 0},
    {"ffn_gate_shexp", "mlp.shared_mlp.gate_proj", 0},
    {"ffn_up_shexp", "mlp.shared_mlp.up_proj", 0},
    {"ffn_down_shexp", "mlp.shared_mlp.down_proj", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key hunyuan_moe_keys[] = {
    {"num_experts", "expert_count", true},
    {"moe_topk", "expert_used_count", true},
    {NULL, NULL, false},
};

/* PhiMoeModel: Phi3MiniModel's metadata, but q, k and v apart. */
static const struct ctw_gguf_name phimoe_layers[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate", 0},
    {"ffn_gate_exps", "block_sparse_moe.experts.#.w1", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "block_sparse_moe.experts.#.w3", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "block_sparse_moe.experts.#.w2", CTW_GGUF_EXPERTS},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key phimoe_keys[] = {
    {"head_dim", NULL, false}, /* is hidden / heads */
    {"num_local_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {NULL, NULL, false},
};

static void write_phimoe(struct ctw_gguf_keys *k)
{
    write_phi3(k);
    ctw_gguf_write_qkv_bias(k);
    ctw_json_write_key_bool(&k->writer, "lm_head_bias", ctw_gguf_has(k, "output.bias"));
}

/* PanguEmbeddedModel. */
static void write_pangu(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_bool(&k->writer, "bias", ctw_gguf_has(k, "attn_q.bias"));
}

const struct ctw_gguf_arch ctw_gguf_archs_more[] = {
    {.name = "seed_oss",
     .model_type = "seed_oss",
     .class_name = "SeedOssForCausalLM",
     .layers = seed_oss_layers,
     .more = write_seed_oss},
    {.name = "hunyuan-dense",
     .model_type = "hunyuan_v1_dense",
     .class_name = "HunYuanDenseV1ForCausalLM",
     .layers = hunyuan_layers},
    {.name = "hunyuan-moe",
     .model_type = "hunyuan_v1_moe",
     .class_name = "HunYuanMoEV1ForCausalLM",
     .layers = hunyuan_moe_layers,
     .keys = hunyuan_moe_keys},
    {.name = "phi3",
     .model_type = "phi3",
     .class_name = "Phi3ForCausalLM",
     .layers = phi3_layers,
     .keys = phi3_keys,
     .partial_rope = true,
     .longrope = true,
     .more = write_phi3},
    {.name = "phimoe",
     .model_type = "phimoe",
     .class_name = "PhimoeForCausalLM",
     .layers = phimoe_layers,
     .keys = phimoe_keys,
     .longrope = true,
     .mscale = 1.243163121016122,
     .more = write_phimoe},
    {.name = "pangu-embedded",
     .model_type = "PanguEmbedded",
     .class_name = "PanguEmbeddedForCausalLM",
     .more = write_pangu},
    {.name = "command-r",
     .model_type = "cohere",
     .class_name = "CohereForCausalLM",
     .keys = cohere_keys,
     .more = write_cohere},
    /* OLMo 3: windows in layers that the metadata list, or in three of four. */
    {.name = "olmo2",
     .only_with = "attention.sliding_window",
     .model_type = "olmo3",
     .class_name = "Olmo3ForCausalLM",
     .layers = olmo2_layers,
     .keys = olmo3_keys,
     .more = ctw_gguf_write_windows},
    {.name = "olmo2",
     .model_type = "olmo2",
     .class_name = "Olmo2ForCausalLM",
     .layers = olmo2_layers},
    {.name = "gpt-oss",
     .model_type = "gpt_oss",
     .class_name = "GptOssForCausalLM",
     .layers = gpt_oss_layers,
     .yarn = "\"truncate\":false",
     .keys = gpt_oss_keys},
    {0},
};
