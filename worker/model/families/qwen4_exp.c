/*
 * Qwen 4 (experimental): Qwen 3.5's layers with mixtures around several residual streams, which
 * gates of each number mix; attention over pools of keys that an indexer chooses; features of
 * n-grams in some layers. The table of n-grams stays in the files: its rows are read as tokens need
 * them. Defaults: Qwen4ExpTextConfig.
 */
#include <inttypes.h>
#include <stdio.h>

#include "kernels/pool.h"
#include "kernels/streams.h"
#include "worker/model/families/qwen_hybrid.h"

enum { NO = CTW_NULL_REFUSED };

/* ---- the choice of keys ---- */

static struct ctw_pool_choice key_indexer(struct ctw_config *c)
{
    struct ctw_pool_choice p = {.n_head = qwen_hybrid_count(c, "indexer_n_heads", 0, 4096),
                                .head = qwen_hybrid_count(c, "indexer_head_dim", 0, CTW_MAX_HEAD),
                                .pool =
                                    qwen_hybrid_count(c, "indexer_compress_ratio", 0, CTW_MAX_POOL),
                                .chosen = ctw_key_int(c, "indexer_budget", 0, NO, 1, 1 << 30),
                                .apart = ctw_files_find(c, ".indexer.q_proj.") != NULL};
    const int64_t n_keys = ctw_key_int(c, "indexer_kv_heads", 0, NO, 1, 1 << 20);
    static const char *const needed[] = {"indexer_n_heads", "indexer_kv_heads", "indexer_head_dim",
                                         "indexer_budget", "indexer_compress_ratio"};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (!ctw_key_is_given(c, needed[i]))
            ctw_key_fail(c, needed[i], CTW_EFORMAT, "layers of attention need an indexer");
    if (n_keys != 1)
        ctw_key_fail(c, "indexer_kv_heads", CTW_EUNSUP, "found %" PRId64 ", supported: 1", n_keys);
    if (c->status == CTW_OK && p.chosen % p.pool != 0)
        ctw_key_fail(c, "indexer_budget", CTW_EFORMAT,
                     "found %" PRId64 ", expected a multiple of indexer_compress_ratio (%d)",
                     p.chosen, p.pool);
    return p;
}

/* transformers saves the layers under the name of its class, the makers' files under the older. */
static const char *full_name(const struct ctw_config *c)
{
    const struct ctw_json_node *types = ctw_json_get(c->text, "layer_types");
    for (const struct ctw_json_node *t = types != NULL ? ctw_json_first(types) : NULL; t != NULL;
         t = ctw_json_next(t)) {
        const char *name = ctw_json_string(t);
        if (name != NULL && strcmp(name, "indexed_attention") == 0)
            return name;
    }
    return "full_attention";
}

/* ---- n-grams ---- */

struct ngrams {
    const bool *layers; /* by number from 1 on; NULL: none */
    struct ctw_ngram g; /* without what differs between layers */
    int64_t base, multiple, seed, n_parts, end;
};

static uint64_t split_mix(uint64_t v)
{
    v += UINT64_C(0x9E3779B97F4A7C15);
    v = (v ^ v >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    v = (v ^ v >> 27) * UINT64_C(0x94D049BB133111EB);
    return v ^ v >> 31;
}

static bool is_prime(int64_t v)
{
    for (int64_t d = 2; d * d <= v; d += d == 2 ? 1 : 2)
        if (v % d == 0)
            return false;
    return v >= 2;
}

/* ple_layer_ids counts layers from 1. */
static const bool *key_layers(struct ctw_config *c, int64_t n_layers)
{
    static const char name[] = "ple_layer_ids";
    const bool *layers = ctw_key_layer_set(c, name, CTW_MAX_DECODERS + 1);
    for (int64_t i = 0; layers != NULL && i <= CTW_MAX_DECODERS; i++)
        if (layers[i] && (i < 1 || i > n_layers))
            ctw_key_fail(c, name, CTW_EFORMAT, "found %" PRId64 ", expected 1 to %" PRId64, i,
                         n_layers);
    return c->status == CTW_OK ? layers : NULL;
}

/* The first token of eos_token_id, which may be a list. */
static int64_t key_end(struct ctw_config *c, int64_t vocab)
{
    static const char name[] = "eos_token_id";
    const struct ctw_json_node *node = ctw_json_get(c->text, name);
    int64_t end = 0;
    if (node == NULL || ctw_json_type(node) != CTW_JSON_ARRAY)
        return ctw_key_int(c, name, -1, NO, 0, vocab - 1);
    node = ctw_key_list(c, name, ctw_json_count(node));
    if (c->status == CTW_OK && node == NULL)
        ctw_key_fail(c, name, CTW_EFORMAT, "expected a token, which ends n-grams");
    if (c->status == CTW_OK)
        c->status = ctw_json_as_int(node, 0, vocab - 1, &end, &c->err);
    return end;
}

static struct ngrams key_ngrams(struct ctw_config *c, const struct ctw_sizes *s)
{
    struct ngrams n = {
        .layers = key_layers(c, s->n_layers),
        .base = ctw_key_int(c, "ngram_vocab_size_base", 20000000, NO, 2, 1 << 30),
        .multiple = ctw_key_int(c, "make_ngram_vocab_size_divisible_by", 128, NO, 1, 1 << 30),
        .seed = ctw_key_int(c, "seed", 1234, NO, INT64_MIN / 2, INT64_MAX / 2),
        .n_parts = ctw_key_int(c, "split_ngram_parts", 512, NO, 1, 1 << 16)};
    n.g.longest = (int)ctw_key_int(c, "ngram_size", 3, NO, 2, CTW_MAX_NGRAM);
    n.g.each = (int)ctw_key_int(c, "heads_per_ngram", 8, NO, 1, CTW_MAX_NGRAM_HEADS);
    n.g.taps = qwen_hybrid_count(c, "ple_conv_kernel_size", 4, CTW_MAX_TAPS);
    const int64_t columns = ctw_key_int(c, "ple_embed_dim", s->hidden, s->hidden, 1, CTW_MAX_DIM);
    const int heads = ctw_ngram_heads(&n.g);
    if (heads > CTW_MAX_NGRAM_HEADS)
        ctw_key_fail(c, "heads_per_ngram", CTW_EUNSUP, "%d heads of n-grams; supported: up to %d",
                     heads, CTW_MAX_NGRAM_HEADS);
    if (columns % heads != 0)
        ctw_key_fail(c, "ple_embed_dim", CTW_EFORMAT,
                     "found %" PRId64 ", expected a multiple of the %d heads of n-grams", columns,
                     heads);
    n.g.dim = columns / heads;
    bool any = false;
    for (int64_t i = 0; n.layers != NULL && i < s->n_layers; i++)
        any |= n.layers[i + 1];
    if (!any)
        n.layers = NULL;
    else if (!ctw_key_is_given(c, "eos_token_id"))
        ctw_key_fail(c, "eos_token_id", CTW_EFORMAT, "n-grams need the token that ends them");
    else
        n.end = key_end(c, s->vocab);
    return n;
}

/* Tables and multipliers of the order-th layer with n-grams; *prime: the last size so far. */
static struct ctw_ngram ngram_of(const struct ngrams *n, int64_t order, int64_t vocab,
                                 int64_t *prime)
{
    struct ctw_ngram g = n->g;
    int64_t rows = 0;
    const int64_t half = INT64_MAX / vocab / 2, most = half > 1 ? half : 1;
    for (int h = 0; h < ctw_ngram_heads(&g); h++) {
        do
            ++*prime;
        while (!is_prime(*prime));
        g.size[h] = *prime;
        g.first[h] = rows;
        rows += *prime;
    }
    for (int i = 0; i < g.longest; i++) {
        const uint64_t seed = (uint64_t)n->seed + UINT64_C(10007) * (uint64_t)order +
                              UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)(i + 1);
        g.multiplier[i] = 2 * (split_mix(seed) % (uint64_t)most) + 1;
    }
    g.n_rows = (rows + n->multiple - 1) / n->multiple * n->multiple;
    return g;
}

/* transformers reads these numbers from the files, which must therefore be those of the rule. */
static void check_numbers(struct ctw_config *c, int64_t i, const char *buffer,
                          const int64_t *expected, int n)
{
    char name[128];
    (void)snprintf(name, sizeof(name), "layers.%" PRId64 ".ple.ple_embedding.%s", i, buffer);
    const struct ctw_tensor *t = c->files != NULL ? ctw_files_find(c, name) : NULL;
    if (t == NULL || c->status != CTW_OK || ctw_container_is_headers_alone(c->files))
        return;
    bool equal = t->dtype == CTW_I64 && t->n_dims == 1 && t->shape[0] == n;
    if (equal)
        equal =
            memcmp(ctw_container_data(c->files, t), expected, (size_t)n * sizeof(*expected)) == 0;
    if (!equal)
        ctw_key_fail(c, "seed", CTW_EUNSUP,
                     "the numbers in %s do not follow from this key, vocab_size and the keys of "
                     "n-grams, which is not supported",
                     t->name);
}

static void describe_ngrams(struct ctw_config *c, const struct ngrams *n, const struct ctw_sizes *s,
                            const bool *linear, const struct ctw_norm_form *norm)
{
    static const char *const buffers[] = {".ple.ple_embedding.layer_multipliers",
                                          ".ple.ple_embedding.ngram_heads_vocab_sizes",
                                          ".ple.ple_embedding.ngram_heads_offsets", NULL};
    int64_t order = 0, prime = n->base - 1;
    if (n->layers == NULL || c->status != CTW_OK)
        return;
    ctw_describe_buffers(c, buffers);
    c->model->ngram_before = n->g.longest - 1;
    c->model->ngram_end = (int32_t)n->end;
    for (int64_t i = 0; i < s->n_layers && c->status == CTW_OK; i++) {
        if (!n->layers[i + 1])
            continue;
        if (!linear[i])
            ctw_key_fail(c, "ple_layer_ids", CTW_EUNSUP,
                         "layer %" PRId64 " is no layer of linear_attention", i + 1);
        const struct ctw_ngram g = ngram_of(n, order++, s->vocab, &prime);
        ctw_describe_ngram(c, i, &g, norm, n->n_parts);
        check_numbers(c, i, "layer_multipliers", (const int64_t *)g.multiplier, g.longest);
        check_numbers(c, i, "ngram_heads_vocab_sizes", g.size, ctw_ngram_heads(&g));
        check_numbers(c, i, "ngram_heads_offsets", g.first, ctw_ngram_heads(&g));
    }
}

/* ---- the model ---- */

static struct ctw_attention_rules attention_of(struct ctw_config *c, const struct qwen_hybrid *k,
                                               const struct ctw_qk_norms *norms)
{
    const struct ctw_attention_rules a = {
        .head = k->head,
        .rope =
            ctw_describe_rope(c, &(struct ctw_rope_rules){.head = k->head,
                                                          .theta = 10000.0,
                                                          .partial_key = "partial_rotary_factor",
                                                          .partial = 0.25}),
        .qkv_bias = k->bias,
        .o_bias = k->bias,
        .norms = norms,
        .gate = CTW_GATE_SIGMOID,
        .gate_in_q = true,
        .pools = key_indexer(c)};
    if (c->status == CTW_OK && a.pools.head < c->model->rope[a.rope].rot_dim)
        ctw_key_fail(c, "indexer_head_dim", CTW_EFORMAT,
                     "found %d, expected at least the %d elements that RoPE rotates", a.pools.head,
                     c->model->rope[a.rope].rot_dim);
    return a;
}

static void describe(struct ctw_config *c)
{
    const struct qwen_hybrid k = qwen_hybrid_keys(c,
                                                  &(struct ctw_sizes){.vocab = 248320,
                                                                      .hidden = 2048,
                                                                      .n_layers = 40,
                                                                      .n_head = 16,
                                                                      .n_kv = 2,
                                                                      .max_length = 32768},
                                                  false, full_name(c));
    const struct ctw_qk_norms qk_norms = {.form = k.norm};
    bool linear[CTW_MAX_DECODERS];
    struct ctw_mlp shared;
    struct ctw_experts experts = qwen_hybrid_experts(c, &shared, 512, 10);
    experts.stacked = experts.fused = true;
    experts.router.normalised = ctw_key_bool(c, "norm_topk_prob", true);
    if (experts.n == 0)
        ctw_key_fail(c, "num_experts", CTW_EFORMAT, "found 0, expected at least 1");
    const struct ctw_gated_streams streams = {
        .n = (int)ctw_key_int(c, "hc_count", 4, NO, 2, CTW_MAX_STREAMS),
        .rank = ctw_key_int(c, "hc_lowrank", 320, NO, 1, CTW_MAX_DIM)};
    const struct ngrams ngrams = key_ngrams(c, &k.s);
    ctw_describe_model(c, &k.s, &(struct ctw_model_rules){.final_norm = ""});
    const struct ctw_attention_rules attention = attention_of(c, &k, &qk_norms);
    ctw_describe_gated_streams(c, &streams);
    ctw_describe_gates(c, k.s.n_layers, 0, &k.norm, "model.hyper_connection_mixer");
    for (int64_t i = 0; i < k.s.n_layers && c->status == CTW_OK; i++) {
        linear[i] = k.linear != NULL ? k.linear[i] : (i + 1) % k.interval != 0;
        ctw_describe_gates(c, i, CTW_MIXER, &k.norm, "attn_hyper_connection");
        ctw_describe_gates(c, i, CTW_MLP, &k.norm, "mlp_hyper_connection");
        if (linear[i])
            ctw_describe_delta_rule(c, i, &k.delta, &k.heads_norm);
        else
            ctw_describe_attention(c, i, &attention);
        ctw_describe_experts(c, i, &experts);
    }
    describe_ngrams(c, &ngrams, &k.s, linear, &k.norm);
}

const struct ctw_family ctw_family_qwen4_exp_text = {.model_type = "qwen4_exp_text",
                                                     .architecture = "Qwen4ExpForCausalLM",
                                                     .old_architecture =
                                                         "Qwen4ExpForConditionalGeneration",
                                                     .spellings = ctw_wrapped_spellings,
                                                     .describe = describe};

const struct ctw_family ctw_family_qwen4_exp = {.model_type = "qwen4_exp",
                                                .architecture = "Qwen4ExpForConditionalGeneration",
                                                .wrapper = &(const struct ctw_wrapper){0},
                                                .spellings = ctw_wrapped_spellings,
                                                .describe = describe};
