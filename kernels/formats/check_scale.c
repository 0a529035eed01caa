#include <inttypes.h>

#include "base/mem.h"
#include "kernels/formats/check.h"
#include "kernels/formats/e8m0.h"

/* ---- scales ---- */

static enum ctw_status check_block_scale(struct ctw_weight *w, const struct ctw_quant_args *args,
                                         struct ctw_err *err)
{
    int64_t rows = args->block_rows, cols = args->block_cols;
    if (rows < 1 || cols < 1)
        return ctw_fail(err, CTW_EFORMAT,
                        "quantization_config: strategy block with block_structure [%" PRId64
                        ", %" PRId64 "]; expected 1 or more",
                        rows, cols);
    /* Blocks at the lower and right edges may be short. */
    int64_t down = (w->n + rows - 1) / rows;
    const int64_t sections = w->part[CTW_PART_VALUES].sections;
    if (sections > 1 && w->format->id == CTW_FORMAT_float_quantized) { /* the only one that has
                                                                         them */
        w->section_rows = w->n / sections;
        down = sections * ((w->section_rows + rows - 1) / rows);
    }
    w->group_rows = rows;
    w->group_size = cols;
    w->n_groups = w->scale_stride = (w->k + cols - 1) / cols;
    const struct ctw_part *scale = &w->part[CTW_PART_SCALE];
    bool apart = scale->n_dims == 4 && scale->shape[0] == down && scale->shape[1] == 1 &&
                 scale->shape[2] == w->n_groups && scale->shape[3] == 1; /* as ModelOpt does */
    bool flat = (down == 1 || w->n_groups == 1) && /* as transformers 5 does of small experts */
                ctw_part_has_shape(scale, down * w->n_groups, -1);
    if (!apart && !flat && !ctw_part_has_shape(scale, down, w->n_groups))
        return ctw_part_fail(w, CTW_PART_SCALE, err,
                             "[%" PRId64 ", %" PRId64 "] (strategy block, %" PRId64 " x %" PRId64
                             ")",
                             down, w->n_groups, rows, cols);
    return CTW_OK;
}

static enum ctw_status check_group_scale(struct ctw_weight *w, const struct ctw_quant_args *args,
                                         struct ctw_err *err)
{
    if (args->group_size < 1)
        return ctw_fail(err, CTW_EFORMAT,
                        "quantization_config: strategy group with group_size %" PRId64
                        "; expected 1 or more",
                        args->group_size);
    if (args->group_size < w->k) {
        if (w->k % args->group_size != 0)
            return ctw_fail(err, CTW_EUNSUP,
                            "%" PRId64 " columns are not a multiple of group_size %" PRId64
                            "; compressed-tensors does not define such groups",
                            w->k, args->group_size);
        w->group_size = args->group_size;
        w->n_groups = w->scale_stride = w->k / w->group_size;
    }
    if (!ctw_part_has_shape(&w->part[CTW_PART_SCALE], w->n, w->n_groups))
        return ctw_part_fail(w, CTW_PART_SCALE, err,
                             "[%" PRId64 ", %" PRId64 "] (strategy group, group_size %" PRId64 ")",
                             w->n, w->n_groups, args->group_size);
    return CTW_OK;
}

enum ctw_status ctw_check_scale(struct ctw_weight *w, const struct ctw_quant_args *args,
                                struct ctw_err *err)
{
    const struct ctw_part *scale = &w->part[CTW_PART_SCALE];
    w->group_size = w->k;
    w->group_rows = w->n_groups = w->scale_stride = 1;
    bool exponents = w->format->id == CTW_FORMAT_float_quantized && ctw_part_is_e8m0(scale);
    if (!ctw_part_is_float(scale) && !exponents)
        return ctw_part_fail(w, CTW_PART_SCALE, err, "BF16, F16 or F32");
    w->dtype = exponents ? CTW_BF16 : scale->dtype; /* which holds the product, as in mxfp8 */
    switch (args->strategy) {
    case CTW_STRATEGY_TENSOR:
        w->scale_stride = 0;
        if (!ctw_part_is_scalar(scale) && !ctw_part_has_shape(scale, 1, 1))
            return ctw_part_fail(w, CTW_PART_SCALE, err, "one value (strategy tensor)");
        return CTW_OK;
    case CTW_STRATEGY_CHANNEL:
        if (!ctw_part_has_shape(scale, w->n, 1) && !ctw_part_has_shape(scale, w->n, -1))
            return ctw_part_fail(w, CTW_PART_SCALE, err, "[%" PRId64 ", 1] (strategy channel)",
                                 w->n);
        return CTW_OK;
    case CTW_STRATEGY_BLOCK:
        return check_block_scale(w, args, err);
    default:
        return check_group_scale(w, args, err);
    }
}

/* ---- zero points ---- */

enum ctw_status ctw_check_zero_point(struct ctw_weight *w, struct ctw_err *err)
{
    const struct ctw_part *zero = &w->part[CTW_PART_ZERO_POINT];
    if (w->symmetric) {
        if (ctw_part_present(zero))
            return ctw_part_fail(w, CTW_PART_ZERO_POINT, err,
                                 "none, because quantization_config says symmetric");
        return CTW_OK;
    }
    if (!ctw_part_present(zero)) { /* all 0: compressed-tensors of 2024 did not write it */
        w->symmetric = true;
        return CTW_OK;
    }
    if (w->scale_stride == 0) {
        if (zero->dtype != CTW_I8 || (!ctw_part_is_scalar(zero) && !ctw_part_has_shape(zero, 1, 1)))
            return ctw_part_fail(w, CTW_PART_ZERO_POINT, err, "one I8 value (strategy tensor)");
        return CTW_OK;
    }
    int64_t rows = (w->n + w->group_rows - 1) / w->group_rows;
    bool flat = w->n_groups == 1 && ctw_part_has_shape(zero, rows, -1);
    if (zero->dtype != CTW_I8 || (!flat && !ctw_part_has_shape(zero, rows, w->n_groups)))
        return ctw_part_fail(w, CTW_PART_ZERO_POINT, err, "I8 [%" PRId64 ", %" PRId64 "]", rows,
                             w->n_groups);
    return CTW_OK;
}

/* ---- group indices ---- */

enum ctw_status ctw_check_group_index(struct ctw_weight *w, const struct ctw_quant_args *args,
                                      struct ctw_err *err)
{
    const struct ctw_part *index = &w->part[CTW_PART_GROUP_INDEX];
    w->indexed = ctw_part_present(index);
    /* Absent although actorder is group: the index was never set, hence not written. Groups are
     * sequential. */
    if (w->indexed && !args->actorder_group)
        return ctw_part_fail(w, CTW_PART_GROUP_INDEX, err,
                             "none, because quantization_config does not say actorder group");
    if (w->indexed && (index->dtype != CTW_I32 || !ctw_part_has_shape(index, w->k, -1)))
        return ctw_part_fail(w, CTW_PART_GROUP_INDEX, err, "I32 [%" PRId64 "]", w->k);
    return CTW_OK;
}

/*
 * An index of -1 anywhere means that the indices were never set: groups are then sequential.
 * Otherwise each group must occur group_size times: only then do compressed-tensors (which sorts
 * the columns by index and splits the result into runs) and a plain look-up agree.
 */
enum ctw_status ctw_check_group_index_data(struct ctw_weight *w, const struct ctw_weight_data *data,
                                           struct ctw_err *err)
{
    if (!w->indexed)
        return CTW_OK;
    enum ctw_status st = CTW_OK;
    const uint8_t *index = data->part[CTW_PART_GROUP_INDEX];
    int64_t *count = ctw_calloc((size_t)w->n_groups, sizeof(*count));
    if (count == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for %" PRId64 " group counts", w->n_groups);
    for (int64_t c = 0; c < w->k; c++) {
        int32_t g = (int32_t)ctw_load_u32(index + 4 * c);
        if (g == -1) {
            w->indexed = false;
            goto done;
        }
        if (g < 0 || g >= w->n_groups) {
            st = ctw_fail(err, CTW_EFORMAT,
                          "weight_g_idx: found %d for column %" PRId64 ", expected 0 .. %" PRId64
                          "; the checkpoint is damaged",
                          g, c, w->n_groups - 1);
            goto done;
        }
        count[g]++;
    }
    for (int64_t g = 0; g < w->n_groups; g++)
        if (count[g] != w->group_size) {
            st = ctw_fail(err, CTW_EUNSUP,
                          "weight_g_idx: group %" PRId64 " has %" PRId64
                          " columns, expected group_size %" PRId64,
                          g, count[g], w->group_size);
            goto done;
        }
done:
    ctw_free(count);
    return st;
}

/* ---- formats that share their parts ---- */

/*
 * Scales of tensor_group are made to be divided by a global scale. compressed-tensors (0.20) does
 * so for NVFP4 alone: integers it writes thus are all 0.
 */
enum ctw_status ctw_check_scaled_args(const struct ctw_weight *w, const struct ctw_quant_args *args,
                                      struct ctw_err *err)
{
    enum ctw_status st = ctw_check_targeted(w, args, err);
    if (st == CTW_OK && args->strategy == CTW_STRATEGY_TENSOR_GROUP)
        return ctw_fail(err, CTW_EUNSUP,
                        "%s weights with strategy tensor_group are not supported: "
                        "compressed-tensors applies the global scale of such weights to NVFP4 "
                        "alone; quantise the model again with strategy tensor, channel, group or "
                        "block",
                        w->format->name);
    return st;
}

enum ctw_status ctw_check_bytes(struct ctw_weight *w, const struct ctw_quant_args *args,
                                struct ctw_err *err)
{
    if (!ctw_part_has_shape(&w->part[CTW_PART_VALUES], w->n, w->k))
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "[%" PRId64 ", %" PRId64 "] according to config.json", w->n, w->k);
    w->row_bytes = (size_t)w->k;
    w->zero_packed = w->whole_codes = w->zero_less_one = false;
    enum ctw_status st = ctw_check_scale(w, args, err);
    if (st == CTW_OK)
        st = ctw_check_zero_point(w, err);
    if (st == CTW_OK)
        st = ctw_check_group_index(w, args, err);
    return st;
}

enum ctw_status ctw_check_transposed(struct ctw_weight *w, const struct ctw_quant_args *args,
                                     int64_t rows, int64_t cols, struct ctw_err *err)
{
    const struct ctw_part *scale = &w->part[CTW_PART_SCALE], *zero = &w->part[CTW_PART_ZERO_POINT];
    w->group_rows = 1;
    w->group_size =
        args->strategy == CTW_STRATEGY_GROUP && args->group_size < w->k ? args->group_size : w->k;
    w->n_groups = (w->k + w->group_size - 1) / w->group_size;
    w->scale_stride = w->n; /* from group to group */
    w->row_bytes = sizeof(int32_t);
    w->symmetric = args->symmetric;
    w->zero_packed = true;
    w->whole_codes = false;
    w->dtype = scale->dtype;
    if (!ctw_part_has_shape(&w->part[CTW_PART_VALUES], rows, cols))
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "I32 [%" PRId64 ", %" PRId64 "] for a [%" PRId64 ", %" PRId64
                             "] matrix of %d bits",
                             rows, cols, w->n, w->k, w->bits);
    if (!ctw_part_is_float(scale) || !ctw_part_has_shape(scale, w->n_groups, w->n))
        return ctw_part_fail(w, CTW_PART_SCALE, err,
                             "F16, BF16 or F32 [%" PRId64 ", %" PRId64 "] (group_size %" PRId64 ")",
                             w->n_groups, w->n, args->group_size);
    int64_t words = (w->n * w->bits + 31) / 32;
    if (zero->dtype != CTW_I32 || !ctw_part_has_shape(zero, w->n_groups, words))
        return ctw_part_fail(w, CTW_PART_ZERO_POINT, err, "I32 [%" PRId64 ", %" PRId64 "]",
                             w->n_groups, words);
    return CTW_OK;
}

enum ctw_status ctw_check_mx(struct ctw_weight *w, const struct ctw_quant_args *args, int bits,
                             struct ctw_err *err)
{
    const int64_t row_bytes = w->k * bits / 8;
    enum ctw_status st = ctw_parts_only(w, 1u << CTW_PART_VALUES | 1u << CTW_PART_SCALE, err);
    if (st == CTW_OK)
        st = ctw_check_targeted(w, args, err);
    if (st != CTW_OK)
        return st;
    if (!args->is_float || args->num_bits != bits || !args->symmetric ||
        args->strategy != CTW_STRATEGY_GROUP || args->group_size != CTW_MX_GROUP)
        return ctw_fail(
            err, CTW_EFORMAT,
            "its tensors are %s, but quantization_config says %d-bit %s, %s, group_size "
            "%" PRId64 "; expected %d-bit float, symmetric, strategy group and "
            "group_size %d",
            w->format->name, args->num_bits, args->is_float ? "float" : "int",
            args->symmetric ? "symmetric" : "asymmetric", args->group_size, bits, CTW_MX_GROUP);
    if (w->k % CTW_MX_GROUP != 0)
        return ctw_fail(err, CTW_EUNSUP,
                        "%" PRId64 " columns are not a multiple of %d, which %s needs", w->k,
                        CTW_MX_GROUP, w->format->name);
    w->group_rows = 1;
    w->group_size = CTW_MX_GROUP;
    w->n_groups = w->scale_stride = w->k / CTW_MX_GROUP;
    w->row_bytes = (size_t)row_bytes;
    w->dtype = CTW_BF16; /* regardless of the model's dtype, as in compressed-tensors */
    w->bits = bits;
    w->symmetric = true;
    w->indexed = w->zero_packed = w->whole_codes = w->zero_less_one = false;
    if (!ctw_part_has_shape(&w->part[CTW_PART_SCALE], w->n, w->n_groups))
        return ctw_part_fail(w, CTW_PART_SCALE, err, "U8 [%" PRId64 ", %" PRId64 "]", w->n,
                             w->n_groups);
    const struct ctw_part *values = &w->part[CTW_PART_VALUES];
    bool blocks = values->n_dims == 3 && values->shape[0] == w->n &&
                  values->shape[1] == w->n_groups &&
                  values->shape[2] == CTW_MX_GROUP * bits / 8; /* gpt-oss' */
    if (!blocks && !ctw_part_has_shape(values, w->n, row_bytes))
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "%s [%" PRId64 ", %" PRId64 "] for a [%" PRId64 ", %" PRId64
                             "] matrix",
                             ctw_dtype_name(values->dtype), w->n, row_bytes, w->n, w->k);
    return CTW_OK;
}
