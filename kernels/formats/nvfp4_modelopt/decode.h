/* ModelOpt's NVFP4: see kernels/formats/e2m1_factor.h. */
#ifndef CTW_KERNELS_FORMATS_NVFP4_MODELOPT_DECODE_H
#define CTW_KERNELS_FORMATS_NVFP4_MODELOPT_DECODE_H

#include "kernels/formats/e2m1_factor.h"

CTW_HD void ctw_nvfp4_modelopt_decode(const struct ctw_weight *w,
                                      const struct ctw_weight_data *data, int64_t row, int64_t col0,
                                      int64_t n_col, float *dst)
{
    ctw_e2m1_factor_decode(w, data, row, col0, n_col, dst);
}

#endif
