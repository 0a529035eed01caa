/*
 * Weights with one byte per value, shared by float-quantized, int-quantized and mxfp8-quantized.
 * As compressed-tensors computes them, with the code's value v and the zero point z (0 if none is
 * stored):
 *     w = round((v - z) * scale), once, to the scale's dtype
 * v - z is exact in that dtype, and its product with the scale is exact in fp32 before the rounding
 * (or the dtype is fp32). With exponents as scales (E8M0) the values are BF16.
 */
#ifndef CTW_KERNELS_FORMATS_BYTES_H
#define CTW_KERNELS_FORMATS_BYTES_H

#include "kernels/formats/convert.h"
#include "kernels/formats/e8m0.h"
#include "kernels/formats/format.h"

/* Constants in each inlined copy. */
enum ctw_byte_code { CTW_BYTE_INT8, CTW_BYTE_E4M3 };

/* ctw_e4m3_to_f32, branch-free: the code's exponent and mantissa bits, placed as a float's, are
 * 2^-120 times its value, subnormals included. */
CTW_HD_FORCE float ctw_byte_e4m3(uint32_t code)
{
    uint32_t magnitude = code & 0x7fu;
    uint32_t v = ctw_f32_to_bits(ctw_bits_to_f32(magnitude << 20) * 0x1p120f);
    v = ctw_select(0u - (magnitude == 0x7fu), 0x7fc00000u, v);
    return ctw_bits_to_f32(v | (code & 0x80u) << 24);
}

CTW_HD_FORCE float ctw_byte_value(uint8_t byte, enum ctw_byte_code code, int32_t zero)
{
    return code == CTW_BYTE_E4M3 ? ctw_byte_e4m3(byte) : (float)((int32_t)(int8_t)byte - zero);
}

#if CTW_VECTOR
/* With AVX2, gcc spreads eight bytes over eight words well only through an explicit shuffle of
 * bytes. */
typedef uint8_t ctw_u8x8 __attribute__((vector_size(8)));
typedef uint8_t ctw_u8x32 __attribute__((vector_size(32)));
typedef uint64_t ctw_u64x4 __attribute__((vector_size(32)));
#if defined(__AVX2__) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define CTW_BYTE_SHUFFLE 1
#endif
#endif

/* Eight bytes, each in the high byte of its word; the others' bits are of no use. */
CTW_HD_FORCE void ctw_byte_spread8(const uint8_t *src, ctw_u32x8 *byte)
{
#ifdef CTW_BYTE_SHUFFLE
    uint64_t word;
    memcpy(&word, src, sizeof(word));
    const ctw_u8x32 v4 = (ctw_u8x32)(word - (ctw_u64x4){0});
    *byte = (ctw_u32x8)__builtin_shufflevector(v4, v4, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3,
                                               3, 20, 20, 20, 20, 21, 21, 21, 21, 22, 22, 22, 22,
                                               23, 23, 23, 23);
#else
    ctw_u8x8 bytes;
    memcpy(&bytes, src, sizeof(bytes));
    *byte = __builtin_convertvector(bytes, ctw_u32x8) << 24;
#endif
}

/* Eight values. */
CTW_HD_FORCE void ctw_byte_values8(const uint8_t *src, enum ctw_byte_code code,
                                   const ctw_i32x8 *zero, ctw_f32x8 *v)
{
    ctw_u32x8 byte;
    ctw_byte_spread8(src, &byte);
    if (code == CTW_BYTE_INT8) {
        *v = __builtin_convertvector(((ctw_i32x8)byte >> 24) - *zero, ctw_f32x8);
        return;
    }
    ctw_u32x8 magnitude = byte >> 4 & 0x07f00000u;
    ctw_u32x8 value = (ctw_u32x8)((ctw_f32x8)magnitude * 0x1p120f);
    ctw_u32x8 nan = (ctw_u32x8)(magnitude == 0x07f00000u);
    *v = (ctw_f32x8)((value & ~nan) | (nan & 0x7fc00000u) | (byte & 0x80000000u));
}
#endif

/* n columns that share a scale and a zero point. */
CTW_HD_FORCE void ctw_byte_run(const uint8_t *src, int64_t n, enum ctw_byte_code code, int32_t zero,
                               float scale, enum ctw_dtype dtype, float *dst)
{
    int64_t c = 0;
#if CTW_VECTOR
    const ctw_i32x8 zeros = zero - (ctw_i32x8){0};
    for (; c + 8 <= n; c += 8) {
        ctw_f32x8 v;
        ctw_byte_values8(src + c, code, &zeros, &v);
        v *= scale;
        ctw_round_value8(&v, dtype);
        memcpy(dst + c, &v, sizeof(v));
    }
#endif
    for (; c < n; c++)
        dst[c] = ctw_round_value(ctw_byte_value(src[c], code, zero) * scale, dtype);
}

/* The dtype of the values that scales of dtype `scales` make. */
CTW_HD_FORCE enum ctw_dtype ctw_byte_dtype(enum ctw_dtype scales)
{
    return scales == CTW_F8_E8M0 ? CTW_BF16 : scales;
}

/* The scale and the zero point of group g in a row of groups. scales: F8_E8M0 for exponents of
 * either dtype. */
CTW_HD_FORCE float ctw_byte_scale(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                  int64_t row, int64_t g, enum ctw_dtype scales)
{
    const void *scale = data->part[CTW_PART_SCALE];
    int64_t at = row * w->scale_stride + g;
    return scales == CTW_F8_E8M0 ? ctw_e8m0_to_f32(((const uint8_t *)scale)[at], ctw_e8m0_nan(w))
                                 : ctw_load_value(scale, scales, at);
}

CTW_HD_FORCE int32_t ctw_byte_zero(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                   int64_t row, int64_t g)
{
    const int8_t *zero = (const int8_t *)data->part[CTW_PART_ZERO_POINT];
    return w->symmetric ? 0 : zero[row * w->scale_stride + g];
}

/* A span whose columns name their groups individually (activation order). src: its first byte. */
CTW_HD_FORCE void ctw_byte_span_indexed(const struct ctw_weight *w,
                                        const struct ctw_weight_data *data, const uint8_t *src,
                                        int64_t row, int64_t col0, int64_t n_col,
                                        enum ctw_byte_code code, enum ctw_dtype scales, float *dst)
{
    const enum ctw_dtype dtype = ctw_byte_dtype(scales);
    const uint8_t *index = (const uint8_t *)data->part[CTW_PART_GROUP_INDEX] + 4 * col0;
    for (int64_t c = 0; c < n_col; c += 8) {
        int n = n_col - c < 8 ? (int)(n_col - c) : 8;
        int32_t zero[8] = {0};
        float scale[8] = {0};
        for (int i = 0; i < n; i++) {
            int64_t g = ctw_load_u32(index + 4 * (c + i));
            scale[i] = ctw_byte_scale(w, data, row, g, scales);
            zero[i] = ctw_byte_zero(w, data, row, g);
        }
#if CTW_VECTOR
        if (n == 8) {
            ctw_i32x8 z;
            ctw_f32x8 s, v;
            memcpy(&z, zero, sizeof(z));
            memcpy(&s, scale, sizeof(s));
            ctw_byte_values8(src + c, code, &z, &v);
            v *= s;
            ctw_round_value8(&v, dtype);
            memcpy(dst + c, &v, sizeof(v));
            continue;
        }
#endif
        for (int i = 0; i < n; i++)
            dst[c + i] =
                ctw_round_value(ctw_byte_value(src[c + i], code, zero[i]) * scale[i], dtype);
    }
}

/* One span. code and scales are constants in each inlined copy. */
CTW_HD_FORCE void ctw_byte_span(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                int64_t row, int64_t col0, int64_t n_col, enum ctw_byte_code code,
                                enum ctw_dtype scales, float *dst)
{
    const enum ctw_dtype dtype = ctw_byte_dtype(scales);
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + row * w->k + col0;
    int64_t end = col0 + n_col;
    row = ctw_scale_row(w, row);
    if (w->indexed) {
        ctw_byte_span_indexed(w, data, src, row, col0, n_col, code, scales, dst);
        return;
    }
    for (int64_t c = col0, g = col0 / w->group_size; c < end; g++) {
        int64_t stop = (g + 1) * w->group_size < end ? (g + 1) * w->group_size : end;
        ctw_byte_run(src + (c - col0), stop - c, code, ctw_byte_zero(w, data, row, g),
                     ctw_byte_scale(w, data, row, g, scales), dtype, dst + (c - col0));
        c = stop;
    }
}

CTW_HD_FORCE void ctw_byte_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                  int64_t row, int64_t col0, int64_t n_col, enum ctw_byte_code code,
                                  float *dst)
{
    const enum ctw_dtype scales = w->part[CTW_PART_SCALE].dtype;
    if (code == CTW_BYTE_E4M3 && (scales == CTW_U8 || scales == CTW_F8_E8M0))
        ctw_byte_span(w, data, row, col0, n_col, code, CTW_F8_E8M0, dst);
    else if (w->dtype == CTW_BF16)
        ctw_byte_span(w, data, row, col0, n_col, code, CTW_BF16, dst);
    else if (w->dtype == CTW_F16)
        ctw_byte_span(w, data, row, col0, n_col, code, CTW_F16, dst);
    else
        ctw_byte_span(w, data, row, col0, n_col, code, CTW_F32, dst);
}

#endif
