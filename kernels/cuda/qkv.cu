/*
 * The split of q, k, v with its norms and RoPE. Memory-bound: each element is read once and written
 * once, 16 bytes at a time, contiguous across a warp's lanes. Kernels have two instances: if q, k
 * and v are side by side and nothing else is asked for (SIDE_BY_SIDE), and for all other cases.
 */
#include "kernels/cuda/elements.h"

enum { THREADS = 256 };

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
    /* Not SIDE_BY_SIDE: */
    struct ctw_qkv_columns columns;
    int n_all, group; /* heads of a token that are wanted; query heads per key head */
    float norm_offset;
    const float *q_factor; /* or NULL */
};

/* The work for one head of one token. */
struct head_job {
    const void *norm;     /* [head], or NULL */
    const float *cos_sin; /* rot_dim / 2 cosines, then sines; NULL: no rotation */
    void *dst;
    int64_t from, to; /* index of its first element in qkv, in dst */
    float factor;
};

template <bool SIDE_BY_SIDE>
static __device__ __forceinline__ struct head_job head_job(const struct split &a, uint32_t id)
{
    uint32_t n_all = (uint32_t)(SIDE_BY_SIDE ? a.n_head + 2 * a.n_kv : a.n_all), t = id / n_all;
    int h = (int)(id - t * n_all), kind = h < a.n_head ? 0 : h < a.n_head + a.n_kv ? 1 : 2;
    h -= kind == 0 ? 0 : kind == 1 ? a.n_head : a.n_head + a.n_kv;
    struct head_job job;
    job.norm = kind == 0 ? a.q_norm : kind == 1 ? a.k_norm : NULL;
    job.cos_sin =
        kind == 2 || a.rot_dim == 0 ? NULL : a.cos_sin + (int64_t)a.positions[t] * a.rot_dim;
    job.dst = kind == 0 ? a.q : kind == 1 ? a.k : a.v;
    job.to = ((int64_t)t * (kind == 0 ? a.n_head : a.n_kv) + h) * a.head;
    job.factor = 1;
    if (SIDE_BY_SIDE) {
        job.from = (int64_t)id * a.head;
        return job;
    }
    const struct ctw_qkv_columns &c = a.columns;
    job.from = (int64_t)t * c.ld;
    job.from += kind == 0   ? c.q + h / a.group * c.q_step + (int64_t)(h % a.group) * c.q_head
                : kind == 1 ? c.k + h * c.kv_step
                            : c.v + h * c.kv_step;
    if (kind == 0 && a.q_factor != NULL)
        job.factor = a.q_factor[a.positions[t]];
    return job;
}

/* Elements 8 * vector .. of a head times r and the norm's weight. */
template <bool SIDE_BY_SIDE>
static __device__ __forceinline__ void head_norm(const struct split &a, const void *norm,
                                                 int vector, float r, float (&v)[8])
{
    float w[8];
#define WEIGHT(T) ctw_cuda_load<false>((const T *)norm + vector * 8, w)
    CTW_CUDA_FLOAT_SWITCH(a.norm_dtype, WEIGHT);
#undef WEIGHT
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = v[i] * r * (SIDE_BY_SIDE ? w[i] : w[i] + a.norm_offset);
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
template <typename T, bool SIDE_BY_SIDE>
__global__ void __launch_bounds__(THREADS) split_vectors(const __grid_constant__ struct split a)
{
    uint32_t id = blockIdx.x * (THREADS >> a.shift) + (threadIdx.x >> a.shift);
    int j = (int)(threadIdx.x & ((1u << a.shift) - 1u)), n_pairs = a.head / 16;
    bool live = id < a.n_rows && j < n_pairs;
    if (!live) /* takes part in the sums, with zeros */
        id = j = 0;
    struct head_job job = head_job<SIDE_BY_SIDE>(a, id);
    bool halves = a.halves && job.cos_sin != NULL;
    int turning = a.rot_dim / 16; /* with pairing by halves: lanes with rotated pairs */
    int va = halves && j >= turning ? 2 * j : j;
    int vb = !halves ? j + n_pairs : j < turning ? j + turning : 2 * j + 1;
    const T *src = (const T *)a.qkv + job.from;
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
            head_norm<SIDE_BY_SIDE>(a, job.norm, va, r, x);
            head_norm<SIDE_BY_SIDE>(a, job.norm, vb, r, y);
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
    if (!SIDE_BY_SIDE)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i] *= job.factor;
            y[i] *= job.factor;
        }
    if (live) {
        ctw_cuda_store((T *)job.dst + job.to + va * 8, x);
        ctw_cuda_store((T *)job.dst + job.to + vb * 8, y);
    }
}

template <bool SIDE_BY_SIDE>
static __device__ __forceinline__ float norm_weight(const struct split &a, const void *norm, int i)
{
    float w = a.norm_dtype == CTW_F32    ? ((const float *)norm)[i]
              : a.norm_dtype == CTW_BF16 ? ctw_cuda_widen(((const __nv_bfloat16 *)norm)[i])
                                         : ctw_cuda_widen(((const __half *)norm)[i]);
    return SIDE_BY_SIDE ? w : w + a.norm_offset;
}

/* Any head: one warp per head, element by element. A norm's sum: one chain per lane, then by
 * halves. */
template <typename T, bool SIDE_BY_SIDE>
__global__ void __launch_bounds__(THREADS) split_any(const __grid_constant__ struct split a)
{
    uint32_t id = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32, half = a.rot_dim / 2;
    if (id >= a.n_rows)
        return; /* the whole warp */
    struct head_job job = head_job<SIDE_BY_SIDE>(a, id);
    const T *src = (const T *)a.qkv + job.from;
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
            x = x * r * norm_weight<SIDE_BY_SIDE>(a, job.norm, i);
            y = y * r * norm_weight<SIDE_BY_SIDE>(a, job.norm, other);
        }
        if (turns) {
            int pair = a.halves ? (first ? i : other) : i / 2;
            float c = job.cos_sin[pair], s = job.cos_sin[half + pair];
            if (first)
                ctw_cuda_turn(&x, &y, c, s);
            else
                ctw_cuda_turn(&y, &x, c, s);
        }
        ctw_cuda_narrow(SIDE_BY_SIDE ? x : x * job.factor, (T *)job.dst + job.to + i);
    }
}

bool ctw_cuda_side_by_side(const struct ctw_op_qkv *op)
{
    const struct ctw_qkv_columns *c = &op->columns;
    int64_t q_n = (int64_t)op->n_head * op->head, kv_n = (int64_t)op->n_kv * op->head;
    return c->ld == q_n + 2 * kv_n && c->q == 0 && c->k == q_n && c->v == q_n + kv_n &&
           c->q_step == q_n / op->n_kv && c->kv_step == op->head && c->q_head == op->head &&
           op->k != NULL && op->v != NULL && op->q_factor == NULL && op->norm_offset == 0;
}

/* Can heads be read and written 8 elements at a time? */
static bool has_vectors(const struct ctw_op_qkv *op)
{
    const struct ctw_qkv_columns *c = &op->columns;
    const void *arrays[] = {op->qkv, op->q, op->k, op->v, op->q_norm, op->k_norm, op->cos_sin};
    bool aligned = (c->ld | c->q | c->k | c->v | c->q_step | c->q_head | c->kv_step) % 8 == 0;
    for (size_t i = 0; i < CTW_COUNT(arrays); i++)
        aligned = aligned && ctw_cuda_aligned16(arrays[i]);
    return aligned && op->head % 16 == 0 && op->rot_dim % 16 == 0;
}

static struct split split_of(const struct ctw_op_qkv *op)
{
    struct split a = {};
    a.n_head = op->n_head;
    a.n_kv = op->n_kv;
    a.head = op->head;
    a.rot_dim = op->rot_dim;
    a.shift = 5;
    a.halves = op->pairing == CTW_ROPE_HALVES;
    a.qkv = op->qkv;
    a.q_norm = op->q_norm;
    a.k_norm = op->k_norm;
    a.norm_dtype = op->norm_dtype;
    a.eps = op->norm_eps;
    a.positions = op->positions;
    a.cos_sin = op->cos_sin;
    a.q = op->q;
    a.k = op->k;
    a.v = op->v;
    a.columns = op->columns;
    a.n_all = op->n_head + (op->k == NULL ? 0 : op->v == NULL ? op->n_kv : 2 * op->n_kv);
    a.group = op->n_head / op->n_kv;
    a.norm_offset = op->norm_offset;
    a.q_factor = op->q_factor;
    return a;
}

enum ctw_status ctw_cuda_qkv(struct ctw_cuda *cu, const struct ctw_op_qkv *op, struct ctw_err *err)
{
    struct split a = split_of(op);
    int64_t n_rows = op->n_tok * a.n_all;
    if (n_rows == 0)
        return CTW_OK;
    if (n_rows >= (int64_t)1 << 31)
        return ctw_fail(err, CTW_EINTERNAL, "cuda: too many heads in one call");
    a.n_rows = (uint32_t)n_rows;
    bool vectors = has_vectors(op), side_by_side = ctw_cuda_side_by_side(op);
    if (vectors)
        for (a.shift = 0; 16 << a.shift < op->head;)
            a.shift++;
    int64_t per_block = THREADS >> a.shift;
    unsigned blocks = (unsigned)((n_rows + per_block - 1) / per_block);
#define VECTORS(T)                                                                                 \
    (side_by_side ? split_vectors<T, true>                                                         \
                  : split_vectors<T, false>)<<<blocks, THREADS, 0, cu->stream>>>(a)
#define ANY(T)                                                                                     \
    (side_by_side ? split_any<T, true> : split_any<T, false>)<<<blocks, THREADS, 0, cu->stream>>>(a)
    if (vectors)
        CTW_CUDA_FLOAT_SWITCH(op->dtype, VECTORS);
    else
        CTW_CUDA_FLOAT_SWITCH(op->dtype, ANY);
#undef VECTORS
#undef ANY
    return ctw_cuda_launched("qkv", err);
}
