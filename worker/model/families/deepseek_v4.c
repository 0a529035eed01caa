/*
 * DeepSeek V4: several residual streams, mixed around each branch; attention over a window of
 * tokens beside pooled keys, of blocks of 4 tokens, of which an indexer chooses, or of 128; and a
 * mixture in every layer, in whose first layers each token's experts are in a table. Defaults:
 * DeepseekV4Config. Also as deepseek_ref, SGLang's name for it.
 */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "kernels/pool.h"
#include "kernels/streams.h"
#include "worker/model/families/family.h"
#include "worker/model/recipe/pooled.h"

enum { NO = CTW_NULL_REFUSED };

/* Kinds of attention layers. */
enum layer { WINDOW, SPARSE, HEAVY, N_LAYERS };

static const char *const layer_names[N_LAYERS] = {
    [WINDOW] = "sliding_attention",
    [SPARSE] = "compressed_sparse_attention",
    [HEAVY] = "heavily_compressed_attention",
};

struct keys {
    struct ctw_sizes s;
    int64_t block[N_LAYERS];
    enum layer layers[CTW_MAX_DECODERS];
    const bool *hashed; /* NULL: the first n_hashed layers are */
    int64_t n_hashed;
    struct ctw_norm_form norm;
    struct ctw_streams streams;
    struct ctw_pooled pooled;
    struct ctw_experts experts;
    struct ctw_mlp shared;
};

/* Layer types by name; without them, by compress_ratios; without these, V4 Pro's. */
static void key_layers(struct ctw_config *c, struct keys *k)
{
    static const double ratios[N_LAYERS] = {0, 4, 128};
    const int64_t n = k->s.n_layers;
    const double *given = ctw_key_layer_numbers(c, "compress_ratios", n, 0, 1 << 20);
    const struct ctw_json_node *node =
        ctw_key_is_given(c, "layer_types") ? ctw_key_list(c, "layer_types", n) : NULL;
    const bool named = node != NULL;
    for (int64_t i = 0; i < n && c->status == CTW_OK; i++) {
        int at = i >= 2 && i % 2 != 0 ? SPARSE : HEAVY;
        const char *name = "";
        if (named)
            c->status = ctw_json_as_string(node, &name, &c->err);
        if (named || given != NULL)
            for (at = 0; at < N_LAYERS; at++)
                if (named ? strcmp(name, layer_names[at]) == 0 : given[i] == ratios[at])
                    break;
        if (c->status == CTW_OK && at == N_LAYERS)
            ctw_key_fail(c, named ? "layer_types" : "compress_ratios", CTW_EUNSUP,
                         "layer %lld is neither %s, %s nor %s", (long long)i, layer_names[0],
                         layer_names[1], layer_names[2]);
        k->layers[i] = (enum layer)at;
        node = named ? ctw_json_next(node) : NULL;
    }
}

/* Tokens of a block: an older key of its own, or an entry of compress_rates. */
static int64_t key_block(struct ctw_config *c, const char *old, const char *name, int64_t absent)
{
    int64_t block = ctw_key_int(c, name, absent, NO, 1, CTW_MAX_POOL);
    return ctw_key_int(c, old, block, block, 1, CTW_MAX_POOL);
}

static void key_attention(struct ctw_config *c, struct keys *k)
{
    enum { MOST = 1 << 20 };
    struct ctw_pooled *x = &k->pooled;
    x->n_head = (int)k->s.n_head;
    x->head = (int)ctw_key_head_dim(c, &k->s, 512, NO);
    x->q_rank = ctw_key_int(c, "q_lora_rank", 1024, NO, 1, MOST);
    x->window = ctw_key_int(c, "sliding_window", 128, NO, 1, 1 << 30);
    x->o_groups = (int)ctw_key_int(c, "o_groups", 8, NO, 1, CTW_MAX_O_GROUPS);
    x->o_rank = ctw_key_int(c, "o_lora_rank", 1024, NO, 1, MOST);
    x->scale = (float)(1 / sqrt((double)x->head));
    x->index = (struct ctw_indexer){
        .chosen = ctw_key_int(c, "index_topk", 512, NO, 1, 1 << 30),
        .n_head = (int)ctw_key_int(c, "index_n_heads", 64, NO, 1, 4096),
        .head = (int)ctw_key_int(c, "index_head_dim", 128, NO, 2, CTW_MAX_HEAD)};
    if (x->head > CTW_MAX_HEAD)
        ctw_key_fail(c, "head_dim", CTW_EUNSUP, "attention heads of %d elements; the maximum is %d",
                     x->head, CTW_MAX_HEAD);
    if (x->n_head * (int64_t)x->head % x->o_groups != 0)
        ctw_key_fail(c, "o_groups", CTW_EFORMAT,
                     "found %d, expected a divisor of the elements of all heads", x->o_groups);
    k->block[SPARSE] =
        key_block(c, "compress_rate_csa", "compress_rates.compressed_sparse_attention", 4);
    k->block[HEAVY] =
        key_block(c, "compress_rate_hca", "compress_rates.heavily_compressed_attention", 128);
    key_layers(c, k);
}

static enum ctw_score key_score(struct ctw_config *c)
{
    const char *name = ctw_key_string(c, "scoring_func", "sqrtsoftplus");
    if (strcmp(name, "sqrtsoftplus") == 0)
        return CTW_SCORE_SQRT_SOFTPLUS;
    if (strcmp(name, "sigmoid") != 0)
        ctw_key_fail(c, "scoring_func", CTW_EUNSUP,
                     "\"%s\" is not supported; supported: sqrtsoftplus, sigmoid", name);
    return CTW_SCORE_SIGMOID;
}

/* SGLang's files leave routed_scaling_factor out, also where it is not the default: V4 Pro's. */
static double key_scale(struct ctw_config *c, int64_t n_experts)
{
    enum { FLASH_EXPERTS = 256 };
    static const char key[] = "routed_scaling_factor";
    if (n_experts != FLASH_EXPERTS && !ctw_key_is_given(c, key))
        ctw_warn("%s: %s: absent: 1.5 is used, as in transformers and SGLang, although "
                 "DeepSeek-V4-Pro's own configuration says 2.5; add the key if this is that model",
                 c->file, key);
    return ctw_key_number(c, key, 1.5, NO, 1e-6, 1e6);
}

static void key_mixture(struct ctw_config *c, struct keys *k)
{
    const char *n_key = ctw_key_either(c, "n_routed_experts", "num_local_experts");
    const int64_t n = ctw_key_int(c, n_key, 256, NO, 1, CTW_MAX_EXPERTS);
    const double limit = ctw_key_number(c, "swiglu_limit", 10, NO, 1e-6, 1e9);
    k->shared = (struct ctw_mlp){.inner = k->s.inner,
                                 .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
                                 .glu = {.kind = CTW_GLU_CLAMPED, .limit = (float)limit},
                                 .bias = ctw_key_bool(c, "mlp_bias", false),
                                 .gate = "ffn.shared_experts.w1",
                                 .up = "ffn.shared_experts.w3",
                                 .down = "ffn.shared_experts.w2"};
    k->experts =
        (struct ctw_experts){.n = n,
                             .chosen = ctw_key_int(c, "num_experts_per_tok", 6, NO, 1,
                                                   n < CTW_MAX_CHOSEN ? n : CTW_MAX_CHOSEN),
                             .inner = k->s.inner,
                             .act = k->shared.act,
                             .glu = k->shared.glu,
                             .module = "ffn.experts",
                             .gate = "w1",
                             .up = "w3",
                             .down = "w2",
                             .router = {.module = "ffn.gate",
                                        .score = key_score(c),
                                        .normalised = true,
                                        .sum_add = 1e-20,
                                        .scale = key_scale(c, n)},
                             .shared = &k->shared};
    k->n_hashed = ctw_key_int(c, "num_hash_layers", 3, 3, 0, CTW_MAX_DECODERS);
    k->hashed = ctw_key_layers_called(c, "mlp_layer_types", k->s.n_layers, "hash_moe", "moe");
    (void)ctw_key_string(c, "expert_dtype", NULL); /* the experts' tensors say it, too */
}

/* The RoPE of layers with pooled keys or, `plain`, of the others. */
static int describe_rope(struct ctw_config *c, const struct keys *k, double share, bool plain)
{
    const struct ctw_rope_rules rules = {.head = k->pooled.head,
                                         .pairing = CTW_ROPE_INTERLEAVED,
                                         .theta = plain ? 10000.0 : 160000.0,
                                         .theta_key = plain ? NULL : "compress_rope_theta",
                                         .layer_type = plain ? "main" : "compress",
                                         .unscaled = plain,
                                         .partial_key = "partial_rotary_factor",
                                         .partial = share,
                                         .unscaled_yarn = true};
    const int rope = ctw_describe_rope(c, &rules);
    if (c->status == CTW_OK && c->model->rope[rope].long_inv_freq != NULL)
        ctw_key_fail(c, "rope_scaling", CTW_EUNSUP,
                     "RoPE type longrope is not supported for this family");
    return rope;
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct keys *k,
                           const int rope[N_LAYERS])
{
    struct ctw_pooled attention = k->pooled;
    struct ctw_experts experts = k->experts;
    attention.block = k->block[k->layers[i]];
    attention.overlaps = k->layers[i] == SPARSE;
    attention.rope = rope[k->layers[i]];
    if (k->layers[i] != SPARSE)
        attention.index = (struct ctw_indexer){0};
    if (k->hashed != NULL ? k->hashed[i] : i < k->n_hashed)
        experts.router.table = "ffn.gate.tid2eid";
    else
        experts.router.correction = "ffn.gate.bias";
    ctw_describe_norm(c, i, CTW_AT_MIXER, &k->norm, "attn_norm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP, &k->norm, "ffn_norm", 0);
    ctw_describe_mix(c, i, CTW_MIXER, "hc_attn");
    ctw_describe_mix(c, i, CTW_MLP, "hc_ffn");
    ctw_describe_pooled(c, i, &attention, &k->norm);
    ctw_describe_experts(c, i, &experts);
}

static void describe(struct ctw_config *c)
{
    struct keys k = {.s = ctw_key_sizes_as(
                         c,
                         &(struct ctw_sizes){.vocab = 129280,
                                             .hidden = 4096,
                                             .inner = 2048,
                                             .n_layers = 43,
                                             .n_head = 64,
                                             .n_kv = 1,
                                             .max_length = 1048576},
                         &(struct ctw_size_keys){.inner = ctw_key_either(c, "moe_intermediate_size",
                                                                         "intermediate_size")}),
                     .norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6)};
    k.streams = (struct ctw_streams){.n = (int)ctw_key_int(c, "hc_mult", 4, NO, 1, CTW_MAX_STREAMS),
                                     .n_sinkhorn =
                                         (int)ctw_key_int(c, "hc_sinkhorn_iters", 20, NO, 1, 1000),
                                     .eps = (float)ctw_key_number(c, "hc_eps", 1e-6, NO, 0, 1),
                                     .norm_eps = (float)k.norm.eps};
    key_attention(c, &k);
    key_mixture(c, &k);
    const int64_t turning = ctw_key_int(c, "qk_rope_head_dim", 0, 0, 2, k.pooled.head);
    const double share = turning > 0 ? (double)turning / k.pooled.head : 64.0 / 512;
    ctw_describe_model(c, &k.s,
                       &(struct ctw_model_rules){.layers = "layers",
                                                 .embed = "embed",
                                                 .final_norm = "norm",
                                                 .head = "head",
                                                 .norm = k.norm});
    ctw_describe_drafts(c, ctw_key_int(c, "num_nextn_predict_layers", 1, 0, 0, 64));
    ctw_describe_streams(c, &k.streams);
    ctw_describe_mix(c, k.s.n_layers, 0, "hc_head");
    int rope[N_LAYERS] = {[WINDOW] = describe_rope(c, &k, share, true)};
    rope[SPARSE] = rope[HEAVY] = describe_rope(c, &k, share, false);
    if (c->status == CTW_OK)
        k.pooled.turning = c->model->rope[rope[SPARSE]].rot_dim;
    if (c->status == CTW_OK && (c->model->rope[rope[WINDOW]].rot_dim != k.pooled.turning ||
                                k.pooled.turning > k.pooled.index.head))
        ctw_key_fail(c, "partial_rotary_factor", CTW_EUNSUP,
                     "all heads, those of the indexer too, must turn by as many elements: %d",
                     k.pooled.turning);
    for (int64_t i = 0; i < k.s.n_layers && c->status == CTW_OK; i++)
        describe_layer(c, i, &k, rope);
}

const struct ctw_family ctw_family_deepseek_v4 = {
    .model_type = "deepseek_v4", .architecture = "DeepseekV4ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_deepseek_ref = {
    .model_type = "deepseek_ref", .architecture = "DeepseekV4ForCausalLM", .describe = describe};
