/*
 * Pack-quantized weights in activation order, where each column names its group.
 *
 * A block has 8 rows of 256 units of 8 columns, a thread one unit. Codes and columns' groups come to
 * shared memory by copies that take no registers; meanwhile the block makes tables by group of its rows'
 * scales and zero points, so that a column takes those of 4 rows in one load each.
 */
#include "kernels/cuda/decode_pack.cuh"

enum { QUAD = 4, BLOCK_ROWS = 2 * QUAD, BLOCK_UNITS = 256 };
static_assert(BLOCK_ROWS == 8, "as many zero points are a unit of codes, and fit a word");
static_assert(MAX_BLOCK_ROWS % BLOCK_ROWS == 0, "for plane_at()");
static_assert(BLOCK_UNITS / 32 == BLOCK_ROWS, "a warp copies a row's codes");

/* A weight has no zero points; or has them packed as codes are, down a column; or one byte each. */
enum zeros { NO_ZEROS, PACKED_ZEROS, BYTE_ZEROS };

/*
 * Zero points of a group in the table, even rows' in the lower half of a word and odd ones' in the
 * upper: 4 bits each, those of all rows in one word; or 8 (bytes: 128 more than they are), QUAD
 * rows' in a word.
 */
template <int BITS, enum zeros ZEROS>
constexpr int ZERO_BITS = BITS == 8 || ZEROS == BYTE_ZEROS ? 8 : 4;
template <int BITS, enum zeros ZEROS>
constexpr int ZERO_WORDS = ZEROS == NO_ZEROS ? 0 : ZERO_BITS<BITS, ZEROS> / 4;

/* Room for a row's codes of a block: whole pieces of 16 bytes around them, wherever in a piece the first
 * code lies. */
template <int BITS> constexpr int ROW_WORDS = BLOCK_UNITS * 8 / (32 / BITS) / 4 * 4 + 8;

/* What a block has in shared memory. */
template <int BITS> struct tables {
    uint4 index[2][BLOCK_UNITS];                /* a unit's first 4 and last 4 columns' groups */
    uint32_t code[BLOCK_ROWS][ROW_WORDS<BITS>]; /* from the piece on that has the first code */
    uint2 scale[]; /* [2][n_groups]: of the first QUAD rows, the others; two rows in a word. Then
                      zero points, uint32_t [ZERO_WORDS][n_groups] */
};

/* ---- decoding ----------------------------------------------------------------------------- */

/* Codes of a column in two rows, the i-th such of a quad, to their values. */
template <int BITS, typename T, enum zeros ZEROS>
static __device__ __forceinline__ uint32_t value_pair(uint32_t code, uint32_t scale, uint32_t zeros,
                                                      int i)
{
    constexpr uint32_t MIDDLE = (1 << (BITS - 1)) * 0x10001;
    uint32_t less;
    if constexpr (ZEROS == NO_ZEROS)
        less = pair_less<BITS, T>(code, MIDDLE + (BITS < 8 ? LARGE<T> : 0));
    else if constexpr (ZERO_BITS<BITS, ZEROS> == 4)
        less = pair_less<BITS, T>(code, masked(zeros >> (4 * i), 0x000f000f, LARGE<T>));
    else if constexpr (ZEROS == PACKED_ZEROS)
        less = pair_less<BITS, T>(code, zeros >> (8 * i) & 0x00ff00ff);
    else
        less = pair_less_bytes<BITS, T>(code, zeros >> (8 * i) & 0x00ff00ff);
    return pair_times<T>(less, scale);
}

template <int BITS>
static __device__ __forceinline__ void row_words(const uint32_t *from,
                                                 uint32_t (&word)[WORDS<BITS>])
{
    if constexpr (BITS == 8) {
        const uint2 two = *(const uint2 *)from;
        word[0] = two.x;
        word[1] = two.y;
    } else {
#pragma unroll
        for (int i = 0; i < WORDS<BITS>; i++)
            word[i] = from[i];
    }
}

/* A unit of QUAD rows (of which `rows` are to be stored) to dst. zeros_skip: how far the words of zero
 * points are shifted to have this quad's first. */
template <int BITS, typename T, enum zeros ZEROS>
static __device__ __forceinline__ void
decode_quad(const uint32_t *code, const struct unit_words &at, bool whole, const uint4 *index,
            const uint2 *scales, const uint32_t *zeros, uint32_t zeros_skip, T *dst, uint32_t k,
            uint32_t rows)
{
    uint32_t pair[QUAD / 2][8];
#pragma unroll
    for (int i = 0; i < QUAD / 2; i++) {
        uint32_t first[WORDS<BITS>], second[WORDS<BITS>];
        row_words<BITS>(code + 2 * i * ROW_WORDS<BITS>, first);
        row_words<BITS>(code + (2 * i + 1) * ROW_WORDS<BITS>, second);
        row_pairs<BITS, T>(first, second, at, whole, pair[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 four = index[half * BLOCK_UNITS];
        const uint32_t group[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const uint2 two = scales[group[c]];
            uint32_t scale[2] = {two.x, two.y}, zero = 0;
            if constexpr (ZEROS != NO_ZEROS)
                zero = zeros[group[c]] >> zeros_skip;
#pragma unroll
            for (int i = 0; i < QUAD / 2; i++)
                pair[i][half * 4 + c] =
                    value_pair<BITS, T, ZEROS>(pair[i][half * 4 + c], scale[i], zero, i);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < QUAD; i++) {
        const uint32_t *of = pair[i / 2];
        const uint4 row = i % 2 == 0 ? make_uint4(lower(of[0], of[1]), lower(of[2], of[3]),
                                                  lower(of[4], of[5]), lower(of[6], of[7]))
                                     : make_uint4(upper(of[0], of[1]), upper(of[2], of[3]),
                                                  upper(of[4], of[5]), upper(of[6], of[7]));
        if (i < rows)
            store16((uint4 *)(dst + (uint64_t)i * k), row);
    }
}

/* ---- shared memory ------------------------------------------------------------------------ */

/* 16 bytes, or 4, on their way to shared memory. CACHED: by way of L1, for what other blocks will want
 * too; only 16 bytes can go past it. */
template <int BYTES, bool CACHED>
static __device__ __forceinline__ void copy_async(void *dst, const void *src)
{
    static_assert(CACHED || BYTES == 16);
    uint32_t to = (uint32_t)__cvta_generic_to_shared(dst);
    if constexpr (CACHED)
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to),
                     "l"(__cvta_generic_to_global(src)), "n"(BYTES)
                     : "memory");
    else
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
                     "l"(__cvta_generic_to_global(src))
                     : "memory");
}

static __device__ __forceinline__ void copies_done(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

/* Our row r0 + i as a row of the weight, one of those that plane_rows() gives; the plane has no numbers.
 */
static __device__ __forceinline__ uint32_t row_of(const struct plane &p, uint32_t r0, uint32_t i)
{
    return p.row0 + (r0 + i < p.n_rows ? r0 + i : p.n_rows - 1);
}

/* Words first .. last of each row's codes; in_16: the weight's rows begin at multiples of 16 bytes.
 */
template <int BITS>
static __device__ __forceinline__ void copy_codes(const struct plane &p, const struct source &s,
                                                  uint32_t r0, uint32_t first, uint32_t last,
                                                  bool in_16, uint32_t (*code)[ROW_WORDS<BITS>])
{
    uint32_t i = threadIdx.x / 32, lane = threadIdx.x % 32, from = first & ~3u;
    const uint32_t *words =
        (const uint32_t *)((const char *)s.data.part[CTW_PART_VALUES] +
                           (uint64_t)row_of(p, r0, i) * (uint32_t)s.w.row_bytes);
    if (in_16) {
#pragma unroll 1
        for (uint32_t w = from + 4 * lane; w <= last; w += 4 * 32)
            copy_async<16, false>(code[i] + (w - from), words + w);
    } else {
#pragma unroll 1
        for (uint32_t w = from + lane; w <= last; w += 32)
            copy_async<4, true>(code[i] + (w - from), words + w);
    }
}

/* A group's zero points of the block's rows: packed, the words of that unit of codes, which goes down a
 * column; bytes, 128 more than they are, two rows in a word. */
template <int BITS, enum zeros ZEROS> struct zero_words {
    uint32_t word[ZEROS == BYTE_ZEROS ? 4 : WORDS<BITS>];
};

template <int BITS, enum zeros ZEROS>
static __device__ __forceinline__ void load_zeros(const struct plane &p, const struct source &s,
                                                  uint32_t r0, const struct unit_words &at, uint32_t g,
                                                  struct zero_words<BITS, ZEROS> &z)
{
    if constexpr (ZEROS == PACKED_ZEROS) {
        const uint32_t *from = (const uint32_t *)s.data.part[CTW_PART_ZERO_POINT] + g;
#pragma unroll
        for (uint32_t i = 0; i < WORDS<BITS>; i++)
            z.word[i] =
                at.first + i <= at.last ? from[(uint64_t)(at.first + i) * (uint32_t)s.w.n_groups] : 0;
    } else if constexpr (ZEROS == BYTE_ZEROS) {
        const int8_t *from = (const int8_t *)s.data.part[CTW_PART_ZERO_POINT] + g;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            int32_t first = from[(uint64_t)row_of(p, r0, 2 * i) * (uint32_t)s.w.scale_stride];
            int32_t second = from[(uint64_t)row_of(p, r0, 2 * i + 1) * (uint32_t)s.w.scale_stride];
            z.word[i] = (uint32_t)(first + 128) | (uint32_t)(second + 128) << 16;
        }
    }
}

/* Group g's place in the tables, from its rows' scales, two in a word, and what load_zeros() gave.
 */
template <int BITS, typename T, enum zeros ZEROS>
static __device__ __forceinline__ void
put_group(const uint32_t (&scale)[BLOCK_ROWS / 2], const struct zero_words<BITS, ZEROS> &z,
          const struct unit_words &at, bool whole, uint32_t n_groups, uint2 *scales, uint32_t g)
{
    uint32_t *zeros = (uint32_t *)(scales + 2 * n_groups), zero[BLOCK_ROWS / 2];
    scales[g] = make_uint2(scale[0], scale[1]);
    scales[n_groups + g] = make_uint2(scale[2], scale[3]);
    if constexpr (ZEROS == PACKED_ZEROS)
        code_pairs<BITS, T>(z.word, at, whole, zero);
    else if constexpr (ZEROS == BYTE_ZEROS)
        memcpy(zero, z.word, sizeof(zero));
    if constexpr (ZERO_WORDS<BITS, ZEROS> == 1) {
        zeros[g] = (zero[0] & 0x000f000f) | (zero[1] & 0x000f000f) << 4 |
                   (zero[2] & 0x000f000f) << 8 | (zero[3] & 0x000f000f) << 12;
    } else if constexpr (ZERO_WORDS<BITS, ZEROS> == 2) {
        zeros[g] = zero[0] | zero[1] << 8;
        zeros[n_groups + g] = zero[2] | zero[3] << 8;
    }
}

/* The tables. PAIRS: the number of groups is even and rows of scales are aligned, and a thread loads two
 * groups' scales at a time; so all that a block needs for 512 groups is on its way together. */
template <int BITS, typename T, enum zeros ZEROS, bool PAIRS>
static __device__ __forceinline__ void make_tables(const struct plane &p, const struct source &s,
                                                   uint32_t r0, uint2 *table)
{
    constexpr uint32_t EACH = PAIRS ? 2 : 1;
    uint32_t n_groups = (uint32_t)s.w.n_groups, stride = (uint32_t)s.w.scale_stride;
    bool whole = s.w.whole_codes;
    struct unit_words at = words_of<BITS>((p.row0 + r0) / BLOCK_ROWS, whole);
    at.last = (code_bit<BITS>(row_of(p, r0, BLOCK_ROWS - 1), whole) + BITS - 1) / 32;
#pragma unroll 1
    for (uint32_t g = EACH * threadIdx.x; g < n_groups; g += EACH * BLOCK_UNITS) {
        const T *scales = (const T *)s.data.part[CTW_PART_SCALE] + g;
        uint32_t loaded[BLOCK_ROWS], scale[EACH][BLOCK_ROWS / 2];
        struct zero_words<BITS, ZEROS> zeros[EACH];
#pragma unroll
        for (int i = 0; i < BLOCK_ROWS; i++) {
            const T *from = scales + (uint64_t)row_of(p, r0, i) * stride;
            if constexpr (PAIRS)
                loaded[i] = *(const uint32_t *)from;
            else
                loaded[i] = bits_of(*from);
        }
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
            load_zeros<BITS, ZEROS>(p, s, r0, at, g + i, zeros[i]);
#pragma unroll
        for (int i = 0; i < BLOCK_ROWS / 2; i++) {
            scale[0][i] = lower(loaded[2 * i], loaded[2 * i + 1]);
            if constexpr (PAIRS)
                scale[1][i] = upper(loaded[2 * i], loaded[2 * i + 1]);
        }
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
            put_group<BITS, T, ZEROS>(scale[i], zeros[i], at, whole, n_groups, table, g + i);
    }
}

/* Blocks on a multiprocessor, for which registers suffice. */
template <enum zeros ZEROS> constexpr int BLOCKS = ZEROS == BYTE_ZEROS ? 4 : 5;

/* in_16: see copy_codes(); pairs: see make_tables(). */
template <int BITS, typename T, enum zeros ZEROS>
__global__ void __launch_bounds__(BLOCK_UNITS, BLOCKS<ZEROS>)
    pack_indexed(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
                 bool in_16, bool pairs)
{
    extern __shared__ uint4 shared[];
    struct tables<BITS> &t = *(struct tables<BITS> *)shared;
    bool whole = s.w.whole_codes;
    uint32_t unit0 = blockIdx.x * BLOCK_UNITS, unit = unit0 + threadIdx.x,
             r0 = plane_row0(BLOCK_ROWS);
    uint32_t last = (unit0 + BLOCK_UNITS < p.units ? unit0 + BLOCK_UNITS : p.units) - 1;
    uint32_t first_word = words_of<BITS>(unit0, whole).first;
    if (r0 >= p.n_rows)
        return;
    if (unit < p.units) {
        const uint4 *index = (const uint4 *)s.data.part[CTW_PART_GROUP_INDEX] + unit * 2;
        copy_async<16, true>(&t.index[0][threadIdx.x], index);
        copy_async<16, true>(&t.index[1][threadIdx.x], index + 1);
    }
    copy_codes<BITS>(p, s, r0, first_word, words_of<BITS>(last, whole).last, in_16, t.code);
    if (pairs)
        make_tables<BITS, T, ZEROS, true>(p, s, r0, t.scale);
    else
        make_tables<BITS, T, ZEROS, false>(p, s, r0, t.scale);
    copies_done();
    if (unit >= p.units)
        return;
    struct unit_words at = words_of<BITS>(unit, whole);
    const uint32_t *code = t.code[0] + (at.first - (first_word & ~3u));
    const uint2 *scales = t.scale;
    const uint32_t *zeros = (const uint32_t *)(scales + 2 * (uint32_t)s.w.n_groups);
    T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
#pragma unroll 1
    for (uint32_t quad = 0; quad < 2 && r0 + quad * QUAD < p.n_rows; quad++) {
        decode_quad<BITS, T, ZEROS>(code, at, whole, &t.index[0][threadIdx.x], scales, zeros,
                                    ZERO_WORDS<BITS, ZEROS> == 1 ? 8 * quad : 0, dst, p.k,
                                    p.n_rows - r0 - quad * QUAD);
        code += QUAD * ROW_WORDS<BITS>;
        scales += (uint32_t)s.w.n_groups;
        if (ZERO_WORDS<BITS, ZEROS> == 2)
            zeros += (uint32_t)s.w.n_groups;
        dst += (uint64_t)QUAD * p.k;
    }
}

/* ---- choosing ----------------------------------------------------------------------------- */

/* What a block may have of shared memory without asking for more: with room for more than 1000 groups of
 * any kind, 1625 of 4 bits with packed zero points. With more pack_any decodes. */
enum { SHARED_BYTES = 48 << 10 };

template <int BITS, typename T, enum zeros ZEROS>
static bool launch(cudaStream_t stream, struct plane *p, const struct source *s)
{
    const struct ctw_weight *w = &s->w;
    size_t bytes = sizeof(struct tables<BITS>) +
                   (size_t)w->n_groups * (2 * sizeof(uint2) + 4 * ZERO_WORDS<BITS, ZEROS>);
    bool in_16 = w->row_bytes % 16 == 0 && is_aligned(s->data.part[CTW_PART_VALUES], 16);
    bool pairs = w->n_groups % 2 == 0 && is_aligned(s->data.part[CTW_PART_SCALE], 4);
    if (bytes > SHARED_BYTES || (ZEROS == PACKED_ZEROS && p->row0 % BLOCK_ROWS != 0))
        return false;
    const dim3 blocks = plane_cut(p, 8, BLOCK_UNITS, BLOCK_ROWS);
    pack_indexed<BITS, T, ZEROS><<<blocks, BLOCK_UNITS, bytes, stream>>>(*p, *s, in_16, pairs);
    return true;
}

template <int BITS, typename T>
static bool launch_of_zeros(cudaStream_t stream, struct plane *p, const struct source *s)
{
    return s->w.symmetric     ? launch<BITS, T, NO_ZEROS>(stream, p, s)
           : s->w.zero_packed ? launch<BITS, T, PACKED_ZEROS>(stream, p, s)
                              : launch<BITS, T, BYTE_ZEROS>(stream, p, s);
}

bool ctw_cuda_decode_indexed(cudaStream_t stream, struct plane *p, const struct source *s)
{
    if (p->rows != NULL || !is_aligned(s->data.part[CTW_PART_GROUP_INDEX], 16))
        return false;
#define CASE(bits)                                                                                 \
    case bits:                                                                                     \
        return s->w.dtype == CTW_BF16 ? launch_of_zeros<bits, __nv_bfloat16>(stream, p, s)         \
                                      : launch_of_zeros<bits, __half>(stream, p, s);
    switch (s->w.bits) { /* the widths that are found in activation order */
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(8)
    default:
        return false;
    }
#undef CASE
}
