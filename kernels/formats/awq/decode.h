/*
 * AWQ (GEMM): codes of 4 bits, packed along the outputs. A word of qweight [K, N / 8] has the codes
 * of eight outputs of one input, in the order 0 2 4 6 1 3 5 7 from the lowest bits on. Words of
 * qzeros [groups, N / 8] have the same order. Scales are [groups, N]. As AutoAWQ computes it:
 *     w = round((u - z) * scale), once, to the scale's dtype
 */
#ifndef CTW_KERNELS_FORMATS_AWQ_DECODE_H
#define CTW_KERNELS_FORMATS_AWQ_DECODE_H

#include "kernels/formats/format.h"
#include "kernels/formats/packed.h"

/* n columns that share a scale; src: the first column's word, `step` bytes apart. */
CTW_HD_FORCE void ctw_awq_run(const uint8_t *src, size_t step, int64_t n, int shift, int32_t zero,
                              float scale, enum ctw_dtype dtype, float *dst)
{
    int64_t c = 0;
#if CTW_VECTOR
    for (; c + 8 <= n; c += 8) {
        const uint8_t *p = src + (size_t)c * step;
        ctw_u32x8 word = {ctw_load_u32(p),
                          ctw_load_u32(p + step),
                          ctw_load_u32(p + 2 * step),
                          ctw_load_u32(p + 3 * step),
                          ctw_load_u32(p + 4 * step),
                          ctw_load_u32(p + 5 * step),
                          ctw_load_u32(p + 6 * step),
                          ctw_load_u32(p + 7 * step)};
        ctw_i32x8 code = (ctw_i32x8)(word >> (uint32_t)shift & 15u) - zero;
        ctw_f32x8 v = __builtin_convertvector(code, ctw_f32x8) * scale;
        ctw_round_value8(&v, dtype);
        memcpy(dst + c, &v, sizeof(v));
    }
#endif
    for (; c < n; c++) {
        uint32_t u = ctw_load_u32(src + (size_t)c * step) >> shift & 15u;
        dst[c] = ctw_pack_value((int32_t)u, zero, scale, dtype);
    }
}

/* One span; dtype is a constant in each inlined copy. */
CTW_HD_FORCE void ctw_awq_span(const struct ctw_weight *w, const struct ctw_weight_data *data,
                               int64_t row, int64_t col0, int64_t n_col, enum ctw_dtype dtype,
                               float *dst)
{
    const size_t step = (size_t)w->n / 8 * 4;
    const int shift = (int)(0x73625140u >> (4 * (row % 8)) & 15u) * 4;
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + row / 8 * 4;
    const uint8_t *zeros = (const uint8_t *)data->part[CTW_PART_ZERO_POINT] + row / 8 * 4;
    int64_t end = col0 + n_col;
    for (int64_t c = col0, g = col0 / w->group_size; c < end; g++) {
        int64_t stop = (g + 1) * w->group_size < end ? (g + 1) * w->group_size : end;
        int32_t zero = (int32_t)(ctw_load_u32(zeros + (size_t)g * step) >> shift & 15u);
        ctw_awq_run(src + (size_t)c * step, step, stop - c, shift, zero,
                    ctw_load_value(data->part[CTW_PART_SCALE], dtype, g * w->n + row), dtype,
                    dst + (c - col0));
        c = stop;
    }
}

#if CTW_VECTOR
/*
 * n_rows rows (whole words) from `row` on, column by column: dst[c * ld + r], for n_col columns
 * from col0 on, unlike ctw_awq_decode(), which takes the 32 bits of a word for four of them.
 */
CTW_HD_FORCE void ctw_awq_columns(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                  int64_t row, int n_rows, int64_t col0, int64_t n_col,
                                  enum ctw_dtype dtype, float *dst, int64_t ld)
{
    const ctw_u32x8 shift = {0, 16, 4, 20, 8, 24, 12, 28};
    const size_t step = (size_t)w->n / 8 * 4;
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + row / 8 * 4;
    const uint8_t *zeros = (const uint8_t *)data->part[CTW_PART_ZERO_POINT] + row / 8 * 4;
    const int64_t end = col0 + n_col;
    for (int64_t c = col0, g = col0 / w->group_size; c < end; g++) {
        const int64_t stop = (g + 1) * w->group_size < end ? (g + 1) * w->group_size : end;
        struct ctw_row_scales by;
        for (int b = 0; b < n_rows / 8; b++) {
            ctw_load_values8(data->part[CTW_PART_SCALE], dtype, g * w->n + row + 8 * b,
                             &by.scale[b]);
            uint32_t word = ctw_load_u32(zeros + (size_t)g * step + 4 * b);
            by.zero[b] = (ctw_i32x8)(((ctw_u32x8){0} + word) >> shift & 15u);
        }
        for (; c < stop; c++, dst += ld) {
            ctw_fetch_ahead(src + (size_t)c * step, step);
            for (int b = 0; b < n_rows / 8; b++) {
                ctw_u32x8 code = ((ctw_u32x8){0} + ctw_load_u32(src + (size_t)c * step + 4 * b));
                code >>= shift;
                ctw_pack_rows8(&code, &by, b, 15, dtype, dst + 8 * b);
            }
        }
    }
}
#endif

CTW_HD void ctw_awq_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                           int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    if (w->dtype == CTW_F16)
        ctw_awq_span(w, data, row, col0, n_col, CTW_F16, dst);
    else if (w->dtype == CTW_BF16)
        ctw_awq_span(w, data, row, col0, n_col, CTW_BF16, dst);
    else
        ctw_awq_span(w, data, row, col0, n_col, CTW_F32, dst);
}

#endif
