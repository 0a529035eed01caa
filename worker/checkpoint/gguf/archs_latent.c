/* Models with latent attention, as the converter's DeepseekV2Model writes it: the matrix from
 * latents to keys and values is two tensors, whose keys are transposed
 * (kernels/formats/ggml_heads); in older files it is attn_kv_b. */
#include <inttypes.h>
#include <stddef.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

#define LATENT_Q_NAMES                                                                             \
    {"attn_q_a", "self_attn.q_a_proj", 0}, {"attn_q_a_norm", "self_attn.q_a_layernorm", 0},        \
    {                                                                                              \
        "attn_q_b", "self_attn.q_b_proj", 0                                                        \
    }
#define LATENT_KV_NAMES                                                                            \
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", 0},                                          \
        {"attn_kv_a_norm", "self_attn.kv_a_layernorm", 0}, {"attn_k_b", "self_attn.kv_b_proj", 0}, \
    {                                                                                              \
        "attn_v_b.weight", "self_attn.kv_b_proj.more_values", CTW_GGUF_WHOLE                       \
    }

static const struct ctw_gguf_name latent_layers[] = {
    LATENT_Q_NAMES,        LATENT_KV_NAMES, {"attn_kv_b", "self_attn.kv_b_proj", 0},
    CTW_GGUF_ROUTED_NAMES, {NULL, NULL, 0},
};

static const struct ctw_gguf_key latent_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"head_dim", NULL, false},
    {"kv_lora_rank", "attention.kv_lora_rank", true},
    CTW_GGUF_ROUTED_KEYS,
    {NULL, NULL, false},
};

/* Keys of heads without "_mla" are those of the latents, but in older files. */
static void write_latent(struct ctw_gguf_keys *k)
{
    static const char turning[] = "rope.dimension_count";
    bool old = ctw_gguf_meta(k, "attention.key_length_mla") == NULL;
    const char *key = old ? "attention.key_length" : "attention.key_length_mla";
    const char *value = old ? "attention.value_length" : "attention.value_length_mla";
    int64_t rope = ctw_gguf_int(k, turning, 0), head = ctw_gguf_int(k, key, 0);
    if (rope < 1 || head <= rope)
        ctw_gguf_refuse(k, turning, "found %" PRId64 " of the %" PRId64 " elements of a head", rope,
                        head);
    ctw_json_write_key_int(&k->writer, "qk_rope_head_dim", rope);
    ctw_json_write_key_int(&k->writer, "qk_nope_head_dim", head - rope);
    ctw_gguf_write(k, "v_head_dim", value, true);
    ctw_json_write_key_int(&k->writer, "num_key_value_heads",
                           ctw_gguf_int(k, "attention.head_count", 0));
    if (ctw_gguf_meta(k, "attention.q_lora_rank") != NULL) {
        ctw_gguf_write(k, "q_lora_rank", "attention.q_lora_rank", true);
    } else {
        ctw_json_write_key(&k->writer, "q_lora_rank");
        ctw_json_write_null(&k->writer);
    }
}

static void write_deepseek(struct ctw_gguf_keys *k)
{
    write_latent(k);
    if (ctw_gguf_meta(k, "attention.temperature_scale") != NULL)
        ctw_gguf_refuse(k, "attention.temperature_scale",
                        "queries that grow with their position are not supported for this "
                        "architecture");
}

static void write_deepseek_v2(struct ctw_gguf_keys *k)
{
    write_deepseek(k);
    ctw_json_write_key_bool(&k->writer, "mlp_bias", ctw_gguf_has(k, "ffn_down.bias"));
    if (ctw_gguf_int(k, "expert_group_count", 1) > 1)
        ctw_json_write_key_string(&k->writer, "topk_method", "group_limited_greedy");
}

static void write_latent_rope(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_rope(k, ctw_gguf_int(k, "rope.dimension_count", 0));
}

/* ---- with an indexer: DeepseekV32Model, GlmMoeDsaModel ---- */

static const struct ctw_gguf_name indexed_layers[] = {
    LATENT_Q_NAMES,
    LATENT_KV_NAMES,
    {"indexer.attn_q_b", "self_attn.indexer.wq_b", 0},
    {"indexer.attn_k", "self_attn.indexer.wk", 0},
    {"indexer.k_norm", "self_attn.indexer.k_norm", 0},
    {"indexer.proj", "self_attn.indexer.weights_proj", 0},
    CTW_GGUF_ROUTED_NAMES,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key indexed_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"head_dim", NULL, false},
    {"kv_lora_rank", "attention.kv_lora_rank", true},
    {"index_n_heads", "attention.indexer.head_count", true},
    {"index_head_dim", "attention.indexer.key_length", true},
    {"index_topk", "attention.indexer.top_k", true},
    {"num_nextn_predict_layers", "nextn_predict_layers", false},
    CTW_GGUF_ROUTED_KEYS,
    {NULL, NULL, false},
};

static void write_indexed(struct ctw_gguf_keys *k)
{
    write_deepseek(k);
    ctw_gguf_write_layers(k, "indexer_types", "attention.indexer.types", "shared", "full");
}

/* ---- Kimi Linear ---- */

/* KimiLinearModel: -exp(A_log), and taps of convolutions as [1, n, 1, taps]. */
static const struct ctw_gguf_name kimi_layers[] = {
    LATENT_KV_NAMES,
    {"ssm_conv1d_q", "self_attn.q_conv1d", CTW_GGUF_TAPS},
    {"ssm_conv1d_k", "self_attn.k_conv1d", CTW_GGUF_TAPS},
    {"ssm_conv1d_v", "self_attn.v_conv1d", CTW_GGUF_TAPS},
    {"ssm_f_a", "self_attn.f_a_proj", 0},
    {"ssm_f_b", "self_attn.f_b_proj", 0},
    {"ssm_g_a", "self_attn.g_a_proj", 0},
    {"ssm_g_b", "self_attn.g_b_proj", 0},
    {"ssm_beta", "self_attn.b_proj", 0},
    {"ssm_a", "self_attn.A_log", CTW_GGUF_WHOLE | CTW_GGUF_RATES | CTW_GGUF_FLAT},
    {"ssm_dt.bias", "self_attn.dt_bias", CTW_GGUF_WHOLE},
    {"ssm_norm", "self_attn.o_norm", 0},
    {"ffn_gate_inp", "block_sparse_moe.gate", 0},
    {"exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias", CTW_GGUF_WHOLE},
    {"ffn_gate_exps", "block_sparse_moe.experts.#.w1", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "block_sparse_moe.experts.#.w3", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "block_sparse_moe.experts.#.w2", CTW_GGUF_EXPERTS},
    {"ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj", 0},
    {"ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj", 0},
    {"ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key kimi_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"head_dim", NULL, false},
    {"model_max_length", "context_length", true},
    {"max_position_embeddings", NULL, false},
    {"kv_lora_rank", "attention.kv_lora_rank", true},
    {"linear_head_dim", "kda.head_dim", true},
    {"linear_conv_kernel_dim", "ssm.conv_kernel", true},
    {"num_experts", "expert_count", true},
    {"num_experts_per_token", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"num_shared_experts", "expert_shared_count", true},
    {"first_k_dense_replace", "leading_dense_block_count", true},
    {"routed_scaling_factor", "expert_weights_scale", true},
    {NULL, NULL, false},
};

/* No key holds the number of a delta rule's heads, each of which has a beta. */
static void write_kimi(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_rows(k, "linear_num_heads", ctw_gguf_first_tensor(k, "ssm_beta"));
    write_latent(k);
    ctw_gguf_write_layers(k, "layer_types", "attention.head_count_kv", "linear_attention",
                          "full_attention");
}

static void no_rope(struct ctw_gguf_keys *k)
{
    (void)k;
}

/* ---- MiniCPM 3 ---- */

/* MiniCPM3Model; minicpm3.cpp has the factors that are the family's defaults. */
static const struct ctw_gguf_key minicpm3_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"head_dim", NULL, false},
    {"q_lora_rank", "attention.q_lora_rank", true},
    {"kv_lora_rank", "attention.kv_lora_rank", true},
    {"qk_rope_head_dim", "rope.dimension_count", true},
    {NULL, NULL, false},
};

static void write_minicpm3(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_int(&k->writer, "num_key_value_heads",
                           ctw_gguf_int(k, "attention.head_count", 0));
    ctw_json_write_key_int(&k->writer, "qk_nope_head_dim",
                           ctw_gguf_head(k) - ctw_gguf_int(k, "rope.dimension_count", 0));
}

const struct ctw_gguf_arch ctw_gguf_archs_latent[] = {
    {.name = "deepseek32",
     .model_type = "deepseek_v32",
     .class_name = "DeepseekV32ForCausalLM",
     .layers = indexed_layers,
     .keys = indexed_keys,
     .gating = CTW_GGUF_SIGMOID,
     .yarn_mscale = true,
     .rope = write_latent_rope,
     .more = write_indexed},
    /* GLM 5. */
    {.name = "glm-dsa",
     .model_type = "glm_moe_dsa",
     .class_name = "GlmMoeDsaForCausalLM",
     .layers = indexed_layers,
     .keys = indexed_keys,
     .gating = CTW_GGUF_SIGMOID,
     .rope = write_latent_rope,
     .more = write_indexed},
    {.name = "kimi-linear",
     .model_type = "kimi_linear",
     .class_name = "KimiLinearForCausalLM",
     .layers = kimi_layers,
     .keys = kimi_keys,
     .fixed = "\"moe_renormalize\":true",
     .gating = CTW_GGUF_SIGMOID,
     .rope = no_rope,
     .more = write_kimi},
    {.name = "minicpm3",
     .model_type = "minicpm3",
     .class_name = "MiniCPM3ForCausalLM",
     .layers = latent_layers,
     .keys = minicpm3_keys,
     .longrope = true,
     .rope = write_latent_rope,
     .more = write_minicpm3},
    /* DeepSeek V3 and R1, Kimi K2, GLM 4.7 Flash, which have a correction of the choice. */
    {.name = "deepseek2",
     .model_type = "deepseek_v3",
     .class_name = "DeepseekV3ForCausalLM",
     .only_with_tensor = "exp_probs_b.bias",
     .layers = latent_layers,
     .keys = latent_keys,
     .gating = CTW_GGUF_SIGMOID,
     .yarn_mscale = true,
     .rope = write_latent_rope,
     .more = write_deepseek},
    {.name = "deepseek2",
     .model_type = "deepseek_v2",
     .class_name = "DeepseekV2ForCausalLM",
     .layers = latent_layers,
     .keys = latent_keys,
     .gating = CTW_GGUF_SOFTMAX,
     .yarn_mscale = true,
     .rope = write_latent_rope,
     .more = write_deepseek_v2},
    /* Mistral4Model keeps no llama_4_scaling_beta. */
    {.name = "mistral4",
     .model_type = "mistral4",
     .class_name = "Mistral4ForCausalLM",
     .layers = latent_layers,
     .keys = latent_keys,
     .gating = CTW_GGUF_SOFTMAX,
     .yarn = "\"llama_4_scaling_beta\":0",
     .yarn_mscale = true,
     .rope = write_latent_rope,
     .more = write_deepseek},
    {0},
};
