/* Gemma 1 to 4. Up to Gemma 3, the converter adds 1 to the weights of all norms. It omits the
 * embedding's rows behind the tokenizer's last token. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/dtype.h"
#include "kernels/math.h"
#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

static const struct ctw_gguf_name layers_with_4_norms[] = {
    {"ffn_norm", "pre_feedforward_layernorm", 0},
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"post_ffw_norm", "post_feedforward_layernorm", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key gemma2_keys[] = {
    {"attn_logit_softcapping", "attn_logit_softcapping", true},
    {"final_logit_softcapping", "final_logit_softcapping", true},
    {"sliding_window", "attention.sliding_window", true},
    {NULL, NULL, false},
};

static const struct ctw_gguf_key gemma3_keys[] = {
    {"final_logit_softcapping", "final_logit_softcapping", false},
    {"sliding_window", "attention.sliding_window", true},
    {"rope_local_base_freq", "rope.freq_base_swa", false},
    {NULL, NULL, false},
};

/* No key holds query_pre_attn_scalar. llama.cpp (gemma2.cpp, gemma3.cpp) takes the size of a head,
 * but hidden / heads for the model of 27B, which it knows by its number of layers. */
static void write_scalar(struct ctw_gguf_keys *k, int64_t layers_of_27b)
{
    int64_t heads = ctw_gguf_int(k, "attention.head_count", 1), scalar = ctw_gguf_head(k);
    if (k->st == CTW_OK && ctw_gguf_int(k, "block_count", 0) == layers_of_27b)
        scalar = ctw_gguf_int(k, "embedding_length", 0) / heads;
    ctw_json_write_key_int(&k->writer, "query_pre_attn_scalar", scalar);
}

static void write_gemma2(struct ctw_gguf_keys *k)
{
    write_scalar(k, 46);
}

static void write_gemma3(struct ctw_gguf_keys *k)
{
    write_scalar(k, 62);
}

/* ---- Gemma 4 ---- */

/* An input of each layer's own. */
#define OWN_INPUT_NAMES                                                                            \
    {"inp_gate", "per_layer_input_gate", 0}, {"proj", "per_layer_projection", 0},                  \
        {"post_norm", "post_per_layer_input_norm", 0},                                             \
        {"per_layer_token_embd", "model.embed_tokens_per_layer", 0},                               \
        {"per_layer_model_proj", "model.per_layer_model_projection", 0},                           \
    {                                                                                              \
        "per_layer_proj_norm", "model.per_layer_projection_norm", 0                                \
    }

static const struct ctw_gguf_name gemma4_layers[] = {
    {"ffn_norm", "pre_feedforward_layernorm", 0},
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"post_ffw_norm", "post_feedforward_layernorm", 0},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1", 0},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2", 0},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2", 0},
    {"layer_output_scale.weight", "layer_scalar", CTW_GGUF_WHOLE},
    {"ffn_gate_inp", "router.proj", 0},
    {"ffn_gate_inp.scale", "router.scale", CTW_GGUF_WHOLE},
    {"ffn_down_exps.scale", "router.per_expert_scale", CTW_GGUF_WHOLE},
    {"ffn_gate_up_exps.weight", "experts.gate_up_proj", CTW_GGUF_WHOLE},
    {"ffn_down_exps.weight", "experts.down_proj", CTW_GGUF_WHOLE},
    OWN_INPUT_NAMES,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key gemma4_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"intermediate_size", NULL, false},
    {"head_dim", "attention.key_length_swa", true},
    {"global_head_dim", "attention.key_length", true},
    {"final_logit_softcapping", "final_logit_softcapping", false},
    {"sliding_window", "attention.sliding_window", true},
    {"num_kv_shared_layers", "attention.shared_kv_layers", true},
    {"hidden_size_per_layer_input", "embedding_length_per_layer_input", true},
    {"num_experts", "expert_count", false},
    {"top_k_experts", "expert_used_count", false},
    {"moe_intermediate_size", "expert_feed_forward_length", false},
    {NULL, NULL, false},
};

/* Do full layers take their keys as values? Then their files have no attn_v. */
static bool values_are_keys(struct ctw_gguf_keys *k)
{
    const struct ctw_meta *windows = ctw_gguf_meta(k, "attention.sliding_window_pattern");
    char name[64];
    int64_t value;
    for (uint64_t i = 0; windows != NULL && i < windows->n; i++) {
        (void)snprintf(name, sizeof(name), "blk.%d.attn_v.weight", (int)i);
        if (ctw_meta_int(windows, i, &value) && value == 0)
            return ctw_container_find(k->files, name) == NULL;
    }
    return false;
}

static void write_gemma4(struct ctw_gguf_keys *k)
{
    static const char kv[] = "attention.head_count_kv", inner[] = "feed_forward_length";
    const struct ctw_tensor *inputs = ctw_container_find(k->files, "per_layer_token_embd.weight");
    const struct ctw_meta *widths = ctw_gguf_meta(k, inner);
    int64_t narrow = ctw_gguf_largest(k, inner, 0), wide = narrow,
            full = ctw_gguf_of_windows(k, kv, false);
    if (widths != NULL && widths->is_array && !ctw_meta_int(widths, 0, &narrow))
        ctw_gguf_refuse(k, inner, "found other elements than integers");
    ctw_json_write_key_int(&k->writer, "intermediate_size", narrow);
    ctw_json_write_key_bool(&k->writer, "use_double_wide_mlp", narrow != wide);
    ctw_json_write_key_int(&k->writer, "num_key_value_heads", ctw_gguf_of_windows(k, kv, true));
    if (full > 0)
        ctw_json_write_key_int(&k->writer, "num_global_key_value_heads", full);
    ctw_json_write_key_bool(&k->writer, "attention_k_eq_v", values_are_keys(k));
    ctw_json_write_key_bool(&k->writer, "enable_moe_block", ctw_gguf_int(k, "expert_count", 0) > 0);
    ctw_gguf_write_rows(k, "vocab_size_per_layer_input", inputs);
    ctw_gguf_write_windows(k);
}

/* Elements of full layers' heads that are not rotated have a divisor of 1e30. */
static double rotated_share(struct ctw_gguf_keys *k)
{
    const struct ctw_tensor *t = ctw_container_find(k->files, "rope_freqs.weight");
    int64_t n = ctw_gguf_head(k) / 2, rotated = 0;
    if (t == NULL || t->dtype != CTW_F32 || t->n_dims != 1 || t->shape[0] != n) {
        ctw_gguf_refuse(k, "rope.dimension_count", "rope_freqs.weight is not F32 [%" PRId64 "]", n);
        return 1;
    }
    const void *data = ctw_container_data(k->files, t);
    while (rotated < n && ctw_load_float(data, CTW_F32, rotated) == 1)
        rotated++;
    for (int64_t i = rotated; i < n; i++)
        if (ctw_load_float(data, CTW_F32, i) < 1e29f)
            ctw_gguf_refuse(k, "rope.dimension_count",
                            "rope_freqs.weight[%" PRId64 "] is %g, expected 1 or 1e30", i,
                            (double)ctw_load_float(data, CTW_F32, i));
    return (double)rotated / (double)n;
}

static void write_gemma4_rope(struct ctw_gguf_keys *k)
{
    ctw_json_write_key(&k->writer, "rope_parameters");
    ctw_json_write_open(&k->writer, '{');
    ctw_json_write_key(&k->writer, "full_attention");
    ctw_json_write_open(&k->writer, '{');
    ctw_json_write_key_string(&k->writer, "rope_type", "proportional");
    ctw_json_write_key_double(&k->writer, "partial_rotary_factor", rotated_share(k));
    ctw_gguf_write(k, "rope_theta", "rope.freq_base", true);
    ctw_json_write_close(&k->writer, '}');
    ctw_json_write_key(&k->writer, "sliding_attention");
    ctw_json_write_open(&k->writer, '{');
    ctw_json_write_key_string(&k->writer, "rope_type", "default");
    ctw_gguf_write(k, "rope_theta", "rope.freq_base_swa", true);
    ctw_json_write_close(&k->writer, '}');
    ctw_json_write_close(&k->writer, '}');
    int64_t head = ctw_gguf_int(k, "attention.key_length_swa", 0);
    if (ctw_gguf_int(k, "rope.dimension_count_swa", head) != head)
        ctw_gguf_refuse(k, "rope.dimension_count_swa", "expected whole heads");
}

/* Gemma3NModel: matrices of AltUp as stacks, the table of inputs padded to the vocabulary. */
static const struct ctw_gguf_name gemma3n_layers[] = {
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"ffn_norm", "pre_feedforward_layernorm", 0},
    {"post_ffw_norm", "post_feedforward_layernorm", 0},
    {"altup_proj", "model.altup_projections.#", CTW_GGUF_EXPERTS},
    {"altup_unembd_proj", "model.altup_unembed_projections.#", CTW_GGUF_EXPERTS},
    {"altup_correct_scale.weight", "altup.correct_output_scale", CTW_GGUF_WHOLE},
    {"altup_correct_coef", "altup.correction_coefs", 0},
    {"altup_predict_coef", "altup.prediction_coefs", 0},
    {"altup_router", "altup.modality_router", 0},
    {"altup_router_norm", "altup.router_norm", 0},
    {"laurel_l", "laurel.linear_left", 0},
    {"laurel_r", "laurel.linear_right", 0},
    {"laurel_post_norm", "laurel.post_laurel_norm", 0},
    OWN_INPUT_NAMES,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key gemma3n_keys[] = {
    {"intermediate_size", NULL, false},
    {"final_logit_softcapping", "final_logit_softcapping", false},
    {"sliding_window", "attention.sliding_window", true},
    {"num_kv_shared_layers", "attention.shared_kv_layers", true},
    {"hidden_size_per_layer_input", "embedding_length_per_layer_input", true},
    {"altup_num_inputs", "altup.num_inputs", true},
    {"altup_active_idx", "altup.active_idx", true},
    {"rope_local_base_freq", "rope.freq_base_swa", false},
    {NULL, NULL, false},
};

/* The share of gates below the cutoff, of which the file has the standard deviations in fp32: in
 * millionths, so that it is the model's own number again. */
static void write_sparsity(struct ctw_gguf_keys *k)
{
    static const char key[] = "activation_sparsity_scale";
    const struct ctw_meta *m = ctw_gguf_meta(k, key);
    int64_t n = ctw_gguf_layers(k);
    double scale = 0;
    ctw_json_write_key(&k->writer, "activation_sparsity_pattern");
    ctw_json_write_open(&k->writer, '[');
    for (int64_t i = 0; i < n && k->st == CTW_OK; i++) {
        if (m == NULL || m->n < (uint64_t)n || !ctw_meta_number(m, (uint64_t)i, &scale))
            ctw_gguf_refuse(k, key, "expected a number for each of %" PRId64 " layers", n);
        double share = scale < -8 ? 0 : ctw_erfc(-scale * M_SQRT1_2) / 2;
        ctw_json_write_double(&k->writer, nearbyint(share * 1e6) / 1e6);
    }
    ctw_json_write_close(&k->writer, ']');
}

static void write_gemma3n(struct ctw_gguf_keys *k)
{
    const struct ctw_tensor *inputs = ctw_container_find(k->files, "per_layer_token_embd.weight");
    int64_t n = ctw_gguf_layers(k);
    ctw_gguf_write_rows(k, "vocab_size_per_layer_input", inputs);
    ctw_gguf_write_rows(k, "laurel_rank", ctw_gguf_first_tensor(k, "laurel_l"));
    ctw_json_write_key(&k->writer, "intermediate_size");
    ctw_json_write_open(&k->writer, '[');
    for (int64_t i = 0; i < n; i++)
        ctw_json_write_int(&k->writer, ctw_gguf_of_layer(k, "feed_forward_length", i, 0));
    ctw_json_write_close(&k->writer, ']');
    write_sparsity(k);
    ctw_gguf_write_windows(k);
}

const struct ctw_gguf_arch ctw_gguf_archs_gemma[] = {
    {.name = "gemma3n",
     .model_type = "gemma3n_text",
     .class_name = "Gemma3nForCausalLM",
     .layers = gemma3n_layers,
     .keys = gemma3n_keys,
     .wide = true,
     .more = write_gemma3n},
    {.name = "gemma",
     .model_type = "gemma",
     .class_name = "GemmaForCausalLM",
     .norms_plus_one = true,
     .wide = true,
     .fixed = "\"hidden_act\":\"gelu_pytorch_tanh\""},
    /* Windows in layers 0, 2, 4, ..., as transformers' default. */
    {.name = "gemma2",
     .model_type = "gemma2",
     .class_name = "Gemma2ForCausalLM",
     .layers = layers_with_4_norms,
     .keys = gemma2_keys,
     .norms_plus_one = true,
     .wide = true,
     .more = write_gemma2},
    /* Windows in five of six layers, as transformers' default. */
    {.name = "gemma3",
     .model_type = "gemma3_text",
     .class_name = "Gemma3ForCausalLM",
     .layers = layers_with_4_norms,
     .keys = gemma3_keys,
     .norms_plus_one = true,
     .wide = true,
     .more = write_gemma3},
    {.name = "gemma4",
     .model_type = "gemma4_text",
     .class_name = "Gemma4ForCausalLM",
     .layers = gemma4_layers,
     .keys = gemma4_keys,
     .wide = true,
     .rope = write_gemma4_rope,
     .more = write_gemma4},
    {0},
};
