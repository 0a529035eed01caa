/*
 * float-quantized: one FP8 code (E4M3, without infinities) per value; scales BF16, F16, F32 or
 * powers of two (E8M0) of the matrix, of rows, of groups of columns or of blocks; no zero points.
 */
#ifndef CTW_KERNELS_FORMATS_FLOAT_QUANTIZED_DECODE_H
#define CTW_KERNELS_FORMATS_FLOAT_QUANTIZED_DECODE_H

#include "kernels/formats/bytes.h"

CTW_HD void ctw_float_quantized_decode(const struct ctw_weight *w,
                                       const struct ctw_weight_data *data, int64_t row,
                                       int64_t col0, int64_t n_col, float *dst)
{
    ctw_byte_decode(w, data, row, col0, n_col, CTW_BYTE_E4M3, dst);
}

#endif
