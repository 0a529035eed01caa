/* RoPE of the last elements of heads. operations.h has the rules for all operations. */
#ifndef CTW_KERNELS_TURN_H
#define CTW_KERNELS_TURN_H

#include "kernels/operations.h"

/*
 * Rotates the last `turning` elements of each head, in place, as ctw_op_qkv rotates the first ones;
 * with `back`, by the negative angles. In fp32, rounded once.
 */
struct ctw_op_turn {
    enum ctw_dtype dtype;
    int64_t n_tok;
    int n_head, head, turning; /* turning: even, at most head */
    bool back;
    enum ctw_rope_pairing pairing;
    const int32_t *positions; /* device [n_tok] */
    const float *cos_sin;     /* device [max position + 1, turning] */
    void *x;                  /* device [n_tok, ldx] */
    int64_t ldx;
};

/* The elements of pair i in the part that turns. */
CTW_HD void ctw_turn_pair(enum ctw_rope_pairing pairing, int turning, int i, int *first,
                          int *second)
{
    bool halves = pairing == CTW_ROPE_HALVES;
    *first = halves ? i : 2 * i;
    *second = halves ? i + turning / 2 : 2 * i + 1;
}

#endif
