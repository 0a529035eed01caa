/* Features of n-grams for residual streams. A block has a token; its threads share each stream's
 * sums, whose order depends on the sizes alone. */
#include "kernels/cuda/elements.h"
#include "kernels/ngram_gate.h"

enum { THREADS = 256, WARP = 32, WARPS = THREADS / WARP };

/* The sum of all threads' numbers, for all of them. */
static __device__ float block_sum(float v, float *shared)
{
#pragma unroll
    for (int bit = WARP / 2; bit >= 1; bit /= 2)
        v += __shfl_xor_sync(0xFFFFFFFFu, v, bit);
    __syncthreads(); /* the last sum has been read */
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = v;
    __syncthreads();
    float all = 0;
    for (int w = 0; w < WARPS; w++)
        all += shared[w];
    return all;
}

static __device__ __forceinline__ float gate_of(float g)
{
    const float size = sqrtf(fmaxf(fabsf(g), 1e-6f));
    const float v = g > 0 ? size : g < 0 ? -size : 0.0f * g; /* NaN stays */
    return 1.0f / (1.0f + expf(-v));
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    gate_rows(const __grid_constant__ struct ctw_op_ngram_gate op)
{
    __shared__ float shared[WARPS];
    const int64_t row = blockIdx.x, width = op.n * op.dim;
    const T *key = (const T *)op.key + row * op.ld, *value = (const T *)op.value + row * op.ld;
    float all = 0;
    for (int s = 0; s < op.n; s++) {
        float xx = 0, kk = 0, dot = 0;
        for (int64_t i = s * op.dim + threadIdx.x; i < (s + 1) * op.dim; i += THREADS) {
            const float x = op.x[row * width + i], k = ctw_cuda_widen(key[i]);
            const float kw = ctw_cuda_number(op.key_norm.at, op.key_norm.dtype, i) + op.offset;
            const float xw = ctw_cuda_number(op.x_norm.at, op.x_norm.dtype, i) + op.offset;
            xx = fmaf(x, x, xx);
            kk = fmaf(k, k, kk);
            dot = fmaf(k * kw, x * xw, dot);
        }
        xx = block_sum(xx, shared);
        kk = block_sum(kk, shared);
        dot = block_sum(dot, shared);
        all += xx;
        const float dim = (float)op.dim;
        const float gate = gate_of(dot / sqrtf(xx / dim + op.eps) / sqrtf(kk / dim + op.eps) /
                                   sqrtf(dim));
        for (int64_t i = threadIdx.x; i < op.dim; i += THREADS)
            ctw_cuda_narrow(gate * ctw_cuda_widen(value[i]),
                            (T *)op.y + row * width + s * op.dim + i);
    }
    if (threadIdx.x == 0 && op.bad != NULL && !isfinite(all) && op.bad[row] < 0)
        op.bad[row] = op.stamp;
}

enum ctw_status ctw_cuda_ngram_gate(struct ctw_cuda *cu, const struct ctw_op_ngram_gate *op,
                                    struct ctw_err *err)
{
#define GATE(T) gate_rows<T><<<(unsigned)op->n_tok, THREADS, 0, cu->stream>>>(*op)
    CTW_CUDA_FLOAT_SWITCH(op->dtype, GATE);
#undef GATE
    return ctw_cuda_launched("features of n-grams", err);
}
