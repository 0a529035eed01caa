/* The choice of blocks of keys for block-sparse attention. kernels/operations.h has the other
 * operations, and the rules for all. */
#ifndef CTW_KERNELS_BLOCKS_H
#define CTW_KERNELS_BLOCKS_H

#include "kernels/operations.h"

/*
 * Which blocks of keys each head of a query sees. Block b is the keys at positions b * block ..
 * (b + 1) * block - 1 of the sequence. A block's score for head h of the query at position i is
 *     the largest q[i, h] . k[j] over its keys j <= i,
 * a sum in double that is rounded to fp32. The query's own block and the local - 1 blocks before
 * have a score of +infinity. The query sees the `chosen` best blocks, all if there are no more;
 * among equal scores the first blocks. A product that is not a number is below all others. Of
 * 16-bit heads, a backend may add in fp32: then blocks whose scores differ by less than that rounds
 * may change places. Sequences as for attention. Head h's bits are in the words from h * seen_head
 * on of the query's row; up to the query's own key they are written, and the rest of the last word
 * is cleared.
 */
struct ctw_op_blocks {
    enum ctw_dtype dtype;
    int n_head, head;
    int64_t block;                   /* keys */
    int64_t chosen, local;           /* blocks; local is at most chosen */
    const void *q;                   /* device [rows, n_head * head] */
    const void *k;                   /* device [rows, head] */
    const struct ctw_attn_seq *seqs; /* host */
    int64_t n_seqs;
    float *scores; /* device [rows of q, n_head * ld_scores], for intermediate results */
    int64_t ld_scores;
    uint32_t *seen; /* device [rows of q, ld_seen] */
    int64_t ld_seen, seen_head;
};

/* Blocks of a sequence's first n_keys keys. */
CTW_HD int64_t ctw_blocks_of(int64_t n_keys, int64_t block)
{
    return (n_keys + block - 1) / block;
}

/* Is block b always seen by a query in block `own`? */
CTW_HD bool ctw_block_is_local(const struct ctw_op_blocks *op, int64_t b, int64_t own)
{
    return b <= own && own - b < op->local;
}

#endif
