/*
 * The engine's vocabulary for AVX2 + FMA + F16C. simd_avx512.h has the same names; the operations
 * (fast_*.h) are written once on top of both. Everything is static: no code compiled for this
 * instruction set leaves the file that includes this header.
 *
 * The including file defines CTW_HAS_PAIRS and CTW_HAS_AMX: does the variant multiply pairs of
 * bf16, and does AMX do so? Without AMX, pairs need AVX-512.
 *
 * A `vf` is CTW_VL floats, or CTW_VL 32-bit words that are only moved.
 */
#ifndef CTW_KERNELS_CPU_SIMD_AVX2_H
#define CTW_KERNELS_CPU_SIMD_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/cpu.h"

#define DECODERS ctw_decoders_avx2
#define INLINE static inline __attribute__((always_inline))

enum {
    VL = 8, /* lanes of a vector */
#if CTW_HAS_AMX
    NV = 4, /* as wide as two of AMX's tiles: for amx_emulated.c */
    ATTN_LANES = 96,
    ATTN_STEP = 2, /* a pair */
#else
    NV = 2,          /* vectors across a product tile */
    ATTN_LANES = 48, /* queries in parallel, a multiple of NR */
    ATTN_STEP = 1,   /* keys whose weights are computed at a time */
#endif
    NR = NV * VL,    /* columns of a product tile */
    MR = 6,          /* rows of a product tile: 12 accumulators, 2 vectors of b, 1 of a */
    KC = 320,        /* words of k per sweep: a panel of b (20 KiB) and a tile of a stay in L1 */
    AHEAD = 64,      /* words of a that are prefetched before their use */
    ATTN_ROWS = 6,   /* rows of a product tile in attention; divides ATTN_LANES and ATTN_KEYS */
    ATTN_KEYS = 96,  /* keys per tile */
    EACH_AT_ONCE = 2 /* vectors that the head and gates pass through a function together */
};

typedef __m256 vf;

INLINE vf vf_zero(void)
{
    return _mm256_setzero_ps();
}

INLINE vf vf_set1(float f)
{
    return _mm256_set1_ps(f);
}

INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

INLINE void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}

INLINE __m256i first_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The first n lanes, n in 0..VL; the others are not written. */
INLINE void vf_store_n(float *p, vf v, int n)
{
    _mm256_maskstore_ps(p, first_lanes(n), v);
}

INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

INLINE vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

INLINE vf vf_sqrt(vf a)
{
    return _mm256_sqrt_ps(a);
}

/* a * b + c, rounded once. */
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* b if either is NaN. */
INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

INLINE vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

/* a <= b ? yes : no, lane by lane; `no` if either is NaN. */
INLINE vf vf_select_le(vf a, vf b, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LE_OQ));
}

/* |a| with the sign of b. */
INLINE vf vf_copysign(vf a, vf b)
{
    const vf sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, b));
}

INLINE vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a * 2^n for integral n in -252..252; subnormal results are kept. */
INLINE vf vf_scale2(vf a, vf n)
{
    const __m256i bias = _mm256_set1_epi32(127);
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);
    __m256i rest = _mm256_sub_epi32(i, half);
    vf s0 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    vf s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(a, s0), s1);
}

/* The bits of each lane shifted left by 23: its low byte as an exponent. */
INLINE vf vf_low_byte_exponent(vf a)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23));
}

/* In one fixed order. */
INLINE float vf_sum(vf v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

INLINE float vf_largest(vf v)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* The first lane equal to f, or VL. */
INLINE int vf_first_equal(vf a, float f)
{
    unsigned equal = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, _mm256_set1_ps(f), _CMP_EQ_OQ));
    return equal == 0 ? VL : __builtin_ctz(equal);
}

INLINE vf vf_load_bf16(const void *p)
{
    __m128i h = _mm_loadu_si128((const __m128i *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE vf vf_load_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE void vf_store_f16(void *p, vf v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* The bf16 bits of each lane, in the low half of 32-bit lanes: to nearest, ties to even, NaN made
 * quiet, subnormals kept. */
INLINE __m256i bf16_bits(vf v)
{
    __m256i u = _mm256_castps_si256(v), high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(r, 16), quiet, nan);
}

INLINE void vf_store_bf16(void *p, vf v)
{
    __m256i r = bf16_bits(v);
    r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(r));
}

/* r[i] lane j becomes r[j] lane i. */
INLINE void vf_transpose(vf r[VL])
{
    vf t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
        r[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
    }
}

#if CTW_HAS_AMX
/* bf16(low) | bf16(high) << 16 in each lane. */
INLINE vf vf_make_pairs(vf low, vf high)
{
    return _mm256_castsi256_ps(
        _mm256_or_si256(bf16_bits(low), _mm256_slli_epi32(bf16_bits(high), 16)));
}
#endif

#endif
