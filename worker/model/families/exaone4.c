/*
 * EXAONE 4, and the text model of EXAONE 4.5: norms after the branches, norms of query and key
 * heads. Models with a window have no RoPE in the layers that see everything. EXAONE MoE: the same
 * attention, norms before the branches, sigmoid routing. Defaults: Exaone4Config, ExaoneMoeConfig.
 */
#include <inttypes.h>

#include "worker/model/families/family.h"

/* The attention of layers, but for window and RoPE, and what both families have. */
struct exaone {
    struct ctw_sizes sizes;
    int64_t window; /* 0: none */
    const int64_t *windows;
    struct ctw_norm_form norm;
    struct ctw_qk_norms qk_norms;
    enum ctw_activation act;
    struct ctw_attention_rules attention;
    int rope;
};

/* Each layer's window. sliding_window_pattern is read if there is no layer_types. */
static const int64_t *key_windows(struct ctw_config *c, int64_t n_layers, int64_t window)
{
    struct ctw_window_rule rule = ctw_key_window_pattern(c, "sliding_window_pattern", 4);
    if (window == 0)
        rule = (struct ctw_window_rule){.every = 1};
    else if (rule.every == 0 && rule.letters == NULL && !ctw_key_is_given(c, "layer_types"))
        ctw_key_fail(c, "sliding_window_pattern", CTW_EFORMAT,
                     "expected a number of at least 1, or letters L and G, as sliding_window is "
                     "%" PRId64 " and there is no layer_types",
                     window);
    return ctw_key_windows(c, n_layers, window, &rule);
}

/* Both classes have the same defaults. */
static void begin(struct ctw_config *c, struct exaone *m)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 102400,
                                                                    .hidden = 4096,
                                                                    .inner = 16384,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 32,
                                                                    .max_length = 2048});
    /* head_dim is not a field of the class, but is read if present. */
    const int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    m->sizes = s;
    m->window = ctw_key_int(c, "sliding_window", 4096, 0, 1, 1 << 30);
    m->windows = key_windows(c, s.n_layers, m->window);
    m->norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    m->qk_norms = (struct ctw_qk_norms){.form = m->norm, .heads = CTW_HEADS_ALIKE};
    m->act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = m->norm});
    m->rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    m->attention = (struct ctw_attention_rules){.head = head, .norms = &m->qk_norms};
}

static void describe_attention(struct ctw_config *c, int64_t i, struct exaone *m)
{
    m->attention.window = m->windows[i];
    m->attention.rope = m->window == 0 || m->windows[i] != 0 ? m->rope : -1;
    ctw_describe_attention(c, i, &m->attention);
}

static void describe(struct ctw_config *c)
{
    struct exaone m;
    begin(c, &m);
    const struct ctw_mlp mlp = {.inner = m.sizes.inner, .act = m.act};
    for (int64_t i = 0; i < m.sizes.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER_OUT, &m.norm, "post_attention_layernorm", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP_OUT, &m.norm, "post_feedforward_layernorm", 0);
        describe_attention(c, i, &m);
        ctw_describe_mlp(c, i, &mlp);
    }
}

/* ---- EXAONE MoE ---- */

static int64_t key(struct ctw_config *c, const char *name, int64_t absent, int64_t most)
{
    return ctw_key_int(c, name, absent, CTW_NULL_REFUSED, 1, most);
}

static struct ctw_experts key_experts(struct ctw_config *c, enum ctw_activation act,
                                      struct ctw_mlp *shared)
{
    struct ctw_experts x = {.n = key(c, "num_experts", 64, CTW_MAX_EXPERTS),
                            .chosen = key(c, "num_experts_per_tok", 8, CTW_MAX_CHOSEN),
                            .inner = key(c, "moe_intermediate_size", 1024, 1 << 24),
                            .act = act,
                            .shared = shared};
    *shared = (struct ctw_mlp){.inner = x.inner * key(c, "num_shared_experts", 1, 1024),
                               .act = act,
                               .gate = "mlp.shared_experts.gate_proj",
                               .up = "mlp.shared_experts.up_proj",
                               .down = "mlp.shared_experts.down_proj"};
    x.router = (struct ctw_router){
        .correction = "mlp.e_score_correction_bias",
        .score = CTW_SCORE_SIGMOID,
        .n_groups = key(c, "n_group", 1, x.n),
        .group_best = 2,
        .normalised = ctw_key_bool(c, "norm_topk_prob", true),
        .sum_add = 1e-20,
        .scale = ctw_key_number(c, "routed_scaling_factor", 2.5, CTW_NULL_REFUSED, 1e-6, 1e6)};
    x.router.kept_groups = key(c, "topk_group", 1, x.router.n_groups);
    return x;
}

static void describe_moe(struct ctw_config *c)
{
    struct exaone m;
    struct ctw_mlp shared;
    begin(c, &m);
    const struct ctw_mlp mlp = {.inner = m.sizes.inner, .act = m.act};
    const struct ctw_experts experts = key_experts(c, m.act, &shared);
    const bool *dense =
        ctw_key_layers_called(c, "mlp_layer_types", m.sizes.n_layers, "dense", "sparse");
    const int64_t first =
        ctw_key_int(c, "first_k_dense_replace", 1, CTW_NULL_REFUSED, 0, CTW_MAX_DECODERS);
    for (int64_t i = 0; i < m.sizes.n_layers; i++) {
        ctw_describe_norms(c, i, &m.norm);
        describe_attention(c, i, &m);
        if (dense != NULL ? dense[i] : i < first)
            ctw_describe_mlp(c, i, &mlp);
        else
            ctw_describe_experts(c, i, &experts);
    }
}

const struct ctw_family ctw_family_exaone4 = {
    .model_type = "exaone4", .architecture = "Exaone4ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_exaone4_5 = {.model_type = "exaone4_5",
                                                .architecture =
                                                    "Exaone4_5_ForConditionalGeneration",
                                                .wrapper = &(const struct ctw_wrapper){0},
                                                .spellings = ctw_wrapped_spellings,
                                                .describe = describe};

const struct ctw_family ctw_family_exaone_moe = {
    .model_type = "exaone_moe", .architecture = "ExaoneMoeForCausalLM", .describe = describe_moe};
