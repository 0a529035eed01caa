/*
 * Granite 3 and the dense Granite 4: Llama's layers, with factors of the embedding, the scores, the
 * branches and the logits. Defaults: GraniteConfig. And the hybrid Granite 4: Mamba 2 in most
 * layers, a fused MLP, or the same as the shared expert of a mixture. Defaults:
 * GraniteMoeHybridConfig. And Granite 3's mixtures, whose stacks of experts are named in a way of
 * their own. Defaults: GraniteMoeConfig.
 */
#include "worker/model/families/state_space_keys.h"

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

/* What a hybrid's layers have beside attention. */
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

static void key_hybrid(struct ctw_config *c, const struct ctw_sizes *s, struct hybrid *h)
{
    key_layer_types(c, s->n_layers, h);
    if (h->has_mamba)
        ssm_key_mamba2(c, s->hidden, &h->rules);
    h->mlp = (struct ctw_mlp){
        .inner = ctw_key_int(c, "shared_intermediate_size", 1024, CTW_NULL_REFUSED, 1, 1 << 20),
        .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
        .fused = true,
        .gate_up = "shared_mlp.input_linear",
        .down = "shared_mlp.output_linear"};
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

static struct ctw_experts key_experts(struct ctw_config *c, const struct ctw_sizes *s)
{
    int64_t n = ctw_key_int(c, "num_local_experts", 8, CTW_NULL_REFUSED, 1, CTW_MAX_EXPERTS);
    int64_t chosen = ctw_key_int(c, "num_experts_per_tok", 2, CTW_NULL_REFUSED, 1, CTW_MAX_CHOSEN);
    return mixture(n, chosen, s->inner, ctw_key_activation(c, "hidden_act", CTW_ACT_SILU));
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
    struct hybrid h = {.has_experts = kind == MIXTURE};
    h.rules.norm = &norm;
    if (kind == MIXTURE)
        h.experts = key_experts(c, &s);
    else if (kind == HYBRID)
        key_hybrid(c, &s, &h);
    else
        h.mlp = key_mlp(c, &s);
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
    const struct ctw_attention_rules attention = {
        .head = head, .rope = rope, .scale = scale, .qkv_bias = bias, .o_bias = bias};
    for (int64_t i = 0; i < s.n_layers; i++) {
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
