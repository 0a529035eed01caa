/* The choice of keys for sparse attention. kernels/operations.h has the other operations, and the
 * rules for all. */
#ifndef CTW_KERNELS_INDEXING_H
#define CTW_KERNELS_INDEXING_H

#include "kernels/operations.h"

/*
 * Which keys a query sees (sparse attention): the `chosen` best by
 *     score(i, j) = sum over heads h of weights[i, h] * max(0, q[i, h] . k[j]),
 * in double, of j <= i; among equal scores the first ones. All, if there are no more. A score that
 * is not a number is below all others. With `block`, keys are blocks of so many tokens, of which
 * the query at position p sees the (p + 1) / block that have ended, and a block's key is in the row
 * of its last token (kernels/pool.h). by_token: `seen` has the bits of tokens, those of the chosen
 * blocks, and those behind the last block that has ended. Of 16-bit heads, a backend may add in
 * fp32: then keys whose scores differ by less than that rounds may change places. Sequences as for
 * attention; writes the words of `seen` up to the query's own key, and clears the rest of the last
 * one.
 */
struct ctw_op_index {
    enum ctw_dtype dtype;
    int n_head, head;
    int64_t chosen;
    const void *q; /* device [rows, n_head * head] */
    const void *k; /* device [rows, ld_k] */
    int64_t ld_k;  /* 0: head */
    int64_t block; /* 0: 1 */
    bool by_token;
    const void *weights; /* device [rows, ld_weights]; NULL: ones */
    int64_t ld_weights;
    const struct ctw_attn_seq *seqs; /* host */
    int64_t n_seqs;
    uint32_t *seen; /* device [rows of q, ld_seen] */
    int64_t ld_seen;
};

#endif
