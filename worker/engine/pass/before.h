/* The tokens before a token, and the rows of tables that they name: the host's part of features of
 * n-grams (recipe/ngram.h). */
#ifndef CTW_WORKER_BEFORE_H
#define CTW_WORKER_BEFORE_H

#include "base/threads.h"
#include "worker/engine/pass/layout.h"

/*
 * [n_tok, 1 + ngram_before] of the pass: a token, and the tokens 1, 2, .. before it in its
 * sequence. The model's ngram_end takes the place of tokens before the sequence, and of all tokens
 * up to the last ngram_end before the token. NULL: out of memory, or the model has no tables.
 */
int32_t *ctw_tokens_before(const struct ctw_model *m, const struct ctw_layout *l,
                           const struct ctw_seq *seqs);

/* Bytes of a chunk's rows of a table, at most over all layers. */
size_t ctw_gathered_bytes(const struct ctw_model *m, int64_t chunk_tokens);

/* out [n_tok, heads * dim] of the table's dtype = the rows that `before` [n_tok, ..] names. Reads
 * them through the files' map, by the pool's threads. CTW_EIO. */
enum ctw_status ctw_gather_rows(const struct ctw_model *m, const struct ctw_table *table,
                                const struct ctw_ngram *g, const int32_t *before, int64_t n_tok,
                                struct ctw_threads *pool, char *out,
                                struct ctw_err *err) CTW_MUST_CHECK;

#endif
