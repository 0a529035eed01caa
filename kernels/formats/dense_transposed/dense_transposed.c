#include "kernels/formats/check.h"
#include "kernels/formats/dense_transposed/decode.h"

/* Also tensors that cannot be read, so that check() can say why. */
static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_part_present(&part[CTW_PART_VALUES]) && part[CTW_PART_VALUES].transposed;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    char found[96];
    const struct ctw_part *values = &w->part[CTW_PART_VALUES];
    if (args->present || !ctw_part_is_float(values))
        return ctw_fail(err, CTW_EUNSUP,
                        "its module is a Conv1D or a stack of experts, which stores a dense weight "
                        "as [inputs, outputs]; one that is quantised is not supported (weight "
                        "%s%s)",
                        ctw_part_text(values, found, sizeof(found)),
                        args->present ? ", and quantization_config quantises it" : "");
    enum ctw_status st = ctw_parts_only(w, 1u << CTW_PART_VALUES, err);
    if (st != CTW_OK)
        return st;
    const int64_t heads = values->heads > 0 ? values->heads : 1;
    if (values->heads > 0 && (values->n_dims != 3 || values->shape[0] != heads ||
                              values->shape[1] != w->k || values->shape[2] * heads != w->n))
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "[%lld, %lld, %lld] (heads, inputs, outputs) according to config.json",
                             (long long)heads, (long long)w->k, (long long)(w->n / heads));
    if (values->heads == 0 && !ctw_part_has_shape(values, w->k, w->n))
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "[%lld, %lld] (inputs, outputs) according to config.json",
                             (long long)w->k, (long long)w->n);
    ctw_fill_dense(w, 1);
    w->rows_of_head = w->n / heads;
    return CTW_OK;
}

const struct ctw_format ctw_format_dense_transposed = {
    .id = CTW_FORMAT_dense_transposed,
    .name = "dense-transposed",
    .owns = owns,
    .check = check,
    .decode = ctw_dense_transposed_decode,
};
