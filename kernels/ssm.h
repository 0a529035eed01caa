/*
 * Selective state spaces (Mamba 1 and 2) over a sequence's tokens. operations.h has the
 * rules for all operations.
 */
#ifndef CTW_KERNELS_SSM_H
#define CTW_KERNELS_SSM_H

#include "kernels/operations.h"

enum { CTW_MAX_STATE = 256 };

/* A vector of a layer. */
struct ctw_ssm_vector {
    const void *data; /* device; NULL: zeros */
    enum ctw_dtype dtype;
};

/*
 * For each head h, which is one of n_head / n_groups heads of a group g, a state S of
 * [head, n_state] numbers, which begins with zeros. Each token of a sequence, in order, does
 *     step = min(max(softplus(dt[h] + dt_bias[h]), dt_min), dt_max)
 *     S[i, n] = exp(-exp(a_log[h]) step) S[i, n] + step x[h, i] b[g, n]
 *     y[h, i] = (sum over n of S[i, n] c[g, n] + d[h] x[h, i]) * silu(z[h, i])
 * In fp32, the sum in the order of n, y rounded once. With own_decays, a_log is [n_head, n_state],
 * and S[i, n] has the decay of a_log[h, n]: Mamba 1's channels are such heads of one element.
 *
 * The operation's sequences follow one another, from row 0 on; the first may have begun before, and
 * `before` has its state. `after` receives the state of the last sequence. So results do not depend
 * on how a sequence is cut into calls.
 */
struct ctw_op_ssm {
    enum ctw_dtype dtype; /* of x, b, c, dt, z and y */
    int64_t n_tok;
    int64_t n_head, head, n_groups;
    int64_t n_state; /* 1..CTW_MAX_STATE */
    bool own_decays;
    const void *x; /* device [n_tok, n_head * head], ldx apart */
    int64_t ldx;
    const void *b, *c; /* device [n_tok, n_groups * n_state], ldbc apart */
    int64_t ldbc;
    const void *dt; /* device [n_tok, n_head], lddt apart */
    int64_t lddt;
    const void *z; /* device [n_tok, n_head * head], ldz apart; NULL: no gate */
    int64_t ldz;
    struct ctw_ssm_vector a_log, dt_bias, d; /* dt_bias, d: [n_head] */
    float dt_min, dt_max;                    /* dt_max may be infinity */
    const struct ctw_attn_seq *seqs;         /* q_row, n_q and pos0 */
    int64_t n_seqs;
    const float *before; /* device [n_head, head, n_state]; NULL: the first sequence begins here */
    float *after;        /* likewise; must not overlap `before` */
    void *y;             /* device [n_tok, n_head * head], ldy apart; may be x if ldy is ldx */
    int64_t ldy;
};

#endif
