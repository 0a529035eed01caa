#include <inttypes.h>

#include "kernels/formats/check.h"
#include "kernels/formats/modelopt_awq/decode.h"

/* The format of the same tensors without factors; NULL: 4-bit integers, which only AWQ has. */
static const struct ctw_format *inner_of(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_format_int_quantized.owns(part)    ? &ctw_format_int_quantized
           : ctw_format_nvfp4_modelopt.owns(part) ? &ctw_format_nvfp4_modelopt
                                                  : NULL;
}

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    if (inner_of(part) != NULL)
        return ctw_part_present(&part[CTW_PART_COLUMN_SCALE]);
    return ctw_part_present(&part[CTW_PART_VALUES]) && part[CTW_PART_VALUES].dtype == CTW_U8 &&
           ctw_part_is_float(&part[CTW_PART_SCALE]);
}

/* Groups are as wide as the stored scales say: config.json does not. */
static enum ctw_status check_int4(struct ctw_weight *w, const struct ctw_quant_args *args,
                                  struct ctw_err *err)
{
    const struct ctw_part *scale = &w->part[CTW_PART_SCALE];
    enum ctw_status st = ctw_check_targeted(w, args, err);
    if (st != CTW_OK)
        return st;
    if (args->is_float || args->num_bits != 4 || !args->symmetric)
        return ctw_fail(err, CTW_EFORMAT,
                        "its tensors are 4-bit integers, but quantization_config says %d-bit %s",
                        args->num_bits, args->is_float ? "float" : "int");
    if (w->n % 2 != 0)
        return ctw_fail(err, CTW_EUNSUP, "%" PRId64 " rows are odd, but two share their bytes",
                        w->n);
    if (!ctw_part_has_shape(&w->part[CTW_PART_VALUES], w->n / 2, w->k))
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "U8 [%" PRId64 ", %" PRId64 "] for a [%" PRId64 ", %" PRId64
                             "] matrix",
                             w->n / 2, w->k, w->n, w->k);
    w->n_groups = w->scale_stride = scale->n_dims == 2 ? scale->shape[1] : 1;
    if (w->n_groups < 1 || w->k % w->n_groups != 0 || scale->n_dims != 2 || scale->shape[0] != w->n)
        return ctw_part_fail(w, CTW_PART_SCALE, err,
                             "[%" PRId64 ", groups], where groups divide %" PRId64 " columns", w->n,
                             w->k);
    w->dtype = CTW_F32; /* rounded once, to the dtype that is computed in */
    w->bits = 4;
    w->symmetric = true;
    w->group_rows = 1;
    w->group_size = w->k / w->n_groups;
    w->row_bytes = (size_t)w->k / 2; /* on average */
    w->indexed = w->zero_packed = w->whole_codes = w->zero_less_one = false;
    return CTW_OK;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    const struct ctw_part factor = w->part[CTW_PART_COLUMN_SCALE];
    const struct ctw_format *inner = inner_of(w->part);
    if (ctw_part_present(&factor) &&
        (!ctw_part_is_float(&factor) || !ctw_part_has_shape(&factor, w->k, -1)))
        return ctw_part_fail(w, CTW_PART_COLUMN_SCALE, err, "BF16, F16 or F32 [%" PRId64 "]", w->k);
    w->part[CTW_PART_COLUMN_SCALE].n_dims = -1;
    enum ctw_status st =
        inner != NULL ? inner->check(w, args, shape_part, err) : check_int4(w, args, err);
    w->part[CTW_PART_COLUMN_SCALE] = factor;
    w->dtype = CTW_F32;
    return st;
}

static enum ctw_status check_data(struct ctw_weight *w, const struct ctw_weight_data *data,
                                  struct ctw_err *err)
{
    const struct ctw_format *inner = inner_of(w->part);
    return inner != NULL ? inner->check_data(w, data, err) : CTW_OK;
}

const struct ctw_format ctw_format_modelopt_awq = {
    .id = CTW_FORMAT_modelopt_awq,
    .name = "modelopt-awq",
    .owns = owns,
    .check = check,
    .check_data = check_data,
    .decode = ctw_modelopt_awq_decode,
};
