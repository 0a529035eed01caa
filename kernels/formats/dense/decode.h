/* Dense weights: BF16, F16 or F32 [n, k], row-major; decoding only widens. */
#ifndef CTW_KERNELS_FORMATS_DENSE_DECODE_H
#define CTW_KERNELS_FORMATS_DENSE_DECODE_H

#include "kernels/formats/convert.h"
#include "kernels/formats/format.h"

CTW_HD void ctw_dense_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                             int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    size_t at = (size_t)(row * w->k + col0);
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES];
    src += at * ctw_dtype_bytes(w->dtype);
    if (w->dtype == CTW_F32) {
        memcpy(dst, src, (size_t)n_col * sizeof(float));
    } else if (w->dtype == CTW_BF16) {
        for (int64_t i = 0; i < n_col; i++)
            dst[i] = ctw_bf16_to_f32(ctw_load_u16(src + 2 * i));
    } else {
        for (int64_t i = 0; i < n_col; i++)
            dst[i] = ctw_widen_f16(ctw_load_u16(src + 2 * i));
    }
}

#endif
