/*
 * bitsandbytes' NF4 and FP4: the codes of the whole matrix are one stream, row by row, the first of
 * a byte in the high half. Blocks of the stream share a scale and may cross rows. As bitsandbytes
 * computes it, with c the value of a code:
 *     w = round(fl32(c * a)), to the dtype that the file states
 * The scale a is an fp32 number or, if scales are quantised themselves ("double quantisation"),
 *     a = fl32(fl32(SCALE_BOOK[code] * SCALE_SCALE[block / 256]) + scale_offset)
 */
#ifndef CTW_KERNELS_FORMATS_BNB_4BIT_DECODE_H
#define CTW_KERNELS_FORMATS_BNB_4BIT_DECODE_H

#include "kernels/formats/convert.h"
#include "kernels/formats/format.h"

enum { CTW_BNB_NESTED_BLOCK = 256 }; /* scales that share a scale */

/* The values of code `code` of FP4 or NF4, as in the files' quant_map. */
CTW_HD_FORCE float ctw_bnb_value(uint32_t code, bool is_fp4)
{
    const float nf4[16] = {-0x1p+0f,        -0x1.647362p-1f, -0x1.0cd66p-1f,  -0x1.9465400p-2f,
                           -0x1.23449ap-2f, -0x1.7a6a7ep-3f, -0x1.74f0e2p-4f, 0.0f,
                           0x1.45f5fep-4f,  0x1.4995c6p-3f,  0x1.f809bap-3f,  0x1.5a0674p-2f,
                           0x1.c34970p-2f,  0x1.200f56p-1f,  0x1.722766p-1f,  0x1p+0f};
    const float fp4[16] = {0.0f,
                           0x1.555556p-8f,
                           0x1.555556p-1f,
                           0x1p+0f,
                           0x1.555556p-2f,
                           0x1p-1f,
                           0x1.555556p-3f,
                           0x1p-2f,
                           0.0f,
                           -0x1.555556p-8f,
                           -0x1.555556p-1f,
                           -0x1p+0f,
                           -0x1.555556p-2f,
                           -0x1p-1f,
                           -0x1.555556p-3f,
                           -0x1p-2f};
    return is_fp4 ? fp4[code & 15u] : nf4[code & 15u];
}

CTW_HD_FORCE float ctw_bnb_scale(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                 int64_t block)
{
    const uint8_t *scales = (const uint8_t *)data->part[CTW_PART_SCALE];
    if (w->part[CTW_PART_SCALE].dtype == CTW_F32)
        return ctw_load_f32(scales + 4 * block);
    const uint8_t *book = (const uint8_t *)data->part[CTW_PART_SCALE_VALUES];
    const uint8_t *outer = (const uint8_t *)data->part[CTW_PART_SCALE_SCALE];
    float a = ctw_load_f32(book + 4 * (size_t)scales[block]);
    a *= ctw_load_f32(outer + 4 * (block / CTW_BNB_NESTED_BLOCK));
    return a + w->scale_offset;
}

/* n columns of a block with the scale a; src: the byte of the first, an even number. table: the
 * codes' values. */
CTW_HD_FORCE void ctw_bnb_run(const uint8_t *src, int64_t n, float a, const float table[16],
                              enum ctw_dtype dtype, float *dst)
{
    int64_t c = 0;
#if CTW_PICK
    const ctw_i32x8 shift = {4, 0, 12, 8, 20, 16, 28, 24};
    ctw_f32x8 low, high, v;
    memcpy(&low, table, sizeof(low));
    memcpy(&high, table + 8, sizeof(high));
    low *= a;
    high *= a;
    ctw_round_value8(&low, dtype);
    ctw_round_value8(&high, dtype);
    for (; c + 8 <= n; c += 8) {
        ctw_u32x8 code = ctw_load_u32(src + c / 2) - (ctw_u32x8){0};
        code = code >> (ctw_u32x8)shift;
        ctw_pick8(&low, &high, &code, &v);
        memcpy(dst + c, &v, sizeof(v));
    }
#endif
    for (; c < n; c++)
        dst[c] = ctw_round_value(table[src[c / 2] >> (c % 2 == 0 ? 4 : 0) & 15] * a, dtype);
}

CTW_HD_FORCE void ctw_bnb_span(const struct ctw_weight *w, const struct ctw_weight_data *data,
                               int64_t row, int64_t col0, int64_t n_col, enum ctw_dtype dtype,
                               float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES];
    float table[16];
    for (uint32_t i = 0; i < 16; i++)
        table[i] = ctw_bnb_value(i, w->fp4);
    const int64_t begin = row * w->k + col0, end = begin + n_col; /* in the stream */
    CTW_ROLLED
    for (int64_t at = begin, block = begin / w->group_size; at < end; block++) {
        const int64_t stop = (block + 1) * w->group_size < end ? (block + 1) * w->group_size : end;
        ctw_bnb_run(src + at / 2, stop - at, ctw_bnb_scale(w, data, block), table, dtype,
                    dst + (at - begin));
        at = stop;
    }
}

/* k is even, and so is the number of columns. */
CTW_HD void ctw_bnb_4bit_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    if (w->dtype == CTW_BF16)
        ctw_bnb_span(w, data, row, col0, n_col, CTW_BF16, dst);
    else if (w->dtype == CTW_F16)
        ctw_bnb_span(w, data, row, col0, n_col, CTW_F16, dst);
    else
        ctw_bnb_span(w, data, row, col0, n_col, CTW_F32, dst);
}

#endif
