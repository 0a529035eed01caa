/*
 * Embedding, RMSNorm, and the split of q, k, v with its norms and RoPE. All are memory-bound: each
 * element is read once and written once, 8 or 16 bytes at a time, contiguous across a warp's lanes.
 */
#include "kernels/cuda/elements.h"

enum { THREADS = 256 };

static enum ctw_status ctw_cuda_missing(const char *what, struct ctw_err *err)
{
    return ctw_fail(err, CTW_EUNSUP, "cuda: %s is not supported on the GPU yet; use --backend cpu",
                    what);
}

enum ctw_status ctw_cuda_act(struct ctw_cuda *cu, const struct ctw_op_act *op, struct ctw_err *err)
{
    (void)cu;
    (void)op;
    return ctw_cuda_missing("an activation of this kind", err);
}

/* ---- embed -------------------------------------------------------------------------------- */

/* y [n] *= scale, rounded once. 8 elements per thread. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    scale_in_place(T *y, int64_t n, float scale, bool aligned)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
    float v[8];
    if (at + 8 <= n && aligned) {
        ctw_cuda_load<false>(y + at, v);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] *= scale;
        ctw_cuda_store(y + at, v);
        return;
    }
    for (int i = 0; i < 8 && at + i < n; i++)
        ctw_cuda_narrow(ctw_cuda_widen(y[at + i]) * scale, y + at + i);
}

/* Rows are decoded into y's type; a scale is a second pass, because few models have one. */
enum ctw_status ctw_cuda_embed(struct ctw_cuda *cu, const struct ctw_op_embed *op,
                               struct ctw_err *err)
{
    int64_t n = op->n_tok * op->table->weight->k;
    if (op->add || op->table->row0 != 0)
        return ctw_cuda_missing("adding embeddings", err);
    if (n == 0)
        return CTW_OK;
    enum ctw_status st =
        ctw_cuda_decode_rows(cu, op->table, op->tokens, op->n_tok, op->dtype, op->y, err);
    if (st != CTW_OK || op->scale == 1)
        return st;
    unsigned blocks = (unsigned)((n + 8 * THREADS - 1) / (8 * THREADS));
    bool aligned = ctw_cuda_aligned16(op->y);
#define SCALE(T)                                                                                   \
    scale_in_place<T><<<blocks, THREADS, 0, cu->stream>>>((T *)op->y, n, op->scale, aligned)
    CTW_CUDA_FLOAT_SWITCH(op->dtype, SCALE);
#undef SCALE
    return ctw_cuda_launched("scaling embeddings", err);
}

/* ---- RMSNorm ------------------------------------------------------------------------------ */

enum { NORM_THREADS = 1024, KEPT = 16 }; /* elements of its row that a thread keeps in registers */

struct norm {
    int dim;
    const void *x, *weight;
    const int64_t *rows;
    enum ctw_dtype weight_dtype;
    float weight_offset, eps;
    void *y;
    int16_t *bad;
    int16_t stamp;
    bool vectors; /* rows and weight can be read and written V elements at a time */
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

template <typename X>
static void norm_to(cudaStream_t stream, const struct ctw_op_norm *op, const struct norm *a)
{
    unsigned threads = norm_threads(op->dim);
#define TO(Y) norm_row<X, Y><<<(unsigned)op->n_tok, threads, 0, stream>>>(*a)
    CTW_CUDA_FLOAT_SWITCH(op->dtype, TO);
#undef TO
}

enum ctw_status ctw_cuda_norm(struct ctw_cuda *cu, const struct ctw_op_norm *op,
                              struct ctw_err *err)
{
    bool plain = op->kind == CTW_NORM_RMS && op->n_groups == 1 && op->ldx == op->dim &&
                 op->ldy == op->dim && op->weight != NULL && op->bias == NULL && op->factor == 1 &&
                 !op->add;
    if (!plain)
        return ctw_cuda_missing("a norm of this kind", err);
    if (op->n_tok == 0)
        return CTW_OK;
    struct norm a = {
        (int)op->dim, op->x,   op->weight, op->rows, op->weight_dtype, op->weight_offset, op->eps,
        op->y,        op->bad, op->stamp,  false};
    a.vectors = op->dim % 8 == 0 && ctw_cuda_aligned16(op->x) && ctw_cuda_aligned16(op->y) &&
                ctw_cuda_aligned16(op->weight);
#define FROM(X) norm_to<X>(cu->stream, op, &a)
    CTW_CUDA_FLOAT_SWITCH(op->x_dtype, FROM);
#undef FROM
    return ctw_cuda_launched("norm", err);
}

/* ---- q, k, v ------------------------------------------------------------------------------ */

struct split {
    uint32_t n_rows; /* heads of all tokens: queries', keys' and values' */
    int n_head, n_kv, head, rot_dim;
    int shift; /* 1 << shift lanes share a head */
    bool halves;
    const void *qkv, *q_norm, *k_norm;
    enum ctw_dtype norm_dtype;
    float eps;
    const int32_t *positions;
    const float *cos_sin;
    void *q, *k, *v;
};

/* The work for one head of one token. */
struct head_job {
    const void *norm;     /* [head], or NULL */
    const float *cos_sin; /* rot_dim / 2 cosines, then sines; NULL: no rotation */
    void *dst;
    int64_t to; /* index of its first element in dst */
};

static __device__ __forceinline__ struct head_job head_job(const struct split &a, uint32_t id)
{
    uint32_t n_all = (uint32_t)(a.n_head + 2 * a.n_kv), t = id / n_all;
    int h = (int)(id - t * n_all), kind = h < a.n_head ? 0 : h < a.n_head + a.n_kv ? 1 : 2;
    h -= kind == 0 ? 0 : kind == 1 ? a.n_head : a.n_head + a.n_kv;
    struct head_job job;
    job.norm = kind == 0 ? a.q_norm : kind == 1 ? a.k_norm : NULL;
    job.cos_sin =
        kind == 2 || a.rot_dim == 0 ? NULL : a.cos_sin + (int64_t)a.positions[t] * a.rot_dim;
    job.dst = kind == 0 ? a.q : kind == 1 ? a.k : a.v;
    job.to = ((int64_t)t * (kind == 0 ? a.n_head : a.n_kv) + h) * a.head;
    return job;
}

/* Elements 8 * vector .. of a head times r and the norm's weight. */
static __device__ __forceinline__ void head_norm(const struct split &a, const void *norm,
                                                 int vector, float r, float (&v)[8])
{
    float w[8];
#define WEIGHT(T) ctw_cuda_load<false>((const T *)norm + vector * 8, w)
    CTW_CUDA_FLOAT_SWITCH(a.norm_dtype, WEIGHT);
#undef WEIGHT
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = v[i] * r * w[i];
}

/* Vectors of 8 whose pairs are neighbours: elements 8 * vector .. */
static __device__ __forceinline__ void turn_neighbours(const struct split &a, const float *cos_sin,
                                                       int vector, float (&v)[8])
{
    float c[4], s[4];
    if (vector * 8 >= a.rot_dim)
        return;
    ctw_cuda_load<false>(cos_sin + vector * 4, c);
    ctw_cuda_load<false>(cos_sin + a.rot_dim / 2 + vector * 4, s);
#pragma unroll
    for (int i = 0; i < 4; i++)
        ctw_cuda_turn(&v[2 * i], &v[2 * i + 1], c[i], s[i]);
}

/*
 * Heads and rot_dim that are multiples of 16. A lane has two vectors of 8 elements: with pairing by
 * halves, two that rotate together; else any two. A norm's sum is in the order of
 * ctw_cuda_squares().
 */
template <typename T>
__global__ void __launch_bounds__(THREADS) split_vectors(const __grid_constant__ struct split a)
{
    uint32_t id = blockIdx.x * (THREADS >> a.shift) + (threadIdx.x >> a.shift);
    int j = (int)(threadIdx.x & ((1u << a.shift) - 1u)), n_pairs = a.head / 16;
    bool live = id < a.n_rows && j < n_pairs;
    if (!live) /* takes part in the sums, with zeros */
        id = j = 0;
    struct head_job job = head_job(a, id);
    bool halves = a.halves && job.cos_sin != NULL;
    int turning = a.rot_dim / 16; /* with pairing by halves: lanes with rotated pairs */
    int va = halves && j >= turning ? 2 * j : j;
    int vb = !halves ? j + n_pairs : j < turning ? j + turning : 2 * j + 1;
    const T *src = (const T *)a.qkv + (int64_t)id * a.head;
    float x[8], y[8];
    ctw_cuda_load<true>(src + va * 8, x);
    ctw_cuda_load<true>(src + vb * 8, y);
    if (a.q_norm != NULL || a.k_norm != NULL) {
        float s[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[i] = ctw_cuda_lanes_sum(live ? ctw_cuda_squares(x + 2 * i, y + 2 * i) : 0.0f,
                                      1 << a.shift);
        if (job.norm != NULL) {
            float r = 1.0f / sqrtf(((s[0] + s[1]) + (s[2] + s[3])) / (float)a.head + a.eps);
            head_norm(a, job.norm, va, r, x);
            head_norm(a, job.norm, vb, r, y);
        }
    }
    if (halves && j < turning) {
        float c[8], s[8];
        ctw_cuda_load<false>(job.cos_sin + va * 8, c);
        ctw_cuda_load<false>(job.cos_sin + a.rot_dim / 2 + va * 8, s);
#pragma unroll
        for (int i = 0; i < 8; i++)
            ctw_cuda_turn(&x[i], &y[i], c[i], s[i]);
    } else if (!halves && job.cos_sin != NULL) {
        turn_neighbours(a, job.cos_sin, va, x);
        turn_neighbours(a, job.cos_sin, vb, y);
    }
    if (live) {
        ctw_cuda_store((T *)job.dst + job.to + va * 8, x);
        ctw_cuda_store((T *)job.dst + job.to + vb * 8, y);
    }
}

static __device__ __forceinline__ float norm_weight(const struct split &a, const void *norm, int i)
{
    return a.norm_dtype == CTW_F32    ? ((const float *)norm)[i]
           : a.norm_dtype == CTW_BF16 ? ctw_cuda_widen(((const __nv_bfloat16 *)norm)[i])
                                      : ctw_cuda_widen(((const __half *)norm)[i]);
}

/* Any head: one warp per head, element by element. A norm's sum: one chain per lane, then by
 * halves. */
template <typename T>
__global__ void __launch_bounds__(THREADS) split_any(const __grid_constant__ struct split a)
{
    uint32_t id = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32, half = a.rot_dim / 2;
    if (id >= a.n_rows)
        return; /* the whole warp */
    struct head_job job = head_job(a, id);
    const T *src = (const T *)a.qkv + (int64_t)id * a.head;
    float r = 1;
    if (job.norm != NULL) {
        float sum = 0;
        for (int i = lane; i < a.head; i += 32)
            sum = fmaf(ctw_cuda_widen(src[i]), ctw_cuda_widen(src[i]), sum);
        r = 1.0f / sqrtf(ctw_cuda_lanes_sum(sum, 32) / (float)a.head + a.eps);
    }
    for (int i = lane; i < a.head; i += 32) {
        bool turns = job.cos_sin != NULL && i < a.rot_dim, first = a.halves ? i < half : i % 2 == 0;
        int other = !turns ? i : a.halves ? (first ? i + half : i - half) : i ^ 1;
        float x = ctw_cuda_widen(src[i]), y = ctw_cuda_widen(src[other]);
        if (job.norm != NULL) {
            x = x * r * norm_weight(a, job.norm, i);
            y = y * r * norm_weight(a, job.norm, other);
        }
        if (turns) {
            int pair = a.halves ? (first ? i : other) : i / 2;
            float c = job.cos_sin[pair], s = job.cos_sin[half + pair];
            if (first)
                ctw_cuda_turn(&x, &y, c, s);
            else
                ctw_cuda_turn(&y, &x, c, s);
        }
        ctw_cuda_narrow(x, (T *)job.dst + job.to + i);
    }
}

enum ctw_status ctw_cuda_qkv(struct ctw_cuda *cu, const struct ctw_op_qkv *op, struct ctw_err *err)
{
    int64_t n_all = op->n_head + 2 * op->n_kv, n_rows = op->n_tok * n_all;
    int64_t q_n = (int64_t)op->n_head * op->head, kv_n = (int64_t)op->n_kv * op->head;
    bool plain = op->columns.ld == q_n + 2 * kv_n && op->columns.k == q_n &&
                 op->columns.v == q_n + kv_n && op->columns.q_step == q_n / op->n_kv &&
                 op->columns.kv_step == op->head && op->k != NULL && op->q_factor == NULL &&
                 op->norm_offset == 0;
    if (!plain)
        return ctw_cuda_missing("heads in this order", err);
    if (n_rows == 0)
        return CTW_OK;
    if (n_rows >= (int64_t)1 << 31)
        return ctw_fail(err, CTW_EINTERNAL, "cuda: too many heads in one call");
    struct split a = {(uint32_t)n_rows,
                      op->n_head,
                      op->n_kv,
                      op->head,
                      op->rot_dim,
                      5,
                      op->pairing == CTW_ROPE_HALVES,
                      op->qkv,
                      op->q_norm,
                      op->k_norm,
                      op->norm_dtype,
                      op->norm_eps,
                      op->positions,
                      op->cos_sin,
                      op->q,
                      op->k,
                      op->v};
    bool vectors = op->head % 16 == 0 && op->rot_dim % 16 == 0 && ctw_cuda_aligned16(op->qkv) &&
                   ctw_cuda_aligned16(op->q) && ctw_cuda_aligned16(op->k) &&
                   ctw_cuda_aligned16(op->v) && ctw_cuda_aligned16(op->q_norm) &&
                   ctw_cuda_aligned16(op->k_norm) && ctw_cuda_aligned16(op->cos_sin);
    if (vectors)
        for (a.shift = 0; 16 << a.shift < op->head;)
            a.shift++;
    int64_t per_block = THREADS >> a.shift;
    unsigned blocks = (unsigned)((n_rows + per_block - 1) / per_block);
#define VECTORS(T) split_vectors<T><<<blocks, THREADS, 0, cu->stream>>>(a)
#define ANY(T) split_any<T><<<blocks, THREADS, 0, cu->stream>>>(a)
    if (vectors)
        CTW_CUDA_FLOAT_SWITCH(op->dtype, VECTORS);
    else
        CTW_CUDA_FLOAT_SWITCH(op->dtype, ANY);
#undef VECTORS
#undef ANY
    return ctw_cuda_launched("qkv", err);
}
