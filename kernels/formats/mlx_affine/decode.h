/*
 * MLX's affine quantisation: a row is one stream of codes of 1 to 8 bits, lowest bit first; groups
 * of 32, 64 or 128 columns share a scale and a bias. As mx.dequantize() computes it on the CPU:
 *     w = round(round(scale * u) + bias), each to the scales' dtype
 */
#ifndef CTW_KERNELS_FORMATS_MLX_AFFINE_DECODE_H
#define CTW_KERNELS_FORMATS_MLX_AFFINE_DECODE_H

#include "kernels/formats/format.h"
#include "kernels/formats/packed.h"

enum { CTW_MLX_BLOCK = 32 }; /* columns; a group is whole blocks, and a block whole words */

/* The 32 values in the `bits` words at p. */
CTW_HD_FORCE void ctw_mlx_block(const uint8_t *p, int bits, float scale, float bias,
                                enum ctw_dtype dtype, float *dst)
{
#if CTW_VECTOR
    for (int u = 0; u < CTW_MLX_BLOCK / 8; u++) {
        ctw_i32x8 code;
        ctw_pack_codes8(p, bits, u, &code);
        ctw_f32x8 v = __builtin_convertvector(code, ctw_f32x8) * scale;
        ctw_round_value8(&v, dtype);
        v += bias;
        ctw_round_value8(&v, dtype);
        memcpy(dst + 8 * u, &v, sizeof(v));
    }
#else
    for (int i = 0; i < CTW_MLX_BLOCK; i++) {
        float v = ctw_pack_value((int32_t)ctw_pack_code(p, 4, i, bits, false), 0, scale, dtype);
        dst[i] = ctw_round_value(v + bias, dtype);
    }
#endif
}

/* One span; bits and dtype are constants in each inlined copy. */
CTW_HD_FORCE void ctw_mlx_span(const struct ctw_weight *w, const struct ctw_weight_data *data,
                               int64_t row, int64_t col0, int64_t n_col, int bits,
                               enum ctw_dtype dtype, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES] + (size_t)row * w->row_bytes +
                         (size_t)(col0 * bits / 8);
    const void *scales = data->part[CTW_PART_SCALE], *biases = data->part[CTW_PART_GROUP_BIAS];
    const int64_t end = col0 + n_col, base = row * w->scale_stride;
    CTW_ROLLED
    for (int64_t c = col0, g = col0 / w->group_size; c < end; g++) {
        const int64_t stop = (g + 1) * w->group_size < end ? (g + 1) * w->group_size : end;
        const float scale = ctw_load_value(scales, dtype, base + g);
        const float bias = ctw_load_value(biases, dtype, base + g);
        CTW_ROLLED
        for (; c < stop; c += CTW_MLX_BLOCK, src += 4 * bits, dst += CTW_MLX_BLOCK)
            ctw_mlx_block(src, bits, scale, bias, dtype, dst);
    }
}

/* n_col is a multiple of CTW_MLX_BLOCK, as every row's length is. */
CTW_HD void ctw_mlx_affine_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                  int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    switch (w->bits) {
        CTW_BITS_CASE(1, ctw_mlx_span)
        CTW_BITS_CASE(2, ctw_mlx_span)
        CTW_BITS_CASE(3, ctw_mlx_span)
        CTW_BITS_CASE(4, ctw_mlx_span)
        CTW_BITS_CASE(5, ctw_mlx_span)
        CTW_BITS_CASE(6, ctw_mlx_span)
        CTW_BITS_CASE(8, ctw_mlx_span)
    default:
        break;
    }
}

#endif
