/*
 * The choice of blocks of keys: scores of blocks, a warp for each query and head; then a thread block
 * for each query and head finds the least score that is chosen, bit by bit, and writes the words.
 * fp32 heads are added in double, in the order of the definition (kernels/cpu/c_blocks.c), 16-bit heads
 * in fp32. A query's choice depends on its own scores alone.
 */
#include "kernels/blocks.h"
#include "kernels/cuda/attention/attention.cuh"

enum {
    THREADS = 128,
    WARPS = THREADS / 32,
    QUERIES = 32, /* of a tile */
    KEYS = 32,    /* of a key tile, which only the list of runs needs */
    LANES = 8     /* partial sums of a product */
};

static const unsigned ALL = 0xFFFFFFFFu;

/* The product of two heads, of which fp32's are exact in double. */
template <typename Sum, typename T> ATTN_DEV float product(const T *q, const T *k, int head)
{
    Sum sum[LANES] = {};
    for (int d = 0; d < head; d += LANES)
#pragma unroll
        for (int l = 0; l < LANES; l++)
            if (d + l < head)
                sum[l] = fma((Sum)ctw_cuda_widen(q[d + l]), (Sum)ctw_cuda_widen(k[d + l]), sum[l]);
    return (float)(((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7])));
}

/* A tile's queries and block blockIdx.x. Lanes share the block's keys. */
template <typename Sum, typename T>
__global__ void __launch_bounds__(THREADS) score_blocks(const __grid_constant__ struct ctw_attn a,
                                                        const __grid_constant__ struct ctw_op_blocks op,
                                                        int first_tile)
{
    const struct ctw_attn_tile t = a.tiles[first_tile + blockIdx.y];
    const int block = (int)op.block, key0 = (int)blockIdx.x * block, lane = threadIdx.x % 32;
    const T *q = (const T *)op.q, *k = (const T *)op.k;
    if (key0 > t.pos + t.n_q - 1)
        return;
    struct attn_walk walk = attn_walk_begin(t);
    attn_walk_to(walk, a.runs, key0);
    for (int i = threadIdx.x / 32; i < t.n_q * op.n_head; i += WARPS) {
        const int pos = t.pos + i / op.n_head;
        const int64_t at = (int64_t)t.q_row * op.n_head + i;
        float best = -INFINITY;
        if (key0 > pos || pos / block < op.chosen)
            continue;
        if (ctw_block_is_local(&op, blockIdx.x, pos / block))
            best = INFINITY;
        else
            for (int p = key0 + lane; p < min(key0 + block, pos + 1); p += 32)
                best = fmaxf(best, product<Sum>(q + at * op.head,
                                                k + (int64_t)attn_walk_row(walk, a.runs, p) * op.head,
                                                op.head)); /* skips NaN */
        for (int by = 16; by > 0; by /= 2)
            best = fmaxf(best, __shfl_xor_sync(ALL, best, by));
        if (lane == 0)
            op.scores[at * op.ld_scores + blockIdx.x] = best;
    }
}

/* The chosen-th largest of n scores, as an ordered integer. *equal: how many equal scores are chosen. */
ATTN_DEV uint32_t least_chosen(const float *scores, int n, int chosen, int *equal)
{
    uint32_t least = 0;
    for (int bit = 31; bit >= 0; bit--) {
        const uint32_t more = least | 1u << bit;
        int count = 0;
        for (int at = 0; at < n; at += THREADS) {
            int b = at + threadIdx.x;
            count += __syncthreads_count(b < n && ctw_cuda_ordered(scores[b]) >= more);
        }
        least = count >= chosen ? more : least;
    }
    int larger = 0;
    for (int at = 0; at < n; at += THREADS) {
        int b = at + threadIdx.x;
        larger += __syncthreads_count(b < n && ctw_cuda_ordered(scores[b]) > least);
    }
    *equal = chosen - larger;
    return least;
}

/* Is block b among the chosen? Of equal scores, the first are. */
ATTN_DEV bool is_chosen(const float *scores, int b, uint32_t least, int equal)
{
    const uint32_t own = ctw_cuda_ordered(scores[b]);
    if (own != least)
        return own > least;
    for (int i = 0; i < b && equal > 0; i++)
        equal -= ctw_cuda_ordered(scores[i]) == least;
    return equal > 0;
}

/* Row blockIdx.x / n_head of a tile, head blockIdx.x % n_head. */
static __global__ void __launch_bounds__(THREADS) choose_blocks(const __grid_constant__ struct ctw_attn a,
                                                         const __grid_constant__ struct ctw_op_blocks op,
                                                         int first_tile)
{
    const struct ctw_attn_tile t = a.tiles[first_tile + blockIdx.y];
    const int row = (int)blockIdx.x / op.n_head, h = (int)blockIdx.x % op.n_head;
    const int pos = t.pos + row, block = (int)op.block, n = pos / block + 1, n_keys = pos + 1;
    if (row >= t.n_q)
        return;
    const float *scores = op.scores + ((int64_t)(t.q_row + row) * op.n_head + h) * op.ld_scores;
    uint32_t *seen = op.seen + (int64_t)(t.q_row + row) * op.ld_seen + h * op.seen_head;
    const bool all = n <= op.chosen;
    int equal = 0;
    const uint32_t least = all ? 0 : least_chosen(scores, n, (int)op.chosen, &equal);
    for (int w = threadIdx.x; w < (n_keys + 31) / 32; w += THREADS) {
        uint32_t word = 0;
        int last = -1;
        bool sees = all;
        for (int p = 32 * w; p < min(32 * w + 32, n_keys); p++) {
            if (!all && p / block != last) {
                last = p / block;
                sees = is_chosen(scores, last, least, equal);
            }
            word |= (uint32_t)sees << p % 32;
        }
        seen[w] = word;
    }
}

static enum ctw_status launch(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    enum { MOST = 65535 }; /* of a grid's second dimension */
    const struct ctw_op_blocks op = *(const struct ctw_op_blocks *)a->of;
    int64_t longest = 0;
    for (int64_t i = 0; i < op.n_seqs; i++) {
        int64_t n = op.seqs[i].pos0 + op.seqs[i].n_q;
        longest = n > longest ? n : longest;
    }
    const unsigned n_blocks = (unsigned)ctw_blocks_of(longest, op.block);
    enum ctw_status st = CTW_OK;
    for (int first = 0; st == CTW_OK && first < a->n_tiles; first += MOST) {
        const unsigned tiles = (unsigned)(a->n_tiles - first < MOST ? a->n_tiles - first : (int)MOST);
        const dim3 scores(n_blocks, tiles), choices((unsigned)(QUERIES * op.n_head), tiles);
        if (op.dtype == CTW_F32)
            score_blocks<double, float><<<scores, THREADS, 0, cu->stream>>>(*a, op, first);
        else if (op.dtype == CTW_BF16)
            score_blocks<float, __nv_bfloat16><<<scores, THREADS, 0, cu->stream>>>(*a, op, first);
        else
            score_blocks<float, __half><<<scores, THREADS, 0, cu->stream>>>(*a, op, first);
        choose_blocks<<<choices, THREADS, 0, cu->stream>>>(*a, op, first);
        st = ctw_cuda_launched("the choice of blocks", err);
    }
    return st;
}

enum ctw_status ctw_cuda_blocks(struct ctw_cuda *cu, const struct ctw_op_blocks *op, struct ctw_err *err)
{
    const struct ctw_op_attention tiles =
        ctw_attn_tokens(op->dtype, op->head, op->q, op->k, op->seqs, op->n_seqs);
    return ctw_attn_each_of(cu, &tiles, op, QUERIES, KEYS, launch, err);
}
