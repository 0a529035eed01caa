/*
 * Cohere (Command R) and Cohere 2 (Command R7B): attention and MLP side by side under one layer
 * norm without bias, interleaved RoPE, scaled logits. Cohere 2: layers without a window have no
 * RoPE. Its mixtures: experts behind the first layers, a shared expert, whose sum with the others
 * may be halved. Defaults: CohereConfig, Cohere2Config, Cohere2MoeConfig.
 */
#include <string.h>

#include "worker/model/families/family.h"

/* What both have; window and rope per layer. */
struct cohere {
    struct ctw_sizes sizes;
    int64_t head;
    struct ctw_norm_form norm;
    enum ctw_activation act;
    bool bias, qk_norm;
    int rope;
};

/* mixture: the class has a head_dim, and RMS norms if rms_norm_eps is not null. */
static struct cohere begin(struct ctw_config *c, double theta, bool mixture)
{
    struct cohere m = {.sizes = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 256000,
                                                                     .hidden = 8192,
                                                                     .inner = 22528,
                                                                     .n_layers = 40,
                                                                     .n_head = 64,
                                                                     .n_kv = 0,
                                                                     .max_length = 8192})};
    /* head_dim is not a field of the classes, but is read if present. */
    m.head = ctw_key_head_dim(c, &m.sizes, mixture ? 128 : 0, CTW_NULL_REFUSED);
    m.norm = ctw_key_layer_norm(c, "layer_norm_eps", 1e-5);
    if (mixture && ctw_key_is_given(c, "rms_norm_eps"))
        m.norm = ctw_key_rms_norm(c, "rms_norm_eps", 0);
    m.norm.bias = false;
    m.act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    m.bias = ctw_key_bool(c, "attention_bias", false);
    double scale = ctw_key_number(c, "logit_scale", 0.0625, CTW_NULL_REFUSED, 1e-9, 1e9);
    ctw_describe_model(
        c, &m.sizes, &(struct ctw_model_rules){.norm = m.norm, .tied = true, .head_scale = scale});
    m.rope = ctw_describe_rope(
        c,
        &(struct ctw_rope_rules){.head = m.head, .pairing = CTW_ROPE_INTERLEAVED, .theta = theta});
    return m;
}

static void describe_mixer(struct ctw_config *c, int64_t i, const struct cohere *m, int64_t window,
                           int rope)
{
    const struct ctw_qk_norms qk_norms = {.form = m->norm, .heads = CTW_HEADS_OWN};
    ctw_describe_branch(c, i, CTW_MLP)->beside = true;
    ctw_describe_norm(c, i, CTW_AT_MIXER, &m->norm, "input_layernorm", 0);
    ctw_describe_attention(c, i,
                           &(struct ctw_attention_rules){.n_head = m->sizes.n_head,
                                                         .n_kv = m->sizes.n_kv,
                                                         .head = m->head,
                                                         .rope = rope,
                                                         .window = window,
                                                         .qkv_bias = m->bias,
                                                         .o_bias = m->bias,
                                                         .norms = m->qk_norm ? &qk_norms : NULL});
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct cohere *m, int64_t window,
                           int rope)
{
    describe_mixer(c, i, m, window, rope);
    ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = m->sizes.inner, .act = m->act});
}

static void describe(struct ctw_config *c)
{
    struct cohere m = begin(c, 500000.0, false);
    m.qk_norm = ctw_key_is_true(c, "use_qk_norm");
    for (int64_t i = 0; i < m.sizes.n_layers; i++)
        describe_layer(c, i, &m, 0, m.rope);
}

static void describe2(struct ctw_config *c)
{
    struct cohere m = begin(c, 10000.0, false);
    int64_t window = ctw_key_int(c, "sliding_window", 4096, CTW_NULL_REFUSED, 1, 1 << 30);
    int64_t every = ctw_key_int(c, "sliding_window_pattern", 4, CTW_NULL_REFUSED, 1, 1 << 30);
    const int64_t *windows =
        ctw_key_windows(c, m.sizes.n_layers, window, &(struct ctw_window_rule){.every = every});
    for (int64_t i = 0; i < m.sizes.n_layers; i++)
        describe_layer(c, i, &m, windows[i], windows[i] > 0 ? m.rope : -1);
}

/* ---- mixtures ---- */

static int64_t key(struct ctw_config *c, const char *name, int64_t absent, int64_t least,
                   int64_t most)
{
    return ctw_key_int(c, name, absent, CTW_NULL_REFUSED, least, most);
}

/* One of two names. */
static bool key_is(struct ctw_config *c, const char *name, const char *absent, const char *yes,
                   const char *no)
{
    const char *text = ctw_key_string(c, name, absent);
    if (strcmp(text, yes) != 0 && strcmp(text, no) != 0)
        ctw_key_fail(c, name, CTW_EUNSUP, "\"%s\" is not supported; supported: %s, %s", text, yes,
                     no);
    return strcmp(text, yes) == 0;
}

static struct ctw_experts key_experts(struct ctw_config *c, const struct cohere *m,
                                      struct ctw_mlp *shared)
{
    const bool sigmoid = key_is(c, "expert_selection_fn", "softmax", "sigmoid", "softmax");
    const bool normalised = ctw_key_bool(c, "norm_topk_prob", true);
    struct ctw_experts x = {.n = key(c, "num_experts", 8, 1, CTW_MAX_EXPERTS),
                            .chosen = key(c, "num_experts_per_tok", 2, 1, CTW_MAX_CHOSEN),
                            .inner = m->sizes.inner,
                            .act = m->act,
                            .router = {.score = sigmoid ? CTW_SCORE_SIGMOID : CTW_SCORE_SOFTMAX,
                                       .normalised = normalised || !sigmoid}};
    *shared =
        (struct ctw_mlp){.inner = x.inner * key(c, "num_shared_experts", 0, 0, CTW_MAX_EXPERTS),
                         .act = m->act,
                         .gate = "mlp.shared_experts.gate_proj",
                         .up = "mlp.shared_experts.up_proj",
                         .down = "mlp.shared_experts.down_proj"};
    x.shared = shared->inner > 0 ? shared : NULL;
    return x;
}

/* Of the first layers, which have no experts, and of the others, layers at the end of a pattern
 * have no window. */
static const int64_t *key_moe_windows(struct ctw_config *c, int64_t n, int64_t first,
                                      int64_t prefix, bool *full)
{
    const int64_t window = key(c, "sliding_window", 4096, 1, 1 << 30);
    const int64_t every = key(c, "sliding_window_pattern", 4, 1, 1 << 30);
    for (int64_t i = 0; i < n; i++)
        full[i] = i < first ? (i + 1) % prefix == 0 : (i - first + 1) % every == 0;
    return ctw_key_windows(c, n, window, &(struct ctw_window_rule){.full = full});
}

static void describe2_moe(struct ctw_config *c)
{
    static const char prefix_key[] = "prefix_dense_sliding_window_pattern";
    struct cohere m = begin(c, 10000.0, true);
    const int64_t n = m.sizes.n_layers;
    const int64_t first = key(c, "first_k_dense_replace", 0, 0, CTW_MAX_DECODERS);
    const int64_t prefix = key(c, prefix_key, 1, 1, 1 << 20);
    const int64_t inner = ctw_key_int(c, "prefix_dense_intermediate_size", m.sizes.inner,
                                      m.sizes.inner, 1, CTW_MAX_DIM);
    const bool *dense = ctw_key_layers_called(c, "mlp_layer_types", n, "dense", "sparse");
    bool full[CTW_MAX_DECODERS];
    const int64_t *windows = key_moe_windows(c, n, first, prefix, full);
    struct ctw_mlp shared;
    const struct ctw_experts experts = key_experts(c, &m, &shared);
    const bool halved =
        key_is(c, "shared_expert_combination_strategy", "average", "average", "sum");
    for (int64_t i = 0; i < n && c->status == CTW_OK; i++) {
        const bool is_dense = dense != NULL ? dense[i] : i < first;
        const bool turns = windows[i] > 0 || (is_dense && prefix == 1);
        describe_mixer(c, i, &m, windows[i], turns ? m.rope : -1);
        if (is_dense) {
            ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = inner, .act = m.act});
            continue;
        }
        if (halved && experts.shared != NULL)
            ctw_describe_branch(c, i, CTW_MLP)->factor = 0.5f;
        ctw_describe_experts(c, i, &experts);
    }
}

const struct ctw_family ctw_family_cohere2_moe = {.model_type = "cohere2_moe",
                                                  .architecture = "Cohere2MoeForCausalLM",
                                                  .describe = describe2_moe};

const struct ctw_family ctw_family_cohere = {
    .model_type = "cohere", .architecture = "CohereForCausalLM", .describe = describe};

const struct ctw_family ctw_family_cohere2 = {
    .model_type = "cohere2", .architecture = "Cohere2ForCausalLM", .describe = describe2};
