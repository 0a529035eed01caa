/*
 * Step 3.5 and 3.7, the text model: norms multiply by 1 + weight, and layers with a window differ
 * from full layers in heads and RoPE. Heads are multiplied by a sigmoid of the input. MLPs are
 * clamped; mixtures have a sigmoid router and a shared expert. Numbers by layer are lists in the
 * makers' files, and objects by layer type in transformers'. Defaults: Step3p7TextConfig.
 */
#include <math.h>
#include <stdlib.h>

#include "worker/model/families/family.h"

struct keys {
    struct ctw_sizes s;
    struct ctw_norm_form norm;
    int64_t head, sliding_heads, first[2]; /* first: the first layer with a window, without one */
    double scale;
    bool bias;
    const int64_t *windows;
    const bool *sparse;                   /* NULL: from layer 3 on */
    const double *limits, *limits_shared; /* of each layer; NULL: none */
    struct ctw_mlp dense, shared;
    struct ctw_experts experts;
};

/* moe_layers_enum, "3,4,5" or a list: as a set of n layers, in `set`. */
static const bool *key_sparse(struct ctw_config *c, int64_t n, bool set[CTW_MAX_DECODERS])
{
    static const char name[] = "moe_layers_enum";
    const bool *types = ctw_key_layers_called(c, "mlp_layer_types", n, "sparse", "dense");
    const struct ctw_json_node *node = ctw_json_get(c->text, name);
    if (types != NULL || node == NULL || ctw_json_type(node) != CTW_JSON_STRING)
        return types != NULL ? types : ctw_key_layer_set(c, name, n);
    const char *text = ctw_key_string(c, name, "");
    while (*text != '\0' && c->status == CTW_OK) {
        char *end;
        long layer = strtol(text, &end, 10);
        if (end == text || (*end != ',' && *end != '\0') || layer < 0)
            ctw_key_fail(c, name, CTW_EFORMAT, "expected numbers of layers with commas between");
        else if (layer < n)
            set[layer] = true;
        text = *end == ',' ? end + 1 : end;
    }
    return set;
}

/* Heads of layers with a window. */
static int64_t key_sliding_heads(struct ctw_config *c, int64_t n_head)
{
    int64_t n = ctw_key_int(c, "num_sliding_attention_heads", 0, 0, 1, 4096);
    if (n > 0)
        return n;
    if (!ctw_key_is_given(c, "attention_other_setting"))
        return n_head;
    return ctw_key_int(c, "attention_other_setting.num_attention_heads", n_head, CTW_NULL_REFUSED,
                       1, 4096);
}

static struct ctw_experts key_experts(struct ctw_config *c)
{
    enum { NO = CTW_NULL_REFUSED };
    const char *n = ctw_key_either(c, "n_routed_experts", "moe_num_experts");
    const char *chosen = ctw_key_either(c, "num_experts_per_tok", "moe_top_k");
    return (struct ctw_experts){
        .n = ctw_key_int(c, n, 288, NO, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, chosen, 8, NO, 1, CTW_MAX_CHOSEN),
        .inner = ctw_key_int(c, "moe_intermediate_size", 1280, NO, 1, 1 << 24),
        .act = CTW_ACT_SILU,
        .stacked = true,
        .module = "moe",
        .apart = "mlp.experts",
        .router = {.module = "moe.gate",
                   .correction = "moe.router_bias",
                   .score = CTW_SCORE_SIGMOID,
                   .normalised = true,
                   .scale = ctw_key_number(c, "moe_router_scaling_factor", 1, NO, 1e-6, 1e6)}};
}

static struct keys read_keys(struct ctw_config *c, bool set[CTW_MAX_DECODERS])
{
    enum { NO = CTW_NULL_REFUSED };
    const struct ctw_size_keys names = {
        .n_kv = ctw_key_either(c, "num_key_value_heads", "num_attention_groups")};
    struct keys k = {.s = ctw_key_sizes_as(c,
                                           &(struct ctw_sizes){.vocab = 128815,
                                                               .hidden = 4096,
                                                               .inner = 11264,
                                                               .n_layers = 45,
                                                               .n_head = 64,
                                                               .n_kv = 8,
                                                               .max_length = 128000},
                                           &names)};
    int64_t n = k.s.n_layers;
    k.head = ctw_key_head_dim(c, &k.s, 128, NO);
    k.sliding_heads = key_sliding_heads(c, k.s.n_head);
    k.scale = ctw_key_number(c, "query_pre_attn_scalar", (double)k.head, (double)k.head, 1e-6, 1e9);
    k.bias = ctw_key_bool(c, "attention_bias", false);
    k.norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    k.norm.offset = 1;
    int64_t window = ctw_key_int(c, "sliding_window", 0, 0, 1, 1 << 30);
    k.windows = ctw_key_windows(c, n, window, &(struct ctw_window_rule){.every = 1});
    for (int64_t i = n - 1; i >= 0; i--)
        k.first[k.windows[i] == 0] = i;
    k.sparse = key_sparse(c, n, set);
    k.limits = ctw_key_layer_numbers(c, "swiglu_limits", n, 0, 1e6);
    k.limits_shared = ctw_key_layer_numbers(c, "swiglu_limits_shared", n, 0, 1e6);
    bool bias = ctw_key_bool(c, "mlp_bias", false);
    k.dense = k.shared = (struct ctw_mlp){.inner = k.s.inner, .act = CTW_ACT_SILU, .bias = bias};
    k.shared.inner = ctw_key_int(c, "share_expert_dim", 1280, NO, 1, 1 << 24);
    k.shared.gate = "share_expert.gate_proj";
    k.shared.up = "share_expert.up_proj";
    k.shared.down = "share_expert.down_proj";
    k.experts = key_experts(c);
    return k;
}

static int describe_rope(struct ctw_config *c, const struct keys *k, bool full)
{
    const struct ctw_rope_rules rules = {.head = k->head,
                                         .theta = 10000.0,
                                         .layer_type =
                                             full ? "full_attention" : "sliding_attention",
                                         .unscaled = !full,
                                         .partial_key = "partial_rotary_factors",
                                         .lists = true,
                                         .layer = k->first[full]};
    return ctw_describe_rope(c, &rules);
}

static struct ctw_glu clamp(const double *limits, int64_t i)
{
    if (limits == NULL || limits[i] == 0)
        return (struct ctw_glu){0};
    return (struct ctw_glu){.kind = CTW_GLU_CLAMPED_ACT, .limit = (float)limits[i]};
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct keys *k)
{
    static const char *const members[] = {"num_attention_heads", NULL};
    bool full = k->windows[i] == 0;
    int64_t n_head = ctw_key_of_layer(c, i, members, "num_attention_heads",
                                      full ? k->s.n_head : k->sliding_heads, 1, 4096);
    const struct ctw_qk_norms qk_norms = {.form = k->norm};
    struct ctw_mlp dense = k->dense, shared = k->shared;
    struct ctw_experts experts = k->experts;
    dense.glu = shared.glu = clamp(k->limits_shared, i);
    experts.glu = clamp(k->limits, i);
    experts.shared = &shared;
    ctw_describe_norms(c, i, &k->norm);
    ctw_describe_attention(c, i,
                           &(struct ctw_attention_rules){.n_head = n_head,
                                                         .n_kv = k->s.n_kv,
                                                         .head = k->head,
                                                         .rope = describe_rope(c, k, full),
                                                         .window = k->windows[i],
                                                         .scale = k->scale,
                                                         .qkv_bias = k->bias,
                                                         .o_bias = k->bias,
                                                         .norms = &qk_norms,
                                                         .gate = CTW_GATE_SIGMOID});
    if (k->sparse != NULL ? k->sparse[i] : i >= 3)
        ctw_describe_experts(c, i, &experts);
    else
        ctw_describe_mlp(c, i, &dense);
}

static void describe(struct ctw_config *c)
{
    bool set[CTW_MAX_DECODERS] = {false};
    struct keys k = read_keys(c, set);
    k.scale = 1 / sqrt(k.scale);
    int64_t drafts = ctw_key_int(c, "num_nextn_predict_layers", 0, 0, 0, 64);
    ctw_describe_model(c, &k.s, &(struct ctw_model_rules){.norm = k.norm});
    ctw_describe_drafts(c, drafts);
    for (int64_t i = 0; i < k.s.n_layers; i++)
        describe_layer(c, i, &k);
}

static const struct ctw_renamed in_memory[] = {
    {"moe.gate", "mlp.gate"},
    {"moe.router_bias", "mlp.gate.e_score_correction_bias"},
    {"moe", "mlp.experts"},
    {"share_expert", "mlp.shared_experts"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_step3p5 = {.model_type = "step3p5",
                                              .architecture = "Step3p5ForCausalLM",
                                              .in_memory = in_memory,
                                              .layers_differ = true,
                                              .describe = describe};

/* The class takes any type of text model. */
const struct ctw_family ctw_family_step3p7 = {.model_type = "step3p7",
                                              .architecture = "Step3p7ForConditionalGeneration",
                                              .old_architecture = "Step3p7FlashForCausalLM",
                                              .wrapper = &(const struct ctw_wrapper){.flat = true},
                                              .spellings = ctw_wrapped_spellings,
                                              .in_memory = in_memory,
                                              .layers_differ = true,
                                              .describe = describe};
