/*
 * Tiles of keys and values for attention_hopper.cu, loaded by tensor copies. A tile of keys that lie in
 * several runs is loaded as boxes of 1, 2, 4 .. rows. The swizzle is a function of the address in shared
 * memory, so a box may begin at any row of a tile.
 */
#ifndef CTW_KERNELS_CUDA_ATTENTION_BOXES_CUH
#define CTW_KERNELS_CUDA_ATTENTION_BOXES_CUH

#include "kernels/cuda/attention/attention_wgmma.cuh"
#include "kernels/cuda/tensor_map.h"

enum { LOADERS = 2 }; /* warps that load the tiles of an array together */

static constexpr int box_log2(int rows)
{
    return rows <= 1 ? 0 : 1 + box_log2(rows / 2);
}

/* Maps of one array for tiles of N rows. Boxes of of[0] have N rows, those of of[i] a 2^i-th of them. */
template <int N, bool SPANS> struct boxes {
    static constexpr int sizes = SPANS ? box_log2(N) + 1 : 1;
    CUtensorMap of[sizes];
};

/* An array [rows, heads, head], loaded in boxes of box_rows, box_heads and 64 elements. */
static enum ctw_status make_map(CUtensorMap *map, enum ctw_dtype dtype, const void *p, int64_t rows,
                                int heads, int head, int box_rows, int box_heads, struct ctw_err *err)
{
    const cuuint64_t size[3] = {(cuuint64_t)head, (cuuint64_t)heads, (cuuint64_t)rows};
    const cuuint64_t stride[2] = {(cuuint64_t)head * 2, (cuuint64_t)heads * (cuuint64_t)head * 2};
    const cuuint32_t box[3] = {64, (cuuint32_t)box_heads, (cuuint32_t)box_rows};
    return ctw_tensor_map(map, dtype, p, 3, size, stride, box, err);
}

/* The maps of the keys or values p. */
template <int N, bool SPANS>
static enum ctw_status make_boxes(struct boxes<N, SPANS> *b, const struct ctw_attn *a, const void *p,
                                  int head, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int i = 0; st == CTW_OK && i < b->sizes; i++)
        st = make_map(&b->of[i], a->dtype, p, a->kv_rows, a->n_kv, head, N >> i, 1, err);
    return st;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* How many of a head's chunks of 64 elements a loader takes. */
template <int HD> CTW_DEV int own_chunks(int part)
{
    return (HD / 64 + LOADERS - 1 - part) / LOADERS;
}

/* A loader's chunks of a box that begins at `row` of the array. */
template <int HD, int N>
CTW_DEV void load_box(const CUtensorMap *map, uint32_t to, uint32_t full, int kv, int row, int part)
{
#pragma unroll
    for (int i = 0; i < (HD / 64 + LOADERS - 1) / LOADERS; i++) {
        int c = i * LOADERS + part;
        if (HD / 64 % LOADERS == 0 || c < HD / 64)
            box_load(to + c * (N * 128), map, 64 * c, kv, row, full);
    }
}

/*
 * One of the LOADERS warps that load a tile of N rows of HD elements to `to`, the keys from key0 on, at
 * which `walk` is, once the barrier `empty` has ended the phase of this parity. One box covers a run's keys,
 * or two boxes of one size, which then may share rows: these are written twice. Lanes 2 i and 2 i + 1 have
 * the boxes of the i-th run. All is computed before the wait, as the tile is needed soon after it. Rows
 * past the last key come from behind it.
 */
template <int HD, int N>
CTW_DEV void load_boxes(const struct boxes<N, true> &maps, uint32_t to, uint32_t full, uint32_t empty,
                        int parity, int kv, const struct attn_walk &walk,
                        const struct ctw_attn_run *runs, int key0, int key_end, int part)
{
    const uint32_t all = 0xFFFFFFFFu;
    const int lane = threadIdx.x & 31, limit = min(key0 + N, key_end);
    int begin = key0, run = walk.run;
#pragma unroll 1
    for (bool last = false; !last; run += CTW_ATTN_AHEAD) {
        const int2 own = __ldg((const int2 *)(runs + run + lane / 2)); /* shift, end */
        const int before = __shfl_up_sync(all, own.y, 2);
        const uint32_t ends = __ballot_sync(all, own.y >= limit);
        last = ends != 0;
        const int n = last ? __ffs((int)ends) + 1 : 32; /* lanes that have boxes */
        const int end = own.y >= limit ? N : own.y - key0;
        int row = (lane < 2 ? begin : before) - key0;
        const int log2 = 31 - __clz(end - row), second = end - (1 << log2);
        const bool has = lane < n && ((lane & 1) == 0 || second != row);
        row = (lane & 1) == 0 ? row : second;
        const uint32_t bytes = __reduce_add_sync(all, has ? 128u * own_chunks<HD>(part) << log2 : 0u);
        if (run == walk.run)
            barrier_wait(empty, parity);
        if (lane == 0 && last)
            barrier_expect(full, bytes);
        else if (lane == 0)
            barrier_expect_more(full, bytes);
        __syncwarp();
        if (has)
            load_box<HD, N>(&maps.of[box_log2(N) - log2], to + row * 128, full, kv, key0 + row + own.x,
                            part);
        begin = __shfl_sync(all, own.y, 31);
    }
}

#endif
#endif
