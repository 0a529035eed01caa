#include "kernels/formats/hqq/decode.h"

#include <inttypes.h>

#include "kernels/formats/check.h"

/* The method has no other formats than this and the dense ones. */
static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    enum ctw_dtype dtype = part[CTW_PART_VALUES].dtype;
    return ctw_part_present(&part[CTW_PART_VALUES]) && (dtype == CTW_U8 || dtype == CTW_I32) &&
           ctw_part_present(&part[CTW_PART_SCALE]);
}

/* The bits of a code, by how many rows of groups share a packed one; 0: none. */
static int bits_of(const struct ctw_part *values, int64_t rows)
{
    static const int bits[] = {8, 4, 2, 1};
    const int64_t packed = values->shape[0];
    if (values->dtype == CTW_I32)
        return packed > 0 && packed == (rows + 9) / 10 ? 3 : 0;
    for (size_t i = 0; i < CTW_COUNT(bits); i++)
        if (packed * (8 / bits[i]) == rows)
            return bits[i];
    return 0;
}

/* Scales and zero points [R, 1] or [1, C]; one number is one group. */
static enum ctw_status check_groups(struct ctw_weight *w, int64_t rows, int64_t columns,
                                    struct ctw_err *err)
{
    const struct ctw_part *scale = &w->part[CTW_PART_SCALE], *zero = &w->part[CTW_PART_ZERO_POINT];
    w->by_input = !ctw_part_has_shape(scale, rows, 1);
    if (!ctw_part_is_float(scale) || (w->by_input && !ctw_part_has_shape(scale, 1, columns)))
        return ctw_part_fail(w, CTW_PART_SCALE, err,
                             "BF16, F16 or F32 [%" PRId64 ", 1] (axis 1) or [1, %" PRId64
                             "] (axis 0)",
                             rows, columns);
    if (zero->dtype != scale->dtype || !ctw_part_has_shape(zero, scale->shape[0], scale->shape[1]))
        return ctw_part_fail(w, CTW_PART_ZERO_POINT, err, "%s [%" PRId64 ", %" PRId64 "], as scale",
                             ctw_dtype_name(scale->dtype), scale->shape[0], scale->shape[1]);
    return CTW_OK;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    const struct ctw_part *values = &w->part[CTW_PART_VALUES];
    const int64_t columns = values->n_dims == 2 ? values->shape[1] : 0;
    enum ctw_status st = ctw_check_targeted(w, args, err);
    if (st != CTW_OK)
        return st;
    if (shape_part != NULL && (shape_part[0] != w->n || shape_part[1] != w->k))
        return ctw_fail(err, CTW_EFORMAT,
                        "shape: found (%" PRId64 ", %" PRId64 "), expected (%" PRId64 ", %" PRId64
                        ") according to config.json",
                        shape_part[0], shape_part[1], w->n, w->k);
    const int64_t rows = columns > 0 ? w->n * w->k / columns : 0;
    w->bits = columns > 0 && w->n * w->k % columns == 0 ? bits_of(values, rows) : 0;
    if (w->bits == 0)
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "codes of 1, 2, 3, 4 or 8 bits for a [%" PRId64 ", %" PRId64
                             "] matrix: U8 (3 bits: I32) [rows, columns of a group]",
                             w->n, w->k);
    st = check_groups(w, rows, columns, err);
    w->dtype = w->part[CTW_PART_SCALE].dtype;
    w->symmetric = false;
    w->group_rows = 1;
    w->group_size = columns;
    w->n_groups = rows;
    w->scale_stride = 0;
    w->row_bytes = 0; /* the groups run across rows */
    w->indexed = w->zero_packed = w->whole_codes = w->zero_less_one = false;
    return st;
}

const struct ctw_format ctw_format_hqq = {
    .id = CTW_FORMAT_hqq,
    .name = "hqq",
    .owns = owns,
    .check = check,
    .decode = ctw_hqq_decode,
};
