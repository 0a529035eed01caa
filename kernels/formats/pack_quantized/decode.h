/*
 * pack-quantized: codes of 1 to 8 bits in 32-bit words, row by row. As compressed-tensors computes
 * it, with u the stored code and z the stored zero point (2^(bits-1) if none is stored):
 *     w = round((u - z) * scale), once, to the scale's dtype
 *
 * Rows are bit streams, lowest bit first: code i starts at bit i * bits of the row. Files written
 * by compressed-tensors before mid 2026 put only whole codes into a word (w->whole_codes), which
 * differs for 3, 5, 6 and 7 bits. Packed zero points are such streams down the rows of a column.
 */
#ifndef CTW_KERNELS_FORMATS_PACK_QUANTIZED_DECODE_H
#define CTW_KERNELS_FORMATS_PACK_QUANTIZED_DECODE_H

#include "kernels/formats/convert.h"
#include "kernels/formats/format.h"

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

/* The zero point, as a code, of group g of a row. */
CTW_HD_FORCE int32_t ctw_pack_zero(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                   int64_t row, int64_t g, int bits)
{
    const uint8_t *zero = (const uint8_t *)data->part[CTW_PART_ZERO_POINT];
    if (w->symmetric)
        return 1 << (bits - 1);
    if (!w->zero_packed)
        return (int32_t)(int8_t)zero[row * w->scale_stride + g] + (1 << (bits - 1));
    return (int32_t)ctw_pack_code(zero + 4 * (size_t)g, 4 * (size_t)w->n_groups, row, bits,
                                  w->whole_codes);
}

/* Columns begin .. end-1, which share a scale. dst points to column begin. */
CTW_HD_FORCE void ctw_pack_run(const uint8_t *src, int64_t begin, int64_t end, int bits,
                               bool whole_codes, int32_t zero, float scale, enum ctw_dtype dtype,
                               float *dst)
{
    int64_t c = begin;
    dst -= begin;
    for (; c < end && (whole_codes || c % 32 != 0); c++)
        dst[c] = ctw_pack_value((int32_t)ctw_pack_code(src, 4, c, bits, whole_codes), zero, scale,
                                dtype);
    for (; c + 32 <= end; c += 32)
        ctw_pack_block(src + (size_t)(c / 32 * bits) * 4, bits, zero, scale, dtype, dst + c);
    for (; c < end; c++)
        dst[c] = ctw_pack_value((int32_t)ctw_pack_code(src, 4, c, bits, whole_codes), zero, scale,
                                dtype);
}

/* One span; bits and dtype are constants in each inlined copy. */
CTW_HD_FORCE void ctw_pack_span(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                int64_t row, int64_t col0, int64_t n_col, int bits,
                                enum ctw_dtype dtype, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + (size_t)row * w->row_bytes;
    const void *scales = data->part[CTW_PART_SCALE];
    int64_t end = col0 + n_col;
    for (int64_t c = col0, g = col0 / w->group_size; c < end; g++) {
        int64_t stop = (g + 1) * w->group_size < end ? (g + 1) * w->group_size : end;
        ctw_pack_run(src, c, stop, bits, w->whole_codes, ctw_pack_zero(w, data, row, g, bits),
                     ctw_load_value(scales, dtype, row * w->scale_stride + g), dtype,
                     dst + (c - col0));
        c = stop;
    }
}

/*
 * A span whose columns name their groups individually (activation order): gathers scales and zero
 * points for 32 columns at a time, then decodes as above.
 */
CTW_HD_FORCE void ctw_pack_span_indexed(const struct ctw_weight *w,
                                        const struct ctw_weight_data *data, int64_t row,
                                        int64_t col0, int64_t n_col, int bits, enum ctw_dtype dtype,
                                        float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + (size_t)row * w->row_bytes;
    const uint8_t *index = (const uint8_t *)data->part[CTW_PART_GROUP_INDEX];
    const void *scales = data->part[CTW_PART_SCALE];
    for (int64_t c = col0; c < col0 + n_col; c += 32, dst += 32) {
        int n = col0 + n_col - c < 32 ? (int)(col0 + n_col - c) : 32;
        int32_t zero[32];
        float scale[32];
        for (int i = 0; i < n; i++) {
            int64_t g = ctw_load_u32(index + 4 * (c + i));
            scale[i] = ctw_load_value(scales, dtype, row * w->scale_stride + g);
            zero[i] = ctw_pack_zero(w, data, row, g, bits);
        }
#if CTW_VECTOR
        if (n == 32 && c % 32 == 0 && !w->whole_codes) {
            for (int u = 0; u < 4; u++) {
                ctw_i32x8 code, z;
                ctw_f32x8 s;
                memcpy(&z, zero + 8 * u, sizeof(z));
                memcpy(&s, scale + 8 * u, sizeof(s));
                ctw_pack_codes8(src + (size_t)(c / 32 * bits) * 4, bits, u, &code);
                s *= __builtin_convertvector(code - z, ctw_f32x8);
                ctw_round_value8(&s, dtype);
                memcpy(dst + 8 * u, &s, sizeof(s));
            }
            continue;
        }
#endif
        for (int i = 0; i < n; i++)
            dst[i] = ctw_pack_value((int32_t)ctw_pack_code(src, 4, c + i, bits, w->whole_codes),
                                    zero[i], scale[i], dtype);
    }
}

/* bits and dtype are constants. */
CTW_HD_FORCE void ctw_pack_any_span(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                    int64_t row, int64_t col0, int64_t n_col, int bits,
                                    enum ctw_dtype dtype, float *dst)
{
    if (w->indexed)
        ctw_pack_span_indexed(w, data, row, col0, n_col, bits, dtype, dst);
    else
        ctw_pack_span(w, data, row, col0, n_col, bits, dtype, dst);
}

#define CTW_PACK_CASE(b)                                                                           \
    case b:                                                                                        \
        if (w->dtype == CTW_BF16)                                                                  \
            ctw_pack_any_span(w, data, row, col0, n_col, b, CTW_BF16, dst);                        \
        else if (w->dtype == CTW_F16)                                                              \
            ctw_pack_any_span(w, data, row, col0, n_col, b, CTW_F16, dst);                         \
        else                                                                                       \
            ctw_pack_any_span(w, data, row, col0, n_col, b, CTW_F32, dst);                         \
        break;

CTW_HD void ctw_pack_quantized_decode(const struct ctw_weight *w,
                                      const struct ctw_weight_data *data, int64_t row, int64_t col0,
                                      int64_t n_col, float *dst)
{
    switch (w->bits) {
        CTW_PACK_CASE(1)
        CTW_PACK_CASE(2)
        CTW_PACK_CASE(3)
        CTW_PACK_CASE(4)
        CTW_PACK_CASE(5)
        CTW_PACK_CASE(6)
        CTW_PACK_CASE(7)
        CTW_PACK_CASE(8)
    default:
        break;
    }
}

#undef CTW_PACK_CASE

#endif
