#include "kernels/formats/check.h"
#include "kernels/formats/mxfp6/decode.h"

/* As mxfp4's parts, but a scale has 24 bytes of codes, and not 16. */
static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    const struct ctw_part *values = &part[CTW_PART_VALUES], *scale = &part[CTW_PART_SCALE];
    return values->n_dims == 2 && values->dtype == CTW_U8 && scale->n_dims == 2 &&
           ctw_part_is_e8m0(scale) && !ctw_part_present(&part[CTW_PART_GLOBAL_SCALE]) &&
           values->shape[1] / CTW_MXFP6_GROUP_BYTES == scale->shape[1];
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    w->e3m2 = args->e3m2;
    return ctw_check_mx(w, args, 6, err);
}

const struct ctw_format ctw_format_mxfp6 = {
    .id = CTW_FORMAT_mxfp6,
    .name = "mxfp6-pack-quantized",
    .owns = owns,
    .check = check,
    .decode = ctw_mxfp6_decode,
};
