/* Part of gemm_hopper_kernel.h: the end of a tile whose rows are added to scattered rows. */
#ifndef CTW_KERNELS_CUDA_GEMM_HOPPER_SCATTER_H
#define CTW_KERNELS_CUDA_GEMM_HOPPER_SCATTER_H

#include "kernels/cuda/gemm/gemm_hopper.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

CTW_DEV int64_t y_row(const struct product &p, int row)
{
    return p.y_rows == NULL ? row : __ldg(p.y_rows + row);
}

/* A row's place in y, and its factor. */
struct target {
    int64_t row;
    float weight;
};

/* Of a thread's two rows; loaded when the tile begins. */
CTW_DEV void load_targets(const struct product &p, int row, struct target (&target)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool mine = row + 8 * h < p.m;
        target[h].row = mine ? y_row(p, row + 8 * h) : 0;
        target[h].weight = mine && p.y_weight != NULL ? __ldg(p.y_weight + row + 8 * h) : 1.0f;
    }
}

/* y + weight * d, like add_32(). No two rows of a product have the same target. */
CTW_DEV void scatter_32(const struct product &p, float (&d)[128], const struct target (&target)[2],
                        int row, int col0, int lane)
{
    int col = col0 + 4 * (lane & 3);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int j = i / 2, h = i % 2;
        float *f = d + 8 * j + 2 * h, *to = (float *)p.y + target[h].row * p.ldy + col + 16 * j;
        float v[4] = {f[0], f[1], f[4], f[5]};
        exchange_16(v, lane);
        if (row + 8 * h >= p.m || col + 16 * j >= p.n)
            continue;
#pragma unroll
        for (int e = 0; e < 4; e++)
            v[e] *= target[h].weight;
        if (none_tiny(v)) {
            add_in_l2(to, v);
        } else {
            float4 old = __ldcg((const float4 *)to);
            *(float4 *)to = make_float4(old.x + v[0], old.y + v[1], old.z + v[2], old.w + v[3]);
        }
    }
}

CTW_DEV void finish_scatter(const struct product &p, float (&d)[128], const struct target (&target)[2],
                            int row, int col0, int lane)
{
    add_bias(p, d, col0, lane);
    scatter_32(p, d, target, row, col0, lane);
}

#endif
#endif
