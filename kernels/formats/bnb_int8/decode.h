/*
 * bitsandbytes' LLM.int8(): one int8 per value, one scale a row, the row's largest magnitude. As
 * int8_vectorwise_dequant() computes it:
 *     w = fl32(fl32(q * scale) * fl32(1 / 127))
 */
#ifndef CTW_KERNELS_FORMATS_BNB_INT8_DECODE_H
#define CTW_KERNELS_FORMATS_BNB_INT8_DECODE_H

#include "kernels/formats/bytes.h"

CTW_HD void ctw_bnb_int8_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + row * w->k + col0;
    const float a = ctw_load_f32((const uint8_t *)data->part[CTW_PART_SCALE] + 4 * row);
    const float part = 0x1.020408p-7f; /* 1 / 127 */
    int64_t c = 0;
#if CTW_VECTOR
    const ctw_i32x8 zeros = {0};
    for (; c + 8 <= n_col; c += 8) {
        ctw_f32x8 v;
        ctw_byte_values8(src + c, CTW_BYTE_INT8, &zeros, &v);
        v = v * a * part;
        memcpy(dst + c, &v, sizeof(v));
    }
#endif
    for (; c < n_col; c++)
        dst[c] = (float)(int8_t)src[c] * a * part;
}

#endif
