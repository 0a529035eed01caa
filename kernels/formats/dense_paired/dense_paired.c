#include "kernels/formats/check.h"
#include "kernels/formats/dense_paired/decode.h"

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_part_is_float(&part[CTW_PART_VALUES]) && part[CTW_PART_VALUES].paired > 0;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)args; /* of a file that describes each tensor by itself */
    (void)shape_part;
    const struct ctw_part *values = &w->part[CTW_PART_VALUES];
    enum ctw_status st = ctw_parts_only(w, 1u << CTW_PART_VALUES, err);
    if (st == CTW_OK && (values->transposed || !ctw_part_has_shape(values, w->n, w->k)))
        st = ctw_part_fail(w, CTW_PART_VALUES, err, "[%lld, %lld] according to the metadata",
                           (long long)w->n, (long long)w->k);
    if (st != CTW_OK)
        return st;
    ctw_fill_dense(w, w->k);
    w->paired = values->paired;
    return CTW_OK;
}

const struct ctw_format ctw_format_dense_paired = {
    .id = CTW_FORMAT_dense_paired,
    .name = "dense-paired",
    .owns = owns,
    .check = check,
    .decode = ctw_dense_paired_decode,
};
