/*
 * Weights decoded into matrices for products: bit-equal to kernels/formats, but for the payload of a NaN.
 *
 * Kernels: pack_fast (4 and 8 bits to the scales' own 16-bit type), pack_any (every pack-quantized
 * weight), nvfp4_units, dense_units (nothing but moving and converting), and any_format, which calls a
 * format's own decode function, for what the others do not take: odd widths and alignments, and formats
 * to come. All but the last give a thread a unit of 8 (or 4) columns of ROWS rows: a warp then stores 512
 * bytes side by side, and each thread has ROWS loads on their way at once. Such a kernel moves 2 bytes
 * and more for each element and must spend at most some 15 instructions on it to be bound by memory.
 */
#include "kernels/cuda/elements.h"
#include "kernels/formats/all.h"

enum { THREADS = 128, ROWS = 4, SPANS = 32 };

/* Which rows are decoded, and where they go. */
struct plane {
    const int32_t *rows; /* device: the weight's row for each of ours; NULL: row0 + r */
    int64_t row0;
    uint32_t n_rows;
    int64_t k;
    uint32_t units, col_blocks; /* units in a row, and blocks of THREADS units */
    int shift;                  /* our rows go to dst in blocks of 1 << shift, */
    int64_t stride;             /* which start at every stride-th row of dst */
    void *dst;
};

/* The weight, as device code sees it. */
struct source {
    struct ctw_weight w;
    struct ctw_weight_data data;
};

/* The thread's unit and the first of its ROWS rows; false: it has none. */
static __device__ __forceinline__ bool plane_place(const struct plane &p, uint32_t *unit, uint32_t *r0)
{
    uint32_t block = blockIdx.x / p.col_blocks;
    *unit = (blockIdx.x - block * p.col_blocks) * THREADS + threadIdx.x;
    *r0 = block * ROWS;
    return *unit < p.units;
}

static __device__ __forceinline__ int64_t plane_row(const struct plane &p, uint32_t r)
{
    return p.rows != NULL ? p.rows[r] : p.row0 + r;
}

/* The weight's rows for ours from r0 on. Past the last it is the last, so that loads need no branches. */
static __device__ __forceinline__ void plane_rows(const struct plane &p, uint32_t r0,
                                                  int64_t (&row)[ROWS])
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        row[i] = r0 + i < p.n_rows ? r0 + i : p.n_rows - 1;
    if (p.rows != NULL) {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            row[i] = p.rows[row[i]];
    } else {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            row[i] += p.row0;
    }
}

/* The index in dst of the first element of our row r. */
static __device__ __forceinline__ int64_t plane_at(const struct plane &p, uint32_t r)
{
    return ((r >> p.shift) * p.stride + (r & ((1u << p.shift) - 1u))) * p.k;
}

/* ---- pack-quantized ----------------------------------------------------------------------- */

/* An exact float from a small integer: 2^23 + v as bits, less 2^23. */
static __device__ __forceinline__ float above_2_23(uint32_t v)
{
    return __uint_as_float(0x4b000000u | v);
}

/* The zero points, as codes, of group g in each row. 32 % BITS is 0: none crosses a word's end. */
template <int BITS>
static __device__ __forceinline__ void pack_zeros(const struct source &s, const int64_t (&row)[ROWS],
                                                  int64_t g, int32_t (&zero)[ROWS])
{
    const void *zeros = s.data.part[CTW_PART_ZERO_POINT];
    if (s.w.symmetric) {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            zero[i] = 1 << (BITS - 1);
    } else if (s.w.zero_packed) {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            zero[i] = (int32_t)((const uint32_t *)zeros)[row[i] * BITS / 32 * s.w.n_groups + g];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            zero[i] = (int32_t)((uint32_t)zero[i] >> (int)(row[i] * BITS % 32) & ((1u << BITS) - 1u));
    } else {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            zero[i] = ((const int8_t *)zeros)[row[i] * s.w.scale_stride + g] + (1 << (BITS - 1));
    }
}

/*
 * BITS 4 or 8: a unit is one or two words, in either layout. group_units: units that share a scale.
 * T is the type of scales and of dst. (u - z) is exact, so the product is the format's, rounded to fp32
 * and then to T as there.
 */
template <int BITS, typename T>
__global__ void __launch_bounds__(THREADS)
    pack_fast(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
              uint32_t group_units)
{
    constexpr int WORDS = BITS / 4;
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    int64_t g = unit / group_units;
    const uint8_t *values = (const uint8_t *)s.data.part[CTW_PART_VALUES] + (size_t)unit * BITS;
    const T *scales = (const T *)s.data.part[CTW_PART_SCALE];
    int64_t row[ROWS];
    uint32_t word[ROWS][WORDS];
    int32_t zero[ROWS];
    T scale[ROWS];
    plane_rows(p, r0, row);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint8_t *at = values + (size_t)row[i] * s.w.row_bytes;
        if constexpr (WORDS == 1) {
            word[i][0] = *(const uint32_t *)at;
        } else {
            uint2 two = *(const uint2 *)at;
            word[i][0] = two.x;
            word[i][1] = two.y;
        }
        scale[i] = scales[row[i] * s.w.scale_stride + g];
    }
    pack_zeros<BITS>(s, row, g, zero);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (r0 + i >= p.n_rows)
            break;
        float v[8], base = 8388608.0f + (float)zero[i], a = ctw_cuda_widen(scale[i]); /* exact */
#pragma unroll
        for (int c = 0; c < 8; c++) {
            uint32_t code = word[i][c * BITS / 32] >> (c * BITS % 32) & ((1u << BITS) - 1u);
            v[c] = (above_2_23(code) - base) * a;
        }
        ctw_cuda_store((T *)p.dst + plane_at(p, r0 + i) + (int64_t)unit * 8, v);
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
    uint32_t n = p.k - c0 < 8 ? (uint32_t)(p.k - c0) : 8, group[8];
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
            ctw_cuda_store(dst, v);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                if (i < n)
                    ctw_cuda_narrow(v[i], dst + i);
        }
    }
}

/* ---- nvfp4 -------------------------------------------------------------------------------- */

/* One row's unit: a is its scale; where PLAIN, 2^126 times it. */
template <typename T, bool PLAIN>
static __device__ __forceinline__ void nvfp4_values8(uint32_t word, float a, T *dst)
{
    float v[8];
#pragma unroll
    for (int c = 0; c < 8; c++) {
        uint32_t code = word >> (4 * c);
        float e2m1 = __uint_as_float((code & 8u) << 28 | (code & 7u) << 22);
        v[c] = (PLAIN ? e2m1 : e2m1 * 0x1p126f) * a;
        if constexpr (!ctw_cuda_same_type<T, __nv_bfloat16>)
            v[c] = ctw_cuda_round(v[c], CTW_BF16);
    }
    ctw_cuda_store(dst, v);
}

/*
 * A unit of 8 columns is one word. An E2M1 code's three low bits, put where a float's exponent ends and
 * its mantissa begins, are its magnitude times 2^-126 (0.5 is a subnormal there too, and exact). Of a
 * usual global scale, which makes a scale at most 448 / 256, the scale takes the 2^126.
 */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    nvfp4_units(const __grid_constant__ struct plane p, const __grid_constant__ struct source s)
{
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    const uint32_t *values = (const uint32_t *)s.data.part[CTW_PART_VALUES] + unit;
    const uint8_t *scales = (const uint8_t *)s.data.part[CTW_PART_SCALE] + unit / 2;
    int64_t row[ROWS];
    uint32_t word[ROWS];
    uint8_t scale[ROWS];
    plane_rows(p, r0, row);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        word[i] = values[row[i] * p.units];
        scale[i] = scales[row[i] * s.w.scale_stride];
    }
    /* After the loads above, which would else wait for its dtype's branches. */
    float global = ctw_load_value(s.data.part[CTW_PART_GLOBAL_SCALE],
                                  s.w.part[CTW_PART_GLOBAL_SCALE].dtype, 0);
    bool plain = global >= 256.0f && global <= 0x1p60f;
    float inverse = __frcp_rn(global);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (r0 + i >= p.n_rows)
            break;
        T *dst = (T *)p.dst + plane_at(p, r0 + i) + (int64_t)unit * 8;
        if (plain)
            nvfp4_values8<T, true>(word[i], ctw_nvfp4_scale(scale[i], global, inverse) * 0x1p126f, dst);
        else
            nvfp4_values8<T, false>(word[i], __fdiv_rn(ctw_e4m3_to_f32(scale[i]), global), dst);
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
    int64_t row[ROWS];
    plane_rows(p, r0, row);
    values += (int64_t)unit * U;
    T *dst = (T *)p.dst + (int64_t)unit * U;
    if constexpr (ctw_cuda_same_type<S, T>) { /* U elements are 16 bytes */
        uint4 v[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            v[i] = __ldcs((const uint4 *)(values + row[i] * p.k));
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (r0 + i < p.n_rows)
                *(uint4 *)(dst + plane_at(p, r0 + i)) = v[i];
    } else {
        float v[ROWS][U];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            ctw_cuda_load<true>(values + row[i] * p.k, v[i]);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (r0 + i < p.n_rows)
                ctw_cuda_store(dst + plane_at(p, r0 + i), v[i]);
    }
}

/* ---- any format --------------------------------------------------------------------------- */

/*
 * A block is one warp. Each lane decodes a span of CTW_DECODE_ALIGN columns with the format's own
 * function into its row of shared memory (one word longer than a span, so that lanes use banks of their
 * own); then the lanes store the spans together.
 */
template <typename T>
__global__ void __launch_bounds__(SPANS)
    any_format(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
               enum ctw_format_id id)
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
/* pack_any takes all of pack-quantized. */
#define CASE(name)                                                                                       \
    case CTW_FORMAT_##name:                                                                              \
        if constexpr (CTW_FORMAT_##name != CTW_FORMAT_pack_quantized)                                    \
            ctw_##name##_decode(&s.w, &s.data, row, col0, n, span[lane]);                                \
        break;
        switch (id) {
            CTW_FORMATS(CASE)
        default:
            break;
        }
#undef CASE
    }
    __syncwarp();
    for (int i = 0; i < SPANS && first + i < n_all; i++) {
        uint32_t r = (uint32_t)((first + i) / per_row);
        int64_t col0 = (int64_t)(first + i - (uint64_t)r * per_row) * CTW_DECODE_ALIGN;
        int64_t n = p.k - col0 < CTW_DECODE_ALIGN ? p.k - col0 : CTW_DECODE_ALIGN;
        T *dst = (T *)p.dst + plane_at(p, r) + col0;
        for (int c = lane; c < n; c += SPANS)
            ctw_cuda_narrow(span[i][c], dst + c);
    }
}

/* ---- choosing ----------------------------------------------------------------------------- */

/* Cuts the rows into units of so many columns; the number of blocks. */
static unsigned plane_cut(struct plane *p, int unit)
{
    p->units = (uint32_t)((p->k + unit - 1) / unit);
    p->col_blocks = (p->units + THREADS - 1) / THREADS;
    return p->col_blocks * ((p->n_rows + ROWS - 1) / ROWS);
}

static bool is_aligned(const void *p, size_t bytes)
{
    return (uintptr_t)p % bytes == 0;
}

static void decode_pack(cudaStream_t stream, struct plane *p, const struct source *s,
                        enum ctw_dtype dtype)
{
    const struct ctw_weight *w = &s->w;
    bool whole = p->k % 8 == 0 && ctw_cuda_aligned16(p->dst);
    bool fast = whole && (w->bits == 4 || w->bits == 8) && !w->indexed && w->group_size % 8 == 0 &&
                dtype == w->dtype && dtype != CTW_F32 && is_aligned(s->data.part[CTW_PART_SCALE], 2) &&
                is_aligned(s->data.part[CTW_PART_VALUES], (size_t)w->bits) &&
                (!w->zero_packed || is_aligned(s->data.part[CTW_PART_ZERO_POINT], 4));
    unsigned blocks = plane_cut(p, 8);
    uint32_t group_units = (uint32_t)(w->group_size / 8);
#define ANY(T) pack_any<T><<<blocks, THREADS, 0, stream>>>(*p, *s, whole)
    if (!fast)
        CTW_CUDA_FLOAT_SWITCH(dtype, ANY);
    else if (w->bits == 4 && dtype == CTW_BF16)
        pack_fast<4, __nv_bfloat16><<<blocks, THREADS, 0, stream>>>(*p, *s, group_units);
    else if (w->bits == 4)
        pack_fast<4, __half><<<blocks, THREADS, 0, stream>>>(*p, *s, group_units);
    else if (dtype == CTW_BF16)
        pack_fast<8, __nv_bfloat16><<<blocks, THREADS, 0, stream>>>(*p, *s, group_units);
    else
        pack_fast<8, __half><<<blocks, THREADS, 0, stream>>>(*p, *s, group_units);
#undef ANY
}

template <typename S>
static void decode_dense(cudaStream_t stream, struct plane *p, const S *values, enum ctw_dtype dtype)
{
    unsigned blocks = plane_cut(p, sizeof(S) == 4 || dtype == CTW_F32 ? 4 : 8);
#define TO(T)                                                                                            \
    dense_units<S, T, sizeof(S) + sizeof(T) == 4 ? 8 : 4><<<blocks, THREADS, 0, stream>>>(*p, values)
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
        decode_pack(stream, p, &s, dtype);
    } else if (id == CTW_FORMAT_nvfp4 && dst_aligned && is_aligned(values, 4)) {
        unsigned blocks = plane_cut(p, 8);
#define TO(T) nvfp4_units<T><<<blocks, THREADS, 0, stream>>>(*p, s)
        CTW_CUDA_FLOAT_SWITCH(dtype, TO);
#undef TO
    } else if (id == CTW_FORMAT_dense && p->k % 8 == 0 && dst_aligned && ctw_cuda_aligned16(values)) {
#define FROM(S) decode_dense(stream, p, (const S *)values, dtype)
        CTW_CUDA_FLOAT_SWITCH(s.w.dtype, FROM);
#undef FROM
    } else {
        p->units = (uint32_t)((p->k + CTW_DECODE_ALIGN - 1) / CTW_DECODE_ALIGN);
        uint64_t spans = (uint64_t)p->n_rows * p->units;
        unsigned blocks = (unsigned)((spans + SPANS - 1) / SPANS);
#define TO(T) any_format<T><<<blocks, SPANS, 0, stream>>>(*p, s, id)
        CTW_CUDA_FLOAT_SWITCH(dtype, TO);
#undef TO
    }
    return ctw_cuda_launched("decoding a weight", err);
}

enum ctw_status ctw_cuda_decode(struct ctw_cuda *cu, cudaStream_t stream, const struct ctw_shard *shard,
                                int64_t row0, int64_t n_rows, enum ctw_dtype dtype, void *dst,
                                int64_t group_rows, int64_t stride_rows, struct ctw_err *err)
{
    (void)cu;
    const struct ctw_weight *w = shard->weight;
    struct plane p = {NULL, row0, (uint32_t)n_rows, w->k, 0, 0, 31, 0, dst};
    if (group_rows > 0) {
        for (p.shift = 0; (int64_t)1 << p.shift < group_rows;)
            p.shift++;
        p.stride = stride_rows;
        if ((int64_t)1 << p.shift != group_rows)
            return ctw_fail(err, CTW_EINTERNAL, "cuda: rows in groups that are no power of two");
    } else if (w->format->id == CTW_FORMAT_dense && dtype == w->dtype) {
        const char *src = (const char *)shard->data->part[CTW_PART_VALUES];
        return ctw_cuda_check(cudaMemcpyAsync(dst, src + (size_t)row0 * w->row_bytes,
                                              (size_t)n_rows * w->row_bytes, cudaMemcpyDeviceToDevice,
                                              stream),
                              "copying a weight", err);
    }
    return decode(stream, shard, &p, dtype, err);
}

enum ctw_status ctw_cuda_decode_rows(struct ctw_cuda *cu, const struct ctw_shard *shard,
                                     const int32_t *rows, int64_t n_rows, enum ctw_dtype dtype, void *dst,
                                     struct ctw_err *err)
{
    struct plane p = {rows, 0, (uint32_t)n_rows, shard->weight->k, 0, 0, 31, 0, dst};
    return decode(cu->stream, shard, &p, dtype, err);
}
