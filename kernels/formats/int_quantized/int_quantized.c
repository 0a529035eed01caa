#include "kernels/formats/check.h"
#include "kernels/formats/int_quantized/decode.h"

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_part_present(&part[CTW_PART_VALUES]) && part[CTW_PART_VALUES].dtype == CTW_I8 &&
           ctw_part_present(&part[CTW_PART_SCALE]);
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    const unsigned allowed = 1u << CTW_PART_VALUES | 1u << CTW_PART_SCALE |
                             1u << CTW_PART_ZERO_POINT | 1u << CTW_PART_GROUP_INDEX;
    enum ctw_status st = ctw_check_scaled_args(w, args, err);
    if (st == CTW_OK)
        st = ctw_parts_only(w, allowed, err);
    if (st != CTW_OK)
        return st;
    if (args->is_float || args->num_bits < 1 || args->num_bits > 8)
        return ctw_fail(err, CTW_EFORMAT,
                        "its tensors are int-quantized, but quantization_config says %d-bit %s; "
                        "expected 1 to 8 bits, int",
                        args->num_bits, args->is_float ? "float" : "int");
    w->bits = args->num_bits;
    w->symmetric = args->symmetric;
    return ctw_check_bytes(w, args, err);
}

const struct ctw_format ctw_format_int_quantized = {
    .id = CTW_FORMAT_int_quantized,
    .name = "int-quantized",
    .also = "naive-quantized",
    .owns = owns,
    .check = check,
    .check_data = ctw_check_group_index_data,
    .decode = ctw_int_quantized_decode,
};
