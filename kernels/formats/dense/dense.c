#include <string.h>

#include "kernels/formats/check.h"
#include "kernels/formats/dense/decode.h"

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    const struct ctw_part *values = &part[CTW_PART_VALUES];
    return ctw_part_is_float(values) && !values->transposed && values->paired == 0 &&
           !ctw_part_present(&part[CTW_PART_SCALE]);
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    enum ctw_status st = ctw_parts_only(w, 1u << CTW_PART_VALUES, err);
    if (st != CTW_OK)
        return st;
    const struct ctw_part *values = &w->part[CTW_PART_VALUES];
    if (args->present && (args->format == NULL || strcmp(args->format, "dense") != 0))
        return ctw_fail(err, CTW_EFORMAT,
                        "weight is stored dense (%s), but quantization_config says that it is "
                        "quantised to %d bits; its targets or ignore list do not match this file",
                        ctw_dtype_name(values->dtype), args->num_bits);
    if (!ctw_part_has_shape(values, w->n, w->k))
        return ctw_part_fail(w, CTW_PART_VALUES, err, "[%lld, %lld] according to config.json",
                             (long long)w->n, (long long)w->k);
    ctw_fill_dense(w, w->k);
    return CTW_OK;
}

const struct ctw_format ctw_format_dense = {
    .id = CTW_FORMAT_dense,
    .name = "dense",
    .owns = owns,
    .check = check,
    .decode = ctw_dense_decode,
};
