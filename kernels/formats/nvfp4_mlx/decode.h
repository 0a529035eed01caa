/*
 * MLX's nvfp4 with a global scale, the largest magnitude of the matrix. As mx.dequantize() computes
 * it (kernels/formats/e2m1_factor.h), before it rounds to the model's dtype:
 *     f = fl32(global / (448 * 6));  a = fl32(e4m3 * f);  w = fl32(e2m1 * a)
 */
#ifndef CTW_KERNELS_FORMATS_NVFP4_MLX_DECODE_H
#define CTW_KERNELS_FORMATS_NVFP4_MLX_DECODE_H

#include "kernels/formats/e2m1_factor.h"

CTW_HD void ctw_nvfp4_mlx_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                 int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    float global =
        ctw_load_float(data->part[CTW_PART_GLOBAL_SCALE], w->part[CTW_PART_GLOBAL_SCALE].dtype, 0);
    ctw_e2m1_factor_groups(w, data, row, col0, n_col, CTW_NVFP4_GROUP, global / 2688.0f, dst);
}

#endif
