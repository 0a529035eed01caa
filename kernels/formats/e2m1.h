/*
 * E2M1 codes, two per byte, the even column in the low half: the values of NVFP4 and MXFP4.
 */
#ifndef CTW_KERNELS_FORMATS_E2M1_H
#define CTW_KERNELS_FORMATS_E2M1_H

#include "kernels/formats/convert.h"

enum { CTW_NVFP4_GROUP = 16 }; /* columns that share an E4M3 scale */

/* The E2M1 value of code & 15, computed arithmetically. */
CTW_HD_FORCE float ctw_e2m1_value(uint32_t code)
{
    /* Twice the magnitudes 0 .5 1 1.5 2 3 4 6, as nibbles. */
    uint32_t twice = (0xc8643210u >> ((code & 7u) * 4u)) & 15u;
    float magnitude = (float)(int32_t)twice * 0.5f;
    return ctw_bits_to_f32(ctw_f32_to_bits(magnitude) | (code & 8u) << 28);
}

#if CTW_VECTOR && (defined(__AVX2__) || !defined(__x86_64__)) /* SSE2 has no per-lane shifts */
#define CTW_E2M1_VECTOR 1
/* The eight values of a word of codes, with scale a, rounded to dtype (a constant). */
CTW_HD_FORCE void ctw_e2m1_values8(uint32_t word, float a, enum ctw_dtype dtype, float *dst)
{
    const ctw_u32x8 lane = {0, 4, 8, 12, 16, 20, 24, 28};
    ctw_u32x8 code = (word - (ctw_u32x8){0}) >> lane;
    ctw_u32x8 twice = 0xc8643210u >> (code << 2 & 28u) & 15u;
    ctw_f32x8 v = __builtin_convertvector((ctw_i32x8)twice, ctw_f32x8) * 0.5f;
    v = (ctw_f32x8)((ctw_u32x8)v | (code << 28 & 0x80000000u)) * a;
    ctw_round_value8(&v, dtype);
    memcpy(dst, &v, sizeof(v));
}
#else
#define CTW_E2M1_VECTOR 0
#endif

/* n columns, of an even number on, that share the scale a. */
CTW_HD_FORCE void ctw_e2m1_run(const uint8_t *src, int n, float a, enum ctw_dtype dtype, float *dst)
{
    int i = 0;
#if CTW_E2M1_VECTOR
    for (; i + 8 <= n; i += 8)
        ctw_e2m1_values8(ctw_load_u32(src + i / 2), a, dtype, dst + i);
#endif
    for (; i < n; i++)
        dst[i] = ctw_round_value(ctw_e2m1_value((uint32_t)src[i / 2] >> (4 * (i % 2))) * a, dtype);
}

#endif
