/*
 * Granite 3 and the dense Granite 4: Llama's layers, with factors of the embedding, the scores, the
 * branches and the logits. Defaults: GraniteConfig. And the hybrid Granite 4, if all its layers are
 * attention and it has no experts: gate and up are fused. Defaults: GraniteMoeHybridConfig. And
 * Granite 3's mixtures, whose stacks of experts are named in a way of their own. Defaults:
 * GraniteMoeConfig.
 */
#include "worker/model/families/family.h"

extern const struct ctw_family ctw_family_granite;
extern const struct ctw_family ctw_family_granitemoehybrid;
extern const struct ctw_family ctw_family_granitemoe;

enum kind { DENSE, HYBRID, MIXTURE };

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

/* Refuses other layers than attention. */
static struct ctw_mlp key_hybrid_mlp(struct ctw_config *c, const struct ctw_sizes *s)
{
    if (ctw_key_int(c, "num_local_experts", 8, 0, 0, 1 << 20) != 0)
        ctw_key_fail(c, "num_local_experts", CTW_EUNSUP, "experts are not supported");
    if (!ctw_key_is_given(c, "layer_types"))
        ctw_key_fail(c, "layer_types", CTW_EUNSUP,
                     "expected, as layers without it are Mamba's, which are not supported");
    ctw_key_windows(c, s->n_layers, 0, &(struct ctw_window_rule){.every = 1});
    return (struct ctw_mlp){
        .inner = ctw_key_int(c, "shared_intermediate_size", 1024, CTW_NULL_REFUSED, 1, 1 << 20),
        .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
        .fused = true,
        .gate_up = "shared_mlp.input_linear",
        .down = "shared_mlp.output_linear"};
}

static struct ctw_experts key_experts(struct ctw_config *c, const struct ctw_sizes *s)
{
    return (struct ctw_experts){
        .n = ctw_key_int(c, "num_local_experts", 8, CTW_NULL_REFUSED, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 2, CTW_NULL_REFUSED, 1, CTW_MAX_CHOSEN),
        .inner = s->inner,
        .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
        .stacked = true,
        .fused = true,
        .module = "",
        .apart = "block_sparse_moe.experts",
        .gate_up = "block_sparse_moe.input_linear",
        .down = "block_sparse_moe.output_linear",
        .router = {.module = "block_sparse_moe.router.layer", .score = CTW_SCORE_SOFTMAX_CHOSEN}};
}

static void describe_with(struct ctw_config *c, enum kind kind)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 32000,
                                                                    .hidden = 4096,
                                                                    .inner = 11008,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 0,
                                                                    .max_length = 2048});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, CTW_NULL_REFUSED);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    struct ctw_mlp mlp = {0};
    struct ctw_experts experts = {0};
    if (kind == MIXTURE)
        experts = key_experts(c, &s);
    else
        mlp = kind == HYBRID ? key_hybrid_mlp(c, &s) : key_mlp(c, &s);
    bool has_rope = kind != HYBRID || ctw_key_is(c, "position_embedding_type", "rope");
    double embed_scale = key_factor(c, "embedding_multiplier");
    double head_scale = 1 / key_factor(c, "logits_scaling");
    double scale = key_factor(c, "attention_multiplier");
    float factor = (float)key_factor(c, "residual_multiplier");
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){
                           .norm = norm, .embed_scale = embed_scale, .head_scale = head_scale});
    int rope = -1;
    if (has_rope)
        rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_branch(c, i, CTW_MIXER)->factor = ctw_describe_branch(c, i, CTW_MLP)->factor =
            factor;
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){.n_head = s.n_head,
                                                             .n_kv = s.n_kv,
                                                             .head = head,
                                                             .rope = rope,
                                                             .scale = scale,
                                                             .qkv_bias = bias,
                                                             .o_bias = bias});
        if (kind == MIXTURE)
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &mlp);
    }
}

static void describe(struct ctw_config *c)
{
    describe_with(c, DENSE);
}

static void describe_hybrid(struct ctw_config *c)
{
    describe_with(c, HYBRID);
}

static void describe_mixture(struct ctw_config *c)
{
    describe_with(c, MIXTURE);
}

const struct ctw_family ctw_family_granite = {
    .model_type = "granite", .architecture = "GraniteForCausalLM", .describe = describe};

const struct ctw_family ctw_family_granitemoehybrid = {.model_type = "granitemoehybrid",
                                                       .architecture =
                                                           "GraniteMoeHybridForCausalLM",
                                                       .describe = describe_hybrid};

static const struct ctw_renamed in_memory[] = {
    {"block_sparse_moe.input_linear", "block_sparse_moe.experts.gate_up_proj"},
    {"block_sparse_moe.output_linear", "block_sparse_moe.experts.down_proj"},
    {"block_sparse_moe.router.layer", "block_sparse_moe.router"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_granitemoe = {.model_type = "granitemoe",
                                                 .architecture = "GraniteMoeForCausalLM",
                                                 .in_memory = in_memory,
                                                 .describe = describe_mixture};
