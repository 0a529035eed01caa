/*
 * int-quantized: one signed byte per value, of at most 8 bits; scales BF16, F16 or F32 of the
 * matrix, of rows, of groups of columns or of blocks; zero points one signed byte each.
 */
#ifndef CTW_KERNELS_FORMATS_INT_QUANTIZED_DECODE_H
#define CTW_KERNELS_FORMATS_INT_QUANTIZED_DECODE_H

#include "kernels/formats/bytes.h"

CTW_HD void ctw_int_quantized_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                     int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    ctw_byte_decode(w, data, row, col0, n_col, CTW_BYTE_INT8, dst);
}

#endif
