/*
 * Conversions for decoders: the same values as the conversions of kernels/dtype.h, but branch-free,
 * so that compilers vectorise loops over them.
 */
#ifndef CTW_KERNELS_FORMATS_CONVERT_H
#define CTW_KERNELS_FORMATS_CONVERT_H

#include "kernels/dtype.h"

/* Always inlined: parameters that are constants at the call select code instead of branches. */
#ifdef __CUDACC__
#define CTW_HD_FORCE static __forceinline__ __host__ __device__
#else
#define CTW_HD_FORCE static inline __attribute__((always_inline))
#endif

/* Before a loop: GPU code does not unroll the loop. Compilers for sm_100 and later otherwise unroll
 * loops of unknown length in each copy of a decoder, and take minutes. */
#ifdef __CUDA_ARCH__
#define CTW_ROLLED _Pragma("unroll 1")
#else
#define CTW_ROLLED
#endif

/* A case of a decoder's switch of bits: calls span() with the bits b and the weight's dtype as
 * constants, so that the compiler makes an instance for each. */
#define CTW_BITS_CASE(b, span)                                                                     \
    case b:                                                                                        \
        if (w->dtype == CTW_BF16)                                                                  \
            span(w, data, row, col0, n_col, b, CTW_BF16, dst);                                     \
        else if (w->dtype == CTW_F16)                                                              \
            span(w, data, row, col0, n_col, b, CTW_F16, dst);                                      \
        else                                                                                       \
            span(w, data, row, col0, n_col, b, CTW_F32, dst);                                      \
        break;

/* Unaligned loads. */
CTW_HD_FORCE uint32_t ctw_load_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

CTW_HD_FORCE uint16_t ctw_load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

CTW_HD_FORCE float ctw_load_f32(const void *p)
{
    return ctw_bits_to_f32(ctw_load_u32(p));
}

/*
 * f rounded to bf16 and widened again. A NaN must have its low 16 bits clear (as a NaN has that was
 * widened from bf16, fp16 or fp8, or made by the CPU), else it could turn into a number.
 */
CTW_HD_FORCE float ctw_round_bf16(float f)
{
#ifdef __CUDA_ARCH__ /* a NaN made by a GPU has all its low bits set */
    return ctw_bf16_to_f32(ctw_f32_to_bf16(f));
#else
    uint32_t u = ctw_f32_to_bits(f);
    return ctw_bits_to_f32((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
#endif
}

/* b if mask is all ones, a if it is 0. Not `?:`, which compilers may turn into branches. */
CTW_HD_FORCE uint32_t ctw_select(uint32_t mask, uint32_t b, uint32_t a)
{
    return (b & mask) | (a & ~mask);
}

CTW_HD_FORCE float ctw_widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, m = h & 0x7fffu;
    uint32_t normal = (m << 13) + (112u << 23);
    uint32_t tiny = ctw_f32_to_bits((float)(int32_t)m * 5.9604644775390625e-8f); /* 2^-24 */
    uint32_t r = normal + ((0u - (m >= 0x7c00u)) & (112u << 23)); /* infinity and NaN */
    r = ctw_select(0u - (m < 0x400u), tiny, r);
    return ctw_bits_to_f32(r | sign);
}

/* ctw_load_float, branch-free. */
CTW_HD_FORCE float ctw_load_value(const void *p, enum ctw_dtype dtype, int64_t i)
{
    const uint8_t *at = (const uint8_t *)p + i * (dtype == CTW_F32 ? 4 : 2);
    return dtype == CTW_F32    ? ctw_load_f32(at)
           : dtype == CTW_BF16 ? ctw_bf16_to_f32(ctw_load_u16(at))
                               : ctw_widen_f16(ctw_load_u16(at));
}

/* f (low 16 bits clear if NaN), rounded to dtype (F32, BF16, F16). */
CTW_HD_FORCE float ctw_round_value(float f, enum ctw_dtype dtype)
{
    return dtype == CTW_BF16 ? ctw_round_bf16(f) : ctw_round_float(f, dtype);
}

/*
 * Eight values at once, with the vector extension of gcc and clang, so that the generated code does
 * not depend on the auto-vectoriser. Passed by address, because passing them by value depends on
 * the ABI.
 */
#if defined(__GNUC__) && !defined(__CUDACC__)
#define CTW_VECTOR 1
typedef uint32_t ctw_u32x8 __attribute__((vector_size(32)));
typedef int32_t ctw_i32x8 __attribute__((vector_size(32)));
typedef float ctw_f32x8 __attribute__((vector_size(32)));

/* ctw_load_value for eight values, from element i on. */
CTW_HD_FORCE void ctw_load_values8(const void *p, enum ctw_dtype dtype, int64_t i, ctw_f32x8 *v)
{
    typedef uint16_t u16x8 __attribute__((vector_size(16)));
    u16x8 half;
    if (dtype == CTW_F32) {
        memcpy(v, (const uint8_t *)p + 4 * i, sizeof(*v));
        return;
    }
    memcpy(&half, (const uint8_t *)p + 2 * i, sizeof(half));
    ctw_u32x8 h = __builtin_convertvector(half, ctw_u32x8);
    if (dtype == CTW_BF16) {
        *v = (ctw_f32x8)(h << 16);
        return;
    }
    ctw_u32x8 m = h & 0x7fffu, r = (m << 13) + (112u << 23);
    ctw_u32x8 tiny = (ctw_u32x8)(__builtin_convertvector((ctw_i32x8)m, ctw_f32x8) * 0x1p-24f);
    ctw_u32x8 is_large = (ctw_u32x8)(m >= 0x7c00u), is_tiny = (ctw_u32x8)(m < 0x400u);
    r += is_large & (112u << 23); /* infinity and NaN */
    r = (tiny & is_tiny) | (r & ~is_tiny);
    *v = (ctw_f32x8)(r | (h & 0x8000u) << 16);
}

/* ctw_round_value for eight values. */
CTW_HD_FORCE void ctw_round_value8(ctw_f32x8 *v, enum ctw_dtype dtype)
{
    ctw_u32x8 u = (ctw_u32x8)*v;
    if (dtype == CTW_BF16) {
        *v = (ctw_f32x8)((u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u);
    } else if (dtype == CTW_F16) {
        ctw_i32x8 m = (ctw_i32x8)(u & 0x7fffffffu);
        ctw_i32x8 r = (m + 0xfff + (m >> 13 & 1)) & ~0x1fff;
        /* Below 2^-14 the sum's last place is 2^-24, as in fp16 subnormals. */
        ctw_i32x8 tiny = (ctw_i32x8)(((ctw_f32x8)m + 0.5f) - 0.5f);
        ctw_i32x8 is_tiny = m<0x38800000, is_large = m >= 0x477ff000, is_nan = m> 0x7f800000;
        r = (tiny & is_tiny) | (r & ~is_tiny);
        r = (0x7f800000 & is_large) | (r & ~is_large); /* from 65520 on: infinity */
        r |= 0x400000 & is_nan;                        /* quiet */
        *v = (ctw_f32x8)((ctw_u32x8)r | (u & 0x80000000u));
    }
}
#else
#define CTW_VECTOR 0
#endif

/* ctw_pick8(): a look-up in a table of 16 values, if the compiler can shuffle by variables. */
#if CTW_VECTOR && defined(__AVX2__) && !defined(__clang__)
#define CTW_PICK 1
/* The values of the codes' low four bits, 0 .. 7 from `low`, 8 .. 15 from `high`. */
CTW_HD_FORCE void ctw_pick8(const ctw_f32x8 *low, const ctw_f32x8 *high, const ctw_u32x8 *code,
                            ctw_f32x8 *v)
{
    *v = __builtin_shuffle(*low, *high, (ctw_i32x8)*code);
}
#else
#define CTW_PICK 0
#endif

#endif
