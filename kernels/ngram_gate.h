/* Features of n-grams for several residual streams. kernels/operations.h has the rules for all
 * operations. */
#ifndef CTW_KERNELS_NGRAM_GATE_H
#define CTW_KERNELS_NGRAM_GATE_H

#include "kernels/streams.h"

/*
 * For each token and stream s, with norm(v, w) = v / sqrt(mean(v^2) + eps) * (w + offset):
 *     g = (sum over i of norm(key[s], key_norm[s])[i] * norm(x[s], x_norm[s])[i]) / sqrt(dim)
 *     y[s] = sigmoid(sign(g) * sqrt(max(|g|, 1e-6))) * value
 * In fp32 or better, rounded once. sign(0) = 0.
 */
struct ctw_op_ngram_gate {
    enum ctw_dtype dtype;
    int64_t n_tok, dim;
    int n;                                      /* streams, 1..CTW_MAX_STREAMS */
    const float *x;                             /* device [n_tok, n * dim] */
    const void *key;                            /* device [n_tok, ld], n * dim of each row */
    const void *value;                          /* device [n_tok, ld], dim of each row */
    int64_t ld;                                 /* n * dim or more */
    struct ctw_stream_weights key_norm, x_norm; /* device [n, dim] */
    float offset, eps;
    void *y;      /* device [n_tok, n * dim], does not overlap key or value */
    int16_t *bad; /* as in ctw_op_norm, of rows of x, of all streams; NULL: none */
    int16_t stamp;
};

#endif
