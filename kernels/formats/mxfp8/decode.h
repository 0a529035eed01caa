/*
 * mxfp8-quantized: one FP8 code (E4M3) per value; one power of two (E8M0) per 32 columns. Values
 * are bf16, which holds them exactly unless they are below its normal numbers or above all numbers.
 */
#ifndef CTW_KERNELS_FORMATS_MXFP8_DECODE_H
#define CTW_KERNELS_FORMATS_MXFP8_DECODE_H

#include "kernels/formats/bytes.h"

CTW_HD void ctw_mxfp8_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                             int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + row * w->k + col0;
    const uint8_t *scale = (const uint8_t *)data->part[CTW_PART_SCALE];
    scale += row * w->scale_stride + col0 / CTW_MX_GROUP;
    const uint32_t nan = ctw_e8m0_nan(w);
    for (int64_t c = 0; c < n_col; c += CTW_MX_GROUP) {
        int n = n_col - c < CTW_MX_GROUP ? (int)(n_col - c) : CTW_MX_GROUP;
        float a = ctw_e8m0_to_f32(*scale++, nan);
        ctw_byte_run(src + c, n, CTW_BYTE_E4M3, 0, a, CTW_BF16, dst + c);
    }
}

#endif
