#include <inttypes.h>

#include "kernels/formats/check.h"
#include "kernels/formats/gemma_int/decode.h"

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    const struct ctw_part *values = &part[CTW_PART_VALUES];
    return ctw_part_present(values) && (values->dtype == CTW_I8 || values->dtype == CTW_U8) &&
           ctw_part_present(&part[CTW_PART_SCALE]);
}

/* The bits of the codes, as the shape of the values shows; 0: no such shape. */
static int bits_of(const struct ctw_weight *w)
{
    const struct ctw_part *values = &w->part[CTW_PART_VALUES];
    if (values->dtype == CTW_I8)
        return ctw_part_has_shape(values, w->n, w->k) ? 8 : 0;
    for (int bits = 2; bits <= 4; bits += 2)
        if (ctw_part_has_shape(values, w->n, (w->k * bits + 7) / 8))
            return bits;
    return 0;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    const struct ctw_part *scale = &w->part[CTW_PART_SCALE];
    enum ctw_status st = ctw_parts_only(w, 1u << CTW_PART_VALUES | 1u << CTW_PART_SCALE, err);
    if (st == CTW_OK)
        st = ctw_check_targeted(w, args, err);
    if (st != CTW_OK)
        return st;
    w->bits = bits_of(w);
    if (w->bits == 0)
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "I8 [%" PRId64 ", %" PRId64 "], or U8 with two or four codes a byte, "
                             "according to config.json",
                             w->n, w->k);
    w->n_groups = scale->n_dims == 2 ? scale->shape[1] : 0;
    if (scale->dtype != CTW_F32 || w->n_groups < 1 || w->k % w->n_groups != 0 ||
        !ctw_part_has_shape(scale, w->n, w->n_groups))
        return ctw_part_fail(w, CTW_PART_SCALE, err,
                             "F32 [%" PRId64 ", 1], or as many columns as divide %" PRId64, w->n,
                             w->k);
    w->dtype = CTW_F32; /* rounded once, to the dtype that is computed in */
    w->symmetric = true;
    w->group_rows = 1;
    w->scale_stride = w->n_groups;
    w->group_size = w->k / w->n_groups;
    w->row_bytes = (size_t)(w->k * w->bits + 7) / 8;
    w->indexed = w->zero_packed = w->whole_codes = w->zero_less_one = false;
    return CTW_OK;
}

const struct ctw_format ctw_format_gemma_int = {
    .id = CTW_FORMAT_gemma_int,
    .name = "gemma-int",
    .owns = owns,
    .check = check,
    .decode = ctw_gemma_int_decode,
};
