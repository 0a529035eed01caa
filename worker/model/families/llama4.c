/*
 * Llama 4: most layers have RoPE, norms of heads without weight after it, and see the keys of their
 * own chunk of positions; the others have no RoPE and queries that grow with their position. Some
 * layers are mixtures whose router multiplies the experts' input. Defaults: Llama4TextConfig.
 */
#include "worker/model/families/family.h"

struct keys {
    struct ctw_sizes s;
    struct ctw_norm_form norm;
    int64_t head, chunk, inner_dense;
    bool bias, has_norms, q_factors;
    const bool *rope, *chunked, *sparse; /* of each layer */
    int64_t every;                       /* sparse NULL: each `every`-th layer is */
    struct ctw_experts experts;
    enum ctw_activation act;
};

/* The list, or [] for its absence. */
static const bool *key_ropes(struct ctw_config *c, int64_t n)
{
    static const char name[] = "no_rope_layers";
    const struct ctw_json_node *list = ctw_json_get(c->text, name);
    int64_t every = ctw_key_int(c, "no_rope_layer_interval", 4, CTW_NULL_REFUSED, 1, 1 << 20);
    bool empty = list != NULL && ctw_json_type(list) == CTW_JSON_ARRAY && ctw_json_count(list) == 0;
    return ctw_key_layers(c, empty ? "" : name, n, every);
}

static struct ctw_experts key_experts(struct ctw_config *c, int64_t inner, enum ctw_activation act)
{
    enum { NO = CTW_NULL_REFUSED };
    return (struct ctw_experts){
        .n = ctw_key_int(c, "num_local_experts", 16, NO, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 1, NO, 1, CTW_MAX_CHOSEN),
        .inner = inner,
        .act = act,
        .stacked = true,
        .transposed = true,
        .fused = true,
        .module = "feed_forward.experts",
        .router = {.module = "feed_forward.router", .score = CTW_SCORE_SIGMOID, .on_input = true}};
}

/* Queries of layers without RoPE. */
static void key_q_factor(struct ctw_config *c)
{
    enum { NO = CTW_NULL_REFUSED };
    double scale = ctw_key_number(c, "attn_scale", 0.1, NO, 0, 1e6);
    double floor_scale = ctw_key_number(c, "floor_scale", 8192, NO, 1, 1e12);
    if (c->status != CTW_OK)
        return;
    c->model->q_factor_beta = scale;
    c->model->q_factor_length = floor_scale;
    c->model->q_factor_first = 1;
}

static struct keys read_keys(struct ctw_config *c)
{
    enum { NO = CTW_NULL_REFUSED };
    struct keys k = {.s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 202048,
                                                               .hidden = 5120,
                                                               .inner = 8192,
                                                               .n_layers = 48,
                                                               .n_head = 40,
                                                               .n_kv = 8,
                                                               .max_length = 131072})};
    k.head = ctw_key_head_dim(c, &k.s, 128, 0);
    k.inner_dense = ctw_key_int(c, "intermediate_size_mlp", 16384, NO, 1, 1 << 24);
    k.bias = ctw_key_bool(c, "attention_bias", false);
    k.has_norms = ctw_key_bool(c, "use_qk_norm", true);
    k.q_factors = ctw_key_bool(c, "attn_temperature_tuning", true);
    k.norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    k.act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    k.chunk = ctw_key_int(c, "attention_chunk_size", 8192, 0, 1, 1 << 30);
    k.rope = key_ropes(c, k.s.n_layers);
    k.chunked = ctw_key_layers_called(c, "layer_types", k.s.n_layers, "chunked_attention",
                                      "full_attention");
    k.sparse = ctw_key_layer_set(c, "moe_layers", k.s.n_layers);
    k.every = ctw_key_int(c, "interleave_moe_layer_step", 1, NO, 1, 1 << 20);
    k.experts = key_experts(c, k.s.inner, k.act);
    return k;
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct keys *k, int rope)
{
    struct ctw_norm_form head_norm = k->norm;
    bool has_rope = k->rope[i], chunked = k->chunked != NULL ? k->chunked[i] : has_rope;
    head_norm.weightless = true;
    const struct ctw_qk_norms qk_norms = {.form = head_norm, .after_rope = true};
    const struct ctw_mlp shared = {.inner = k->s.inner,
                                   .act = k->act,
                                   .gate = "feed_forward.shared_expert.gate_proj",
                                   .up = "feed_forward.shared_expert.up_proj",
                                   .down = "feed_forward.shared_expert.down_proj"};
    const struct ctw_mlp dense = {.inner = k->inner_dense,
                                  .act = k->act,
                                  .gate = "feed_forward.gate_proj",
                                  .up = "feed_forward.up_proj",
                                  .down = "feed_forward.down_proj"};
    struct ctw_experts experts = k->experts;
    experts.shared = &shared;
    ctw_describe_norms(c, i, &k->norm);
    ctw_describe_attention(
        c, i,
        &(struct ctw_attention_rules){.n_head = k->s.n_head,
                                      .n_kv = k->s.n_kv,
                                      .head = k->head,
                                      .rope = has_rope ? rope : -1,
                                      .q_factors = k->q_factors && !has_rope,
                                      .chunk = chunked ? k->chunk : 0,
                                      .qkv_bias = k->bias,
                                      .o_bias = k->bias,
                                      .norms = k->has_norms && has_rope ? &qk_norms : NULL});
    if (k->sparse != NULL ? k->sparse[i] : (i + 1) % k->every == 0)
        ctw_describe_experts(c, i, &experts);
    else
        ctw_describe_mlp(c, i, &dense);
}

static void describe(struct ctw_config *c)
{
    const struct keys k = read_keys(c);
    ctw_describe_model(c, &k.s, &(struct ctw_model_rules){.norm = k.norm});
    key_q_factor(c);
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = k.head,
                                                             .pairing = CTW_ROPE_INTERLEAVED,
                                                             .theta = 500000.0});
    for (int64_t i = 0; i < k.s.n_layers; i++)
        describe_layer(c, i, &k, rope);
}

const struct ctw_family ctw_family_llama4_text = {
    .model_type = "llama4_text", .architecture = "Llama4ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_llama4 = {
    .model_type = "llama4",
    .architecture = "Llama4ForConditionalGeneration",
    .wrapper = &(const struct ctw_wrapper){.text_type = "llama4_text", .is_default = true},
    .spellings = ctw_wrapped_spellings,
    .describe = describe};
