/*
 * Quantised activations, with the arithmetic of kernels/quantise.h and therefore the CPU's bits.
 * Memory-bound: VECTOR elements per thread, 16 bytes at a time.
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

template <typename T, bool WIDE> static void launch(struct ctw_cuda *cu, const struct quantise &q)
{
    unsigned rows = (unsigned)(q.n_tok < MOST_ROWS ? q.n_tok : (int64_t)MOST_ROWS);
    int64_t lanes = q.group / VECTOR;
    bool few = q.vectors && lanes <= WARP && (lanes & (lanes - 1)) == 0 && q.group % VECTOR == 0;
    if (few) {
        int64_t columns = (q.dim + THREADS * VECTOR - 1) / (THREADS * VECTOR);
        quantise_groups<T, WIDE>
            <<<dim3((unsigned)columns, rows), THREADS, 0, cu->stream>>>(q, (int)lanes);
    } else {
        quantise_row<T, WIDE>
            <<<dim3((unsigned)(q.dim / q.group), rows), THREADS, 0, cu->stream>>>(q);
    }
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
