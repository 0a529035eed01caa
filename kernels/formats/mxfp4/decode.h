/*
 * mxfp4-pack-quantized, gpt-oss' MXFP4, and DeepSeek V4's FP4 experts: two E2M1 codes per byte, the
 * even column in the low half; one power of two (E8M0) per 32 columns. Values are bf16, which holds
 * them exactly unless they are above all numbers.
 */
#ifndef CTW_KERNELS_FORMATS_MXFP4_DECODE_H
#define CTW_KERNELS_FORMATS_MXFP4_DECODE_H

#include "kernels/formats/e2m1.h"
#include "kernels/formats/e8m0.h"
#include "kernels/formats/format.h"

CTW_HD void ctw_mxfp4_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                             int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES];
    const uint8_t *scale = (const uint8_t *)data->part[CTW_PART_SCALE];
    src += row * (w->k / 2) + col0 / 2;
    scale += row * w->scale_stride + col0 / CTW_MX_GROUP;
    const uint32_t nan = ctw_e8m0_nan(w);
    for (int64_t c = 0; c < n_col; c += CTW_MX_GROUP, src += CTW_MX_GROUP / 2) {
        float a = ctw_e8m0_to_f32(*scale++, nan);
        int n = n_col - c < CTW_MX_GROUP ? (int)(n_col - c) : CTW_MX_GROUP;
        ctw_e2m1_run(src, n, a, CTW_BF16, dst + c);
    }
}

#endif
