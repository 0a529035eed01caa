/* Sparse latent attention: an indexer chooses the keys that a query sees. */
#ifndef CTW_WORKER_INDEXER_H
#define CTW_WORKER_INDEXER_H

#include "worker/engine/pass/step.h"

/* Places in f->wide. */
struct ctw_index_places {
    char *latents; /* [chunk, ld]: the queries' latent, and from `column` on the indexer's key and
                      the weights of its heads */
    int64_t ld, column;
    char *queries, *other; /* [chunk, ctw_index_columns()], overwritten */
};

/* Columns of the indexer's queries. */
static inline int64_t ctw_index_columns(const struct ctw_indexer *x)
{
    return (int64_t)x->n_head * x->head;
}

/* Elements of a row of CTW_CARRY_INDEX: the token's key; with pools, the gate and the key of the
 * pool that ends with the token, too. */
static inline int64_t ctw_index_row(const struct ctw_indexer *x)
{
    return (x->pool > 0 ? 3 : 1) * (int64_t)x->head;
}

/* Words of a query's choice: a bit for each key. */
static inline int64_t ctw_choice_words(int64_t longest)
{
    return (longest + 31) / 32;
}

/* Writes the choice of the chunk's queries into CTW_CARRY_CHOICE. */
enum ctw_status ctw_choose_keys(const struct ctw_step *s, const struct ctw_index_places *p,
                                struct ctw_err *err) CTW_MUST_CHECK;

#endif
