/*
 * The layout of a pass: which tokens go through a layer together, where attention finds their keys
 * and values, and which rows are scored. The layout is computed once, before the first layer, and
 * holds for every layer. It depends on the sequences and on the size of a chunk, never on the
 * model's widths.
 *
 * The sequences are packed one after another, without padding. A token's index in the pass is its
 * row in the residual stream.
 *
 * A sequence is a node. Its carry lies in rows (carry.h). In a carry for the pass, a token's row is
 * the token's index. In a carry for a layer, it is the index modulo the size of a ring of rows. The
 * ring is so large that a chunk's rows replace no row that a later token reads. Rows therefore
 * never move, every chunk but the last is full, and the rows of a sequence are one run, or two runs
 * if they reach the ring's end.
 */
#ifndef CTW_WORKER_LAYOUT_H
#define CTW_WORKER_LAYOUT_H

#include "worker/engine/engine.h"
#include "worker/engine/pass/plan.h"

/* The number of tokens of a sequence that the model reads: all but the last target. */
static inline int64_t ctw_seq_inputs(const struct ctw_seq *seq)
{
    return seq->n_tok - 1;
}

/* Tokens of the pass that follow those of the node `parent` in their sequence (-1: none). */
struct ctw_node {
    int parent;
    int64_t tok0, n_tok;
};

/* Tokens tok0 .. tok0+n_tok-1 of the pass. */
struct ctw_chunk {
    int64_t tok0, n_tok;
    int64_t row0;     /* of the rows for a layer, the first token's */
    int64_t state[2]; /* which of the states its first sequence reads, and its last leaves */
    bool continues;   /* its first sequence began in an earlier chunk */
    int64_t n_seqs;   /* sequences that have tokens in this chunk: */
    const struct ctw_attn_seq *seqs[CTW_N_LIVES]; /* by the life of the rows that their runs name;
                                                     q_row counts from tok0 */
};

struct ctw_layout {
    int64_t n_seqs, n_tok, n_rows, n_chunks;
    int64_t *start;         /* [n_seqs + 1]: the first token of each sequence in the pass */
    struct ctw_node *nodes; /* [n_seqs] */
    struct ctw_chunk *chunks;
    /* [n_tok] */
    int32_t *tokens;
    int32_t *positions; /* within the sequence */
    int32_t *rope_rows; /* the rows of the RoPE tables, or NULL: equal to positions */
    /* [n_rows]: the scored positions, sequence by sequence */
    int64_t *rows; /* index in the pass */
    int32_t *targets;
    /* what the chunks point to */
    struct ctw_attn_seq *seqs[CTW_N_LIVES];
    struct ctw_kv_run *runs[CTW_N_LIVES];
};

/* Rows of the ring: whole chunks, so that no chunk's rows reach the end and go on at the beginning. */
static inline int64_t ctw_layout_ring(int64_t longest, int64_t chunk_tokens)
{
    return (longest - 1 + 2 * chunk_tokens - 1) / chunk_tokens * chunk_tokens;
}

/* The rows for a layer of a pass of n_tok tokens. */
static inline int64_t ctw_layout_carry_rows(int64_t longest, int64_t chunk_tokens, int64_t n_tok)
{
    int64_t ring = ctw_layout_ring(longest, chunk_tokens);
    return ring < n_tok ? ring : n_tok;
}

/*
 * Uses plan's chunk_tokens and longest. long_from > 0: sequences of more than long_from inputs use
 * rows plan->longest + position of the RoPE tables; 0: there are no such rows. CTW_ENOMEM.
 */
enum ctw_status ctw_layout_make(struct ctw_layout *out, const struct ctw_seq *seqs, int64_t n_seqs,
                                const struct ctw_plan *plan, int64_t long_from,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_layout_free(struct ctw_layout *l); /* {0} is fine */

#endif
