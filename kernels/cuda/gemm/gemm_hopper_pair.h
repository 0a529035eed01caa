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

/*
 * How the tiles of both products are dealt to the clusters. `even`: in turn, the two kinds spread
 * evenly, but with a scattered one, which takes less time, as each cluster's last. Neighbouring tiles
 * then run at the same time, and share rows in L2. Where some clusters would have much more to do,
 * all are to finish together: the gathered product's tiles are dealt in turn, so that the first
 * `longer` clusters have one more; then the scattered one's to where less is left to do:
 *     clusters 0 .. longer - 1                 few of the scattered tiles
 *     the next `plus`                          many + 1
 *     the others                               many
 */
struct shares {
    bool even;
    int gathered, longer, few, plus, many;
};

/* n_tiles 0: there is no such product. */
struct pair {
    struct product gathered, scattered;
    struct shares shares;
};

/* Of tiles in turn, is tile i the gathered product's (*at), or the scattered one's? */
static __host__ __device__ __forceinline__ bool in_turn(int i, int n_gathered, int n_scattered,
                                                        int clusters, int *at)
{
    int64_t n = n_gathered, mixed = n + (n_scattered > clusters ? n_scattered - clusters : 0);
    int before = (int)(i < mixed ? i * n / mixed : n);
    bool gathered = i < mixed && (int)((i + 1) * n / mixed) > before;
    *at = gathered ? before : i - before;
    return gathered;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* A cluster's way through its tiles. Unless these are in turn, the two kinds alternate as evenly as
 * their numbers allow, and clusters are out of step: at any time some compute while others add. */
struct walk {
    int cluster, clusters;
    int n, n_gathered; /* tiles: all, and of the gathered product */
    int due, gathered, scattered;
};

CTW_DEV struct walk walk_of(const struct pair &p)
{
    const struct shares &a = p.shares;
    struct walk w = {};
    w.cluster = blockIdx.x / 2;
    w.clusters = gridDim.x / 2;
    bool longer = w.cluster < a.longer;
    if (a.even) {
        int all = p.gathered.n_tiles + p.scattered.n_tiles;
        w.n = (all - w.cluster + w.clusters - 1) / w.clusters;
        return w;
    }
    w.n_gathered = a.gathered + longer;
    w.n = w.n_gathered + (longer ? a.few : a.many + (w.cluster < a.longer + a.plus));
    w.due = w.cluster * w.n / w.clusters;
    return w;
}

/* The next tile: *at of the gathered product, or (false) of the scattered one. Clusters that are at
 * their k-th tile of a product have neighbouring ones. */
CTW_DEV bool next_tile(const struct pair &p, struct walk *w, int *at)
{
    const struct shares &a = p.shares;
    if (a.even)
        return in_turn(w->gathered++ * w->clusters + w->cluster, p.gathered.n_tiles,
                       p.scattered.n_tiles, w->clusters, at);
    w->due += w->n_gathered;
    if (w->due >= w->n) {
        w->due -= w->n;
        *at = w->gathered++ * w->clusters + w->cluster;
        return true;
    }
    int k = w->scattered++, others = w->clusters - a.longer - a.plus;
    int before = a.longer * min(k, a.few) + a.plus * min(k, a.many + 1) + others * min(k, a.many);
    int rank = w->cluster; /* among the clusters that have a k-th tile */
    if (rank >= a.longer && k >= a.few)
        rank -= a.longer;
    *at = before + rank;
    return false;
}

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
    struct walk walk = walk_of(p);
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
            bool gathered = next_tile(p, &walk, &at);
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
            if (next_tile(p, &walk, &at))
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
