/*
 * Gemma's own integers (transformers' quant_method gemma): codes of 2, 4 or 8 bits, fp32 scales of
 * rows, or of equal parts of them. Codes of 2 and 4 bits lie in bytes, lowest bits first, less
 * 2^(bits - 1); codes of 8 bits are int8. w = fl32(code * scale).
 */
#ifndef CTW_KERNELS_FORMATS_GEMMA_INT_DECODE_H
#define CTW_KERNELS_FORMATS_GEMMA_INT_DECODE_H

#include "kernels/formats/bytes.h"

CTW_HD_FORCE float ctw_gemma_code(const uint8_t *src, int64_t i, int bits)
{
    if (bits == 8)
        return (float)(int8_t)src[i];
    const int per = 8 / bits;
    int code = src[i / per] >> (int)(i % per) * bits & ((1 << bits) - 1);
    return (float)(code - (1 << (bits - 1)));
}

/* Columns col0 .. end - 1, which share a scale. src: the row; bits is constant in each inlined
 * copy. */
CTW_HD_FORCE void ctw_gemma_run(const uint8_t *src, int64_t col0, int64_t end, int bits,
                                float scale, float *dst)
{
    int64_t c = col0;
#if CTW_VECTOR
    const ctw_i32x8 shifts = {0, bits, 2 * bits, 3 * bits, 4 * bits, 5 * bits, 6 * bits, 7 * bits};
    for (; bits < 8 && c % 8 == 0 && c + 8 <= end; c += 8) {
        const uint8_t *p = src + c / 8 * bits;
        int32_t word = p[0] | p[1] << 8;
        if (bits == 4)
            word |= p[2] << 16 | (int32_t)((uint32_t)p[3] << 24);
        ctw_i32x8 v = {word, word, word, word, word, word, word, word};
        v = (v >> shifts & ((1 << bits) - 1)) - (1 << (bits - 1));
        ctw_f32x8 f = __builtin_convertvector(v, ctw_f32x8) * scale;
        memcpy(dst + (c - col0), &f, sizeof(f));
    }
    const ctw_i32x8 zeros = {0};
    for (; bits == 8 && c + 8 <= end; c += 8) {
        ctw_f32x8 f;
        ctw_byte_values8(src + c, CTW_BYTE_INT8, &zeros, &f);
        f = f * scale;
        memcpy(dst + (c - col0), &f, sizeof(f));
    }
#endif
    for (; c < end; c++)
        dst[c - col0] = ctw_gemma_code(src, c, bits) * scale;
}

CTW_HD void ctw_gemma_int_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                 int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + (size_t)row * w->row_bytes;
    const uint8_t *scales = (const uint8_t *)data->part[CTW_PART_SCALE] + 4 * row * w->n_groups;
    const int64_t end = col0 + n_col;
    for (int64_t c = col0, g = col0 / w->group_size, stop; c < end; c = stop, g++) {
        const float scale = ctw_load_f32(scales + 4 * g);
        stop = (g + 1) * w->group_size < end ? (g + 1) * w->group_size : end;
        if (w->bits == 2)
            ctw_gemma_run(src, c, stop, 2, scale, dst + (c - col0));
        else if (w->bits == 4)
            ctw_gemma_run(src, c, stop, 4, scale, dst + (c - col0));
        else
            ctw_gemma_run(src, c, stop, 8, scale, dst + (c - col0));
    }
}

#endif
