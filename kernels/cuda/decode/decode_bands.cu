/*
 * EXL3 (kernels/formats/exl3/decode.h): a block of threads decodes a block of 128 x 128 in shared
 * memory, with the definition's terms in its order. General: nothing in it depends on the GPU.
 *
 * Two threads share a column of sums. A thread computes 16 neighbouring sums and the 16 whose
 * indices are 64 more at a time: their first 64 terms are equal, so 96 of 128 steps are its own.
 */
#include "kernels/cuda/decode/decode.cuh"
#include "kernels/formats/exl3/decode.h"

enum {
    SIDE = CTW_EXL3_BLOCK,
    HALF = SIDE / 2,
    PITCH = SIDE + 2, /* elements between rows: neighbours of a column are in different banks */
    BAND_THREADS = 2 * SIDE,
    SUMS = 16,
    GROUPS = HALF / SUMS / 2 /* of SUMS, and SUMS more, that a thread computes */
};

/* 16 terms from k on of the sums first .. first+15; x[k] is k * step elements further. */
static __device__ __forceinline__ void add_terms(float (&sum)[SUMS], const __half *x, int step, int first,
                                                 int k)
{
    const float plus = ctw_exl3_is_minus(first, k) ? -CTW_EXL3_C : CTW_EXL3_C;
#pragma unroll
    for (int t = 0; t < 16; t++) {
        const float v = __half2float(x[(k + t) * step]);
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            sum[i] = ctw_exl3_add(sum[i], ctw_exl3_is_minus(i, t) ? -plus : plus, v);
    }
}

/* The thread's sums over x, whose elements are `step` apart: of group g, sums first(g) .. +15 to
 * out[g][0], and those of 64 more to out[g][1]; rounded, times their scale, rounded. */
static __device__ __forceinline__ void rotate(__half (&out)[GROUPS][2][SUMS], const __half *x, int step,
                                              int first0, const float *scale)
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int first = first0 + g * SUMS;
        float sum[SUMS], other[SUMS];
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            sum[i] = 0.0f;
#pragma unroll 1
        for (int k = 0; k < HALF; k += 16)
            add_terms(sum, x, step, first, k);
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            other[i] = sum[i];
#pragma unroll 1
        for (int k = HALF; k < SIDE; k += 16) {
            add_terms(sum, x, step, first, k);
            add_terms(other, x, step, first + HALF, k);
        }
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            out[g][0][i] = __float2half_rn(__half2float(__float2half_rn(sum[i])) * scale[first + i]);
            out[g][1][i] =
                __float2half_rn(__half2float(__float2half_rn(other[i])) * scale[first + HALF + i]);
        }
    }
}

/* LIST: a block of threads decodes one row of the plane's list; else all of a band's rows. */
template <bool LIST>
__global__ void __launch_bounds__(BAND_THREADS)
    exl3_bands(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
               enum ctw_dtype dtype)
{
    __shared__ __half x[SIDE][PITCH];
    __shared__ float suh[SIDE], svh[SIDE];
    const int lane = (int)threadIdx.x % SIDE, first = (int)threadIdx.x / SIDE * GROUPS * SUMS;
    const uint32_t band = LIST ? plane_row(p, blockIdx.x) / SIDE : p.row0 / SIDE + blockIdx.x;
    const int rate = ctw_exl3_rate(&s.w), tiles = SIDE / CTW_EXL3_TILE, t = (int)threadIdx.x;
    if (t < SIDE)
        suh[t] = ctw_exl3_scale(&s.w, &s.data, CTW_PART_COLUMN_SCALE, (int64_t)blockIdx.y * SIDE + t);
    else
        svh[t - SIDE] =
            ctw_exl3_scale(&s.w, &s.data, CTW_PART_SCALE, (int64_t)band * SIDE + t - SIDE);
    for (int tile = 0; tile < tiles * tiles; tile++) {
        const int i = tile / tiles, j = tile % tiles;
        const uint8_t *stream = ctw_exl3_tile(&s.w, &s.data, (int64_t)blockIdx.y * tiles + i,
                                              (int64_t)band * tiles + j);
        x[CTW_EXL3_TILE * i + ctw_exl3_input(t)][CTW_EXL3_TILE * j + ctw_exl3_output(t)] =
            __float2half_rn(ctw_exl3_value(ctw_exl3_state(stream, rate, t), s.w.codebook));
    }
    __syncthreads();
    __half out[GROUPS][2][SUMS];
    rotate(out, &x[0][lane], PITCH, first, suh);
    __syncthreads();
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            x[first + g * SUMS + i][lane] = out[g][0][i];
            x[first + g * SUMS + HALF + i][lane] = out[g][1][i];
        }
    __syncthreads();
    rotate(out, x[lane], 1, first, svh);
    const int64_t column = (int64_t)blockIdx.y * SIDE + lane;
    if (column >= p.k)
        return;
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int i = 0; i < 2 * SUMS; i++) {
            const uint32_t row = band * SIDE + first + g * SUMS + i % SUMS + i / SUMS * HALF;
            const uint32_t r = LIST ? blockIdx.x : row - p.row0;
            if (LIST ? row == plane_row(p, r) : row >= p.row0 && r < p.n_rows)
                ctw_cuda_put(p.dst, dtype, (int64_t)plane_at(p, r) + column,
                             __half2float(out[g][i / SUMS][i % SUMS]));
        }
}

void ctw_cuda_decode_bands(cudaStream_t stream, const struct plane *p, const struct source *s,
                           enum ctw_dtype dtype)
{
    const unsigned right = (p->k + SIDE - 1) / SIDE, end = p->row0 + p->n_rows;
    if (p->rows != NULL)
        exl3_bands<true><<<dim3(p->n_rows, right), BAND_THREADS, 0, stream>>>(*p, *s, dtype);
    else
        exl3_bands<false><<<dim3((end + SIDE - 1) / SIDE - p->row0 / SIDE, right), BAND_THREADS, 0,
                            stream>>>(*p, *s, dtype);
}
