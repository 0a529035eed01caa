/*
 * GPTQ: codes of 2, 3, 4 or 8 bits, packed along the inputs. Column n of qweight [K bits / 32, N]
 * is the stream of output n's codes, lowest bit first; a row of qzeros [groups, N bits / 32] is the
 * stream of the outputs' zero points; scales [groups, N]. As GPTQModel computes it:
 *     w = round((u - z) * scale), once, to the scale's dtype
 *
 * Version 1 stores z - 1 (w->zero_less_one): 1 was subtracted from the fields of a whole word at
 * once, borrows included; from fields of 3 bits one by one, modulo 8.
 */
#ifndef CTW_KERNELS_FORMATS_GPTQ_DECODE_H
#define CTW_KERNELS_FORMATS_GPTQ_DECODE_H

#include "kernels/formats/format.h"
#include "kernels/formats/packed.h"

/* The zero point of output `row` in group g. */
CTW_HD_FORCE int32_t ctw_gptq_zero(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                   int64_t row, int64_t g, int bits)
{
    const uint32_t mask = (1u << bits) - 1u;
    const uint8_t *zeros = (const uint8_t *)data->part[CTW_PART_ZERO_POINT];
    zeros += 4 * g * ((w->n * bits + 31) / 32);
    if (32 % bits != 0)
        return (int32_t)((ctw_pack_code(zeros, 4, row, bits, false) + w->zero_less_one) & mask);
    uint32_t word = ctw_load_u32(zeros + row * bits / 32 * 4);
    word += w->zero_less_one ? 0xffffffffu / mask : 0u; /* 1 in every field */
    return (int32_t)(word >> (row * bits % 32) & mask);
}

/* Up to 32 columns from c on, a multiple of 32, whose words are contiguous at p. */
CTW_HD_FORCE void ctw_gptq_block(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                 const uint8_t *p, int64_t row, int64_t c, int n, int bits,
                                 enum ctw_dtype dtype, float *dst)
{
    const uint8_t *index = (const uint8_t *)data->part[CTW_PART_GROUP_INDEX];
    const void *scales = data->part[CTW_PART_SCALE];
    int64_t g = c / w->group_size;
    if (!w->indexed && n == 32 && (c + 31) / w->group_size == g) {
        ctw_pack_block(p, bits, ctw_gptq_zero(w, data, row, g, bits),
                       ctw_load_value(scales, dtype, g * w->n + row), dtype, dst);
        return;
    }
    int32_t zero[32];
    float scale[32];
    CTW_ROLLED
    for (int i = 0; i < n; i++) {
        g = w->indexed ? (int64_t)ctw_load_u32(index + 4 * (c + i)) : (c + i) / w->group_size;
        zero[i] = ctw_gptq_zero(w, data, row, g, bits);
        scale[i] = ctw_load_value(scales, dtype, g * w->n + row);
    }
    ctw_pack_columns(p, n, bits, zero, scale, dtype, dst);
}

/* One span; bits and dtype are constants in each inlined copy. */
CTW_HD_FORCE void ctw_gptq_span(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                int64_t row, int64_t col0, int64_t n_col, int bits,
                                enum ctw_dtype dtype, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + 4 * row;
    const size_t step = 4 * (size_t)w->n;
    CTW_ROLLED
    for (int64_t c = 0; c < n_col; c += 32) {
        int n = n_col - c < 32 ? (int)(n_col - c) : 32;
        uint32_t word[8];
        for (int i = 0; i < bits && 32 * i < n * bits; i++)
            word[i] = ctw_load_u32(src + (size_t)((col0 + c) / 32 * bits + i) * step);
        ctw_gptq_block(w, data, (const uint8_t *)word, row, col0 + c, n, bits, dtype, dst + c);
    }
}

#if CTW_VECTOR
/* The zero points and scales of eight rows in group g. */
CTW_HD_FORCE void ctw_gptq_scales8(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                   int64_t row, int64_t g, int bits, enum ctw_dtype dtype,
                                   ctw_i32x8 *zero, ctw_f32x8 *scale)
{
    const uint32_t b = (uint32_t)bits, mask = (1u << b) - 1u, at = (uint32_t)(row % 32) * b % 32;
    ctw_load_values8(data->part[CTW_PART_SCALE], dtype, g * w->n + row, scale);
    if (at + 8 * b <= 32) { /* in one word */
        const uint8_t *zeros = (const uint8_t *)data->part[CTW_PART_ZERO_POINT];
        uint32_t word = ctw_load_u32(zeros + 4 * (g * ((w->n * bits + 31) / 32) + row * bits / 32));
        const ctw_u32x8 lane = {0, b, 2 * b, 3 * b, 4 * b, 5 * b, 6 * b, 7 * b};
        word += w->zero_less_one ? 0xffffffffu / mask : 0u;
        *zero = (ctw_i32x8)(((ctw_u32x8){0} + word) >> (lane + at) & mask);
        return;
    }
    for (int r = 0; r < 8; r++)
        (*zero)[r] = ctw_gptq_zero(w, data, row + r, g, bits);
}

/*
 * n_rows rows (a multiple of 8) from `row` on, column by column: dst[c * ld + r], for n_col columns
 * from col0 on, unlike ctw_gptq_decode(), whose words lie far apart. bits divides 32.
 */
CTW_HD_FORCE void ctw_gptq_columns(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                   int64_t row, int n_rows, int64_t col0, int64_t n_col, int bits,
                                   enum ctw_dtype dtype, float *dst, int64_t ld)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + 4 * row;
    const uint8_t *index = (const uint8_t *)data->part[CTW_PART_GROUP_INDEX];
    const size_t step = 4 * (size_t)w->n;
    struct ctw_row_scales by;
    int64_t next = col0; /* where the next group begins, if groups are in order */
    for (int64_t c = col0; c < col0 + n_col; c++, dst += ld) {
        const uint8_t *words = src + (size_t)(c * bits / 32) * step;
        const uint32_t shift = (uint32_t)(c * bits % 32);
        if (c == next || w->indexed) {
            int64_t g = w->indexed ? (int64_t)ctw_load_u32(index + 4 * c) : c / w->group_size;
            for (int b = 0; b < n_rows / 8; b++)
                ctw_gptq_scales8(w, data, row + 8 * b, g, bits, dtype, &by.zero[b], &by.scale[b]);
            next = (g + 1) * w->group_size;
        }
        for (int b = 0; b < n_rows / 8; b++) {
            ctw_u32x8 code;
            memcpy(&code, words + 32 * b, sizeof(code));
            if (shift == 0)
                ctw_fetch_ahead(words + 32 * b, step);
            code >>= shift;
            ctw_pack_rows8(&code, &by, b, (1u << bits) - 1u, dtype, dst + 8 * b);
        }
    }
}
#endif

CTW_HD void ctw_gptq_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                            int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    switch (w->bits) {
        CTW_BITS_CASE(2, ctw_gptq_span)
        CTW_BITS_CASE(3, ctw_gptq_span)
        CTW_BITS_CASE(4, ctw_gptq_span)
        CTW_BITS_CASE(8, ctw_gptq_span)
    default:
        break;
    }
}

#endif
