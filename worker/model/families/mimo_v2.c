/*
 * MiMo V2.5 and 2.6, the text model: layers with a window have heads, RoPE and sinks of their own.
 * Value heads have their own size, and values a factor. Queries, keys and values are one module,
 * whose rows the releases store rank by rank of tensor parallelism. Towers and layers for drafts
 * are not read. Defaults: MiMoV2Config and modeling_mimo_v2.py of the makers.
 */
#include <inttypes.h>
#include <string.h>

#include "worker/model/families/routed.h"

enum { NO = CTW_NULL_REFUSED, MAX_RANKS = CTW_MAX_SHARDS / 3 };

struct heads {
    int64_t n, n_kv, k, v; /* k, v: elements */
    bool sinks;
};

struct keys {
    struct ctw_sizes s;
    struct ctw_norm_form norm;
    struct heads full, sliding;
    const bool *slides;
    const bool *sparse; /* NULL: no layer is */
    int64_t window;
    double v_factor;
    enum ctw_qkv_order order;
    bool bias;
    struct ctw_mlp dense;
    struct routed mixture;
};

static void key_must_be(struct ctw_config *c, const char *name, const char *only)
{
    const char *word = ctw_key_string(c, name, only);
    if (c->status == CTW_OK && strcmp(word, only) != 0)
        ctw_key_fail(c, name, CTW_EUNSUP, "\"%s\" is not supported; supported: %s", word, only);
}

/* Heads of layers with a window: each number is by default that of full layers, but the size of
 * values, which is that of their keys. */
static struct heads key_sliding(struct ctw_config *c, const struct heads *full)
{
    int64_t n = ctw_key_int(c, "swa_num_attention_heads", full->n, full->n, 1, 4096);
    int64_t n_kv = ctw_key_int(c, "swa_num_key_value_heads", full->n_kv, full->n_kv, 1, 4096);
    int64_t k = ctw_key_int(c, "swa_head_dim", full->k, full->k, 2, CTW_MAX_HEAD);
    int64_t v = ctw_key_int(c, "swa_v_head_dim", k, k, 2, CTW_MAX_HEAD);
    if (c->status == CTW_OK && n % n_kv != 0)
        ctw_key_fail(c, "swa_num_attention_heads", CTW_EFORMAT,
                     "expected a multiple of swa_num_key_value_heads");
    return (struct heads){.n = n, .n_kv = n_kv, .k = k, .v = v};
}

/* The layers with experts: a list, or every so many from the first; NULL: none. */
static const bool *key_sparse(struct ctw_config *c, int64_t n, bool set[CTW_MAX_DECODERS])
{
    static const char name[] = "moe_layer_freq";
    const struct ctw_json_node *node = ctw_json_get(c->text, name);
    if (node == NULL || ctw_json_type(node) != CTW_JSON_NUMBER)
        return ctw_key_layers(c, name, n, 1);
    int64_t every = ctw_key_int(c, name, 0, 0, 0, 1 << 20);
    for (int64_t i = 0; i < n; i++)
        set[i] = every > 0 && i % every == 0;
    return set;
}

/*
 * The releases have the rows of each rank one after another, as many ranks as full layers have key
 * heads, and each rank's FP8 blocks begin with its rows. Files of other tools have the order that
 * the class itself reads.
 */
static enum ctw_qkv_order key_order(struct ctw_config *c)
{
    const char *layout = ctw_key_string(c, "attention_projection_layout", "split");
    if (c->status != CTW_OK || strcmp(layout, "split") == 0)
        return CTW_QKV_SPLIT;
    if (strcmp(layout, "fused_qkv") != 0)
        ctw_key_fail(c, "attention_projection_layout", CTW_EUNSUP,
                     "\"%s\" is not supported; supported: split, fused_qkv", layout);
    if (ctw_is_unfused(c))
        return CTW_QKV_SPLIT;
    return ctw_files_find(c, "self_attn.qkv_proj.weight_scale_inv") != NULL ? CTW_QKV_IN_RANKS
                                                                            : CTW_QKV_IN_ORDER;
}

static struct routed key_mixture(struct ctw_config *c, struct keys *k, enum ctw_activation act)
{
    const struct routed_absent absent = {
        .n = NO, .chosen = NO, .inner = k->s.inner, .normalised = true};
    key_must_be(c, "scoring_func", "sigmoid");
    key_must_be(c, "topk_method", "noaux_tc");
    struct routed mixture = routed_keys(c, &absent, act);
    mixture.experts.router.normalised &= mixture.experts.chosen > 1;
    return mixture;
}

static struct keys read_keys(struct ctw_config *c, bool set[CTW_MAX_DECODERS])
{
    struct keys k = {.s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 151936,
                                                               .hidden = 4096,
                                                               .inner = 22016,
                                                               .n_layers = 32,
                                                               .n_head = 32,
                                                               .n_kv = 32,
                                                               .max_length = 32768})};
    int64_t n = k.s.n_layers, head = ctw_key_head_dim(c, &k.s, 0, 0);
    k.full = (struct heads){.n = k.s.n_head, .n_kv = k.s.n_kv, .k = head};
    k.full.v = ctw_key_int(c, "v_head_dim", head, head, 2, CTW_MAX_HEAD);
    k.sliding = key_sliding(c, &k.full);
    k.full.sinks = ctw_key_bool(c, "add_full_attention_sink_bias", false);
    k.sliding.sinks = ctw_key_bool(c, "add_swa_attention_sink_bias", false);
    k.v_factor = ctw_key_number(c, "attention_value_scale", 1, 1, 1e-6, 1e6);
    k.bias = ctw_key_bool(c, "attention_bias", false);
    k.norm = ctw_key_rms_norm(c, "layernorm_epsilon", 1e-6);
    int64_t every = ctw_key_int(c, "hybrid_block_size", 1, 1, 1, 1 << 20);
    k.slides = ctw_key_layers(c, "hybrid_layer_pattern", n, every);
    int64_t other = ctw_key_int(c, "sliding_window_size", 0, 0, 1, 1 << 30);
    k.window = ctw_key_int(c, "sliding_window", other, other, 1, 1 << 30);
    k.order = key_order(c);
    k.dense = (struct ctw_mlp){.inner = k.s.inner,
                               .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    if (ctw_key_is_given(c, "n_routed_experts") || ctw_key_is_given(c, "num_local_experts")) {
        k.sparse = key_sparse(c, n, set);
        k.mixture = key_mixture(c, &k, k.dense.act);
    }
    return k;
}

/* Layers with a window have a theta of their own beside the parameters of all layers. */
static int describe_rope(struct ctw_config *c, const struct keys *k, bool slides)
{
    const bool own = slides && ctw_key_is_given(c, "swa_rope_theta");
    const struct ctw_rope_rules rules = {.head = slides ? k->sliding.k : k->full.k,
                                         .theta = 10000.0,
                                         .theta_key = own ? "swa_rope_theta" : NULL,
                                         .theta_at_top = slides,
                                         .partial_key = "partial_rotary_factor"};
    return ctw_describe_rope(c, &rules);
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct keys *k)
{
    const bool slides = k->slides[i];
    const struct heads *h = slides ? &k->sliding : &k->full;
    if (slides && k->window == 0)
        ctw_key_fail(c, "sliding_window", CTW_EFORMAT,
                     "expected a number of keys, because hybrid_layer_pattern has layers with a "
                     "window");
    ctw_describe_norms(c, i, &k->norm);
    ctw_describe_attention(
        c, i,
        &(struct ctw_attention_rules){.n_head = h->n,
                                      .n_kv = h->n_kv,
                                      .head = h->k,
                                      .head_v = h->v,
                                      .v_factor = k->v_factor,
                                      .rope = describe_rope(c, k, slides),
                                      .window = slides ? k->window : 0,
                                      .sinks = h->sinks ? "self_attn.attention_sink_bias" : NULL,
                                      .order = k->order,
                                      .blocks = (int)k->full.n_kv,
                                      .qkv_bias = k->bias});
    if (k->sparse != NULL && k->sparse[i])
        routed_describe(c, i, &k->mixture);
    else
        ctw_describe_mlp(c, i, &k->dense);
}

/* Every rank has as many heads of each kind as any other. */
static void check_ranks(struct ctw_config *c, const struct keys *k)
{
    const int64_t ranks = k->full.n_kv;
    if (c->status != CTW_OK || k->order != CTW_QKV_IN_RANKS)
        return;
    if (ranks > MAX_RANKS || k->sliding.n % ranks != 0 || k->sliding.n_kv % ranks != 0)
        ctw_key_fail(c, "num_key_value_heads", CTW_EUNSUP,
                     "a fused qkv_proj with the rows of %" PRId64 " ranks is supported for up to "
                     "%d ranks that divide swa_num_attention_heads and swa_num_key_value_heads",
                     ranks, MAX_RANKS);
}

static void describe(struct ctw_config *c)
{
    bool set[CTW_MAX_DECODERS] = {false};
    const struct keys k = read_keys(c, set);
    check_ranks(c, &k);
    ctw_describe_model(c, &k.s, &(struct ctw_model_rules){.norm = k.norm});
    for (int64_t i = 0; i < k.s.n_layers && c->status == CTW_OK; i++)
        describe_layer(c, i, &k);
}

const struct ctw_family ctw_family_mimo_v2 = {.model_type = "mimo_v2",
                                              .architecture = "MiMoV2ForCausalLM",
                                              .wrapper = &(const struct ctw_wrapper){.flat = true},
                                              .describe = describe};
