/* Models with delta rules that have a decay for each channel (KDA), and latent attention in some
 * layers: Kimi Linear and K3, Ling 3, GLM 5 Next. The converter lists no key heads in layers with
 * delta rules, and stores taps of convolutions as [1, n, 1, taps]. */
#include <inttypes.h>
#include <stddef.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"
#include "worker/checkpoint/gguf/latent_names.h"

static const char kv[] = "attention.head_count_kv";

#define KDA_NAMES(module)                                                                          \
    {"ssm_conv1d_q", module ".q_conv1d", CTW_GGUF_TAPS},                                           \
        {"ssm_conv1d_k", module ".k_conv1d", CTW_GGUF_TAPS},                                       \
        {"ssm_conv1d_v", module ".v_conv1d", CTW_GGUF_TAPS}, {"ssm_beta", module ".b_proj", 0},    \
        {"ssm_dt.bias", module ".dt_bias", CTW_GGUF_WHOLE},                                        \
    {                                                                                              \
        "ssm_norm", module ".o_norm", 0                                                            \
    }

/* -exp(A_log). */
#define KDA_RATES                                                                                  \
    {                                                                                              \
        "ssm_a", "self_attn.A_log", CTW_GGUF_WHOLE | CTW_GGUF_RATES | CTW_GGUF_FLAT                \
    }

#define KIMI_EXPERTS                                                                               \
    {"ffn_gate_inp", "block_sparse_moe.gate", 0},                                                  \
        {"exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias", CTW_GGUF_WHOLE},     \
        {"ffn_gate_exps", "block_sparse_moe.experts.#.w1", CTW_GGUF_EXPERTS},                      \
        {"ffn_up_exps", "block_sparse_moe.experts.#.w3", CTW_GGUF_EXPERTS},                        \
        {"ffn_down_exps", "block_sparse_moe.experts.#.w2", CTW_GGUF_EXPERTS},                      \
        {"ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj", 0},                        \
        {"ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj", 0},                            \
    {                                                                                              \
        "ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj", 0                           \
    }

/* Of mixtures, and of latents. */
#define KDA_KEYS                                                                                   \
    {"num_key_value_heads", NULL, false}, {"head_dim", NULL, false},                               \
        {"kv_lora_rank", "attention.kv_lora_rank", true},                                          \
        {"num_experts_per_token", "expert_used_count", true},                                      \
        {"moe_intermediate_size", "expert_feed_forward_length", true},                             \
        {"first_k_dense_replace", "leading_dense_block_count", true},                              \
        {"routed_scaling_factor", "expert_weights_scale", true},                                   \
    {                                                                                              \
        "moe_renormalize", "expert_weights_norm", false                                            \
    }

static void write_kda_layers(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_layers(k, "layer_types", kv, "linear_attention", "full_attention");
}

/* Heads of the delta rules: no key holds their number, and each has a beta. */
static void write_delta_heads(struct ctw_gguf_keys *k, const char *name)
{
    ctw_gguf_write_rows(k, name, ctw_gguf_first_tensor(k, "ssm_beta"));
}

/* The decay's lower bound; null if the file has no such key. */
static void write_bound(struct ctw_gguf_keys *k, const char *name)
{
    static const char key[] = "kda.gate_lower_bound";
    if (ctw_gguf_meta(k, key) != NULL) {
        ctw_gguf_write(k, name, key, true);
    } else {
        ctw_json_write_key(&k->writer, name);
        ctw_json_write_null(&k->writer);
    }
}

/* ---- Kimi Linear ---- */

/* KimiLinearModel. */
static const struct ctw_gguf_name kimi_layers[] = {
    CTW_GGUF_LATENT_KV("self_attn"),
    KDA_NAMES("self_attn"),
    KDA_RATES,
    {"ssm_f_a", "self_attn.f_a_proj", 0},
    {"ssm_f_b", "self_attn.f_b_proj", 0},
    {"ssm_g_a", "self_attn.g_a_proj", 0},
    {"ssm_g_b", "self_attn.g_b_proj", 0},
    KIMI_EXPERTS,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key kimi_keys[] = {
    KDA_KEYS,
    {"num_experts", "expert_count", true},
    {"num_shared_experts", "expert_shared_count", true},
    {"model_max_length", "context_length", true},
    {"max_position_embeddings", NULL, false},
    {"linear_head_dim", "kda.head_dim", true},
    {"linear_conv_kernel_dim", "ssm.conv_kernel", true},
    {NULL, NULL, false},
};

static void write_kimi(struct ctw_gguf_keys *k)
{
    write_delta_heads(k, "linear_num_heads");
    ctw_gguf_write_latent(k, true);
    write_kda_layers(k);
}

/* ---- Kimi K3 ---- */

/* KimiK3Model: the weights of each blend of blocks are the product of the model's two vectors. */
static const struct ctw_gguf_name kimi_k3_layers[] = {
    CTW_GGUF_LATENT_Q("self_attn"),
    CTW_GGUF_LATENT_KV("self_attn"),
    KDA_NAMES("self_attn"),
    KDA_RATES,
    {"ssm_f_a", "self_attn.f_a_proj", 0},
    {"ssm_f_b", "self_attn.f_b_proj", 0},
    {"ssm_g", "self_attn.g_proj", 0},
    {"attn_gate", "self_attn.g_proj", 0},
    KIMI_EXPERTS,
    {"ffn_routed_down", "block_sparse_moe.routed_expert_down_proj", 0},
    {"ffn_routed_up", "block_sparse_moe.routed_expert_up_proj", 0},
    {"ffn_routed_norm", "block_sparse_moe.routed_expert_norm", 0},
    {"attn_res_score", "self_attention_res", 0},
    {"ffn_res_score", "mlp_res", 0},
    {"output_res_score", "model.output_attn_res", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key kimi_k3_keys[] = {
    KDA_KEYS,
    {"num_experts", "expert_count", true},
    {"num_shared_experts", "expert_shared_count", true},
    {"routed_expert_hidden_size", "expert_latent_length", false},
    {"activation_situ_beta", "activation.situ_beta", true},
    {"activation_situ_linear_beta", "activation.situ_linear_beta", true},
    {"attn_res_block_size", "attn_res.block_size", true},
    {NULL, NULL, false},
};

static void write_kimi_k3(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_latent(k, true);
    write_kda_layers(k);
    ctw_json_write_key(&k->writer, "linear_attn_config");
    ctw_json_write_open(&k->writer, '{');
    write_delta_heads(k, "num_heads");
    ctw_gguf_write(k, "head_dim", "kda.head_dim", true);
    ctw_gguf_write(k, "short_conv_kernel_size", "ssm.conv_kernel", true);
    write_bound(k, "gate_lower_bound");
    ctw_json_write_key_bool(&k->writer, "use_full_rank_gate",
                            ctw_gguf_first_tensor(k, "ssm_g") != NULL);
    ctw_json_write_close(&k->writer, '}');
    ctw_json_write_key_bool(&k->writer, "mla_use_output_gate",
                            ctw_gguf_first_tensor(k, "attn_gate") != NULL);
    ctw_json_write_key_bool(&k->writer, "latent_moe_use_norm",
                            ctw_gguf_first_tensor(k, "ffn_routed_norm") != NULL);
}

/* ---- Ling 3 ---- */

/* BailingMoeV3Model: exp(A_log); the gates of both kinds of layers have one name in the model. */
static const struct ctw_gguf_name ling_layers[] = {
    {"token_embd", "model.word_embeddings", 0},
    CTW_GGUF_LATENT_Q("attention"),
    CTW_GGUF_LATENT_KV("attention"),
    KDA_NAMES("attention"),
    {"ssm_a", "attention.A_log", CTW_GGUF_WHOLE | CTW_GGUF_RATES | CTW_GGUF_FLAT},
    {"ssm_f_a", "attention.f_proj", 0},
    {"ssm_g_a", "attention.g_proj", 0},
    {"attn_gate", "attention.g_proj", 0},
    {"attn_q", "attention.q_proj", 0},
    {"attn_k", "attention.k_proj", 0},
    {"attn_v", "attention.v_proj", 0},
    {"attn_output", "attention.dense", 0},
    CTW_GGUF_SHARED_EXPERTS,
    {"exp_probs_b.bias", "mlp.gate.expert_bias", CTW_GGUF_WHOLE},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key ling_keys[] = {
    KDA_KEYS,
    {"num_experts", "expert_count", true},
    {"num_shared_experts", "expert_shared_count", true},
    {"num_expert_group", "expert_group_count", true},
    {"topk_group", "expert_group_used_count", true},
    {"model_max_length", "context_length", true},
    {"max_position_embeddings", NULL, false},
    {"head_dim", "kda.head_dim", true},
    {"short_conv_kernel_size", "ssm.conv_kernel", true},
    {"kda_safe_gate", "kda.safe_gate", false},
    {"kda_lower_bound", "kda.gate_lower_bound", true},
    {"num_nextn_predict_layers", "nextn_predict_layers", false},
    {NULL, NULL, false},
};

static void write_ling(struct ctw_gguf_keys *k)
{
    static const char *const clamps[] = {"swiglu_clamp_exp", "swiglu_clamp_shexp"};
    for (int i = 0; i < 2; i++)
        if (ctw_gguf_same_number(k, clamps[i], 0) != 0)
            ctw_gguf_refuse(k, clamps[i],
                            "clamped experts are not supported for this architecture");
    ctw_gguf_check_shared_width(k);
    ctw_gguf_write_latent(k, true);
    write_kda_layers(k);
}

/* ---- GLM 5 Next (GLM 5.3 Flash) ---- */

/* Glm5NextModel. */
static const struct ctw_gguf_name glm_layers[] = {
    CTW_GGUF_LATENT_Q("self_attn"),
    CTW_GGUF_LATENT_KV("self_attn"),
    KDA_NAMES("self_attn"),
    KDA_RATES,
    {"ssm_f_a", "self_attn.f_a_proj", 0},
    {"ssm_f_b", "self_attn.f_b_proj", 0},
    {"ssm_g_a", "self_attn.g_a_proj", 0},
    {"ssm_g_b", "self_attn.g_b_proj", 0},
    {"indexer.attn_q_b", "self_attn.indexer.wq_b", 0},
    {"indexer.attn_k", "self_attn.indexer.wk", 0},
    {"indexer.k_norm", "self_attn.indexer.k_norm", 0},
    {"indexer.proj", "self_attn.indexer.weights_proj", 0},
    {"indexer_compressor_gate.weight", "self_attn.indexer.index_kpool_compress_gate",
     CTW_GGUF_WHOLE},
    {"indexer_compressor_ape.weight", "self_attn.indexer.index_kpool_compress_ape", CTW_GGUF_WHOLE},
    CTW_GGUF_STREAMS,
    CTW_GGUF_ROUTED_NAMES,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key glm_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"head_dim", NULL, false},
    {"kv_lora_rank", "attention.kv_lora_rank", true},
    {"n_routed_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"n_shared_experts", "expert_shared_count", true},
    {"routed_scaling_factor", "expert_weights_scale", true},
    {"norm_topk_prob", "expert_weights_norm", true},
    {"n_group", "expert_group_count", false},
    {"topk_group", "expert_group_used_count", false},
    {"linear_head_dim", "kda.head_dim", true},
    {"linear_conv_kernel_dim", "ssm.conv_kernel", true},
    {"index_n_heads", "attention.indexer.head_count", true},
    {"index_head_dim", "attention.indexer.key_length", true},
    {"index_topk", "attention.indexer.top_k", true},
    {"index_kpool", "attention.indexer.kpool", true},
    {"index_kpool_always_select_tail", "attention.indexer.kpool_select_tail", false},
    {"hc_mult", "hyper_connection.count", true},
    {"hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations", true},
    {"hc_eps", "hyper_connection.epsilon", true},
    {"num_nextn_predict_layers", "nextn_predict_layers", false},
    {NULL, NULL, false},
};

static void write_glm(struct ctw_gguf_keys *k)
{
    static const char clamp[] = "swiglu_clamp_exp", shared[] = "swiglu_clamp_shexp";
    const double limit = ctw_gguf_same_number(k, clamp, 0);
    if (!(limit > 0) || ctw_gguf_same_number(k, shared, limit) != limit)
        ctw_gguf_refuse(k, clamp,
                        "expected one number above 0 for all layers, also in "
                        "swiglu_clamp_shexp");
    ctw_json_write_key(&k->writer, "swiglu_limit");
    ctw_json_write_float(&k->writer, (float)limit);
    ctw_gguf_write_latent(k, false);
    write_delta_heads(k, "linear_num_heads");
    write_bound(k, "linear_lower_bound");
    write_kda_layers(k);
    ctw_gguf_write_layers(k, "indexer_types", "attention.indexer.types", "shared", "full");
    ctw_gguf_write_layers_with(k, "mlp_layer_types", "ffn_gate_inp", "dense", "sparse");
}

const struct ctw_gguf_arch ctw_gguf_archs_kda[] = {
    {.name = "kimi-linear",
     .model_type = "kimi_linear",
     .class_name = "KimiLinearForCausalLM",
     .layers = kimi_layers,
     .keys = kimi_keys,
     .gating = CTW_GGUF_SIGMOID,
     .rope = ctw_gguf_write_no_rope,
     .more = write_kimi},
    {.name = "kimi-k3",
     .model_type = "kimi_k3",
     .class_name = "KimiK3ForConditionalGeneration",
     .in_text_config = true,
     .layers = kimi_k3_layers,
     .keys = kimi_k3_keys,
     .fixed = "\"hidden_act\":\"situ\"",
     .gating = CTW_GGUF_SIGMOID,
     .rope = ctw_gguf_write_no_rope,
     .more = write_kimi_k3},
    {.name = "bailingmoe3",
     .model_type = "bailing_hybrid",
     .class_name = "BailingHybridForCausalLM",
     .layers = ling_layers,
     .keys = ling_keys,
     .gating = CTW_GGUF_SIGMOID,
     .rope = ctw_gguf_write_rope_of_count,
     .more = write_ling},
    {.name = "glm5-next",
     .model_type = "glm5_next",
     .class_name = "Glm5NextForConditionalGeneration",
     .in_text_config = true,
     .layers = glm_layers,
     .keys = glm_keys,
     .gating = CTW_GGUF_SIGMOID,
     .rope = ctw_gguf_write_no_rope,
     .more = write_glm},
    {0},
};
