/* Shared by families whose latent attention has an indexer: its keys, and which layers have one. */
#ifndef CTW_WORKER_INDEXER_KEYS_H
#define CTW_WORKER_INDEXER_KEYS_H

#include <string.h>

#include "worker/model/families/latent_keys.h"

/* In transformers' order: a list, a pattern of F and S, or every freq-th layer from an offset on.
 */
static inline bool indexer_is_own(int64_t i, const bool *types, const char *pattern, int64_t freq,
                                  int64_t offset)
{
    if (types != NULL)
        return types[i];
    if (pattern != NULL)
        return pattern[i] == 'F';
    return (i - offset + 1 > 0 ? i - offset + 1 : 0) % freq == 0;
}

/* Which layers have an indexer of their own, and do not use the choice of a layer before; `freq`:
 * the default of index_topk_freq, which is read with `by_pattern` alone. */
static inline void indexer_layers(struct ctw_config *c, int64_t n_layers, bool by_pattern,
                                  int64_t freq, bool own[CTW_MAX_DECODERS])
{
    const bool *types = ctw_key_layers_called(c, "indexer_types", n_layers, "full", "shared");
    const char *pattern = NULL;
    int64_t offset = 2;
    if (by_pattern) {
        pattern = ctw_key_string(c, "index_topk_pattern", NULL);
        freq = ctw_key_int(c, "index_topk_freq", freq, CTW_NULL_REFUSED, 0, 1 << 20);
        offset = ctw_key_int(c, "index_skip_topk_offset", offset, CTW_NULL_REFUSED, 0, 1 << 20);
    }
    if (pattern != NULL &&
        ((int64_t)strlen(pattern) < n_layers || strspn(pattern, "FS") != strlen(pattern)))
        ctw_key_fail(c, "index_topk_pattern", CTW_EFORMAT,
                     "found \"%s\", expected a letter F or S for each of %lld layers", pattern,
                     (long long)n_layers);
    for (int64_t i = 0; i < n_layers && c->status == CTW_OK; i++)
        own[i] = indexer_is_own(i, types, pattern, freq < 1 ? 1 : freq, offset);
}

/* The first layer that chooses keys must have an indexer; `others` do not choose; NULL: all do. */
static inline void indexer_check_layers(struct ctw_config *c, int64_t n_layers, const bool *others,
                                        const bool own[CTW_MAX_DECODERS])
{
    int64_t first = 0;
    while (others != NULL && first < n_layers - 1 && others[first])
        first++;
    if (c->status == CTW_OK && !own[first] && (others == NULL || !others[first]))
        ctw_key_fail(c, "indexer_types", CTW_EFORMAT,
                     "layer %lld shares the choice of a layer before it; expected \"full\"",
                     (long long)first);
}

static inline struct ctw_indexer indexer_keys(struct ctw_config *c, int64_t heads,
                                              const struct ctw_latent_attention *a)
{
    struct ctw_indexer x = {
        .chosen = ctw_key_int(c, "index_topk", 2048, CTW_NULL_REFUSED, 1, 1 << 30),
        .n_head = (int)ctw_key_int(c, "index_n_heads", heads, CTW_NULL_REFUSED, 1, 4096),
        .head = (int)ctw_key_int(c, "index_head_dim", 128, CTW_NULL_REFUSED, 1, CTW_MAX_HEAD)};
    if (a->q_rank == 0)
        ctw_key_fail(c, "q_lora_rank", CTW_EUNSUP, "an indexer needs the queries' latent");
    if (x.head < a->rope)
        ctw_key_fail(c, "index_head_dim", CTW_EFORMAT,
                     "found %d, expected at least qk_rope_head_dim (%lld)", x.head,
                     (long long)a->rope);
    return x;
}

#endif
