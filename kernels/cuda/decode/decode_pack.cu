/*
 * Pack-quantized and mlx-affine weights decoded into matrices: bit-equal to kernels/formats, except
 * for a NaN's payload.
 *
 * Kernels: pack_fast (groups of whole units), pack_indexed (each column names its group) and
 * affine_fast (mlx-affine), all to the scales' own 16-bit type; and pack_any, for every other layout,
 * alignment and type of pack-quantized.
 */
#include "kernels/cuda/decode/decode_pack.cuh"
#include "kernels/formats/pack_quantized/decode.h"

template <int BITS>
static __device__ __forceinline__ void load_words(const struct source &s, uint32_t row,
                                                  const struct unit_words &at,
                                                  uint32_t (&word)[WORDS<BITS>])
{
    const uint32_t *words = (const uint32_t *)((const char *)s.data.part[CTW_PART_VALUES] +
                                               (uint64_t)row * (uint32_t)s.w.row_bytes) +
                            at.first;
    if constexpr (BITS == 8) {
        uint2 two = __ldcs((const uint2 *)words);
        word[0] = two.x;
        word[1] = two.y;
    } else {
        word[0] = __ldcs(words);
#pragma unroll
        for (uint32_t i = 1; i < WORDS<BITS>; i++)
            word[i] = at.first + i <= at.last ? __ldcs(words + i) : 0;
    }
}

/* The zero points, as codes, of group g in each row, or row of blocks. */
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

/* T is the type of scales and of dst. */
template <int BITS, typename T>
__global__ void __launch_bounds__(THREADS)
    pack_fast(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
              const __grid_constant__ struct groups by)
{
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    uint32_t g = group_of(unit, by.per_unit);
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
        row[i] = group_of(row[i], by.per_row);
        scale[i] = scales[(uint64_t)row[i] * (uint32_t)s.w.scale_stride];
    }
    pack_zeros<BITS>(s, row, g, zero);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (r0 + i >= p.n_rows)
            break;
        uint32_t z = integer_bits<T>(zero[i]) * 0x10001u, a = bits_of(scale[i]) * 0x10001u, pair[4];
        code_pairs<BITS, T>(word[i], at, s.w.whole_codes, pair);
#pragma unroll
        for (int c = 0; c < 4; c++)
            pair[c] = pair_value<T>(pair_number<BITS, T>(pair[c]), z, a);
        store16((uint4 *)(dst + (uint64_t)i * p.k), make_uint4(pair[0], pair[1], pair[2], pair[3]));
    }
}

/*
 * Like pack_fast, but scales and zero points are gathered for each column. A row has few groups, so
 * the gathers of a warp hit the same lines of the L1 cache. ZEROS: the weight has zero points.
 */
template <int BITS, typename T, bool ZEROS>
__global__ void __launch_bounds__(THREADS)
    pack_indexed(const __grid_constant__ struct plane p, const __grid_constant__ struct source s)
{
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    const uint4 *index = (const uint4 *)s.data.part[CTW_PART_GROUP_INDEX] + unit * 2;
    const uint4 low = index[0], high = index[1];
    const uint32_t group[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const T *scales = (const T *)s.data.part[CTW_PART_SCALE];
    const struct unit_words at = words_of<BITS>(unit, s.w.whole_codes);
    T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
    uint32_t row[ROWS], word[ROWS][WORDS<BITS>], zero[ROWS][8], scale[ROWS][8];
    plane_rows(p, r0, row);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        load_words<BITS>(s, row[i], at, word[i]);
#pragma unroll
    for (int c = 0; c < 8; c++) {
        int32_t z[ROWS];
        if (ZEROS)
            pack_zeros<BITS>(s, row, group[c], z);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            scale[i][c] = bits_of(scales[(uint64_t)row[i] * (uint32_t)s.w.scale_stride + group[c]]);
            zero[i][c] = integer_bits<T>(ZEROS ? z[i] : 1 << (BITS - 1));
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (r0 + i >= p.n_rows)
            break;
        uint32_t pair[4];
        code_pairs<BITS, T>(word[i], at, s.w.whole_codes, pair);
#pragma unroll
        for (int c = 0; c < 4; c++)
            pair[c] = pair_value<T>(pair_number<BITS, T>(pair[c]),
                                    lower(zero[i][2 * c], zero[i][2 * c + 1]),
                                    lower(scale[i][2 * c], scale[i][2 * c + 1]));
        store16((uint4 *)(dst + (uint64_t)i * p.k), make_uint4(pair[0], pair[1], pair[2], pair[3]));
    }
}

/* round(round(code * scale) + bias), each to T: the type of scales, biases and dst. */
template <int BITS, typename T>
__global__ void __launch_bounds__(THREADS)
    affine_fast(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
                const __grid_constant__ struct groups by)
{
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    const uint32_t g = group_of(unit, by.per_unit);
    const T *scales = (const T *)s.data.part[CTW_PART_SCALE] + g,
            *biases = (const T *)s.data.part[CTW_PART_GROUP_BIAS] + g;
    const struct unit_words at = words_of<BITS>(unit, false);
    T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
    uint32_t row[ROWS], word[ROWS][WORDS<BITS>];
    T scale[ROWS], bias[ROWS];
    plane_rows(p, r0, row);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint64_t group = (uint64_t)row[i] * (uint32_t)s.w.scale_stride;
        load_words<BITS>(s, row[i], at, word[i]);
        scale[i] = scales[group];
        bias[i] = biases[group];
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (r0 + i >= p.n_rows)
            break;
        uint32_t a = bits_of(scale[i]) * 0x10001u, b = bits_of(bias[i]) * 0x10001u, pair[4];
        code_pairs<BITS, T>(word[i], at, false, pair);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const uint32_t product = pair_times<T>(pair_number<BITS, T>(pair[c]), a);
            pair[c] = as_word(__hadd2_rn(as_pair<T>(product), as_pair<T>(b)));
        }
        store16((uint4 *)(dst + (uint64_t)i * p.k), make_uint4(pair[0], pair[1], pair[2], pair[3]));
    }
}

/* Codes 8 * unit .. of a row: `bits` bytes from byte unit * bits on. Past the row's end they are
 * 0. */
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

/* Any pack-quantized weight, of any alignment, to any type. A unit is 8 columns, the last unit
 * possibly fewer; whole: all units have 8, and dst is aligned. */
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
        int64_t row = plane_row(p, r), row_of_scales = w.group_rows == 1 ? row : row / w.group_rows;
        uint32_t code[8];
        unit_codes(w, (const uint8_t *)s.data.part[CTW_PART_VALUES] + (size_t)row * w.row_bytes, unit,
                   code);
        float v[8], scale = 0;
        int32_t zero = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i == 0 || group[i] != group[i - 1]) {
                scale = ctw_load_value(s.data.part[CTW_PART_SCALE], w.dtype,
                                       row_of_scales * w.scale_stride + group[i]);
                zero = ctw_pack_zero(&w, &s.data, row_of_scales, group[i], w.bits);
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

/* Do the kernels for 16-bit types support it, groups aside? Rows begin at words, so whole units have
 * aligned words. */
static bool suits(const struct plane *p, const struct source *s, enum ctw_dtype dtype)
{
    const struct ctw_weight *w = &s->w;
    return p->k % 8 == 0 && ctw_cuda_aligned16(p->dst) && dtype == w->dtype && dtype != CTW_F32 &&
           is_aligned(s->data.part[CTW_PART_SCALE], 2) &&
           is_aligned(s->data.part[CTW_PART_VALUES], w->bits == 8 ? 8 : 4) &&
           (!w->zero_packed || is_aligned(s->data.part[CTW_PART_ZERO_POINT], 4)) &&
           (!w->indexed || ctw_cuda_aligned16(s->data.part[CTW_PART_GROUP_INDEX]));
}

template <int BITS, typename T>
static bool decode_fast(cudaStream_t stream, struct plane *p, const struct source *s)
{
    const dim3 blocks = plane_cut(p, 8);
    if (s->w.indexed && s->w.group_rows > 1)
        return false;
    if (s->w.indexed && s->w.symmetric) {
        pack_indexed<BITS, T, false><<<blocks, THREADS, 0, stream>>>(*p, *s);
        return true;
    }
    if (s->w.indexed) {
        pack_indexed<BITS, T, true><<<blocks, THREADS, 0, stream>>>(*p, *s);
        return true;
    }
    struct groups by;
    if (s->w.group_size % 8 != 0 ||
        !divided_by(p->k / 8, (uint64_t)s->w.group_size / 8, &by.per_unit) ||
        !divided_by((uint64_t)s->w.n, (uint64_t)s->w.group_rows, &by.per_row))
        return false;
    pack_fast<BITS, T><<<blocks, THREADS, 0, stream>>>(*p, *s, by);
    return true;
}

/* False: pack_fast does not support these groups. */
static bool decode_suited(cudaStream_t stream, struct plane *p, const struct source *s)
{
#define CASE(bits)                                                                                       \
    case bits:                                                                                           \
        return s->w.dtype == CTW_BF16 ? decode_fast<bits, __nv_bfloat16>(stream, p, s)                   \
                                      : decode_fast<bits, __half>(stream, p, s);
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
        return false;
    }
#undef CASE
}

void ctw_cuda_decode_pack(cudaStream_t stream, struct plane *p, const struct source *s,
                          enum ctw_dtype dtype)
{
    if (suits(p, s, dtype) && decode_suited(stream, p, s))
        return;
    const dim3 blocks = plane_cut(p, 8);
    bool whole = p->k % 8 == 0 && ctw_cuda_aligned16(p->dst);
#define ANY(T) pack_any<T><<<blocks, THREADS, 0, stream>>>(*p, *s, whole)
    CTW_CUDA_FLOAT_SWITCH(dtype, ANY);
#undef ANY
}

bool ctw_cuda_decode_affine(cudaStream_t stream, struct plane *p, const struct source *s,
                            enum ctw_dtype dtype)
{
    struct groups by = {0, 0};
    if (s->w.format->id != CTW_FORMAT_mlx_affine || !suits(p, s, dtype) ||
        !is_aligned(s->data.part[CTW_PART_GROUP_BIAS], 2) ||
        !divided_by(p->k / 8, (uint64_t)s->w.group_size / 8, &by.per_unit))
        return false;
    const dim3 blocks = plane_cut(p, 8);
#define CASE(bits)                                                                                       \
    case bits:                                                                                           \
        if (dtype == CTW_BF16)                                                                           \
            affine_fast<bits, __nv_bfloat16><<<blocks, THREADS, 0, stream>>>(*p, *s, by);                \
        else                                                                                             \
            affine_fast<bits, __half><<<blocks, THREADS, 0, stream>>>(*p, *s, by);                       \
        return true;
    switch (s->w.bits) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(8)
    default:
        return false;
    }
#undef CASE
}
