/* Part of gemm_hopper.cu and gemm_experts_hopper.cu: the kernel. */
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

CTW_DEV void init_barriers(const struct place &s)
{
    for (int i = 0; i < W_SLOTS; i++) {
        barrier_init(s.full_w + 8 * i, 1);
        barrier_init(s.empty_w + 8 * i, 2 * 8); /* the multiplying warps of both blocks */
    }
    for (int i = 0; i < 2 * X_SLOTS; i++) {
        barrier_init(s.full_x + 8 * i, 1);
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

/* One warp: its block's half of each box of w, for both blocks. */
CTW_DEV void fetch_w(const struct product &p, const CUtensorMap *map, const struct place &s, int lane)
{
    uint32_t block = block_in_cluster();
    struct turn t = {0, 1};
    for (int i = blockIdx.x / 2; i < p.n_tiles; i += gridDim.x / 2) {
        struct tile tile = tile_at(p, i);
        for (int step = 0; step < p.n_steps; step++) {
            barrier_wait(s.empty_w + 8 * t.slot, t.parity);
            if (lane == 0) {
                barrier_expect(s.full_w + 8 * t.slot, W_BYTES);
                tensor_load_all(s.w + t.slot * W_BYTES + block * (W_BYTES / 2), map, step * STEP,
                                tile.col + (int)block * (TILE_N / 2), s.full_w + 8 * t.slot, 3);
            }
            next_slot<W_SLOTS>(&t);
        }
    }
}

/* One warp: the 64 rows of x of one warpgroup; also prefetches into L2 the y that will be added to. */
template <int EPI>
CTW_DEV void fetch_x(const struct product &p, const CUtensorMap *map, const struct place &s, int group,
                     int lane)
{
    int first_row = (int)block_in_cluster() * TILE_M + group * 64;
    uint32_t ring = s.x + group * X_SLOTS * X_BYTES;
    uint32_t full = s.full_x + group * X_SLOTS * 8, empty = s.empty_x + group * X_SLOTS * 8;
    struct turn t = {0, 1};
    for (int i = blockIdx.x / 2; i < p.n_tiles; i += gridDim.x / 2) {
        struct tile tile = tile_at(p, i);
        int row0 = tile.row + first_row;
        for (int step = 0; step < p.n_steps; step++) {
            barrier_wait(empty + 8 * t.slot, t.parity);
            if (lane == 0) {
                barrier_expect(full + 8 * t.slot, X_BYTES);
                tensor_load(ring + t.slot * X_BYTES, map, step * STEP, row0, full + 8 * t.slot);
            }
            next_slot<X_SLOTS>(&t);
            if ((EPI == EPI_ADD32 || EPI == EPI_SCATTER) && step == max(p.n_steps - 8, 0)) {
                const float *y = (const float *)p.y + tile.col;
                uint32_t bytes = (uint32_t)min(p.n - tile.col, TILE_N) * 4;
                for (int r = row0 + lane; r < min(row0 + 64, p.m); r += 32)
                    prefetch_l2(y + (EPI == EPI_SCATTER ? y_row(p, r) : r) * p.ldy, bytes);
            }
        }
    }
}

/*
 * The same rows gathered: row r of x is row x_rows[r]. 16 bytes at a time, to where a tensor copy
 * with 128-byte swizzle puts them; zeros beyond m and k. Lane i has chunk i % 8 of rows i / 8, 4 +
 * i / 8, .., whose numbers (-1: none) it keeps in registers. A step is announced when the copies of
 * the AHEAD steps behind it are under way: AHEAD is less than X_SLOTS - 1, because the multiplying
 * warpgroup frees a slot only after the next one is announced; and as small as can be, so that a
 * step is announced before the warpgroup needs it.
 */
enum { AHEAD = 1, GATHERED = 16 };

CTW_DEV void gather_step(const struct product &p, const struct place &s, int group, uint32_t slot,
                         int step, int lane, const int (&row)[GATHERED])
{
    int chunk = lane & 7, col = step * STEP + 8 * chunk;
    const char *x = (const char *)p.x + 2 * min(col, p.k - 8);
    uint32_t to = s.x + (group * X_SLOTS + slot) * X_BYTES + lane / 8 * 128;
    uint32_t even = to + ((chunk ^ lane / 8) << 4), odd = to + ((chunk ^ (4 + lane / 8)) << 4);
#pragma unroll
    for (int j = 0; j < GATHERED; j++)
        copy_16((j % 2 == 0 ? even : odd) + j * 512, x + (int64_t)max(row[j], 0) * p.x_pitch,
                row[j] >= 0 && col < p.k ? 16 : 0);
    copies_commit();
}

/* The copies of a step have arrived: matrix products may read them. */
CTW_DEV void announce(uint32_t full, struct turn *t, int lane)
{
    shared_fence();
    __syncwarp();
    if (lane == 0)
        barrier_arrive(full + 8 * t->slot);
    next_slot<X_SLOTS>(t);
}

CTW_DEV void gather_x(const struct product &p, const struct place &s, int group, int lane)
{
    int first_row = (int)block_in_cluster() * TILE_M + group * 64, waiting = 0;
    uint32_t full = s.full_x + group * X_SLOTS * 8, empty = s.empty_x + group * X_SLOTS * 8;
    struct turn t = {0, 1}, announced = {0, 0};
    for (int i = blockIdx.x / 2; i < p.n_tiles; i += gridDim.x / 2) {
        int row0 = tile_at(p, i).row + first_row;
        int row[GATHERED];
#pragma unroll
        for (int j = 0; j < GATHERED; j++) {
            int r = row0 + 4 * j + lane / 8;
            row[j] = r < p.m ? __ldg(p.x_rows + r) : -1;
        }
        for (int step = 0; step < p.n_steps; step++) {
            barrier_wait(empty + 8 * t.slot, t.parity);
            gather_step(p, s, group, t.slot, step, lane, row);
            next_slot<X_SLOTS>(&t);
            if (waiting < AHEAD) {
                waiting++;
                continue;
            }
            copies_leave<AHEAD>();
            announce(full, &announced, lane);
        }
    }
    copies_leave<0>();
    for (; waiting > 0; waiting--)
        announce(full, &announced, lane);
}

/* One warpgroup: products, then the epilogue on the sums. */
template <bool F16, int EPI>
CTW_DEV void multiply(const struct product &p, const struct place &s, int group, int thread)
{
    constexpr int HEAD = EPI >= EPI_QKV_64 && EPI < N_EPI ? 64 << (EPI - EPI_QKV_64) : 0;
    int lane = thread % 32, warp = thread / 32;
    struct turn tw = {0, 0}, tx = {0, 0};
    uint32_t tile_parity = 0;
    uint64_t w = matrix_descriptor(s.w), x = matrix_descriptor(s.x + group * X_SLOTS * X_BYTES);
    uint32_t full_x = s.full_x + group * X_SLOTS * 8, empty_x = s.empty_x + group * X_SLOTS * 8;
    uint32_t empty_w = address_in_block(s.empty_w, lane & 1);
    int first_row = (int)block_in_cluster() * TILE_M + group * 64 + warp * 16 + lane / 4;
    for (int i = blockIdx.x / 2; i < p.n_tiles; i += gridDim.x / 2, tile_parity ^= 1) {
        float d[128];
        uint32_t last_w = 0, last_x = 0;
        int32_t position[2] = {0, 0};
        struct target target[2];
        if (HEAD > 0)
            load_positions(p, tile_at(p, i).row + first_row, position);
        if (EPI == EPI_SCATTER)
            load_targets(p, tile_at(p, i).row + first_row, target);
        if (group == 1 && p.lead > 0)
            barrier_wait(s.ahead, tile_parity);
#pragma unroll 1
        for (int step = 0; step < p.n_steps; step++) {
            barrier_wait(s.full_w + 8 * tw.slot, tw.parity);
            barrier_wait(full_x + 8 * tx.slot, tx.parity);
            uint64_t dw = w + tw.slot * (W_BYTES / 16), dx = x + tx.slot * (X_BYTES / 16);
            products_fence();
#pragma unroll
            for (int j = 0; j < STEP / 16; j++)
                product_64_256_16<F16>(d, dx + 2 * j, dw + 2 * j, step + j);
            products_commit();
            products_wait<1>(); /* the previous step */
            if (step > 0) {
                if (lane < 2)
                    barrier_arrive_far(empty_w + 8 * last_w);
                else if (lane == 2)
                    barrier_arrive(empty_x + 8 * last_x);
                if (group == 0 && step == p.lead && thread == 0)
                    barrier_arrive(s.ahead);
            }
            last_w = tw.slot;
            last_x = tx.slot;
            next_slot<W_SLOTS>(&tw);
            next_slot<X_SLOTS>(&tx);
        }
        struct tile tile = tile_at(p, i);
        int row = tile.row + first_row;
        float4 first[8]; /* angles */
        if constexpr (HEAD > 0)
            start_heads<HEAD>(p, first, position, tile.col, lane);
        products_wait<0>();
        accumulators_ready(d);
        if (lane < 2)
            barrier_arrive_far(empty_w + 8 * last_w);
        else if (lane == 2)
            barrier_arrive(empty_x + 8 * last_x);
        if constexpr (HEAD > 0)
            finish_heads<F16, HEAD>(p, d, first, position, row, tile.col, lane);
        else if constexpr (EPI == EPI_SCATTER)
            finish_scatter(p, d, target, row, tile.col, lane);
        else
            finish<F16, EPI>(p, d, row, tile.col, lane);
    }
}

#endif

template <bool F16, int EPI, bool GATHER>
static __global__ void __launch_bounds__(THREADS, 1)
    product_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                   const __grid_constant__ struct product p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char memory[];
    struct place s = place_of((shared_address(memory) + 1023) & ~1023u);
    int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        tensor_prefetch_map(&x_map);
        tensor_prefetch_map(&w_map);
        init_barriers(s);
    }
    cluster_sync();
    if (warp >= 8) {
        registers_fewer<GATHER ? 72 : 40>();
        if (warp == 8)
            fetch_w(p, &w_map, s, lane);
        else if (GATHER && warp < 11)
            gather_x(p, s, warp - 9, lane);
        else if (!GATHER && warp < 11)
            fetch_x<EPI>(p, &x_map, s, warp - 9, lane);
    } else {
        registers_more<GATHER ? 216 : 232>();
        multiply<F16, EPI>(p, s, warp / 4, threadIdx.x % 128);
    }
    /* No block leaves while the other may still arrive at its barriers. */
    cluster_sync();
#endif
}

#endif
