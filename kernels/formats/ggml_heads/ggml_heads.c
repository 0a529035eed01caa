#include "kernels/formats/check.h"
#include "kernels/formats/ggml_heads/decode.h"

/* The number of no block. */
enum { PLAIN = 0 };

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_part_present(&part[CTW_PART_VALUES]) &&
           ctw_part_present(&part[CTW_PART_MORE_VALUES]);
}

/* Checks one tensor [heads, rows, columns]. */
static enum ctw_status check_part(const struct ctw_weight *w, enum ctw_part_kind kind,
                                  int64_t heads, int64_t rows, int64_t columns, struct ctw_err *err)
{
    const struct ctw_part *part = &w->part[kind];
    const int64_t *shape = part->shape;
    uint64_t bytes = (uint64_t)columns;
    bool ok = part->n_dims == 3 && shape[0] == heads && shape[1] == rows && shape[2] == columns;
    if (!ok)
        return ctw_part_fail(w, kind, err, "[%lld, %lld, %lld] according to the metadata",
                             (long long)heads, (long long)rows, (long long)columns);
    if (part->block != NULL && !ctw_block_bytes(part->block, (uint64_t)columns, &bytes))
        return ctw_part_fail(w, kind, err, "rows of whole blocks");
    if (part->block == NULL && !ctw_part_is_float(part))
        return ctw_part_fail(w, kind, err, "blocks of codes, F32, F16 or BF16");
    if (part->block == NULL)
        bytes *= ctw_dtype_bytes(part->dtype);
    if (part->bytes != (size_t)(heads * rows) * bytes)
        return ctw_part_fail(w, kind, err, "%llu bytes for %lld rows, found %llu",
                             (unsigned long long)bytes * (unsigned long long)(heads * rows),
                             (long long)(heads * rows), (unsigned long long)part->bytes);
    return CTW_OK;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    (void)args; /* a GGUF file describes each tensor by its type alone */
    const struct ctw_part *keys = &w->part[CTW_PART_VALUES];
    const struct ctw_part *values = &w->part[CTW_PART_MORE_VALUES];
    enum ctw_status st = ctw_parts_only(w, 1u << CTW_PART_VALUES | 1u << CTW_PART_MORE_VALUES, err);
    if (st != CTW_OK)
        return st;
    int64_t heads = keys->n_dims == 3 ? keys->shape[0] : 0;
    int64_t key_rows = keys->n_dims == 3 ? keys->shape[2] : 0;
    if (heads < 1 || key_rows < 1 || w->n % heads != 0 || key_rows >= w->n / heads)
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "[heads, %lld, rows of keys]; the heads' rows of keys and values are "
                             "%lld according to the metadata",
                             (long long)w->k, (long long)w->n);
    int64_t value_rows = w->n / heads - key_rows;
    st = check_part(w, CTW_PART_VALUES, heads, w->k, key_rows, err);
    if (st == CTW_OK)
        st = check_part(w, CTW_PART_MORE_VALUES, heads, value_rows, w->k, err);
    if (st != CTW_OK)
        return st;
    const struct ctw_block_type *block = values->block;
    ctw_fill_dense(w, w->k);
    w->dtype = CTW_F32; /* rounded once, to the dtype that is computed in */
    w->bits = block != NULL ? block->bits : 8 * (int)ctw_dtype_bytes(values->dtype);
    w->block = keys->block != NULL ? keys->block->id : PLAIN;
    w->more_block = block != NULL ? block->id : PLAIN;
    w->key_rows = key_rows;
    w->value_rows = value_rows;
    return CTW_OK;
}

const struct ctw_format ctw_format_ggml_heads = {
    .id = CTW_FORMAT_ggml_heads,
    .name = "ggml-heads",
    .owns = owns,
    .check = check,
    .decode = ctw_ggml_heads_decode,
};
