/* The gated delta rule, a linear recurrence over a sequence's tokens. */
#ifndef CTW_KERNELS_DELTA_H
#define CTW_KERNELS_DELTA_H

#include "kernels/recurrent.h"

enum {
    CTW_MAX_DELTA_HEAD = 256,     /* elements of a key or value head */
    CTW_MAX_DELTA_CHANNELS = 128, /* of a key head, if each has a decay of its own */
    CTW_DELTA_CHUNK = 64          /* tokens that a backend may compute together */
};

/*
 * Each value head has a matrix S of `key` rows and `value` columns, 0 before the sequence. For a
 * token and value head j, with the token's key head j / (n_value / n_key):
 *     q = q / sqrt(sum q^2 + 1e-6) / sqrt(key)         k = k / sqrt(sum k^2 + 1e-6)
 *     decay = exp(-exp(a_log[j]) softplus(a[j] + dt_bias[j]))      beta = sigmoid(b[j])
 *     S = decay S;  S = S + k (beta (v - S^T k))^T;  y = S^T q
 * beta may be twice that. by_channel: row i of S has a decay of its own, of a[j, i] and
 * dt_bias[j, i]. With least_log < 0: decay = exp(least_log sigmoid(exp(a_log[j]) (a + dt_bias))).
 * S is fp32, y is rounded once.
 *
 * A backend goes token by token, and leaves S; or by chunks of CTW_DELTA_CHUNK tokens, whose
 * borders are counted from the sequence's start, and leaves S at the last border with the rows of
 * x, b and a since then, from which the unfinished chunk is computed again. Nothing is rounded
 * because a part ends, so results do not depend on how a sequence is cut into parts and calls.
 */
struct ctw_op_delta {
    enum ctw_dtype dtype;
    int64_t n_tok;
    int n_key, n_value; /* heads; n_value is a multiple of n_key */
    int key, value;     /* elements of a head */
    const void *x;      /* device [n_tok, ldx]: all heads of q, then of k, then of v */
    int64_t ldx;
    /* device [n_tok, ldba]: b and a of value head j are in column j / r * ba_step + j % r, r =
     * n_value / n_key */
    const void *b, *a;
    int64_t ldba, ba_step;
    bool tiled;      /* value head j has key head j % n_key instead */
    bool by_channel; /* n_value = n_key, key <= CTW_MAX_DELTA_CHANNELS; a of value head j and row i
                        is in column j * key + i, dt_bias is [n_value * key] */
    bool twice;      /* beta is in 0..2 */
    float least_log; /* 0, or below */
    const void *a_log, *dt_bias; /* device [n_value] */
    bool as_rates;               /* a_log has -exp(a_log) or exp(a_log), as GGUF files store it */
    enum ctw_dtype a_log_dtype, dt_bias_dtype;
    const struct ctw_seq_part *parts;
    int64_t n_parts;
    struct ctw_states states; /* of ctw_delta_bytes() */
    void *y;                  /* device [n_tok, ldy], n_value * value columns */
    int64_t ldy;
};

/* Floats of S of each value head, and of a factor of S, which a backend may keep apart from S; in
 * whole 16 bytes. */
CTW_HD int64_t ctw_delta_floats(int64_t n_value, int64_t key, int64_t value)
{
    return (n_value * (key * value + 1) + 3) / 4 * 4;
}

/* Elements of a row of an unfinished chunk: q, k and v as in x, then b, then a; a multiple of 8. */
CTW_HD int64_t ctw_delta_row(int64_t n_key, int64_t n_value, int64_t key, int64_t value)
{
    return (2 * n_key * key + n_value * (value + 2) + 7) / 8 * 8;
}

/* A state, at most: ctw_delta_floats(), and behind them the rows of an
 * unfinished chunk. */
static inline size_t ctw_delta_bytes(int64_t n_key, int64_t n_value, int64_t key, int64_t value,
                                     enum ctw_dtype dtype)
{
    return (size_t)ctw_delta_floats(n_value, key, value) * sizeof(float) +
           (size_t)((CTW_DELTA_CHUNK - 1) * ctw_delta_row(n_key, n_value, key, value)) *
               ctw_dtype_bytes(dtype);
}

/* Elements of a head's S as a backend may lay it out, with even rows and columns in blocks. */
static inline int64_t ctw_delta_padded(int64_t key, int64_t value)
{
    return (key + 1) / 2 * 2 * ((value + 63) / 64 * 64);
}

/* The column of value head j in b and a. */
CTW_HD int64_t ctw_delta_column(const struct ctw_op_delta *op, int j)
{
    int r = op->n_value / op->n_key;
    return j / r * op->ba_step + j % r;
}

/* The key head of value head j. */
CTW_HD int ctw_delta_key_head(const struct ctw_op_delta *op, int j)
{
    return op->tiled ? j % op->n_key : j / (op->n_value / op->n_key);
}

#endif
