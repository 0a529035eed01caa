/*
 * Rotations of activations: blocks of rows times one matrix, in fp32. Hadamard's is applied in shared
 * memory, in log2(size) steps of sums and differences; any other matrix in tiles of rows and columns. The
 * order of sums depends on `size` alone.
 */
#include "kernels/cuda/elements.h"

enum {
    HADAMARD_THREADS = 256,
    HADAMARD_ELEMS = 2048, /* of a block of threads, which takes several short blocks of rows */
    TILE_ROWS = 16,        /* blocks of rows that a tile multiplies */
    TILE_COLS = 128,
    TILE_DEPTH = 32
};

struct rotate {
    int64_t n_groups, per_row; /* blocks of rows; of one row */
    int size;
    const float *matrix, *signs;
    bool signs_last;
    float factor;
    const int32_t *rows;
    const void *x;
    int64_t ldx;
    void *y;
    int64_t ldy;
};

/* The first element of a block, in x and in y. */
static __device__ __forceinline__ int64_t x_at(const struct rotate &r, int64_t group)
{
    int64_t t = group / r.per_row;
    return (r.rows != NULL ? (int64_t)r.rows[t] : t) * r.ldx + group % r.per_row * r.size;
}

static __device__ __forceinline__ int64_t y_at(const struct rotate &r, int64_t group)
{
    return group / r.per_row * r.ldy + group % r.per_row * r.size;
}

/* `few` blocks from blockIdx.x * few on. */
template <typename T>
__global__ void __launch_bounds__(HADAMARD_THREADS)
    hadamard(const __grid_constant__ struct rotate r, int few)
{
    extern __shared__ float v[];
    int64_t first = (int64_t)blockIdx.x * few;
    int n = (int)(r.n_groups - first < few ? r.n_groups - first : few) * r.size;
    for (int i = (int)threadIdx.x; i < n; i += HADAMARD_THREADS) {
        float x = ctw_cuda_widen(((const T *)r.x)[x_at(r, first + i / r.size) + i % r.size]);
        v[i] = r.signs != NULL && !r.signs_last ? x * r.signs[i % r.size] : x;
    }
    for (int h = 1; h < r.size; h *= 2) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n / 2; i += HADAMARD_THREADS) {
            int at = i / h * 2 * h + i % h;
            float a = v[at], b = v[at + h];
            v[at] = a + b;
            v[at + h] = a - b;
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += HADAMARD_THREADS) {
        float y = v[i] * r.factor;
        y = r.signs != NULL && r.signs_last ? y * r.signs[i % r.size] : y;
        ctw_cuda_narrow(y, (T *)r.y + y_at(r, first + i / r.size) + i % r.size);
    }
}

/* A thread has one column of TILE_ROWS blocks. */
template <typename T>
__global__ void __launch_bounds__(TILE_COLS) multiply(const __grid_constant__ struct rotate r)
{
    __shared__ float x[TILE_ROWS][TILE_DEPTH];
    int64_t first = (int64_t)blockIdx.x * TILE_ROWS;
    int n = (int)(r.n_groups - first < TILE_ROWS ? r.n_groups - first : TILE_ROWS);
    int col = (int)(blockIdx.y * TILE_COLS + threadIdx.x);
    float sum[TILE_ROWS] = {};
    for (int k0 = 0; k0 < r.size; k0 += TILE_DEPTH) {
        int depth = r.size - k0 < TILE_DEPTH ? r.size - k0 : TILE_DEPTH;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < TILE_ROWS * TILE_DEPTH; i += TILE_COLS) {
            int row = i / TILE_DEPTH, k = i % TILE_DEPTH;
            bool in = row < n && k < depth;
            x[row][k] = in ? ctw_cuda_widen(((const T *)r.x)[x_at(r, first + row) + k0 + k]) : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < depth && col < r.size; k++) {
            float m = r.matrix[(int64_t)(k0 + k) * r.size + col];
#pragma unroll
            for (int row = 0; row < TILE_ROWS; row++)
                sum[row] += x[row][k] * m;
        }
    }
    if (col >= r.size)
        return;
#pragma unroll
    for (int row = 0; row < TILE_ROWS; row++)
        if (row < n)
            ctw_cuda_narrow(sum[row] * r.factor, (T *)r.y + y_at(r, first + row) + col);
}

template <typename T>
static enum ctw_status launch(struct ctw_cuda *cu, const struct rotate &r, struct ctw_err *err)
{
    if (r.matrix != NULL) {
        dim3 grid((unsigned)((r.n_groups + TILE_ROWS - 1) / TILE_ROWS),
                  (unsigned)((r.size + TILE_COLS - 1) / TILE_COLS));
        multiply<T><<<grid, TILE_COLS, 0, cu->stream>>>(r);
        return ctw_cuda_launched("rotation", err);
    }
    int few = r.size < HADAMARD_ELEMS ? HADAMARD_ELEMS / r.size : 1;
    int bytes = few * r.size * (int)sizeof(float);
    enum ctw_status st = ctw_cuda_check(
        cudaFuncSetAttribute(hadamard<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             CTW_MAX_HADAMARD * (int)sizeof(float)),
        "rotation", err);
    if (st != CTW_OK)
        return st;
    unsigned blocks = (unsigned)((r.n_groups + few - 1) / few);
    hadamard<T><<<blocks, HADAMARD_THREADS, (size_t)bytes, cu->stream>>>(r, few);
    return ctw_cuda_launched("rotation", err);
}

enum ctw_status ctw_cuda_rotate(struct ctw_cuda *cu, const struct ctw_op_rotate *op,
                                struct ctw_err *err)
{
    if (op->n_tok == 0)
        return CTW_OK;
    struct rotate r = {};
    r.per_row = op->dim / op->how->size;
    r.n_groups = op->n_tok * r.per_row;
    r.size = (int)op->how->size;
    r.matrix = op->how->matrix;
    r.signs = op->how->signs;
    r.signs_last = op->how->signs_last;
    r.factor = op->how->factor;
    r.rows = op->rows;
    r.x = op->x;
    r.ldx = op->ldx;
    r.y = op->y;
    r.ldy = op->ldy;
    return op->dtype == CTW_F32    ? launch<float>(cu, r, err)
           : op->dtype == CTW_BF16 ? launch<__nv_bfloat16>(cu, r, err)
                                   : launch<__half>(cu, r, err);
}
