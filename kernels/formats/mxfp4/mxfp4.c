#include <string.h>

#include "kernels/formats/check.h"
#include "kernels/formats/mxfp4/decode.h"

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    const struct ctw_part *values = &part[CTW_PART_VALUES];
    return ctw_part_present(values) && (values->dtype == CTW_U8 || values->dtype == CTW_I8) &&
           ctw_part_is_e8m0(&part[CTW_PART_SCALE]) &&
           !ctw_part_present(&part[CTW_PART_GLOBAL_SCALE]);
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    struct ctw_quant_args own = *args;
    /* DeepSeek's and MiMo's files, which describe FP8, and keep experts so. */
    const bool beside_fp8 = w->names != NULL && strcmp(w->names->method, "fp8") == 0;
    if (args->present && (w->part[CTW_PART_VALUES].dtype == CTW_I8 || beside_fp8))
        own = (struct ctw_quant_args){.present = true,
                                      .num_bits = 4,
                                      .is_float = true,
                                      .symmetric = true,
                                      .strategy = CTW_STRATEGY_GROUP,
                                      .group_size = CTW_MX_GROUP,
                                      .format = args->format};
    return ctw_check_mx(w, &own, 4, err);
}

const struct ctw_format ctw_format_mxfp4 = {
    .id = CTW_FORMAT_mxfp4,
    .name = "mxfp4-pack-quantized",
    .owns = owns,
    .check = check,
    .decode = ctw_mxfp4_decode,
};
