/*
 * Kolibri 1: norms before and after both branches, norms of query and key heads, and RoPE in the
 * layers with a window alone; mixtures with a shared expert, whose router's correction is added to
 * the logits. Defaults: Kolibri1Config.
 */
#include "worker/model/families/qwen.h"

static struct ctw_experts key_experts(struct ctw_config *c, struct ctw_mlp *shared)
{
    const enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    struct ctw_experts x = qwen_experts(c, act, &(struct qwen_absent){384, 6, 512, false});
    x.router.score = CTW_SCORE_SIGMOID;
    x.router.correction = "moe.router.expert_bias";
    x.router.correction_of_logits = true;
    qwen_shared_expert(c, &x, 512, shared);
    shared->gate = "mlp.shared_experts.gate_proj";
    shared->up = "mlp.shared_experts.up_proj";
    shared->down = "mlp.shared_experts.down_proj";
    return x;
}

static void describe_norms(struct ctw_config *c, int64_t i, const struct ctw_norm_form *norm)
{
    ctw_describe_norms(c, i, norm);
    ctw_describe_norm(c, i, CTW_AT_MIXER_OUT, norm, "post_attn_norm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP_OUT, norm, "post_ffn_norm", 0);
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes_as(c,
                                                &(struct ctw_sizes){.vocab = 128000,
                                                                    .hidden = 2560,
                                                                    .n_layers = 50,
                                                                    .n_head = 48,
                                                                    .n_kv = 4,
                                                                    .max_length = 262144},
                                                &(struct ctw_size_keys){.inner = ""});
    const int64_t head = ctw_key_head_dim(c, &s, 128, CTW_NULL_REFUSED);
    const int64_t window = ctw_key_int(c, "sliding_window", 513, 0, 1, 1 << 30);
    /* Without layer_types, every fifth layer sees everything, or all do without a window. */
    const int64_t *windows = ctw_key_windows(
        c, s.n_layers, window, &(struct ctw_window_rule){.every = window > 0 ? 5 : 1});
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_qk_norms qk_norms = {.form = norm};
    struct ctw_mlp shared;
    const struct ctw_experts experts = key_experts(c, &shared);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    const int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){.head = head,
                                          .rope = window == 0 || windows[i] > 0 ? rope : -1,
                                          .window = windows[i],
                                          .norms = &qk_norms});
        ctw_describe_experts(c, i, &experts);
    }
}

static const struct ctw_renamed in_memory[] = {
    {"post_attn_norm", "post_self_attn_layernorm"},
    {"post_ffn_norm", "post_mlp_layernorm"},
    {"moe.router.expert_bias", "mlp.gate.e_score_correction_bias"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_kolibri1 = {.model_type = "kolibri1",
                                               .architecture = "Kolibri1ForCausalLM",
                                               .in_memory = in_memory,
                                               .describe = describe};
