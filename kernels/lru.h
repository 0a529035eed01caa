/*
 * Real-gated linear recurrent units (RG-LRU, of Griffin) over a sequence's tokens. operations.h has
 * the rules for all operations.
 */
#ifndef CTW_KERNELS_LRU_H
#define CTW_KERNELS_LRU_H

#include "kernels/recurrent.h"

/*
 * Channel c = h * head + i of head h has a state S, one number, which begins with 0. Each token of
 * a sequence, in order, does
 *     log a = -8 sigmoid(gate[h, 1, i]) softplus(decay[c])
 *     S = a S + m sigmoid(gate[h, 0, i]) x[c], with m = sqrt(1 - a^2), but 1 for the sequence's
 *         first token
 *     y[c] = S
 * a and what is added to a S are rounded to fp32; S is fp32; y is rounded once. So results do not
 * depend on how a sequence is cut into parts and calls.
 */
struct ctw_op_lru {
    enum ctw_dtype dtype; /* of x, gates and y */
    int64_t n_tok, n_head, head;
    const void *x; /* device [n_tok, n_head * head], ldx apart */
    int64_t ldx;
    const void *gates; /* device [n_tok, n_head, 2, head], ldg apart: the input's, the decay's */
    int64_t ldg;
    const void *decay; /* device [n_head * head] */
    enum ctw_dtype decay_dtype;
    const struct ctw_seq_part *parts;
    int64_t n_parts;
    struct ctw_states states; /* fp32 [n_head * head] */
    void *y;                  /* device [n_tok, n_head * head], ldy apart; may be x if ldy is ldx */
    int64_t ldy;
};

#endif
