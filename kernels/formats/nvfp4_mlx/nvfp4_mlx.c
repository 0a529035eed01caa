#include <math.h>

#include "kernels/formats/check.h"
#include "kernels/formats/nvfp4_mlx/decode.h"

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_format_nvfp4.owns(part) && ctw_part_present(&part[CTW_PART_GLOBAL_SCALE]);
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    enum ctw_status st = ctw_check_nvfp4(w, args, CTW_NVFP4_GROUP, err);
    w->dtype = CTW_F32; /* rounded once, to the dtype that is computed in */
    return st;
}

static enum ctw_status check_data(struct ctw_weight *w, const struct ctw_weight_data *data,
                                  struct ctw_err *err)
{
    float global =
        ctw_load_float(data->part[CTW_PART_GLOBAL_SCALE], w->part[CTW_PART_GLOBAL_SCALE].dtype, 0);
    if (!isfinite(global))
        return ctw_fail(err, CTW_EFORMAT,
                        "global_scale: found %g, expected a finite number (it multiplies the "
                        "scales); the checkpoint is damaged",
                        (double)global);
    return CTW_OK;
}

const struct ctw_format ctw_format_nvfp4_mlx = {
    .id = CTW_FORMAT_nvfp4_mlx,
    .name = "nvfp4-mlx",
    .owns = owns,
    .check = check,
    .check_data = check_data,
    .decode = ctw_nvfp4_mlx_decode,
};
