/*
 * Weights of one byte per value (float-quantized, int-quantized, mxfp8) decoded into matrices:
 * bit-equal to kernels/formats, except for a NaN's payload.
 *
 * Kernels: bytes_fast, to the values' own 16-bit type, two columns at a time; and bytes_any, in
 * fp32, for every other type. Both need units of 8 columns within one group; any_format has no
 * needs.
 */
#include "kernels/cuda/decode/decode_pack.cuh"
#include "kernels/formats/bytes.h"

/* E8M0: FP8 values with exponents as scales. */
enum kind { FP8, INT8, E8M0 };

/* Of each row, the index of the unit's scale. */
template <int N>
static __device__ __forceinline__ void scale_places(const struct source &s, const struct groups &by,
                                                    uint32_t unit, const uint32_t (&row)[N],
                                                    uint64_t (&place)[N])
{
    uint32_t g = group_of(unit, by.per_unit);
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t row_of_scales = s.w.section_rows == 0 ? group_of(row[i], by.per_row)
                                                       : (uint32_t)ctw_scale_row(&s.w, row[i]);
        place[i] = (uint64_t)row_of_scales * (uint32_t)s.w.scale_stride + g;
    }
}

template <int N>
static __device__ __forceinline__ void load_bytes(const struct source &s, const struct plane &p,
                                                  uint32_t unit, const uint32_t (&row)[N],
                                                  uint2 (&word)[N])
{
    const uint2 *values = (const uint2 *)s.data.part[CTW_PART_VALUES] + unit;
#pragma unroll
    for (int i = 0; i < N; i++)
        word[i] = __ldcs(values + (uint64_t)row[i] * p.units);
}

/* ---- in the values' own type -------------------------------------------------------------- */

/*
 * An E4M3 code's exponent and mantissa bits, placed as T's, are its value times 2^-120 (fp16:
 * 2^-8), subnormals included; the inverse goes into scales below LIMIT<T>, exactly. T's product is
 * rounded once, as in the format.
 */
template <typename T> constexpr uint32_t LIMIT = 0x4300;  /* 128 */
template <> constexpr uint32_t LIMIT<__half> = 0x5c00;    /* 256 */
template <typename T> constexpr uint32_t FACTOR = 0x7b80; /* 2^120 */
template <> constexpr uint32_t FACTOR<__half> = 0x5c00;   /* 2^8 */

/* Two codes, each in a half's high byte, as numbers times 1 / FACTOR. */
template <typename T> static __device__ __forceinline__ uint32_t fp8_pair(uint32_t codes)
{
    constexpr bool BF16 = ctw_cuda_same_type<T, __nv_bfloat16>;
    return masked(codes >> (BF16 ? 4 : 1), BF16 ? 0x07f007f0 : 0x3f803f80, codes & 0x80008000);
}

static __device__ __forceinline__ bool has_nan(uint32_t word)
{
    return (((word & 0x7f7f7f7f) + 0x01010101) & 0x80808080) != 0;
}

/* Eight values with any scale, NaN included. */
template <typename T>
static __device__ __noinline__ void fp8_values8(uint2 word, float scale, enum ctw_dtype dtype, T *dst)
{
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = ctw_cuda_round(ctw_byte_e4m3((i < 4 ? word.x : word.y) >> (8 * (i % 4))) * scale, dtype);
    unit_store(dst, v);
}

/* The bits of a scale of type T. */
template <enum kind KIND, typename T>
static __device__ __forceinline__ uint32_t scale_bits(const struct source &s, uint64_t place)
{
    if constexpr (KIND == E8M0) {
        uint32_t code = ((const uint8_t *)s.data.part[CTW_PART_SCALE])[place];
        uint32_t bits = code == 0 ? 0x40 : code << 7;
        return code == 255 ? bits | ctw_e8m0_nan(&s.w) >> 16 : bits;
    } else {
        return bits_of(((const T *)s.data.part[CTW_PART_SCALE])[place]);
    }
}

template <enum kind KIND, typename T>
__global__ void __launch_bounds__(THREADS)
    bytes_fast(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
               struct groups by)
{
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
    uint32_t row[ROWS], scale[ROWS];
    uint64_t place[ROWS];
    int32_t zero[ROWS];
    uint2 word[ROWS];
    plane_rows(p, r0, row);
    load_bytes(s, p, unit, row, word);
    scale_places(s, by, unit, row, place);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        scale[i] = scale_bits<KIND, T>(s, place[i]);
        zero[i] = KIND == INT8 && !s.w.symmetric
                      ? ((const int8_t *)s.data.part[CTW_PART_ZERO_POINT])[place[i]]
                      : 0;
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (r0 + i >= p.n_rows)
            break;
        T *to = dst + (uint64_t)i * p.k;
        uint32_t a = scale[i] * 0x10001u, pair[4];
        if constexpr (KIND == INT8) {
            const uint32_t z = integer_bits<T>(zero[i] + 128) * 0x10001u;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                uint32_t two = (c < 2 ? word[i].x : word[i].y) ^ 0x80808080; /* from 0 on */
                two = __byte_perm(two, 0, c % 2 == 0 ? 0x4140 : 0x4342);
                pair[c] = pair_value<T>(pair_number<8, T>(two), z, a);
            }
        } else {
            if ((scale[i] & 0x7fff) >= LIMIT<T> || has_nan(word[i].x) || has_nan(word[i].y)) {
                fp8_values8(word[i], ctw_cuda_widen(as_pair<T>(a).x),
                            ctw_cuda_same_type<T, __half> ? CTW_F16 : CTW_BF16, to);
                continue;
            }
            a = pair_times<T>(a, FACTOR<T> * 0x10001u);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                uint32_t two = c < 2 ? word[i].x : word[i].y;
                two = __byte_perm(two, 0, c % 2 == 0 ? 0x1404 : 0x3424);
                pair[c] = pair_times<T>(fp8_pair<T>(two), a);
            }
        }
        store16((uint4 *)to, make_uint4(pair[0], pair[1], pair[2], pair[3]));
    }
}

/* ---- in fp32 ------------------------------------------------------------------------------ */

template <enum kind KIND, typename T>
__global__ void __launch_bounds__(THREADS)
    bytes_any(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
              struct groups by)
{
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
    uint32_t row[ROWS];
    uint64_t place[ROWS];
    uint2 word[ROWS];
    plane_rows(p, r0, row);
    load_bytes(s, p, unit, row, word);
    scale_places(s, by, unit, row, place);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (r0 + i >= p.n_rows)
            break;
        const void *scales = s.data.part[CTW_PART_SCALE];
        float scale = KIND == E8M0 ? ctw_e8m0_to_f32(((const uint8_t *)scales)[place[i]],
                                                     ctw_e8m0_nan(&s.w))
                                    : ctw_load_value(scales, s.w.dtype, (int64_t)place[i]);
        int32_t zero = KIND == INT8 && !s.w.symmetric
                           ? ((const int8_t *)s.data.part[CTW_PART_ZERO_POINT])[place[i]]
                           : 0;
        float v[8];
#pragma unroll
        for (int c = 0; c < 8; c++) {
            uint8_t byte = (uint8_t)((c < 4 ? word[i].x : word[i].y) >> (8 * (c % 4)));
            v[c] = ctw_byte_value(byte, KIND == INT8 ? CTW_BYTE_INT8 : CTW_BYTE_E4M3, zero) * scale;
            v[c] = ctw_cuda_round(v[c], s.w.dtype);
        }
        unit_store(dst + (uint64_t)i * p.k, v);
    }
}

/* ---- choosing ----------------------------------------------------------------------------- */

template <enum kind KIND>
static bool decode_kind(cudaStream_t stream, struct plane *p, const struct source *s,
                        enum ctw_dtype dtype)
{
    const struct ctw_weight *w = &s->w;
    struct groups by;
    size_t scale_bytes = KIND == E8M0 ? 1 : ctw_dtype_bytes(w->dtype);
    if (p->k % 8 != 0 || w->indexed || !ctw_cuda_aligned16(p->dst) ||
        !is_aligned(s->data.part[CTW_PART_VALUES], 8))
        return false;
    by.per_unit = 0; /* a row's only group may have any width */
    if (w->n_groups > 1 &&
        (w->group_size % 8 != 0 || !divided_by(p->k / 8, (uint64_t)w->group_size / 8, &by.per_unit)))
        return false;
    if (!divided_by((uint64_t)w->n, (uint64_t)w->group_rows, &by.per_row))
        return false;
    const dim3 blocks = plane_cut(p, 8);
    if (dtype == w->dtype && dtype != CTW_F32 && is_aligned(s->data.part[CTW_PART_SCALE], scale_bytes)) {
        if (dtype == CTW_BF16)
            bytes_fast<KIND, __nv_bfloat16><<<blocks, THREADS, 0, stream>>>(*p, *s, by);
        else if constexpr (KIND != E8M0)
            bytes_fast<KIND, __half><<<blocks, THREADS, 0, stream>>>(*p, *s, by);
        return true;
    }
#define ANY(T) bytes_any<KIND, T><<<blocks, THREADS, 0, stream>>>(*p, *s, by)
    CTW_CUDA_FLOAT_SWITCH(dtype, ANY);
#undef ANY
    return true;
}

bool ctw_cuda_decode_bytes(cudaStream_t stream, struct plane *p, const struct source *s,
                           enum ctw_dtype dtype)
{
    switch (s->w.format->id) {
    case CTW_FORMAT_float_quantized:
        return ctw_dtype_bytes(s->w.part[CTW_PART_SCALE].dtype) == 1
                   ? decode_kind<E8M0>(stream, p, s, dtype)
                   : decode_kind<FP8>(stream, p, s, dtype);
    case CTW_FORMAT_int_quantized:
        return decode_kind<INT8>(stream, p, s, dtype);
    case CTW_FORMAT_mxfp8:
        return decode_kind<E8M0>(stream, p, s, dtype);
    default:
        return false;
    }
}
