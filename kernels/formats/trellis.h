/* Shared by EXL3's formats: from the 16 bits of a trellis' state to a value. */
#ifndef CTW_KERNELS_FORMATS_TRELLIS_H
#define CTW_KERNELS_FORMATS_TRELLIS_H

#include "kernels/formats/convert.h"

/* The functions from a state to its value: struct ctw_weight's codebook. */
enum { CTW_EXL3_3INST, CTW_EXL3_MCG, CTW_EXL3_MUL1 };

#define CTW_EXL3_MCG_FACTOR 0xcbac1fedu
#define CTW_EXL3_MUL1_FACTOR 0x83dcd12du

/* A float in fp16's normal range, or 0, rounded to fp16. */
CTW_HD_FORCE float ctw_exl3_round_normal(float f)
{
    uint32_t u = ctw_f32_to_bits(f);
    return ctw_bits_to_f32((u + 0xfffu + (u >> 13 & 1u)) & ~0x1fffu);
}

/* Exact until the last rounding: 3INST and MCG add two fp16 numbers of exponents -3 to 0, MUL1
 * computes (1024 + c) 0x1EEE + 0xC931 (fp16) with c the sum of a product's bytes. */
CTW_HD_FORCE float ctw_exl3_value(uint32_t state, int codebook)
{
    if (codebook == CTW_EXL3_MUL1) {
        uint32_t x = state * CTW_EXL3_MUL1_FACTOR;
        uint32_t c = (x & 0xffu) + (x >> 8 & 0xffu) + (x >> 16 & 0xffu) + (x >> 24);
        return ctw_exl3_round_normal((float)(int32_t)(1024u + c) * 0x1.bb8p-8f - 10.3828125f);
    }
    uint32_t x =
        codebook == CTW_EXL3_MCG ? state * CTW_EXL3_MCG_FACTOR : state * 89226354u + 64248484u;
    x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    uint32_t low = ((x & 0x7fffu) << 13) + (112u << 23),
             high = (x >> 3 & 0x0fffe000u) + (112u << 23);
    return ctw_exl3_round_normal(ctw_bits_to_f32(low | (x & 0x8000u) << 16) +
                                 ctw_bits_to_f32(high | (x & 0x80000000u)));
}

#endif
