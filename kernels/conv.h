/* Short convolutions over a sequence's tokens. operations.h has the rules for all operations. */
#ifndef CTW_KERNELS_CONV_H
#define CTW_KERNELS_CONV_H

#include "kernels/recurrent.h"

enum { CTW_MAX_TAPS = 8 };

enum ctw_conv_form {
    CTW_CONV_GATED, /* x's row is [b | c | u] of 3 dim columns: input b u, y = c * conv */
    CTW_CONV_SILU,  /* x's row is the input: y = silu(conv) */
    CTW_CONV_ADD,   /* likewise: y = input + conv */
    CTW_CONV_PLAIN  /* likewise: y = conv */
};

/*
 * For column i of the token at position p of its sequence:
 *     conv[i] = bias[i] + sum over j of weight[i, j] * (input[i] of position p - behind(j)),
 *     behind(j) = (taps - 1 - j) * dilation
 * where positions before the sequence count as 0. In fp32, in the order of j; y is rounded once.
 * A state has the last behind(0) inputs, fp32 [behind(0), dim]. So results do not depend on how a
 * sequence is cut into parts and calls.
 */
struct ctw_op_conv {
    enum ctw_conv_form form;
    enum ctw_dtype dtype;
    int64_t n_tok, dim;
    int taps;         /* 1..CTW_MAX_TAPS */
    int64_t dilation; /* tokens from tap to tap; 0: 1 */
    const void *x;    /* device [n_tok, ldx] */
    int64_t ldx;
    /* Not CTW_CONV_GATED: channel i is column i / run * step + i % run of x; run 0: i */
    int64_t run, step;
    const void *weight; /* device [dim, taps] */
    const void *bias;   /* device [dim], or NULL: zeros */
    enum ctw_dtype weight_dtype, bias_dtype;
    const struct ctw_seq_part *parts;
    int64_t n_parts;
    struct ctw_states states;
    void *y; /* device [n_tok, ldy], must not overlap x */
    int64_t ldy;
};

/* Inputs before its own that an output depends on. */
CTW_HD int64_t ctw_conv_behind(const struct ctw_op_conv *op)
{
    return (op->taps - 1) * op->dilation;
}

/* Columns of x. */
static inline int64_t ctw_conv_columns(const struct ctw_op_conv *op)
{
    return op->form == CTW_CONV_GATED ? 3 * op->dim : op->dim;
}

/* The column of x that channel i reads first. */
CTW_HD int64_t ctw_conv_column(const struct ctw_op_conv *op, int64_t i)
{
    return op->run == 0 ? i : i / op->run * op->step + i % op->run;
}

#endif
