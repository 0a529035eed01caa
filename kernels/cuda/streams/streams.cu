/*
 * Residual streams collapsed and expanded. A block has TOKENS tokens, so that fn is read once for
 * all of them: each warp takes some rows of fn, and the first warps then a token's factors each.
 * fp32 sums, in an order that depends on the sizes alone.
 */
#include "kernels/cuda/elements.h"
#include "kernels/streams.h"

enum { THREADS = 256, WARP = 32, WARPS = THREADS / WARP, TOKENS = 4, MOST = CTW_MAX_STREAMS };
enum { ROWS = 2 * MOST + MOST * MOST };

static const unsigned ALL = 0xFFFFFFFFu;

static __device__ __forceinline__ float lanes_sum(float v)
{
#pragma unroll
    for (int bit = WARP / 2; bit >= 1; bit /= 2)
        v += __shfl_xor_sync(ALL, v, bit);
    return v;
}

/* out[token] = the product of fn's row with each token's numbers; fn NULL: of these with
 * themselves. */
static __device__ void products(const struct ctw_op_collapse &op, const float *const (&f)[TOKENS],
                                int64_t fn_row, float (&out)[TOKENS])
{
    const int64_t k = op.n * op.dim;
    float sum[TOKENS] = {};
    for (int64_t i = (int64_t)threadIdx.x % WARP; i < k; i += WARP) {
        float w = fn_row < 0 ? 0.0f : ctw_cuda_number(op.fn.at, op.fn.dtype, fn_row * k + i);
#pragma unroll
        for (int j = 0; j < TOKENS; j++) {
            float v = f[j][i];
            sum[j] = fmaf(fn_row < 0 ? v : w, v, sum[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < TOKENS; j++)
        out[j] = lanes_sum(sum[j]);
}

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ void balance(float *comb, int n, bool columns, float eps)
{
    for (int i = 0; i < n; i++) {
        float sum = 0;
        for (int j = 0; j < n; j++)
            sum += comb[columns ? j * n + i : i * n + j];
        for (int j = 0; j < n; j++)
            comb[columns ? j * n + i : i * n + j] /= sum + eps;
    }
}

/* post and comb of a token, by one thread; m: its factors before their activations. */
static __device__ void write_mix(const struct ctw_op_collapse &op, float *m, float *mix)
{
    const int n = op.n;
    float *comb = m + 2 * n;
    for (int s = 0; s < n; s++)
        mix[s] = op.post_factor * sigmoid(m[n + s]) + op.post_eps;
    if (op.n_sinkhorn == 0) {
        for (int i = 0; i < n * n; i++)
            mix[n + i] = i / n == i % n ? 1.0f : 0.0f;
        return;
    }
    for (int s = 0; s < n; s++) {
        float *row = comb + s * n, most = row[0], sum = 0;
        for (int t = 1; t < n; t++)
            most = fmaxf(most, row[t]);
        for (int t = 0; t < n; t++)
            sum += row[t] = expf(row[t] - most);
        for (int t = 0; t < n; t++)
            row[t] = row[t] / sum + op.eps;
    }
    balance(comb, n, true, op.eps);
    for (int i = 1; i < op.n_sinkhorn; i++) {
        balance(comb, n, false, op.eps);
        balance(comb, n, true, op.eps);
    }
    for (int i = 0; i < n * n; i++)
        mix[n + i] = comb[i];
}

static __global__ void __launch_bounds__(THREADS)
    collapse_rows(const __grid_constant__ struct ctw_op_collapse op)
{
    __shared__ float m[TOKENS][ROWS], pre[TOKENS][MOST], squares[TOKENS];
    const int64_t t0 = (int64_t)blockIdx.x * TOKENS, k = op.n * op.dim;
    const int n = op.n, warp = (int)threadIdx.x / WARP;
    const bool mean = op.fn.at == NULL;
    const int n_rows = mean ? 0 : (int)ctw_stream_rows(n, op.mix != NULL, op.n_sinkhorn);
    const int n_tok = (int)(op.n_tok - t0 < TOKENS ? op.n_tok - t0 : (int64_t)TOKENS);
    const float *f[TOKENS];
#pragma unroll
    for (int j = 0; j < TOKENS; j++) {
        int64_t t = t0 + (j < n_tok ? j : 0);
        f[j] = op.x + (op.rows != NULL ? op.rows[t] : t) * k;
    }
    for (int r = warp - 1; r < n_rows; r += WARPS) {
        float sum[TOKENS];
        products(op, f, r, sum); /* row -1: the squares */
        for (int j = 0; j < TOKENS && threadIdx.x % WARP == 0; j++)
            *(r < 0 ? &squares[j] : &m[j][r]) = sum[j];
    }
    __syncthreads();
    if ((int)threadIdx.x < n_tok) {
        const int j = (int)threadIdx.x;
        const int64_t from = op.rows != NULL ? op.rows[t0 + j] : t0 + j;
        if (op.bad != NULL && !isfinite(squares[j]) && op.bad[from] < 0)
            op.bad[from] = op.stamp;
        const float rms = sqrtf(squares[j] / (float)k + op.norm_eps);
        for (int r = 0; r < n_rows; r++)
            m[j][r] = m[j][r] / rms * ctw_cuda_number(op.scale.at, op.scale.dtype,
                                                      r < n ? 0 : r < 2 * n ? 1 : 2) +
                      ctw_cuda_number(op.base.at, op.base.dtype, r);
        for (int s = 0; s < n; s++)
            pre[j][s] = mean ? 1.0f / (float)n : sigmoid(m[j][s]) + op.eps;
        if (op.mix != NULL)
            write_mix(op, m[j], op.mix + (t0 + j) * (n + n * n));
    }
    __syncthreads();
    for (int j = 0; j < n_tok; j++)
        for (int64_t i = threadIdx.x; i < op.dim; i += THREADS) {
            float sum = pre[j][0] * f[j][i];
            for (int s = 1; s < n; s++)
                sum += pre[j][s] * f[j][s * op.dim + i];
            op.y[(t0 + j) * op.dim + i] = sum;
        }
}

enum ctw_status ctw_cuda_collapse(struct ctw_cuda *cu, const struct ctw_op_collapse *op,
                                  struct ctw_err *err)
{
    collapse_rows<<<(unsigned)((op->n_tok + TOKENS - 1) / TOKENS), THREADS, 0, cu->stream>>>(*op);
    return ctw_cuda_launched("collapsing residual streams", err);
}

/* A block has a token; a thread, all streams of some columns. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    expand_rows(const __grid_constant__ struct ctw_op_expand op)
{
    __shared__ float mix[MOST + MOST * MOST];
    const int n = op.n;
    const int64_t row = blockIdx.x;
    for (int i = (int)threadIdx.x; i < n + n * n; i += THREADS)
        mix[i] = i < n       ? op.mix[row * (op.apart ? n : n + n * n) + i] * op.factor
                 : !op.apart ? op.mix[row * (n + n * n) + i]
                             : ((i - n) / n == (i - n) % n ? 1.0f : 0.0f);
    __syncthreads();
    float *x = op.x + row * n * op.dim;
    for (int64_t i = threadIdx.x; i < op.dim; i += THREADS) {
        const float out = ctw_cuda_widen(((const T *)op.out)[row * op.dim + i]);
        float in[MOST];
#pragma unroll
        for (int s = 0; s < MOST; s++)
            in[s] = s < n ? x[s * op.dim + i] : 0.0f;
        for (int t = 0; t < n; t++) {
            float sum = mix[t] * out;
#pragma unroll
            for (int s = 0; s < MOST; s++)
                sum += s < n ? mix[n + s * n + t] * in[s] : 0.0f;
            x[t * op.dim + i] = sum;
        }
    }
}

enum ctw_status ctw_cuda_expand(struct ctw_cuda *cu, const struct ctw_op_expand *op,
                                struct ctw_err *err)
{
#define ROWS_OF(T) expand_rows<T><<<(unsigned)op->n_tok, THREADS, 0, cu->stream>>>(*op)
    CTW_CUDA_FLOAT_SWITCH(op->dtype, ROWS_OF);
#undef ROWS_OF
    return ctw_cuda_launched("expanding residual streams", err);
}
