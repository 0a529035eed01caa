/*
 * Pack-quantized weights decoded into matrices: bit-equal to kernels/formats, but for a NaN's payload.
 *
 * Kernels: pack_fast (groups of whole units, to the scales' own 16-bit type), pack_indexed (likewise,
 * where each column names its group), and pack_any, for every other layout, alignment and type.
 */
#include "kernels/cuda/decode.cuh"
#include "kernels/formats/pack_quantized/decode.h"

/*
 * Codes and zero points are held + OFFSET, which is more than any zero point (of 8 bits) is below 0, as
 * integers in a float's mantissa: such a float's bits are FLOAT + 0 .. 2^23 - 1, its value 2^23 + these.
 */
enum { FLOAT = 0x4b000000, OFFSET = 256 };

/* What pack_indexed may have in shared memory. */
enum { TABLE_BYTES = 48 << 10 };

/* ---- codes -------------------------------------------------------------------------------- */

/* bits & mask | more in one instruction: of two constants the compiler makes two. */
static __device__ __forceinline__ uint32_t masked(uint32_t bits, uint32_t mask, uint32_t more)
{
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(bits), "r"(mask), "r"(more));
    return v;
}

/* Where code i of a stream begins, in bits. whole: no code crosses a word's end. */
template <int BITS> static __device__ __forceinline__ uint32_t code_bit(uint32_t i, bool whole)
{
    if (32 % BITS != 0 && whole)
        return i / (32 / BITS) * 32 + i % (32 / BITS) * BITS;
    return i * BITS;
}

/* The words of a row that hold a unit of 8 codes: first .. last; its first code begins at bit `skip`. */
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

/* How many words these may be. */
template <int BITS> constexpr int WORDS = 32 % BITS == 0 ? (BITS + 3) / 4 : BITS < 6 ? 2 : 3;

template <int BITS>
static __device__ __forceinline__ void load_words(const struct source &s, uint32_t row,
                                                  const struct unit_words &at,
                                                  uint32_t (&word)[WORDS<BITS>])
{
    const uint32_t *words = (const uint32_t *)((const char *)s.data.part[CTW_PART_VALUES] +
                                               (uint64_t)row * (uint32_t)s.w.row_bytes) +
                            at.first;
    if constexpr (BITS == 8) {
        uint2 two = *(const uint2 *)words;
        word[0] = two.x;
        word[1] = two.y;
    } else {
        word[0] = words[0];
#pragma unroll
        for (uint32_t i = 1; i < WORDS<BITS>; i++)
            word[i] = at.first + i <= at.last ? words[i] : 0;
    }
}

/* The unit's codes one after another from bit 0 on, of words that have USED bits each. */
template <int USED, int N>
static __device__ __forceinline__ uint64_t joined(const uint32_t (&word)[N], uint32_t skip)
{
    constexpr uint32_t MASK = 0xffffffffu >> (32 - USED);
    uint64_t v = word[0] & MASK;
    if constexpr (N > 1)
        v |= (uint64_t)(word[1] & MASK) << USED;
    v >>= skip;
    if constexpr (N > 2) /* in two steps, as it may be by 64 */
        v |= (uint64_t)word[2] << (2 * USED - 1 - skip) << 1;
    return v;
}

/* The codes as such floats' bits. */
template <int BITS>
static __device__ __forceinline__ void unit_floats(const uint32_t (&word)[WORDS<BITS>],
                                                   const struct unit_words &at, bool whole,
                                                   uint32_t (&code)[8])
{
    uint64_t v = 32 % BITS != 0 && whole ? joined<32 / BITS * BITS>(word, at.skip)
                                         : joined<32>(word, BITS % 4 == 0 ? 0 : at.skip);
#pragma unroll
    for (int c = 0; c < 8; c++)
        code[c] = masked((uint32_t)(v >> (c * BITS)), (1u << BITS) - 1u, FLOAT + OFFSET);
}

/* The zero points, as codes, of group g in each row. */
template <int BITS, int N>
static __device__ __forceinline__ void pack_zeros(const struct source &s, const uint32_t (&row)[N],
                                                  uint32_t g, int32_t (&zero)[N])
{
    const void *zeros = s.data.part[CTW_PART_ZERO_POINT];
    uint32_t n_groups = (uint32_t)s.w.n_groups;
    if (s.w.symmetric) {
#pragma unroll
        for (int i = 0; i < N; i++)
            zero[i] = 1 << (BITS - 1);
    } else if (s.w.zero_packed) {
        uint32_t low[N], high[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t bit = code_bit<BITS>(row[i], s.w.whole_codes);
            low[i] = ((const uint32_t *)zeros)[(uint64_t)(bit / 32) * n_groups + g];
            high[i] = 32 % BITS == 0
                          ? 0
                          : ((const uint32_t *)zeros)[(uint64_t)((bit + BITS - 1) / 32) * n_groups + g];
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t skip = code_bit<BITS>(row[i], s.w.whole_codes) % 32;
            zero[i] = (int32_t)(__funnelshift_r(low[i], high[i], skip) & ((1u << BITS) - 1u));
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            zero[i] = ((const int8_t *)zeros)[(uint64_t)row[i] * (uint32_t)s.w.scale_stride + g] +
                      (1 << (BITS - 1));
    }
}

/* ---- kernels ------------------------------------------------------------------------------ */

/*
 * A unit's group is unit * per_unit >> 31. T is the type of scales and of dst. (u - z) is exact, so the
 * product is the format's, rounded to fp32 and then to T as there.
 */
template <int BITS, typename T>
__global__ void __launch_bounds__(THREADS)
    pack_fast(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
              uint32_t per_unit)
{
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    uint32_t g = (uint32_t)((uint64_t)unit * per_unit >> 31);
    const T *scales = (const T *)s.data.part[CTW_PART_SCALE] + g;
    const struct unit_words at = words_of<BITS>(unit, s.w.whole_codes);
    T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
    uint32_t row[ROWS], word[ROWS][WORDS<BITS>];
    int32_t zero[ROWS];
    T scale[ROWS];
    plane_rows(p, r0, row);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        load_words<BITS>(s, row[i], at, word[i]);
        scale[i] = scales[(uint64_t)row[i] * (uint32_t)s.w.scale_stride];
    }
    pack_zeros<BITS>(s, row, g, zero);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (r0 + i >= p.n_rows)
            break;
        float v[8], base = __uint_as_float(FLOAT + OFFSET + zero[i]), a = ctw_cuda_widen(scale[i]);
        uint32_t code[8];
        unit_floats<BITS>(word[i], at, s.w.whole_codes, code);
#pragma unroll
        for (int c = 0; c < 8; c++)
            v[c] = (__uint_as_float(code[c]) - base) * a;
        unit_store(dst + (uint64_t)i * p.k, v);
    }
}

/* A scale and its zero point in one word: the scale's bits above, the zero point + OFFSET below. */
template <typename T> static __device__ __forceinline__ uint32_t scale_and_zero(T scale, int32_t zero)
{
    uint16_t bits;
    memcpy(&bits, &scale, 2);
    return (uint32_t)bits << 16 | (uint32_t)(zero + OFFSET);
}

template <typename T> static __device__ __forceinline__ float scale_of(uint32_t word)
{
    if constexpr (ctw_cuda_same_type<T, __nv_bfloat16>)
        return __uint_as_float(word & 0xffff0000u);
    __half2 halves;
    memcpy(&halves, &word, 4);
    return __high2float(halves);
}

static __device__ __forceinline__ float zero_of(uint32_t word)
{
    return __uint_as_float(masked(word, 0xffffu, FLOAT));
}

/* A unit of ROWS rows (of which `rows` are to be stored) to dst; `scales` of each group are theirs. */
template <int BITS, typename T>
static __device__ __forceinline__ void
indexed_quad(const uint32_t (&word)[ROWS][WORDS<BITS>], const struct unit_words &at, bool whole,
             const uint32_t (&group)[8], const uint4 *scales, T *dst, uint32_t k, uint32_t rows)
{
    uint32_t code[ROWS][8];
    float v[ROWS][8];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        unit_floats<BITS>(word[i], at, whole, code[i]);
#pragma unroll
    for (int c = 0; c < 8; c++) {
        const uint4 of = scales[group[c]];
        const uint32_t both[ROWS] = {of.x, of.y, of.z, of.w};
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            v[i][c] = (__uint_as_float(code[i][c]) - zero_of(both[i])) * scale_of<T>(both[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i++)
        if (i < rows)
            unit_store(dst + (uint64_t)i * k, v[i]);
}

/*
 * A block has block_units units of QUADS * ROWS rows. It first fills table [QUADS][n_groups]: a group's
 * scales and zero points for ROWS rows are 16 bytes, which a column takes in one load. So 8 lanes, which
 * load at a time, have 8 places to meet in, not 32 lanes 32; and the columns' groups are read once for
 * all the rows.
 */
template <int BITS, typename T>
__global__ void __launch_bounds__(THREADS, BITS == 8 || BITS == 3 ? 6 : 7)
    pack_indexed(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
                 uint32_t block_units)
{
    extern __shared__ uint4 table[];
    uint32_t n_groups = (uint32_t)s.w.n_groups, r0 = plane_row0(QUADS * ROWS);
    uint32_t first = blockIdx.x * block_units;
    uint32_t end = first + block_units < p.units ? first + block_units : p.units;
    uint32_t row[QUADS * ROWS];
    if (r0 >= p.n_rows)
        return;
    plane_rows(p, r0, row);
    for (uint32_t g = threadIdx.x; g < n_groups; g += THREADS) {
        const T *scales = (const T *)s.data.part[CTW_PART_SCALE] + g;
        T scale[QUADS * ROWS];
        int32_t zero[QUADS * ROWS];
        uint32_t both[QUADS * ROWS];
#pragma unroll
        for (int i = 0; i < QUADS * ROWS; i++)
            scale[i] = scales[(uint64_t)row[i] * (uint32_t)s.w.scale_stride];
        pack_zeros<BITS>(s, row, g, zero);
#pragma unroll
        for (int i = 0; i < QUADS * ROWS; i++)
            both[i] = scale_and_zero(scale[i], zero[i]);
#pragma unroll
        for (int q = 0; q < QUADS; q++)
            table[q * n_groups + g] = make_uint4(both[q * ROWS], both[q * ROWS + 1], both[q * ROWS + 2],
                                                 both[q * ROWS + 3]);
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t unit = first + threadIdx.x; unit < end; unit += THREADS) {
        const struct unit_words at = words_of<BITS>(unit, s.w.whole_codes);
        const uint4 *index = (const uint4 *)s.data.part[CTW_PART_GROUP_INDEX] + unit * 2;
        const uint4 low = index[0], high = index[1];
        const uint32_t group[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        uint32_t word[QUADS][ROWS][WORDS<BITS>];
#pragma unroll
        for (int i = 0; i < QUADS * ROWS; i++)
            load_words<BITS>(s, row[i], at, word[i / ROWS][i % ROWS]);
        const uint4 *scales = table;
        T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
#pragma unroll 1
        for (uint32_t r = r0; r < r0 + QUADS * ROWS && r < p.n_rows; r += ROWS) {
            indexed_quad<BITS>(word[0], at, s.w.whole_codes, group, scales, dst, p.k, p.n_rows - r);
            scales += n_groups;
            dst += (uint64_t)p.k * ROWS;
#pragma unroll
            for (int q = 1; q < QUADS; q++)
                memcpy(word[q - 1], word[q], sizeof(word[q]));
        }
    }
}

/* Codes 8 * unit .. of a row: `bits` bytes from byte unit * bits on. Past the row's end they are 0. */
static __device__ __forceinline__ void unit_codes(const struct ctw_weight &w, const uint8_t *row,
                                                  uint32_t unit, uint32_t (&code)[8])
{
    if (w.whole_codes) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            code[i] = (int64_t)unit * 8 + i < w.k
                          ? ctw_pack_code(row, 4, (int64_t)unit * 8 + i, w.bits, true)
                          : 0;
        return;
    }
    bool aligned = (uintptr_t)row % 4 == 0;
    size_t byte = (size_t)unit * w.bits, first = byte / 4;
    uint32_t word[3];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const uint8_t *at = row + (first + i) * 4;
        word[i] = (first + i) * 4 >= w.row_bytes ? 0
                  : aligned                      ? *(const uint32_t *)at
                                                 : ctw_load_u32(at);
    }
    int skip = (int)(byte % 4) * 8;
    uint64_t v = (uint64_t)__funnelshift_r(word[1], word[2], skip) << 32 |
                 __funnelshift_r(word[0], word[1], skip);
#pragma unroll
    for (int i = 0; i < 8; i++)
        code[i] = (uint32_t)(v >> (i * w.bits)) & ((1u << w.bits) - 1u);
}

/* Any pack-quantized weight, of any alignment, to any type. A unit is 8 columns, the last perhaps less;
 * whole: none is less, and dst is aligned. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    pack_any(const __grid_constant__ struct plane p, const __grid_constant__ struct source s, bool whole)
{
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    const struct ctw_weight &w = s.w;
    const uint8_t *index = (const uint8_t *)s.data.part[CTW_PART_GROUP_INDEX];
    uint32_t c0 = unit * 8, group_size = (uint32_t)w.group_size;
    uint32_t n = p.k - c0 < 8 ? p.k - c0 : 8, group[8];
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t c = c0 + (i < n ? i : 0);
        group[i] = w.indexed ? ctw_load_u32(index + (size_t)c * 4) : c / group_size;
    }
#pragma unroll 1
    for (uint32_t r = r0; r < p.n_rows && r < r0 + ROWS; r++) {
        int64_t row = plane_row(p, r);
        uint32_t code[8];
        unit_codes(w, (const uint8_t *)s.data.part[CTW_PART_VALUES] + (size_t)row * w.row_bytes, unit,
                   code);
        float v[8], scale = 0;
        int32_t zero = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i == 0 || group[i] != group[i - 1]) {
                scale = ctw_load_value(s.data.part[CTW_PART_SCALE], w.dtype,
                                       row * w.scale_stride + group[i]);
                zero = ctw_pack_zero(&w, &s.data, row, group[i], w.bits);
            }
            v[i] = ctw_cuda_round((float)((int32_t)code[i] - zero) * scale, w.dtype);
        }
        T *dst = (T *)p.dst + plane_at(p, r) + c0;
        if (whole) {
            unit_store(dst, v);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                if (i < n)
                    ctw_cuda_narrow(v[i], dst + i);
        }
    }
}

/* ---- choosing ----------------------------------------------------------------------------- */

/* May pack_fast or pack_indexed have it? Rows begin at words, so whole units have their words aligned. */
static bool suits(const struct plane *p, const struct source *s, enum ctw_dtype dtype)
{
    const struct ctw_weight *w = &s->w;
    return p->k % 8 == 0 && ctw_cuda_aligned16(p->dst) && dtype == w->dtype && dtype != CTW_F32 &&
           is_aligned(s->data.part[CTW_PART_SCALE], 2) &&
           is_aligned(s->data.part[CTW_PART_VALUES], w->bits == 8 ? 8 : 4) &&
           (!w->zero_packed || is_aligned(s->data.part[CTW_PART_ZERO_POINT], 4));
}

template <int BITS, typename T>
static void launch_fast(cudaStream_t stream, struct plane *p, const struct source *s)
{
    const dim3 blocks = plane_cut(p, 8, THREADS, ROWS);
    uint32_t group_units = (uint32_t)(s->w.group_size / 8);
    uint32_t per_unit = (uint32_t)((((uint64_t)1 << 31) + group_units - 1) / group_units);
    pack_fast<BITS, T><<<blocks, THREADS, 0, stream>>>(*p, *s, per_unit);
}

/* The widths that are found in activation order. */
static constexpr bool has_indexed(int bits)
{
    return bits == 2 || bits == 3 || bits == 4 || bits == 8;
}

/*
 * A thread decodes a unit for every 64 groups, so that filling the table costs an eighth or so; but no
 * more than 4, for enough blocks.
 */
template <int BITS, typename T>
static void launch_indexed(cudaStream_t stream, struct plane *p, const struct source *s)
{
    uint32_t n_groups = (uint32_t)s->w.n_groups;
    uint32_t thread_units = (n_groups + 63) / 64 < 4 ? (n_groups + 63) / 64 : 4;
    uint32_t block_units = thread_units * THREADS;
    const dim3 blocks = plane_cut(p, 8, block_units, QUADS * ROWS);
    size_t bytes = QUADS * n_groups * sizeof(uint4);
    pack_indexed<BITS, T><<<blocks, THREADS, bytes, stream>>>(*p, *s, block_units);
}

template <typename T>
static void launch_suited(cudaStream_t stream, struct plane *p, const struct source *s)
{
#define CASE(bits)                                                                                       \
    case bits:                                                                                           \
        if constexpr (has_indexed(bits))                                                                 \
            if (s->w.indexed) {                                                                          \
                launch_indexed<bits, T>(stream, p, s);                                                   \
                break;                                                                                   \
            }                                                                                            \
        launch_fast<bits, T>(stream, p, s);                                                              \
        break;
    switch (s->w.bits) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
        CASE(8)
    default:
        break;
    }
#undef CASE
}

void ctw_cuda_decode_pack(cudaStream_t stream, struct plane *p, const struct source *s,
                          enum ctw_dtype dtype)
{
    const struct ctw_weight *w = &s->w;
    uint64_t units = p->k / 8, group_units = (uint64_t)w->group_size / 8;
    bool by_unit = w->group_size % 8 == 0 && units * group_units < (uint64_t)1 << 31; /* for per_unit */
    bool by_table = has_indexed(w->bits) && is_aligned(s->data.part[CTW_PART_GROUP_INDEX], 16) &&
                    (uint64_t)w->n_groups * QUADS * sizeof(uint4) <= TABLE_BYTES;
    if (!suits(p, s, dtype) || !(w->indexed ? by_table : by_unit)) {
        const dim3 blocks = plane_cut(p, 8, THREADS, ROWS);
        bool whole = p->k % 8 == 0 && ctw_cuda_aligned16(p->dst);
#define ANY(T) pack_any<T><<<blocks, THREADS, 0, stream>>>(*p, *s, whole)
        CTW_CUDA_FLOAT_SWITCH(dtype, ANY);
#undef ANY
    } else if (dtype == CTW_BF16) {
        launch_suited<__nv_bfloat16>(stream, p, s);
    } else {
        launch_suited<__half>(stream, p, s);
    }
}
