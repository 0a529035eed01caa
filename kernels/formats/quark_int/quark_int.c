#include "kernels/formats/quark_int/decode.h"

#include <inttypes.h>

#include "kernels/formats/check.h"

/* Words; or bytes that are not int-quantized's, whose codes are signed and lie in rows. */
static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    const struct ctw_part *values = &part[CTW_PART_VALUES], *scale = &part[CTW_PART_SCALE];
    if (!ctw_part_present(values) || !ctw_part_is_float(scale))
        return false;
    bool across = scale->n_dims == 2 && values->n_dims == 2 && scale->shape[1] == values->shape[1];
    return values->dtype == CTW_I32 || values->dtype == CTW_U8 ||
           (values->dtype == CTW_I8 && across);
}

static enum ctw_status check_args(struct ctw_weight *w, const struct ctw_quant_args *args,
                                  struct ctw_err *err)
{
    const int64_t line = args->strategy == CTW_STRATEGY_GROUP ? w->n : w->k;
    w->bits = args->num_bits;
    if (args->is_float || (w->bits != 2 && w->bits != 4 && w->bits != 8))
        return ctw_fail(err, CTW_EFORMAT,
                        "its tensors are integers of Quark, but quantization_config says %d-bit "
                        "%s; expected integers of 2, 4 or 8 bits",
                        w->bits, args->is_float ? "float" : "int");
    if (args->strategy == CTW_STRATEGY_GROUP &&
        (args->group_size < 1 || w->k % args->group_size != 0))
        return ctw_fail(err, CTW_EUNSUP,
                        "%" PRId64 " columns are not a multiple of group_size %" PRId64, w->k,
                        args->group_size);
    if (line * w->bits % 32 != 0 && w->bits != 8)
        return ctw_fail(err, CTW_EUNSUP,
                        "%" PRId64 " codes of %d bits do not fill whole words, which Quark needs",
                        line, w->bits);
    return CTW_OK;
}

static enum ctw_status check_values(const struct ctw_weight *w, const struct ctw_quant_args *args,
                                    struct ctw_err *err)
{
    const enum ctw_dtype dtype = w->bits == 4                      ? CTW_I32
                                 : w->bits == 8 && args->is_signed ? CTW_I8
                                                                   : CTW_U8;
    const int64_t lines = w->by_input ? w->k : w->n, codes = w->by_input ? w->n : w->k;
    const int64_t elements = codes * w->bits / 8 / (int64_t)ctw_dtype_bytes(dtype);
    const struct ctw_part *values = &w->part[CTW_PART_VALUES];
    if (values->dtype != dtype || !ctw_part_has_shape(values, lines, elements))
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "%s [%" PRId64 ", %" PRId64 "] for a [%" PRId64 ", %" PRId64
                             "] matrix of %d-bit %ssigned codes",
                             ctw_dtype_name(dtype), lines, elements, w->n, w->k, w->bits,
                             args->is_signed ? "" : "un");
    return CTW_OK;
}

/* A scale or a zero point for each group and output: [groups, N], [N] or []; elements: of a line of
 * the outputs. */
static bool has_shape_of(const struct ctw_weight *w, const struct ctw_part *part, int64_t elements)
{
    if (w->by_input)
        return ctw_part_has_shape(part, w->n_groups, elements);
    return w->scale_stride == 0 ? ctw_part_is_scalar(part) : ctw_part_has_shape(part, elements, -1);
}

static enum ctw_status check_zero(struct ctw_weight *w, struct ctw_err *err)
{
    const struct ctw_part *zero = &w->part[CTW_PART_ZERO_POINT];
    const enum ctw_dtype dtype = w->part[CTW_PART_VALUES].dtype;
    const int64_t elements = w->n * w->bits / 8 / (int64_t)ctw_dtype_bytes(dtype);
    w->symmetric = !ctw_part_present(zero);
    w->zero_packed = !ctw_part_is_float(zero);
    if (w->symmetric || (!w->zero_packed && has_shape_of(w, zero, w->n)))
        return CTW_OK;
    if (zero->dtype != dtype || !has_shape_of(w, zero, elements) ||
        (w->scale_stride != 0 && w->n * w->bits % (8 * (int64_t)ctw_dtype_bytes(dtype)) != 0))
        return ctw_part_fail(w, CTW_PART_ZERO_POINT, err,
                             "codes as those of weight, or a number for each scale");
    return CTW_OK;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    const unsigned allowed =
        1u << CTW_PART_VALUES | 1u << CTW_PART_SCALE | 1u << CTW_PART_ZERO_POINT;
    enum ctw_status st = ctw_parts_only(w, allowed, err);
    if (st == CTW_OK)
        st = ctw_check_targeted(w, args, err);
    if (st == CTW_OK)
        st = check_args(w, args, err);
    if (st != CTW_OK)
        return st;
    w->by_input = args->strategy == CTW_STRATEGY_GROUP;
    w->is_signed = args->is_signed;
    w->interleaved = args->interleaved;
    w->dtype = w->part[CTW_PART_SCALE].dtype;
    w->group_rows = 1;
    w->group_size = w->by_input ? args->group_size : w->k;
    w->n_groups = w->k / w->group_size;
    w->scale_stride = args->strategy == CTW_STRATEGY_TENSOR ? 0 : w->n; /* from group to group */
    w->row_bytes = 0; /* rows are not contiguous */
    w->indexed = w->whole_codes = w->zero_less_one = false;
    st = check_values(w, args, err);
    if (st == CTW_OK && !has_shape_of(w, &w->part[CTW_PART_SCALE], w->n))
        st = ctw_part_fail(w, CTW_PART_SCALE, err, "%s (quantization_config says %s)",
                           w->by_input ? "[groups, outputs]" : "[outputs] or []",
                           w->by_input            ? "per_group"
                           : w->scale_stride == 0 ? "per_tensor"
                                                  : "per_channel");
    if (st == CTW_OK)
        st = check_zero(w, err);
    /* The bytes of awq, which has faster kernels. */
    if (st == CTW_OK && w->bits == 4 && w->by_input && w->interleaved && !w->is_signed &&
        w->zero_packed && !w->symmetric) {
        w->format = &ctw_format_awq;
        w->row_bytes = sizeof(int32_t);
    }
    return st;
}

const struct ctw_format ctw_format_quark_int = {
    .id = CTW_FORMAT_quark_int,
    .name = "quark-int",
    .owns = owns,
    .check = check,
    .decode = ctw_quark_int_decode,
};
