/* Shared by the kernels of attention over pooled keys. */
#ifndef CTW_KERNELS_CUDA_POOL_ATTENTION_CUH
#define CTW_KERNELS_CUDA_POOL_ATTENTION_CUH

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/pool.h"

enum { CTW_POOL_QUERIES = 16 }; /* of a tile */
/* Of kernels on tensor cores: elements of a head, heads of a block, keys of a tile, and blocks of
 * tokens whose choice is listed at once. */
enum { CTW_POOL_HEAD = 512, CTW_POOL_ROWS = 64, CTW_POOL_KEYS = 64, CTW_POOL_SPAN = 2048 };

static inline bool ctw_pool_fits_tiles(const struct ctw_op_pool_attention *op)
{
    return op->dtype != CTW_F32 && op->head == CTW_POOL_HEAD && op->ld_pooled % 8 == 0 &&
           ctw_cuda_aligned16(op->q) && ctw_cuda_aligned16(op->k) &&
           ctw_cuda_aligned16(op->pooled) && ctw_cuda_aligned16(op->out);
}

/* The launch by tensor cores; NULL: they do not take these heads or this alignment, or need more
 * than shared_bytes of shared memory. Depends on the model and the GPU's architecture alone. */
ctw_attn_launch_fn *ctw_pool_attention_tiles(const struct ctw_op_pool_attention *op,
                                             int shared_bytes);
/* The same on sm_90a. */
ctw_attn_launch_fn *ctw_pool_attention_hopper(const struct ctw_op_pool_attention *op);

#ifdef __CUDACC__

/* What blocks keep of their queries' keys, in shared memory. */
struct pool_places {
    const void *row[2][CTW_POOL_KEYS];   /* of a tile's keys; NULL: none */
    int chosen[CTW_POOL_SPAN], n_chosen; /* blocks of a span, if not all of it are seen */
};

/* The tiles of a query's keys, one after another. */
struct pool_walk {
    int pos, n_blocks, first, n, at; /* blocks of the span, from `first` on, of which n are seen */
    bool choice, window;
};

ATTN_DEV struct pool_walk pool_walk_begin(const struct ctw_op_pool_attention &op, int pos)
{
    struct pool_walk x = {pos, (pos + 1) / (int)op.block, 0, 0, 0, false, false};
    x.choice = op.seen != NULL && x.n_blocks > op.seen_from;
    return x;
}

/* What a head's sink adds to the sum of a row's weights, which are relative to `most`; 0: none. */
ATTN_DEV float pool_sink(const struct ctw_op_pool_attention &op, int head, float most, float factor)
{
    if (op.sinks == NULL)
        return 0;
    const float sink = ctw_cuda_number(op.sinks, op.sinks_dtype, head);
    return sink < INFINITY ? exp2f(fmaf(most, -factor, sink * 1.44269504f)) : NAN;
}

/* The span's blocks whose bits are set, in order, by the first warp. */
ATTN_DEV void list_chosen(struct pool_places &s, const uint32_t *seen, const struct pool_walk &x)
{
    const int lane = threadIdx.x, end = min(x.n_blocks, x.first + CTW_POOL_SPAN);
    int n = 0;
    for (int b0 = x.first; b0 < end && lane < 32; b0 += 32 * 32) {
        const int b = b0 + 32 * lane;
        uint32_t word = b < end ? seen[b / 32] : 0;
        word &= end - b < 32 && b < end ? (1u << (end - b)) - 1 : 0xFFFFFFFFu;
        int before = __popc(word);
        for (int by = 1; by < 32; by *= 2) {
            const int other = __shfl_up_sync(0xFFFFFFFFu, before, (unsigned)by);
            before += lane >= by ? other : 0;
        }
        const int all = __shfl_sync(0xFFFFFFFFu, before, 31);
        for (int to = n + before - __popc(word); word != 0; word &= word - 1)
            s.chosen[to++] = b + __ffs((int)word) - 1;
        n += all;
    }
    if (lane == 0)
        s.n_chosen = n;
}

/* Begins the span at x.first, or the window. All threads. */
ATTN_DEV void begin_span(struct pool_places &s, const struct ctw_op_pool_attention &op, int64_t row,
                         struct pool_walk &x)
{
    x.at = 0;
    x.window = x.first >= x.n_blocks;
    if (x.window) {
        x.n = min(x.pos + 1, (int)op.window);
        return;
    }
    x.n = min(CTW_POOL_SPAN, x.n_blocks - x.first);
    if (!x.choice)
        return;
    __syncthreads(); /* no thread reads the last list any more */
    list_chosen(s, op.seen + row * op.ld_seen, x);
    __syncthreads();
    x.n = s.n_chosen;
}

/* Begins the next tile, which has *n keys. Returns false after the last tile. */
ATTN_DEV bool next_tile(struct pool_places &s, const struct ctw_op_pool_attention &op, int64_t row,
                        struct pool_walk &x, int *n)
{
    while (x.at >= x.n) {
        if (x.window)
            return false;
        x.first += CTW_POOL_SPAN;
        begin_span(s, op, row, x);
    }
    *n = min(CTW_POOL_KEYS, x.n - x.at);
    return true;
}

/* Where the tile's keys lie, by as many threads. */
template <typename T>
ATTN_DEV void find_rows(struct pool_places &s, int to, const struct ctw_op_pool_attention &op,
                        const struct ctw_attn &a, const struct ctw_attn_tile &t,
                        const struct pool_walk &x, int n)
{
    const int i = threadIdx.x;
    if (i >= CTW_POOL_KEYS)
        return;
    const T *at = NULL;
    if (i < n && x.window) {
        const int pos = x.pos + 1 - x.n + x.at + i;
        at = (const T *)op.k +
             (int64_t)attn_walk_row(attn_walk_begin(t), a.runs, pos) * CTW_POOL_HEAD;
    } else if (i < n) {
        const int b = x.choice ? s.chosen[x.at + i] : x.first + x.at + i;
        const int pos = (b + 1) * (int)op.block - 1;
        at = (const T *)op.pooled +
             (int64_t)attn_walk_row(attn_walk_begin(t), a.runs, pos) * op.ld_pooled;
    }
    s.row[to][i] = at;
}

#endif
#endif
