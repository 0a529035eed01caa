/*
 * Pooled keys: blocks of a sequence's tokens become one key each, which is its value, too, and
 * attention over them beside a window of tokens. operations.h has the rules for all operations.
 *
 * Blocks have `block` tokens, counted from the sequence's start. An array of pooled keys has a row
 * for each token, as keys of tokens have, and a block's key lies in the row of the block's last
 * token. Other rows are not read. So the runs of a sequence's tokens also find its pooled keys, and
 * a block's key does not depend on how the sequence is cut into calls.
 */
#ifndef CTW_KERNELS_POOL_H
#define CTW_KERNELS_POOL_H

#include "kernels/operations.h"

enum { CTW_MAX_POOL = 1024 }; /* tokens of a block */

/*
 * For each query's token that ends a block (the sequences' queries are the tokens of this call):
 *     v[i] = sum over the block's tokens j of softmax over j of (gate[j, i] + bias[j, i]) x[j, i]
 *     y = the RMS norm of v with its weight, or v; the last `turning` elements are rotated as in
 *         ctw_op_turn, by the position of the block's first token; with turns_first, the first ones
 * Without gate and bias, v is the mean of x.
 * With `overlaps`, rows of x, gate and bias have 2 dim columns: the softmax and the sum are over
 * the tokens of the block before, if there is one, with their first dim columns, and then over the
 * block's own with their last dim columns. In fp32 or better, rounded once.
 */
struct ctw_op_pool {
    enum ctw_dtype dtype;
    int block; /* 1..CTW_MAX_POOL */
    bool overlaps;
    int dim, turning; /* dim: 1..CTW_MAX_HEAD; turning: even, 0..dim */
    bool turns_first;
    const void *x, *gate; /* device [rows of tokens, ldx]; gate NULL: the mean */
    int64_t ldx;
    const void *bias; /* device [block, columns] */
    const void *norm; /* device [dim]; NULL: v has no norm */
    enum ctw_dtype bias_dtype, norm_dtype;
    float norm_eps, norm_offset; /* offset: added to the weight */
    enum ctw_rope_pairing pairing;
    const float *cos_sin;            /* device [max position + 1, turning]; turning 0: not read */
    const struct ctw_attn_seq *seqs; /* host; runs of rows of x and y */
    int64_t n_seqs;
    void *y; /* device [rows of tokens, ldy] */
    int64_t ldy;
};

/*
 * out = softmax(scale * q k^T) k over pooled keys and then a window's tokens, with one key head,
 * whose keys are the values; with a sink, as in ctw_op_attention. A query at position p sees the
 * last `window` tokens up to its own, and of the pooled keys those of the (p + 1) / block blocks
 * that have ended; with `seen`, of these those whose bits are set.
 */
struct ctw_op_pool_attention {
    enum ctw_dtype dtype;
    int n_head, head; /* head: up to CTW_MAX_HEAD */
    float scale;      /* positive */
    int64_t window;   /* 1 or more */
    int64_t block;
    const void *q;      /* device [rows of q, n_head * head] */
    const void *k;      /* device [rows of tokens, head] */
    const void *pooled; /* device [rows of tokens, ld_pooled] */
    int64_t ld_pooled;
    const uint32_t *seen; /* device [rows of q, ld_seen]: bit b % 32 of word b / 32 is block b's */
    int64_t ld_seen;
    int64_t seen_from; /* queries that see up to so many blocks see all of them */
    const void *sinks; /* device [n_head], or NULL */
    enum ctw_dtype sinks_dtype;
    const struct ctw_attn_seq *seqs; /* host */
    int64_t n_seqs;
    void *out; /* device [rows of q, n_head * head] */
};

#endif
