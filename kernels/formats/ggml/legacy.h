/*
 * Blocks without a block of blocks: Q4_0 to Q8_0, IQ4_NL, MXFP4, NVFP4, and the ternary types. Each
 * function writes the values of one block, as ggml computes them in fp32: products are exact, so
 * only the last addition of types with a minimum rounds.
 */
#ifndef CTW_KERNELS_FORMATS_GGML_LEGACY_H
#define CTW_KERNELS_FORMATS_GGML_LEGACY_H

#include "kernels/formats/ggml/lanes.h"

CTW_HD_FORCE float ctw_block_f16(const uint8_t *p)
{
    return ctw_widen_f16(ctw_load_u16(p));
}

/* Eight of a block's 32 codes, from element i on: the low nibbles of 16 bytes, then the high. */
CTW_HD_FORCE void ctw_block_nibbles(struct ctw_lanes *to, const uint8_t *nibbles, int i)
{
    ctw_lanes_codes(to, nibbles + i % 16, i < 16 ? 0 : 4, 15);
}

CTW_HD_FORCE void ctw_block_Q4_0(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b);
    for (int i = 0; i < 32; i += 8) {
        struct ctw_lanes v;
        ctw_block_nibbles(&v, b + 2, i);
        ctw_lanes_affine(&v, 1, -8);
        ctw_lanes_scale(&v, d, dst + i);
    }
}

CTW_HD_FORCE void ctw_block_Q4_1(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b), m = ctw_block_f16(b + 2);
    for (int i = 0; i < 32; i += 8) {
        struct ctw_lanes v;
        ctw_block_nibbles(&v, b + 4, i);
        ctw_lanes_scale_add(&v, d, m, dst + i);
    }
}

CTW_HD_FORCE void ctw_block_Q5_0(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b);
    const uint32_t fifth = ctw_load_u32(b + 2);
    for (int i = 0; i < 32; i += 8) {
        struct ctw_lanes v;
        ctw_block_nibbles(&v, b + 6, i);
        ctw_lanes_add_bits(&v, fifth >> i, 4);
        ctw_lanes_affine(&v, 1, -16);
        ctw_lanes_scale(&v, d, dst + i);
    }
}

CTW_HD_FORCE void ctw_block_Q5_1(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b), m = ctw_block_f16(b + 2);
    const uint32_t fifth = ctw_load_u32(b + 4);
    for (int i = 0; i < 32; i += 8) {
        struct ctw_lanes v;
        ctw_block_nibbles(&v, b + 8, i);
        ctw_lanes_add_bits(&v, fifth >> i, 4);
        ctw_lanes_scale_add(&v, d, m, dst + i);
    }
}

CTW_HD_FORCE void ctw_block_Q8_0(const uint8_t *b, float *dst)
{
    ctw_byte_run(b + 2, 32, CTW_BYTE_INT8, 0, ctw_block_f16(b), CTW_F32, dst);
}

CTW_HD_FORCE void ctw_block_IQ4_NL(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b);
    for (int i = 0; i < 32; i += 8) {
        struct ctw_lanes v;
        ctw_block_nibbles(&v, b + 2, i);
        ctw_lanes_iq4(&v);
        ctw_lanes_scale(&v, d, dst + i);
    }
}

/* The scale is half of E8M0's, because the codes' values are twice E2M1's. Code 255 is a number. */
CTW_HD_FORCE void ctw_block_MXFP4(const uint8_t *b, float *dst)
{
    const uint32_t e = b[0];
    const float d = ctw_bits_to_f32(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    for (int i = 0; i < 32; i += 8) {
        struct ctw_lanes v;
        ctw_block_nibbles(&v, b + 1, i);
        ctw_lanes_e2m1(&v);
        ctw_lanes_scale(&v, d, dst + i);
    }
}

/* Half of an E4M3 scale without sign: 7 bits, of which the last code is 0. Bit 7 is not used, and
 * only code 0x7f, not 0xff, is 0. */
CTW_HD_FORCE float ctw_block_ue4m3(uint32_t code)
{
    float half = ctw_bits_to_f32((code & 0x7fu) << 20) * 0x1p119f;
    return code == 0x7fu ? 0.0f : half;
}

/* Four groups of 16; a group's low nibbles are its first eight values. */
CTW_HD_FORCE void ctw_block_NVFP4(const uint8_t *b, float *dst)
{
    for (int i = 0; i < 64; i += 8) {
        struct ctw_lanes v;
        ctw_lanes_codes(&v, b + 4 + i / 16 * 8, i % 16 < 8 ? 0 : 4, 15);
        ctw_lanes_e2m1(&v);
        ctw_lanes_scale(&v, ctw_block_ue4m3(b[i / 16]), dst + i);
    }
}

/* n bytes of five digits in base 3 each: the bytes' first digits, then their second ones, .. */
CTW_HD_FORCE void ctw_block_trits(const uint8_t *src, int n, float d, float *dst)
{
    uint32_t power = 1;
    CTW_ROLLED
    for (int digit = 0; digit < 5; digit++, power *= 3)
        for (int i = 0; i < n; i += 8) {
            struct ctw_lanes v;
            ctw_lanes_trits(&v, src + i, power);
            ctw_lanes_affine(&v, 1, -1);
            ctw_lanes_scale(&v, d, dst + digit * n + i);
        }
}

CTW_HD_FORCE void ctw_block_TQ1_0(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b + 52);
    ctw_block_trits(b, 32, d, dst);
    ctw_block_trits(b + 32, 16, d, dst + 160);
    uint32_t power = 1;
    for (int digit = 0; digit < 4; digit++, power *= 3)
        for (int i = 0; i < 4; i++) {
            uint32_t trit = (b[48 + i] * power & 255u) * 3u >> 8;
            dst[240 + 4 * digit + i] = d * (float)((int32_t)trit - 1);
        }
}

CTW_HD_FORCE void ctw_block_TQ2_0(const uint8_t *b, float *dst)
{
    const float d = ctw_block_f16(b + 64);
    CTW_ROLLED
    for (int i = 0; i < 256; i += 8) {
        struct ctw_lanes v;
        ctw_lanes_codes(&v, b + i / 128 * 32 + i % 32, i % 128 / 32 * 2, 3);
        ctw_lanes_affine(&v, 1, -1);
        ctw_lanes_scale(&v, d, dst + i);
    }
}

#endif
