#include <inttypes.h>
#include <string.h>

#include "kernels/formats/bnb_4bit/decode.h"
#include "kernels/formats/check.h"

/* Codes may be stored in any dtype (bnb_4bit_quant_storage), so this comes before dense. */
static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_part_present(&part[CTW_PART_VALUES]) && ctw_part_present(&part[CTW_PART_SCALE]) &&
           (ctw_part_present(&part[CTW_PART_CODE_VALUES]) || ctw_part_present(&part[CTW_PART_STATE]));
}

/* The number of blocks of `size` codes. */
static int64_t blocks_of(const struct ctw_weight *w, int64_t size)
{
    return (w->n * w->k + size - 1) / size;
}

static enum ctw_status check_args(struct ctw_weight *w, const struct ctw_quant_args *args,
                                  struct ctw_err *err)
{
    const struct ctw_part *scale = &w->part[CTW_PART_SCALE];
    enum ctw_status st = ctw_check_targeted(w, args, err);
    if (st != CTW_OK)
        return st;
    if (args->num_bits != 4)
        return ctw_fail(err, CTW_EFORMAT,
                        "its tensors are bitsandbytes' of 4 bits, but quantization_config says "
                        "load_in_8bit");
    if (w->k % 2 != 0)
        return ctw_fail(err, CTW_EUNSUP,
                        "%" PRId64 " columns: rows of an odd number of 4-bit codes are not "
                        "supported",
                        w->k);
    w->group_size = args->group_size;
    /* Without contents, when only headers are known, the number of scales shows the size. */
    for (int64_t size = 32; w->group_size == 0 && size <= 4096; size *= 2)
        if (scale->n_dims == 1 && scale->shape[0] == blocks_of(w, size))
            w->group_size = size;
    if (w->group_size < 32 || w->group_size > 4096 || (w->group_size & (w->group_size - 1)) != 0)
        return ctw_fail(err, CTW_EFORMAT,
                        "blocksize %" PRId64 ": expected a power of two from 32 to 4096",
                        w->group_size);
    return CTW_OK;
}

static enum ctw_status check_parts(const struct ctw_weight *w, struct ctw_err *err)
{
    const struct ctw_part *values = &w->part[CTW_PART_VALUES], *scale = &w->part[CTW_PART_SCALE];
    const struct ctw_part *book = &w->part[CTW_PART_SCALE_VALUES],
                          *outer = &w->part[CTW_PART_SCALE_SCALE];
    const int64_t blocks = blocks_of(w, w->group_size);
    const int64_t outer_blocks = (blocks + CTW_BNB_NESTED_BLOCK - 1) / CTW_BNB_NESTED_BLOCK;
    const bool nested = scale->dtype == CTW_U8;
    if (values->bytes != (size_t)(w->n * w->k / 2) || values->n_dims != 2 ||
        (values->shape[0] != 1 && values->shape[1] != 1))
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "U8 [%" PRId64 ", 1] for a [%" PRId64 ", %" PRId64 "] matrix",
                             w->n * w->k / 2, w->n, w->k);
    if ((scale->dtype != CTW_F32 && !nested) || !ctw_part_has_shape(scale, blocks, -1))
        return ctw_part_fail(w, CTW_PART_SCALE, err,
                             "F32 or U8 [%" PRId64 "] (blocksize %" PRId64 ")", blocks,
                             w->group_size);
    if (nested != ctw_part_present(book) ||
        (nested && (book->dtype != CTW_F32 || !ctw_part_has_shape(book, 256, -1))))
        return ctw_part_fail(w, CTW_PART_SCALE_VALUES, err, nested ? "F32 [256]" : "none");
    if (nested != ctw_part_present(outer) ||
        (nested && (outer->dtype != CTW_F32 || !ctw_part_has_shape(outer, outer_blocks, -1))))
        return ctw_part_fail(w, CTW_PART_SCALE_SCALE, err, nested ? "F32 [%" PRId64 "]" : "none",
                             outer_blocks);
    if (w->part[CTW_PART_CODE_VALUES].dtype != CTW_F32 ||
        !ctw_part_has_shape(&w->part[CTW_PART_CODE_VALUES], 16, -1))
        return ctw_part_fail(w, CTW_PART_CODE_VALUES, err, "F32 [16]");
    if (!ctw_part_present(&w->part[CTW_PART_STATE]))
        return ctw_part_fail(w, CTW_PART_STATE, err, "U8, the state as JSON");
    return CTW_OK;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    const unsigned allowed = 1u << CTW_PART_VALUES | 1u << CTW_PART_SCALE |
                             1u << CTW_PART_CODE_VALUES | 1u << CTW_PART_SCALE_VALUES |
                             1u << CTW_PART_SCALE_SCALE | 1u << CTW_PART_STATE;
    enum ctw_status st = ctw_parts_only(w, allowed, err);
    if (st == CTW_OK)
        st = check_args(w, args, err);
    if (st == CTW_OK)
        st = check_parts(w, err);
    if (st != CTW_OK)
        return st;
    w->bits = 4;
    w->fp4 = args->fp4;
    w->dtype = args->dtype;
    w->scale_offset = args->scale_offset;
    w->symmetric = true;
    w->group_rows = 1;
    w->n_groups = w->scale_stride = (w->k + w->group_size - 1) / w->group_size;
    w->row_bytes = (size_t)w->k / 2;
    w->indexed = w->zero_packed = w->whole_codes = w->zero_less_one = false;
    return CTW_OK;
}

static enum ctw_status check_data(struct ctw_weight *w, const struct ctw_weight_data *data,
                                  struct ctw_err *err)
{
    const uint8_t *book = data->part[CTW_PART_CODE_VALUES];
    for (uint32_t i = 0; i < 16; i++)
        if (ctw_load_f32(book + 4 * i) != ctw_bnb_value(i, w->fp4))
            return ctw_fail(err, CTW_EUNSUP,
                            "weight.quant_map: found %g as the value of code %u, expected %g, as "
                            "bitsandbytes' %s has it; other code books are not supported",
                            (double)ctw_load_f32(book + 4 * i), i, (double)ctw_bnb_value(i, w->fp4),
                            w->fp4 ? "fp4" : "nf4");
    return CTW_OK;
}

const struct ctw_format ctw_format_bnb_4bit = {
    .id = CTW_FORMAT_bnb_4bit,
    .name = "bnb-4bit",
    .owns = owns,
    .check = check,
    .check_data = check_data,
    .decode = ctw_bnb_4bit_decode,
};
