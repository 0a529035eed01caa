/* Dense weights whose heads' rows are stored in the order of RoPE's pairs (ctw_stored_row());
 * decoding only widens. */
#ifndef CTW_KERNELS_FORMATS_DENSE_PAIRED_DECODE_H
#define CTW_KERNELS_FORMATS_DENSE_PAIRED_DECODE_H

#include "kernels/formats/convert.h"
#include "kernels/formats/format.h"

CTW_HD void ctw_dense_paired_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                    int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    size_t at = (size_t)(ctw_stored_row(w, row) * w->k + col0);
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES];
    src += at * ctw_dtype_bytes(w->dtype);
    for (int64_t i = 0; i < n_col; i++)
        dst[i] = ctw_load_value(src, w->dtype, i);
}

#endif
