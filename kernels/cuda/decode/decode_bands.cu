/*
 * EXL3 (kernels/formats/exl3/decode.h): a block of threads decodes a block of 128 x 128 in shared
 * memory, with the definition's terms in its order. General: nothing in it depends on the GPU.
 *
 * The sums' order is the definition, so no butterfly can replace them: 85.3 fused multiply-adds per
 * sum are its own, two sums make a weight, and they take nearly all of the time. Two threads share
 * a column of sums. A thread has 64 sums: 16 neighbours, and the sums whose indices are 32, 64 and
 * 96 larger. Sums whose indices differ by a multiple of 32 have their first 32 terms in common,
 * sums whose indices differ by 64 their first 64 terms. So a sum takes 88 steps.
 */
#include "kernels/cuda/decode/decode.cuh"
#include "kernels/formats/exl3/decode.h"

enum {
    SIDE = CTW_EXL3_BLOCK,
    TILES = SIDE / CTW_EXL3_TILE, /* along a side */
    PITCH = SIDE + 8, /* halves between rows: 16 bytes of eight rows are in different banks */
    BAND_THREADS = 2 * SIDE,
    SUMS = 16,
    SETS = 4, /* of sums that a thread has; set q begins at sum 32 q of the thread's first */
    TERMS = 8 /* loaded at once */
};

typedef __half square[SIDE][PITCH];

/* ---- codes --------------------------------------------------------------------------------- */

/* ctw_exl3_value(). Both functions round exact numbers once, so fp16 arithmetic has their bits. */
template <int CODEBOOK> static __device__ __forceinline__ __half code_value(uint32_t state)
{
    if constexpr (CODEBOOK == CTW_EXL3_MUL1) { /* 0x6400 + c is the number 1024 + c */
        const uint32_t sum = __dp4a(state * CTW_EXL3_MUL1_FACTOR, 0x01010101u, 0x6400u);
        return __hfma(__ushort_as_half((unsigned short)sum), __ushort_as_half(0x1eee),
                      __ushort_as_half(0xc931));
    }
    uint32_t x =
        CODEBOOK == CTW_EXL3_MCG ? state * CTW_EXL3_MCG_FACTOR : state * 89226354u + 64248484u;
    x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    return __hadd(__ushort_as_half((unsigned short)x), __ushort_as_half((unsigned short)(x >> 16)));
}

template <bool ALIGNED> static __device__ __forceinline__ uint32_t word_at(const uint8_t *p)
{
    return ALIGNED ? *(const uint32_t *)p : ctw_load_u32(p);
}

/* The values of the square's codes: x[output][input]. A thread has the same code of every tile. */
template <int CODEBOOK, bool ALIGNED>
static __device__ __forceinline__ void fill(square x, const struct source &s, uint32_t across,
                                            uint32_t band, int t)
{
    const int rate = ctw_exl3_rate(&s.w), words = 4 * rate; /* ctw_exl3_state() */
    const int end = ((t + 1) * rate >> 1) + 32 * words, shift = -end & 31;
    const int last = (end - 1) / 32 % words * 4, first = (end - 16) / 32 % words * 4;
    const int row = ctw_exl3_output(t), column = ctw_exl3_input(t);
#pragma unroll 2
    for (int i = 0; i < TILES; i++) {
        const uint8_t *stream =
            ctw_exl3_tile(&s.w, &s.data, (int64_t)across * TILES + i, (int64_t)band * TILES);
        uint32_t low[TILES], high[TILES];
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            low[j] = word_at<ALIGNED>(stream + j * 4 * words + last);
            high[j] = word_at<ALIGNED>(stream + j * 4 * words + first);
        }
#pragma unroll
        for (int j = 0; j < TILES; j++)
            x[CTW_EXL3_TILE * j + row][CTW_EXL3_TILE * i + column] =
                code_value<CODEBOOK>(__funnelshift_r(low[j], high[j], shift) & 0xffffu);
    }
}

template <bool ALIGNED>
static __device__ __forceinline__ void fill_any(square x, const struct source &s, uint32_t across,
                                                uint32_t band, int t)
{
    if (s.w.codebook == CTW_EXL3_MUL1)
        fill<CTW_EXL3_MUL1, ALIGNED>(x, s, across, band, t);
    else if (s.w.codebook == CTW_EXL3_MCG)
        fill<CTW_EXL3_MCG, ALIGNED>(x, s, across, band, t);
    else
        fill<CTW_EXL3_3INST, ALIGNED>(x, s, across, band, t);
}

/* ---- sums ---------------------------------------------------------------------------------- */

/* Terms k .. k + 7 of 16 sums; v[t] is x[k + t]. A factor's sign is that of h[0][k] for sums 0 to 7
 * (low) and of h[8][k] for the others (high), or the opposite (MINUS), times that of h[i % 8][t].
 */
template <bool MINUS>
static __device__ __forceinline__ void add_terms(float (&sum)[SUMS], const float (&v)[TERMS],
                                                 float low, float high)
{
#pragma unroll
    for (int t = 0; t < TERMS; t++)
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            const float h = i < 8 ? low : high;
            sum[i] = ctw_exl3_add(sum[i], ctw_exl3_is_minus(i & 7, t) != MINUS ? -h : h, v[t]);
        }
}

/* Eight elements of a row of the square. */
static __device__ __forceinline__ void load_terms(const square x, int row, int k, float (&v)[TERMS])
{
    __half raw[TERMS];
    const uint4 eight = *(const uint4 *)&x[row][k];
    memcpy(raw, &eight, sizeof(eight));
#pragma unroll
    for (int t = 0; t < TERMS; t++)
        v[t] = __half2float(raw[t]);
}

/* f, or -f if the bits are not 0 */
static __device__ __forceinline__ float minus_if(float f, int bits)
{
    return __uint_as_float(__float_as_uint(f) ^ (bits != 0 ? 1u << 31 : 0u));
}

/* The thread's sums over a row: set q has the sums first + 32 q .. +15; first is 0 or 16. */
static __device__ __forceinline__ void rotate(float (&sum)[SETS][SUMS], const square x, int row,
                                              int first)
{
    float v[TERMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sum[0][i] = 0.0f;
#pragma unroll 1
    for (int k = 0; k < 32; k += TERMS) {
        const float low = minus_if(CTW_EXL3_C, first & k), high = minus_if(low, k & 8);
        load_terms(x, row, k, v);
        add_terms<false>(sum[0], v, low, high);
    }
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sum[1][i] = sum[0][i];
#pragma unroll 1
    for (int k = 32; k < 64; k += TERMS) {
        const float low = minus_if(CTW_EXL3_C, first & k), high = minus_if(low, k & 8);
        load_terms(x, row, k, v);
        add_terms<false>(sum[0], v, low, high);
        add_terms<true>(sum[1], v, low, high);
    }
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        sum[2][i] = sum[0][i];
        sum[3][i] = sum[1][i];
    }
#pragma unroll 1
    for (int k = 64; k < SIDE; k += TERMS) {
        const float low = minus_if(CTW_EXL3_C, first & k), high = minus_if(low, k & 8);
        const float odd_low = minus_if(low, k & 32), odd_high = minus_if(high, k & 32);
        load_terms(x, row, k, v);
        add_terms<false>(sum[0], v, low, high);
        add_terms<false>(sum[1], v, odd_low, odd_high);
        add_terms<true>(sum[2], v, low, high);
        add_terms<true>(sum[3], v, odd_low, odd_high);
    }
}

/* Column `lane` of the square: the sums, rounded, times their scale, rounded. */
static __device__ __forceinline__ void put_sums(square x, const float (&sum)[SETS][SUMS],
                                                const __half *scale, int lane, int first)
{
#pragma unroll
    for (int q = 0; q < SETS; q++) {
        __half2 own[SUMS / 2];
        memcpy(own, __builtin_assume_aligned(scale + first + 32 * q, 16), sizeof(own));
#pragma unroll
        for (int i = 0; i < SUMS; i += 2) {
            const int at = first + 32 * q + i;
            const __half2 two = __hmul2(__floats2half2_rn(sum[q][i], sum[q][i + 1]), own[i / 2]);
            x[at][lane] = two.x;
            x[at + 1][lane] = two.y;
        }
    }
}

/* ---- blocks -------------------------------------------------------------------------------- */

/* Eight columns from `column` on of row `from` of the square, as the plane's row r. whole: they are
 * all in the matrix, and aligned. */
template <typename T>
static __device__ __forceinline__ void put_row(const struct plane &p, const square x, int from,
                                               uint32_t r, int64_t column, bool whole)
{
    T *dst = (T *)p.dst + plane_at(p, r) + column;
    float v[TERMS];
    load_terms(x, from, (int)(column % SIDE), v);
    if (whole) {
        unit_store(dst, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < TERMS; i++)
        if (column + i < p.k)
            ctw_cuda_narrow(v[i], dst + i);
}

/* LIST: a block of threads decodes one row of the plane's list; else all of a band's rows. aligned:
 * so are rows of dst. */
template <bool LIST, typename T>
__global__ void __launch_bounds__(BAND_THREADS, 2)
    exl3_bands(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
               bool aligned)
{
    __shared__ __align__(16) square x;
    __shared__ __align__(16) __half scale[2][SIDE]; /* suh, svh */
    const int t = (int)threadIdx.x, lane = t % SIDE, first = t / SIDE * SUMS;
    const uint32_t band = LIST ? plane_row(p, blockIdx.x) / SIDE : p.row0 / SIDE + blockIdx.x;
    const uint32_t across = blockIdx.y;
    scale[t / SIDE][lane] = __float2half_rn(
        t < SIDE
            ? ctw_exl3_scale(&s.w, &s.data, CTW_PART_COLUMN_SCALE, (int64_t)across * SIDE + lane)
            : ctw_exl3_scale(&s.w, &s.data, CTW_PART_SCALE, (int64_t)band * SIDE + lane));
    if ((uintptr_t)s.data.part[CTW_PART_VALUES] % 4 == 0)
        fill_any<true>(x, s, across, band, t);
    else
        fill_any<false>(x, s, across, band, t);
    __syncthreads();
    /* Inputs: x[output][input] becomes x[input][output]. Then outputs, in the same way. */
#pragma unroll 1
    for (int side = 0; side < 2; side++) {
        float sum[SETS][SUMS];
        rotate(sum, x, lane, first);
        __syncthreads();
        put_sums(x, sum, scale[side], lane, first);
        __syncthreads();
    }
    const int64_t column = (int64_t)across * SIDE + t % (SIDE / TERMS) * TERMS;
    const bool whole = aligned && column + TERMS <= p.k;
    if constexpr (LIST) {
        if (t < SIDE / TERMS)
            put_row<T>(p, x, (int)(plane_row(p, blockIdx.x) % SIDE), blockIdx.x, column, whole);
    } else {
        for (int i = t / (SIDE / TERMS); i < SIDE; i += BAND_THREADS / (SIDE / TERMS)) {
            const uint32_t row = band * SIDE + i;
            if (row >= p.row0 && row - p.row0 < p.n_rows)
                put_row<T>(p, x, i, row - p.row0, column, whole);
        }
    }
}

void ctw_cuda_decode_bands(cudaStream_t stream, const struct plane *p, const struct source *s,
                           enum ctw_dtype dtype)
{
    const unsigned right = (p->k + SIDE - 1) / SIDE, end = p->row0 + p->n_rows;
    const bool aligned = p->k % TERMS == 0 && ctw_cuda_aligned16(p->dst);
    const dim3 bands((end + SIDE - 1) / SIDE - p->row0 / SIDE, right), rows(p->n_rows, right);
#define TO(T)                                                                                      \
    do {                                                                                           \
        if (p->rows != NULL)                                                                       \
            exl3_bands<true, T><<<rows, BAND_THREADS, 0, stream>>>(*p, *s, aligned);               \
        else                                                                                       \
            exl3_bands<false, T><<<bands, BAND_THREADS, 0, stream>>>(*p, *s, aligned);             \
    } while (0)
    CTW_CUDA_FLOAT_SWITCH(dtype, TO);
#undef TO
}
