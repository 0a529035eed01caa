/*
 * Quark's integers: codes of 2 bits (four in a byte, the first in the highest bits), 4 bits (eight
 * in a word) or 8 bits, unsigned or in two's complement. If each group of inputs has a scale, a
 * line of codes is the outputs of one input, [K, N], and scales are [groups, N]; else it is the
 * inputs of one output, [N, K], and there is one scale a row or for all. Words have the order of a
 * line, or AWQ's (0 2 4 6 1 3 5 7, from the lowest bits on). Zero points are codes, packed as a
 * line of the outputs, or numbers. As Quark's dequantize() computes it in fp32, rounded to the
 * scale's dtype: w = round((q - z) * scale)
 */
#ifndef CTW_KERNELS_FORMATS_QUARK_INT_DECODE_H
#define CTW_KERNELS_FORMATS_QUARK_INT_DECODE_H

#include "kernels/formats/convert.h"
#include "kernels/formats/format.h"

/* Bytes of a line of n codes. */
CTW_HD_FORCE int64_t ctw_quark_line(const struct ctw_weight *w, int64_t n)
{
    return n * w->bits / 8;
}

/* Code i of a line, as a number. */
CTW_HD_FORCE float ctw_quark_number(const struct ctw_weight *w, const uint8_t *line, int64_t i)
{
    const uint32_t unused = 32u - (uint32_t)w->bits;
    uint32_t code;
    if (w->bits == 8)
        code = line[i];
    else if (w->bits == 2)
        code = (uint32_t)line[i / 4] >> (6 - 2 * (i % 4));
    else
        code = ctw_load_u32(line + i / 8 * 4) >>
               4 * (w->interleaved ? 0x73625140u >> (4 * (i % 8)) & 15u : (uint32_t)(i % 8));
    code <<= unused;
    return w->is_signed ? (float)((int32_t)code >> unused) : (float)(code >> unused);
}

/* The zero point of a row's group g. */
CTW_HD_FORCE float ctw_quark_zero(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                  int64_t row, int64_t g)
{
    const uint8_t *zeros = (const uint8_t *)data->part[CTW_PART_ZERO_POINT];
    if (w->symmetric)
        return 0;
    if (w->scale_stride == 0)
        row = 0;
    if (!w->zero_packed)
        return ctw_load_value(zeros, w->part[CTW_PART_ZERO_POINT].dtype, g * w->n + row);
    return ctw_quark_number(w, zeros + g * ctw_quark_line(w, w->n), row);
}

/* One span; dtype is a constant in each inlined copy. */
CTW_HD_FORCE void ctw_quark_span(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                 int64_t row, int64_t col0, int64_t n_col, enum ctw_dtype dtype,
                                 float *dst)
{
    const uint8_t *values = (const uint8_t *)data->part[CTW_PART_VALUES];
    const bool across = w->by_input; /* a line is the outputs of one input */
    const int64_t bytes = ctw_quark_line(w, across ? w->n : w->k), end = col0 + n_col;
    CTW_ROLLED
    for (int64_t c = col0, g = col0 / w->group_size; c < end; g++) {
        const int64_t stop = (g + 1) * w->group_size < end ? (g + 1) * w->group_size : end;
        const float zero = ctw_quark_zero(w, data, row, g);
        const float scale = ctw_load_value(data->part[CTW_PART_SCALE], dtype,
                                           w->scale_stride == 0 ? 0 : g * w->n + row);
        CTW_ROLLED
        for (; c < stop; c++) {
            const float q =
                ctw_quark_number(w, values + (across ? c : row) * bytes, across ? row : c);
            *dst++ = ctw_round_value((q - zero) * scale, dtype);
        }
    }
}

CTW_HD void ctw_quark_int_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                 int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    if (w->dtype == CTW_F16)
        ctw_quark_span(w, data, row, col0, n_col, CTW_F16, dst);
    else if (w->dtype == CTW_BF16)
        ctw_quark_span(w, data, row, col0, n_col, CTW_BF16, dst);
    else
        ctw_quark_span(w, data, row, col0, n_col, CTW_F32, dst);
}

#endif
