/*
 * Quantised activations, with the arithmetic of kernels/quantise.h and therefore the CPU's bits.
 * VECTOR elements per thread, 16 bytes at a time. The usual schemes (symmetric codes of 8 bits, a
 * scale for each row) are bound by memory: quantise_once() reads a row once, and does not divide bf16.
 */
#include "kernels/cuda/elements.h"
#include "kernels/quantise.h"

enum {
    THREADS = 256,
    WARP = 32,
    WARPS = THREADS / WARP,
    VECTOR = 8,
    MOST_ROWS = 32768 /* of a grid; blocks take further rows in turn */
};

struct quantise {
    struct ctw_quantise how;
    int64_t n_tok, dim, ldx, ldy, group; /* group: never 0 */
    const int32_t *rows;
    const void *x;
    void *y;
    bool vectors; /* groups can be read and written VECTOR elements at a time */
};

/* What ctw_quantised_group_of() needs to know of a group. */
struct extent {
    float lo, hi;
    uint32_t largest;
};

static __device__ __forceinline__ void extend(struct extent *e, float v)
{
    e->lo = fminf(e->lo, v); /* without NaN, which `largest` has */
    e->hi = fmaxf(e->hi, v);
    e->largest = max(e->largest, __float_as_uint(v) & 0x7fffffffu);
}

/* The extent over groups of `lanes` (a power of two) neighbouring lanes, in each of them. */
static __device__ __forceinline__ void join_lanes(struct extent *e, int lanes)
{
    for (int i = lanes / 2; i > 0; i /= 2) {
        e->lo = fminf(e->lo, __shfl_xor_sync(0xffffffffu, e->lo, i));
        e->hi = fmaxf(e->hi, __shfl_xor_sync(0xffffffffu, e->hi, i));
        e->largest = max(e->largest, __shfl_xor_sync(0xffffffffu, e->largest, i));
    }
}

template <typename T> static __device__ __forceinline__ constexpr enum ctw_dtype dtype_of()
{
    return ctw_cuda_same_type<T, float> ? CTW_F32 : ctw_cuda_same_type<T, __half> ? CTW_F16 : CTW_BF16;
}

/* WIDE: quotients are not rounded to T (CTW_SCALE_E4M3). */
template <typename T, bool WIDE>
static __device__ __forceinline__ struct ctw_quantised_group group_of(const struct quantise &q,
                                                                     const struct extent &e)
{
    struct ctw_quantised_group g =
        ctw_quantised_group_of(&q.how, dtype_of<T>(), e.lo, e.hi, __uint_as_float(e.largest));
    g.t_dtype = WIDE ? CTW_F32 : dtype_of<T>();
    return g;
}

template <typename T>
static __device__ __forceinline__ const T *row_of(const struct quantise &q, int64_t t)
{
    return (const T *)q.x + (q.rows != NULL ? (int64_t)q.rows[t] : t) * q.ldx;
}

/* Groups of VECTOR * LANES elements, each of LANES threads: a power of two, up to a warp. Threads past
 * the row's end belong to no group that has elements. */
template <typename T, bool WIDE>
__global__ void __launch_bounds__(THREADS)
    quantise_groups(const __grid_constant__ struct quantise q, int lanes)
{
    const struct ctw_code_range r = ctw_code_range_of(q.how.codes, q.how.bits);
    int64_t col = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    for (int64_t t = blockIdx.y; t < q.n_tok; t += gridDim.y) {
        struct extent e = {0, 0, 0};
        float v[VECTOR] = {};
        if (col < q.dim)
            ctw_cuda_load<false>(row_of<T>(q, t) + col, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            extend(&e, v[i]);
        join_lanes(&e, lanes);
        const struct ctw_quantised_group g = group_of<T, WIDE>(q, e);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            v[i] = ctw_quantised(v[i], r, g);
        if (col < q.dim)
            ctw_cuda_store((T *)q.y + t * q.ldy + col, v);
    }
}

/* One group of any size per block: group blockIdx.x of rows blockIdx.y, + gridDim.y, .. */
template <typename T, bool WIDE>
__global__ void __launch_bounds__(THREADS) quantise_row(const __grid_constant__ struct quantise q)
{
    __shared__ struct extent warps[WARPS];
    const struct ctw_code_range r = ctw_code_range_of(q.how.codes, q.how.bits);
    for (int64_t t = blockIdx.y; t < q.n_tok; t += gridDim.y) {
        const T *x = row_of<T>(q, t) + blockIdx.x * q.group;
        T *y = (T *)q.y + t * q.ldy + blockIdx.x * q.group;
        struct extent e = {0, 0, 0};
        if (q.vectors) {
            for (int64_t c = (int64_t)threadIdx.x * VECTOR; c < q.group; c += THREADS * VECTOR) {
                float v[VECTOR];
                ctw_cuda_load<false>(x + c, v);
#pragma unroll
                for (int i = 0; i < VECTOR; i++)
                    extend(&e, v[i]);
            }
        } else {
            for (int64_t c = threadIdx.x; c < q.group; c += THREADS)
                extend(&e, ctw_cuda_widen(x[c]));
        }
        join_lanes(&e, WARP);
        if (threadIdx.x % WARP == 0)
            warps[threadIdx.x / WARP] = e;
        __syncthreads();
        for (int i = 0; i < WARPS; i++) {
            e.lo = fminf(e.lo, warps[i].lo);
            e.hi = fmaxf(e.hi, warps[i].hi);
            e.largest = max(e.largest, warps[i].largest);
        }
        __syncthreads(); /* before the next row's extents */
        const struct ctw_quantised_group g = group_of<T, WIDE>(q, e);
        if (q.vectors) {
            for (int64_t c = (int64_t)threadIdx.x * VECTOR; c < q.group; c += THREADS * VECTOR) {
                float v[VECTOR];
                ctw_cuda_load<false>(x + c, v);
#pragma unroll
                for (int i = 0; i < VECTOR; i++)
                    v[i] = ctw_quantised(v[i], r, g);
                ctw_cuda_store(y + c, v);
            }
        } else {
            for (int64_t c = threadIdx.x; c < q.group; c += THREADS)
                ctw_cuda_narrow(ctw_quantised(ctw_cuda_widen(x[c]), r, g), y + c);
        }
    }
}

/* ---- symmetric codes of 16-bit numbers, which stay in registers ----------------------------- */

/* The largest magnitude of both numbers of each word, as their 15 bits say. */
static __device__ __forceinline__ uint32_t larger_pair(uint32_t a, uint32_t words)
{
    return __vmaxu2(a, words & 0x7fff7fffu);
}

static __device__ __forceinline__ float2 widen_pair(uint32_t v, __nv_bfloat16)
{
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

static __device__ __forceinline__ float2 widen_pair(uint32_t v, __half)
{
    __half2 h;
    memcpy(&h, &v, sizeof(h));
    return __half22float2(h);
}

template <typename T> static __device__ __forceinline__ uint32_t narrow_pair(float a, float b)
{
    T both[2];
    uint32_t v;
    ctw_cuda_narrow2(a, b, both);
    memcpy(&v, both, sizeof(v));
    return v;
}

/*
 * How a group's numbers are divided by its scale. BF16: multiplied by its reciprocal, if that is a
 * normal number. The product, rounded to bf16, is the rounded quotient: it is off by at most 2^-23
 * of it, but a quotient of numbers of 8 bits is at least 2^-17 of it away from every tie (a number of
 * 9 bits, odd: as a quotient it would make x a number of 9 bits).
 */
struct divider {
    float scale, reciprocal;
    bool multiplies;
};

template <typename T> static __device__ __forceinline__ struct divider divider_of(float scale)
{
    bool is_bf16 = ctw_cuda_same_type<T, __nv_bfloat16>;
    struct divider d = {scale, 1 / scale, is_bf16 && scale >= 0x1p-126f && scale <= 0x1p+126f};
    return d;
}

/* Two numbers' codes, widened again: the values of ctw_quantised(). INT: the distance of codes does
 * not depend on the number. */
template <typename T, bool INT, bool MULTIPLIES>
static __device__ __forceinline__ uint32_t quantised_pair(uint32_t v, const struct ctw_code_range &r,
                                                          const struct divider &d)
{
    const float2 x = widen_pair(v, T());
    float t[2] = {MULTIPLIES ? x.x * d.reciprocal : x.x / d.scale,
                  MULTIPLIES ? x.y * d.reciprocal : x.y / d.scale};
    const float2 q = widen_pair(narrow_pair<T>(t[0], t[1]), T());
    t[0] = q.x, t[1] = q.y;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        t[i] = fminf(fmaxf(t[i], r.lo), r.hi); /* NaN: the scale is NaN too */
        float magic = INT ? 0x1.8p+23f : ctw_code_magic(t[i], 3, -6);
        t[i] = ((t[i] + magic) - magic) * d.scale;
    }
    return narrow_pair<T>(t[0], t[1]);
}

template <typename T, bool INT, bool MULTIPLIES, int N>
static __device__ __forceinline__ void quantise_vectors(uint4 (&v)[N], const struct ctw_code_range &r,
                                                        const struct divider &d)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i].x = quantised_pair<T, INT, MULTIPLIES>(v[i].x, r, d);
        v[i].y = quantised_pair<T, INT, MULTIPLIES>(v[i].y, r, d);
        v[i].z = quantised_pair<T, INT, MULTIPLIES>(v[i].z, r, d);
        v[i].w = quantised_pair<T, INT, MULTIPLIES>(v[i].w, r, d);
    }
}

/* The group's scale, from the largest magnitude of each thread's words. */
template <typename T>
static __device__ __forceinline__ struct divider divider_for(const struct quantise &q, uint32_t pairs)
{
    uint32_t bits = max(pairs & 0xffffu, pairs >> 16);
    float largest = widen_pair(bits, T()).x;
    return divider_of<T>(ctw_quantised_group_of(&q.how, dtype_of<T>(), 0, 0, largest).scale);
}

/* One group per block, of at most N * THREADS vectors: group blockIdx.x of row blockIdx.y, .. */
template <typename T, bool INT, int N>
__global__ void __launch_bounds__(THREADS) quantise_once(const __grid_constant__ struct quantise q)
{
    __shared__ uint32_t warps[2][WARPS];
    const struct ctw_code_range r = ctw_code_range_of(q.how.codes, q.how.bits);
    const int n = (int)(q.group / VECTOR);
    int turn = 0;
    for (int64_t t = blockIdx.y; t < q.n_tok; t += gridDim.y, turn ^= 1) {
        const uint4 *x = (const uint4 *)(row_of<T>(q, t) + blockIdx.x * q.group);
        uint4 *y = (uint4 *)((T *)q.y + t * q.ldy + blockIdx.x * q.group), v[N];
        uint32_t pairs = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            int at = i * THREADS + (int)threadIdx.x;
            v[i] = at < n ? x[at] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            pairs = larger_pair(larger_pair(pairs, v[i].x), v[i].y);
            pairs = larger_pair(larger_pair(pairs, v[i].z), v[i].w);
        }
        for (int i = WARP / 2; i > 0; i /= 2)
            pairs = larger_pair(pairs, __shfl_xor_sync(0xffffffffu, pairs, i));
        if (threadIdx.x % WARP == 0)
            warps[turn][threadIdx.x / WARP] = pairs;
        __syncthreads(); /* the other half of `warps` may still be read */
        for (int i = 0; i < WARPS; i++)
            pairs = larger_pair(pairs, warps[turn][i]);
        const struct divider d = divider_for<T>(q, pairs);
        if (d.multiplies)
            quantise_vectors<T, INT, true>(v, r, d);
        else
            quantise_vectors<T, INT, false>(v, r, d);
#pragma unroll
        for (int i = 0; i < N; i++) {
            int at = i * THREADS + (int)threadIdx.x;
            if (at < n)
                y[at] = v[i];
        }
    }
}

template <typename T, bool INT>
static bool launch_once(struct ctw_cuda *cu, const struct quantise &q, dim3 grid)
{
    int64_t vectors = (q.group / VECTOR + THREADS - 1) / THREADS;
    if (vectors <= 2)
        quantise_once<T, INT, 2><<<grid, THREADS, 0, cu->stream>>>(q);
    else if (vectors <= 4)
        quantise_once<T, INT, 4><<<grid, THREADS, 0, cu->stream>>>(q);
    else if (vectors <= 8)
        quantise_once<T, INT, 8><<<grid, THREADS, 0, cu->stream>>>(q);
    return vectors <= 8;
}

/* ---- launching ---------------------------------------------------------------------------- */

template <typename T, bool WIDE> static void launch(struct ctw_cuda *cu, const struct quantise &q)
{
    unsigned rows = (unsigned)(q.n_tok < MOST_ROWS ? q.n_tok : (int64_t)MOST_ROWS);
    int64_t lanes = q.group / VECTOR;
    bool few = q.vectors && lanes <= WARP && (lanes & (lanes - 1)) == 0 && q.group % VECTOR == 0;
    if (few) {
        int64_t columns = (q.dim + THREADS * VECTOR - 1) / (THREADS * VECTOR);
        quantise_groups<T, WIDE>
            <<<dim3((unsigned)columns, rows), THREADS, 0, cu->stream>>>(q, (int)lanes);
        return;
    }
    const dim3 grid((unsigned)(q.dim / q.group), rows);
    bool symmetric = q.how.codes != CTW_CODES_E2M1 && q.how.zero == 0 &&
                     (q.how.scale_kind == CTW_SCALE_STATIC ||
                      (q.how.scale_kind == CTW_SCALE_DYNAMIC && !q.how.asymmetric));
    if constexpr (sizeof(T) == 2 && !WIDE)
        if (symmetric && q.vectors &&
            (q.how.codes == CTW_CODES_INT ? launch_once<T, true>(cu, q, grid)
                                          : launch_once<T, false>(cu, q, grid)))
            return;
    quantise_row<T, WIDE><<<grid, THREADS, 0, cu->stream>>>(q);
}

enum ctw_status ctw_cuda_quantise(struct ctw_cuda *cu, const struct ctw_op_quantise *op,
                                  struct ctw_err *err)
{
    if (op->n_tok == 0)
        return CTW_OK;
    struct quantise q = {};
    q.how = *op->how;
    q.n_tok = op->n_tok;
    q.dim = op->dim;
    q.ldx = op->ldx;
    q.ldy = op->ldy;
    q.group = op->how->group > 0 ? op->how->group : op->dim;
    q.rows = op->rows;
    q.x = op->x;
    q.y = op->y;
    q.vectors = (q.dim | q.ldx | q.ldy | q.group) % VECTOR == 0 && ctw_cuda_aligned16(q.x) &&
                ctw_cuda_aligned16(q.y);
    bool wide = q.how.scale_kind == CTW_SCALE_E4M3;
#define LAUNCH(T) (wide ? launch<T, true>(cu, q) : launch<T, false>(cu, q))
    CTW_CUDA_FLOAT_SWITCH(op->dtype, LAUNCH);
#undef LAUNCH
    return ctw_cuda_launched("quantised activation", err);
}
