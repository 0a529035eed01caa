/* Models whose layers differ in heads: those with a window also in RoPE (Laguna, Step 3.5 and 3.7,
 * MiMo V2), or each layer from the next (Nemotron from an architecture search). */
#include <inttypes.h>
#include <stddef.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

static const char heads[] = "attention.head_count", kv[] = "attention.head_count_kv",
                  pattern[] = "attention.sliding_window_pattern";

/* ---- Laguna ---- */

/* LagunaModel. laguna.cpp has full layers at 0, 4, 8, ... if there is a window at all. */
static const struct ctw_gguf_name laguna_layers[] = {
    {"attn_gate", "self_attn.g_proj", 0},
    {"exp_probs_b.bias", "mlp.experts.e_score_correction_bias", CTW_GGUF_WHOLE},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key laguna_keys[] = {
    {"num_attention_heads", NULL, false},
    {"num_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length", true},
    {"moe_routed_scaling_factor", "expert_weights_scale", false},
    {"sliding_window", "attention.sliding_window", false},
    {NULL, NULL, false},
};

enum { LAGUNA_PERIOD = 4 };

static void write_laguna_layers(struct ctw_gguf_keys *k)
{
    bool windows = ctw_gguf_int(k, "attention.sliding_window", 0) > 0;
    int64_t n = ctw_gguf_layers(k);
    ctw_json_write_key(&k->writer, "layer_types");
    ctw_json_write_open(&k->writer, '[');
    for (int64_t i = 0; i < n; i++)
        ctw_json_write_string(&k->writer, windows && i % LAGUNA_PERIOD != 0 ? "sliding_attention"
                                                                            : "full_attention");
    ctw_json_write_close(&k->writer, ']');
    ctw_gguf_write_each(k, "num_attention_heads_per_layer", heads);
}

static void write_laguna(struct ctw_gguf_keys *k)
{
    const struct ctw_tensor *gate = ctw_gguf_first_tensor(k, "attn_gate");
    int64_t first = ctw_gguf_of_layer(k, heads, 0, 0);
    ctw_json_write_key_int(&k->writer, "num_attention_heads", first);
    ctw_json_write_key_string(&k->writer, "gating",
                              gate != NULL && gate->shape[0] != first ? "per-element" : "per-head");
    ctw_gguf_write_qkv_bias(k);
    ctw_gguf_refuse_unnormalised(k);
    write_laguna_layers(k);
    ctw_gguf_write_layers_with(k, "mlp_layer_types", "ffn_gate_inp", "dense", "sparse");
}

static void write_laguna_rope(struct ctw_gguf_keys *k)
{
    int64_t full = ctw_gguf_int(k, "rope.dimension_count", ctw_gguf_head(k));
    ctw_gguf_write_rope_of_windows(k, full,
                                   ctw_gguf_int(k, "rope.dimension_count_swa", ctw_gguf_head(k)));
}

/* ---- Step 3.5 and 3.7 ---- */

/* Step35Model. */
static const struct ctw_gguf_name step_layers[] = {
    {"attn_gate", "self_attn.g_proj", 0},
    {"ffn_gate_inp", "moe.gate", 0},
    {"exp_probs_b.bias", "moe.router_bias", CTW_GGUF_WHOLE},
    {"ffn_gate_shexp", "share_expert.gate_proj", 0},
    {"ffn_up_shexp", "share_expert.up_proj", 0},
    {"ffn_down_shexp", "share_expert.down_proj", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key step_keys[] = {
    {"num_attention_heads", NULL, false},
    {"num_key_value_heads", NULL, false},
    {"n_routed_experts", "expert_count", true},
    {"num_experts_per_tok", "expert_used_count", true},
    {"moe_intermediate_size", "expert_feed_forward_length", true},
    {"share_expert_dim", "expert_shared_feed_forward_length", true},
    {"moe_router_scaling_factor", "expert_weights_scale", false},
    {"num_nextn_predict_layers", "nextn_predict_layers", false},
    {"sliding_window", "attention.sliding_window", true},
    {NULL, NULL, false},
};

/* A limit for each layer; 0: the layer has no limit. */
static void write_limits(struct ctw_gguf_keys *k, const char *name, const char *key)
{
    const struct ctw_meta *m = ctw_gguf_meta(k, key);
    int64_t n = ctw_gguf_layers(k);
    double limit = 0;
    if (m == NULL || k->st != CTW_OK)
        return;
    ctw_json_write_key(&k->writer, name);
    ctw_json_write_open(&k->writer, '[');
    for (int64_t i = 0; i < n && k->st == CTW_OK; i++) {
        if ((m->is_array && m->n < (uint64_t)n) ||
            !ctw_meta_number(m, m->is_array ? (uint64_t)i : 0, &limit))
            ctw_gguf_refuse(k, key, "expected a number for each of %" PRId64 " layers", n);
        ctw_json_write_float(&k->writer, (float)limit);
    }
    ctw_json_write_close(&k->writer, ']');
}

static void write_step(struct ctw_gguf_keys *k)
{
    int64_t full = ctw_gguf_of_windows(k, heads, false);
    int64_t full_kv = ctw_gguf_of_windows(k, kv, false);
    int64_t windowed = ctw_gguf_of_windows(k, heads, true);
    ctw_gguf_refuse_unnormalised(k);
    if (ctw_gguf_of_windows(k, kv, true) != full_kv)
        ctw_gguf_refuse(k, kv,
                        "layers with a window have other numbers of key heads than full layers, "
                        "which is not supported for this architecture");
    ctw_json_write_key_int(&k->writer, "num_attention_heads", full);
    ctw_json_write_key_int(&k->writer, "num_key_value_heads", full_kv);
    ctw_json_write_key_int(&k->writer, "num_sliding_attention_heads", windowed);
    ctw_gguf_write_windows(k);
    ctw_gguf_write_layers_with(k, "mlp_layer_types", "ffn_gate_inp", "dense", "sparse");
    write_limits(k, "swiglu_limits", "swiglu_clamp_exp");
    write_limits(k, "swiglu_limits_shared", "swiglu_clamp_shexp");
}

/* No key says it: full layers rotate half of each head (step35.cpp, the converter's assertion). */
static void write_step_rope(struct ctw_gguf_keys *k)
{
    int64_t head = ctw_gguf_int(k, "rope.dimension_count", ctw_gguf_head(k));
    ctw_gguf_write_rope_of_windows(k, head / 2, head);
}

/* ---- MiMo V2 Flash, V2.5 ---- */

/* MimoV2Model: projections apart, or as V2.5's files have them, in one tensor. */
static const struct ctw_gguf_name mimo_layers[] = {
    {"attn_sinks.weight", "self_attn.attention_sink_bias", CTW_GGUF_WHOLE},
    CTW_GGUF_ROUTED_NAMES,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key mimo_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"rms_norm_eps", NULL, false},
    {"layernorm_epsilon", "attention.layer_norm_rms_epsilon", true},
    {"v_head_dim", "attention.value_length", true},
    {"swa_v_head_dim", "attention.value_length", true},
    {"attention_value_scale", "attention.value_scale", false},
    {"swa_rope_theta", "rope.freq_base_swa", false},
    {"sliding_window", "attention.sliding_window", true},
    CTW_GGUF_ROUTED_KEYS,
    {NULL, NULL, false},
};

/* Has a full layer, or one with a window, sinks? */
static bool has_sinks(struct ctw_gguf_keys *k, bool windowed)
{
    for (int64_t i = 0; i < ctw_gguf_layers(k); i++)
        if ((ctw_gguf_of_layer(k, pattern, i, 0) != 0) == windowed &&
            ctw_gguf_layer_tensor(k, i, "attn_sinks") != NULL)
            return true;
    return false;
}

/* A list of 0 and 1: which layers have a window, or experts. */
static void write_mimo_layers(struct ctw_gguf_keys *k, const char *name, bool of_windows)
{
    ctw_json_write_key(&k->writer, name);
    ctw_json_write_open(&k->writer, '[');
    for (int64_t i = 0; i < ctw_gguf_layers(k); i++)
        ctw_json_write_int(&k->writer, of_windows
                                           ? ctw_gguf_of_layer(k, pattern, i, 0) != 0
                                           : ctw_gguf_layer_tensor(k, i, "ffn_gate_inp") != NULL);
    ctw_json_write_close(&k->writer, ']');
}

static void write_mimo(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_int(&k->writer, "num_key_value_heads", ctw_gguf_of_windows(k, kv, false));
    ctw_json_write_key_int(&k->writer, "swa_num_key_value_heads", ctw_gguf_of_windows(k, kv, true));
    ctw_json_write_key_bool(&k->writer, "add_full_attention_sink_bias", has_sinks(k, false));
    ctw_json_write_key_bool(&k->writer, "add_swa_attention_sink_bias", has_sinks(k, true));
    ctw_gguf_write_qkv_bias(k);
    write_mimo_layers(k, "hybrid_layer_pattern", true);
    write_mimo_layers(k, "moe_layer_freq", false);
}

/* ---- Nemotron from an architecture search, DeciLM ---- */

/* DeciModel: LlamaModel's order of q and k; 0 heads and a width of 0 are what a layer lacks. */
static const struct ctw_gguf_name deci_layers[] = {
    {"attn_q", "self_attn.q_proj", CTW_GGUF_PAIRS_Q},
    {"attn_k", "self_attn.k_proj", CTW_GGUF_PAIRS_K},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key deci_keys[] = {
    {"num_attention_heads", NULL, false},
    {"num_key_value_heads", NULL, false},
    {"intermediate_size", NULL, false},
    {NULL, NULL, false},
};

static void write_attention_of(struct ctw_gguf_keys *k, int64_t layer, int64_t most)
{
    const int64_t n = ctw_gguf_of_layer(k, heads, layer, 0),
                  n_kv = ctw_gguf_of_layer(k, kv, layer, n);
    if (n > 0 && n != most)
        ctw_gguf_refuse(k, heads,
                        "layer %" PRId64 " has %" PRId64 " heads, another layer %" PRId64
                        "; heads that differ are not supported",
                        layer, n, most);
    else if (n > 0 && n_kv == 0)
        ctw_gguf_refuse(k, kv,
                        "layer %" PRId64 " has a linear layer in place of attention, which is not "
                        "supported",
                        layer);
    else if (n_kv < 0 || n < 0 || (n_kv > 0 && (n == 0 || n % n_kv != 0)))
        ctw_gguf_refuse(k, kv, "layer %" PRId64 " has %" PRId64 " key heads of %" PRId64 " heads",
                        layer, n_kv, n);
    ctw_json_write_key(&k->writer, "attention");
    ctw_json_write_open(&k->writer, '{');
    ctw_json_write_key_bool(&k->writer, "no_op", n_kv <= 0);
    if (n_kv > 0)
        ctw_json_write_key_int(&k->writer, "n_heads_in_group", n / n_kv);
    ctw_json_write_close(&k->writer, '}');
}

/* ffn_mult, from which the model's own code has the next multiple of 256 rows. */
static void write_mlp_of(struct ctw_gguf_keys *k, int64_t layer, double hidden)
{
    enum { MULTIPLE = 256 };
    static const char key[] = "feed_forward_length";
    const int64_t rows = ctw_gguf_of_layer(k, key, layer, 0);
    if (rows < 0 || rows % MULTIPLE != 0)
        ctw_gguf_refuse(
            k, key, "layer %" PRId64 " has an MLP of %" PRId64 " rows, expected a multiple of %d",
            layer, rows, MULTIPLE);
    ctw_json_write_key(&k->writer, "ffn");
    ctw_json_write_open(&k->writer, '{');
    ctw_json_write_key_bool(&k->writer, "no_op", rows <= 0);
    if (rows > 0)
        ctw_json_write_key_double(&k->writer, "ffn_mult", 1.5 * (double)rows / hidden);
    ctw_json_write_close(&k->writer, '}');
}

static void write_deci(struct ctw_gguf_keys *k)
{
    const double hidden = ctw_gguf_number(k, "embedding_length", 1);
    const int64_t most = ctw_gguf_largest(k, heads, 0);
    ctw_json_write_key_int(&k->writer, "num_attention_heads", most);
    ctw_gguf_write_qkv_bias(k);
    ctw_json_write_key(&k->writer, "block_configs");
    ctw_json_write_open(&k->writer, '[');
    for (int64_t i = 0; i < ctw_gguf_layers(k) && k->st == CTW_OK; i++) {
        ctw_json_write_open(&k->writer, '{');
        write_attention_of(k, i, most);
        write_mlp_of(k, i, hidden);
        ctw_json_write_close(&k->writer, '}');
    }
    ctw_json_write_close(&k->writer, ']');
}

const struct ctw_gguf_arch ctw_gguf_archs_heads[] = {
    {.name = "deci",
     .model_type = "nemotron-nas",
     .class_name = "DeciLMForCausalLM",
     .layers = deci_layers,
     .keys = deci_keys,
     .more = write_deci},
    {.name = "laguna",
     .model_type = "laguna",
     .class_name = "LagunaForCausalLM",
     .layers = laguna_layers,
     .keys = laguna_keys,
     .gating = CTW_GGUF_SIGMOID,
     .rope = write_laguna_rope,
     .more = write_laguna},
    {.name = "step35",
     .model_type = "step3p5",
     .class_name = "Step3p5ForCausalLM",
     .layers = step_layers,
     .keys = step_keys,
     .norms_plus_one = true,
     .gating = CTW_GGUF_SIGMOID,
     .rope = write_step_rope,
     .more = write_step},
    {.name = "mimo2",
     .model_type = "mimo_v2",
     .class_name = "MiMoV2ForCausalLM",
     .layers = mimo_layers,
     .keys = mimo_keys,
     .partial_rope = true,
     .gating = CTW_GGUF_SIGMOID,
     .more = write_mimo},
    {0},
};
