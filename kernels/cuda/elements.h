/*
 * Element access in device code: conversions by the processor's own instructions (to nearest, ties
 * to even, subnormals kept: the values of kernels/dtype.h, except for a NaN's payload, which the
 * processor defines), and accesses of up to 16 bytes.
 */
#ifndef CTW_KERNELS_CUDA_ELEMENTS_H
#define CTW_KERNELS_CUDA_ELEMENTS_H

#include "kernels/cuda/cuda.h"

#ifdef __CUDACC__

/* CALL(type) for the type of a dtype, which is one of F32, BF16 and F16. */
#define CTW_CUDA_FLOAT_SWITCH(dtype, CALL)                                                         \
    do {                                                                                           \
        if ((dtype) == CTW_F32)                                                                    \
            CALL(float);                                                                           \
        else if ((dtype) == CTW_BF16)                                                              \
            CALL(__nv_bfloat16);                                                                   \
        else                                                                                       \
            CALL(__half);                                                                          \
    } while (0)

template <typename A, typename B> constexpr bool ctw_cuda_same_type = false;
template <typename A> constexpr bool ctw_cuda_same_type<A, A> = true;

static __device__ __forceinline__ float ctw_cuda_widen(float v)
{
    return v;
}

static __device__ __forceinline__ float ctw_cuda_widen(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}

static __device__ __forceinline__ float ctw_cuda_widen(__half v)
{
    return __half2float(v);
}

static __device__ __forceinline__ void ctw_cuda_narrow(float v, float *out)
{
    *out = v;
}

static __device__ __forceinline__ void ctw_cuda_narrow(float v, __nv_bfloat16 *out)
{
    *out = __float2bfloat16_rn(v);
}

static __device__ __forceinline__ void ctw_cuda_narrow(float v, __half *out)
{
    *out = __float2half_rn(v);
}

/* Element i of an array of floats of any kind. */
static __device__ __forceinline__ float ctw_cuda_number(const void *p, enum ctw_dtype dtype,
                                                        int64_t i)
{
    return dtype == CTW_F32    ? ((const float *)p)[i]
           : dtype == CTW_BF16 ? ctw_cuda_widen(((const __nv_bfloat16 *)p)[i])
                               : ctw_cuda_widen(((const __half *)p)[i]);
}

/* p[i] = v for a dtype that is known only at run time: F32, BF16 or F16. */
static __device__ __forceinline__ void ctw_cuda_put(void *p, enum ctw_dtype dtype, int64_t i,
                                                    float v)
{
#define CTW_CUDA_PUT(type) ctw_cuda_narrow(v, (type *)p + i)
    CTW_CUDA_FLOAT_SWITCH(dtype, CTW_CUDA_PUT);
#undef CTW_CUDA_PUT
}

/* Two at a time, in one instruction. */
static __device__ __forceinline__ void ctw_cuda_narrow2(float a, float b, float *out)
{
    out[0] = a;
    out[1] = b;
}

static __device__ __forceinline__ void ctw_cuda_narrow2(float a, float b, __nv_bfloat16 *out)
{
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    memcpy(out, &both, sizeof(both));
}

static __device__ __forceinline__ void ctw_cuda_narrow2(float a, float b, __half *out)
{
    const __half2 both = __floats2half2_rn(a, b);
    memcpy(out, &both, sizeof(both));
}

/* v rounded to dtype (F32, BF16 or F16) and widened again. */
static __device__ __forceinline__ float ctw_cuda_round(float v, enum ctw_dtype dtype)
{
    return dtype == CTW_F32    ? v
           : dtype == CTW_BF16 ? __bfloat162float(__float2bfloat16_rn(v))
                               : __half2float(__float2half_rn(v));
}

/*
 * N elements from p, aligned to their size or to 16 bytes, whichever is less. ONCE: they will not
 * be read again soon, so the caches need not keep them.
 */
template <bool ONCE, typename T, int N>
static __device__ __forceinline__ void ctw_cuda_load(const T *p, float (&v)[N])
{
    constexpr int BYTES = N * (int)sizeof(T);
    static_assert(BYTES == 8 || BYTES % 16 == 0, "vectors of 8 or 16 bytes");
    T raw[N];
    if constexpr (BYTES == 8) {
        const uint2 part = ONCE ? __ldcs((const uint2 *)p) : *(const uint2 *)p;
        memcpy(raw, &part, 8);
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++) {
            const uint4 part = ONCE ? __ldcs((const uint4 *)p + i) : ((const uint4 *)p)[i];
            memcpy(raw + i * (16 / sizeof(T)), &part, 16);
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = ctw_cuda_widen(raw[i]);
}

/* Stores N elements to p, each rounded once; alignment and ONCE as for loads. */
template <typename T, int N>
static __device__ __forceinline__ void ctw_cuda_store(T *p, const float (&v)[N])
{
    constexpr int BYTES = N * (int)sizeof(T);
    static_assert(BYTES == 8 || BYTES % 16 == 0, "vectors of 8 or 16 bytes");
    T raw[N];
#pragma unroll
    for (int i = 0; i < N; i += 2)
        ctw_cuda_narrow2(v[i], v[i + 1], raw + i);
    if constexpr (BYTES == 8) {
        uint2 part;
        memcpy(&part, raw, 8);
        *(uint2 *)p = part;
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++) {
            uint4 part;
            memcpy(&part, raw + i * (16 / sizeof(T)), 16);
            ((uint4 *)p)[i] = part;
        }
    }
}

/* The sum over groups of `lanes` (a power of two) neighbouring lanes, the same bits in each of
 * them. */
static __device__ __forceinline__ float ctw_cuda_lanes_sum(float v, int lanes)
{
    for (int i = lanes / 2; i > 0; i /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

/*
 * Shared by qkv.cu and gemm_hopper_qkv.h, either of which finishes heads of queries and
 * keys, so that both give equal bits. A head's sum of squares is built from groups of four:
 * elements i, i + 1 and the two elements half a head further, i = 8 j + 2 q. Groups with the same q
 * are added by halves of j; then q = 0 and 1, 2 and 3; then both.
 */
static __device__ __forceinline__ float ctw_cuda_squares(const float *a, const float *b)
{
    return fmaf(b[1], b[1], fmaf(b[0], b[0], fmaf(a[1], a[1], a[0] * a[0])));
}

/* Maps a score to a nonzero integer that sorts as the score does. +0 and -0 map to the same integer,
 * and NaN maps to that of -infinity. */
static __device__ __forceinline__ uint32_t ctw_cuda_ordered(float s)
{
    uint32_t bits = __float_as_uint(isnan(s) ? -INFINITY : s + 0.0f);
    return (bits >> 31) != 0 ? ~bits : bits | 1u << 31;
}

static __device__ __forceinline__ uint64_t ctw_cuda_ordered(double s)
{
    uint64_t bits = (uint64_t)__double_as_longlong(isnan(s) ? -INFINITY : s + 0.0);
    return (bits >> 63) != 0 ? ~bits : bits | (uint64_t)1 << 63;
}

/* (a, b) rotated: RoPE of one pair. */
static __device__ __forceinline__ void ctw_cuda_turn(float *a, float *b, float cosine, float sine)
{
    float x = *a, y = *b;
    *a = fmaf(x, cosine, -(y * sine));
    *b = fmaf(y, cosine, x * sine);
}

/* Host: is p aligned for accesses of 16 bytes? */
static inline bool ctw_cuda_aligned16(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

#endif
#endif
