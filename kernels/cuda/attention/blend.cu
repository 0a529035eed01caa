/* ctw_blend(): a block for each token, sums in a fixed order. */
#include "kernels/blend.h"
#include "kernels/cuda/elements.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

static const unsigned ALL = 0xFFFFFFFFu;

/* Of all threads' v; all get it. */
static __device__ float block_sum(float v, float *warps)
{
    for (int by = 16; by > 0; by /= 2)
        v += __shfl_xor_sync(ALL, v, by);
    __syncthreads(); /* no thread reads `warps` any more */
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < WARPS; w++)
        v += warps[w];
    return v;
}

static __global__ void __launch_bounds__(THREADS)
    blend_rows(const __grid_constant__ struct ctw_op_blend op)
{
    __shared__ float warps[WARPS], weight[CTW_MAX_BLEND];
    const int64_t row = op.rows != NULL ? op.rows[blockIdx.x] : (int64_t)blockIdx.x;
    const float *x = op.x + row * op.ldx;
    float *y = op.y + row * op.ldy;
    float most = -INFINITY, total = 0;
    for (int s = 0; s < op.n_parts; s++) {
        float dot = 0, squares = 0;
        for (int64_t i = threadIdx.x; i < op.dim; i += THREADS) {
            const float v = x[s * op.dim + i];
            const float a = ctw_cuda_number(op.a, op.a_dtype, i);
            const float b = op.b != NULL ? ctw_cuda_number(op.b, op.b_dtype, i) : 1;
            dot = fmaf(a * b, v, dot);
            squares = fmaf(v, v, squares);
        }
        dot = block_sum(dot, warps);
        squares = block_sum(squares, warps);
        const float score = dot / sqrtf(squares / (float)op.dim + op.eps);
        most = fmaxf(most, score);
        if (threadIdx.x == 0)
            weight[s] = score;
    }
    __syncthreads();
    for (int s = 0; s < op.n_parts; s++)
        total += expf(weight[s] - most);
    for (int64_t i = threadIdx.x; i < op.dim; i += THREADS) {
        float sum = 0;
        for (int s = 0; s < op.n_parts; s++)
            sum = fmaf(expf(weight[s] - most), x[s * op.dim + i], sum);
        y[i] = sum / total;
    }
}

enum ctw_status ctw_cuda_blend(struct ctw_cuda *cu, const struct ctw_op_blend *op, struct ctw_err *err)
{
    blend_rows<<<(unsigned)op->n_tok, THREADS, 0, cu->stream>>>(*op);
    return ctw_cuda_launched("a blend", err);
}
