/*
 * Features of n-grams (Qwen 4): rows of a table too large for memory, found by hashes of a token
 * and the tokens before it, of which every residual stream gets a part. The branch comes before the
 * layer's others:
 *     e = the rows, one behind another;  y = gates(key(e), streams) * value(e)
 * (kernels/ngram_gate.h) streams += y + silu(conv(norm(y)))
 */
#ifndef CTW_WORKER_RECIPE_NGRAM_H
#define CTW_WORKER_RECIPE_NGRAM_H

#include "worker/model/recipe/parts.h"

enum { CTW_M_NGRAM_KEY, CTW_M_NGRAM_VALUE };
enum { CTW_P_NGRAM_KV /* key | value */ };
enum {
    CTW_AT_NGRAM_CONV = CTW_AT_OWN,
    CTW_AT_NGRAM_KEY,
    CTW_AT_NGRAM_X /* each stream by itself */
};
enum { CTW_V_NGRAM_CONV = CTW_V_OWN /* [n streams * hidden, taps] */ };

enum { CTW_MAX_NGRAM = 8, CTW_MAX_NGRAM_HEADS = 32 };

/* Head h of n-grams of n tokens, n = 2 .. longest, has a table of its own, in rows first[h] .. of
 * the layer's. Heads of 2-grams come first, `each` of every n. */
struct ctw_ngram {
    int longest, each;
    int64_t dim; /* of a row */
    uint64_t multiplier[CTW_MAX_NGRAM];
    int64_t size[CTW_MAX_NGRAM_HEADS], first[CTW_MAX_NGRAM_HEADS];
    int64_t n_rows; /* of the layer's table */
    int taps;
};

static inline int ctw_ngram_heads(const struct ctw_ngram *g)
{
    return (g->longest - 1) * g->each;
}

/* Elements of e. */
static inline int64_t ctw_ngram_columns(const struct ctw_ngram *g)
{
    return ctw_ngram_heads(g) * g->dim;
}

struct ctw_config;
struct ctw_norm_form;

/* Decoder layer i's, with Qwen 4's names; the table's rows are n_parts tensors, one behind another.
 * `norm` is the form of its norms. After ctw_describe_gated_streams(). */
void ctw_describe_ngram(struct ctw_config *c, int64_t i, const struct ctw_ngram *g,
                        const struct ctw_norm_form *norm, int64_t n_parts);

#endif
