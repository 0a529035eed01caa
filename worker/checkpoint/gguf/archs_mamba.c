/* Mamba, Mamba 2, Falcon Mamba and Jamba. The converter stores -exp(A_log). */
#include <inttypes.h>
#include <stddef.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

#define SPACE_NAMES(module, shape)                                                                 \
    {"ssm_in", module ".in_proj", 0}, {"ssm_conv1d", module ".conv1d", CTW_GGUF_TAPS},             \
        {"ssm_a", module ".A_log", CTW_GGUF_WHOLE | CTW_GGUF_RATES | (shape)},                     \
        {"ssm_d", module ".D", CTW_GGUF_WHOLE | (shape)},                                          \
    {                                                                                              \
        "ssm_out", module ".out_proj", 0                                                           \
    }
#define BACKBONE_NAMES                                                                             \
    {"token_embd", "backbone.embeddings", 0}, {"output_norm", "backbone.norm_f", 0},               \
    {                                                                                              \
        "attn_norm", "norm", 0                                                                     \
    }

/* ---- in all layers ---- */

static const struct ctw_gguf_name mamba_names[] = {
    BACKBONE_NAMES,
    SPACE_NAMES("mixer", 0),
    {"ssm_x", "mixer.x_proj", 0},
    {"ssm_dt", "mixer.dt_proj", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_name mamba2_names[] = {
    BACKBONE_NAMES,
    SPACE_NAMES("mixer", CTW_GGUF_FLAT),
    {"ssm_dt.bias", "mixer.dt_bias", CTW_GGUF_WHOLE},
    {"ssm_norm", "mixer.norm", CTW_GGUF_FLAT},
    {NULL, NULL, 0},
};

#define BACKBONE_KEYS                                                                              \
    {"num_attention_heads", NULL, false}, {"intermediate_size", NULL, false},                      \
        {"max_position_embeddings", NULL, false},                                                  \
        {"layer_norm_epsilon", "attention.layer_norm_rms_epsilon", true},                          \
        {"conv_kernel", "ssm.conv_kernel", true},                                                  \
    {                                                                                              \
        "state_size", "ssm.state_size", true                                                       \
    }

static const struct ctw_gguf_key mamba_keys[] = {
    BACKBONE_KEYS,
    {"time_step_rank", "ssm.time_step_rank", true},
    {NULL, NULL, false},
};

static const struct ctw_gguf_key mamba2_keys[] = {
    BACKBONE_KEYS,
    {"num_heads", "ssm.time_step_rank", true},
    {"n_groups", "ssm.group_count", true},
    {NULL, NULL, false},
};

static void write_expand(struct ctw_gguf_keys *k, const char *name)
{
    double hidden = ctw_gguf_number(k, "embedding_length", 1);
    ctw_json_write_key_double(&k->writer, name, ctw_gguf_number(k, "ssm.inner_size", 0) / hidden);
}

static void write_mamba(struct ctw_gguf_keys *k)
{
    write_expand(k, "expand");
    ctw_json_write_key_bool(&k->writer, "use_bias", ctw_gguf_has(k, "ssm_in.bias"));
    ctw_json_write_key_bool(&k->writer, "use_conv_bias", ctw_gguf_has(k, "ssm_conv1d.bias"));
}

static void write_mamba2(struct ctw_gguf_keys *k)
{
    write_mamba(k);
    ctw_gguf_write_space_head(k, "head_dim");
}

/* ---- Jamba ---- */

static const struct ctw_gguf_name jamba_names[] = {
    SPACE_NAMES("mamba", 0),
    {"output_norm", "model.final_layernorm", 0},
    {"ffn_norm", "pre_ff_layernorm", 0},
    {"ssm_x", "mamba.x_proj", 0},
    {"ssm_dt", "mamba.dt_proj", 0},
    {"ssm_dt_norm", "mamba.dt_layernorm", 0},
    {"ssm_b_norm", "mamba.b_layernorm", 0},
    {"ssm_c_norm", "mamba.c_layernorm", 0},
    {"ffn_gate_inp", "feed_forward.router", 0},
    {"ffn_gate", "feed_forward.gate_proj", 0},
    {"ffn_up", "feed_forward.up_proj", 0},
    {"ffn_down", "feed_forward.down_proj", 0},
    {"ffn_gate_exps", "feed_forward.experts.#.gate_proj", CTW_GGUF_EXPERTS},
    {"ffn_up_exps", "feed_forward.experts.#.up_proj", CTW_GGUF_EXPERTS},
    {"ffn_down_exps", "feed_forward.experts.#.down_proj", CTW_GGUF_EXPERTS},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key jamba_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"mamba_d_conv", "ssm.conv_kernel", true},
    {"mamba_d_state", "ssm.state_size", true},
    {"mamba_dt_rank", "ssm.time_step_rank", true},
    {"num_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {NULL, NULL, false},
};

/* Layers with the tensor stand at an offset within a period: that of the first two. One layer
 * alone, or none, has the longest period. */
static void write_period(struct ctw_gguf_keys *k, const char *tensor, const char *every,
                         const char *offset)
{
    int64_t n = ctw_gguf_layers(k), found[2] = {n, 2 * n}, n_found = 0;
    for (int64_t i = 0; i < n && n_found < 2; i++)
        if (ctw_gguf_layer_tensor(k, i, tensor) != NULL)
            found[n_found++] = i;
    int64_t period = n_found == 2 ? found[1] - found[0] : n + 1;
    ctw_json_write_key_int(&k->writer, every, period);
    ctw_json_write_key_int(&k->writer, offset, found[0] % period);
}

static void write_jamba(struct ctw_gguf_keys *k)
{
    write_expand(k, "mamba_expand");
    ctw_json_write_key_int(&k->writer, "num_key_value_heads",
                           ctw_gguf_largest(k, "attention.head_count_kv", 0));
    write_period(k, "attn_q", "attn_layer_period", "attn_layer_offset");
    write_period(k, "ffn_gate_inp", "expert_layer_period", "expert_layer_offset");
}

const struct ctw_gguf_arch ctw_gguf_archs_mamba[] = {
    {.name = "mamba",
     .model_type = "falcon_mamba",
     .class_name = "FalconMambaForCausalLM",
     .only_with = "ssm.dt_b_c_rms",
     .prefix = "backbone.layers.",
     .layers = mamba_names,
     .keys = mamba_keys,
     .rope = ctw_gguf_write_no_rope,
     .more = write_mamba},
    {.name = "mamba",
     .model_type = "mamba",
     .class_name = "MambaForCausalLM",
     .prefix = "backbone.layers.",
     .layers = mamba_names,
     .keys = mamba_keys,
     .rope = ctw_gguf_write_no_rope,
     .more = write_mamba},
    {.name = "mamba2",
     .model_type = "mamba2",
     .class_name = "Mamba2ForCausalLM",
     .prefix = "backbone.layers.",
     .layers = mamba2_names,
     .keys = mamba2_keys,
     .rope = ctw_gguf_write_no_rope,
     .more = write_mamba2},
    {.name = "jamba",
     .model_type = "jamba",
     .class_name = "JambaForCausalLM",
     .layers = jamba_names,
     .keys = jamba_keys,
     .rope = ctw_gguf_write_no_rope,
     .more = write_jamba},
    {0},
};
