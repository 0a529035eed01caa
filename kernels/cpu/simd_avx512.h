/*
 * The engine's vocabulary for AVX-512 (F, BW, DQ, VL), and the dot product of pairs of AVX512_BF16
 * if the including file defines CTW_HAS_PAIRS, unless it defines CTW_HAS_AMX, too: AMX then
 * multiplies pairs. The compiler's options (-march=native) must not decide what a variant computes.
 * See simd_avx2.h.
 */
#ifndef CTW_KERNELS_CPU_SIMD_AVX512_H
#define CTW_KERNELS_CPU_SIMD_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/cpu.h"

#define DECODERS ctw_decoders_avx512
#define INLINE static inline __attribute__((always_inline))

enum {
    VL = 16,
    NV = 2,
    NR = NV * VL,
    MR = 12,    /* 24 accumulators, 2 vectors of b */
    KC = 192,   /* a panel of b of 24 KiB */
    AHEAD = 64, /* 3 KiB of packed rows */
    ATTN_ROWS = 12,
    ATTN_LANES = 96,
    ATTN_KEYS = 96,
    ATTN_STEP = 2,
    EACH_AT_ONCE = 4
};

typedef __m512 vf;

INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

INLINE vf vf_set1(float f)
{
    return _mm512_set1_ps(f);
}

INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}

INLINE void vf_store_n(float *p, vf v, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), v);
}

INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

INLINE vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}

INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

INLINE vf vf_select_le(vf a, vf b, vf yes, vf no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LE_OQ), no, yes);
}

INLINE vf vf_copysign(vf a, vf b)
{
    const vf sign = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b));
}

INLINE vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE vf vf_scale2(vf a, vf n)
{
    return _mm512_scalef_ps(a, n);
}

INLINE vf vf_low_byte_exponent(vf a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23));
}

INLINE float vf_sum(vf v)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

INLINE float vf_largest(vf v)
{
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* The first lane equal to f, or VL. */
INLINE int vf_first_equal(vf a, float f)
{
    unsigned equal = _mm512_cmp_ps_mask(a, _mm512_set1_ps(f), _CMP_EQ_OQ);
    return equal == 0 ? VL : __builtin_ctz(equal);
}

INLINE vf vf_load_bf16(const void *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE vf vf_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE void vf_store_f16(void *p, vf v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* The bf16 bits of each lane, rounded as ctw_f32_to_bf16 does (vcvtneps2bf16 would lose
 * subnormals), in the low half of 32-bit lanes. */
INLINE __m512i bf16_bits(vf v)
{
    __m512i u = _mm512_castps_si512(v), high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_mask_blend_epi32(nan, _mm512_srli_epi32(r, 16), quiet);
}

INLINE void vf_store_bf16(void *p, vf v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(bf16_bits(v)));
}

INLINE void vf_transpose(vf r[VL])
{
    vf t[16];
    for (int i = 0; i < 8; i++) { /* pairs of rows, by 32 bits */
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) { /* fours, by 64 bits: r[4i+c] holds columns c, c+4, c+8, c+12 */
        r[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int c = 0; c < 4; c++) { /* eights and sixteens, by 128 bits */
        vf a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
        vf b = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
        vf d = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
        vf e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
        t[c] = _mm512_shuffle_f32x4(a, b, 0x88);
        t[8 + c] = _mm512_shuffle_f32x4(a, b, 0xdd);
        t[4 + c] = _mm512_shuffle_f32x4(d, e, 0x88);
        t[12 + c] = _mm512_shuffle_f32x4(d, e, 0xdd);
    }
    for (int i = 0; i < 16; i++)
        r[i] = t[i];
}

#if CTW_HAS_AMX
/* bf16(low) | bf16(high) << 16 in each lane. */
INLINE vf vf_make_pairs(vf low, vf high)
{
    return _mm512_castsi512_ps(
        _mm512_or_si512(bf16_bits(low), _mm512_slli_epi32(bf16_bits(high), 16)));
}
#elif CTW_HAS_PAIRS
/* acc + a.low * b.low + a.high * b.high for pairs of bf16 in 32-bit lanes. The instruction takes
 * subnormal inputs as zero and flushes subnormal results: at most 2^-126 per step. */
INLINE vf vf_dot_pairs(vf acc, vf a, vf b)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_castps_si512(a),
                            (__m512bh)_mm512_castps_si512(b));
}

/* bf16(low) | bf16(high) << 16 in each lane; subnormals become zero, as vf_dot_pairs treats
 * them. */
INLINE vf vf_make_pairs(vf low, vf high)
{
    __m512i l = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(low));
    __m512i h = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(high));
    return _mm512_castsi512_ps(_mm512_or_si512(l, _mm512_slli_epi32(h, 16)));
}
#endif

#endif
