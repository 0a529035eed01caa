/* Models in which some layers have a window: Command R7B and its mixtures, EXAONE 4,
 * Muse Glimmer. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
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

/* MuseGlimmerModel: LlamaModel's order of q and k; 1 was added to the norms of layers. Norms of
 * query and key heads hold the one factor of queries. muse-glimmer.cpp has RoPE in layers with a
 * window, and its norms after branches an epsilon of 1e-8. */
static const struct ctw_gguf_name muse_layers[] = {
    {"attn_q", "self_attn.q_proj", CTW_GGUF_PAIRS_Q},
    {"attn_k", "self_attn.k_proj", CTW_GGUF_PAIRS_K},
    {"attn_gate", "self_attn.gate_proj", 0},
    {"attn_q_norm", "", CTW_GGUF_LEFT_OUT},
    {"attn_k_norm", "", CTW_GGUF_LEFT_OUT},
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"ffn_norm", "pre_feedforward_layernorm", 0},
    {"post_ffw_norm", "post_feedforward_layernorm", 0},
    {"output_norm", "model.norm", CTW_GGUF_AS_IS},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key muse_keys[] = {
    {"output_multiplier", "logit_scale", true},
    {"final_logit_softcapping", "final_logit_softcapping", true},
    {"sliding_window", "attention.sliding_window", true},
    {NULL, NULL, false},
};

/* The one value of all elements of a norm of heads; 0: they differ, or are not there. */
static float head_factor(struct ctw_gguf_keys *k, int64_t layer, const char *name)
{
    const struct ctw_tensor *t = ctw_gguf_layer_tensor(k, layer, name);
    if (t == NULL || t->unusable != NULL || t->dtype != CTW_F32 || t->n_dims != 1)
        return 0;
    const uint8_t *data = ctw_container_data(k->files, t);
    const float first = ctw_load_float(data, CTW_F32, 0);
    for (int64_t i = 1; i < t->shape[0]; i++)
        if (ctw_load_float(data, CTW_F32, i) != first)
            return 0;
    return first;
}

static void write_muse(struct ctw_gguf_keys *k)
{
    static const char pattern[] = "attention.sliding_window_pattern";
    const float factor = head_factor(k, 0, "attn_q_norm");
    const double theta = ctw_gguf_number(k, "rope.freq_base", 10000);
    const int64_t n = ctw_gguf_layers(k);
    for (int64_t i = 0; i < n && k->st == CTW_OK; i++)
        if (!(factor > 0) || head_factor(k, i, "attn_q_norm") != factor ||
            head_factor(k, i, "attn_k_norm") != 1)
            ctw_gguf_refuse(k, "attention.key_length",
                            "blk.%" PRId64 ".attn_q_norm.weight and attn_k_norm.weight are not the "
                            "one factor of queries in all layers, and 1",
                            i);
    ctw_json_write_key(&k->writer, "qk_scale_factor");
    ctw_json_write_float(&k->writer, factor);
    ctw_gguf_write_qkv_bias(k);
    if (ctw_gguf_meta(k, pattern) == NULL)
        ctw_gguf_refuse(k, pattern, "the key is missing, which a model of this architecture needs");
    ctw_gguf_write_layers(k, "layer_types", pattern, "full_attention", "sliding_attention");
    ctw_json_write_key(&k->writer, "layer_rope_theta");
    ctw_json_write_open(&k->writer, '[');
    for (int64_t i = 0; i < n && k->st == CTW_OK; i++)
        ctw_json_write_double(&k->writer, ctw_gguf_of_layer(k, pattern, i, 0) != 0 ? theta : 0);
    ctw_json_write_close(&k->writer, ']');
}

const struct ctw_gguf_arch ctw_gguf_archs_window[] = {
    {.name = "muse-glimmer",
     .model_type = "muse_glimmer",
     .class_name = "MuseGlimmerForConditionalGeneration",
     .in_text_config = true,
     .layers = muse_layers,
     .keys = muse_keys,
     .norms_plus_one = true,
     .more = write_muse},
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
