/*
 * The JSON lines of `ctworker score`: one item a line in, one result a line out.
 *
 *   {"id": any, "tokens": [..]}                             scores tokens 1 .. n-1
 *   {"id": any, "context": [..], "continuation": [..]}      scores the continuation
 *   -> {"id": any, "logprobs": [..], "sum": x, "greedy": [..], "is_greedy": bool}
 */
#ifndef CTW_WORKER_SCORE_LINES_H
#define CTW_WORKER_SCORE_LINES_H

#include <stdio.h>

#include "base/json.h"
#include "worker/engine.h"

struct ctw_score_item {
    char *id;     /* the line's "id" as JSON; NULL: it had none */
    int64_t line; /* its number in the input, from 1 */
    int32_t *tokens;
    struct ctw_seq seq; /* n_tok == first: nothing to score */
};

/*
 * Reads one line. max_length and vocab bound it. Every failure's message says which line.
 * The item is closed with ctw_score_item_fini, also after a failure.
 */
enum ctw_status ctw_score_item_read(struct ctw_score_item *item, int64_t line, const char *text,
                                    size_t bytes, int64_t max_length, int64_t vocab,
                                    struct ctw_err *err) CTW_MUST_CHECK;
void ctw_score_item_fini(struct ctw_score_item *item);

/* Writes the result line. CTW_ENUMERIC: the item's numbers are not finite; the message names the
 * line and the layer. CTW_EIO. */
enum ctw_status ctw_score_item_write(const struct ctw_score_item *item, int n_decoders, FILE *out,
                                     struct ctw_json_writer *w, struct ctw_err *err) CTW_MUST_CHECK;

#endif
