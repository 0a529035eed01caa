/*
 * Of decode_indexed.cu: a block's tables, in shared memory, of its rows' scales and zero points by group,
 * from which a column takes those of several rows in one load.
 */
#ifndef CTW_KERNELS_CUDA_DECODE_TABLE_CUH
#define CTW_KERNELS_CUDA_DECODE_TABLE_CUH

#include "kernels/cuda/decode_pack.cuh"

enum { QUAD = 4, QUADS = 2, BLOCK_ROWS = QUADS * QUAD, BLOCK_THREADS = 256 };
static_assert(BLOCK_ROWS == 8, "as many zero points are a unit of codes");
static_assert(MAX_BLOCK_ROWS % BLOCK_ROWS == 0, "for plane_at()");

/* A weight has no zero points; or has them packed as codes are, down a column; or one byte each. */
enum zeros { NO_ZEROS, PACKED_ZEROS, BYTE_ZEROS };

/* Zero points of a group in the table, as codes: 4 bits each, those of both quads in one word; or 8, a
 * quad's in a word. A quad's are, from the lowest bits on, of its rows 0, 2, 1 and 3. */
template <int BITS, enum zeros ZEROS>
constexpr uint32_t ZERO_WORDS = ZEROS == NO_ZEROS ? 0 : BITS == 8 ? QUADS : 1;

/* The tables; scales are two rows' in a word. */
struct tables {
    uint2 *scale;   /* [QUADS][n_groups] */
    uint32_t *zero; /* [ZERO_WORDS][n_groups], after these */
};

/* A group's bytes in them. */
template <int BITS, enum zeros ZEROS>
constexpr size_t GROUP_BYTES = QUADS * sizeof(uint2) + ZERO_WORDS<BITS, ZEROS> * sizeof(uint32_t);

static __device__ __forceinline__ struct tables tables_at(void *memory, const struct source &s)
{
    struct tables t;
    t.scale = (uint2 *)memory;
    t.zero = (uint32_t *)(t.scale + QUADS * (uint32_t)s.w.n_groups);
    return t;
}

/* Our row r0 + i as a row of the weight, one of those that plane_rows() gives; the plane has no numbers. */
static __device__ __forceinline__ uint32_t row_of(const struct plane &p, uint32_t r0, uint32_t i)
{
    return p.row0 + (r0 + i < p.n_rows ? r0 + i : p.n_rows - 1);
}

/* ---- two groups --------------------------------------------------------------------------- */

/* What a thread makes at a time: the places of groups g and g + far. Where PAIRS is true, in what follows,
 * the number of groups is even, far is 1, and rows are aligned so that one load has both. */
struct two_groups {
    uint32_t g, far;
    bool second; /* is there group g + far? */
};

/* Elements g and g + far of a row, one after the other in a word from its lowest bits on. */
template <bool PAIRS, typename E>
static __device__ __forceinline__ uint32_t load_two(const E *row, const struct two_groups &at)
{
    if constexpr (PAIRS && sizeof(E) == 2)
        return *(const uint32_t *)(row + at.g);
    else if constexpr (PAIRS)
        return *(const uint16_t *)(row + at.g);
    else
        return row[at.g] | (at.second ? (uint32_t)row[at.g + at.far] << (8 * sizeof(E)) : 0);
}

/* Of each of N rows from our row r0 on, the elements that load_two() gives. */
template <bool PAIRS, typename E, int N>
static __device__ __forceinline__ void load_rows(const struct plane &p, const struct source &s,
                                                 enum ctw_part_kind part, uint32_t r0,
                                                 const struct two_groups &at, uint32_t (&two)[N])
{
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
        two[i] = load_two<PAIRS>((const E *)s.data.part[part] +
                                     (uint64_t)row_of(p, r0, i) * (uint32_t)s.w.scale_stride,
                                 at);
}

/* Packed zero points of either group: the words of the unit of codes that goes down its column. */
template <int BITS>
static __device__ __forceinline__ void load_packed(const struct source &s, const struct unit_words &unit,
                                                   const struct two_groups &at,
                                                   uint32_t (&word)[2][WORDS<BITS>])
{
    uint32_t n_groups = (uint32_t)s.w.n_groups;
    const uint32_t *from = (const uint32_t *)s.data.part[CTW_PART_ZERO_POINT] +
                           (uint64_t)unit.first * n_groups + at.g;
#pragma unroll
    for (uint32_t i = 0; i < WORDS<BITS>; i++, from += n_groups) {
        bool there = unit.first + i <= unit.last;
        word[0][i] = there ? from[0] : 0;
        word[1][i] = there && at.second ? from[at.far] : 0;
    }
}

/* Zero points that are bytes, the e-th of each of two rows', as codes in a word's halves. *strays gets bits
 * if one is no code: with 256 added, of the bits above a code's, codes have that one alone. */
template <int BITS>
static __device__ __forceinline__ uint32_t byte_codes(uint32_t first, uint32_t second, int e,
                                                      uint32_t *strays)
{
    constexpr uint32_t MORE = ((1 << (BITS - 1)) + 128) * 0x10001, MASK = ((1 << BITS) - 1) * 0x10001;
    uint32_t zero = __byte_perm(first, second, e == 0 ? 0x2420 : 0x2521) ^ 0x00800080; /* byte + 128 */
    uint32_t code = zero + MORE;                                                       /* code + 256 */
    *strays |= (code & ~MASK) ^ 0x01000100;
    return code & MASK;
}

/* A quad's zero points, from its rows' codes in pairs, first and second, as its table has them. */
template <int BITS>
static __device__ __forceinline__ uint32_t quad_zeros(uint32_t first, uint32_t second)
{
    if constexpr (BITS == 8)
        return first | second << 8;
    else
        return __byte_perm((first & 0x000f000f) | (second & 0x000f000f) << 4, 0, 0x4420);
}

/* Both groups' entries to their places; PAIRS: in one store, since two would meet in banks. */
template <bool PAIRS, typename E>
static __device__ __forceinline__ void put_two(E *table, const struct two_groups &at, E first, E second)
{
    struct alignas(2 * sizeof(E)) both {
        E first, second;
    };
    if constexpr (PAIRS) {
        *(struct both *)(table + at.g) = {first, second};
    } else {
        table[at.g] = first;
        if (at.second)
            table[at.g + at.far] = second;
    }
}

/* Of N quads from `quad` on, the zero points of both groups, [group][quad], to their places; of one quad
 * they have halves of words whose others are another thread's. */
template <int BITS, int N, bool PAIRS>
static __device__ __forceinline__ void put_zeros(uint32_t *table, uint32_t n_groups, uint32_t quad,
                                                 const struct two_groups &at, const uint32_t (&zero)[2][N])
{
    if constexpr (BITS == 8) {
#pragma unroll
        for (int q = 0; q < N; q++)
            put_two<PAIRS>(table + (quad + q) * n_groups, at, zero[0][q], zero[1][q]);
    } else if constexpr (N == QUADS) {
        put_two<PAIRS>(table, at, zero[0][0] | zero[0][1] << 16, zero[1][0] | zero[1][1] << 16);
    } else {
        uint16_t *half = (uint16_t *)table + quad;
        half[2 * at.g] = (uint16_t)zero[0][0];
        if (at.second)
            half[2 * (at.g + at.far)] = (uint16_t)zero[1][0];
    }
}

/* ---- all ---------------------------------------------------------------------------------- */

/* The tables of our rows from r0 on. True: all zero points that this thread has seen are codes. */
template <int BITS, typename T, enum zeros ZEROS, bool PAIRS>
static __device__ __forceinline__ bool make_tables(const struct plane &p, const struct source &s,
                                                   uint32_t r0, const struct tables &t)
{
    /* Quads of a thread's groups: both; or one where zero points are bytes, with which it has twice as much
     * to load. */
    constexpr int N = ZEROS == BYTE_ZEROS ? 1 : QUADS;
    constexpr uint32_t TEAM = BLOCK_THREADS / QUADS * N; /* threads that have the same quads */
    bool whole = s.w.whole_codes;
    uint32_t n_groups = (uint32_t)s.w.n_groups, strays = 0, quad = threadIdx.x / TEAM;
    struct unit_words zero_unit = words_of<BITS>((p.row0 + r0) / BLOCK_ROWS, whole);
    /* The part may end with our last row's. */
    zero_unit.last = (code_bit<BITS>(row_of(p, r0, BLOCK_ROWS - 1), whole) + BITS - 1) / 32;
    struct two_groups at = {(PAIRS ? 2 : 1) * (threadIdx.x % TEAM), PAIRS ? 1 : TEAM, true};
#pragma unroll 1
    for (; at.g < n_groups; at.g += 2 * TEAM) {
        uint32_t scale[N * QUAD], byte[N * QUAD], packed[2][WORDS<BITS>], zero[2][N];
        if (!PAIRS)
            at.second = at.g + at.far < n_groups;
        load_rows<PAIRS, uint16_t>(p, s, CTW_PART_SCALE, r0 + quad * QUAD, at, scale);
        if constexpr (ZEROS == BYTE_ZEROS)
            load_rows<PAIRS, uint8_t>(p, s, CTW_PART_ZERO_POINT, r0 + quad * QUAD, at, byte);
        else if constexpr (ZEROS == PACKED_ZEROS)
            load_packed<BITS>(s, zero_unit, at, packed);
#pragma unroll
        for (int q = 0; q < N; q++) {
            const uint32_t *two = scale + q * QUAD;
            put_two<PAIRS>(t.scale + (quad + q) * n_groups, at,
                           make_uint2(lower(two[0], two[1]), lower(two[2], two[3])),
                           make_uint2(upper(two[0], two[1]), upper(two[2], two[3])));
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            uint32_t pair[BLOCK_ROWS / 2];
            if constexpr (ZEROS == PACKED_ZEROS) {
                code_pairs<BITS, T>(packed[e], zero_unit, whole, pair);
            } else if constexpr (ZEROS == BYTE_ZEROS) {
#pragma unroll
                for (int i = 0; i < N * QUAD / 2; i++)
                    pair[i] = byte_codes<BITS>(byte[2 * i], byte[2 * i + 1], e, &strays);
            }
            if constexpr (ZEROS != NO_ZEROS) {
#pragma unroll
                for (int q = 0; q < N; q++)
                    zero[e][q] = quad_zeros<BITS>(pair[2 * q], pair[2 * q + 1]);
            }
        }
        if constexpr (ZEROS != NO_ZEROS)
            put_zeros<BITS, N, PAIRS>(t.zero, n_groups, quad, at, zero);
    }
    return strays == 0;
}

#endif
