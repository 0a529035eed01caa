/*
 * Granite 3 and the dense Granite 4: Llama's layers, with factors of the embedding, the scores, the
 * branches and the logits. Defaults: GraniteConfig. And the hybrid Granite 4: Mamba 2 in most
 * layers, a fused MLP, or the same as the shared expert of a mixture. Defaults:
 * GraniteMoeHybridConfig. And Granite 3's mixtures, whose stacks of experts are named in a way of
 * their own, without and with a shared expert. Defaults: GraniteMoeConfig, GraniteMoeSharedConfig.
 * And Granite Swash, dense and a mixture: sinks, windows in three of four layers, and a theta or no
 * RoPE by layer. Defaults: GraniteSWAConfig, GraniteMoeSWAConfig.
 */
#include "worker/model/families/state_space_keys.h"

enum kind { DENSE, HYBRID, MIXTURE };

/* In what the classes differ. */
struct granite_class {
    enum kind kind;
    bool shared; /* the mixtures may have a shared expert */
    bool slides; /* Swash */
    /* Their defaults. */
    struct ctw_sizes sizes;
    double eps;
    bool tied;
};

static const struct ctw_sizes usual = {.vocab = 32000,
                                       .hidden = 4096,
                                       .inner = 11008,
                                       .n_layers = 32,
                                       .n_head = 32,
                                       .n_kv = 0,
                                       .max_length = 2048};

static double key_factor(struct ctw_config *c, const char *name)
{
    return ctw_key_number(c, name, 1, CTW_NULL_REFUSED, 1e-9, 1e9);
}

static struct ctw_mlp key_mlp(struct ctw_config *c, const struct ctw_sizes *s)
{
    return (struct ctw_mlp){.inner = s->inner,
                            .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
                            .bias = ctw_key_bool(c, "mlp_bias", false)};
}

static struct ctw_experts mixture(int64_t n, int64_t chosen, int64_t inner, enum ctw_activation act)
{
    return (struct ctw_experts){
        .n = n,
        .chosen = chosen,
        .inner = inner,
        .act = act,
        .stacked = true,
        .fused = true,
        .module = "",
        .apart = "block_sparse_moe.experts",
        .gate_up = "block_sparse_moe.input_linear",
        .down = "block_sparse_moe.output_linear",
        .router = {.module = "block_sparse_moe.router.layer", .score = CTW_SCORE_SOFTMAX_CHOSEN}};
}

/* What layers have beside attention. */
struct hybrid {
    bool mamba[CTW_MAX_DECODERS]; /* which layers have Mamba 2 in its place */
    struct ctw_state_space_rules rules;
    struct ctw_mlp mlp; /* of layers without experts; else the shared expert */
    bool has_experts, has_mamba;
    struct ctw_experts experts;
};

static void key_layer_types(struct ctw_config *c, int64_t n, struct hybrid *h)
{
    const char *key = ctw_key_either(c, "layer_types", "layers_block_type");
    h->has_mamba = !ctw_key_is_given(c, key);
    for (int64_t i = 0; i < n && h->has_mamba; i++)
        h->mamba[i] = true;
    const struct ctw_json_node *node = h->has_mamba ? NULL : ctw_key_list(c, key, n);
    for (int64_t i = 0; node != NULL && c->status == CTW_OK; i++, node = ctw_json_next(node)) {
        const char *type = "";
        c->status = ctw_json_as_string(node, &type, &c->err);
        h->mamba[i] = strcmp(type, "mamba") == 0 || strcmp(type, "linear_attention") == 0;
        h->has_mamba |= h->mamba[i];
        if (c->status == CTW_OK && !h->mamba[i] && strcmp(type, "attention") != 0 &&
            strcmp(type, "full_attention") != 0)
            c->status = ctw_json_fail(node, &c->err, CTW_EUNSUP,
                                      "\"%s\" is not supported; supported: mamba, attention", type);
    }
}

/* A hybrid's MLP or a mixture's shared expert; least 0: there may be none. */
static struct ctw_mlp key_shared(struct ctw_config *c, int64_t absent, int64_t least)
{
    return (struct ctw_mlp){.inner = ctw_key_int(c, "shared_intermediate_size", absent,
                                                 CTW_NULL_REFUSED, least, 1 << 20),
                            .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
                            .fused = true,
                            .gate_up = "shared_mlp.input_linear",
                            .down = "shared_mlp.output_linear"};
}

static void key_hybrid(struct ctw_config *c, const struct ctw_sizes *s, struct hybrid *h)
{
    key_layer_types(c, s->n_layers, h);
    if (h->has_mamba)
        ssm_key_mamba2(c, s->hidden, &h->rules);
    h->mlp = key_shared(c, 1024, 1);
    int64_t n = ctw_key_int(c, "num_local_experts", 8, 0, 0, CTW_MAX_EXPERTS);
    if (n == 0 && ctw_files_find(c, ".mlp.gate_proj.") != NULL) { /* as mlx-lm splits the module */
        h->mlp.fused = false;
        h->mlp.down = NULL;
    } else if (ctw_files_find(c, ".shared_mlp.gate_proj.") != NULL) { /* of GGUF files */
        h->mlp.fused = false;
        h->mlp.gate = "shared_mlp.gate_proj";
        h->mlp.up = "shared_mlp.up_proj";
    }
    h->has_experts = n > 0;
    if (n == 0)
        return;
    h->experts =
        mixture(n, ctw_key_int(c, "num_experts_per_tok", 2, CTW_NULL_REFUSED, 1, CTW_MAX_CHOSEN),
                s->inner, h->mlp.act);
    h->experts.shared = &h->mlp;
}

static void key_mixture(struct ctw_config *c, const struct ctw_sizes *s, bool shared,
                        struct hybrid *h)
{
    int64_t n = ctw_key_int(c, "num_local_experts", 8, CTW_NULL_REFUSED, 1, CTW_MAX_EXPERTS);
    int64_t chosen = ctw_key_int(c, "num_experts_per_tok", 2, CTW_NULL_REFUSED, 1, CTW_MAX_CHOSEN);
    if (shared)
        h->mlp = key_shared(c, 0, 0);
    else
        h->mlp.act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    h->has_experts = true;
    h->experts = mixture(n, chosen, s->inner, h->mlp.act);
    h->experts.shared = h->mlp.inner > 0 ? &h->mlp : NULL;
}

/* The windows of Swash: layers 0, 4, 8 .. are full. */
static const int64_t *key_windows(struct ctw_config *c, int64_t n)
{
    bool full[CTW_MAX_DECODERS];
    int64_t window = ctw_key_int(c, "sliding_window", 128, CTW_NULL_REFUSED, 1, 1 << 30);
    for (int64_t i = 0; i < n; i++)
        full[i] = i % 4 == 0;
    return ctw_key_windows(c, n, window, &(struct ctw_window_rule){.full = full});
}

/* The index of a layer's RoPE; theta: of this layer alone, or NULL. */
static int describe_rope(struct ctw_config *c, int64_t head, const double *theta)
{
    if (theta != NULL && *theta == 0)
        return -1;
    return ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                         .theta = 10000.0,
                                                         .own_theta = theta != NULL ? *theta : 0});
}

static void key_class(struct ctw_config *c, const struct granite_class *k,
                      const struct ctw_sizes *s, struct hybrid *h)
{
    if (k->kind == MIXTURE)
        key_mixture(c, s, k->shared, h);
    else if (k->kind == HYBRID)
        key_hybrid(c, s, h);
    else
        h->mlp = key_mlp(c, s);
}

static void describe_with(struct ctw_config *c, const struct granite_class *k)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &k->sizes);
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, CTW_NULL_REFUSED);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", k->eps);
    struct hybrid h = {.rules.norm = &norm};
    key_class(c, k, &s, &h);
    bool has_rope = k->kind != HYBRID || ctw_key_is(c, "position_embedding_type", "rope");
    double embed_scale = key_factor(c, "embedding_multiplier");
    double head_scale = 1 / key_factor(c, "logits_scaling");
    double scale = key_factor(c, "attention_multiplier");
    float factor = (float)key_factor(c, "residual_multiplier");
    const int64_t *windows = k->slides ? key_windows(c, s.n_layers) : NULL;
    const double *theta =
        k->slides ? ctw_key_layer_numbers(c, "layer_rope_theta", s.n_layers, 0, 1e12) : NULL;
    ctw_describe_model(
        c, &s,
        &(struct ctw_model_rules){
            .norm = norm, .tied = k->tied, .embed_scale = embed_scale, .head_scale = head_scale});
    struct ctw_attention_rules attention = {.head = head,
                                            .scale = scale,
                                            .qkv_bias = bias,
                                            .o_bias = bias,
                                            .sinks = k->slides ? "self_attn.sinks" : NULL};
    for (int64_t i = 0; i < s.n_layers; i++) {
        attention.window = windows != NULL ? windows[i] : 0;
        attention.rope = has_rope ? describe_rope(c, head, theta != NULL ? &theta[i] : NULL) : -1;
        ctw_describe_branch(c, i, CTW_MIXER)->factor = ctw_describe_branch(c, i, CTW_MLP)->factor =
            factor;
        ctw_describe_norms(c, i, &norm);
        if (h.mamba[i])
            ctw_describe_state_space(c, i, &h.rules);
        else
            ctw_describe_attention(c, i, &attention);
        if (h.has_experts)
            ctw_describe_experts(c, i, &h.experts);
        else
            ctw_describe_mlp(c, i, &h.mlp);
    }
}

static void describe(struct ctw_config *c)
{
    const struct granite_class dense = {.kind = DENSE, .sizes = usual, .eps = 1e-6};
    describe_with(c, &dense);
}

static void describe_hybrid(struct ctw_config *c)
{
    const struct granite_class hybrid = {.kind = HYBRID, .sizes = usual, .eps = 1e-6};
    describe_with(c, &hybrid);
}

static void describe_mixture(struct ctw_config *c)
{
    const struct granite_class moe = {.kind = MIXTURE, .sizes = usual, .eps = 1e-6};
    describe_with(c, &moe);
}

static void describe_shared(struct ctw_config *c)
{
    const struct granite_class moe = {.kind = MIXTURE, .shared = true, .sizes = usual, .eps = 1e-6};
    describe_with(c, &moe);
}

static void describe_swa(struct ctw_config *c)
{
    const struct granite_class swash = {.kind = DENSE,
                                        .slides = true,
                                        .sizes = {.vocab = 100352,
                                                  .hidden = 2560,
                                                  .inner = 8192,
                                                  .n_layers = 24,
                                                  .n_head = 20,
                                                  .n_kv = 4,
                                                  .max_length = 8192},
                                        .eps = 1e-5,
                                        .tied = true};
    describe_with(c, &swash);
}

static void describe_moe_swa(struct ctw_config *c)
{
    const struct granite_class swash = {
        .kind = MIXTURE, .shared = true, .slides = true, .sizes = usual, .eps = 1e-6};
    describe_with(c, &swash);
}

const struct ctw_family ctw_family_granite = {
    .model_type = "granite", .architecture = "GraniteForCausalLM", .describe = describe};

static const struct ctw_renamed in_memory[] = {
    {"block_sparse_moe.input_linear", "block_sparse_moe.experts.gate_up_proj"},
    {"block_sparse_moe.output_linear", "block_sparse_moe.experts.down_proj"},
    {"block_sparse_moe.router.layer", "block_sparse_moe.router"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_granitemoehybrid = {.model_type = "granitemoehybrid",
                                                       .architecture =
                                                           "GraniteMoeHybridForCausalLM",
                                                       .in_memory = in_memory,
                                                       .describe = describe_hybrid};

const struct ctw_family ctw_family_granitemoe = {.model_type = "granitemoe",
                                                 .architecture = "GraniteMoeForCausalLM",
                                                 .in_memory = in_memory,
                                                 .describe = describe_mixture};

const struct ctw_family ctw_family_granitemoeshared = {.model_type = "granitemoeshared",
                                                       .architecture =
                                                           "GraniteMoeSharedForCausalLM",
                                                       .in_memory = in_memory,
                                                       .describe = describe_shared};

const struct ctw_family ctw_family_granite_swa = {
    .model_type = "granite_swa", .architecture = "GraniteSWAForCausalLM", .describe = describe_swa};

const struct ctw_family ctw_family_granitemoe_swa = {.model_type = "granitemoe_swa",
                                                     .architecture = "GraniteMoeSWAForCausalLM",
                                                     .in_memory = in_memory,
                                                     .describe = describe_moe_swa};
