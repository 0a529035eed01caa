/*
 * AFMoE (Arcee's Trinity): norms before and after both branches and of query and key heads, a gate
 * of each value of attention's output, RoPE in layers with a window only; a mixture with a sigmoid
 * router and a shared expert behind the first layers. Defaults: AfmoeConfig.
 */
#include <math.h>

#include "worker/model/families/family.h"

enum { NO = CTW_NULL_REFUSED };

static struct ctw_experts key_experts(struct ctw_config *c, enum ctw_activation act)
{
    return (struct ctw_experts){
        .n = ctw_key_int(c, "num_experts", 64, NO, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 6, NO, 1, CTW_MAX_CHOSEN),
        .inner = ctw_key_int(c, "moe_intermediate_size", 1408, NO, 1, 1 << 24),
        .act = act,
        .router = {.module = "mlp.router.gate",
                   .correction = "mlp.expert_bias",
                   .score = CTW_SCORE_SIGMOID,
                   .normalised = true,
                   .sum_add = 1e-20,
                   .scale = ctw_key_number(c, "route_scale", 1, NO, 1e-6, 1e6)}};
}

static void describe_norms(struct ctw_config *c, int64_t i, const struct ctw_norm_form *norm)
{
    ctw_describe_norm(c, i, CTW_AT_MIXER, norm, "input_layernorm", 0);
    ctw_describe_norm(c, i, CTW_AT_MIXER_OUT, norm, "post_attention_layernorm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP, norm, "pre_mlp_layernorm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP_OUT, norm, "post_mlp_layernorm", 0);
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 200192,
                                                                    .hidden = 2048,
                                                                    .inner = 6144,
                                                                    .n_layers = 32,
                                                                    .n_head = 16,
                                                                    .n_kv = 0,
                                                                    .max_length = 16384});
    int64_t head = ctw_key_head_dim(c, &s, 128, NO);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    int64_t window = ctw_key_int(c, "sliding_window", 1024, NO, 1, 1 << 30);
    int64_t every = ctw_key_int(c, "global_attn_every_n_layers", 4, NO, 1, 1 << 20);
    const int64_t *windows =
        ctw_key_windows(c, s.n_layers, window, &(struct ctw_window_rule){.every = every});
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_qk_norms qk_norms = {.form = norm};
    const struct ctw_mlp dense = {.inner = s.inner,
                                  .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    struct ctw_experts experts = key_experts(c, dense.act);
    int64_t n_shared = ctw_key_int(c, "num_shared_experts", 2, NO, 0, 1024);
    const struct ctw_mlp shared = {.inner = n_shared * experts.inner,
                                   .act = dense.act,
                                   .gate = "mlp.shared_experts.gate_proj",
                                   .up = "mlp.shared_experts.up_proj",
                                   .down = "mlp.shared_experts.down_proj"};
    experts.shared = n_shared > 0 ? &shared : NULL;
    int64_t n_dense = ctw_key_int(c, "num_dense_layers", 1, NO, 0, 1 << 20);
    bool scaled = ctw_key_bool(c, "mup_enabled", false);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){
                           .norm = norm, .embed_scale = scaled ? sqrt((double)s.hidden) : 1});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){.head = head,
                                                             .rope = windows[i] != 0 ? rope : -1,
                                                             .window = windows[i],
                                                             .qkv_bias = bias,
                                                             .o_bias = bias,
                                                             .gate = CTW_GATE_SIGMOID,
                                                             .gate_values = true,
                                                             .g = "self_attn.gate_proj",
                                                             .norms = &qk_norms});
        if (i < n_dense)
            ctw_describe_mlp(c, i, &dense);
        else
            ctw_describe_experts(c, i, &experts);
    }
}

const struct ctw_family ctw_family_afmoe = {
    .model_type = "afmoe", .architecture = "AfmoeForCausalLM", .describe = describe};
