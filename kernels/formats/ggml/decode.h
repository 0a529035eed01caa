/*
 * Weights of GGUF files in blocks of codes (ggml_types.h). The values are fp32, bit for bit those
 * of ggml's dequantize_row_*() and of gguf-py, and are rounded once, to the dtype of the product.
 */
#ifndef CTW_KERNELS_FORMATS_GGML_DECODE_H
#define CTW_KERNELS_FORMATS_GGML_DECODE_H

#include "kernels/formats/format.h"
#include "kernels/formats/ggml/ggml_types.h"
#include "kernels/formats/ggml/i_quants.h"
#include "kernels/formats/ggml/k_quants.h"
#include "kernels/formats/ggml/legacy.h"

CTW_HD void ctw_ggml_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                            int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES];
    float last[CTW_BLOCK_MAX]; /* a block that the span ends in */
    src += ctw_stored_row(w, row) * (int64_t)w->row_bytes;
    switch (w->block) {
/* A span begins with a block, as CTW_DECODE_ALIGN is a multiple of every block. */
#define CASE(name, id, elements, bytes, bits, group)                                               \
    case id:                                                                                       \
        src += col0 / (elements) * (bytes);                                                        \
        CTW_ROLLED                                                                                 \
        for (int64_t c = 0; c < n_col; c += (elements), src += (bytes)) {                          \
            bool whole = n_col - c >= (elements);                                                  \
            ctw_block_##name(src, whole ? dst + c : last);                                         \
            if (!whole)                                                                            \
                memcpy(dst + c, last, (size_t)(n_col - c) * sizeof(*dst));                         \
        }                                                                                          \
        break;
        CTW_BLOCK_TYPES(CASE)
#undef CASE
    default: /* check() accepts no others */
        break;
    }
}

#endif
