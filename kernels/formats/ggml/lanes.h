/*
 * Eight neighbouring values of a block: their codes as integers, and the values that scales make of
 * them. One set of functions over vectors and one over arrays, so that each type of block is
 * written once.
 */
#ifndef CTW_KERNELS_FORMATS_GGML_LANES_H
#define CTW_KERNELS_FORMATS_GGML_LANES_H

#include "kernels/formats/bytes.h"
#include "kernels/formats/convert.h"

#if CTW_VECTOR && (defined(__AVX2__) || !defined(__x86_64__)) /* SSE2 has no per-lane shifts */
#define CTW_LANES_VECTOR 1
#else
#define CTW_LANES_VECTOR 0
#endif

struct ctw_lanes {
#if CTW_LANES_VECTOR
    ctw_i32x8 q;
#else
    int32_t q[8];
#endif
};

/* The values of IQ4's codes, as bytes of four words. */
#define CTW_IQ4_WORD_0 0xbfad9881u /* -127, -104, -83, -65 */
#define CTW_IQ4_WORD_1 0xf6eaddcfu /* -49, -35, -22, -10 */
#define CTW_IQ4_WORD_2 0x26190d01u /* 1, 13, 25, 38 */
#define CTW_IQ4_WORD_3 0x71594535u /* 53, 69, 89, 113 */

/* The magnitudes of E2M1's codes times 2, as nibbles. */
#define CTW_E2M1_TWICE 0xc8643210u

/* The eight bits of a byte with seven bits of signs: the last makes their number even. */
CTW_HD_FORCE uint32_t ctw_lanes_even(uint32_t seven)
{
    uint32_t odd = seven ^ seven >> 4;
    return seven | (0x6996u >> (odd & 15u) & 1u) << 7;
}

#if CTW_LANES_VECTOR

#define CTW_LANE_NUMBERS ((ctw_u32x8){0, 1, 2, 3, 4, 5, 6, 7})

/* q = src[lane] >> shift & mask */
CTW_HD_FORCE void ctw_lanes_codes(struct ctw_lanes *to, const uint8_t *src, int shift,
                                  uint32_t mask)
{
    ctw_u32x8 byte;
    ctw_byte_spread8(src, &byte);
    to->q = (ctw_i32x8)(byte >> (24 + shift) & mask);
}

/* q |= (src[lane] >> shift & mask) << place */
CTW_HD_FORCE void ctw_lanes_add_codes(struct ctw_lanes *to, const uint8_t *src, int shift,
                                      uint32_t mask, int place)
{
    ctw_u32x8 byte;
    ctw_byte_spread8(src, &byte);
    to->q |= (ctw_i32x8)((byte >> (24 + shift) & mask) << place);
}

/* q |= bit `lane` of bits << place */
CTW_HD_FORCE void ctw_lanes_add_bits(struct ctw_lanes *to, uint32_t bits, int place)
{
    ctw_u32x8 all = bits - (ctw_u32x8){0};
    to->q |= (ctw_i32x8)((all >> CTW_LANE_NUMBERS & 1u) << place);
}

/* q = bits 2 * lane, 2 * lane + 1 of a word */
CTW_HD_FORCE void ctw_lanes_pairs(struct ctw_lanes *to, uint32_t word)
{
    ctw_u32x8 all = word - (ctw_u32x8){0};
    to->q = (ctw_i32x8)(all >> (2 * CTW_LANE_NUMBERS) & 3u);
}

/* q = nibble `lane` of a word */
CTW_HD_FORCE void ctw_lanes_nibbles(struct ctw_lanes *to, uint32_t word)
{
    ctw_u32x8 all = word - (ctw_u32x8){0};
    to->q = (ctw_i32x8)(all >> (4 * CTW_LANE_NUMBERS) & 15u);
}

/* q = q * factor + term */
CTW_HD_FORCE void ctw_lanes_affine(struct ctw_lanes *to, int32_t factor, int32_t term)
{
    to->q = to->q * factor + term;
}

/* q += 1 where q is `value` */
CTW_HD_FORCE void ctw_lanes_step(struct ctw_lanes *to, int32_t value, int32_t step)
{
    to->q += step & (to->q == value);
}

/* q = digit `power` (a factor, 3^power) of src[lane], a fraction of 256 in base 3 */
CTW_HD_FORCE void ctw_lanes_trits(struct ctw_lanes *to, const uint8_t *src, uint32_t power)
{
    ctw_u32x8 byte;
    ctw_byte_spread8(src, &byte);
    to->q = (ctw_i32x8)(((byte >> 24) * power & 255u) * 3u >> 8);
}

/* q = the value of IQ4's code q */
CTW_HD_FORCE void ctw_lanes_iq4(struct ctw_lanes *to)
{
    ctw_u32x8 q = (ctw_u32x8)to->q;
    ctw_u32x8 odd = (ctw_u32x8)((ctw_i32x8)(q << 29) >> 31); /* bit 2: words 1 and 3 */
    ctw_u32x8 high = (ctw_u32x8)((ctw_i32x8)(q << 28) >> 31);
    ctw_u32x8 low = CTW_IQ4_WORD_0 ^ (odd & (CTW_IQ4_WORD_0 ^ CTW_IQ4_WORD_1));
    ctw_u32x8 up = CTW_IQ4_WORD_2 ^ (odd & (CTW_IQ4_WORD_2 ^ CTW_IQ4_WORD_3));
    ctw_u32x8 word = low ^ (high & (low ^ up));
    to->q = (ctw_i32x8)(word << (24u - (q << 3 & 24u))) >> 24;
}

/* q = twice the value of E2M1's code q; there is no minus zero */
CTW_HD_FORCE void ctw_lanes_e2m1(struct ctw_lanes *to)
{
    ctw_u32x8 q = (ctw_u32x8)to->q;
    ctw_i32x8 twice = (ctw_i32x8)(CTW_E2M1_TWICE >> (q << 2 & 28u) & 15u);
    ctw_i32x8 minus = (ctw_i32x8)(q << 28) >> 31;
    to->q = (twice ^ minus) - minus;
}

/* dst[lane] = a * q */
CTW_HD_FORCE void ctw_lanes_scale(const struct ctw_lanes *from, float a, float *dst)
{
    ctw_f32x8 v = __builtin_convertvector(from->q, ctw_f32x8) * a;
    memcpy(dst, &v, sizeof(v));
}

/* dst[lane] = a * q + m */
CTW_HD_FORCE void ctw_lanes_scale_add(const struct ctw_lanes *from, float a, float m, float *dst)
{
    ctw_f32x8 v = __builtin_convertvector(from->q, ctw_f32x8) * a + m;
    memcpy(dst, &v, sizeof(v));
}

/* dst[lane] = a * q, negative where the bit of signs is set */
CTW_HD_FORCE void ctw_lanes_scale_signs(const struct ctw_lanes *from, float a, uint32_t signs,
                                        float *dst)
{
    ctw_u32x8 all = signs - (ctw_u32x8){0};
    ctw_f32x8 v = __builtin_convertvector(from->q, ctw_f32x8) * a;
    v = (ctw_f32x8)((ctw_u32x8)v ^ (all >> CTW_LANE_NUMBERS << 31));
    memcpy(dst, &v, sizeof(v));
}

#else

CTW_HD_FORCE void ctw_lanes_codes(struct ctw_lanes *to, const uint8_t *src, int shift,
                                  uint32_t mask)
{
    for (int i = 0; i < 8; i++)
        to->q[i] = (int32_t)((uint32_t)src[i] >> shift & mask);
}

CTW_HD_FORCE void ctw_lanes_add_codes(struct ctw_lanes *to, const uint8_t *src, int shift,
                                      uint32_t mask, int place)
{
    for (int i = 0; i < 8; i++)
        to->q[i] |= (int32_t)(((uint32_t)src[i] >> shift & mask) << place);
}

CTW_HD_FORCE void ctw_lanes_add_bits(struct ctw_lanes *to, uint32_t bits, int place)
{
    for (int i = 0; i < 8; i++)
        to->q[i] |= (int32_t)((bits >> i & 1u) << place);
}

CTW_HD_FORCE void ctw_lanes_pairs(struct ctw_lanes *to, uint32_t word)
{
    for (int i = 0; i < 8; i++)
        to->q[i] = (int32_t)(word >> (2 * i) & 3u);
}

CTW_HD_FORCE void ctw_lanes_nibbles(struct ctw_lanes *to, uint32_t word)
{
    for (int i = 0; i < 8; i++)
        to->q[i] = (int32_t)(word >> (4 * i) & 15u);
}

CTW_HD_FORCE void ctw_lanes_affine(struct ctw_lanes *to, int32_t factor, int32_t term)
{
    for (int i = 0; i < 8; i++)
        to->q[i] = to->q[i] * factor + term;
}

CTW_HD_FORCE void ctw_lanes_step(struct ctw_lanes *to, int32_t value, int32_t step)
{
    for (int i = 0; i < 8; i++)
        to->q[i] += to->q[i] == value ? step : 0;
}

CTW_HD_FORCE void ctw_lanes_trits(struct ctw_lanes *to, const uint8_t *src, uint32_t power)
{
    for (int i = 0; i < 8; i++)
        to->q[i] = (int32_t)((src[i] * power & 255u) * 3u >> 8);
}

CTW_HD_FORCE void ctw_lanes_iq4(struct ctw_lanes *to)
{
    for (int i = 0; i < 8; i++) {
        uint32_t q = (uint32_t)to->q[i];
        uint32_t low = (q & 4u) != 0 ? CTW_IQ4_WORD_1 : CTW_IQ4_WORD_0;
        uint32_t up = (q & 4u) != 0 ? CTW_IQ4_WORD_3 : CTW_IQ4_WORD_2;
        uint32_t word = (q & 8u) != 0 ? up : low;
        to->q[i] = (int8_t)(uint8_t)(word >> (8u * (q & 3u)));
    }
}

CTW_HD_FORCE void ctw_lanes_e2m1(struct ctw_lanes *to)
{
    for (int i = 0; i < 8; i++) {
        uint32_t q = (uint32_t)to->q[i];
        int32_t twice = (int32_t)(CTW_E2M1_TWICE >> (4u * (q & 7u)) & 15u);
        to->q[i] = (q & 8u) != 0 ? -twice : twice;
    }
}

CTW_HD_FORCE void ctw_lanes_scale(const struct ctw_lanes *from, float a, float *dst)
{
    for (int i = 0; i < 8; i++)
        dst[i] = (float)from->q[i] * a;
}

CTW_HD_FORCE void ctw_lanes_scale_add(const struct ctw_lanes *from, float a, float m, float *dst)
{
    for (int i = 0; i < 8; i++)
        dst[i] = (float)from->q[i] * a + m;
}

CTW_HD_FORCE void ctw_lanes_scale_signs(const struct ctw_lanes *from, float a, uint32_t signs,
                                        float *dst)
{
    for (int i = 0; i < 8; i++)
        dst[i] = ctw_bits_to_f32(ctw_f32_to_bits((float)from->q[i] * a) ^ (signs >> i & 1u) << 31);
}

#endif

#endif
