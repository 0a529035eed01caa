/* Alternating updates of several residual streams (AltUp, 2301.13310, as in Gemma 3n).
 * kernels/operations.h has the rules for all operations. */
#ifndef CTW_KERNELS_ALTUP_H
#define CTW_KERNELS_ALTUP_H

#include "kernels/streams.h"

enum ctw_altup_form {
    CTW_ALTUP_PREDICT, /* x[s] += sum over j of c[s n + j] x[j] */
    CTW_ALTUP_CORRECT, /* x[s] += (1 + c[s]) (r - x[active]) */
    CTW_ALTUP_LEVEL    /* x[s] *= sqrt(mean(x[0]^2) / max(mean(x[s]^2), eps)), s > 0 */
};

/*
 * Changes a token's n streams x, of dim numbers each, all at once: the right sides above have the
 * streams as they were. The coefficients depend on the token:
 *     m[j] = tanh((sum over i of router[j, i] norm[i] r[i]) / (dim rms(r))),  j < n
 *     c[k] = sum over j of coefs[k, j] m[j]
 * with rms(r) = sqrt(mean(r^2) + eps), where r is the active stream, or what corrects it. In fp32
 * or better. CTW_ALTUP_LEVEL has no coefficients.
 */
struct ctw_op_altup {
    enum ctw_altup_form form;
    int64_t n_tok, dim;
    int n, active;                                 /* streams; the active one */
    float *x;                                      /* device [n_tok, n * dim] */
    const float *r;                                /* CORRECT: device [n_tok, dim] */
    struct ctw_stream_weights norm, router, coefs; /* [dim]; [n, dim]; [n * n, n] or [n, n] */
    float eps;
};

#endif
