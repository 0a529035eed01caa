/* Several residual streams, mixed around each branch (hyper-connections). operations.h has the
 * rules for all operations. */
#ifndef CTW_KERNELS_STREAMS_H
#define CTW_KERNELS_STREAMS_H

#include "kernels/operations.h"

enum { CTW_MAX_STREAMS = 8 };

/* Floats of one kind, in device memory. */
struct ctw_stream_weights {
    const void *at;
    enum ctw_dtype dtype;
};

/*
 * A token's n streams x, of dim numbers each, become one: y = sum over s of pre[s] x[s]. The
 * factors depend on the token: with all n dim numbers as one vector f, and m = fn f / rms(f),
 * rms(f) = sqrt(mean(f^2) + norm_eps),
 *     pre[s] = sigmoid(m[s] scale[0] + base[s]) + eps
 * and, if the operation mixes,
 *     post[s]    = post_factor sigmoid(m[n + s] scale[1] + base[n + s]) + post_eps
 *     comb[s, t] = softmax over t of (m[2 n + s n + t] scale[2] + base[2 n + s n + t]), + eps
 * where comb is then divided by its sums over s (+ eps), and n_sinkhorn - 1 times by its sums over
 * t, and over s. With n_sinkhorn 0, m has 2 n numbers, and comb is the identity. Without fn, base
 * and scale, y is the streams' mean. In fp32 or better.
 */
struct ctw_op_collapse {
    int64_t n_tok, dim;
    int n;               /* 1..CTW_MAX_STREAMS */
    const float *x;      /* device [.., n * dim] */
    const int64_t *rows; /* device [n_tok], or NULL: row t of y comes from row rows[t] of x */
    struct ctw_stream_weights fn, base, scale; /* fn: [rows of m, n * dim]; `at` NULL: the mean */
    float norm_eps, eps;
    float post_factor, post_eps; /* post_factor 0: 2 */
    int n_sinkhorn;
    float *mix;   /* device [n_tok, ctw_stream_mix(n)]: post, then comb; NULL: none */
    float *y;     /* device [n_tok, dim] */
    int16_t *bad; /* as in ctw_op_norm, of rows of x; NULL: none */
    int16_t stamp;
};

/* Joins a branch's output: x[t] = post[t] factor out + sum over s of comb[s, t] x[s]. */
struct ctw_op_expand {
    int64_t n_tok, dim;
    int n;
    const float *mix;     /* device [n_tok, ctw_stream_mix(n)], as of ctw_collapse() */
    bool apart;           /* comb is the identity, and not in mix: [n_tok, n] */
    const void *out;      /* device [n_tok, dim] */
    enum ctw_dtype dtype; /* of `out` */
    float factor;         /* 0: 1 */
    float *x;             /* device [n_tok, n * dim] */
};

static inline int64_t ctw_stream_mix(int64_t n)
{
    return n + n * n;
}

/* Rows of fn, if the operation mixes, and numbers of scale. */
CTW_HD int64_t ctw_stream_rows(int64_t n, bool mixes, int n_sinkhorn)
{
    return !mixes ? n : n_sinkhorn > 0 ? 2 * n + n * n : 2 * n;
}

CTW_HD int64_t ctw_stream_scales(bool mixes, int n_sinkhorn)
{
    return !mixes ? 1 : n_sinkhorn > 0 ? 3 : 2;
}

#endif
