/*
 * Selective state spaces (Mamba 1 and 2) over a sequence's tokens. operations.h has the
 * rules for all operations.
 */
#ifndef CTW_KERNELS_SSM_H
#define CTW_KERNELS_SSM_H

#include "kernels/recurrent.h"

enum {
    CTW_MAX_STATE = 256,
    CTW_SSM_CHUNK = 64,       /* tokens that a backend may compute together */
    CTW_SSM_CHUNK_STATE = 128 /* the largest n_state with which it may */
};

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
 * A backend goes token by token, and leaves S; or, if ctw_ssm_has_chunks(), by chunks of
 * CTW_SSM_CHUNK tokens, whose borders are counted from the sequence's start, and leaves S at the
 * last border with the rows of x, b and dt since then, from which the unfinished chunk is computed
 * again. So results do not depend on how a sequence is cut into parts and calls.
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
    bool as_rates;                           /* a_log has -exp(a_log), as GGUF files store it */
    float dt_min, dt_max;                    /* dt_max may be infinity */
    const struct ctw_seq_part *parts;
    int64_t n_parts;
    struct ctw_states states; /* of ctw_ssm_bytes() */
    void *y; /* device [n_tok, n_head * head], ldy apart; may be x if ldy is ldx */
    int64_t ldy;
};

/* May a backend go by chunks? A property of the dtype and the shape. */
static inline bool ctw_ssm_has_chunks(const struct ctw_op_ssm *op)
{
    return op->dtype == CTW_BF16 && !op->own_decays && op->n_state <= CTW_SSM_CHUNK_STATE;
}

/* Where the elements of a state, as an operation leaves it, are. */
struct ctw_ssm_carry {
    float *state; /* [n_head, head, n_state] */
    char *x;      /* [CTW_SSM_CHUNK - 1, n_head * head] of the operation's dtype */
    char *b;      /* [CTW_SSM_CHUNK - 1, n_groups * n_state] */
    char *dt;     /* [CTW_SSM_CHUNK - 1, n_head] */
    char *end;
};

static inline struct ctw_ssm_carry ctw_ssm_carry(const struct ctw_op_ssm *shape, const void *p)
{
    const int64_t inner = shape->n_head * shape->head, n = shape->n_groups * shape->n_state;
    const int64_t rows = ctw_ssm_has_chunks(shape) ? CTW_SSM_CHUNK - 1 : 0, unit = 16; /* bytes */
    const int64_t row = rows * (int64_t)ctw_dtype_bytes(shape->dtype);
    struct ctw_ssm_carry c;
    c.state = (float *)(uintptr_t)p;
    c.x = (char *)(uintptr_t)p +
          (inner * shape->n_state * (int64_t)sizeof(float) + unit - 1) / unit * unit;
    c.b = c.x + (row * inner + unit - 1) / unit * unit;
    c.dt = c.b + (row * n + unit - 1) / unit * unit;
    c.end = c.dt + (row * shape->n_head + unit - 1) / unit * unit;
    return c;
}

/* The bytes of a state, at most; of `shape`, n_head, head, n_groups, n_state, dtype and own_decays
 * are read. */
static inline size_t ctw_ssm_bytes(const struct ctw_op_ssm *shape)
{
    const struct ctw_ssm_carry c = ctw_ssm_carry(shape, NULL);
    return (size_t)((uintptr_t)c.end - (uintptr_t)c.state);
}

#endif
