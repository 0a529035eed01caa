/*
 * Residual streams collapsed. fp32 sums, in an order that depends on the sizes alone: lane i of a
 * warp adds the products of elements i, i + 32, .. of a row of fn, and the lanes' sums are added in
 * pairs.
 *
 * Any sizes: a block has TOKENS tokens, so that fn is read once for all of them. Each warp takes
 * some rows of fn, and the first threads then a token's factors each.
 *
 * Sizes of published models, with the same bits, in two kernels: products of many tokens with all
 * of fn, from tiles in shared memory, which wait in the first columns of y; then factors, and the
 * sums of the streams, which are read once more.
 */
#include "kernels/cuda/elements.h"
#include "kernels/streams.h"

enum { THREADS = 256, WARP = 32, WARPS = THREADS / WARP, TOKENS = 4, MOST = CTW_MAX_STREAMS };
enum { ROWS = 2 * MOST + MOST * MOST };
enum { STAGES = 2, EACH = 4 }; /* tiles in shared memory; tokens of a warp */

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

/* A token's factors before their activations, of its products in m, and its pre; by one thread. */
static __device__ void write_pre(const struct ctw_op_collapse &op, int64_t t, int n_rows,
                                 float squares, float *m, float *pre)
{
    const int n = op.n;
    const int64_t from = op.rows != NULL ? op.rows[t] : t;
    if (op.bad != NULL && !isfinite(squares) && op.bad[from] < 0)
        op.bad[from] = op.stamp;
    const float rms = sqrtf(squares / (float)(op.n * op.dim) + op.norm_eps);
    for (int r = 0; r < n_rows; r++)
        m[r] = m[r] / rms *
                   ctw_cuda_number(op.scale.at, op.scale.dtype,
                                   r < n       ? 0
                                   : r < 2 * n ? 1
                                               : 2) +
               ctw_cuda_number(op.base.at, op.base.dtype, r);
    for (int s = 0; s < n; s++)
        pre[s] = op.fn.at == NULL ? 1.0f / (float)n : sigmoid(m[s]) + op.eps;
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
        write_pre(op, t0 + j, n_rows, squares[j], m[j], pre[j]);
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

/* ---- published sizes ---------------------------------------------------------------------- */

static __device__ __forceinline__ void copy_16(void *to, const void *from)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}

/* PART: elements of a tile. */
template <typename W, int R, int TILE, int PART> struct stage {
    float x[TILE][PART];
    W fn[2 * R][PART];
};

/* Begins to copy a tile's elements, from i0 on, of the tokens and of fn. row: where a token's
 * elements begin in x. */
template <typename W, int R, int TILE, int PART>
static __device__ __forceinline__ void load_stage(struct stage<W, R, TILE, PART> &to,
                                                  const struct ctw_op_collapse &op,
                                                  const int64_t *row, int64_t i0)
{
    constexpr int OF_X = 16 / sizeof(float), OF_FN = 16 / sizeof(W), N = 2 * TILE / EACH * WARP;
    constexpr int X_ROW = PART / OF_X, FN_ROW = PART / OF_FN;
    static_assert(N % X_ROW == 0 && N % FN_ROW == 0, "a thread has one place of all rows");
    const int64_t k = op.n * op.dim;
    const int x_at = (int)threadIdx.x % X_ROW * OF_X, fn_at = (int)threadIdx.x % FN_ROW * OF_FN;
    const float *x = op.x + i0 + x_at;
#pragma unroll
    for (int e = 0; e < TILE * X_ROW / N; e++) {
        const int t = e * (N / X_ROW) + (int)threadIdx.x / X_ROW;
        copy_16(&to.x[t][x_at], x + row[t]);
    }
    const int r0 = (int)threadIdx.x / FN_ROW;
    const W *fn = (const W *)op.fn.at + r0 * k + i0 + fn_at;
#pragma unroll
    for (int r = 0; r < 2 * R; r += N / FN_ROW, fn += N / FN_ROW * k)
        if (r0 + r < 2 * R)
            copy_16(&to.fn[r0 + r][fn_at], fn);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/*
 * To the first columns of y: the products of each token with the 2 R rows of fn, and then of the
 * token with itself. A block has TILE tokens; a warp EACH of them and half of the rows, so that a
 * number that it loads from shared memory takes part in EACH or R products.
 */
template <typename W, int R, int TILE, int PART>
static __global__ void __launch_bounds__(2 * TILE / EACH * WARP)
    multiply(const __grid_constant__ struct ctw_op_collapse op)
{
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ int64_t row[TILE];
    struct stage<W, R, TILE, PART> *stages = (struct stage<W, R, TILE, PART> *)memory;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int r0 = warp % 2 * R, j0 = warp / 2 * EACH, own = warp % 2 * (EACH / 2);
    const int64_t t0 = (int64_t)blockIdx.x * TILE, n_parts = op.n * op.dim / PART;
    for (int i = (int)threadIdx.x; i < TILE; i += (int)blockDim.x) {
        const int64_t t = t0 + i < op.n_tok ? t0 + i : op.n_tok - 1;
        row[i] = (op.rows != NULL ? op.rows[t] : t) * (op.n * op.dim);
    }
    __syncthreads();
    for (int i = 0; i < STAGES - 1; i++)
        load_stage<W, R, TILE, PART>(stages[i], op, row, i * PART);
    float sum[EACH][R] = {}, square[EACH / 2] = {};
    for (int64_t part = 0; part < n_parts; part++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads(); /* the part has arrived, and no thread still reads the one before */
        if (part + STAGES - 1 < n_parts)
            load_stage<W, R, TILE, PART>(stages[(part + STAGES - 1) % STAGES], op, row,
                                         (part + STAGES - 1) * PART);
        else
            asm volatile("cp.async.commit_group;" ::: "memory");
        const struct stage<W, R, TILE, PART> &from = stages[part % STAGES];
#pragma unroll 4
        for (int e = 0; e < PART / WARP; e++) {
            const int i = e * WARP + lane;
            float f[EACH];
#pragma unroll
            for (int j = 0; j < EACH; j++)
                f[j] = from.x[j0 + j][i];
#pragma unroll
            for (int j = 0; j < EACH / 2; j++) {
                const float v = own == 0 ? f[j] : f[EACH / 2 + j];
                square[j] = fmaf(v, v, square[j]);
            }
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float w = ctw_cuda_widen(from.fn[r0 + r][i]);
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    sum[j][r] = fmaf(w, f[j], sum[j][r]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int64_t t = t0 + j0 + j;
        float *to = op.y + t * op.dim;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float all = lanes_sum(sum[j][r]);
            if (lane == 0 && t < op.n_tok)
                to[r0 + r] = all;
        }
    }
#pragma unroll
    for (int j = 0; j < EACH / 2; j++) {
        const int64_t t = t0 + j0 + own + j;
        const float all = lanes_sum(square[j]);
        if (lane == 0 && t < op.n_tok)
            op.y[t * op.dim + 2 * R] = all;
    }
}

/* As balance(), in registers. */
template <int N>
static __device__ __forceinline__ void balance_all(float (&comb)[N * N], bool columns, float eps)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < N; j++)
            sum += columns ? comb[j * N + i] : comb[i * N + j];
        sum += eps;
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (columns)
                comb[j * N + i] /= sum;
            else
                comb[i * N + j] /= sum;
        }
    }
}

/* As write_mix(), of N streams and with comb in registers; by one thread. */
template <int N>
static __device__ void write_balanced(const struct ctw_op_collapse &op, const float *m, float *mix)
{
    float comb[N * N];
#pragma unroll
    for (int s = 0; s < N; s++)
        mix[s] = op.post_factor * sigmoid(m[N + s]) + op.post_eps;
#pragma unroll
    for (int i = 0; i < N * N; i++)
        comb[i] = op.n_sinkhorn > 0 ? m[2 * N + i] : i / N == i % N ? 1.0f : 0.0f;
#pragma unroll
    for (int s = 0; s < N && op.n_sinkhorn > 0; s++) {
        float *row = comb + s * N, most = row[0], sum = 0;
#pragma unroll
        for (int t = 1; t < N; t++)
            most = fmaxf(most, row[t]);
#pragma unroll
        for (int t = 0; t < N; t++)
            sum += row[t] = expf(row[t] - most);
#pragma unroll
        for (int t = 0; t < N; t++)
            row[t] = row[t] / sum + op.eps;
    }
    if (op.n_sinkhorn > 0)
        balance_all<N>(comb, true, op.eps);
    for (int i = 1; i < op.n_sinkhorn; i++) {
        balance_all<N>(comb, false, op.eps);
        balance_all<N>(comb, true, op.eps);
    }
#pragma unroll
    for (int i = 0; i < N * N; i++)
        mix[N + i] = comb[i];
}

/* The factors of TOKENS tokens from their products in y, which their sums of N streams replace.
 * The first warp makes post and comb, the others the sums. */
template <int N>
static __global__ void __launch_bounds__(THREADS)
    add_streams(const __grid_constant__ struct ctw_op_collapse op, int n_rows)
{
    __shared__ float m[TOKENS][ROWS], pre[TOKENS][N];
    const int64_t t0 = (int64_t)blockIdx.x * TOKENS;
    const int n_tok = (int)(op.n_tok - t0 < TOKENS ? op.n_tok - t0 : (int64_t)TOKENS);
    const int j0 = (int)threadIdx.x;
    for (int i = j0; i < n_tok * n_rows; i += THREADS)
        m[i / n_rows][i % n_rows] = op.y[(t0 + i / n_rows) * op.dim + i % n_rows];
    __syncthreads();
    if (j0 < n_tok)
        write_pre(op, t0 + j0, n_rows, op.y[(t0 + j0) * op.dim + n_rows], m[j0], pre[j0]);
    __syncthreads();
    if (j0 < n_tok && op.mix != NULL)
        write_balanced<N>(op, m[j0], op.mix + (t0 + j0) * (N + N * N));
    for (int j = 0; j < n_tok && j0 >= WARP; j++) {
        const int64_t from = op.rows != NULL ? op.rows[t0 + j] : t0 + j;
        const float *f = op.x + from * N * op.dim;
        float *y = op.y + (t0 + j) * op.dim;
        for (int64_t i = 4 * (j0 - WARP); i < op.dim; i += 4 * (THREADS - WARP)) {
            float v[4], sum[4];
#pragma unroll
            for (int s = 0; s < N; s++) {
                ctw_cuda_load<true>(f + s * op.dim + i, v);
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sum[c] = s == 0 ? __fmul_rn(pre[j][0], v[c]) : fmaf(pre[j][s], v[c], sum[c]);
            }
            ctw_cuda_store(y + i, sum);
        }
    }
}

template <typename W, int R, int TILE, int PART>
static enum ctw_status collapse_tiles(struct ctw_cuda *cu, const struct ctw_op_collapse *op,
                                      struct ctw_err *err)
{
    const int bytes = STAGES * (int)sizeof(struct stage<W, R, TILE, PART>);
    enum ctw_status st =
        ctw_cuda_check(cudaFuncSetAttribute(multiply<W, R, TILE, PART>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                       "collapsing residual streams", err);
    if (st != CTW_OK)
        return st;
    multiply<W, R, TILE, PART>
        <<<(unsigned)((op->n_tok + TILE - 1) / TILE), 2 * TILE / EACH * WARP, bytes, cu->stream>>>(
            *op);
    add_streams<4>
        <<<(unsigned)((op->n_tok + TOKENS - 1) / TOKENS), THREADS, 0, cu->stream>>>(*op, 2 * R);
    return ctw_cuda_launched("collapsing residual streams", err);
}

enum { PART = 128, LARGE_PART = 256, LARGE = 32, SMALL = 8, MANY = 4096 };

template <typename W, int R>
static enum ctw_status collapse_half(struct ctw_cuda *cu, const struct ctw_op_collapse *op,
                                     struct ctw_err *err)
{
    return op->n_tok >= MANY && op->n * op->dim % LARGE_PART == 0
               ? collapse_tiles<W, R, LARGE, LARGE_PART>(cu, op, err)
               : collapse_tiles<W, R, SMALL, PART>(cu, op, err);
}

/* Rows of fn: 24 with comb, 8 without it, 4 of the last collapse. */
template <typename W>
static enum ctw_status collapse_fast(struct ctw_cuda *cu, const struct ctw_op_collapse *op,
                                     int64_t n_rows, struct ctw_err *err)
{
    return n_rows == 24  ? collapse_half<W, 12>(cu, op, err)
           : n_rows == 8 ? collapse_half<W, 4>(cu, op, err)
                         : collapse_half<W, 2>(cu, op, err);
}

enum ctw_status ctw_cuda_collapse(struct ctw_cuda *cu, const struct ctw_op_collapse *op,
                                  struct ctw_err *err)
{
    const int64_t n_rows = ctw_stream_rows(op->n, op->mix != NULL, op->n_sinkhorn);
    const bool fast = op->fn.at != NULL && op->n == 4 && op->dim % (PART / 4) == 0 &&
                      op->dim > n_rows && op->n * op->dim >= STAGES * LARGE_PART &&
                      ctw_cuda_aligned16(op->fn.at) && ctw_cuda_aligned16(op->x) &&
                      ctw_cuda_aligned16(op->y);
    if (fast && op->fn.dtype == CTW_F32)
        return collapse_fast<float>(cu, op, n_rows, err);
    if (fast && op->fn.dtype == CTW_BF16)
        return collapse_fast<__nv_bfloat16>(cu, op, n_rows, err);
    collapse_rows<<<(unsigned)((op->n_tok + TOKENS - 1) / TOKENS), THREADS, 0, cu->stream>>>(*op);
    return ctw_cuda_launched("collapsing residual streams", err);
}
