/* Dense weights of a module that stores them as BF16, F16 or F32 [k, n], row-major: row `row` is a
 * stored column; decoding only widens. Of several stacked matrices, [heads, k, rows_of_head], row
 * `row` is a column of matrix row / rows_of_head. */
#ifndef CTW_KERNELS_FORMATS_DENSE_TRANSPOSED_DECODE_H
#define CTW_KERNELS_FORMATS_DENSE_TRANSPOSED_DECODE_H

#include "kernels/formats/convert.h"
#include "kernels/formats/format.h"

CTW_HD void ctw_dense_transposed_decode(const struct ctw_weight *w,
                                        const struct ctw_weight_data *data, int64_t row,
                                        int64_t col0, int64_t n_col, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES];
    const size_t step = (size_t)w->rows_of_head * w->row_bytes; /* from one column to the next */
    src += (size_t)(row / w->rows_of_head * w->k + col0) * step +
           (size_t)(row % w->rows_of_head) * w->row_bytes;
    for (int64_t i = 0; i < n_col; i++)
        dst[i] = ctw_load_value(src + (size_t)i * step, w->dtype, 0);
}

#endif
