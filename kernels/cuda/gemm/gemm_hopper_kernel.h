/* Part of gemm_hopper.cu and gemm_experts_hopper.cu: the kernel, and the parts of a tile's work. */
#ifndef CTW_KERNELS_CUDA_GEMM_HOPPER_KERNEL_H
#define CTW_KERNELS_CUDA_GEMM_HOPPER_KERNEL_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm_hopper_qkv.h"
#include "kernels/cuda/gemm/gemm_hopper_scatter.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Addresses of barriers and rings in shared memory. */
struct place {
    uint32_t w, full_w, empty_w; /* [W_SLOTS] of W_BYTES; barriers */
    uint32_t x, full_x, empty_x; /* [2][X_SLOTS] of X_BYTES, for each warpgroup; barriers */
    uint32_t ahead;              /* a barrier: the first warpgroup is `lead` steps into the tile */
};

CTW_DEV struct place place_of(uint32_t base)
{
    struct place s;
    s.w = base;
    s.x = s.w + W_SLOTS * W_BYTES;
    s.full_w = s.x + 2 * X_SLOTS * X_BYTES;
    s.empty_w = s.full_w + W_SLOTS * 8;
    s.full_x = s.empty_w + W_SLOTS * 8;
    s.empty_x = s.full_x + 2 * X_SLOTS * 8;
    s.ahead = s.empty_x + 2 * X_SLOTS * 8;
    return s;
}

/* x_arrivals: at the barrier of a full slot of x. */
CTW_DEV void init_barriers(const struct place &s, uint32_t x_arrivals)
{
    for (int i = 0; i < W_SLOTS; i++) {
        barrier_init(s.full_w + 8 * i, 1);
        barrier_init(s.empty_w + 8 * i, 2 * 8); /* the multiplying warps of both blocks */
    }
    for (int i = 0; i < 2 * X_SLOTS; i++) {
        barrier_init(s.full_x + 8 * i, x_arrivals);
        barrier_init(s.empty_x + 8 * i, 4);
    }
    barrier_init(s.ahead, 1);
    barrier_init_fence();
}

struct turn {
    uint32_t slot, parity;
};

template <int SLOTS> CTW_DEV void next_slot(struct turn *t)
{
    if (++t->slot == SLOTS) {
        t->slot = 0;
        t->parity ^= 1;
    }
}

/* One warp: its block's half of each of a tile's boxes of w, for both blocks. */
CTW_DEV void fetch_w(const struct product &p, const CUtensorMap *map, const struct place &s,
                     struct tile tile, struct turn *t, int lane)
{
    uint32_t block = block_in_cluster();
    for (int step = 0; step < p.n_steps; step++) {
        barrier_wait(s.empty_w + 8 * t->slot, t->parity);
        if (lane == 0) {
            barrier_expect(s.full_w + 8 * t->slot, W_BYTES);
            tensor_load_all(s.w + t->slot * W_BYTES + block * (W_BYTES / 2), map, step * STEP,
                            tile.col + (int)block * (TILE_N / 2), s.full_w + 8 * t->slot, 3);
        }
        next_slot<W_SLOTS>(t);
    }
}

/* One warp: a tile's 64 rows of x of one warpgroup; also prefetches into L2 the y that will be added
 * to. EACH: all lanes arrive at the barrier of a full slot, not just one. */
template <int EPI, bool EACH>
CTW_DEV void fetch_x(const struct product &p, const CUtensorMap *map, const struct place &s,
                     struct tile tile, struct turn *t, int group, int lane)
{
    int row0 = tile.row + (int)block_in_cluster() * TILE_M + group * 64;
    uint32_t ring = s.x + group * X_SLOTS * X_BYTES;
    uint32_t full = s.full_x + group * X_SLOTS * 8, empty = s.empty_x + group * X_SLOTS * 8;
    for (int step = 0; step < p.n_steps; step++) {
        barrier_wait(empty + 8 * t->slot, t->parity);
        if (lane == 0) {
            barrier_expect(full + 8 * t->slot, X_BYTES);
            tensor_load(ring + t->slot * X_BYTES, map, step * STEP, row0, full + 8 * t->slot);
        } else if (EACH) {
            barrier_arrive(full + 8 * t->slot);
        }
        next_slot<X_SLOTS>(t);
        if ((EPI == EPI_ADD32 || EPI == EPI_SCATTER) && step == max(p.n_steps - 8, 0)) {
            const float *y = (const float *)p.y + tile.col;
            uint32_t bytes = (uint32_t)min(p.n - tile.col, TILE_N) * 4;
            for (int r = row0 + lane; r < min(row0 + 64, p.m); r += 32)
                prefetch_l2(y + (EPI == EPI_SCATTER ? y_row(p, r) : r) * p.ldy, bytes);
        }
    }
}

/* A multiplying warpgroup: its rings, and its position in them. */
struct reader {
    uint64_t w, x;                    /* descriptors of the rings */
    uint32_t full_x, empty_x, empty_w; /* barriers; empty_w is the other block's for odd lanes */
    struct turn tw, tx;
    uint32_t last_w, last_x, lead_parity;
};

CTW_DEV struct reader reader_of(const struct place &s, int group, int lane)
{
    struct reader r;
    r.w = matrix_descriptor(s.w);
    r.x = matrix_descriptor(s.x + group * X_SLOTS * X_BYTES);
    r.full_x = s.full_x + group * X_SLOTS * 8;
    r.empty_x = s.empty_x + group * X_SLOTS * 8;
    r.empty_w = address_in_block(s.empty_w, lane & 1);
    r.tw = r.tx = {0, 0};
    r.last_w = r.last_x = r.lead_parity = 0;
    return r;
}

CTW_DEV void free_last(const struct reader &r, int lane)
{
    if (lane < 2)
        barrier_arrive_far(r.empty_w + 8 * r.last_w);
    else if (lane == 2)
        barrier_arrive(r.empty_x + 8 * r.last_x);
}

/* The products of a tile. The last may still be under way: see end_sums(). FENCE: threads wrote x
 * (copy_16()). */
template <bool F16, bool FENCE>
CTW_DEV void begin_sums(const struct product &p, const struct place &s, struct reader *r,
                        float (&d)[128], int group, int thread)
{
    int lane = thread % 32;
    if (p.lead > 0) {
        if (group == 1)
            barrier_wait(s.ahead, r->lead_parity);
        r->lead_parity ^= 1;
    }
#pragma unroll 1
    for (int step = 0; step < p.n_steps; step++) {
        barrier_wait(s.full_w + 8 * r->tw.slot, r->tw.parity);
        barrier_wait(r->full_x + 8 * r->tx.slot, r->tx.parity);
        if (FENCE)
            shared_fence();
        uint64_t dw = r->w + r->tw.slot * (W_BYTES / 16), dx = r->x + r->tx.slot * (X_BYTES / 16);
        products_fence();
#pragma unroll
        for (int j = 0; j < STEP / 16; j++)
            product_64_256_16<F16>(d, dx + 2 * j, dw + 2 * j, step + j);
        products_commit();
        products_wait<1>(); /* the previous step */
        if (step > 0) {
            free_last(*r, lane);
            if (group == 0 && step == p.lead && thread == 0)
                barrier_arrive(s.ahead);
        }
        r->last_w = r->tw.slot;
        r->last_x = r->tx.slot;
        next_slot<W_SLOTS>(&r->tw);
        next_slot<X_SLOTS>(&r->tx);
    }
}

CTW_DEV void end_sums(const struct reader &r, float (&d)[128], int lane)
{
    products_wait<0>();
    accumulators_ready(d);
    free_last(r, lane);
}

/* The first of a thread's two rows in a tile. */
CTW_DEV int first_row(struct tile tile, int group, int thread)
{
    return tile.row + (int)block_in_cluster() * TILE_M + group * 64 + thread / 32 * 16 + thread % 32 / 4;
}

/* One warpgroup: the sums d of tile i, then the epilogue on them. d is the caller's, of all tiles:
 * otherwise the compiler spills it. */
template <bool F16, int EPI, bool FENCE>
CTW_DEV void multiply(const struct product &p, const struct place &s, int i, struct reader *r,
                      float (&d)[128], int group, int thread)
{
    constexpr int HEAD = EPI >= EPI_QKV_64 && EPI < N_EPI ? 64 << (EPI - EPI_QKV_64) : 0;
    int lane = thread % 32;
    int32_t position[2] = {0, 0};
    struct target target[2];
    if (HEAD > 0)
        load_positions(p, first_row(tile_at(p, i), group, thread), position);
    if (EPI == EPI_SCATTER)
        load_targets(p, first_row(tile_at(p, i), group, thread), target);
    begin_sums<F16, FENCE>(p, s, r, d, group, thread);
    struct tile tile = tile_at(p, i); /* again: registers are short meanwhile */
    int row = first_row(tile, group, thread);
    float4 first[8]; /* angles */
    if constexpr (HEAD > 0)
        start_heads<HEAD>(p, first, position, tile.col, lane);
    end_sums(*r, d, lane);
    if constexpr (HEAD > 0)
        finish_heads<F16, HEAD>(p, d, first, position, row, tile.col, lane);
    else if constexpr (EPI == EPI_SCATTER)
        finish_scatter(p, d, target, row, tile.col, lane);
    else
        finish<F16, EPI>(p, d, row, tile.col, lane);
}

#endif

template <bool F16, int EPI>
static __global__ void __launch_bounds__(THREADS, 1)
    product_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                   const __grid_constant__ struct product p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char memory[];
    struct place s = place_of((shared_address(memory) + 1023) & ~1023u);
    int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    int first = blockIdx.x / 2, next = gridDim.x / 2;
    if (threadIdx.x == 0) {
        tensor_prefetch_map(&x_map);
        tensor_prefetch_map(&w_map);
        init_barriers(s, 1);
    }
    cluster_sync();
    if (warp >= 8) {
        registers_fewer<40>();
        struct turn t = {0, 1};
        if (warp == 8)
            for (int i = first; i < p.n_tiles; i += next)
                fetch_w(p, &w_map, s, tile_at(p, i), &t, lane);
        else if (warp < 11)
            for (int i = first; i < p.n_tiles; i += next)
                fetch_x<EPI, false>(p, &x_map, s, tile_at(p, i), &t, warp - 9, lane);
    } else {
        registers_more<232>();
        struct reader r = reader_of(s, warp / 4, lane);
        float d[128];
        for (int i = first; i < p.n_tiles; i += next)
            multiply<F16, EPI, false>(p, s, i, &r, d, warp / 4, threadIdx.x % 128);
    }
    /* No block leaves while the other may still arrive at its barriers. */
    cluster_sync();
#endif
}

#endif
