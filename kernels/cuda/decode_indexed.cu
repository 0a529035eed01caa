/*
 * Pack-quantized weights in activation order, where each column names its group.
 *
 * A block has 8 rows of 256 units of 8 columns, a thread one unit. Codes and columns' groups come to
 * shared memory by copies that take no registers; meanwhile the block makes its tables by group.
 *
 * Beside the GPU's memory two things bound it. Shared memory: columns' groups are as good as random, and
 * some three lanes of a warp meet in a bank. So zero points of 4 bits are one word for both quads, which
 * the compiler loads before either (and better than by hand). Registers: five blocks on a multiprocessor
 * leave 48 to a thread.
 */
#include "kernels/cuda/decode_table.cuh"
#include "kernels/formats/pack_quantized/decode.h"

enum { BLOCK_UNITS = BLOCK_THREADS, BLOCKS = 5 /* on a multiprocessor */ };
static_assert(BLOCK_THREADS / 32 == BLOCK_ROWS, "a warp copies a row's codes");

/* Room for a row's codes of a block: whole pieces of 16 bytes around them, wherever in a piece the first
 * code lies. */
template <int BITS> constexpr int ROW_WORDS = BLOCK_UNITS * 8 / (32 / BITS) / 4 * 4 + 8;

/* What a block has in shared memory. */
template <int BITS> struct block_memory {
    uint4 index[2][BLOCK_UNITS];                /* a unit's first 4 and last 4 columns' groups */
    uint32_t code[BLOCK_ROWS][ROW_WORDS<BITS>]; /* from the piece on that has the first code */
    uint4 tables[];
    static_assert(ROW_WORDS<BITS> % 4 == 0, "copies of 16 bytes to each row");
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
    else if constexpr (BITS < 8)
        less = pair_less<BITS, T>(code, masked(zeros >> (4 * i), 0x000f000f, LARGE<T>));
    else
        less = pair_less<BITS, T>(code, zeros >> (8 * i) & 0x00ff00ff);
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

/* For __byte_perm() of a word with 0: a quad's two bytes of zero points to the word's halves. */
enum { FIRST_QUAD = 0x4140, SECOND_QUAD = 0x4342 };

/* A unit of QUAD rows (of which `rows` are to be stored) to dst. zeros_of: one of the above, where zero
 * points have less than 8 bits; else `zeros` are the quad's. */
template <int BITS, typename T, enum zeros ZEROS>
static __device__ __forceinline__ void decode_quad(const uint32_t *code, const struct unit_words &at,
                                                   bool whole, const uint4 *index,
                                                   const uint2 *scales, const uint32_t *zeros,
                                                   uint32_t zeros_of, T *dst, uint32_t k,
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
                zero = zeros[group[c]];
            if constexpr (ZEROS != NO_ZEROS && BITS < 8)
                zero = __byte_perm(zero, 0, zeros_of);
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

/* A block's unit where zero points are no codes, which quantisation never makes but no check refuses: one
 * element after another, since the format's function for a span of them would make the others' registers
 * spill. */
template <int BITS, typename T>
static __device__ __forceinline__ void decode_strays(const struct plane &p, const struct source &s,
                                                     uint32_t r0, uint32_t unit)
{
    const uint8_t *values = (const uint8_t *)s.data.part[CTW_PART_VALUES];
    const T *scales = (const T *)s.data.part[CTW_PART_SCALE];
#pragma unroll 1
    for (uint32_t i = 0; i < 8 * BLOCK_ROWS && r0 + i / 8 < p.n_rows; i++) {
        uint32_t row = p.row0 + r0 + i / 8, column = unit * 8 + i % 8;
        uint32_t g = ((const uint32_t *)s.data.part[CTW_PART_GROUP_INDEX])[column];
        int32_t code = (int32_t)ctw_pack_code(values + (uint64_t)row * (uint32_t)s.w.row_bytes, 4, column,
                                              BITS, s.w.whole_codes);
        float scale = (float)scales[(uint64_t)row * (uint32_t)s.w.scale_stride + g];
        ctw_cuda_narrow((float)(code - ctw_pack_zero(&s.w, &s.data, row, g, BITS)) * scale,
                        (T *)p.dst + plane_at(p, r0 + i / 8) + column);
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

/* Until the thread's own copies are there. */
static __device__ __forceinline__ void copies_done(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Words first .. last of each row's codes; in_16: the weight's rows begin at multiples of 16 bytes. */
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

/* in_16: see copy_codes(); pairs: see struct two_groups. */
template <int BITS, typename T, enum zeros ZEROS>
__global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS)
    pack_indexed(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
                 bool in_16, bool pairs)
{
    extern __shared__ uint4 shared[];
    struct block_memory<BITS> &m = *(struct block_memory<BITS> *)shared;
    struct tables t = tables_at(m.tables, s);
    bool whole = s.w.whole_codes;
    uint32_t unit0 = blockIdx.x * BLOCK_UNITS, unit = unit0 + threadIdx.x,
             r0 = plane_row0(BLOCK_ROWS);
    uint32_t last = (unit0 + BLOCK_UNITS < p.units ? unit0 + BLOCK_UNITS : p.units) - 1;
    uint32_t first_word = words_of<BITS>(unit0, whole).first;
    if (r0 >= p.n_rows)
        return;
    if (unit < p.units) {
        const uint4 *index = (const uint4 *)s.data.part[CTW_PART_GROUP_INDEX] + unit * 2;
        copy_async<16, true>(&m.index[0][threadIdx.x], index);
        copy_async<16, true>(&m.index[1][threadIdx.x], index + 1);
    }
    copy_codes<BITS>(p, s, r0, first_word, words_of<BITS>(last, whole).last, in_16, m.code);
    constexpr bool MAY_STRAY = ZEROS == BYTE_ZEROS && BITS < 8;
    bool codes = pairs ? make_tables<BITS, T, ZEROS, true>(p, s, r0, t)
                       : make_tables<BITS, T, ZEROS, false>(p, s, r0, t);
    copies_done();
    if constexpr (MAY_STRAY)
        codes = __syncthreads_and(codes);
    else
        __syncthreads();
    if (unit >= p.units)
        return;
    if (MAY_STRAY && !codes) {
        decode_strays<BITS, T>(p, s, r0, unit);
        return;
    }
    struct unit_words at = words_of<BITS>(unit, whole);
    const uint32_t *code = m.code[0] + (at.first - (first_word & ~3u));
    const uint2 *scales = t.scale;
    const uint32_t *zeros = t.zero;
    T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
#pragma unroll 1
    for (uint32_t i = 0; i < BLOCK_ROWS && r0 + i < p.n_rows; i += QUAD) {
        decode_quad<BITS, T, ZEROS>(code, at, whole, &m.index[0][threadIdx.x], scales, zeros,
                                    i == 0 ? FIRST_QUAD : SECOND_QUAD, dst, p.k, p.n_rows - r0 - i);
        code += QUAD * ROW_WORDS<BITS>;
        scales += (uint32_t)s.w.n_groups;
        if (BITS == 8)
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
    size_t bytes =
        sizeof(struct block_memory<BITS>) + (size_t)w->n_groups * GROUP_BYTES<BITS, ZEROS>;
    bool in_16 = w->row_bytes % 16 == 0 && is_aligned(s->data.part[CTW_PART_VALUES], 16);
    bool pairs = w->n_groups % 2 == 0 && is_aligned(s->data.part[CTW_PART_SCALE], 4) &&
                 (ZEROS != BYTE_ZEROS || is_aligned(s->data.part[CTW_PART_ZERO_POINT], 2));
    if (bytes > SHARED_BYTES || (ZEROS == PACKED_ZEROS && p->row0 % BLOCK_ROWS != 0))
        return false;
    const dim3 blocks = plane_cut(p, 8, BLOCK_UNITS, BLOCK_ROWS);
    pack_indexed<BITS, T, ZEROS><<<blocks, BLOCK_THREADS, bytes, stream>>>(*p, *s, in_16, pairs);
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
