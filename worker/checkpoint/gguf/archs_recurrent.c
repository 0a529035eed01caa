/* Models with Mamba 2 layers: Nemotron H, Granite 4, Falcon H1. The converter stores -exp(A_log).
 */
#include <inttypes.h>
#include <stddef.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

#define MAMBA_NAMES(module)                                                                        \
    {"ssm_in", module ".in_proj", 0}, {"ssm_conv1d", module ".conv1d", CTW_GGUF_TAPS},             \
        {"ssm_dt.bias", module ".dt_bias", CTW_GGUF_WHOLE},                                        \
        {"ssm_a", module ".A_log", CTW_GGUF_WHOLE | CTW_GGUF_RATES | CTW_GGUF_FLAT},               \
        {"ssm_d", module ".D", CTW_GGUF_WHOLE | CTW_GGUF_FLAT},                                    \
        {"ssm_norm", module ".norm", CTW_GGUF_FLAT},                                               \
    {                                                                                              \
        "ssm_out", module ".out_proj", 0                                                           \
    }

/* ---- Nemotron H, Nemotron 3 ---- */

static const struct ctw_gguf_name nemotron_layers[] = {
    MAMBA_NAMES("mixer"),
    {"attn_norm", "norm", 0},
    {"attn_q", "mixer.q_proj", 0},
    {"attn_k", "mixer.k_proj", 0},
    {"attn_v", "mixer.v_proj", 0},
    {"attn_output", "mixer.o_proj", 0},
    {"ffn_up", "mixer.up_proj", 0},
    {"ffn_down", "mixer.down_proj", 0},
    {"ffn_gate_inp", "mixer.gate", 0},
    {"exp_probs_b.bias", "mixer.gate.e_score_correction_bias", CTW_GGUF_WHOLE},
    {"ffn_up_exps", "mixer.experts.#.up_proj", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "mixer.experts.#.down_proj", CTW_GGUF_EXPERTS},
    {"ffn_up_shexp", "mixer.shared_experts.up_proj", 0},
    {"ffn_down_shexp", "mixer.shared_experts.down_proj", 0},
    {"ffn_latent_down", "mixer.fc1_latent_proj", 0},
    {"ffn_latent_up", "mixer.fc2_latent_proj", 0},
    {"token_embd", "model.embeddings", 0},
    {"output_norm", "model.norm_f", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key nemotron_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"intermediate_size", NULL, false},
    {"mamba_num_heads", "ssm.time_step_rank", true},
    {"n_groups", "ssm.group_count", true},
    {"ssm_state_size", "ssm.state_size", true},
    {"conv_kernel", "ssm.conv_kernel", true},
    {"n_routed_experts", "expert_count", false},
    {"num_experts_per_tok", "expert_used_count", false},
    {"moe_intermediate_size", "expert_feed_forward_length", false},
    {"moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length", false},
    {"moe_latent_size", "moe_latent_size", false},
    {"n_group", "expert_group_count", false},
    {"topk_group", "expert_group_used_count", false},
    {"norm_topk_prob", "expert_weights_norm", false},
    {"routed_scaling_factor", "expert_weights_scale", false},
    {NULL, NULL, false},
};

/* Each layer is a letter; the metadata do not tell an MLP from a mixture. */
static void write_nemotron(struct ctw_gguf_keys *k)
{
    enum { MOST = 1024 };
    char letters[MOST + 1];
    int64_t n = ctw_gguf_layers(k), inner = 0;
    if (n < 1 || n > MOST) {
        ctw_gguf_refuse(k, "block_count", "found %" PRId64 ", expected 1 to %d", n, MOST);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const struct ctw_tensor *up = ctw_gguf_layer_tensor(k, i, "ffn_up");
        letters[i] = ctw_gguf_layer_tensor(k, i, "ssm_in") != NULL         ? 'M'
                     : ctw_gguf_layer_tensor(k, i, "attn_q") != NULL       ? '*'
                     : ctw_gguf_layer_tensor(k, i, "ffn_gate_inp") != NULL ? 'E'
                                                                           : '-';
        if (letters[i] == '-' && up != NULL && up->n_dims == 2)
            inner = up->shape[0];
    }
    letters[n] = '\0';
    ctw_json_write_key_string(&k->writer, "hybrid_override_pattern", letters);
    const char *rms = "attention.layer_norm_rms_epsilon", *other = "attention.layer_norm_epsilon";
    ctw_gguf_write(k, "layer_norm_epsilon", ctw_gguf_meta(k, rms) != NULL ? rms : other, true);
    if (inner > 0)
        ctw_json_write_key_int(&k->writer, "intermediate_size", inner);
    ctw_json_write_key_int(&k->writer, "num_key_value_heads",
                           ctw_gguf_largest(k, "attention.head_count_kv", 0));
    ctw_gguf_write_space_head(k, "mamba_head_dim");
}

/* ---- Granite 4 ---- */

/* GraniteHybridModel: LlamaModel's order of q and k, gate and up apart. Without experts, the shared
 * MLP is named as any MLP. */
#define GRANITE_NAMES                                                                              \
    MAMBA_NAMES("mamba"), {"attn_q", "self_attn.q_proj", CTW_GGUF_PAIRS_Q},                        \
    {                                                                                              \
        "attn_k", "self_attn.k_proj", CTW_GGUF_PAIRS_K                                             \
    }

static const struct ctw_gguf_name granite_layers[] = {
    GRANITE_NAMES,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_name granite_moe_layers[] = {
    GRANITE_NAMES,
    {"ffn_gate_inp", "block_sparse_moe.router.layer", 0},
    {"ffn_gate_exps", "block_sparse_moe.experts.#.gate_proj", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "block_sparse_moe.experts.#.up_proj", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "block_sparse_moe.experts.#.down_proj", CTW_GGUF_EXPERTS},
    {"ffn_gate_shexp", "shared_mlp.gate_proj", 0},
    {"ffn_up_shexp", "shared_mlp.up_proj", 0},
    {"ffn_down_shexp", "shared_mlp.output_linear", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key granite_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"attention_multiplier", "attention.scale", true},
    {"embedding_multiplier", "embedding_scale", true},
    {"residual_multiplier", "residual_scale", true},
    {"logits_scaling", "logit_scale", true},
    {"num_local_experts", "expert_count", false},
    {"num_experts_per_tok", "expert_used_count", false},
    {"shared_intermediate_size", "expert_shared_feed_forward_length", true},
    {"mamba_n_heads", "ssm.time_step_rank", true},
    {"mamba_n_groups", "ssm.group_count", true},
    {"mamba_d_state", "ssm.state_size", true},
    {"mamba_d_conv", "ssm.conv_kernel", true},
    {NULL, NULL, false},
};

static void write_granite(struct ctw_gguf_keys *k)
{
    static const char kv[] = "attention.head_count_kv";
    double hidden = ctw_gguf_number(k, "embedding_length", 1);
    ctw_json_write_key_int(&k->writer, "num_key_value_heads", ctw_gguf_largest(k, kv, 0));
    ctw_gguf_write_layers(k, "layer_types", kv, "mamba", "attention");
    ctw_json_write_key_double(&k->writer, "mamba_expand",
                              ctw_gguf_number(k, "ssm.inner_size", 0) / hidden);
    ctw_gguf_write_space_head(k, "mamba_d_head");
    if (ctw_gguf_int(k, "expert_count", 0) == 0 && ctw_gguf_meta(k, "expert_count") == NULL)
        ctw_json_write_key_int(&k->writer, "num_local_experts", 0);
    if (ctw_gguf_int(k, "rope.scaling.finetuned", 0) != 0)
        ctw_json_write_key_string(&k->writer, "position_embedding_type", "rope");
}

/* ---- Falcon H1 ---- */

/* FalconH1Model: the weights are multiplied by all factors, and stay so: the factors are 1 now. A
 * norm's name has no ending. A norm of Mamba layers comes after the gate (mamba-base.cpp). */
static const struct ctw_gguf_name falcon_layers[] = {
    MAMBA_NAMES("mamba"),
    {"output_norm", "model.final_layernorm", 0},
    {"ffn_norm", "pre_ff_layernorm.weight", CTW_GGUF_WHOLE},
    {"ffn_gate", "feed_forward.gate_proj", 0},
    {"ffn_up", "feed_forward.up_proj", 0},
    {"ffn_down", "feed_forward.down_proj", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key falcon_keys[] = {
    {"mamba_n_heads", "ssm.time_step_rank", true}, {"mamba_d_ssm", "ssm.inner_size", true},
    {"mamba_n_groups", "ssm.group_count", true},   {"mamba_d_state", "ssm.state_size", true},
    {"mamba_d_conv", "ssm.conv_kernel", true},     {NULL, NULL, false},
};

static void write_falcon(struct ctw_gguf_keys *k)
{
    static const struct {
        const char *name, *tensor;
    } given[] = {
        {"mamba_rms_norm", "ssm_norm.weight"}, {"mamba_conv_bias", "ssm_conv1d.bias"},
        {"mamba_proj_bias", "ssm_in.bias"},    {"projectors_bias", "ssm_out.bias"},
        {"attention_bias", "attn_q.bias"},     {"mlp_bias", "ffn_down.bias"},
    };
    for (size_t i = 0; i < CTW_COUNT(given); i++)
        ctw_json_write_key_bool(&k->writer, given[i].name, ctw_gguf_has(k, given[i].tensor));
    ctw_gguf_write_space_head(k, "mamba_d_head");
    if (!ctw_gguf_has(k, "output.weight"))
        ctw_gguf_refuse(k, "vocab_size",
                        "the file has no output.weight: a tied head, whose factor is not stored, "
                        "is not supported for this architecture");
}

const struct ctw_gguf_arch ctw_gguf_archs_recurrent[] = {
    {.name = "falcon-h1",
     .model_type = "falcon_h1",
     .class_name = "FalconH1ForCausalLM",
     .layers = falcon_layers,
     .keys = falcon_keys,
     .fixed = "\"mamba_norm_before_gate\":false,\"attention_in_multiplier\":1,"
              "\"attention_out_multiplier\":1,\"key_multiplier\":1,\"ssm_in_multiplier\":1,"
              "\"ssm_out_multiplier\":1,\"embedding_multiplier\":1,\"lm_head_multiplier\":1,"
              "\"mlp_multipliers\":[1,1],\"ssm_multipliers\":[1,1,1,1,1]",
     .more = write_falcon},
    {.name = "nemotron_h",
     .model_type = "nemotron_h",
     .class_name = "NemotronHForCausalLM",
     .layers = nemotron_layers,
     .keys = nemotron_keys,
     .rope = ctw_gguf_write_no_rope,
     .more = write_nemotron},
    {.name = "nemotron_h_moe",
     .model_type = "nemotron_h",
     .class_name = "NemotronHForCausalLM",
     .layers = nemotron_layers,
     .keys = nemotron_keys,
     .gating = CTW_GGUF_SIGMOID,
     .rope = ctw_gguf_write_no_rope,
     .more = write_nemotron},
    {.name = "granitehybrid",
     .model_type = "granitemoehybrid",
     .class_name = "GraniteMoeHybridForCausalLM",
     .only_with = "expert_count",
     .layers = granite_moe_layers,
     .keys = granite_keys,
     .more = write_granite},
    {.name = "granitehybrid",
     .model_type = "granitemoehybrid",
     .class_name = "GraniteMoeHybridForCausalLM",
     .layers = granite_layers,
     .keys = granite_keys,
     .more = write_granite},
    {0},
};
