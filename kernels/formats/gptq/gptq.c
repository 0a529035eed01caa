#include <inttypes.h>

#include "kernels/formats/check.h"
#include "kernels/formats/gptq/decode.h"

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    enum ctw_status st = ctw_check_targeted(w, args, err);
    if (st != CTW_OK)
        return st;
    w->bits = args->num_bits;
    w->zero_less_one = args->zero_less_one;
    st = ctw_check_transposed(w, args, (w->k * w->bits + 31) / 32, w->n, err);
    const struct ctw_part *index = &w->part[CTW_PART_GROUP_INDEX];
    w->indexed = ctw_part_present(index);
    if (st == CTW_OK && w->indexed &&
        (index->dtype != CTW_I32 || !ctw_part_has_shape(index, w->k, -1)))
        st = ctw_part_fail(w, CTW_PART_GROUP_INDEX, err, "I32 [%" PRId64 "]", w->k);
    return st;
}

/* Checks that indices are in range. Groups in order need no look-up. */
static enum ctw_status check_index(struct ctw_weight *w, const struct ctw_weight_data *data,
                                   struct ctw_err *err)
{
    bool in_order = true;
    const uint8_t *index = data->part[CTW_PART_GROUP_INDEX];
    for (int64_t c = 0; c < w->k; c++) {
        int32_t g = (int32_t)ctw_load_u32(index + 4 * c);
        if (g < 0 || g >= w->n_groups)
            return ctw_fail(err, CTW_EFORMAT,
                            "g_idx: found %d for column %" PRId64 ", expected 0 .. %" PRId64
                            "; the checkpoint is damaged",
                            g, c, w->n_groups - 1);
        in_order &= g == c / w->group_size;
    }
    w->indexed = !in_order;
    return CTW_OK;
}

/*
 * The zero points of a symmetric weight are 2^(bits-1) in every group. Files exist whose
 * configuration says the wrong version, so the first group's fields decide, if they are all equal.
 */
static void find_version(struct ctw_weight *w, const struct ctw_weight_data *data)
{
    const uint8_t *zeros = data->part[CTW_PART_ZERO_POINT];
    uint32_t half = 1u << (w->bits - 1), first = ctw_pack_code(zeros, 4, 0, w->bits, false);
    for (int64_t n = 1; n < w->n; n++)
        if (ctw_pack_code(zeros, 4, n, w->bits, false) != first)
            return;
    if (first == half || first == half - 1)
        w->zero_less_one = first == half - 1;
}

static enum ctw_status check_data(struct ctw_weight *w, const struct ctw_weight_data *data,
                                  struct ctw_err *err)
{
    if (w->symmetric)
        find_version(w, data);
    return w->indexed ? check_index(w, data, err) : CTW_OK;
}

const struct ctw_format ctw_format_gptq = {
    .id = CTW_FORMAT_gptq,
    .name = "gptq",
    .owns = ctw_owns_words,
    .check = check,
    .check_data = check_data,
    .decode = ctw_gptq_decode,
};
