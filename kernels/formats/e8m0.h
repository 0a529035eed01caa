/* E8M0 scales: powers of two, one byte each. An mxfp4, mxfp6 or mxfp8 weight has one for each
 * CTW_MX_GROUP columns, a float-quantized weight one for whatever shares a scale. */
#ifndef CTW_KERNELS_FORMATS_E8M0_H
#define CTW_KERNELS_FORMATS_E8M0_H

#include "kernels/formats/convert.h"
#include "kernels/formats/format.h"

enum { CTW_MX_GROUP = 32 };

/* The bits that make a weight's scale of code 255, infinity, NaN. Tensors of dtype F8_E8M0 have
 * NaN, as in torch and in OCP's definition. Bytes (U8) have infinity, as in compressed-tensors and
 * in transformers. */
CTW_HD_FORCE uint32_t ctw_e8m0_nan(const struct ctw_weight *w)
{
    return w->part[CTW_PART_SCALE].dtype == CTW_F8_E8M0 ? 0x00400000u : 0;
}

/* 2^(code - 127); nan: ctw_e8m0_nan(). */
CTW_HD_FORCE float ctw_e8m0_to_f32(uint8_t code, uint32_t nan)
{
    uint32_t bits = code == 0 ? 0x00400000u : (uint32_t)code << 23;
    return ctw_bits_to_f32(code == 255 ? bits | nan : bits);
}

#endif
