#include "kernels/formats/check.h"
#include "kernels/formats/float_quantized/decode.h"

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_part_present(&part[CTW_PART_VALUES]) && part[CTW_PART_VALUES].dtype == CTW_F8_E4M3 &&
           (ctw_part_is_float(&part[CTW_PART_SCALE]) || ctw_part_is_e8m0(&part[CTW_PART_SCALE])) &&
           !ctw_format_mxfp8.owns(part);
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    const unsigned allowed =
        1u << CTW_PART_VALUES | 1u << CTW_PART_SCALE | 1u << CTW_PART_GROUP_INDEX;
    enum ctw_status st = ctw_check_scaled_args(w, args, err);
    if (st == CTW_OK && !args->symmetric && ctw_part_present(&w->part[CTW_PART_ZERO_POINT]))
        return ctw_fail(err, CTW_EUNSUP,
                        "FP8 weights with zero points (symmetric: false) are not supported; "
                        "quantise the model again with symmetric: true");
    if (st == CTW_OK)
        st = ctw_parts_only(w, allowed, err);
    if (st != CTW_OK)
        return st;
    if (!args->is_float || args->num_bits != 8 || !args->symmetric)
        return ctw_fail(err, CTW_EFORMAT,
                        "its tensors are float-quantized, but quantization_config says %d-bit %s, "
                        "%s; expected 8-bit float, symmetric",
                        args->num_bits, args->is_float ? "float" : "int",
                        args->symmetric ? "symmetric" : "asymmetric");
    w->bits = 8;
    w->symmetric = true;
    return ctw_check_bytes(w, args, err);
}

const struct ctw_format ctw_format_float_quantized = {
    .id = CTW_FORMAT_float_quantized,
    .name = "float-quantized",
    .also = "naive-quantized",
    .owns = owns,
    .check = check,
    .check_data = ctw_check_group_index_data,
    .decode = ctw_float_quantized_decode,
};
