/*
 * Jamba: Mamba 1 with norms of dt, B and C, attention without positions in some layers, and
 * mixtures in some layers. Defaults: JambaConfig.
 */
#include "worker/model/families/state_space_keys.h"

/* Layers at an offset within a period. */
struct period {
    int64_t every, at;
};

static struct period key_period(struct ctw_config *c, const char *every, int64_t every_absent,
                                const char *at, int64_t at_absent)
{
    struct period p = {ssm_key(c, every, every_absent, 1 << 20), 0};
    p.at = ctw_key_int(c, at, at_absent, CTW_NULL_REFUSED, 0, 1 << 20);
    if (p.at >= p.every)
        ctw_key_fail(c, at, CTW_EFORMAT, "expected less than %s", every);
    return p;
}

static bool is_in(const struct period *p, int64_t i)
{
    return i % p->every == p->at;
}

static void key_mamba(struct ctw_config *c, int64_t hidden, struct ctw_state_space_rules *r)
{
    double expand = ctw_key_number(c, "mamba_expand", 2, CTW_NULL_REFUSED, 1e-3, 1e3);
    r->module = "mamba";
    r->is =
        (struct ctw_state_space){.selects = true,
                                 .n_head = (int64_t)(expand * (double)hidden),
                                 .head = 1,
                                 .n_groups = 1,
                                 .n_state = ssm_key(c, "mamba_d_state", 16, CTW_MAX_STATE),
                                 .taps = (int)ssm_key(c, "mamba_d_conv", 4, CTW_MAX_TAPS),
                                 .dt_rank = ssm_key_auto(c, "mamba_dt_rank", (hidden + 15) / 16),
                                 .dt_max = INFINITY};
    r->conv_bias = ctw_key_bool(c, "mamba_conv_bias", true);
    r->bias = r->out_bias = ctw_key_bool(c, "mamba_proj_bias", false);
}

static struct ctw_experts key_experts(struct ctw_config *c, int64_t inner, enum ctw_activation act)
{
    const char *n = ctw_key_either(c, "num_experts", "num_local_experts");
    return (struct ctw_experts){
        .n = ssm_key(c, n, 16, CTW_MAX_EXPERTS),
        .chosen = ssm_key(c, "num_experts_per_tok", 2, CTW_MAX_CHOSEN),
        .inner = inner,
        .act = act,
        .module = "feed_forward.experts",
        .router = {.module = "feed_forward.router", .score = CTW_SCORE_SOFTMAX}};
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 65536,
                                                                    .hidden = 4096,
                                                                    .inner = 14336,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 8,
                                                                    .max_length = 262144});
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct period attends = key_period(c, "attn_layer_period", 8, "attn_layer_offset", 4);
    const struct period mixes = key_period(c, "expert_layer_period", 2, "expert_layer_offset", 1);
    const enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    struct ctw_state_space_rules mamba = {.parts = &norm};
    key_mamba(c, s.hidden, &mamba);
    if (act != CTW_ACT_SILU)
        ctw_key_fail(c, "hidden_act", CTW_EUNSUP, "only silu is supported in Mamba layers");
    const struct ctw_experts experts = key_experts(c, s.inner, act);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = act,
                                .gate = "feed_forward.gate_proj",
                                .up = "feed_forward.up_proj",
                                .down = "feed_forward.down_proj"};
    const struct ctw_attention_rules attention = {.head = ctw_head_of(c, &s), .rope = -1};
    ctw_describe_model(
        c, &s, &(struct ctw_model_rules){.final_norm = "model.final_layernorm", .norm = norm});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "input_layernorm", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "pre_ff_layernorm", 0);
        if (is_in(&attends, i))
            ctw_describe_attention(c, i, &attention);
        else
            ctw_describe_state_space(c, i, &mamba);
        if (is_in(&mixes, i) && experts.n > 1)
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_jamba = {
    .model_type = "jamba", .architecture = "JambaForCausalLM", .describe = describe};
