/*
 * Alternating updates of residual streams. A block has one token; its threads share the sums over a
 * stream, whose order depends on the size alone. fp32.
 */
#include "kernels/altup.h"
#include "kernels/cuda/elements.h"

enum { THREADS = 256, WARPS = THREADS / 32, MOST = CTW_MAX_STREAMS };

/* sums[0 .. n-1] over the block's threads, in each of them. */
static __device__ void block_sums(float (&sums)[MOST + 1], int n)
{
    __shared__ float part[WARPS][MOST + 1];
#pragma unroll
    for (int j = 0; j <= MOST; j++) {
        if (j >= n)
            break;
        float v = ctw_cuda_lanes_sum(sums[j], 32);
        if (threadIdx.x % 32 == 0)
            part[threadIdx.x / 32][j] = v;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j <= MOST; j++) {
        if (j >= n)
            break;
        sums[j] = 0;
        for (int w = 0; w < WARPS; w++)
            sums[j] += part[w][j];
    }
    __syncthreads();
}

/* c [rows] in shared memory, of what r says. */
static __device__ void coefficients(const struct ctw_op_altup &op, const float *r, int rows,
                                    float *c)
{
    __shared__ float m[MOST];
    float sums[MOST + 1] = {}; /* of squares, and behind it with each row of the router */
    for (int64_t i = threadIdx.x; i < op.dim; i += THREADS) {
        float v = r[i], normed = v * ctw_cuda_number(op.norm.at, op.norm.dtype, i);
        sums[0] = fmaf(v, v, sums[0]);
#pragma unroll
        for (int j = 0; j < MOST; j++)
            if (j < op.n)
                sums[1 + j] = fmaf(
                    normed, ctw_cuda_number(op.router.at, op.router.dtype, j * op.dim + i),
                    sums[1 + j]);
    }
    block_sums(sums, 1 + op.n);
    const float size = (float)op.dim * sqrtf(sums[0] / (float)op.dim + op.eps);
#pragma unroll
    for (int j = 0; j < MOST; j++)
        if (threadIdx.x == 0 && j < op.n)
            m[j] = tanhf(sums[1 + j] / size);
    __syncthreads();
    for (int k = (int)threadIdx.x; k < rows; k += THREADS) {
        float sum = 0;
        for (int j = 0; j < op.n; j++)
            sum = fmaf(ctw_cuda_number(op.coefs.at, op.coefs.dtype, k * op.n + j), m[j], sum);
        c[k] = sum;
    }
    __syncthreads();
}

static __device__ void level(const struct ctw_op_altup &op, float *x)
{
    float sums[MOST + 1] = {};
    for (int64_t i = threadIdx.x; i < op.dim; i += THREADS)
#pragma unroll
        for (int s = 0; s < MOST; s++)
            if (s < op.n)
                sums[s] = fmaf(x[s * op.dim + i], x[s * op.dim + i], sums[s]);
    block_sums(sums, op.n);
    const float most = sums[0] / (float)op.dim;
#pragma unroll
    for (int s = 1; s < MOST; s++) {
        if (s >= op.n)
            break;
        float own = sums[s] / (float)op.dim;
        float factor = sqrtf(most / (own < op.eps ? op.eps : own)); /* NaN stays */
        for (int64_t i = threadIdx.x; i < op.dim; i += THREADS)
            x[s * op.dim + i] *= factor;
    }
}

__global__ void __launch_bounds__(THREADS) altup(const __grid_constant__ struct ctw_op_altup op)
{
    __shared__ float c[MOST * MOST];
    float *x = op.x + blockIdx.x * op.n * op.dim;
    if (op.form == CTW_ALTUP_LEVEL) {
        level(op, x);
        return;
    }
    const bool predicts = op.form == CTW_ALTUP_PREDICT;
    const float *r = predicts ? x + op.active * op.dim : op.r + blockIdx.x * op.dim;
    coefficients(op, r, predicts ? op.n * op.n : op.n, c);
    for (int64_t i = threadIdx.x; i < op.dim; i += THREADS) {
        float old[MOST];
        for (int s = 0; s < op.n; s++)
            old[s] = x[s * op.dim + i];
        const float step = predicts ? 0.0f : r[i] - old[op.active];
        for (int s = 0; s < op.n; s++) {
            float sum = old[s];
            for (int j = 0; predicts && j < op.n; j++)
                sum = fmaf(c[s * op.n + j], old[j], sum);
            x[s * op.dim + i] = predicts ? sum : fmaf(1.0f + c[s], step, sum);
        }
    }
}

enum ctw_status ctw_cuda_altup(struct ctw_cuda *cu, const struct ctw_op_altup *op,
                               struct ctw_err *err)
{
    altup<<<(unsigned)op->n_tok, THREADS, 0, cu->stream>>>(*op);
    return ctw_cuda_launched("altup", err);
}
