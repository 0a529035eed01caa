/*
 * Part of decode_ggml.cu: eight neighbouring values ("a unit") of each type of GGUF block, with the
 * arithmetic of kernels/formats/ggml, whose layouts these are.
 *
 * A unit is loaded first (`stored`) and computed later, so that loads of several units are in
 * flight together. Codes become floats by being placed in the last bits of 2^23. A product with a
 * scale is exact in fp32, as in the definition, so a fused multiply-add gives the definition's
 * bits.
 */
#ifndef CTW_KERNELS_CUDA_DECODE_GGML_CUH
#define CTW_KERNELS_CUDA_DECODE_GGML_CUH

#include "kernels/cuda/decode/decode.cuh"
#include "kernels/formats/ggml/ggml_types.h"
#include "kernels/formats/ggml/i_quants.h"

/* ---- blocks -------------------------------------------------------------------------------- */

template <uint32_t TYPE> constexpr uint32_t BLOCK_BYTES = 0;
template <uint32_t TYPE> constexpr uint32_t BLOCK_UNITS = 0; /* of eight values */
#define CTW_SIZES(name, id, elements, bytes, bits, group)                                          \
    template <> constexpr uint32_t BLOCK_BYTES<id> = bytes;                                        \
    template <> constexpr uint32_t BLOCK_UNITS<id> = (elements) / 8;
CTW_BLOCK_TYPES(CTW_SIZES)
#undef CTW_SIZES

/* A unit as stored: eight bytes with codes, eight with more bits of them, and up to four words with
 * scales; or the block itself. A type that does not need a field leaves it out of its code. */
struct stored {
    uint2 codes, more;
    uint32_t scale[4];
    const uint8_t *block;
};

/* ---- loads --------------------------------------------------------------------------------- */

/* The eight bytes at p, a multiple of ALIGN. Of an odd place, the words that have them are loaded:
 * no others, so that nothing behind the weight is read. */
template <int ALIGN> static __device__ __forceinline__ uint2 bytes8(const uint8_t *p)
{
    if constexpr (ALIGN >= 8) {
        return *(const uint2 *)p;
    } else if constexpr (ALIGN == 4) {
        return make_uint2(((const uint32_t *)p)[0], ((const uint32_t *)p)[1]);
    } else {
        const uint32_t odd = (uint32_t)(uintptr_t)p & 3u;
        const uint32_t *words = (const uint32_t *)(p - odd);
        const uint32_t a = words[0], b = words[1], c = words[odd != 0 ? 2 : 1];
        return make_uint2(__funnelshift_r(a, b, 8 * odd), __funnelshift_r(b, c, 8 * odd));
    }
}

static __device__ __forceinline__ uint32_t u16_at(const uint8_t *p)
{
    return *(const uint16_t *)p;
}

static __device__ __forceinline__ uint32_t u32_at(const uint8_t *p)
{
    return *(const uint32_t *)p;
}

/* ---- arithmetic ---------------------------------------------------------------------------- */

/* The fp16 number in a word's lower or upper half. */
static __device__ __forceinline__ float low_half(uint32_t word)
{
    return __half2float(__ushort_as_half((unsigned short)word));
}

static __device__ __forceinline__ float high_half(uint32_t word)
{
    return low_half(word >> 16);
}

/* A small integer, 0 or more, as a float. */
static __device__ __forceinline__ float small(uint32_t i)
{
    return __uint_as_float(0x4b000000u | i) - 0x1p23f;
}

/* Of each of eight bytes: the value less `less`, an integer. */
static __device__ __forceinline__ void numbers(uint2 bytes, float less, float (&q)[8])
{
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        q[i] =
            __uint_as_float(__byte_perm(i < 4 ? bytes.x : bytes.y, 0x4b000000u, 0x7540u | i % 4)) -
            (0x1p23f + less);
}

static __device__ __forceinline__ void scaled(uint2 bytes, float less, float a, float (&v)[8])
{
    numbers(bytes, less, v);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] *= a;
}

/* a * q + m; the product is exact. */
static __device__ __forceinline__ void scaled_add(uint2 bytes, float a, float m, float (&v)[8])
{
    numbers(bytes, 0, v);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = __fmaf_rn(v[i], a, m);
}

/* Of each byte, (byte >> shift) & mask. */
static __device__ __forceinline__ uint2 fields(uint2 v, uint32_t shift, uint32_t mask)
{
    const uint32_t all = mask * 0x01010101u;
    return make_uint2(v.x >> shift & all, v.y >> shift & all);
}

/* codes | bits << place, byte by byte */
static __device__ __forceinline__ uint2 joined_bits(uint2 codes, uint2 bits, int place)
{
    return make_uint2(codes.x | bits.x << place, codes.y | bits.y << place);
}

/* The lowest eight bits of `bits`, one in each byte. */
static __device__ __forceinline__ uint2 spread_bits(uint32_t bits)
{
    /* The factor has copies of a nibble 7 bits apart: bit i of the nibble is bit 8 i of the
     * product. */
    return make_uint2((bits & 15u) * 0x00204081u & 0x01010101u,
                      (bits >> 4 & 15u) * 0x00204081u & 0x01010101u);
}

/* Of each byte below 16, that byte of a table of 16. */
static __device__ __forceinline__ uint32_t looked_up(uint32_t codes, uint32_t t0, uint32_t t1,
                                                     uint32_t t2, uint32_t t3)
{
    const uint32_t four = __byte_perm(codes | codes >> 4, 0, 0x4420); /* nibbles of 16 bits */
    const uint32_t low = __byte_perm(t0, t1, four & 0x7777u),
                   up = __byte_perm(t2, t3, four & 0x7777u);
    return __byte_perm(low, up, 0x3210u | (four & 0x8888u) >> 1);
}

/* The values of IQ4's codes plus 128. */
static __device__ __forceinline__ uint2 iq4_bytes(uint2 codes)
{
    constexpr uint32_t T0 = CTW_IQ4_WORD_0 ^ 0x80808080u, T1 = CTW_IQ4_WORD_1 ^ 0x80808080u,
                       T2 = CTW_IQ4_WORD_2 ^ 0x80808080u, T3 = CTW_IQ4_WORD_3 ^ 0x80808080u;
    return make_uint2(looked_up(codes.x, T0, T1, T2, T3), looked_up(codes.y, T0, T1, T2, T3));
}

/* Twice the values of E2M1's codes, plus 128: 0, 1, 2, 3, 4, 6, 8, 12, and these less than 0. */
static __device__ __forceinline__ uint2 e2m1_bytes(uint2 codes)
{
    constexpr uint32_t T0 = 0x83828180u, T1 = 0x8c888684u, T2 = 0x7d7e7f80u, T3 = 0x74787a7cu;
    return make_uint2(looked_up(codes.x, T0, T1, T2, T3), looked_up(codes.y, T0, T1, T2, T3));
}

/* ---- types --------------------------------------------------------------------------------- */

/*
 * unit_of<TYPE>: load() reads unit u of the block at b, values() computes it. ALIGN: of blocks'
 * addresses, if the weight's own address has it.
 */
template <uint32_t TYPE> struct unit_of;

/* Blocks of 32 values: unit u has the low (u < 2) or high nibbles of eight bytes. */
template <int FACTORS, int AT, int BLOCK_ALIGN> struct unit_of_nibbles {
    static constexpr int ALIGN = BLOCK_ALIGN;
    static __device__ __forceinline__ uint2 nibbles(const uint8_t *b, uint32_t u)
    {
        return bytes8 < AT % ALIGN == 0 ? ALIGN : 2 > (b + AT + u % 2 * 8);
    }
    static __device__ __forceinline__ void load(const uint8_t *b, uint32_t u, struct stored &v)
    {
        v.codes = nibbles(b, u);
        v.scale[0] = FACTORS == 2 ? u32_at(b) : u16_at(b);
    }
    static __device__ __forceinline__ uint2 codes(const struct stored &v, uint32_t u)
    {
        return fields(v.codes, u / 2 * 4, 15);
    }
};

template <> struct unit_of<CTW_BLOCK_Q4_0> : unit_of_nibbles<1, 2, 2> {
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        scaled(codes(in, u), 8, low_half(in.scale[0]), v);
    }
};

template <> struct unit_of<CTW_BLOCK_Q4_1> : unit_of_nibbles<2, 4, 4> {
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        scaled_add(codes(in, u), low_half(in.scale[0]), high_half(in.scale[0]), v);
    }
};

template <> struct unit_of<CTW_BLOCK_IQ4_NL> : unit_of_nibbles<1, 2, 2> {
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        scaled(iq4_bytes(codes(in, u)), 128, low_half(in.scale[0]), v);
    }
};

/* Value i's fifth bit is bit i of a word, of which unit u needs a byte. */
template <> struct unit_of<CTW_BLOCK_Q5_0> : unit_of_nibbles<1, 6, 2> {
    static __device__ __forceinline__ void load(const uint8_t *b, uint32_t u, struct stored &v)
    {
        v.codes = nibbles(b, u);
        v.scale[0] = u16_at(b);
        v.scale[1] = b[2 + u];
    }
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        scaled(joined_bits(codes(in, u), spread_bits(in.scale[1]), 4), 16, low_half(in.scale[0]),
               v);
    }
};

template <> struct unit_of<CTW_BLOCK_Q5_1> : unit_of_nibbles<2, 8, 8> {
    static __device__ __forceinline__ void load(const uint8_t *b, uint32_t u, struct stored &v)
    {
        v.codes = nibbles(b, u);
        v.scale[0] = u32_at(b);
        v.scale[1] = b[4 + u];
    }
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        scaled_add(joined_bits(codes(in, u), spread_bits(in.scale[1]), 4), low_half(in.scale[0]),
                   high_half(in.scale[0]), v);
    }
};

template <> struct unit_of<CTW_BLOCK_Q8_0> {
    static constexpr int ALIGN = 2;
    static __device__ __forceinline__ void load(const uint8_t *b, uint32_t u, struct stored &v)
    {
        v.codes = bytes8<2>(b + 2 + 8 * u);
        v.scale[0] = u16_at(b);
    }
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t, float (&v)[8])
    {
        scaled(make_uint2(in.codes.x ^ 0x80808080u, in.codes.y ^ 0x80808080u), 128,
               low_half(in.scale[0]), v);
    }
};

/* Four groups of 16: the eight low nibbles of eight bytes, then the high ones. */
template <> struct unit_of<CTW_BLOCK_NVFP4> {
    static constexpr int ALIGN = 4;
    static __device__ __forceinline__ void load(const uint8_t *b, uint32_t u, struct stored &v)
    {
        v.codes = bytes8<4>(b + 4 + u / 2 * 8);
        v.scale[0] = b[u / 2];
    }
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        scaled(e2m1_bytes(fields(in.codes, u % 2 * 4, 15)), 128, ctw_block_ue4m3(in.scale[0]), v);
    }
};

template <> struct unit_of<CTW_BLOCK_MXFP4> {
    static constexpr int ALIGN = 1;
    static __device__ __forceinline__ void load(const uint8_t *b, uint32_t u, struct stored &v)
    {
        v.codes = bytes8<1>(b + 1 + u % 2 * 8);
        v.scale[0] = b[0];
    }
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        const uint32_t e = in.scale[0];
        const float d = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        scaled(e2m1_bytes(fields(in.codes, u / 2 * 4, 15)), 128, d, v);
    }
};

/* 16 groups of 16; 32 bytes have the codes of four times 32 values, 2 bits of each. */
template <> struct unit_of<CTW_BLOCK_Q2_K> {
    static constexpr int ALIGN = 4;
    static __device__ __forceinline__ void load(const uint8_t *b, uint32_t u, struct stored &v)
    {
        v.codes = bytes8<4>(b + 16 + u / 16 * 32 + u % 4 * 8);
        v.scale[0] = u32_at(b + 80);
        v.scale[1] = b[u / 2];
    }
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        const float a = low_half(in.scale[0]) * small(in.scale[1] & 15u),
                    min = high_half(in.scale[0]) * small(in.scale[1] >> 4);
        scaled_add(fields(in.codes, u % 16 / 4 * 2, 3), a, -min, v);
    }
};

/* As Q2_K, with a mask of third bits, and scales of 6 bits. */
template <> struct unit_of<CTW_BLOCK_Q3_K> {
    static constexpr int ALIGN = 2;
    static __device__ __forceinline__ void load(const uint8_t *b, uint32_t u, struct stored &v)
    {
        const uint32_t g = u / 2;
        v.codes = bytes8<2>(b + 32 + u / 16 * 32 + u % 4 * 8);
        v.more = bytes8<2>(b + u % 4 * 8);
        v.scale[0] = u16_at(b + 108);
        v.scale[1] = b[96 + g % 8];
        v.scale[2] = b[104 + g % 4];
    }
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        const uint32_t g = u / 2;
        const uint32_t scale = (in.scale[1] >> g / 8 * 4 & 15u) | (in.scale[2] >> g / 4 * 2 & 3u)
                                                                      << 4;
        const float a = low_half(in.scale[0]) * (small(scale) - 32.0f);
        scaled(joined_bits(fields(in.codes, u % 16 / 4 * 2, 3), fields(in.more, u / 4, 1), 2), 4, a,
               v);
    }
};

/* Eight groups of 32: 32 bytes have the low nibbles of a group, and the high ones of the next. */
template <int MORE_AT, int CODES_AT> struct unit_of_k45 {
    static constexpr int ALIGN = 16;
    static __device__ __forceinline__ void load(const uint8_t *b, uint32_t u, struct stored &v)
    {
        const uint4 head = *(const uint4 *)b;
        v.codes = bytes8<8>(b + CODES_AT + u / 8 * 32 + u % 4 * 8);
        if constexpr (MORE_AT != 0)
            v.more = bytes8<8>(b + MORE_AT + u % 4 * 8);
        v.scale[0] = head.x;
        v.scale[1] = head.y;
        v.scale[2] = head.z;
        v.scale[3] = head.w;
    }
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        const uint32_t g = u / 4, shift = g % 4 * 8;
        const uint32_t scale = in.scale[1] >> shift, min = in.scale[2] >> shift,
                       both = in.scale[3] >> shift;
        const uint32_t s = g < 4 ? scale & 63u : (both & 15u) | (scale >> 2 & 48u);
        const uint32_t m = g < 4 ? min & 63u : (both >> 4 & 15u) | (min >> 2 & 48u);
        uint2 codes = fields(in.codes, g % 2 * 4, 15);
        if constexpr (MORE_AT != 0)
            codes = joined_bits(codes, fields(in.more, g, 1), 4);
        scaled_add(codes, low_half(in.scale[0]) * small(s), -(high_half(in.scale[0]) * small(m)),
                   v);
    }
};

template <> struct unit_of<CTW_BLOCK_Q4_K> : unit_of_k45<0, 16> {
};
template <> struct unit_of<CTW_BLOCK_Q5_K> : unit_of_k45<16, 48> {
};

/* 16 groups of 16 with int8 scales; of 128 values, 64 bytes have the low nibbles, 32 the high bits.
 */
template <> struct unit_of<CTW_BLOCK_Q6_K> {
    static constexpr int ALIGN = 2;
    static __device__ __forceinline__ void load(const uint8_t *b, uint32_t u, struct stored &v)
    {
        const uint32_t half = u / 16, j = u % 16 / 4, i = u % 4 * 8;
        v.codes = bytes8<2>(b + half * 64 + j % 2 * 32 + i);
        v.more = bytes8<2>(b + 128 + half * 32 + i);
        v.scale[0] = u16_at(b + 208);
        v.scale[1] = b[192 + u / 2];
    }
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        const uint32_t j = u % 16 / 4;
        const float a = low_half(in.scale[0]) * (small(in.scale[1] ^ 128u) - 128.0f);
        scaled(joined_bits(fields(in.codes, j / 2 * 4, 15), fields(in.more, j * 2, 3), 4), 32, a,
               v);
    }
};

/* Eight groups of 32, with scales of 6 bits. */
template <> struct unit_of<CTW_BLOCK_IQ4_XS> {
    static constexpr int ALIGN = 8;
    static __device__ __forceinline__ void load(const uint8_t *b, uint32_t u, struct stored &v)
    {
        const uint2 head = *(const uint2 *)b;
        v.codes = bytes8<8>(b + 8 + u / 4 * 16 + u % 2 * 8);
        v.scale[0] = head.x;
        v.scale[1] = head.y;
    }
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        const uint32_t g = u / 4;
        const uint32_t scale = (in.scale[1] >> 4 * g & 15u) | (in.scale[0] >> (16 + 2 * g) & 3u)
                                                                  << 4;
        scaled(iq4_bytes(fields(in.codes, u % 4 / 2 * 4, 15)), 128,
               low_half(in.scale[0]) * (small(scale) - 32.0f), v);
    }
};

/* As Q2_K, with one factor, and codes less 1. */
template <> struct unit_of<CTW_BLOCK_TQ2_0> {
    static constexpr int ALIGN = 2;
    static __device__ __forceinline__ void load(const uint8_t *b, uint32_t u, struct stored &v)
    {
        v.codes = bytes8<2>(b + u / 16 * 32 + u % 4 * 8);
        v.scale[0] = u16_at(b + 64);
    }
    static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,
                                                  float (&v)[8])
    {
        scaled(fields(in.codes, u % 16 / 4 * 2, 3), 1, low_half(in.scale[0]), v);
    }
};

/* Types with grids, of which a unit is an entry or two: the definition's functions, whose loads are
 * few. */
#define CTW_GRID_UNIT(name, decode, factor, ...)                                                   \
    template <> struct unit_of<CTW_BLOCK_##name> {                                                 \
        static constexpr int ALIGN = 1;                                                            \
        static __device__ __forceinline__ void load(const uint8_t *b, uint32_t, struct stored &v)  \
        {                                                                                          \
            v.block = b;                                                                           \
        }                                                                                          \
        static __device__ __forceinline__ void values(const struct stored &in, uint32_t u,         \
                                                      float (&v)[8])                               \
        {                                                                                          \
            decode(in.block, factor(in.block), (int)u, __VA_ARGS__);                               \
        }                                                                                          \
    }
CTW_GRID_UNIT(IQ2_XXS, ctw_some_IQ2_XXS, ctw_block_f16, 8, v);
CTW_GRID_UNIT(IQ2_XS, ctw_eight_IQ2_XS, ctw_block_f16, v);
CTW_GRID_UNIT(IQ2_S, ctw_eight_IQ2_S, ctw_block_f16, v);
CTW_GRID_UNIT(IQ3_XXS, ctw_some_IQ3_XXS, ctw_block_f16, 8, v);
CTW_GRID_UNIT(IQ3_S, ctw_eight_IQ3_S, ctw_block_f16, v);
CTW_GRID_UNIT(IQ1_S, ctw_some_IQ1_S, ctw_block_f16, 8, v);
CTW_GRID_UNIT(IQ1_M, ctw_eight_IQ1_M, ctw_block_iq1_m_factor, v);
#undef CTW_GRID_UNIT

#endif
