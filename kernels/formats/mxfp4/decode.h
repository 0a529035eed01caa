/*
 * mxfp4-pack-quantized: two E2M1 codes per byte, the even column in the low half; one power of two
 * (E8M0) per 32 columns. Values are bf16, which holds them exactly unless they are above all
 * numbers.
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
    for (int64_t c = 0; c < n_col; c += CTW_MX_GROUP, src += CTW_MX_GROUP / 2) {
        float a = ctw_e8m0_to_f32(*scale++);
        int n = n_col - c < CTW_MX_GROUP ? (int)(n_col - c) : CTW_MX_GROUP, i = 0;
#if CTW_E2M1_VECTOR
        for (; i + 8 <= n; i += 8)
            ctw_e2m1_values8(ctw_load_u32(src + i / 2), a, dst + c + i);
#endif
        for (; i < n; i++)
            dst[c + i] = ctw_round_bf16(ctw_e2m1_value((uint32_t)src[i / 2] >> (4 * (i % 2))) * a);
    }
}

#endif
