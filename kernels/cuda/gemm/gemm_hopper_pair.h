/*
 * Part of gemm_experts_hopper.cu: a kernel that computes two products of experts at once.
 *
 * One gathers its rows of x; at the end of the other's tiles, sums are added to scattered rows of y,
 * which takes as long as several steps of products and keeps the memory busy, not the tensor cores.
 * With the tiles of both in turn, some clusters compute while others add. Each tile is computed as
 * it is alone: its sums are the same bits.
 */
#ifndef CTW_KERNELS_CUDA_GEMM_HOPPER_PAIR_H
#define CTW_KERNELS_CUDA_GEMM_HOPPER_PAIR_H

#include "kernels/cuda/gemm/gemm_hopper_kernel.h"
#include "kernels/pair_tiles.h"

/* n_tiles 0: there is no such product. */
struct pair {
    struct product gathered, scattered;
    struct ctw_pair_shares shares;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/*
 * One warp: a tile's 64 rows of x of one warpgroup, gathered: row r of x is row x_rows[r]. 16 bytes
 * at a time, to where a tensor copy with 128-byte swizzle puts them; zeros beyond m and k. Lane i has
 * chunk i % 8 of rows i / 8, 4 + i / 8, .., whose addresses (NULL: none) it keeps in registers. A slot
 * is full when the copies of all 32 lanes have arrived.
 */
CTW_DEV void gather_x(const struct product &p, const struct place &s, struct tile tile, struct turn *t,
                      int group, int lane)
{
    enum { MINE = 16 };
    int row0 = tile.row + (int)block_in_cluster() * TILE_M + group * 64, chunk = lane & 7;
    uint32_t full = s.full_x + group * X_SLOTS * 8, empty = s.empty_x + group * X_SLOTS * 8;
    const char *from[MINE];
#pragma unroll
    for (int j = 0; j < MINE; j++) {
        int r = row0 + 4 * j + lane / 8;
        from[j] = r < p.m ? (const char *)p.x + __ldg(p.x_rows + r) * p.x_pitch : NULL;
    }
    for (int step = 0; step < p.n_steps; step++) {
        int col = step * STEP + 8 * chunk;
        uint32_t to = s.x + (group * X_SLOTS + t->slot) * X_BYTES + lane / 8 * 128;
        uint32_t even = to + ((chunk ^ lane / 8) << 4), odd = to + ((chunk ^ (4 + lane / 8)) << 4);
        barrier_wait(empty + 8 * t->slot, t->parity);
#pragma unroll
        for (int j = 0; j < MINE; j++) {
            bool there = from[j] != NULL && col < p.k;
            copy_16((j % 2 == 0 ? even : odd) + j * 512,
                    there ? from[j] + 2 * col : (const char *)p.x, there ? 16 : 0);
        }
        copies_arrive(full + 8 * t->slot);
        next_slot<X_SLOTS>(t);
    }
}

#endif

template <bool F16, int EPI>
static __global__ void __launch_bounds__(THREADS, 1)
    pair_kernel(const __grid_constant__ CUtensorMap gathered_w, const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ CUtensorMap w_map, const __grid_constant__ struct pair p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char memory[];
    struct place s = place_of((shared_address(memory) + 1023) & ~1023u);
    int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0), lane = threadIdx.x % 32, at;
    struct ctw_pair_walk walk = ctw_pair_walk_of(&p.shares, blockIdx.x / 2, gridDim.x / 2);
    if (threadIdx.x == 0) {
        tensor_prefetch_map(&gathered_w);
        tensor_prefetch_map(&x_map);
        tensor_prefetch_map(&w_map);
        init_barriers(s, 32);
    }
    cluster_sync();
    if (warp >= 8) {
        registers_fewer<72>();
        struct turn t = {0, 1};
        for (int i = 0; i < walk.n && warp < 11; i++) {
            bool gathered = ctw_pair_next(&p.shares, &walk, &at);
            if (warp == 8 && gathered)
                fetch_w(p.gathered, &gathered_w, s, tile_at(p.gathered, at), &t, lane);
            else if (warp == 8)
                fetch_w(p.scattered, &w_map, s, tile_at(p.scattered, at), &t, lane);
            else if (gathered)
                gather_x(p.gathered, s, tile_at(p.gathered, at), &t, warp - 9, lane);
            else
                fetch_x<EPI_SCATTER, true>(p.scattered, &x_map, s, tile_at(p.scattered, at), &t,
                                           warp - 9, lane);
        }
    } else {
        registers_more<216>();
        struct reader r = reader_of(s, warp / 4, lane);
        float d[128];
        for (int i = 0; i < walk.n; i++) {
            if (ctw_pair_next(&p.shares, &walk, &at))
                multiply<F16, EPI, true>(p.gathered, s, at, &r, d, warp / 4, threadIdx.x % 128);
            else
                multiply<F16, EPI_SCATTER, false>(p.scattered, s, at, &r, d, warp / 4,
                                                  threadIdx.x % 128);
        }
    }
    /* No block leaves while the other may still arrive at its barriers. */
    cluster_sync();
#endif
}

#endif
