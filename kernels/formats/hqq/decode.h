/*
 * HQQ: the matrix's elements, row after row, are cut into R groups, the rows of a matrix [R, C]
 * (axis 1), or into its columns (axis 0); each group has a scale and a zero point, which is a
 * number. W_q [P, C] holds the codes of rows r, r + P, r + 2P ... in one byte, those of 3 bits in
 * one word, the first in the highest bits. As Quantizer.dequantize() computes it:
 *     w = round(round(u - z) * s), each to the scales' dtype
 */
#ifndef CTW_KERNELS_FORMATS_HQQ_DECODE_H
#define CTW_KERNELS_FORMATS_HQQ_DECODE_H

#include "kernels/formats/convert.h"
#include "kernels/formats/format.h"

/* Codes in a byte, or of 3 bits in a word. */
CTW_HD_FORCE int ctw_hqq_codes(int bits)
{
    return bits == 3 ? 10 : 8 / bits;
}

/* n elements from column c of row r on; the codes' bits and dtype are constants in each inlined
 * copy. */
CTW_HD_FORCE void ctw_hqq_run(const struct ctw_weight *w, const struct ctw_weight_data *data,
                              int64_t r, int64_t c, int64_t n, int bits, enum ctw_dtype dtype,
                              float *dst)
{
    const void *scales = data->part[CTW_PART_SCALE], *zeros = data->part[CTW_PART_ZERO_POINT];
    const int64_t packed = w->part[CTW_PART_VALUES].shape[0], step = bits == 3 ? 4 : 1;
    const int shift = bits * (ctw_hqq_codes(bits) - 1 - (int)(r / packed));
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES];
    src += (r % packed * w->group_size + c) * step;
    for (int64_t i = 0; i < n; i++, src += step) {
        const int64_t g = w->by_input ? c + i : r;
        const uint32_t code = (bits == 3 ? ctw_load_u32(src) : *src) >> shift & ((1u << bits) - 1u);
        const float q = (float)code - ctw_load_value(zeros, dtype, g);
        dst[i] =
            ctw_round_value(ctw_round_value(q, dtype) * ctw_load_value(scales, dtype, g), dtype);
    }
}

CTW_HD_FORCE void ctw_hqq_span(const struct ctw_weight *w, const struct ctw_weight_data *data,
                               int64_t row, int64_t col0, int64_t n_col, int bits,
                               enum ctw_dtype dtype, float *dst)
{
    int64_t at = row * w->k + col0;
    CTW_ROLLED
    for (int64_t left = n_col, n; left > 0; left -= n, at += n, dst += n) {
        const int64_t r = at / w->group_size, c = at - r * w->group_size;
        n = w->group_size - c < left ? w->group_size - c : left;
        ctw_hqq_run(w, data, r, c, n, bits, dtype, dst);
    }
}

CTW_HD void ctw_hqq_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                           int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    switch (w->bits) {
        CTW_BITS_CASE(1, ctw_hqq_span)
        CTW_BITS_CASE(2, ctw_hqq_span)
        CTW_BITS_CASE(3, ctw_hqq_span)
        CTW_BITS_CASE(4, ctw_hqq_span)
        CTW_BITS_CASE(8, ctw_hqq_span)
    default:
        break;
    }
}

#endif
