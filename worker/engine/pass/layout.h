/*
 * The layout of a pass: which tokens go through a layer together, where attention finds their keys
 * and values, and which rows are scored. The layout is computed once, before the first layer, and
 * holds for every layer. It depends on the sequences and on the plan, never on the model's widths.
 *
 * The sequences are packed one after another, without padding. A token's index in the pass is its
 * row in the residual stream. A sequence that shares the beginning of the sequence before it
 * (trie.h) adds only its other tokens: the sequence's tokens are then several spans of the pass.
 *
 * The carry lies in rows (carry.h). In a carry for the pass, a token's row is the token's index. A
 * carry for a layer has blocks of chunk_tokens rows. A chunk takes a block whose rows no later
 * token reads, if possible the block behind the previous chunk's. Rows therefore never move, every
 * chunk but the last is full, and a span's rows are one run or a few.
 *
 * A state is kept after a token if the sequence goes on in the next chunk, or if a later sequence
 * begins with the tokens up to this one. Such tokens cut the rows of a chunk into parts. Parts that
 * do not wait for one another's states go through a recurrence in one operation: a round.
 *
 * The trunk (trie.h) lies behind the pass's own rows and states: it is copied there before a
 * layer's first chunk. What the pass leaves as the next trunk is copied away chunk by chunk.
 */
#ifndef CTW_WORKER_LAYOUT_H
#define CTW_WORKER_LAYOUT_H

#include "kernels/recurrent.h"
#include "worker/engine/engine.h"
#include "worker/engine/pass/plan.h"
#include "worker/engine/pass/trie.h"

/* The number of tokens of a sequence that the model reads: all but the last target. */
static inline int64_t ctw_seq_inputs(const struct ctw_seq *seq)
{
    return seq->n_tok - 1;
}

/* Parts of a chunk that go through a recurrence in one operation; q_row counts from the chunk's
 * first token. States are the plan's, then the state of the trunk that the pass reads, then the
 * state that the pass leaves for the next trunk. */
struct ctw_round {
    const struct ctw_seq_part *parts;
    int64_t n_parts;
};

/* Tokens tok0 .. tok0+n_tok-1 of the pass. */
struct ctw_chunk {
    int64_t tok0, n_tok;
    int64_t row0;                                 /* of the rows for a layer, the first token's */
    int64_t n_seqs;                               /* sequences that add tokens in this chunk: */
    const struct ctw_attn_seq *seqs[CTW_N_LIVES]; /* by the life of the rows that their runs name;
                                                     q_row counts from tok0 */
    const struct ctw_round *rounds;
    int64_t n_rounds;
    int64_t of_trunk; /* tokens of the trunk that are copied before this chunk */
    /* The next trunk's path, of which the chunk's part is copied away after the chunk; the state,
     * too, if the path ends in the chunk. */
    const struct ctw_path_span *leaves;
    int n_leaves;
};

/* The part of a span that lies in the chunk; n_tok <= 0: none. */
static inline struct ctw_path_span ctw_span_in_chunk(const struct ctw_path_span *s,
                                                     const struct ctw_chunk *chunk)
{
    int64_t from = s->tok0 > chunk->tok0 ? s->tok0 : chunk->tok0;
    int64_t end = s->tok0 + s->n_tok, chunk_end = chunk->tok0 + chunk->n_tok;
    return (struct ctw_path_span){from, s->pos0 + from - s->tok0,
                                  (end < chunk_end ? end : chunk_end) - from};
}

/* Does the next trunk's path end in the chunk? */
static inline bool ctw_chunk_ends_trunk(const struct ctw_chunk *chunk)
{
    const struct ctw_path_span *s = &chunk->leaves[chunk->n_leaves - 1];
    int64_t end = s->tok0 + s->n_tok;
    return end > chunk->tok0 && end <= chunk->tok0 + chunk->n_tok;
}

/* How the sequences of a pass share. */
struct ctw_sharing {
    bool shares;                   /* false: each is computed whole */
    bool own_rows;                 /* see struct ctw_path */
    const struct ctw_trunk *trunk; /* NULL: the pass reads no trunk */
    const struct ctw_seq *next;    /* the next pass's first sequence, for which a trunk may be left;
                                      NULL: not known. Its tokens are read */
};

struct ctw_layout {
    int64_t n_seqs, n_tok, n_targets, n_rows, n_chunks;
    int64_t n_asked;             /* inputs of all sequences; n_tok of them are computed */
    int64_t *start;              /* [n_seqs + 1]: the first token that each sequence adds */
    struct ctw_path_span *spans; /* of all sequences: */
    int64_t *span_start;         /* [n_seqs + 1]: where each sequence's begin */
    int64_t *target_index;       /* of all sequences' targets: indices of `targets` */
    int64_t n_of_trunk;          /* tokens that the pass reads of the trunk */
    int64_t n_left, left_seq;    /* the next trunk: the first n_left tokens of sequence left_seq;
                                    0: the trunk stays */
    struct ctw_chunk *chunks;    /* [n_chunks] */
    /* [n_tok] */
    int32_t *tokens;
    int32_t *positions; /* within the sequence */
    int32_t *rope_rows; /* the rows of the RoPE tables, or NULL: equal to positions */
    int64_t *rows;    /* [n_rows]: the scored positions, indices in the pass */
    int32_t *targets; /* [n_targets] */
    /* [n_rows + 1]: where each row's targets begin; NULL: row i has target i alone */
    int32_t *first_target;
    /* what the chunks point to */
    struct ctw_attn_seq *seqs[CTW_N_LIVES];
    struct ctw_kv_run *runs[CTW_N_LIVES];
    struct ctw_seq_part *parts;
    struct ctw_round *rounds;
    struct ctw_path_span *left; /* the next trunk's path, behind what the trunk has of it */
    int n_left_spans;
};

/* The row of a target. */
static inline int64_t ctw_layout_row(const struct ctw_layout *l, int64_t target)
{
    int64_t low = 0, high = l->n_rows;
    if (l->first_target == NULL)
        return target;
    while (high - low > 1) {
        int64_t mid = (low + high) / 2;
        if (l->first_target[mid] <= target)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* Rows of whole chunks, enough for a sequence of `longest` tokens wherever it begins. */
static inline int64_t ctw_layout_ring(int64_t longest, int64_t chunk_tokens)
{
    return (longest - 1 + 2 * chunk_tokens - 1) / chunk_tokens * chunk_tokens;
}

/* The rows for a layer of a pass of n_tok tokens. Spare chunks let more sequences share. */
static inline int64_t ctw_layout_carry_rows(int64_t longest, int64_t chunk_tokens,
                                            int64_t spare_chunks, int64_t n_tok)
{
    int64_t ring = ctw_layout_ring(longest, chunk_tokens) + spare_chunks * chunk_tokens;
    return ring < n_tok ? ring : n_tok;
}

/*
 * Uses plan's tokens, rows, states, trunk and `longest`. long_from > 0: sequences of more than
 * long_from inputs use rows plan->longest + position of the RoPE tables; 0: there are no such rows.
 * CTW_ENOMEM.
 */
enum ctw_status ctw_layout_make(struct ctw_layout *out, const struct ctw_seq *seqs, int64_t n_seqs,
                                const struct ctw_plan *plan, int64_t long_from,
                                const struct ctw_sharing *sharing,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_layout_free(struct ctw_layout *l); /* {0} is fine */

/* ---- between layout.c and rounds.c ---- */

/* Fills in the chunks' rounds; `states` as in the plan. False: out of memory. */
bool ctw_layout_rounds(struct ctw_layout *l, int64_t states);

#endif
