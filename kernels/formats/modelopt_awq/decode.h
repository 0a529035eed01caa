/*
 * ModelOpt's AWQ and SmoothQuant: 4-bit integers, and weights of its other formats whose inputs are
 * multiplied by `pre_quant_scale`, a factor p of each column. The factors are multiplied into the
 * weight instead:
 *     a = fl32(code * scale);  w = fl32(a * p)
 * The product is the same, and one rounding less: that of the input.
 *
 * 4-bit integers are signed; a byte has those of two rows, the even row's in the low half.
 */
#ifndef CTW_KERNELS_FORMATS_MODELOPT_AWQ_DECODE_H
#define CTW_KERNELS_FORMATS_MODELOPT_AWQ_DECODE_H

#include "kernels/formats/bytes.h"
#include "kernels/formats/e2m1_factor.h"

CTW_HD void ctw_modelopt_awq_int4(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                  int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + row / 2 * w->k + col0;
    const int shift = (int)(row % 2) * 4;
    for (int64_t c = 0; c < n_col;) {
        int64_t group = (col0 + c) / w->group_size;
        int64_t end = (group + 1) * w->group_size - col0;
        float scale = ctw_load_float(data->part[CTW_PART_SCALE], w->part[CTW_PART_SCALE].dtype,
                                     row * w->scale_stride + group);
        for (end = end < n_col ? end : n_col; c < end; c++)
            dst[c] = (float)(((src[c] >> shift & 15) ^ 8) - 8) * scale;
    }
}

CTW_HD void ctw_modelopt_awq_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                    int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    if (w->part[CTW_PART_VALUES].dtype == CTW_I8)
        ctw_byte_decode(w, data, row, col0, n_col, CTW_BYTE_INT8, dst);
    else if (w->part[CTW_PART_SCALE].dtype == CTW_F8_E4M3)
        ctw_e2m1_factor_decode(w, data, row, col0, n_col, dst);
    else
        ctw_modelopt_awq_int4(w, data, row, col0, n_col, dst);
    const void *factor = data->part[CTW_PART_COLUMN_SCALE];
    for (int64_t c = 0; factor != NULL && c < n_col; c++)
        dst[c] *= ctw_load_float(factor, w->part[CTW_PART_COLUMN_SCALE].dtype, col0 + c);
}

#endif
