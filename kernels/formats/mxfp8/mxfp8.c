#include "kernels/formats/check.h"
#include "kernels/formats/mxfp8/decode.h"

/* Exponents of other shapes are the scales of a float-quantized weight. */
static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    const struct ctw_part *values = &part[CTW_PART_VALUES], *scale = &part[CTW_PART_SCALE];
    return values->n_dims == 2 && values->dtype == CTW_F8_E4M3 && ctw_part_is_e8m0(scale) &&
           ctw_part_has_shape(scale, values->shape[0], values->shape[1] / CTW_MX_GROUP) &&
           values->shape[1] % CTW_MX_GROUP == 0 && !ctw_part_present(&part[CTW_PART_GLOBAL_SCALE]);
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    struct ctw_quant_args groups = *args;
    /* Blocks of 32 columns and one row, as transformers describes the format. */
    if (args->strategy == CTW_STRATEGY_BLOCK && args->block_cols == CTW_MX_GROUP &&
        (args->block_rows == 1 || w->n == 1)) {
        groups.strategy = CTW_STRATEGY_GROUP;
        groups.group_size = CTW_MX_GROUP;
    }
    return ctw_check_mx(w, &groups, 8, err);
}

const struct ctw_format ctw_format_mxfp8 = {
    .id = CTW_FORMAT_mxfp8,
    .name = "mxfp8-quantized",
    .owns = owns,
    .check = check,
    .decode = ctw_mxfp8_decode,
};
