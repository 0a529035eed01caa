#include <inttypes.h>

#include "kernels/formats/check.h"
#include "kernels/formats/pack_quantized/decode.h"

/* Words for n codes: as one bit stream, and (old files) with only whole codes in each word. */
static int64_t stream_words(int64_t n, int bits)
{
    return (n * bits + 31) / 32;
}

static int64_t whole_words(int64_t n, int bits)
{
    return (n + 32 / bits - 1) / (32 / bits);
}

static enum ctw_status check_args(const struct ctw_weight *w, const struct ctw_quant_args *args,
                                  struct ctw_err *err)
{
    enum ctw_status st = ctw_check_scaled_args(w, args, err);
    if (st != CTW_OK)
        return st;
    if (args->is_float || args->num_bits < 1 || args->num_bits > 8)
        return ctw_fail(err, CTW_EFORMAT,
                        "its tensors are pack-quantized, but quantization_config says %d-bit %s; "
                        "expected 1 to 8 bits, int",
                        args->num_bits, args->is_float ? "float" : "int");
    return CTW_OK;
}

static enum ctw_status check_values(struct ctw_weight *w, struct ctw_err *err)
{
    const struct ctw_part *values = &w->part[CTW_PART_VALUES];
    int64_t stream = stream_words(w->k, w->bits), whole = whole_words(w->k, w->bits);
    if (values->n_dims != 2 || values->shape[0] != w->n ||
        (values->shape[1] != stream && values->shape[1] != whole))
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "I32 [%" PRId64 ", %" PRId64 "] for a [%" PRId64 ", %" PRId64
                             "] matrix of %d bits",
                             w->n, stream, w->n, w->k, w->bits);
    /* In a single word, and if bits divides 32, the two layouts are identical. */
    if (stream == whole && whole > 1 && 32 % w->bits != 0)
        return ctw_fail(err, CTW_EUNSUP,
                        "weight_packed: %" PRId64 " columns of %d bits take %" PRId64
                        " words both in the layout of compressed-tensors before mid 2026 and in "
                        "the current layout, which differ; quantise the model again with another "
                        "number of bits",
                        w->k, w->bits, stream);
    w->whole_codes = values->shape[1] != stream;
    w->row_bytes = (size_t)values->shape[1] * 4;
    return CTW_OK;
}

static enum ctw_status check_zero_point(struct ctw_weight *w, const struct ctw_quant_args *args,
                                        struct ctw_err *err)
{
    const struct ctw_part *zero = &w->part[CTW_PART_ZERO_POINT];
    w->zero_packed = w->zero_less_one = false;
    if (w->symmetric || !ctw_part_present(zero) || zero->dtype == CTW_I8 || w->scale_stride == 0 ||
        args->strategy == CTW_STRATEGY_BLOCK)
        return ctw_check_zero_point(w, err);
    int64_t rows = w->whole_codes ? whole_words(w->n, w->bits) : stream_words(w->n, w->bits);
    if (zero->dtype != CTW_I32 || !ctw_part_has_shape(zero, rows, w->n_groups))
        return ctw_part_fail(w, CTW_PART_ZERO_POINT, err,
                             "I32 [%" PRId64 ", %" PRId64
                             "] (packed along the rows) or I8 [%" PRId64 ", %" PRId64 "]",
                             rows, w->n_groups, w->n, w->n_groups);
    w->zero_packed = true;
    return CTW_OK;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    const unsigned allowed = 1u << CTW_PART_VALUES | 1u << CTW_PART_SCALE |
                             1u << CTW_PART_ZERO_POINT | 1u << CTW_PART_GROUP_INDEX |
                             1u << CTW_PART_SHAPE;
    enum ctw_status st = check_args(w, args, err);
    if (st == CTW_OK)
        st = ctw_parts_only(w, allowed, err);
    if (st != CTW_OK)
        return st;
    if (shape_part != NULL && (shape_part[0] != w->n || shape_part[1] != w->k))
        return ctw_fail(err, CTW_EFORMAT,
                        "weight_shape: found (%" PRId64 ", %" PRId64 "), expected (%" PRId64
                        ", %" PRId64 ") according to config.json",
                        shape_part[0], shape_part[1], w->n, w->k);
    w->bits = args->num_bits;
    w->symmetric = args->symmetric;
    st = check_values(w, err);
    if (st == CTW_OK)
        st = ctw_check_scale(w, args, err);
    if (st == CTW_OK)
        st = check_zero_point(w, args, err);
    if (st == CTW_OK)
        st = ctw_check_group_index(w, args, err);
    return st;
}

const struct ctw_format ctw_format_pack_quantized = {
    .id = CTW_FORMAT_pack_quantized,
    .name = "pack-quantized",
    .owns = ctw_owns_words,
    .check = check,
    .check_data = ctw_check_group_index_data,
    .decode = ctw_pack_quantized_decode,
};
