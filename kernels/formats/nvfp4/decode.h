/*
 * nvfp4-pack-quantized: two E2M1 codes per byte, the even column in the low half; one E4M3 scale
 * per 16 columns, divided by the matrix's global scale. As compressed-tensors computes it:
 *     a = fl32(e4m3 / global_scale);  w = bf16(fl32(e2m1 * a))        (two roundings)
 * Without a global scale, it is 1.
 */
#ifndef CTW_KERNELS_FORMATS_NVFP4_DECODE_H
#define CTW_KERNELS_FORMATS_NVFP4_DECODE_H

#include <math.h>

#include "kernels/formats/e2m1.h"
#include "kernels/formats/format.h"

/*
 * ctw_e4m3_to_f32(code) / global, bit-equal but without a division: global is within 2^-60 .. 2^60
 * and inverse = 1 / global is rounded once. q is adjacent to the quotient, the remainder is exact,
 * and one more step rounds as a division does. Verified for all significands of both operands
 * (tests/unit/test_formats.c); powers of two change nothing while no step underflows.
 */
CTW_HD_FORCE float ctw_nvfp4_scale(uint8_t code, float global, float inverse)
{
    uint32_t magnitude = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    /* The code's exponent and mantissa bits, placed as a float's, are 2^-120 times its value,
     * subnormals included. */
    float s = ctw_bits_to_f32(magnitude << 20) * 0x1p120f;
    s = magnitude == 0x7fu ? ctw_bits_to_f32(0x7fc00000u) : s;
    float q = s * inverse;
    q = fmaf(fmaf(-q, global, s), inverse, q);
    return ctw_bits_to_f32(ctw_f32_to_bits(q) ^ sign);
}

CTW_HD void ctw_nvfp4_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                             int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES];
    const uint8_t *scale = (const uint8_t *)data->part[CTW_PART_SCALE];
    src += (size_t)(row * (w->k / 2) + col0 / 2);
    scale += (size_t)(row * w->scale_stride + col0 / CTW_NVFP4_GROUP);
    /* check_data() has verified that the global scale is finite, so a NaN scale rounds to NaN. */
    const void *divisor = data->part[CTW_PART_GLOBAL_SCALE];
    float global =
        divisor == NULL ? 1.0f : ctw_load_float(divisor, w->part[CTW_PART_GLOBAL_SCALE].dtype, 0);
    for (int64_t c = 0; c < n_col; c += CTW_NVFP4_GROUP, src += CTW_NVFP4_GROUP / 2) {
        float a = ctw_e4m3_to_f32(*scale++) / global;
        int n = n_col - c < CTW_NVFP4_GROUP ? (int)(n_col - c) : CTW_NVFP4_GROUP;
        ctw_e2m1_run(src, n, a, CTW_BF16, dst + c);
    }
}

#endif
