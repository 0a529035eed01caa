/*
 * Residual streams expanded. Memory-bound: a block has a token; a thread, all streams of some
 * columns. A stream's sum is fma(post, out, comb x[0]), to which products are added one after
 * another; with fewer than MOST streams, 0 last.
 */
#include "kernels/cuda/elements.h"
#include "kernels/streams.h"

enum { THREADS = 256, MOST = CTW_MAX_STREAMS };

/* post, times the factor, and comb of a token. */
static __device__ void load_mix(const struct ctw_op_expand &op, int64_t row, float *mix)
{
    const int n = op.n;
    for (int i = (int)threadIdx.x; i < n + n * n; i += THREADS)
        mix[i] = i < n       ? op.mix[row * (op.apart ? n : n + n * n) + i] * op.factor
                 : !op.apart ? op.mix[row * (n + n * n) + i]
                             : ((i - n) / n == (i - n) % n ? 1.0f : 0.0f);
    __syncthreads();
}

static __device__ __forceinline__ float add_product(float sum, float a, float b)
{
    return __fadd_rn(sum, __fmul_rn(a, b));
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    expand_rows(const __grid_constant__ struct ctw_op_expand op)
{
    __shared__ float mix[MOST + MOST * MOST];
    const int n = op.n;
    const int64_t row = blockIdx.x;
    float *x = op.x + row * n * op.dim;
    load_mix(op, row, mix);
    for (int64_t i = threadIdx.x; i < op.dim; i += THREADS) {
        const float out = ctw_cuda_widen(((const T *)op.out)[row * op.dim + i]);
        float in[MOST];
#pragma unroll
        for (int s = 0; s < MOST; s++)
            in[s] = s < n ? x[s * op.dim + i] : 0.0f;
        for (int t = 0; t < n; t++) {
            float sum = fmaf(mix[t], out, __fmul_rn(mix[n + t], in[0]));
#pragma unroll
            for (int s = 1; s < MOST; s++)
                sum = s < n ? add_product(sum, mix[n + s * n + t], in[s]) : __fadd_rn(sum, 0.0f);
            x[t * op.dim + i] = sum;
        }
    }
}

/* The same of N streams, 4 columns at a time. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    expand_vectors(const __grid_constant__ struct ctw_op_expand op)
{
    __shared__ float mix[N + N * N];
    const int64_t row = blockIdx.x;
    float *x = op.x + row * N * op.dim;
    load_mix(op, row, mix);
    for (int64_t i = 4 * threadIdx.x; i < op.dim; i += 4 * THREADS) {
        float out[4], in[N][4], sum[4];
        ctw_cuda_load<true>((const T *)op.out + row * op.dim + i, out);
#pragma unroll
        for (int s = 0; s < N; s++)
            ctw_cuda_load<true>(x + s * op.dim + i, in[s]);
#pragma unroll
        for (int t = 0; t < N; t++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                sum[c] = fmaf(mix[t], out[c], __fmul_rn(mix[N + t], in[0][c]));
#pragma unroll
                for (int s = 1; s < N; s++)
                    sum[c] = add_product(sum[c], mix[N + s * N + t], in[s][c]);
                sum[c] = N < MOST ? __fadd_rn(sum[c], 0.0f) : sum[c];
            }
            ctw_cuda_store(x + t * op.dim + i, sum);
        }
    }
}

enum ctw_status ctw_cuda_expand(struct ctw_cuda *cu, const struct ctw_op_expand *op,
                                struct ctw_err *err)
{
    const bool vectors =
        op->n == 4 && op->dim % 4 == 0 && ctw_cuda_aligned16(op->out) && ctw_cuda_aligned16(op->x);
#define VECTORS_OF(T) expand_vectors<T, 4><<<(unsigned)op->n_tok, THREADS, 0, cu->stream>>>(*op)
#define ROWS_OF(T) expand_rows<T><<<(unsigned)op->n_tok, THREADS, 0, cu->stream>>>(*op)
    if (vectors)
        CTW_CUDA_FLOAT_SWITCH(op->dtype, VECTORS_OF);
    else
        CTW_CUDA_FLOAT_SWITCH(op->dtype, ROWS_OF);
#undef VECTORS_OF
#undef ROWS_OF
    return ctw_cuda_launched("expanding residual streams", err);
}
