/*
 * mxfp6-pack-quantized: E2M3 codes of 6 bits, or Quark's E3M2 codes, four in three bytes, lowest
 * bit first; one power of two (E8M0) per 32 columns. Values are bf16, which holds them exactly
 * unless they are below its normal numbers or above all numbers.
 */
#ifndef CTW_KERNELS_FORMATS_MXFP6_DECODE_H
#define CTW_KERNELS_FORMATS_MXFP6_DECODE_H

#include "kernels/formats/e8m0.h"
#include "kernels/formats/format.h"
#include "kernels/formats/packed.h"

enum { CTW_MXFP6_GROUP_BYTES = CTW_MX_GROUP * 6 / 8 };

/* The E2M3 value of code & 63: its exponent and mantissa bits, placed as a float's, are 2^-126
 * times its magnitude, subnormals included. */
CTW_HD_FORCE float ctw_e2m3_value(uint32_t code)
{
    float magnitude = ctw_bits_to_f32((code & 31u) << 20) * 0x1p126f;
    return ctw_bits_to_f32(ctw_f32_to_bits(magnitude) | (code & 32u) << 26);
}

/* The same of E3M2, whose magnitude so placed is 2^-124 times its value. */
CTW_HD_FORCE float ctw_e3m2_value(uint32_t code)
{
    float magnitude = ctw_bits_to_f32((code & 31u) << 21) * 0x1p124f;
    return ctw_bits_to_f32(ctw_f32_to_bits(magnitude) | (code & 32u) << 26);
}

/* n of the 32 columns at src, with the scale a, of E3M2. */
CTW_HD_FORCE void ctw_mxfp6_run_e3m2(const uint8_t *src, int n, float a, float *dst)
{
    for (int i = 0; i < n; i++)
        dst[i] = ctw_round_bf16(ctw_e3m2_value(ctw_pack_code(src, 4, i, 6, false)) * a);
}

/* n of the 32 columns at src, with the scale a. */
CTW_HD_FORCE void ctw_mxfp6_run(const uint8_t *src, int n, float a, float *dst)
{
    int i = 0;
#if CTW_VECTOR
    for (; n == CTW_MX_GROUP && i < n; i += 8) {
        ctw_i32x8 number;
        ctw_pack_codes8(src, 6, i / 8, &number);
        ctw_u32x8 code = (ctw_u32x8)number;
        ctw_f32x8 v = (ctw_f32x8)((code & 31u) << 20) * 0x1p126f;
        v = (ctw_f32x8)((ctw_u32x8)v | (code & 32u) << 26) * a;
        ctw_round_value8(&v, CTW_BF16);
        memcpy(dst + i, &v, sizeof(v));
    }
#endif
    for (; i < n; i++)
        dst[i] = ctw_round_bf16(ctw_e2m3_value(ctw_pack_code(src, 4, i, 6, false)) * a);
}

CTW_HD void ctw_mxfp6_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                             int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    const uint8_t *src = (const uint8_t *)data->part[CTW_PART_VALUES];
    const uint8_t *scale = (const uint8_t *)data->part[CTW_PART_SCALE];
    src += row * (int64_t)w->row_bytes + col0 / CTW_MX_GROUP * CTW_MXFP6_GROUP_BYTES;
    scale += row * w->scale_stride + col0 / CTW_MX_GROUP;
    const uint32_t nan = ctw_e8m0_nan(w);
    CTW_ROLLED
    for (int64_t c = 0; c < n_col; c += CTW_MX_GROUP, src += CTW_MXFP6_GROUP_BYTES) {
        int n = n_col - c < CTW_MX_GROUP ? (int)(n_col - c) : CTW_MX_GROUP;
        float a = ctw_e8m0_to_f32(*scale++, nan);
        if (w->e3m2)
            ctw_mxfp6_run_e3m2(src, n, a, dst + c);
        else
            ctw_mxfp6_run(src, n, a, dst + c);
    }
}

#endif
