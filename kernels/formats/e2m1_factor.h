/*
 * ModelOpt's NVFP4, which nvfp4_modelopt and modelopt_awq share: codes and scales as
 * nvfp4-pack-quantized, but weight_scale_2 multiplies. As ModelOpt computes it, before it rounds to
 * the model's dtype; a scale has 16 columns or 32:
 *     a = fl32(e4m3 * weight_scale_2);  w = fl32(e2m1 * a)
 */
#ifndef CTW_KERNELS_FORMATS_E2M1_FACTOR_H
#define CTW_KERNELS_FORMATS_E2M1_FACTOR_H

#include "kernels/formats/e2m1.h"
#include "kernels/formats/format.h"

CTW_HD_FORCE void ctw_e2m1_factor_groups(const struct ctw_weight *w,
                                         const struct ctw_weight_data *data, int64_t row,
                                         int64_t col0, int64_t n_col, int group, float factor,
                                         float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES];
    const uint8_t *scale = (const uint8_t *)data->part[CTW_PART_SCALE];
    src += row * (w->k / 2) + col0 / 2;
    scale += row * w->scale_stride + col0 / group;
    for (int64_t c = 0; c < n_col; c += group, src += group / 2) {
        int n = n_col - c < group ? (int)(n_col - c) : group;
        ctw_e2m1_run(src, n, ctw_e4m3_to_f32(*scale++) * factor, CTW_F32, dst + c);
    }
}

CTW_HD_FORCE void ctw_e2m1_factor_decode(const struct ctw_weight *w,
                                         const struct ctw_weight_data *data, int64_t row,
                                         int64_t col0, int64_t n_col, float *dst)
{
    float factor =
        ctw_load_float(data->part[CTW_PART_GLOBAL_SCALE], w->part[CTW_PART_GLOBAL_SCALE].dtype, 0);
    if (w->group_size == CTW_NVFP4_GROUP)
        ctw_e2m1_factor_groups(w, data, row, col0, n_col, CTW_NVFP4_GROUP, factor, dst);
    else
        ctw_e2m1_factor_groups(w, data, row, col0, n_col, 2 * CTW_NVFP4_GROUP, factor, dst);
}

#endif
