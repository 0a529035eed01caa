/*
 * IQ1 to IQ3: blocks of 256 values. A code names an entry of a grid, four or eight magnitudes, and
 * the values' signs stand beside the codes. ctw_eight_TYPE() computes values 8 i to 8 i + 7 of a
 * block whose factor is d; ctw_some_TYPE() computes n of them.
 */
#ifndef CTW_KERNELS_FORMATS_GGML_I_QUANTS_H
#define CTW_KERNELS_FORMATS_GGML_I_QUANTS_H

#include "kernels/formats/ggml/grids.h"
#include "kernels/formats/ggml/legacy.h"

/* Eight values of an IQ2 grid's entry: pairs of bits that stand for 8, 25 and 43. */
CTW_HD_FORCE void ctw_block_iq2(uint32_t entry, float a, uint32_t signs, float *dst)
{
    struct ctw_lanes v;
    ctw_lanes_pairs(&v, entry);
    ctw_lanes_affine(&v, 17, 8);
    ctw_lanes_step(&v, 42, 1);
    ctw_lanes_scale_signs(&v, a, signs, dst);
}

/* Groups of 32: n values from 8 i on, in one group, whose scale and signs are in a word. */
CTW_HD_FORCE void ctw_some_IQ2_XXS(const uint8_t *b, float d, int i, int n, float *dst)
{
    const uint8_t *codes = b + 2 + i / 4 * 8;
    const uint32_t word = ctw_load_u32(codes + 4);
    const float a = d * (0.5f + (float)(int32_t)(word >> 28)) * 0.25f;
    for (int j = i % 4; n > 0; j++, n -= 8, dst += 8)
        ctw_block_iq2(ctw_grid_iq2_xxs(codes[j]), a, ctw_lanes_even(word >> (7 * j) & 127u), dst);
}

/* The scale of 16 values: 4 bits each. */
CTW_HD_FORCE float ctw_block_iq2_scale(const uint8_t *scales, int i, float d)
{
    return d * (0.5f + (float)(scales[i / 2] >> (4 * (i % 2)) & 15)) * 0.25f;
}

CTW_HD_FORCE void ctw_eight_IQ2_XS(const uint8_t *b, float d, int i, float *dst)
{
    const uint32_t code = ctw_load_u16(b + 2 + 2 * i);
    ctw_block_iq2(ctw_grid_iq2_xs(code & 511u), ctw_block_iq2_scale(b + 66, i / 2, d),
                  ctw_lanes_even(code >> 9), dst);
}

CTW_HD_FORCE void ctw_eight_IQ2_S(const uint8_t *b, float d, int i, float *dst)
{
    const uint32_t high = (uint32_t)b[66 + i / 4] >> (2 * (i % 4)) & 3u;
    ctw_block_iq2(ctw_grid_iq2_s(b[2 + i] | high << 8), ctw_block_iq2_scale(b + 74, i / 2, d),
                  b[34 + i], dst);
}

/* As IQ2_XXS, with two entries of a grid, whose nibbles stand for 4, 12, 20, .., 52 and 62. */
CTW_HD_FORCE void ctw_some_IQ3_XXS(const uint8_t *b, float d, int i, int n, float *dst)
{
    const uint32_t word = ctw_load_u32(b + 66 + i / 4 * 4);
    const float a = d * (0.5f + (float)(int32_t)(word >> 28)) * 0.5f;
    const uint8_t *code = b + 2 + 2 * i;
    for (int j = i % 4; n > 0; j++, n -= 8, code += 2, dst += 8) {
        struct ctw_lanes v;
        ctw_lanes_nibbles(&v, ctw_grid_iq3_xxs(code[0]) | ctw_grid_iq3_xxs(code[1]) << 16);
        ctw_lanes_affine(&v, 8, 4);
        ctw_lanes_step(&v, 60, 2);
        ctw_lanes_scale_signs(&v, a, ctw_lanes_even(word >> (7 * j) & 127u), dst);
    }
}

/* Nibbles that stand for the odd numbers from 1 on. */
CTW_HD_FORCE void ctw_eight_IQ3_S(const uint8_t *b, float d, int i, float *dst)
{
    const uint32_t scale = (uint32_t)b[106 + i / 8] >> (4 * (i / 4 % 2)) & 15u;
    const uint32_t ninth = (uint32_t)b[66 + i / 4] >> (2 * (i % 4));
    const uint32_t first = b[2 + 2 * i] | (ninth & 1u) << 8;
    const uint32_t second = b[3 + 2 * i] | (ninth & 2u) << 7;
    struct ctw_lanes v;
    ctw_lanes_nibbles(&v, ctw_grid_iq3_s(first) | ctw_grid_iq3_s(second) << 16);
    ctw_lanes_affine(&v, 2, 1);
    ctw_lanes_scale_signs(&v, d * (float)(int32_t)(1 + 2 * scale), b[74 + i], dst);
}

/* Pairs of bits that stand for -1, 0 and 1, to which 1/8 is added (less: subtracted). */
CTW_HD_FORCE void ctw_block_iq1(uint32_t entry, float a, bool less, float *dst)
{
    struct ctw_lanes v;
    ctw_lanes_pairs(&v, entry);
    ctw_lanes_affine(&v, 8, less ? -9 : -7);
    ctw_lanes_scale(&v, a * 0.125f, dst);
}

CTW_HD_FORCE void ctw_some_IQ1_S(const uint8_t *b, float d, int i, int n, float *dst)
{
    const uint32_t word = ctw_load_u16(b + 34 + i / 4 * 2);
    const float a = d * (float)(int32_t)(2 * (word >> 12 & 7u) + 1);
    for (int j = i % 4; n > 0; i++, j++, n -= 8, dst += 8) {
        const uint32_t code = b[2 + i] | (word >> (3 * j) & 7u) << 8;
        ctw_block_iq1(ctw_grid_iq1(code), a, (word & 0x8000u) != 0, dst);
    }
}

/* The fp16 factor's nibbles are the highest of the four words of scales. */
CTW_HD_FORCE float ctw_block_iq1_m_factor(const uint8_t *b)
{
    uint32_t factor = 0;
    for (int w = 0; w < 4; w++)
        factor |= (uint32_t)(ctw_load_u16(b + 48 + 2 * w) >> 12) << (4 * w);
    return ctw_widen_f16((uint16_t)factor);
}

CTW_HD_FORCE void ctw_eight_IQ1_M(const uint8_t *b, float d, int i, float *dst)
{
    const uint32_t scales = ctw_load_u16(b + 48 + 2 * (i / 8));
    const uint32_t high = (uint32_t)b[32 + i / 2] >> (4 * (i % 2)) & 15u;
    const float a = d * (float)(int32_t)(2 * (scales >> (3 * (i / 2 % 4)) & 7u) + 1);
    ctw_block_iq1(ctw_grid_iq1(b[i] | (high & 7u) << 8), a, (high & 8u) != 0, dst);
}

/* ---- whole blocks ------------------------------------------------------------------------- */

CTW_HD_FORCE void ctw_block_IQ2_XXS(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b);
    CTW_ROLLED
    for (int i = 0; i < 32; i += 4)
        ctw_some_IQ2_XXS(b, d, i, 32, dst + 8 * i);
}

CTW_HD_FORCE void ctw_block_IQ2_XS(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b);
    CTW_ROLLED
    for (int i = 0; i < 32; i++)
        ctw_eight_IQ2_XS(b, d, i, dst + 8 * i);
}

CTW_HD_FORCE void ctw_block_IQ2_S(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b);
    CTW_ROLLED
    for (int i = 0; i < 32; i++)
        ctw_eight_IQ2_S(b, d, i, dst + 8 * i);
}

CTW_HD_FORCE void ctw_block_IQ3_XXS(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b);
    CTW_ROLLED
    for (int i = 0; i < 32; i += 4)
        ctw_some_IQ3_XXS(b, d, i, 32, dst + 8 * i);
}

CTW_HD_FORCE void ctw_block_IQ3_S(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b);
    CTW_ROLLED
    for (int i = 0; i < 32; i++)
        ctw_eight_IQ3_S(b, d, i, dst + 8 * i);
}

CTW_HD_FORCE void ctw_block_IQ1_S(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b);
    CTW_ROLLED
    for (int i = 0; i < 32; i += 4)
        ctw_some_IQ1_S(b, d, i, 32, dst + 8 * i);
}

CTW_HD_FORCE void ctw_block_IQ1_M(const uint8_t *b, float *dst)
{
    const float d = ctw_block_iq1_m_factor(b);
    CTW_ROLLED
    for (int i = 0; i < 32; i++)
        ctw_eight_IQ1_M(b, d, i, dst + 8 * i);
}

#endif
