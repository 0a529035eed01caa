/*
 * Part of decode_pack.cu and decode_bytes.cu: codes of weights as numbers of the scales' own 16-bit
 * type T. pack_fast and bytes_fast compute in T, two columns at a time: codes minus zero points are
 * integers of at most +-255, which either type holds exactly. Their product with a scale is rounded
 * once, as in the format (whose product is exact in fp32, or infinite if it is infinite in T too,
 * and is then rounded to T).
 */
#ifndef CTW_KERNELS_CUDA_DECODE_PACK_CUH
#define CTW_KERNELS_CUDA_DECODE_PACK_CUH

#include "kernels/cuda/decode/decode.cuh"

/* ---- groups and blocks --------------------------------------------------------------------- */

/* A unit's group is unit * per_unit >> 31, a row's row of scales row * per_row >> 31. */
struct groups {
    uint32_t per_unit, per_row;
};

static __device__ __forceinline__ uint32_t group_of(uint32_t i, uint32_t per)
{
    return (uint32_t)((uint64_t)i * per >> 31);
}

/* False: not by a product. i * d / d is i for all i below n if n * d is below 2^31. */
static inline bool divided_by(uint64_t n, uint64_t d, uint32_t *per)
{
    *per = (uint32_t)((((uint64_t)1 << 31) + d - 1) / d);
    return d == 1 || n * d < (uint64_t)1 << 31;
}

/* ---- codes -------------------------------------------------------------------------------- */

/* bits & mask | more in one instruction: for two constants the compiler emits two. */
static __device__ __forceinline__ uint32_t masked(uint32_t bits, uint32_t mask, uint32_t more)
{
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(bits), "r"(mask), "r"(more));
    return v;
}

/* The bit at which code i of a stream begins. whole: no code crosses a word boundary. */
template <int BITS> static __device__ __forceinline__ uint32_t code_bit(uint32_t i, bool whole)
{
    if (32 % BITS != 0 && whole)
        return i / (32 / BITS) * 32 + i % (32 / BITS) * BITS;
    return i * BITS;
}

/* The words of a row that hold a unit of 8 codes: first .. last; its first code begins at bit
 * `skip`. */
struct unit_words {
    uint32_t first, last, skip;
};

template <int BITS>
static __device__ __forceinline__ struct unit_words words_of(uint32_t unit, bool whole)
{
    uint32_t bit = code_bit<BITS>(unit * 8, whole);
    struct unit_words at = {bit / 32, (code_bit<BITS>(unit * 8 + 7, whole) + BITS - 1) / 32, bit % 32};
    return at;
}

/* The maximum number of these words. */
template <int BITS> constexpr int WORDS = 32 % BITS == 0 ? (BITS + 3) / 4 : BITS < 6 ? 2 : 3;

/* The unit's codes, contiguous from bit 0 on, from words that have USED bits each. */
template <int USED, int N>
static __device__ __forceinline__ uint64_t joined(const uint32_t (&word)[N], uint32_t skip)
{
    constexpr uint32_t MASK = 0xffffffffu >> (32 - USED);
    uint64_t v = ((uint64_t)(word[1] & MASK) << USED | (word[0] & MASK)) >> skip;
    if constexpr (N > 2) /* in two steps: the shift may be 64 */
        v |= (uint64_t)word[2] << (2 * USED - 1 - skip) << 1;
    return v;
}

/* The same for codes that together take at most 32 bits. */
template <int BITS>
static __device__ __forceinline__ uint32_t joined_low(const uint32_t (&word)[WORDS<BITS>],
                                                      const struct unit_words &at, bool whole)
{
    if constexpr (WORDS<BITS> == 1) {
        return word[0] >> at.skip;
    } else {
        uint32_t unused = whole ? 32 % BITS : 0;
        return __funnelshift_r(word[0] << unused, word[1], at.skip + unused);
    }
}

/* ---- pairs: a word has two numbers of type T, the first in its lower half ------------------- */

template <typename T> struct pair_type {
    typedef __nv_bfloat162 type;
};
template <> struct pair_type<__half> {
    typedef __half2 type;
};

template <typename T> static __device__ __forceinline__ typename pair_type<T>::type as_pair(uint32_t word)
{
    typename pair_type<T>::type p;
    memcpy(&p, &word, 4);
    return p;
}

template <typename P> static __device__ __forceinline__ uint32_t as_word(P pair)
{
    uint32_t word;
    memcpy(&word, &pair, 4);
    return word;
}

template <typename T> static __device__ __forceinline__ uint32_t pair_times(uint32_t a, uint32_t b)
{
    return as_word(__hmul2_rn(as_pair<T>(a), as_pair<T>(b)));
}

/* From two words: their lower halves; their upper halves. */
static __device__ __forceinline__ uint32_t lower(uint32_t a, uint32_t b)
{
    return __byte_perm(a, b, 0x5410);
}

static __device__ __forceinline__ uint32_t upper(uint32_t a, uint32_t b)
{
    return __byte_perm(a, b, 0x7632);
}

/* A number's bits in T. */
template <typename T> static __device__ __forceinline__ uint32_t bits_of(T v)
{
    uint16_t bits;
    memcpy(&bits, &v, 2);
    return bits;
}

template <typename T> constexpr uint32_t LARGE = 0x43004300; /* 128, whose last bit is worth 1 */
template <> constexpr uint32_t LARGE<__half> = 0x64006400;   /* 1024, whose last bit is worth 1 */

/* Integers below 128 as numbers; each is in a half's last bits, the other bits are LARGE's. */
template <typename T> static __device__ __forceinline__ uint32_t pair_of_integers(uint32_t with_large)
{
    return as_word(__hsub2_rn(as_pair<T>(with_large), as_pair<T>(LARGE<T>)));
}

/* Integers below 512, one per half. */
template <typename T> static __device__ __forceinline__ uint32_t pair_of_long_integers(uint32_t two)
{
    constexpr uint32_t SIXTEEN = ctw_cuda_same_type<T, __nv_bfloat16> ? 0x41804180 : 0x4c004c00;
    uint32_t low = pair_of_integers<T>(masked(two, 0x000f000f, LARGE<T>));
    uint32_t high = pair_of_integers<T>(masked(two >> 4, 0x001f001f, LARGE<T>));
    return as_word(__hfma2(as_pair<T>(high), as_pair<T>(SIXTEEN), as_pair<T>(low)));
}

template <typename T> static __device__ __forceinline__ uint32_t integer_bits(int32_t i)
{
    T v;
    ctw_cuda_narrow((float)i, &v);
    return bits_of(v);
}

/* (code - zero) * scale */
template <typename T>
static __device__ __forceinline__ uint32_t pair_value(uint32_t code, uint32_t zero, uint32_t scale)
{
    return pair_times<T>(as_word(__hsub2_rn(as_pair<T>(code), as_pair<T>(zero))), scale);
}

/* ---- codes in pairs: in halves; codes of less than 8 bits together with LARGE's bits -------- */

/* Codes as numbers. */
template <int BITS, typename T> static __device__ __forceinline__ uint32_t pair_number(uint32_t code)
{
    return BITS < 8 ? pair_of_integers<T>(code) : pair_of_long_integers<T>(code);
}

/* The codes of a unit's columns. */
template <int BITS, typename T>
static __device__ __forceinline__ void code_pairs(const uint32_t (&word)[WORDS<BITS>],
                                                  const struct unit_words &at, bool whole,
                                                  uint32_t (&pair)[4])
{
    constexpr uint32_t MASK = (1u << BITS) - 1u;
    if constexpr (BITS == 4) {
        uint32_t far[4]; /* columns i and i + 4 */
#pragma unroll
        for (int i = 0; i < 4; i++)
            far[i] = masked(word[0] >> (4 * i), MASK * 0x10001, LARGE<T>);
        pair[0] = lower(far[0], far[1]);
        pair[1] = lower(far[2], far[3]);
        pair[2] = upper(far[0], far[1]);
        pair[3] = upper(far[2], far[3]);
    } else if constexpr (BITS == 8) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            pair[i] = __byte_perm(word[i / 2], 0, i % 2 == 0 ? 0x4140 : 0x4342);
    } else if constexpr (BITS < 4) {
        uint32_t v = joined_low<BITS>(word, at, whole);
        /* v in the lower half, v from its second code on in the upper */
        uint32_t both = __byte_perm(v, v << (16 - BITS), 0x7610);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int first = 2 * i * BITS, second = first + BITS;
            pair[i] = second <= 16 ? masked(both >> first, MASK * 0x10001, LARGE<T>)
                                   : masked(v >> (second - 16), MASK << 16,
                                            masked(v >> first, MASK, LARGE<T>));
        }
    } else {
        uint64_t v = whole ? joined<32 / BITS * BITS>(word, at.skip) : joined<32>(word, at.skip);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t two = (uint32_t)(v >> (2 * i * BITS));
            pair[i] = masked(two << (16 - BITS), MASK << 16, masked(two, MASK, LARGE<T>));
        }
    }
}

#endif
