/*
 * Weights decoded into matrices for products: bit-equal to kernels/formats, except for a NaN's
 * payload.
 *
 * Kernels: those of decode_pack.cu, decode_bytes.cu, decode_transposed.cu, decode_ggml.cu,
 * decode_bnb.cu and decode_bands.cu; nvfp4_units; mx_units; dense_units (only moves and converts);
 * and any_format, which calls a format's own decode function for everything the others do not
 * support: odd alignments, and future formats.
 */
#include "kernels/cuda/decode/decode.cuh"
#include "kernels/formats/all.h"

enum { SPANS = 32 };

/* ---- small floats ------------------------------------------------------------------------- */

/*
 * One row's unit: codes of BITS bits, E2M1 or E2M3, and their scale a; if PLAIN, 2^126 times it.
 * The low bits of a code, placed across the boundary of a float's exponent and mantissa, are its
 * magnitude times 2^-126 (0.5 is a subnormal there too, and exact). The values are BF16, or F32.
 */
template <typename T, bool PLAIN, enum ctw_dtype VALUES, int BITS = 4, typename C>
static __device__ __forceinline__ void float_values8(C codes, float a, T *dst)
{
    constexpr uint32_t SIGN = 1u << (BITS - 1);
    constexpr int PLACE = BITS == 4 ? 22 : 20;
    float v[8];
#pragma unroll
    for (int c = 0; c < 8; c++) {
        uint32_t code = (uint32_t)(codes >> (BITS * c));
        float number = __uint_as_float((code & SIGN) << (32 - BITS) | (code & (SIGN - 1)) << PLACE);
        v[c] = (PLAIN ? number : number * 0x1p126f) * a;
        if constexpr (VALUES == CTW_BF16 && !ctw_cuda_same_type<T, __nv_bfloat16>)
            v[c] = ctw_cuda_round(v[c], CTW_BF16);
    }
    unit_store(dst, v);
}

/* ---- nvfp4 -------------------------------------------------------------------------------- */

/*
 * A unit of 8 columns is one word. For a usual global scale, with scales of at most 448 / 256, the
 * factor 2^126 goes into the scale. FACTOR: ModelOpt's and MLX's, whose global scale (over `of`)
 * multiplies, and whose values are F32.
 */
template <typename T, bool FACTOR>
__global__ void __launch_bounds__(THREADS)
    nvfp4_units(const __grid_constant__ struct plane p, const __grid_constant__ struct source s, float of)
{
    constexpr enum ctw_dtype VALUES = FACTOR ? CTW_F32 : CTW_BF16;
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    const uint32_t *values = (const uint32_t *)s.data.part[CTW_PART_VALUES] + unit;
    const uint8_t *scales = (const uint8_t *)s.data.part[CTW_PART_SCALE] + unit / 2;
    T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
    uint32_t row[ROWS], word[ROWS];
    uint8_t scale[ROWS];
    plane_rows(p, r0, row);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        word[i] = __ldcs(values + (uint64_t)row[i] * p.units);
        scale[i] = scales[(uint64_t)row[i] * (uint32_t)s.w.scale_stride];
    }
    /* After the loads above, which would otherwise wait for its dtype's branches. */
    const void *stored = s.data.part[CTW_PART_GLOBAL_SCALE];
    float global =
        stored == NULL ? 1.0f : ctw_load_value(stored, s.w.part[CTW_PART_GLOBAL_SCALE].dtype, 0);
    global = FACTOR ? __fdiv_rn(global, of) : global;
    bool plain =
        FACTOR ? global >= 0x1p-60f && global <= 0x1p-8f : global >= 256.0f && global <= 0x1p60f;
    float inverse = FACTOR ? 0 : __frcp_rn(global);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (r0 + i >= p.n_rows)
            break;
        T *to = dst + (uint64_t)i * p.k;
        if (plain)
            float_values8<T, true, VALUES>(word[i],
                                           (FACTOR ? ctw_byte_e4m3(scale[i]) * global
                                                   : ctw_nvfp4_scale(scale[i], global, inverse)) *
                                               0x1p126f,
                                           to);
        else
            float_values8<T, false, VALUES>(word[i],
                                            FACTOR ? ctw_byte_e4m3(scale[i]) * global
                                                   : __fdiv_rn(ctw_e4m3_to_f32(scale[i]), global),
                                            to);
    }
}

/* ---- mxfp4, mxfp6 -------------------------------------------------------------------------- */

/* A unit's codes: a word, or 48 bits that begin with a word or in its middle and end in the next. */
template <int BITS> static __device__ __forceinline__ auto mx_codes(const uint32_t *p, uint32_t unit)
{
    if constexpr (BITS == 4)
        return __ldcs(p);
    else
        return ((uint64_t)__ldcs(p + 1) << 32 | __ldcs(p)) >> (unit % 2 * 16);
}

/* As nvfp4_units; the factor 2^126 goes into scales of at most 2. */
template <typename T, int BITS>
__global__ void __launch_bounds__(THREADS)
    mx_units(const __grid_constant__ struct plane p, const __grid_constant__ struct source s)
{
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    const uint32_t *values =
        (const uint32_t *)s.data.part[CTW_PART_VALUES] + (BITS == 4 ? unit : unit * 3 / 2);
    const uint8_t *scales = (const uint8_t *)s.data.part[CTW_PART_SCALE] + unit / 4;
    T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
    const uint32_t row_words = BITS == 4 ? p.units : p.k * 6 / 32;
    uint32_t row[ROWS], scale[ROWS];
    decltype(mx_codes<BITS>(values, unit)) codes[ROWS];
    plane_rows(p, r0, row);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        codes[i] = mx_codes<BITS>(values + (uint64_t)row[i] * row_words, unit);
        scale[i] = scales[(uint64_t)row[i] * (uint32_t)s.w.scale_stride];
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (r0 + i >= p.n_rows)
            break;
        T *to = dst + (uint64_t)i * p.k;
        if (scale[i] <= 128)
            float_values8<T, true, CTW_BF16, BITS>(codes[i], __uint_as_float((scale[i] + 126) << 23),
                                                   to);
        else
            float_values8<T, false, CTW_BF16, BITS>(
                codes[i], ctw_e8m0_to_f32((uint8_t)scale[i], ctw_e8m0_nan(&s.w)), to);
    }
}

/* ---- dense -------------------------------------------------------------------------------- */

/* A unit is U columns. */
template <typename S, typename T, int U>
__global__ void __launch_bounds__(THREADS)
    dense_units(const __grid_constant__ struct plane p, const S *values)
{
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    uint32_t row[ROWS];
    plane_rows(p, r0, row);
    values += unit * U;
    T *dst = (T *)p.dst + plane_at(p, r0) + unit * U;
    if constexpr (ctw_cuda_same_type<S, T>) { /* U elements are 16 bytes */
        uint4 v[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            v[i] = __ldcs((const uint4 *)(values + (uint64_t)row[i] * p.k));
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (r0 + i < p.n_rows)
                store16((uint4 *)(dst + (uint64_t)i * p.k), v[i]);
    } else {
        float v[ROWS][U];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            ctw_cuda_load<true>(values + (uint64_t)row[i] * p.k, v[i]);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (r0 + i < p.n_rows)
                ctw_cuda_store(dst + (uint64_t)i * p.k, v[i]);
    }
}

/* ---- any format --------------------------------------------------------------------------- */

/*
 * A block is one warp. Each lane decodes a span of CTW_DECODE_ALIGN columns with the format's own
 * function into its row of shared memory (one word longer than a span, so that lanes use different
 * banks); then the lanes store the spans together. One kernel per format: compilers take minutes
 * for one that has all of them.
 */
template <enum ctw_format_id ID>
__global__ void __launch_bounds__(SPANS)
    any_format(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
               enum ctw_dtype dtype)
{
    __shared__ float span[SPANS][CTW_DECODE_ALIGN + 1];
    int lane = (int)threadIdx.x;
    uint32_t per_row = p.units; /* spans */
    uint64_t first = (uint64_t)blockIdx.x * SPANS, n_all = (uint64_t)p.n_rows * per_row;
    uint64_t mine = first + lane;
    if (mine < n_all) {
        uint32_t r = (uint32_t)(mine / per_row);
        int64_t col0 = (int64_t)(mine - (uint64_t)r * per_row) * CTW_DECODE_ALIGN;
        int64_t n = p.k - col0 < CTW_DECODE_ALIGN ? p.k - col0 : CTW_DECODE_ALIGN;
        int64_t row = plane_row(p, r);
/* pack_any supports every pack-quantized weight, and exl3's rows are not decoded one by one. */
#define CASE(name)                                                                                       \
    if constexpr (ID == CTW_FORMAT_##name && ID != CTW_FORMAT_pack_quantized && ID != CTW_FORMAT_exl3)   \
        ctw_##name##_decode(&s.w, &s.data, row, col0, n, span[lane]);
        CTW_FORMATS(CASE)
#undef CASE
    }
    __syncwarp();
    for (int i = 0; i < SPANS && first + i < n_all; i++) {
        uint32_t r = (uint32_t)((first + i) / per_row);
        int64_t col0 = (int64_t)(first + i - (uint64_t)r * per_row) * CTW_DECODE_ALIGN;
        int64_t n = p.k - col0 < CTW_DECODE_ALIGN ? p.k - col0 : CTW_DECODE_ALIGN;
        for (int c = lane; c < n; c += SPANS)
            ctw_cuda_put(p.dst, dtype, (int64_t)plane_at(p, r) + col0 + c, span[i][c]);
    }
}

/* ---- choosing ----------------------------------------------------------------------------- */

template <typename S>
static void decode_dense(cudaStream_t stream, struct plane *p, const S *values,
                         enum ctw_dtype dtype)
{
    const dim3 blocks = plane_cut(p, sizeof(S) == 4 || dtype == CTW_F32 ? 4 : 8);
#define TO(T)                                                                                      \
    dense_units<S, T, sizeof(S) + sizeof(T) == 4 ? 8 : 4>                                          \
        <<<blocks, THREADS, 0, stream>>>(*p, values)
    CTW_CUDA_FLOAT_SWITCH(dtype, TO);
#undef TO
}

static enum ctw_status decode(cudaStream_t stream, const struct ctw_shard *shard, struct plane *p,
                              enum ctw_dtype dtype, struct ctw_err *err)
{
    const struct source s = {*shard->weight, *shard->data};
    enum ctw_format_id id = shard->weight->format->id;
    const void *values = s.data.part[CTW_PART_VALUES];
    bool dst_aligned = ctw_cuda_aligned16(p->dst);
    if (p->n_rows == 0)
        return CTW_OK;
    if (id == CTW_FORMAT_pack_quantized) {
        ctw_cuda_decode_pack(stream, p, &s, dtype);
    } else if (id == CTW_FORMAT_exl3) {
        ctw_cuda_decode_bands(stream, p, &s, dtype);
    } else if (id == CTW_FORMAT_nvfp4 && dst_aligned && is_aligned(values, 4)) {
        const dim3 blocks = plane_cut(p, 8);
#define TO(T) nvfp4_units<T, false><<<blocks, THREADS, 0, stream>>>(*p, s, 1.0f)
        CTW_CUDA_FLOAT_SWITCH(dtype, TO);
#undef TO
    } else if ((id == CTW_FORMAT_nvfp4_mlx ||
                (id == CTW_FORMAT_nvfp4_modelopt && s.w.group_size == CTW_NVFP4_GROUP)) &&
               p->k % 8 == 0 && dst_aligned && is_aligned(values, 4)) {
        const float of = id == CTW_FORMAT_nvfp4_mlx ? 2688.0f : 1.0f; /* the largest E4M3 by E2M1 */
        const dim3 blocks = plane_cut(p, 8);
#define TO(T) nvfp4_units<T, true><<<blocks, THREADS, 0, stream>>>(*p, s, of)
        CTW_CUDA_FLOAT_SWITCH(dtype, TO);
#undef TO
    } else if (id == CTW_FORMAT_mxfp4 && dst_aligned && is_aligned(values, 4)) {
        const dim3 blocks = plane_cut(p, 8);
#define TO(T) mx_units<T, 4><<<blocks, THREADS, 0, stream>>>(*p, s)
        CTW_CUDA_FLOAT_SWITCH(dtype, TO);
#undef TO
    } else if (id == CTW_FORMAT_mxfp6 && !s.w.e3m2 && dst_aligned && is_aligned(values, 4)) {
        const dim3 blocks = plane_cut(p, 8);
#define TO(T) mx_units<T, 6><<<blocks, THREADS, 0, stream>>>(*p, s)
        CTW_CUDA_FLOAT_SWITCH(dtype, TO);
#undef TO
    } else if (id == CTW_FORMAT_dense && p->k % 8 == 0 && dst_aligned &&
               ctw_cuda_aligned16(values)) {
#define FROM(S) decode_dense(stream, p, (const S *)values, dtype)
        CTW_CUDA_FLOAT_SWITCH(s.w.dtype, FROM);
#undef FROM
    } else if (!ctw_cuda_decode_bytes(stream, p, &s, dtype) &&
               !ctw_cuda_decode_transposed(stream, p, &s, dtype) &&
               !ctw_cuda_decode_ggml(stream, p, &s, dtype) &&
               !ctw_cuda_decode_affine(stream, p, &s, dtype) &&
               !ctw_cuda_decode_bnb(stream, p, &s, dtype)) {
        p->units = (uint32_t)((p->k + CTW_DECODE_ALIGN - 1) / CTW_DECODE_ALIGN);
        uint64_t spans = (uint64_t)p->n_rows * p->units;
        unsigned blocks = (unsigned)((spans + SPANS - 1) / SPANS);
#define CASE(name)                                                                                       \
    case CTW_FORMAT_##name:                                                                              \
        any_format<CTW_FORMAT_##name><<<blocks, SPANS, 0, stream>>>(*p, s, dtype);                       \
        break;
        switch (id) {
            CTW_FORMATS(CASE)
        default:
            break;
        }
#undef CASE
    }
    return ctw_cuda_launched("decoding a weight", err);
}

enum ctw_status ctw_cuda_decode_range(struct ctw_cuda *cu, cudaStream_t stream,
                                const struct ctw_shard *shard, int64_t row0, int64_t n_rows,
                                enum ctw_dtype dtype, void *dst, int64_t group_rows,
                                int64_t stride_rows, struct ctw_err *err)
{
    const struct ctw_weight *w = shard->weight;
    int64_t step = ctw_shard_step(shard);
    row0 = shard->row0 + row0 * step;
    struct plane p = {NULL, (uint32_t)row0, (uint32_t)n_rows, (uint32_t)w->k, 0, 31, 0, dst};
    if (step == 2 && n_rows <= CTW_CUDA_EVENS)
        p.rows = cu->evens;
    else if (step != 1)
        return ctw_fail(err, CTW_EUNSUP, "cuda: %lld rows of a weight, %lld apart",
                        (long long)n_rows, (long long)step);
    if (group_rows > 0) {
        for (p.shift = 0; (int64_t)1 << p.shift < group_rows;)
            p.shift++;
        p.stride = (uint32_t)stride_rows;
        if ((int64_t)1 << p.shift != group_rows || group_rows < ROWS)
            return ctw_fail(err, CTW_EINTERNAL, "cuda: row groups too small or not a power of two");
    } else if (w->format->id == CTW_FORMAT_dense && dtype == w->dtype && step == 1) {
        const char *src = (const char *)shard->data->part[CTW_PART_VALUES];
        return ctw_cuda_check(cudaMemcpyAsync(dst, src + (size_t)row0 * w->row_bytes,
                                              (size_t)n_rows * w->row_bytes,
                                              cudaMemcpyDeviceToDevice, stream),
                              "copying a weight", err);
    }
    return decode(stream, shard, &p, dtype, err);
}

enum ctw_status ctw_cuda_decode_rows(struct ctw_cuda *cu, const struct ctw_shard *shard,
                                     const int32_t *rows, int64_t n_rows, enum ctw_dtype dtype,
                                     void *dst, struct ctw_err *err)
{
    struct plane p = {
        rows, (uint32_t)shard->row0, (uint32_t)n_rows, (uint32_t)shard->weight->k, 0, 31, 0, dst};
    return decode(cu->stream, shard, &p, dtype, err);
}

enum ctw_status ctw_cuda_decode(struct ctw_cuda *cu, const struct ctw_op_decode *op,
                                struct ctw_err *err)
{
    return ctw_cuda_decode_range(cu, cu->stream, op->shard, op->row0, op->n_rows, op->dtype, op->dst, 0,
                                 0, err);
}
