/*
 * The layout of a pass: which tokens go through a layer together, where attention finds their keys
 * and values, and which rows are scored. It is computed once, before the first layer, and holds for
 * every layer. It depends on the sequences and on the size of a chunk, never on the model's widths.
 *
 * The sequences are packed one after another, without padding. A token's index in the pass is its
 * row in the residual stream.
 *
 * Keys and values lie in one of two ways:
 * carried: the arrays hold the keys of one chunk, after those that the chunk's first sequence left
 *     in earlier chunks. Between chunks, keys move (see struct ctw_chunk).
 * kept: the arrays hold the keys of the whole pass, and a token's row is its index in the pass.
 *     For layers whose keys other layers read, too.
 */
#ifndef CTW_WORKER_LAYOUT_H
#define CTW_WORKER_LAYOUT_H

#include "worker/engine/engine.h"
#include "worker/engine/plan.h"

/* The number of tokens of a sequence that the model reads: all but the last target. */
static inline int64_t ctw_seq_inputs(const struct ctw_seq *seq)
{
    return seq->n_tok - 1;
}

/* Tokens tok0 .. tok0+n_tok-1 of the pass. */
struct ctw_chunk {
    int64_t tok0, n_tok;
    int64_t n_seqs;                  /* sequences that have tokens in this chunk, in both of: */
    const struct ctw_attn_seq *seqs; /* with carried keys; q_row counts from tok0 */
    const struct ctw_attn_seq *kept_seqs; /* with kept keys; q_row counts from tok0 */
    /* Of carried keys: the row of the first token's key. The rows before it hold earlier keys of
     * the chunk's first sequence, of which rows moved_from .. moved_from+n_moved-1 of the previous
     * chunk's arrays must move to row 0 first. n_moved 0: all are in place. */
    int64_t kv_row;
    int64_t moved_from, n_moved;
};

struct ctw_layout {
    int64_t n_seqs, n_tok, n_rows, n_chunks;
    int64_t *start; /* [n_seqs + 1]: the first token of each sequence in the pass */
    struct ctw_chunk *chunks;
    /* [n_tok] */
    int32_t *tokens;
    int32_t *positions; /* within the sequence */
    int32_t *rope_rows; /* the rows of the RoPE tables, or NULL: equal to positions */
    /* [n_rows]: the scored positions, sequence by sequence */
    int64_t *rows; /* index in the pass */
    int32_t *targets;
    /* what the chunks point to */
    struct ctw_attn_seq *seqs, *kept_seqs;
    struct ctw_kv_run *runs, *kept_runs;
};

/*
 * Uses plan's chunk_tokens and longest. long_from > 0: sequences of more than long_from inputs use
 * rows plan->longest + position of the RoPE tables; 0: there are no such rows. CTW_ENOMEM.
 */
enum ctw_status ctw_layout_make(struct ctw_layout *out, const struct ctw_seq *seqs, int64_t n_seqs,
                                const struct ctw_plan *plan, int64_t long_from,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_layout_free(struct ctw_layout *l); /* {0} is fine */

#endif
