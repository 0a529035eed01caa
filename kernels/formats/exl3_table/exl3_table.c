#include <inttypes.h>

#include "kernels/formats/check.h"
#include "kernels/formats/exl3_table/decode.h"

/* A trellis of two dimensions is a table's; a linear module's has three. */
static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    const struct ctw_part *values = &part[CTW_PART_VALUES];
    return ctw_part_present(values) && values->dtype == CTW_I16 && values->n_dims == 2;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    const struct ctw_part *values = &w->part[CTW_PART_VALUES], *signs = &w->part[CTW_PART_SIGNS];
    const int64_t groups = (w->k + CTW_EXL3_GROUP - 1) / CTW_EXL3_GROUP;
    enum ctw_status st = ctw_check_targeted(w, args, err);
    if (st == CTW_OK)
        st = ctw_parts_only(w, 1u << CTW_PART_VALUES | 1u << CTW_PART_SIGNS, err);
    if (st != CTW_OK)
        return st;
    const int64_t ring = values->shape[1] / groups, bits = (ring - 1) / 16;
    if (values->shape[0] != w->n || ring * groups != values->shape[1] || ring % 16 != 1 ||
        bits < 1 || bits > 8)
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "I16 [%" PRId64 ", %" PRId64 " * (1 + 16 * bits)], 1 to 8 bits, for a "
                             "[%" PRId64 ", %" PRId64 "] table",
                             w->n, groups, w->n, w->k);
    if (signs->n_dims < 0 || signs->dtype != CTW_F16 ||
        !ctw_part_has_shape(signs, groups, CTW_EXL3_GROUP))
        return ctw_part_fail(w, CTW_PART_SIGNS, err, "F16 [%" PRId64 ", 256]", groups);
    w->dtype = CTW_F16;
    w->bits = (int)bits;
    w->symmetric = true;
    w->group_rows = 1;
    w->group_size = CTW_EXL3_GROUP;
    w->n_groups = w->scale_stride = groups;
    w->row_bytes = (size_t)values->shape[1] * 2;
    w->indexed = w->zero_packed = w->whole_codes = w->zero_less_one = false;
    return CTW_OK;
}

const struct ctw_format ctw_format_exl3_table = {
    .id = CTW_FORMAT_exl3_table,
    .name = "exl3-table",
    .owns = owns,
    .check = check,
    .decode = ctw_exl3_table_decode,
};
