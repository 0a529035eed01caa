/* Part of gemm_hopper.cu and gemm_experts_hopper.cu: launching the kernel. */
#ifndef CTW_KERNELS_CUDA_GEMM_HOPPER_LAUNCH_H
#define CTW_KERNELS_CUDA_GEMM_HOPPER_LAUNCH_H

#include "kernels/cuda/gemm/gemm_hopper_kernel.h"
#include "kernels/cuda/tensor_map.h"

typedef void kernel_fn(CUtensorMap, CUtensorMap, struct product);

/* A matrix [rows, cols] of 16-bit elements, loaded in boxes of box_rows by STEP. */
static inline enum ctw_status make_map(CUtensorMap *map, enum ctw_dtype dtype, const void *p,
                                       int64_t rows, int64_t cols, int64_t ld, int box_rows,
                                       struct ctw_err *err)
{
    const cuuint64_t size[2] = {(cuuint64_t)cols, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)ld * 2};
    const cuuint32_t box[2] = {STEP, (cuuint32_t)box_rows};
    return ctw_tensor_map(map, dtype, p, 2, size, stride, box, err);
}

static inline bool aligned(const void *p, int64_t ld, size_t bytes)
{
    return (uintptr_t)p % 16 == 0 && (size_t)ld * bytes % 16 == 0;
}

static inline bool fits(const struct ctw_cuda *cu, const struct ctw_cuda_gemm *g)
{
    const int64_t most = (int64_t)1 << 30;
    return cu->hopper && (g->dtype == CTW_BF16 || g->dtype == CTW_F16) && g->m > 0 && g->n > 0 &&
           g->k > 0 && g->m < most && g->n < most && g->k < most && g->k % 8 == 0 &&
           (g->m / 256 + 1) * (g->n / 256 + 1) < most && aligned(g->x, g->ldx, 2) &&
           aligned(g->w, g->ldw, 2) && aligned(g->bias, 0, 4);
}

static inline bool fits_y(const struct ctw_cuda_gemm *g)
{
    return g->n % 8 == 0 && aligned(g->y, g->ldy, ctw_dtype_bytes(g->y_dtype));
}

/* Common to every epilogue. */
static inline struct product product_of(const struct ctw_cuda_gemm *g)
{
    struct product p = {};
    p.m = (int)g->m;
    p.n = (int)g->n;
    p.n_steps = (int)((g->k + STEP - 1) / STEP);
    p.rows = (int)((g->m + 2 * TILE_M - 1) / (2 * TILE_M));
    p.cols = (int)((g->n + TILE_N - 1) / TILE_N);
    p.n_tiles = p.rows * p.cols;
    p.group = ctw_hopper_group;
    /* The first warpgroup must not run a whole tile ahead; it can be at most W_SLOTS steps ahead. */
    p.lead = p.n_steps > 2 * W_SLOTS ? ctw_hopper_lead : 0;
    p.y = g->y;
    p.ldy = g->ldy;
    p.bias = g->bias;
    p.x = g->x;
    p.k = (int)g->k;
    p.x_pitch = g->ldx * 2;
    p.x_rows = g->x_rows;
    p.y_rows = g->y_rows;
    p.y_weight = g->y_weight;
    return p;
}

/* Clusters of two blocks, one for each multiprocessor; fewer if there are fewer tiles. */
static inline int clusters_for(const struct ctw_cuda *cu, int n_tiles)
{
    return n_tiles < cu->n_sm / 2 ? n_tiles : cu->n_sm / 2;
}

/* Starts a kernel for so many tiles. */
template <typename... Args>
static enum ctw_status start(struct ctw_cuda *cu, int n_tiles, void (*kernel)(Args...),
                             struct ctw_err *err, const Args &...args)
{
    enum ctw_status st = ctw_cuda_check(
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             SHARED_BYTES),
        "a product's shared memory", err);
    if (st != CTW_OK)
        return st;
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = 2;
    attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2 * (unsigned)clusters_for(cu, n_tiles));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = SHARED_BYTES;
    config.stream = cu->stream;
    config.attrs = attribute;
    config.numAttrs = 1;
    return ctw_cuda_check(cudaLaunchKernelEx(&config, kernel, args...), "a product", err);
}

static inline enum ctw_status x_map_of(CUtensorMap *map, const struct ctw_cuda_gemm *g,
                                       struct ctw_err *err)
{
    return make_map(map, g->dtype, g->x, g->m, g->k, g->ldx, 64, err);
}

static inline enum ctw_status w_map_of(CUtensorMap *map, const struct ctw_cuda_gemm *g,
                                       struct ctw_err *err)
{
    return make_map(map, g->dtype, g->w, g->n, g->k, g->ldw, TILE_N / 2, err);
}

static inline enum ctw_status ctw_hopper_launch(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                                const struct product *p, kernel_fn *kernel,
                                                struct ctw_err *err)
{
    CUtensorMap x_map, w_map;
    enum ctw_status st = x_map_of(&x_map, g, err);
    if (st == CTW_OK)
        st = w_map_of(&w_map, g, err);
    return st == CTW_OK ? start(cu, p->n_tiles, kernel, err, x_map, w_map, *p) : st;
}

#endif
