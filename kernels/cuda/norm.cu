/*
 * Norms of rows, or of groups of a row. norm_row is RMSNorm with a weight, which most models have
 * and nothing else; norm_any has every kind. Both are memory-bound: an element is read once and
 * written once, 8 or 16 bytes at a time, contiguous across a warp's lanes.
 */
#include "kernels/cuda/elements.h"

enum {
    NORM_THREADS = 1024,
    GROUP_THREADS = 256, /* of a block whose groups have a warp each */
    KEPT = 16            /* elements of its row that a thread keeps in registers */
};

struct norm {
    int dim;
    const void *x, *weight;
    const int64_t *rows;
    enum ctw_dtype weight_dtype;
    float weight_offset, eps;
    void *y;
    int16_t *bad;
    int16_t stamp;
    bool vectors; /* rows, weight and bias can be read and written V elements at a time */
    /* Of norm_any alone: */
    enum ctw_norm_kind kind;
    enum ctw_dtype bias_dtype;
    const void *bias;
    unsigned n_items, n_groups;
    int64_t ldx, ldy;
    unsigned threads; /* of a group */
    bool own_weights, add;
    float factor;
};

/* Elements at .. at+V-1 of a row of dim; 0 past its end. */
template <bool ONCE, typename T, int V>
static __device__ __forceinline__ void row_load(const T *x, int at, int dim, bool vectors,
                                                float (&v)[V])
{
    if (vectors && at < dim) {
        ctw_cuda_load<ONCE>(x + at, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < V; i++)
        v[i] = at + i < dim ? ctw_cuda_widen(x[at + i]) : 0.0f;
}

/* Elements at .. of y, computed from the elements of x in v. */
template <typename Y, int V>
static __device__ __forceinline__ void norm_store(const struct norm &a, Y *y, int at, float r,
                                                  float (&v)[V])
{
    float w[V];
    if (at >= a.dim)
        return;
#define WEIGHT(T) row_load<false>((const T *)a.weight, at, a.dim, a.vectors, w)
    CTW_CUDA_FLOAT_SWITCH(a.weight_dtype, WEIGHT);
#undef WEIGHT
#pragma unroll
    for (int i = 0; i < V; i++)
        v[i] = v[i] * r * (w[i] + a.weight_offset);
    if (a.vectors) {
        ctw_cuda_store(y + at, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < V; i++)
        if (at + i < a.dim)
            ctw_cuda_narrow(v[i], y + at + i);
}

/*
 * One block per row. The number of threads depends on dim (norm_threads). Thread t takes elements
 * (i * threads + t) * V .. + V - 1 for i = 0, 1, ..: one chain of fused multiply-adds; then the
 * lanes of a warp are added by halves, then the warps by halves. The order is the same with and
 * without vectors. A thread's first KEPT elements stay in registers; the others (rows longer than
 * 16384) are read twice.
 */
template <typename X, typename Y>
__global__ void __launch_bounds__(NORM_THREADS) norm_row(const __grid_constant__ struct norm a)
{
    constexpr int V = sizeof(X) == 4 ? 4 : 8, N = KEPT / V;
    __shared__ float part[32];
    int64_t t = blockIdx.x, row = a.rows == NULL ? t : a.rows[t];
    const X *x = (const X *)a.x + row * a.dim;
    Y *y = (Y *)a.y + t * a.dim;
    const int step = (int)blockDim.x * V, first = (int)threadIdx.x * V;
    float v[N][V], sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        row_load<true>(x, i * step + first, a.dim, a.vectors, v[i]);
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < V; j++)
            sum = fmaf(v[i][j], v[i][j], sum);
    for (int at = N * step + first; at < a.dim; at += step) {
        float more[V];
        row_load<false>(x, at, a.dim, a.vectors, more);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum = fmaf(more[j], more[j], sum);
    }
    sum = ctw_cuda_lanes_sum(sum, 32);
    if (blockDim.x > 32) {
        if (threadIdx.x % 32 == 0)
            part[threadIdx.x / 32] = sum;
        __syncthreads();
        unsigned lane = threadIdx.x % 32;
        sum = ctw_cuda_lanes_sum(lane < blockDim.x / 32 ? part[lane] : 0.0f, 32);
    }
    if (threadIdx.x == 0 && a.bad != NULL && !isfinite(sum) && a.bad[row] < 0)
        a.bad[row] = a.stamp; /* if a row occurs twice, both blocks write the same value */
    float r = 1.0f / sqrtf(sum / (float)a.dim + a.eps);
#pragma unroll
    for (int i = 0; i < N; i++)
        norm_store(a, y, i * step + first, r, v[i]);
    for (int at = N * step + first; at < a.dim; at += step) {
        float more[V];
        row_load<false>(x, at, a.dim, a.vectors, more);
        norm_store(a, y, at, r, more);
    }
}

/* Depends on dim alone: enough threads that each keeps its elements in registers, in whole warps.
 */
static unsigned norm_threads(int64_t dim)
{
    int64_t warps = (dim + 32 * KEPT - 1) / (32 * KEPT);
    return (unsigned)(warps < NORM_THREADS / 32 ? warps * 32 : (int64_t)NORM_THREADS);
}

/* ---- every kind --------------------------------------------------------------------------- */

/* Both sums over a group's threads, in each of them: lanes by halves, then warps by halves. */
static __device__ __forceinline__ float2 group_sums(float2 v, unsigned threads, float2 (&part)[32])
{
    v.x = ctw_cuda_lanes_sum(v.x, 32);
    v.y = ctw_cuda_lanes_sum(v.y, 32);
    if (threads == 32)
        return v;
    const unsigned lane = threadIdx.x % 32;
    if (lane == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    v = lane < threads / 32 ? part[lane] : make_float2(0, 0);
    v.x = ctw_cuda_lanes_sum(v.x, 32);
    v.y = ctw_cuda_lanes_sum(v.y, 32);
    return v;
}

/* Elements at .. of group g of a weight or bias; `none` if the array does not exist. */
template <int V>
static __device__ __forceinline__ void group_load(const struct norm &a, const void *p,
                                                  enum ctw_dtype dtype, int64_t g, int at,
                                                  float none, float (&v)[V])
{
#pragma unroll
    for (int i = 0; i < V; i++)
        v[i] = none;
    if (p == NULL)
        return;
    int64_t own = a.own_weights ? g * a.dim : 0;
#define LOAD(T) row_load<false>((const T *)p + own, at, a.dim, a.vectors, v)
    CTW_CUDA_FLOAT_SWITCH(dtype, LOAD);
#undef LOAD
}

/* Elements at .. of a group of y, computed from the elements of x in v. */
template <typename Y, int V>
static __device__ __forceinline__ void group_store(const struct norm &a, Y *y, int64_t g, int at,
                                                   float mean, float r, float (&v)[V])
{
    float w[V], b[V], old[V];
    if (at >= a.dim)
        return;
    group_load(a, a.weight, a.weight_dtype, g, at, 1.0f, w);
    group_load(a, a.bias, a.bias_dtype, g, at, 0.0f, b);
    if (a.add)
        row_load<false>(y, at, a.dim, a.vectors, old);
    float offset = a.weight == NULL ? 0.0f : a.weight_offset;
#pragma unroll
    for (int i = 0; i < V; i++) {
        v[i] -= mean;
        if (a.kind == CTW_NORM_CUTOFF && v[i] < 0.0f) /* NaN stays */
            v[i] = 0.0f;
        v[i] = fmaf(v[i] * r, w[i] + offset, b[i]);
        v[i] = a.add ? fmaf(v[i], a.factor, old[i]) : v[i] * a.factor;
    }
    if (a.vectors) {
        ctw_cuda_store(y + at, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < V; i++)
        if (at + i < a.dim)
            ctw_cuda_narrow(v[i], y + at + i);
}

/* What a thread adds for V elements: their sum, and the squares of their differences from `mean`.
 * Elements past the group's end count as nothing. */
template <int V>
static __device__ __forceinline__ void add_sums(const struct norm &a, int at, const float (&v)[V],
                                                float mean, float2 *sums)
{
#pragma unroll
    for (int i = 0; i < V; i++) {
        float d = at + i < a.dim ? v[i] - mean : 0.0f;
        sums->x += d;
        sums->y = fmaf(d, d, sums->y);
    }
}

/*
 * A group has a.threads threads: a whole block, or one warp of a block. Elements belong to threads
 * as in norm_row. LayerNorm and the cutoff have two passes: the mean, then the squares of the
 * differences from it.
 * A thread writes only elements that it alone reads, so y may be x.
 */
template <typename X, typename Y>
__global__ void __launch_bounds__(NORM_THREADS) norm_any(const __grid_constant__ struct norm a)
{
    constexpr int V = sizeof(X) == 4 ? 4 : 8, N = KEPT / V;
    __shared__ float2 part[2][32];
    const unsigned item = blockIdx.x * (blockDim.x / a.threads) + threadIdx.x / a.threads;
    if (item >= a.n_items)
        return; /* a whole warp, of a block whose groups have a warp each */
    const int64_t t = item / a.n_groups, g = item % a.n_groups;
    const int64_t row = a.rows == NULL ? t : a.rows[t];
    const X *x = (const X *)a.x + row * a.ldx + g * a.dim;
    Y *y = (Y *)a.y + t * a.ldy + g * a.dim;
    const int thread = (int)(threadIdx.x % a.threads), step = (int)a.threads * V,
              first = thread * V;
    float v[N][V], mean = 0, r = 1;
#pragma unroll
    for (int i = 0; i < N; i++)
        row_load<true>(x, i * step + first, a.dim, a.vectors, v[i]);
    const bool cutoff = a.kind == CTW_NORM_CUTOFF, two = a.kind == CTW_NORM_LAYER || cutoff;
    for (int pass = 0; pass < (two ? 2 : 1); pass++) {
        float2 sums = make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            add_sums(a, i * step + first, v[i], mean, &sums);
        for (int at = N * step + first; at < a.dim; at += step) {
            float more[V];
            row_load<false>(x, at, a.dim, a.vectors, more);
            add_sums(a, at, more, mean, &sums);
        }
        sums = group_sums(sums, a.threads, part[pass]);
        if (pass == 0 && thread == 0 && a.bad != NULL && !isfinite(sums.y) && a.bad[row] < 0)
            a.bad[row] = a.stamp; /* if a row occurs twice, both write the same value */
        if (pass == 0 && two)
            mean = sums.x / (float)a.dim;
        else if (cutoff)
            mean += a.eps * sqrtf(sums.y / (float)a.dim);
        else if (a.kind != CTW_NORM_NONE)
            r = 1.0f / sqrtf(sums.y / (float)a.dim + a.eps);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        group_store(a, y, g, i * step + first, mean, r, v[i]);
    for (int at = N * step + first; at < a.dim; at += step) {
        float more[V];
        row_load<false>(x, at, a.dim, a.vectors, more);
        group_store(a, y, g, at, mean, r, more);
    }
}

/* ---- choosing ----------------------------------------------------------------------------- */

/* Depends on the model alone. */
static bool is_plain(const struct ctw_op_norm *op)
{
    return op->kind == CTW_NORM_RMS && op->n_groups == 1 && op->ldx == op->dim &&
           op->ldy == op->dim && op->weight != NULL && op->bias == NULL && op->factor == 1 &&
           !op->add;
}

template <typename X>
static void norm_to(cudaStream_t stream, const struct ctw_op_norm *op, const struct norm *a)
{
    unsigned threads = norm_threads(op->dim);
    if (is_plain(op)) {
#define TO(Y) norm_row<X, Y><<<(unsigned)op->n_tok, threads, 0, stream>>>(*a)
        CTW_CUDA_FLOAT_SWITCH(op->dtype, TO);
#undef TO
        return;
    }
    unsigned per_block = threads == 32 ? GROUP_THREADS / 32 : 1;
    unsigned blocks = (a->n_items + per_block - 1) / per_block;
#define TO(Y) norm_any<X, Y><<<blocks, threads * per_block, 0, stream>>>(*a)
    CTW_CUDA_FLOAT_SWITCH(op->dtype, TO);
#undef TO
}

enum ctw_status ctw_cuda_norm(struct ctw_cuda *cu, const struct ctw_op_norm *op,
                              struct ctw_err *err)
{
    if (op->n_tok == 0)
        return CTW_OK;
    if (op->n_tok * op->n_groups > INT32_MAX)
        return ctw_fail(err, CTW_EINTERNAL, "cuda: too many groups in one call");
    struct norm a = {};
    a.dim = (int)op->dim;
    a.x = op->x;
    a.weight = op->weight;
    a.rows = op->rows;
    a.weight_dtype = op->weight_dtype;
    a.weight_offset = op->weight_offset;
    a.eps = op->eps;
    a.y = op->y;
    a.bad = op->bad;
    a.stamp = op->stamp;
    a.vectors = op->dim % 8 == 0 && op->ldx % 8 == 0 && op->ldy % 8 == 0 &&
                ctw_cuda_aligned16(op->x) && ctw_cuda_aligned16(op->y) &&
                ctw_cuda_aligned16(op->weight) && ctw_cuda_aligned16(op->bias);
    a.kind = op->kind;
    a.bias_dtype = op->bias_dtype;
    a.bias = op->bias;
    a.n_items = (unsigned)(op->n_tok * op->n_groups);
    a.n_groups = (unsigned)op->n_groups;
    a.ldx = op->ldx;
    a.ldy = op->ldy;
    a.threads = norm_threads(op->dim);
    a.own_weights = op->own_weights;
    a.add = op->add;
    a.factor = op->factor;
#define FROM(X) norm_to<X>(cu->stream, op, &a)
    CTW_CUDA_FLOAT_SWITCH(op->x_dtype, FROM);
#undef FROM
    return ctw_cuda_launched("norm", err);
}
