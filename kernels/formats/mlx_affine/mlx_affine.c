#include <inttypes.h>

#include "kernels/formats/check.h"
#include "kernels/formats/mlx_affine/decode.h"

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_part_present(&part[CTW_PART_VALUES]) && part[CTW_PART_VALUES].dtype == CTW_U32 &&
           ctw_part_is_float(&part[CTW_PART_SCALE]);
}

static enum ctw_status check_args(const struct ctw_weight *w, const struct ctw_quant_args *args,
                                  struct ctw_err *err)
{
    enum ctw_status st = ctw_check_targeted(w, args, err);
    if (st != CTW_OK)
        return st;
    if (args->is_float)
        return ctw_fail(err, CTW_EFORMAT,
                        "its scales are numbers, as in mode affine, but the configuration says a "
                        "mode of %d-bit floats",
                        args->num_bits);
    if (args->num_bits < 1 || args->num_bits > 8 || args->num_bits == 7)
        return ctw_fail(err, CTW_EFORMAT, "%d bits: expected 1, 2, 3, 4, 5, 6 or 8",
                        args->num_bits);
    if (args->group_size != 32 && args->group_size != 64 && args->group_size != 128)
        return ctw_fail(err, CTW_EFORMAT, "group_size %" PRId64 ": expected 32, 64 or 128",
                        args->group_size);
    if (w->k % args->group_size != 0)
        return ctw_fail(err, CTW_EFORMAT,
                        "%" PRId64 " columns are not a multiple of group_size %" PRId64
                        ", which MLX needs",
                        w->k, args->group_size);
    return CTW_OK;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    const unsigned allowed =
        1u << CTW_PART_VALUES | 1u << CTW_PART_SCALE | 1u << CTW_PART_GROUP_BIAS;
    const struct ctw_part *scale = &w->part[CTW_PART_SCALE], *bias = &w->part[CTW_PART_GROUP_BIAS];
    enum ctw_status st = ctw_parts_only(w, allowed, err);
    if (st == CTW_OK)
        st = check_args(w, args, err);
    if (st != CTW_OK)
        return st;
    const int64_t words = w->k * args->num_bits / 32;
    w->bits = args->num_bits;
    w->dtype = scale->dtype;
    w->group_rows = 1;
    w->group_size = args->group_size;
    w->n_groups = w->scale_stride = w->k / w->group_size;
    w->row_bytes = (size_t)words * 4;
    w->symmetric = true; /* without zero points */
    w->indexed = w->zero_packed = w->whole_codes = w->zero_less_one = false;
    if (!ctw_part_has_shape(&w->part[CTW_PART_VALUES], w->n, words))
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "U32 [%" PRId64 ", %" PRId64 "] for a [%" PRId64 ", %" PRId64
                             "] matrix of %d bits",
                             w->n, words, w->n, w->k, w->bits);
    if (!ctw_part_has_shape(scale, w->n, w->n_groups))
        return ctw_part_fail(w, CTW_PART_SCALE, err,
                             "[%" PRId64 ", %" PRId64 "] (group_size %" PRId64 ")", w->n,
                             w->n_groups, w->group_size);
    if (!ctw_part_present(bias) || bias->dtype != scale->dtype ||
        !ctw_part_has_shape(bias, w->n, w->n_groups))
        return ctw_part_fail(w, CTW_PART_GROUP_BIAS, err,
                             "%s [%" PRId64 ", %" PRId64 "], as scales",
                             ctw_dtype_name(scale->dtype), w->n, w->n_groups);
    return CTW_OK;
}

const struct ctw_format ctw_format_mlx_affine = {
    .id = CTW_FORMAT_mlx_affine,
    .name = "mlx-affine",
    .owns = owns,
    .check = check,
    .decode = ctw_mlx_affine_decode,
};
