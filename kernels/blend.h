/* A weighted sum of a token's vectors, weighted by themselves. kernels/operations.h has the rules
 * for all operations. */
#ifndef CTW_KERNELS_BLEND_H
#define CTW_KERNELS_BLEND_H

#include "kernels/operations.h"

enum { CTW_MAX_BLEND = 128 }; /* vectors */

/*
 * Of the n_parts vectors x[s] of dim elements in a token's row:
 *     score[s] = (sum over i of w[i] x[s, i]) / sqrt(mean of x[s]^2 + eps),  w[i] = a[i] b[i]
 *     y = sum over s of softmax(score)[s] x[s]
 * All in fp32. Row r of y comes from row r of x.
 */
struct ctw_op_blend {
    int64_t n_tok, dim;
    int n_parts;    /* 1..CTW_MAX_BLEND, one behind another */
    const float *x; /* device [.., ldx] */
    int64_t ldx;
    const int64_t *rows; /* device [n_tok]: the rows of x and y; NULL: 0 .. n_tok - 1 */
    const void *a, *b;   /* device [dim]; b NULL: w = a */
    enum ctw_dtype a_dtype, b_dtype;
    float eps;
    float *y; /* device [.., ldy], does not overlap x */
    int64_t ldy;
};

#endif
