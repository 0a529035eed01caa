/*
 * Rows of a product's x, gathered into scratch for products that do not gather themselves: as they
 * are, times a weight, or widened. Memory-bound: 8 elements per thread, 16 bytes at a time.
 */
#include "kernels/cuda/elements.h"

enum {
    THREADS = 256,
    VECTOR = 8,
    MOST_ROWS = 32768 /* of a grid; blocks take further rows in turn */
};

struct gather {
    int64_t n, k, ldx, ldy;
    const void *x;
    const int32_t *rows; /* [n], or NULL: row t */
    const float *weight; /* [n], or NULL: 1 */
    void *y;
    bool vectors; /* rows can be read and written VECTOR elements at a time */
};

/* y[t] = x[rows[t]] * weight[t], rounded once. */
template <typename S, typename D>
static __global__ void __launch_bounds__(THREADS) gather_rows(const __grid_constant__ struct gather a)
{
    int64_t col = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    if (col >= a.k)
        return;
    for (int64_t t = blockIdx.y; t < a.n; t += gridDim.y) {
        const S *x = (const S *)a.x + (a.rows == NULL ? t : (int64_t)a.rows[t]) * a.ldx;
        D *y = (D *)a.y + t * a.ldy;
        float weight = a.weight == NULL ? 1.0f : a.weight[t];
        if (a.vectors) {
            float v[VECTOR];
            ctw_cuda_load<false>(x + col, v);
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                v[i] *= weight;
            ctw_cuda_store(y + col, v);
            continue;
        }
        for (int64_t c = col; c < a.k && c < col + VECTOR; c++)
            ctw_cuda_narrow(ctw_cuda_widen(x[c]) * weight, y + c);
    }
}

enum ctw_status ctw_cuda_gather(struct ctw_cuda *cu, const struct ctw_op_linear *op, int64_t first,
                                int64_t n, enum ctw_dtype y_dtype, void *y, int64_t ldy,
                                struct ctw_err *err)
{
    struct gather a = {};
    a.n = n;
    a.k = op->shards[0].weight->k;
    a.ldx = op->ldx;
    a.ldy = ldy;
    a.x = op->x;
    a.rows = op->x_rows;
    a.weight = op->x_weight;
    a.y = y;
    if (a.rows == NULL)
        a.x = (const char *)a.x + (size_t)(first * a.ldx) * ctw_dtype_bytes(op->dtype);
    else
        a.rows += first;
    if (a.weight != NULL)
        a.weight += first;
    a.vectors = (a.k | a.ldx | a.ldy) % VECTOR == 0 && ctw_cuda_aligned16(a.x) && ctw_cuda_aligned16(y);
    dim3 grid((unsigned)((a.k + THREADS * VECTOR - 1) / (THREADS * VECTOR)),
              (unsigned)(n < MOST_ROWS ? n : (int64_t)MOST_ROWS));
    cudaStream_t stream = cu->stream;
    if (op->dtype == CTW_F32)
        gather_rows<float, float><<<grid, THREADS, 0, stream>>>(a);
    else if (op->dtype == CTW_BF16 && y_dtype == CTW_F32)
        gather_rows<__nv_bfloat16, float><<<grid, THREADS, 0, stream>>>(a);
    else if (op->dtype == CTW_BF16)
        gather_rows<__nv_bfloat16, __nv_bfloat16><<<grid, THREADS, 0, stream>>>(a);
    else if (y_dtype == CTW_F32)
        gather_rows<__half, float><<<grid, THREADS, 0, stream>>>(a);
    else
        gather_rows<__half, __half><<<grid, THREADS, 0, stream>>>(a);
    return ctw_cuda_launched("gathering rows", err);
}
