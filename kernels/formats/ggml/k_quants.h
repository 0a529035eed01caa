/*
 * Q2_K to Q6_K and IQ4_XS: blocks of 256 values whose groups have scales of few bits, which one or
 * two fp16 factors scale in turn.
 */
#ifndef CTW_KERNELS_FORMATS_GGML_K_QUANTS_H
#define CTW_KERNELS_FORMATS_GGML_K_QUANTS_H

#include "kernels/formats/ggml/legacy.h"

/* Four scales, as bytes of a word. */
CTW_HD_FORCE float ctw_block_byte(const uint32_t *words, int i)
{
    return (float)(int32_t)(words[i / 4] >> (8 * (i % 4)) & 255u);
}

CTW_HD_FORCE void ctw_block_Q2_K(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b + 80), m = ctw_block_f16(b + 82);
    CTW_ROLLED
    for (int g = 0; g < 16; g++) {
        const float a = d * (float)(b[g] & 15), min = m * (float)(b[g] >> 4);
        const uint8_t *src = b + 16 + g / 8 * 32 + g % 2 * 16;
        for (int i = 0; i < 16; i += 8) {
            struct ctw_lanes v;
            ctw_lanes_codes(&v, src + i, g % 8 / 2 * 2, 3);
            ctw_lanes_scale_add(&v, a, -min, dst + 16 * g + i);
        }
    }
}

/* A code is 2 bits less 4, or without the 4 if its bit of the mask is set. */
CTW_HD_FORCE void ctw_block_Q3_K(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b + 108);
    const uint32_t c0 = ctw_load_u32(b + 96), c1 = ctw_load_u32(b + 100),
                   high = ctw_load_u32(b + 104);
    const uint32_t scales[4] = {(c0 & 0x0f0f0f0fu) | (high & 0x03030303u) << 4,
                                (c1 & 0x0f0f0f0fu) | (high >> 2 & 0x03030303u) << 4,
                                (c0 >> 4 & 0x0f0f0f0fu) | (high >> 4 & 0x03030303u) << 4,
                                (c1 >> 4 & 0x0f0f0f0fu) | (high >> 6 & 0x03030303u) << 4};
    CTW_ROLLED
    for (int g = 0; g < 16; g++) {
        const float a = d * (ctw_block_byte(scales, g) - 32.0f);
        const uint8_t *src = b + 32 + g / 8 * 32 + g % 2 * 16;
        for (int i = 0; i < 16; i += 8) {
            struct ctw_lanes v;
            ctw_lanes_codes(&v, src + i, g % 8 / 2 * 2, 3);
            ctw_lanes_add_codes(&v, b + g % 2 * 16 + i, g / 2, 1, 2);
            ctw_lanes_affine(&v, 1, -4);
            ctw_lanes_scale(&v, a, dst + 16 * g + i);
        }
    }
}

/* The eight scales of 6 bits and the eight minima of 6 bits in 12 bytes, as bytes. */
CTW_HD_FORCE void ctw_block_k_scales(const uint8_t *p, uint32_t scales[2], uint32_t mins[2])
{
    const uint32_t c0 = ctw_load_u32(p), c1 = ctw_load_u32(p + 4), c2 = ctw_load_u32(p + 8);
    scales[0] = c0 & 0x3f3f3f3fu;
    scales[1] = (c2 & 0x0f0f0f0fu) | (c0 >> 2 & 0x30303030u);
    mins[0] = c1 & 0x3f3f3f3fu;
    mins[1] = (c2 >> 4 & 0x0f0f0f0fu) | (c1 >> 2 & 0x30303030u);
}

/* Q4_K, and Q5_K, whose codes' fifth bits are at `fifth` (NULL: none). */
CTW_HD_FORCE void ctw_block_k45(const uint8_t *b, const uint8_t *fifth, const uint8_t *codes,
                                float *dst)
{
    const float d = ctw_block_f16(b), m = ctw_block_f16(b + 2);
    uint32_t scales[2], mins[2];
    ctw_block_k_scales(b + 4, scales, mins);
    CTW_ROLLED
    for (int g = 0; g < 8; g++) {
        const float a = d * ctw_block_byte(scales, g), min = m * ctw_block_byte(mins, g);
        for (int i = 0; i < 32; i += 8) {
            struct ctw_lanes v;
            ctw_lanes_codes(&v, codes + g / 2 * 32 + i, g % 2 * 4, 15);
            if (fifth != NULL)
                ctw_lanes_add_codes(&v, fifth + i, g, 1, 4);
            ctw_lanes_scale_add(&v, a, -min, dst + 32 * g + i);
        }
    }
}

CTW_HD_FORCE void ctw_block_Q4_K(const uint8_t *b, float *dst)
{
    ctw_block_k45(b, NULL, b + 16, dst);
}

CTW_HD_FORCE void ctw_block_Q5_K(const uint8_t *b, float *dst)
{
    ctw_block_k45(b, b + 16, b + 48, dst);
}

CTW_HD_FORCE void ctw_block_Q6_K(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b + 208);
    CTW_ROLLED
    for (int g = 0; g < 16; g++) {
        const float a = d * (float)(int8_t)b[192 + g];
        const int j = g % 8 / 2; /* which 32 of 128 values */
        const uint8_t *low = b + g / 8 * 64 + j % 2 * 32 + g % 2 * 16;
        const uint8_t *high = b + 128 + g / 8 * 32 + g % 2 * 16;
        for (int i = 0; i < 16; i += 8) {
            struct ctw_lanes v;
            ctw_lanes_codes(&v, low + i, j / 2 * 4, 15);
            ctw_lanes_add_codes(&v, high + i, j * 2, 3, 4);
            ctw_lanes_affine(&v, 1, -32);
            ctw_lanes_scale(&v, a, dst + 16 * g + i);
        }
    }
}

CTW_HD_FORCE void ctw_block_IQ4_XS(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b);
    const uint32_t high = ctw_load_u16(b + 2), low = ctw_load_u32(b + 4);
    CTW_ROLLED
    for (int g = 0; g < 8; g++) {
        const uint32_t scale = (low >> (4 * g) & 15u) | (high >> (2 * g) & 3u) << 4;
        const float a = d * (float)((int32_t)scale - 32);
        for (int i = 0; i < 32; i += 8) {
            struct ctw_lanes v;
            ctw_block_nibbles(&v, b + 8 + 16 * g, i);
            ctw_lanes_iq4(&v);
            ctw_lanes_scale(&v, a, dst + 32 * g + i);
        }
    }
}

#endif
