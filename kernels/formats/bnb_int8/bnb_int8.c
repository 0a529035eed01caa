#include <inttypes.h>

#include "kernels/formats/bnb_int8/decode.h"
#include "kernels/formats/check.h"

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_part_present(&part[CTW_PART_VALUES]) && part[CTW_PART_VALUES].dtype == CTW_I8 &&
           ctw_part_present(&part[CTW_PART_SCALE]);
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    const unsigned allowed = 1u << CTW_PART_VALUES | 1u << CTW_PART_SCALE | 1u << CTW_PART_LAYOUT;
    const struct ctw_part *scale = &w->part[CTW_PART_SCALE];
    enum ctw_status st = ctw_parts_only(w, allowed, err);
    if (st == CTW_OK)
        st = ctw_check_targeted(w, args, err);
    if (st != CTW_OK)
        return st;
    if (args->num_bits != 8)
        return ctw_fail(err, CTW_EFORMAT,
                        "its tensors are LLM.int8()'s, but quantization_config says load_in_4bit");
    if (!ctw_part_has_shape(&w->part[CTW_PART_VALUES], w->n, w->k))
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "I8 [%" PRId64 ", %" PRId64 "] according to config.json", w->n, w->k);
    if (scale->dtype != CTW_F32 || !ctw_part_has_shape(scale, w->n, -1))
        return ctw_part_fail(w, CTW_PART_SCALE, err, "F32 [%" PRId64 "]", w->n);
    w->bits = 8;
    w->dtype = CTW_F32; /* rounded once, to the dtype that is computed in */
    w->symmetric = true;
    w->group_rows = w->n_groups = w->scale_stride = 1;
    w->group_size = w->k;
    w->row_bytes = (size_t)w->k;
    w->indexed = w->zero_packed = w->whole_codes = w->zero_less_one = false;
    return CTW_OK;
}

/* bitsandbytes before 0.45 could store rows in the order of a GPU's kernels. */
static enum ctw_status check_data(struct ctw_weight *w, const struct ctw_weight_data *data,
                                  struct ctw_err *err)
{
    (void)w;
    const uint8_t *layout = data->part[CTW_PART_LAYOUT];
    if (layout == NULL || *layout == 0)
        return CTW_OK;
    return ctw_fail(err, CTW_EUNSUP,
                    "weight_format: found %d, expected 0 (rows); save the model again with a newer "
                    "bitsandbytes",
                    *layout);
}

const struct ctw_format ctw_format_bnb_int8 = {
    .id = CTW_FORMAT_bnb_int8,
    .name = "bnb-int8",
    .owns = owns,
    .check = check,
    .check_data = check_data,
    .decode = ctw_bnb_int8_decode,
};
