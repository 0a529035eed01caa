/*
 * EXL3 (exllamav3): blocks of 128 inputs and 128 outputs, rotated on both sides, of tiles of 16 x
 * 16 that a trellis codes. The values are those of the library's get_weight_tensor(), in F16. With
 * x[k][j] the codes' values of a block (k: input, j: output), c = RN32(1 / sqrt(128)), and
 * h[i][j] = -c if popcount(i & j) is odd, else c:
 *
 *     y[i][j] = RN16(RN16(sum over k of h[i][k] x[k][j]) * suh[i])
 *     w[n][i] = RN16(RN16(sum over j of h[n][j] y[i][j]) * svh[n])
 *
 * A sum is fp32, from 0, one fused multiply-add after the other, as in PyTorch's products. Up to
 * the 2^m-th term, sums are equal whose indices i (or n) are equal modulo 2^m: of 128 steps, a sum
 * takes 85 of its own.
 *
 * Parts: VALUES is the trellis, I16 [inputs / 16, outputs / 16, 16 times the bits of a weight];
 * COLUMN_SCALE is suh and SCALE is svh: F16, or the first files' packed signs (I16). All of them
 * are padded to whole blocks.
 */
#ifndef CTW_KERNELS_FORMATS_EXL3_DECODE_H
#define CTW_KERNELS_FORMATS_EXL3_DECODE_H

#include "kernels/formats/format.h"
#include "kernels/formats/trellis.h"

enum {
    CTW_EXL3_TILE = 16,
    CTW_EXL3_CODES = 256, /* of a tile */
    CTW_EXL3_BLOCK = CTW_DECODE_BAND
};

#define CTW_EXL3_C 0x1.6a09e6p-4f

/* The sign of h[i][j]. */
CTW_HD_FORCE bool ctw_exl3_is_minus(int i, int j)
{
    uint32_t bits = (uint32_t)(i & j); /* 7 */
    bits ^= bits >> 4;
    bits ^= bits >> 2;
    return ((bits ^ bits >> 1) & 1u) != 0;
}

/*
 * sum + h * x, rounded once; h is C or -C, x an fp16 number. In double the product is exact, and
 * the sum's two roundings are equal to one: they differ only next to the middle of two floats, for
 * which the product's 35 bits would have a run of 28 equal bits. No multiple of C's 24 bits by an
 * fp16 number's 11 has such a run.
 */
CTW_HD_FORCE float ctw_exl3_add(float sum, float h, float x)
{
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(h, x, sum);
#elif defined(__FP_FAST_FMAF)
    return __builtin_fmaf(h, x, sum);
#else
    return (float)((double)h * (double)x + (double)sum);
#endif
}

/* The 16 bits of a tile's stream, a ring of 8 rate words, that end with code t's; bits are counted
 * from a word's highest. `rate`: twice the bits of a weight. */
CTW_HD_FORCE uint32_t ctw_exl3_state(const uint8_t *tile, int rate, int t)
{
    const int words = 4 * rate, end = ((t + 1) * rate >> 1) + 32 * words;
    const int last = (end - 1) / 32, first = (end - 16) / 32;
    const uint64_t both = (uint64_t)ctw_load_u32(tile + 4 * (first % words)) << 32 |
                          ctw_load_u32(tile + 4 * (last % words));
    return (uint32_t)(both >> (32 * (last + 1) - end)) & 0xffffu;
}

/* Where tensor cores have code t: the input and the output within its tile. */
CTW_HD_FORCE int ctw_exl3_input(int t)
{
    return (t >> 3 & 3) * 2 + (t & 1) + (t & 2) * 4;
}

CTW_HD_FORCE int ctw_exl3_output(int t)
{
    return (t >> 5) + (t & 4) * 2;
}

/* The stream of tile (i, j). */
CTW_HD_FORCE const uint8_t *ctw_exl3_tile(const struct ctw_weight *w,
                                          const struct ctw_weight_data *data, int64_t i, int64_t j)
{
    const int64_t *shape = w->part[CTW_PART_VALUES].shape;
    return (const uint8_t *)data->part[CTW_PART_VALUES] + (i * shape[1] + j) * shape[2] * 2;
}

CTW_HD_FORCE int ctw_exl3_rate(const struct ctw_weight *w)
{
    return (int)w->part[CTW_PART_VALUES].shape[2] / 8;
}

/* suh[i] or svh[i] */
CTW_HD_FORCE float ctw_exl3_scale(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                  enum ctw_part_kind kind, int64_t i)
{
    const uint8_t *p = (const uint8_t *)data->part[kind];
    if (w->part[kind].dtype == CTW_F16)
        return ctw_f16_to_f32(ctw_load_u16(p + 2 * i));
    return ctw_load_u16(p + i / 16 * 2) >> (i % 16) & 1 ? -1.0f : 1.0f;
}

/* ---- the definition, on the host ---------------------------------------------------------- */

#ifndef __CUDACC__

/* The values of block (i, j): x[input][output] */
static inline void ctw_exl3_values(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                   int64_t i, int64_t j, float x[CTW_EXL3_BLOCK][CTW_EXL3_BLOCK])
{
    const int rate = ctw_exl3_rate(w), tiles = CTW_EXL3_BLOCK / CTW_EXL3_TILE;
    for (int tile = 0; tile < tiles * tiles; tile++) {
        const int at_i = tile / tiles, at_j = tile % tiles;
        const uint8_t *stream = ctw_exl3_tile(w, data, i * tiles + at_i, j * tiles + at_j);
        for (int t = 0; t < CTW_EXL3_CODES; t++)
            x[CTW_EXL3_TILE * at_i + ctw_exl3_input(t)][CTW_EXL3_TILE * at_j + ctw_exl3_output(t)] =
                ctw_exl3_value(ctw_exl3_state(stream, rate, t), w->codebook);
    }
}

/* y[i][..] = RN16(RN16(sum over k of h[i][k] x[k][..]) * scale[i]) */
static inline void ctw_exl3_rotate(float x[CTW_EXL3_BLOCK][CTW_EXL3_BLOCK],
                                   float y[CTW_EXL3_BLOCK][CTW_EXL3_BLOCK], const float *scale)
{
    for (int i = 0; i < CTW_EXL3_BLOCK; i++)
        y[0][i] = ctw_exl3_add(0.0f, CTW_EXL3_C, x[0][i]);
    for (int half = 1; half < CTW_EXL3_BLOCK; half *= 2) {
        memcpy(y[half], y[0], (size_t)half * sizeof(y[0]));
        for (int i = 0; i < 2 * half; i++)
            for (int k = half; k < 2 * half; k++) {
                const float h = ctw_exl3_is_minus(i, k) ? -CTW_EXL3_C : CTW_EXL3_C;
                for (int j = 0; j < CTW_EXL3_BLOCK; j++)
                    y[i][j] = ctw_exl3_add(y[i][j], h, x[k][j]);
            }
    }
    for (int i = 0; i < CTW_EXL3_BLOCK; i++)
        for (int j = 0; j < CTW_EXL3_BLOCK; j++)
            y[i][j] = ctw_round_float(ctw_round_float(y[i][j], CTW_F16) * scale[i], CTW_F16);
}

static inline void ctw_exl3_scales(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                   enum ctw_part_kind kind, int64_t block,
                                   float scale[CTW_EXL3_BLOCK])
{
    for (int i = 0; i < CTW_EXL3_BLOCK; i++)
        scale[i] = ctw_exl3_scale(w, data, kind, block * CTW_EXL3_BLOCK + i);
}

/* Block (i, j): w[output][input]. */
static inline void ctw_exl3_block(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                  int64_t i, int64_t j, float out[CTW_EXL3_BLOCK][CTW_EXL3_BLOCK])
{
    float x[CTW_EXL3_BLOCK][CTW_EXL3_BLOCK], scale[CTW_EXL3_BLOCK];
    ctw_exl3_values(w, data, i, j, x);
    ctw_exl3_scales(w, data, CTW_PART_COLUMN_SCALE, i, scale);
    ctw_exl3_rotate(x, out, scale);
    for (int a = 0; a < CTW_EXL3_BLOCK; a++)
        for (int b = 0; b < CTW_EXL3_BLOCK; b++)
            x[b][a] = out[a][b];
    ctw_exl3_scales(w, data, CTW_PART_SCALE, j, scale);
    ctw_exl3_rotate(x, out, scale);
}

/* ctw_decode_rows_fn */
static inline void ctw_exl3_decode_rows(const struct ctw_weight *w,
                                        const struct ctw_weight_data *data, int64_t row0,
                                        int64_t n_rows, int64_t col0, int64_t n_col, float *dst,
                                        int64_t ld)
{
    float block[CTW_EXL3_BLOCK][CTW_EXL3_BLOCK];
    const int64_t end = row0 + n_rows, size = CTW_EXL3_BLOCK;
    for (int64_t row = row0; row < end; row = (row / size + 1) * size)
        for (int64_t c = 0; c < n_col; c += size) {
            int64_t last = (row / size + 1) * size, n = n_col - c < size ? n_col - c : size;
            ctw_exl3_block(w, data, (col0 + c) / size, row / size, block);
            for (int64_t r = row; r < last && r < end; r++)
                memcpy(dst + (r - row0) * ld + c, block[r % size], (size_t)n * sizeof(*dst));
        }
}

static inline void ctw_exl3_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                   int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    ctw_exl3_decode_rows(w, data, row, 1, col0, n_col, dst, n_col);
}

#else
/* Not defined: kernels/cuda/decode/decode_bands.cu decodes whole blocks. */
__device__ void ctw_exl3_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                int64_t row, int64_t col0, int64_t n_col, float *dst);
#endif

#endif
