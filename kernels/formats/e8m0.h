/* E8M0 scales: powers of two, one for each CTW_MX_GROUP columns of an mxfp4, mxfp6 or mxfp8 weight.
 */
#ifndef CTW_KERNELS_FORMATS_E8M0_H
#define CTW_KERNELS_FORMATS_E8M0_H

#include "kernels/formats/convert.h"

enum { CTW_MX_GROUP = 32 };

/* 2^(code - 127). Code 255 is infinity, as in compressed-tensors (in OCP's definition it is NaN).
 */
CTW_HD_FORCE float ctw_e8m0_to_f32(uint8_t code)
{
    return ctw_bits_to_f32(code == 0 ? 0x00400000u : (uint32_t)code << 23);
}

#endif
