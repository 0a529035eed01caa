#include "kernels/formats/check.h"
#include "kernels/formats/ggml/decode.h"

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    const struct ctw_part *values = &part[CTW_PART_VALUES];
    return ctw_part_present(values) && values->block != NULL && !values->block->plain;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    (void)args; /* a GGUF file describes each tensor by its type alone */
    const struct ctw_part *values = &w->part[CTW_PART_VALUES];
    const struct ctw_block_type *block = values->block;
    uint64_t row_bytes;
    enum ctw_status st = ctw_parts_only(w, 1u << CTW_PART_VALUES, err);
    if (st != CTW_OK)
        return st;
    if (!ctw_part_has_shape(values, w->n, w->k))
        return ctw_part_fail(w, CTW_PART_VALUES, err, "[%lld, %lld] according to the metadata",
                             (long long)w->n, (long long)w->k);
    if (!ctw_block_bytes(block, (uint64_t)w->k, &row_bytes))
        return ctw_fail(err, CTW_EFORMAT, "%lld columns are not a multiple of %d, which %s needs",
                        (long long)w->k, block->elements, block->name);
    if (values->bytes != (size_t)w->n * row_bytes)
        return ctw_fail(err, CTW_EFORMAT, "%s [%lld, %lld]: found %zu bytes, expected %zu",
                        block->name, (long long)w->n, (long long)w->k, values->bytes,
                        (size_t)w->n * (size_t)row_bytes);
    w->dtype = CTW_F32; /* rounded once, to the dtype that is computed in */
    w->bits = block->bits;
    w->symmetric = true;
    w->group_rows = 1;
    w->group_size = block->group;
    w->n_groups = w->k / block->group;
    w->scale_stride = w->n_groups;
    w->row_bytes = (size_t)row_bytes;
    w->indexed = w->zero_packed = w->whole_codes = w->zero_less_one = false;
    w->block = block->id;
    w->paired = values->paired;
    return CTW_OK;
}

const struct ctw_format ctw_format_ggml = {
    .id = CTW_FORMAT_ggml,
    .name = "ggml",
    .owns = owns,
    .check = check,
    .decode = ctw_ggml_decode,
};
