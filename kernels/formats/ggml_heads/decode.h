/*
 * The matrix from latents to the keys and values of all heads, in the two tensors of GGUF files:
 *
 *     VALUES       [heads, k, key_rows]: each head's rows of keys, transposed
 *     MORE_VALUES  [heads, value_rows, k]: each head's rows of values
 *
 * Row r is row r % (key_rows + value_rows) of head r / (key_rows + value_rows). Blocks of codes run
 * along the stored rows, so an element of a row of keys costs the decoding of a block.
 */
#ifndef CTW_KERNELS_FORMATS_GGML_HEADS_DECODE_H
#define CTW_KERNELS_FORMATS_GGML_HEADS_DECODE_H

#include "kernels/formats/convert.h"
#include "kernels/formats/ggml/decode.h"

/* Elements and bytes of a block; 1 and its bytes for a plain type. */
CTW_HD void ctw_ggml_heads_sizes(uint32_t block, enum ctw_dtype dtype, int *elements, int *bytes)
{
    *elements = 1;
    switch (block) {
#define CASE(name, id, n, size, bits, group)                                                       \
    case id:                                                                                       \
        *elements = (n);                                                                           \
        *bytes = (size);                                                                           \
        break;
        CTW_BLOCK_TYPES(CASE)
#undef CASE
    default:
        *bytes = (int)ctw_dtype_bytes(dtype);
        break;
    }
}

CTW_HD void ctw_ggml_heads_block(uint32_t block, enum ctw_dtype dtype, const uint8_t *src,
                                 float *dst)
{
    switch (block) {
#define CASE(name, id, elements, bytes, bits, group)                                               \
    case id:                                                                                       \
        ctw_block_##name(src, dst);                                                                \
        break;
        CTW_BLOCK_TYPES(CASE)
#undef CASE
    default:
        *dst = ctw_load_value(src, dtype, 0);
        break;
    }
}

CTW_HD void ctw_ggml_heads_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                  int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    const int64_t head = row / (w->key_rows + w->value_rows);
    const int64_t r = row % (w->key_rows + w->value_rows);
    const bool key = r < w->key_rows;
    const int kind = key ? CTW_PART_VALUES : CTW_PART_MORE_VALUES;
    const uint32_t block = key ? w->block : w->more_block;
    const enum ctw_dtype dtype = w->part[kind].dtype;
    int elements, bytes;
    ctw_ggml_heads_sizes(block, dtype, &elements, &bytes);
    /* Of keys, column c of the row is element r of stored row c. */
    const int64_t stored_columns = key ? w->key_rows : w->k;
    const int64_t step = stored_columns / elements * bytes;
    const uint8_t *src = (const uint8_t *)data->part[kind];
    src += key ? (head * w->k + col0) * step + r / elements * bytes
               : (head * w->value_rows + r - w->key_rows) * step + col0 / elements * bytes;
    const int at = key ? (int)(r % elements) : 0, most = key ? 1 : elements;
    float values[CTW_BLOCK_MAX];
    CTW_ROLLED
    for (int64_t c = 0; c < n_col; c += most, src += key ? step : bytes) {
        const int64_t n = n_col - c < most ? n_col - c : most;
        ctw_ggml_heads_block(block, dtype, src, values);
        memcpy(dst + c, values + at, (size_t)n * sizeof(*dst));
    }
}

#endif
