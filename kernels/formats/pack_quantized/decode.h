/*
 * pack-quantized: codes of 1 to 8 bits in 32-bit words, row by row. As compressed-tensors computes
 * it, with u the stored code and z the stored zero point (2^(bits-1) if none is stored):
 *     w = round((u - z) * scale), once, to the scale's dtype
 *
 * Rows are bit streams, lowest bit first: code i starts at bit i * bits of the row. Files written
 * by compressed-tensors before mid 2026 put only whole codes into a word (w->whole_codes), which
 * differs for 3, 5, 6 and 7 bits. Packed zero points are such streams down the rows of a column.
 * Blocks have unpacked zero points only.
 */
#ifndef CTW_KERNELS_FORMATS_PACK_QUANTIZED_DECODE_H
#define CTW_KERNELS_FORMATS_PACK_QUANTIZED_DECODE_H

#include "kernels/formats/format.h"
#include "kernels/formats/packed.h"

/* The zero point, as a code, of group g of a row, or of a row of blocks. */
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

/* One span; bits and dtype are constants in each inlined copy. src: the row's first word; row: that
 * of its scales. */
CTW_HD_FORCE void ctw_pack_span(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                const uint8_t *src, int64_t row, int64_t col0, int64_t n_col,
                                int bits, enum ctw_dtype dtype, float *dst)
{
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
                                        const struct ctw_weight_data *data, const uint8_t *src,
                                        int64_t row, int64_t col0, int64_t n_col, int bits,
                                        enum ctw_dtype dtype, float *dst)
{
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
        if (c % 32 == 0 && !w->whole_codes) {
            ctw_pack_columns(src + (size_t)(c / 32 * bits) * 4, n, bits, zero, scale, dtype, dst);
            continue;
        }
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
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + (size_t)row * w->row_bytes;
    row = ctw_scale_row(w, row);
    if (w->indexed)
        ctw_pack_span_indexed(w, data, src, row, col0, n_col, bits, dtype, dst);
    else
        ctw_pack_span(w, data, src, row, col0, n_col, bits, dtype, dst);
}

CTW_HD void ctw_pack_quantized_decode(const struct ctw_weight *w,
                                      const struct ctw_weight_data *data, int64_t row, int64_t col0,
                                      int64_t n_col, float *dst)
{
    switch (w->bits) {
        CTW_BITS_CASE(1, ctw_pack_any_span)
        CTW_BITS_CASE(2, ctw_pack_any_span)
        CTW_BITS_CASE(3, ctw_pack_any_span)
        CTW_BITS_CASE(4, ctw_pack_any_span)
        CTW_BITS_CASE(5, ctw_pack_any_span)
        CTW_BITS_CASE(6, ctw_pack_any_span)
        CTW_BITS_CASE(7, ctw_pack_any_span)
        CTW_BITS_CASE(8, ctw_pack_any_span)
    default:
        break;
    }
}

#endif
