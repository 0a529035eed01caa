/* Codes of 1 to 8 bits in streams of 32-bit words, lowest bit first. */
#ifndef CTW_KERNELS_FORMATS_PACKED_H
#define CTW_KERNELS_FORMATS_PACKED_H

#include <stdbool.h>

#include "kernels/formats/convert.h"

/* Code i of a stream whose words are `stride` bytes apart. */
CTW_HD_FORCE uint32_t ctw_pack_code(const uint8_t *stream, size_t stride, int64_t i, int bits,
                                    bool whole_codes)
{
    const uint32_t mask = (1u << bits) - 1u;
    if (whole_codes) {
        int64_t per_word = 32 / bits;
        uint32_t v = ctw_load_u32(stream + (size_t)(i / per_word) * stride);
        return v >> ((int)(i % per_word) * bits) & mask;
    }
    int64_t bit = i * bits;
    const uint8_t *p = stream + (size_t)(bit >> 5) * stride;
    int at = (int)(bit & 31);
    uint32_t v = ctw_load_u32(p) >> at;
    if (at + bits > 32)
        v |= ctw_load_u32(p + stride) << (32 - at);
    return v & mask;
}

CTW_HD_FORCE float ctw_pack_value(int32_t code, int32_t zero, float scale, enum ctw_dtype dtype)
{
    return ctw_round_value((float)(code - zero) * scale, dtype);
}

#if CTW_VECTOR
enum { CTW_ROW_BLOCKS = 4, CTW_STEPS_AHEAD = 16 };

/* Fetches what is CTW_STEPS_AHEAD steps from p; it may be past the end. */
CTW_HD_FORCE void ctw_fetch_ahead(const void *p, size_t step)
{
    __builtin_prefetch((const void *)((uintptr_t)p + CTW_STEPS_AHEAD * step));
}

/* Zero points and scales of up to CTW_ROW_BLOCKS blocks of eight rows, for one group of columns. */
struct ctw_row_scales {
    ctw_i32x8 zero[CTW_ROW_BLOCKS];
    ctw_f32x8 scale[CTW_ROW_BLOCKS];
};

/* The values of eight rows' codes in one column, from their low bits. */
CTW_HD_FORCE void ctw_pack_rows8(const ctw_u32x8 *code, const struct ctw_row_scales *by, int block,
                                 uint32_t mask, enum ctw_dtype dtype, float *dst)
{
    ctw_i32x8 number = (ctw_i32x8)(*code & mask) - by->zero[block];
    ctw_f32x8 v = __builtin_convertvector(number, ctw_f32x8) * by->scale[block];
    ctw_round_value8(&v, dtype);
    memcpy(dst, &v, sizeof(v));
}

/*
 * Codes 8u .. 8u+7 of the 32 codes in the `bits` words at p. Each half of four codes lies within 32
 * bits from some byte on; the load starts at an earlier byte if it would run past the block.
 */
CTW_HD_FORCE void ctw_pack_codes8(const uint8_t *p, int bits, int u, ctw_i32x8 *code)
{
    const uint32_t b = (uint32_t)bits, last = 4 * b - 4;
    const ctw_u32x8 lane = {0, b, 2 * b, 3 * b, 0, b, 2 * b, 3 * b};
    uint32_t bit0 = 8 * b * (uint32_t)u, bit1 = bit0 + 4 * b;
    uint32_t at0 = bit0 / 8 < last ? bit0 / 8 : last, at1 = bit1 / 8 < last ? bit1 / 8 : last;
    if (bits <= 4 && 32 % bits == 0) /* all eight in one word */
        at0 = at1 = bit0 / 32 * 4;
    uint32_t lo = ctw_load_u32(p + at0), hi = at1 == at0 ? lo : ctw_load_u32(p + at1);
    uint32_t s0 = bit0 - 8 * at0, s1 = bit1 - 8 * at1;
    ctw_u32x8 v = {lo, lo, lo, lo, hi, hi, hi, hi};
    v = v >> (lane + (ctw_u32x8){s0, s0, s0, s0, s1, s1, s1, s1}) & ((1u << b) - 1u);
    *code = (ctw_i32x8)v;
}
#endif

/* The 32 values in the `bits` words at p. */
CTW_HD_FORCE void ctw_pack_block(const uint8_t *p, int bits, int32_t zero, float scale,
                                 enum ctw_dtype dtype, float *dst)
{
#if CTW_VECTOR
    for (int u = 0; u < 4; u++) {
        ctw_i32x8 code;
        ctw_pack_codes8(p, bits, u, &code);
        ctw_f32x8 v = __builtin_convertvector(code - zero, ctw_f32x8) * scale;
        ctw_round_value8(&v, dtype);
        memcpy(dst + 8 * u, &v, sizeof(v));
    }
#else
    for (int i = 0; i < 32; i++)
        dst[i] = ctw_pack_value((int32_t)ctw_pack_code(p, 4, i, bits, false), zero, scale, dtype);
#endif
}

/* The first n of the 32 values in the words at p, each with a zero point and a scale of its own. */
CTW_HD_FORCE void ctw_pack_columns(const uint8_t *p, int n, int bits, const int32_t zero[32],
                                   const float scale[32], enum ctw_dtype dtype, float *dst)
{
#if CTW_VECTOR
    for (int u = 0; n == 32 && u < 4; u++) {
        ctw_i32x8 code, z;
        ctw_f32x8 s;
        memcpy(&z, zero + 8 * u, sizeof(z));
        memcpy(&s, scale + 8 * u, sizeof(s));
        ctw_pack_codes8(p, bits, u, &code);
        s *= __builtin_convertvector(code - z, ctw_f32x8);
        ctw_round_value8(&s, dtype);
        memcpy(dst + 8 * u, &s, sizeof(s));
    }
    if (n == 32)
        return;
#endif
    CTW_ROLLED
    for (int i = 0; i < n; i++)
        dst[i] =
            ctw_pack_value((int32_t)ctw_pack_code(p, 4, i, bits, false), zero[i], scale[i], dtype);
}

#endif
