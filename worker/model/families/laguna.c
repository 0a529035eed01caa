/*
 * Laguna: layers with a window differ from full layers in heads and RoPE. Attention's output is
 * multiplied by a softplus of the input. Mixtures have a sigmoid router and a shared expert.
 * Defaults: LagunaConfig.
 */
#include <string.h>

#include "worker/model/families/layer_ropes.h"

static int describe_rope(struct ctw_config *c, int64_t head, bool full)
{
    const struct ctw_rope_rules both = {
        .head = head, .theta = 10000.0, .partial_key = "partial_rotary_factor"};
    return layer_rope(c, both, full, "{\"rope_theta\": 500000.0, \"partial_rotary_factor\": 0.5}",
                      "{\"rope_theta\": 10000.0}");
}

/* Does each element of the output have a factor of its own? Otherwise each head has one. */
static bool key_gate_values(struct ctw_config *c)
{
    const struct ctw_json_node *node = ctw_json_get(c->text, "gating");
    if (node != NULL && ctw_json_type(node) == CTW_JSON_STRING)
        return strcmp(ctw_key_string(c, "gating", ""), "per-head") != 0;
    return !ctw_key_bool(c, "gating", true);
}

static struct ctw_experts key_experts(struct ctw_config *c, enum ctw_activation act)
{
    enum { NO = CTW_NULL_REFUSED };
    if (ctw_key_bool(c, "moe_apply_router_weight_on_input", false))
        ctw_key_fail(c, "moe_apply_router_weight_on_input", CTW_EUNSUP,
                     "is not supported, as in transformers");
    return (struct ctw_experts){
        .n = ctw_key_int(c, "num_experts", 256, NO, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 8, NO, 1, CTW_MAX_CHOSEN),
        .inner = ctw_key_int(c, "moe_intermediate_size", 512, NO, 1, 1 << 24),
        .act = act,
        .router = {.correction = "mlp.experts.e_score_correction_bias",
                   .score = CTW_SCORE_SIGMOID,
                   .normalised = true,
                   .scale = ctw_key_number(c, "moe_routed_scaling_factor", 1, NO, 1e-6, 1e6),
                   .softcap = ctw_key_number(c, "moe_router_logit_softcapping", 0, NO, 0, 1e6)}};
}

static void describe(struct ctw_config *c)
{
    enum { NO = CTW_NULL_REFUSED };
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 100352,
                                                                    .hidden = 2048,
                                                                    .inner = 8192,
                                                                    .n_layers = 40,
                                                                    .n_head = 48,
                                                                    .n_kv = 8,
                                                                    .max_length = 131072});
    int64_t head = ctw_key_head_dim(c, &s, 128, NO);
    bool bias = ctw_key_bool(c, "attention_bias", false), gate_values = key_gate_values(c);
    int64_t window = ctw_key_int(c, "sliding_window", 512, NO, 1, 1 << 30);
    const int64_t *windows =
        ctw_key_windows(c, s.n_layers, window, &(struct ctw_window_rule){.every = 1});
    const double *heads =
        ctw_key_layer_numbers(c, "num_attention_heads_per_layer", s.n_layers, 1, 4096);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_qk_norms qk_norms = {.form = norm};
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    struct ctw_experts experts = key_experts(c, act);
    const struct ctw_mlp shared = {
        .inner = ctw_key_int(c, "shared_expert_intermediate_size", 512, NO, 1, 1 << 24),
        .act = act,
        .gate = "mlp.shared_expert.gate_proj",
        .up = "mlp.shared_expert.up_proj",
        .down = "mlp.shared_expert.down_proj"};
    experts.shared = &shared;
    const bool *sparse = ctw_key_layers_called(c, "mlp_layer_types", s.n_layers, "sparse", "dense");
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){.n_head = heads != NULL ? (int64_t)heads[i] : s.n_head,
                                          .head = head,
                                          .rope = describe_rope(c, head, windows[i] == 0),
                                          .window = windows[i],
                                          .qkv_bias = bias,
                                          .o_bias = bias,
                                          .norms = &qk_norms,
                                          .gate = CTW_GATE_SOFTPLUS,
                                          .gate_values = gate_values});
        if (sparse != NULL ? sparse[i] : i > 0)
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

static const struct ctw_renamed in_memory[] = {
    {"mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"},
    {"mlp.shared_expert", "mlp.shared_experts"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_laguna = {.model_type = "laguna",
                                             .architecture = "LagunaForCausalLM",
                                             .in_memory = in_memory,
                                             .describe = describe};
