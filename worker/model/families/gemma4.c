/*
 * Gemma 4: layers with a window differ from full layers in head size, key heads and RoPE. In the E
 * models each layer has an input of its own, and the last layers share keys and values. Mixtures
 * have experts beside the MLP, both with their own norms. Norms multiply by the weight itself,
 * values are normalised, and scores are not scaled. Defaults: Gemma4TextConfig.
 */
#include "worker/model/families/gemma.h"

struct keys {
    struct ctw_sizes s;
    struct ctw_norm_form norm;
    enum ctw_activation act;
    int64_t head, full_head, full_kv; /* full_*: of layers without a window */
    const int64_t *windows;
    int64_t n_shared; /* the last layers, which have no keys and values of their own */
    int64_t input;    /* size of a layer's own input; 0: none */
    bool bias, double_mlp, k_is_v, mixture;
    struct ctw_experts experts;
};

static bool is_full(const struct keys *k, int64_t i)
{
    return k->windows[i] == 0 || i + 1 == k->s.n_layers;
}

/* Is i the last layer of its kind that has its own keys and values, so that later layers use them?
 */
static bool is_kept(const struct keys *k, int64_t i)
{
    int64_t own = k->s.n_layers - k->n_shared;
    if (k->n_shared == 0 || i >= own)
        return false;
    for (int64_t j = i + 1; j < own; j++)
        if (is_full(k, j) == is_full(k, i))
            return false;
    return true;
}

static void check_layer_kinds(struct ctw_config *c, const struct keys *k)
{
    bool kept[2] = {false, false};
    for (int64_t i = 0; i < k->s.n_layers - k->n_shared; i++)
        kept[is_full(k, i)] = true;
    for (int64_t i = k->s.n_layers - k->n_shared; i < k->s.n_layers; i++)
        if (!kept[is_full(k, i)])
            ctw_key_fail(c, "num_kv_shared_layers", CTW_EFORMAT,
                         "found %lld, but no earlier layer is of the type of layer %lld",
                         (long long)k->n_shared, (long long)i);
}

/* The router reads the residual itself. Its norm has the weight "scale", and the class then divides
 * by the square root of the width. */
static struct ctw_experts key_experts(struct ctw_config *c, const struct keys *k)
{
    enum { NO = CTW_NULL_REFUSED };
    int64_t n = ctw_key_int(c, "num_experts", 0, 0, 1, CTW_MAX_EXPERTS);
    int64_t chosen = ctw_key_int(c, "top_k_experts", 0, 0, 1, CTW_MAX_CHOSEN);
    int64_t inner = ctw_key_int(c, "moe_intermediate_size", 0, 0, 1, 1 << 24);
    if (n == 0 || chosen == 0 || inner == 0)
        ctw_key_fail(c, "enable_moe_block", CTW_EFORMAT,
                     "is true, which needs num_experts, top_k_experts and moe_intermediate_size");
    return (struct ctw_experts){.n = n,
                                .chosen = chosen,
                                .inner = inner,
                                .act = k->act,
                                .stacked = true,
                                .fused = true,
                                .module = "experts",
                                .router = {.module = "router.proj",
                                           .expert_scale = "router.per_expert_scale",
                                           .score = CTW_SCORE_SOFTMAX,
                                           .normalised = true,
                                           .factor = 1 / sqrt((double)k->s.hidden)}};
}

static void describe_experts(struct ctw_config *c, int64_t i, const struct keys *k,
                             const struct ctw_mlp *mlp)
{
    struct ctw_experts experts = k->experts;
    struct ctw_norm_form norm = k->norm;
    experts.shared = mlp;
    ctw_describe_experts(c, i, &experts);
    ctw_describe_norm(c, i, ctw_norm_at(CTW_MLP, CTW_AT_EXPERTS), &norm,
                      "pre_feedforward_layernorm_2", 0);
    ctw_describe_norm(c, i, ctw_norm_at(CTW_MLP, CTW_AT_SHARED_OUT), &norm,
                      "post_feedforward_layernorm_1", 0);
    ctw_describe_norm(c, i, ctw_norm_at(CTW_MLP, CTW_AT_EXPERTS_OUT), &norm,
                      "post_feedforward_layernorm_2", 0);
    norm.weightless = true;
    ctw_describe_norm(c, i, ctw_norm_at(CTW_MLP, CTW_AT_ROUTER), &norm, "router", 0);
    ctw_describe_vector(c, i, ctw_norm_weight(ctw_norm_at(CTW_MLP, CTW_AT_ROUTER)), "router.scale",
                        k->s.hidden);
}

/* unified: the text model of the class that has neither inputs of layers nor mixtures. */
static struct keys read_keys(struct ctw_config *c, bool unified)
{
    enum { NO = CTW_NULL_REFUSED };
    const struct ctw_sizes absent = {.vocab = 262144,
                                     .hidden = 2304,
                                     .inner = 9216,
                                     .n_layers = 30,
                                     .n_head = 8,
                                     .n_kv = 4,
                                     .max_length = unified ? 262144 : 131072};
    struct keys k = {.s = ctw_key_sizes(c, &absent)};
    k.head = ctw_key_head_dim(c, &k.s, 256, NO);
    k.bias = ctw_key_bool(c, "attention_bias", false);
    k.norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    k.act = ctw_key_activation(c, "hidden_activation", CTW_ACT_GELU_TANH);
    int64_t window = ctw_key_int(c, "sliding_window", unified ? 1024 : 512, NO, 1, 1 << 30);
    k.windows = ctw_key_windows(c, k.s.n_layers, window, &(struct ctw_window_rule){.every = 6});
    k.full_head = ctw_key_int(c, "global_head_dim", 512, NO, 2, CTW_MAX_HEAD);
    k.full_kv = ctw_key_int(c, "num_global_key_value_heads", 0, 0, 1, 4096);
    k.k_is_v = ctw_key_bool(c, "attention_k_eq_v", false);
    k.n_shared = ctw_key_int(c, "num_kv_shared_layers", 0, NO, 0, k.s.n_layers);
    k.double_mlp = ctw_key_bool(c, "use_double_wide_mlp", false);
    k.input = unified ? 0 : ctw_key_int(c, "hidden_size_per_layer_input", 256, NO, 0, 1 << 16);
    if (k.full_kv == 0 || !k.k_is_v)
        k.full_kv = k.s.n_kv;
    k.mixture = !unified && ctw_key_bool(c, "enable_moe_block", false);
    if (k.mixture)
        k.experts = key_experts(c, &k);
    const char *both = ctw_key_string(c, "use_bidirectional_attention", "");
    if (both[0] != '\0' && strcmp(both, "vision") != 0)
        ctw_key_fail(c, "use_bidirectional_attention", CTW_EUNSUP,
                     "attention to later tokens is not supported");
    check_layer_kinds(c, &k);
    return k;
}

/* The index of the RoPE of heads of this size. */
static int describe_rope(struct ctw_config *c, int64_t head, bool full)
{
    const struct ctw_rope_rules global = {
        .head = head,
        .theta = 1000000.0,
        .layer_type = "full_attention",
        .absent = "{\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.25, "
                  "\"rope_theta\": 1000000.0}"};
    const struct ctw_rope_rules local = {
        .head = head, .theta = 10000.0, .layer_type = "sliding_attention"};
    return ctw_describe_rope(c, full ? &global : &local);
}

static void describe_attention(struct ctw_config *c, int64_t i, const struct keys *k)
{
    static const char *const members[] = {"head_dim", "num_key_value_heads", NULL};
    bool full = is_full(k, i), given = ctw_key_is_given(c, "per_layer_config");
    bool shared = i >= k->s.n_layers - k->n_shared;
    int64_t head = full && !given ? k->full_head : k->head;
    int64_t n_kv = full && !given ? k->full_kv : k->s.n_kv;
    head = ctw_key_of_layer(c, i, members, "head_dim", head, 2, CTW_MAX_HEAD);
    n_kv = ctw_key_of_layer(c, i, members, "num_key_value_heads", n_kv, 1, 4096);
    if (k->s.n_head % n_kv != 0)
        ctw_key_fail(c, "num_attention_heads", CTW_EFORMAT,
                     "found %lld, not a multiple of layer %lld's %lld key-value heads",
                     (long long)k->s.n_head, (long long)i, (long long)n_kv);
    struct ctw_norm_form v_norm = k->norm;
    v_norm.weightless = true;
    ctw_describe_attention(c, i,
                           &(struct ctw_attention_rules){
                               .n_head = k->s.n_head,
                               .n_kv = n_kv,
                               .head = head,
                               .window = full ? 0 : k->windows[i],
                               .rope = describe_rope(c, head, full),
                               .scale = 1,
                               .qkv_bias = k->bias,
                               .o_bias = k->bias,
                               .norms = &(const struct ctw_qk_norms){.form = k->norm},
                               .v_norm = &v_norm,
                               .values_are_keys = k->k_is_v && full,
                               .uses = shared ? 1 + full : 0,
                               .keeps = is_kept(k, i) ? 1 + full : 0,
                           });
    if (!shared)
        return;
    ctw_describe_unused(c, i, "self_attn.k_proj");
    ctw_describe_unused(c, i, "self_attn.v_proj");
    ctw_describe_unused(c, i, "self_attn.k_norm");
}

/* The inputs that each layer has of its own: in all layers together, and in layer i. */
static void describe_inputs(struct ctw_config *c, const struct keys *k)
{
    int64_t vocab =
        ctw_key_int(c, "vocab_size_per_layer_input", 262144, CTW_NULL_REFUSED, 1, 1 << 24);
    int64_t all = k->s.n_layers * k->input;
    struct ctw_norm_form norm = k->norm;
    if (k->input == 0)
        return;
    if (vocab < k->s.vocab)
        ctw_key_fail(c, "vocab_size_per_layer_input", CTW_EUNSUP,
                     "found %lld, expected at least vocab_size", (long long)vocab);
    /* The class divides the projection by sqrt(hidden) before the norm, which cancels but for eps.
     */
    norm.eps *= (double)k->s.hidden;
    c->model->input_dim = k->input;
    const char *codes = "embed_tokens_per_layer.embedding_quantized";
    c->model->input_embed_scale = (float)(gemma_scale_of(c, codes, k->input) * M_SQRT1_2);
    ctw_describe_table(c, CTW_M_INPUT_EMBED, "model.embed_tokens_per_layer", vocab, all);
    ctw_describe_linear(c, CTW_EMBEDDING, 0,
                        &(struct ctw_linear_rules){CTW_P_INPUTS, CTW_M_INPUTS_PROJ, 0,
                                                   "model.per_layer_model_projection", all,
                                                   k->s.hidden});
    ctw_describe_norm(c, CTW_EMBEDDING, CTW_AT_INPUTS, &norm, "model.per_layer_projection_norm",
                      k->input);
}

static void describe_with(struct ctw_config *c, bool unified)
{
    const struct keys k = read_keys(c, unified);
    double cap = ctw_key_number(c, "final_logit_softcapping", 0, 0, 1e-6, 1e9);
    double scale = gemma_scale_of(c, "embed_tokens.embedding_quantized", k.s.hidden);
    ctw_describe_model(
        c, &k.s,
        &(struct ctw_model_rules){
            .norm = k.norm, .tied = true, .embed_scale = scale, .head_softcap = cap});
    describe_inputs(c, &k);
    for (int64_t i = 0; i < k.s.n_layers; i++) {
        bool wide = k.double_mlp && k.n_shared < k.s.n_layers && i >= k.s.n_layers - k.n_shared;
        gemma_describe_norms(c, i, &k.norm);
        describe_attention(c, i, &k);
        const struct ctw_mlp mlp = {.inner = k.s.inner * (wide ? 2 : 1), .act = k.act};
        if (k.mixture)
            describe_experts(c, i, &k, &mlp);
        else
            ctw_describe_mlp(c, i, &mlp);
        if (k.input > 0)
            ctw_describe_own_input(c, i, k.act, &k.norm);
        ctw_describe_vector(c, i,
                            ctw_vector_at(k.input > 0 ? CTW_OWN_INPUT : CTW_MLP, CTW_V_SCALAR),
                            "layer_scalar", 1);
    }
}

static void describe(struct ctw_config *c)
{
    describe_with(c, false);
}

static void describe_unified(struct ctw_config *c)
{
    describe_with(c, true);
}

const struct ctw_family ctw_family_gemma4_unified = {
    .model_type = "gemma4_unified",
    .architecture = "Gemma4UnifiedForConditionalGeneration",
    .wrapper = &(const struct ctw_wrapper){.text_type = "gemma4_unified_text",
                                           .is_default = true,
                                           .tied = true},
    .spellings = ctw_wrapped_spellings,
    .layers_differ = true,
    .describe = describe_unified};

const struct ctw_family ctw_family_gemma4_text = {.model_type = "gemma4_text",
                                                  .architecture = "Gemma4ForCausalLM",
                                                  .layers_differ = true,
                                                  .describe = describe};

const struct ctw_family ctw_family_gemma4 = {
    .model_type = "gemma4",
    .architecture = "Gemma4ForConditionalGeneration",
    .wrapper =
        &(const struct ctw_wrapper){.text_type = "gemma4_text", .is_default = true, .tied = true},
    .spellings = ctw_wrapped_spellings,
    .layers_differ = true,
    .describe = describe};
