/*
 * Weights that are stored with their outputs along the rows (dense-transposed, gptq, awq) decoded
 * into matrices: bit-equal to kernels/formats, except for a NaN's payload.
 *
 * A tile passes through shared memory: a warp reads neighbouring outputs of one input, and stores
 * neighbouring inputs of one output. Kernels: transposed_tile (only moves and converts); gptq_tile,
 * gptq_indexed and awq_tile, which compute in the scales' own 16-bit type; any_format does the rest
 * (2 and 3 bits, F32, odd alignments).
 */
#include "kernels/cuda/decode/decode_pack.cuh"

enum { TILE = 64, TILE_THREADS = 256 };

/* ---- dense, transposed -------------------------------------------------------------------- */

/*
 * values [k, n]. A tile has 64 rows and columns; its columns are 65 or 33 words apart, so that the
 * columns of a row lie in different banks.
 */
template <typename S, typename T>
__global__ void __launch_bounds__(TILE_THREADS)
    transposed_tile(const __grid_constant__ struct plane p, const S *values, uint32_t n)
{
    __shared__ S tile[TILE][TILE + 4 / sizeof(S)];
    uint32_t per_row = (p.k + TILE - 1) / TILE, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t c0 = blockIdx.x % per_row * TILE, r0 = blockIdx.x / per_row * TILE;
    for (uint32_t c = warp; c < TILE && c0 + c < p.k; c += TILE_THREADS / 32)
        for (uint32_t r = lane; r < TILE && r0 + r < p.n_rows; r += 32)
            tile[c][r] = values[(uint64_t)(c0 + c) * n + p.row0 + r0 + r];
    __syncthreads();
    for (uint32_t r = warp; r < TILE && r0 + r < p.n_rows; r += TILE_THREADS / 32) {
        T *dst = (T *)p.dst + plane_at(p, r0 + r) + c0;
        for (uint32_t c = lane; c < TILE && c0 + c < p.k; c += 32)
            ctw_cuda_narrow(ctw_cuda_widen(tile[c][r]), dst + c);
    }
}

/* ---- gptq and awq ------------------------------------------------------------------------- */

/* A tile's units are PITCH words apart, odd, so that neither loads nor stores meet in a bank. */
enum {
    UNITS = 32,     /* of 8 columns, in a tile: a warp stores 512 bytes of a row */
    RUN = 8,        /* rows of a tile that a warp decodes one after another */
    AWQ_WORDS = 16, /* of 8 outputs, in a tile */
    PITCH = UNITS + 1
};

/* Eight values of type T, the first in the first word's lower half, stored as D. */
template <typename T, typename D>
static __device__ __forceinline__ void store_pairs(D *dst, const uint32_t (&pair)[4])
{
    if constexpr (ctw_cuda_same_type<T, D>) {
        store16((uint4 *)dst, make_uint4(pair[0], pair[1], pair[2], pair[3]));
    } else {
        float v[8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = ctw_cuda_widen(as_pair<T>(pair[i]).x);
            v[2 * i + 1] = ctw_cuda_widen(as_pair<T>(pair[i]).y);
        }
        unit_store(dst, v);
    }
}

/* The tile's first unit and row. */
static __device__ __forceinline__ void tile_place(const struct plane &p, uint32_t rows,
                                                  uint32_t *u0, uint32_t *r0)
{
    uint32_t across = (p.units + UNITS - 1) / UNITS;
    *u0 = blockIdx.x % across * UNITS;
    *r0 = blockIdx.x / across * rows;
}

/* A tile of 32 units and 32 rows of gptq words, as loaded: the row is the lane's, the units are
 * every WARPS-th from the warp's on. */
enum { WARPS = THREADS / 32 };
static_assert(WARPS * RUN == 32, "a tile has a row for each lane");

template <int BITS>
static __device__ __forceinline__ void load_tile(const struct plane &p, const struct source &s,
                                                 uint32_t u0, uint32_t r0,
                                                 uint32_t (&word)[RUN][WORDS<BITS>])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t row = p.row0 + (r0 + lane < p.n_rows ? r0 + lane : p.n_rows - 1);
    const uint32_t *values = (const uint32_t *)s.data.part[CTW_PART_VALUES] + row;
#pragma unroll
    for (uint32_t i = 0; i < RUN; i++) {
        uint32_t u = u0 + warp + i * WARPS;
        u = u < p.units ? u : p.units - 1;
#pragma unroll
        for (uint32_t w = 0; w < WORDS<BITS>; w++)
            word[i][w] = __ldcs(values + (uint64_t)(u * WORDS<BITS> + w) * (uint32_t)s.w.n);
    }
}

/* Into tile[word of a unit][row][unit]. */
template <int BITS>
static __device__ __forceinline__ void share_tile(uint32_t (&tile)[WORDS<BITS>][RUN * WARPS][PITCH],
                                                  const uint32_t (&word)[RUN][WORDS<BITS>])
{
#pragma unroll
    for (uint32_t i = 0; i < RUN; i++)
#pragma unroll
        for (uint32_t w = 0; w < WORDS<BITS>; w++)
            tile[w][threadIdx.x % 32][threadIdx.x / 32 + i * WARPS] = word[i][w];
    __syncthreads();
}

/*
 * Each word is a row's codes of 8 (or 4) columns. A lane has a unit, so one group, whose scales and
 * zero points of RUN rows are loaded before the words arrive. group = unit * per_unit >> 31.
 */
template <int BITS, typename T, typename D>
__global__ void __launch_bounds__(THREADS)
    gptq_tile(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
              uint32_t per_unit)
{
    constexpr uint32_t MASK = (1u << BITS) - 1u;
    __shared__ uint32_t tile[WORDS<BITS>][RUN * WARPS][PITCH];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, u0, r0, n = (uint32_t)s.w.n;
    uint32_t word[RUN][WORDS<BITS>], scale[RUN], zero[RUN];
    tile_place(p, RUN * WARPS, &u0, &r0);
    load_tile<BITS>(p, s, u0, r0, word);
    const uint32_t unit = u0 + lane < p.units ? u0 + lane : p.units - 1, first = r0 + warp * RUN;
    const uint32_t g = (uint32_t)((uint64_t)unit * per_unit >> 31), last = p.n_rows - 1;
    const T *scales = (const T *)s.data.part[CTW_PART_SCALE] + (uint64_t)g * n;
    const uint32_t *zeros =
        (const uint32_t *)s.data.part[CTW_PART_ZERO_POINT] + (uint64_t)g * ((n * BITS + 31) / 32);
    const uint32_t less = s.w.zero_less_one ? 0xffffffffu / MASK : 0u; /* 1 in every field */
#pragma unroll
    for (uint32_t i = 0; i < RUN; i++) {
        uint32_t row = p.row0 + (first + i < last ? first + i : last);
        scale[i] = bits_of(scales[row]) * 0x10001u;
        zero[i] = (zeros[row * BITS / 32] + less) >> (row * BITS % 32) & MASK;
    }
    share_tile<BITS>(tile, word);
    if (u0 + lane >= p.units)
        return;
    D *dst = (D *)p.dst + plane_at(p, first) + unit * 8;
#pragma unroll
    for (uint32_t i = 0; i < RUN; i++) {
        if (first + i >= p.n_rows)
            break;
        uint32_t codes[WORDS<BITS>], pair[4], z = integer_bits<T>((int32_t)zero[i]) * 0x10001u;
#pragma unroll
        for (uint32_t w = 0; w < WORDS<BITS>; w++)
            codes[w] = tile[w][warp * RUN + i][lane];
        code_pairs<BITS, T>(codes, unit_words{}, false, pair);
#pragma unroll
        for (int c = 0; c < 4; c++)
            pair[c] = pair_value<T>(pair_number<BITS, T>(pair[c]), z, scale[i]);
        store_pairs<T>(dst + (uint64_t)i * p.k, pair);
    }
}

/*
 * Activation order, 4 bits: each column names its group. Rows are aligned to 8, so that a column's
 * zero points of RUN rows are one word, and its scales 16 bytes.
 */
template <typename T, typename D>
__global__ void __launch_bounds__(THREADS)
    gptq_indexed(const __grid_constant__ struct plane p, const __grid_constant__ struct source s)
{
    static_assert(RUN == 8, "a word of zero points");
    __shared__ uint32_t tile[1][RUN * WARPS][PITCH];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, u0, r0, n = (uint32_t)s.w.n;
    uint32_t word[RUN][1], zero[8];
    uint4 scale[8]; /* of a column: one per row */
    tile_place(p, RUN * WARPS, &u0, &r0);
    load_tile<4>(p, s, u0, r0, word);
    const uint32_t unit = u0 + lane < p.units ? u0 + lane : p.units - 1, first = r0 + warp * RUN;
    const uint32_t rows8 = (p.row0 + (first < p.n_rows ? first : 0)) / 8;
    const uint4 *index = (const uint4 *)s.data.part[CTW_PART_GROUP_INDEX] + unit * 2;
    const uint4 low = index[0], high = index[1];
    const uint32_t group[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const uint32_t less = s.w.zero_less_one ? 0x11111111u : 0u; /* 1 in every field */
#pragma unroll
    for (int c = 0; c < 8; c++) {
        uint64_t at = (uint64_t)group[c] * (n / 8) + rows8;
        scale[c] = ((const uint4 *)s.data.part[CTW_PART_SCALE])[at];
        zero[c] = ((const uint32_t *)s.data.part[CTW_PART_ZERO_POINT])[at] + less;
    }
    share_tile<4>(tile, word);
    if (u0 + lane >= p.units)
        return;
    D *dst = (D *)p.dst + plane_at(p, first) + unit * 8;
#pragma unroll
    for (uint32_t i = 0; i < RUN; i++) {
        if (first + i >= p.n_rows)
            break;
        uint32_t codes[1] = {tile[0][warp * RUN + i][lane]}, pair[4];
        code_pairs<4, T>(codes, unit_words{}, false, pair);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const uint4 &even = scale[2 * c], &odd = scale[2 * c + 1];
            const uint32_t a[4] = {even.x, even.y, even.z, even.w},
                           b[4] = {odd.x, odd.y, odd.z, odd.w};
            uint32_t scales = i % 2 == 0 ? lower(a[i / 2], b[i / 2]) : upper(a[i / 2], b[i / 2]);
            uint32_t zeros =
                i < 4 ? lower(zero[2 * c], zero[2 * c + 1]) : upper(zero[2 * c], zero[2 * c + 1]);
            zeros = masked(zeros >> (i % 4 * 4), 0x000f000f, LARGE<T>);
            pair[c] = pair_value<T>(pair[c], zeros, scales); /* LARGE goes with the difference */
        }
        store_pairs<T>(dst + (uint64_t)i * p.k, pair);
    }
}

/*
 * A tile of 32 units and 16 words, each of one column's codes for 8 rows. A lane has a unit: of
 * each of its warp's words it turns 8 columns by 8 rows. Row r of a word is nibble r / 2 of its
 * lower half, or of its upper half if r is odd.
 */
template <typename T, typename D>
__global__ void __launch_bounds__(TILE_THREADS)
    awq_tile(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
             uint32_t per_unit)
{
    constexpr uint32_t LOADS = UNITS * 8 * AWQ_WORDS / TILE_THREADS,
                       STEP = TILE_THREADS / AWQ_WORDS;
    constexpr uint32_t EACH = AWQ_WORDS / (TILE_THREADS / 32), NIBBLES = 0x000f000f;
    __shared__ uint32_t tile[8][AWQ_WORDS][PITCH]; /* [column of a unit][word][unit] */
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, u0, r0, n = (uint32_t)s.w.n;
    tile_place(p, AWQ_WORDS * 8, &u0, &r0);
    const uint32_t n_words = (p.n_rows + 7) / 8, w0 = r0 / 8, across = threadIdx.x % AWQ_WORDS;
    const uint32_t down = threadIdx.x / AWQ_WORDS;
    const uint32_t *values = (const uint32_t *)s.data.part[CTW_PART_VALUES] + p.row0 / 8 +
                             (w0 + across < n_words ? w0 + across : n_words - 1);
    uint32_t word[LOADS], zero[EACH];
    uint4 scale[EACH];
#pragma unroll
    for (uint32_t i = 0; i < LOADS; i++) {
        uint32_t c = u0 * 8 + down + i * STEP;
        word[i] = __ldcs(values + (uint64_t)(c < p.k ? c : p.k - 1) * (n / 8));
    }
    const uint32_t unit = u0 + lane < p.units ? u0 + lane : p.units - 1;
    const uint32_t g = (uint32_t)((uint64_t)unit * per_unit >> 31);
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        uint32_t w = w0 + warp * EACH + i;
        uint64_t at = (uint64_t)g * (n / 8) + p.row0 / 8 + (w < n_words ? w : n_words - 1);
        scale[i] = ((const uint4 *)s.data.part[CTW_PART_SCALE])[at];
        zero[i] = ((const uint32_t *)s.data.part[CTW_PART_ZERO_POINT])[at];
    }
#pragma unroll
    for (uint32_t i = 0; i < LOADS; i++) {
        uint32_t c = down + i * STEP;
        tile[c % 8][across][c / 8] = word[i];
    }
    __syncthreads();
    if (u0 + lane >= p.units)
        return;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t w = warp * EACH + i, r = r0 + w * 8;
        if (r >= p.n_rows)
            break;
        uint32_t half[2][4]; /* pairs of columns; [1]: of odd rows */
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint32_t a = tile[2 * c][w][lane], b = tile[2 * c + 1][w][lane];
            half[0][c] = lower(a, b);
            half[1][c] = upper(a, b);
        }
        const uint32_t zeros[2] = {lower(zero[i], zero[i]), upper(zero[i], zero[i])};
        const uint32_t scales[4] = {scale[i].x, scale[i].y, scale[i].z, scale[i].w};
        D *dst = (D *)p.dst + plane_at(p, r) + unit * 8;
#pragma unroll
        for (uint32_t q = 0; q < 8; q++) {
            if (r + q >= p.n_rows)
                break;
            uint32_t pair[4], both = scales[q / 2];
            uint32_t a = q % 2 == 0 ? lower(both, both) : upper(both, both);
            uint32_t z = masked(zeros[q % 2] >> (q / 2 * 4), NIBBLES, LARGE<T>);
#pragma unroll
            for (int c = 0; c < 4; c++) /* LARGE goes with the difference */
                pair[c] =
                    pair_value<T>(masked(half[q % 2][c] >> (q / 2 * 4), NIBBLES, LARGE<T>), z, a);
            store_pairs<T>(dst + (uint64_t)q * p.k, pair);
        }
    }
}

/* ---- choosing ----------------------------------------------------------------------------- */

template <typename S>
static void decode_dense(cudaStream_t stream, const struct plane *p, const S *values, int64_t n,
                         enum ctw_dtype dtype)
{
    uint64_t tiles = (uint64_t)((p->k + TILE - 1) / TILE) * ((p->n_rows + TILE - 1) / TILE);
#define TO(T)                                                                                      \
    transposed_tile<S, T><<<(unsigned)tiles, TILE_THREADS, 0, stream>>>(*p, values, (uint32_t)n)
    CTW_CUDA_FLOAT_SWITCH(dtype, TO);
#undef TO
}

/* Do the tiles support it? A tile's rows lie in blocks of 8 at least. */
static bool suits(const struct plane *p, const struct source *s)
{
    const struct ctw_weight *w = &s->w;
    return p->rows == NULL && p->shift >= 3 && p->k % 8 == 0 && ctw_cuda_aligned16(p->dst) &&
           is_aligned(s->data.part[CTW_PART_VALUES], 4) &&
           is_aligned(s->data.part[CTW_PART_SCALE], 2) &&
           is_aligned(s->data.part[CTW_PART_ZERO_POINT], 4);
}

/* Scales of type T to D. */
template <typename T, typename D>
static bool decode_words(cudaStream_t stream, struct plane *p, const struct source *s)
{
    const struct ctw_weight *w = &s->w;
    const bool awq = w->format->id == CTW_FORMAT_awq;
    /* The rows of a word, and their scales, together? */
    const bool by_words =
        w->n % 8 == 0 && p->row0 % 8 == 0 && ctw_cuda_aligned16(s->data.part[CTW_PART_SCALE]);
    uint64_t units = p->k / 8, group_units = (uint64_t)w->group_size / 8;
    uint32_t per_unit = 0; /* a row's only group may have any width */
    if (w->n_groups > 1 && !w->indexed) {
        if (w->group_size % 8 != 0 || units * group_units >= (uint64_t)1 << 31)
            return false;
        per_unit = (uint32_t)((((uint64_t)1 << 31) + group_units - 1) / group_units);
    }
    p->units = (uint32_t)units;
    const uint32_t rows = awq ? AWQ_WORDS * 8 : 32;
    const unsigned blocks = (p->units + UNITS - 1) / UNITS * ((p->n_rows + rows - 1) / rows);
    if (awq) {
        if (!by_words)
            return false;
        awq_tile<T, D><<<blocks, TILE_THREADS, 0, stream>>>(*p, *s, per_unit);
    } else if (w->indexed) {
        if (w->bits != 4 || !by_words || !ctw_cuda_aligned16(s->data.part[CTW_PART_GROUP_INDEX]))
            return false;
        gptq_indexed<T, D><<<blocks, THREADS, 0, stream>>>(*p, *s);
    } else if (w->bits == 4) {
        gptq_tile<4, T, D><<<blocks, THREADS, 0, stream>>>(*p, *s, per_unit);
    } else if (w->bits == 8) {
        gptq_tile<8, T, D><<<blocks, THREADS, 0, stream>>>(*p, *s, per_unit);
    } else {
        return false;
    }
    return true;
}

bool ctw_cuda_decode_transposed(cudaStream_t stream, struct plane *p, const struct source *s,
                                enum ctw_dtype dtype)
{
    const struct ctw_weight *w = &s->w;
    const void *values = s->data.part[CTW_PART_VALUES];
    if (w->format->id == CTW_FORMAT_dense_transposed) {
        if (p->rows != NULL || w->rows_of_head != w->n ||
            !is_aligned(values, ctw_dtype_bytes(w->dtype)))
            return false;
#define FROM(S) decode_dense(stream, p, (const S *)values, w->n, dtype)
        CTW_CUDA_FLOAT_SWITCH(w->dtype, FROM);
#undef FROM
        return true;
    }
    if ((w->format->id != CTW_FORMAT_gptq && w->format->id != CTW_FORMAT_awq) || !suits(p, s))
        return false;
    if (w->dtype == CTW_F16 && dtype == CTW_F16)
        return decode_words<__half, __half>(stream, p, s);
    if (w->dtype == CTW_F16 && dtype == CTW_BF16)
        return decode_words<__half, __nv_bfloat16>(stream, p, s);
    if (w->dtype == CTW_BF16 && dtype == CTW_BF16)
        return decode_words<__nv_bfloat16, __nv_bfloat16>(stream, p, s);
    return false;
}
