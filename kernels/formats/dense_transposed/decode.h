/* Dense weights of a module that stores them as BF16, F16 or F32 [k, n], row-major: row `row` is a
 * stored column; decoding only widens. */
#ifndef CTW_KERNELS_FORMATS_DENSE_TRANSPOSED_DECODE_H
#define CTW_KERNELS_FORMATS_DENSE_TRANSPOSED_DECODE_H

#include "kernels/formats/convert.h"
#include "kernels/formats/format.h"

CTW_HD void ctw_dense_transposed_decode(const struct ctw_weight *w,
                                        const struct ctw_weight_data *data, int64_t row,
                                        int64_t col0, int64_t n_col, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES];
    size_t step = (size_t)w->n * w->row_bytes; /* from one column to the next */
    src += (size_t)row * w->row_bytes + (size_t)col0 * step;
    for (int64_t i = 0; i < n_col; i++)
        dst[i] = ctw_load_value(src + (size_t)i * step, w->dtype, 0);
}

#endif
