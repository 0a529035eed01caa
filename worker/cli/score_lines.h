/*
 * The JSON lines of `ctworker score`: one item per input line, one result per output line.
 *
 *   {"id": any, "tokens": [..]}                             scores tokens 1 .. n-1
 *   {"id": any, "context": [..], "continuation": [..]}      scores the continuation
 *   -> {"id": any, "logprobs": [..], "sum": x, "greedy": [..], "is_greedy": bool}
 */
#ifndef CTW_WORKER_SCORE_LINES_H
#define CTW_WORKER_SCORE_LINES_H

#include "base/json.h"
#include "worker/engine/engine.h"

struct ctw_score_item {
    char *id;     /* the line's "id" as JSON; NULL: the line has none */
    int64_t line; /* line number in the input, from 1 */
    int32_t *tokens;
    struct ctw_seq seq; /* n_tok == first: nothing to score */
};

enum { CTW_SCORE_LINE_BYTES = 64 << 20 }; /* longer lines are refused */

/* Tokens that the model reads for the item: all but the last target; 0: nothing to score. */
static inline int64_t ctw_score_item_inputs(const struct ctw_score_item *item)
{
    return item->seq.first == item->seq.n_tok ? 0 : item->seq.n_tok - 1;
}

/*
 * Reads one line; max_length bounds the item's inputs, vocab its ids. Every message names the line.
 * Close the item with ctw_score_item_fini(), also after a failure.
 */
enum ctw_status ctw_score_item_read(struct ctw_score_item *item, int64_t line, const char *text,
                                    size_t bytes, int64_t max_length, int64_t vocab,
                                    struct ctw_err *err) CTW_MUST_CHECK;
void ctw_score_item_fini(struct ctw_score_item *item);

/* Appends the result line. CTW_ENUMERIC: a score is not finite; the message names the line and, if
 * known, the layer, and nothing is appended. */
enum ctw_status ctw_score_item_write(const struct ctw_score_item *item, int n_decoders,
                                     struct ctw_json_writer *w, struct ctw_err *err) CTW_MUST_CHECK;

/* Items that are scored together. */
struct ctw_score_block {
    struct ctw_score_block *next; /* for the writer */
    struct ctw_score_item *items;
    int64_t n_items, capacity;
    bool shares;                /* items share beginnings: see base/order.h */
    int64_t n_tok;              /* model inputs of all items with something to score */
    int64_t n_new;              /* of these, tokens that items do not share with the item before */
    int64_t n_held;             /* tokens of all items */
    int64_t input_bytes;        /* bytes of the input up to the end of this block */
    int64_t input_tok;          /* model inputs up to the end of this block */
    struct ctw_seq *seqs;       /* [n_seqs], of all items with something to score, in the trie's
                                   order */
    int64_t *item_of;           /* [n_seqs]: index of the sequence's item */
    bool *is_scored;            /* [n_items]: final, or nothing to score */
    int64_t n_seqs, n_scored;   /* the first n_scored items are final */
    int64_t n_final, n_written; /* for the writer: numbers of items */
    bool done;                  /* for the writer: the block can be freed once written */
};

/* Takes ownership of the item, except after a failure (CTW_ENOMEM). */
enum ctw_status ctw_score_block_add(struct ctw_score_block *b, const struct ctw_score_item *item,
                                    struct ctw_err *err) CTW_MUST_CHECK;
/* What the item adds to a block's n_new. */
int64_t ctw_score_block_new(const struct ctw_score_block *b, const struct ctw_score_item *item);
/* Fills seqs, item_of and is_scored; no item may be added afterwards. */
enum ctw_status ctw_score_block_collect(struct ctw_score_block *b,
                                        struct ctw_err *err) CTW_MUST_CHECK;
void ctw_score_block_free(struct ctw_score_block *b); /* also frees the items; NULL is a no-op */

#endif
