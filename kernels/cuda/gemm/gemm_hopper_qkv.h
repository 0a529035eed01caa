/*
 * Part of gemm_hopper.cu: the end of a tile of the q k v product. A head is normalised if its kind
 * has a norm, rotated by its row's position if it is a query or a key, and stored in its own array,
 * as qkv.cu does with a stored product. Sums are rounded to 16 bits first, as if they were
 * stored, and every later step has qkv.cu's order: the bits are the same on either path.
 *
 * A head of 64, 128 or 256 columns never crosses a tile, and columns that rotate together, half a
 * head apart, are in one thread. Queries come first, then keys, then values: a tile's first heads
 * are rotated.
 */
#ifndef CTW_KERNELS_CUDA_GEMM_HOPPER_QKV_H
#define CTW_KERNELS_CUDA_GEMM_HOPPER_QKV_H

#include "kernels/cuda/elements.h"
#include "kernels/cuda/gemm/gemm_hopper.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Loaded when the tile begins, because start_heads() needs the positions. 0 for rows that do not
 * exist. */
CTW_DEV void load_positions(const struct product &p, int row, int32_t (&position)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (p.heads.cos_sin != NULL && row + 8 * h < p.m)
            position[h] = __ldg(p.heads.positions + row + 8 * h);
}

template <bool F16> CTW_DEV void round_to_16(float (&d)[128])
{
#pragma unroll
    for (int i = 0; i < 128; i += 2) {
        float2 v = unpack<F16>(pack<F16>(d[i], d[i + 1]));
        d[i] = opaque(v.x);
        d[i + 1] = opaque(v.y);
    }
}

/* s[0] = the sum of s[0 .. 2 N - 1] */
template <int N> CTW_DEV void add_halves(float *s)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] += s[i + N];
    if constexpr (N > 1)
        add_halves<N / 2>(s);
}

/* A head in d: scales both rows by 1 / sqrt(mean of squares + eps) and the weight. Four lanes
 * share a row. */
template <bool F16, int HEAD>
CTW_DEV void norm_head(float *d, const uint16_t *weight, float eps, int lane)
{
    float r[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float s[HEAD / 16];
#pragma unroll
        for (int j = 0; j < HEAD / 16; j++)
            s[j] = ctw_cuda_squares(d + 4 * j + 2 * h, d + HEAD / 4 + 4 * j + 2 * h);
        add_halves<HEAD / 32>(s);
        s[0] += __shfl_xor_sync(0xFFFFFFFF, s[0], 1);
        s[0] += __shfl_xor_sync(0xFFFFFFFF, s[0], 2);
        r[h] = 1.0f / sqrtf(s[0] / (float)HEAD + eps);
    }
#pragma unroll
    for (int j = 0; j < HEAD / 8; j++) {
        float2 w = unpack<F16>(__ldg((const uint32_t *)(weight + 8 * j + 2 * (lane & 3))));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            d[4 * j + 2 * h] = d[4 * j + 2 * h] * r[h] * w.x;
            d[4 * j + 2 * h + 1] = d[4 * j + 2 * h + 1] * r[h] * w.y;
        }
    }
}

/* Number of the tile's heads that are rotated: all if greater than the tile's heads; none if not
 * above 0. */
template <int HEAD> CTW_DEV int n_turning(const struct product &p, int col0)
{
    return p.heads.cos_sin == NULL ? 0 : (p.heads.q_cols + p.heads.kv_cols - col0) / HEAD;
}

/*
 * A thread's angles i = 8 c .. 8 c + 7: block i % (HEAD / 16) of 8 columns, row i / (HEAD / 16).
 * Cosines and sines of two neighbouring columns, which also rotate the two columns half a head
 * further.
 */
template <int HEAD>
CTW_DEV void load_angles(const struct product &p, float4 (&a)[8], const int32_t (&position)[2], int lane,
                         int c)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int h = (8 * c + i) / (HEAD / 16), j = (8 * c + i) % (HEAD / 16);
        const float *at = p.heads.cos_sin + (int64_t)position[h] * HEAD + 8 * j + 2 * (lane & 3);
        float2 cosine = __ldg((const float2 *)at), sine = __ldg((const float2 *)(at + HEAD / 2));
        a[i] = make_float4(cosine.x, cosine.y, sine.x, sine.y);
    }
}

/* The first data that finish_heads() needs, loaded while the last products run. */
template <int HEAD>
CTW_DEV void start_heads(const struct product &p, float4 (&first)[8], const int32_t (&position)[2],
                         int col0, int lane)
{
    if (n_turning<HEAD>(p, col0) > 0)
        load_angles<HEAD>(p, first, position, lane, 0);
}

/* The tile's first n heads, all with the same angles: the next angles load while the current
 * ones rotate heads. */
template <int HEAD>
CTW_DEV void turn_heads(const struct product &p, float (&d)[128], const float4 (&first)[8],
                        const int32_t (&position)[2], int n, int lane)
{
    float4 a[2][8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        a[0][i] = first[i];
#pragma unroll
    for (int c = 0; c < HEAD / 64; c++) {
        if (c + 1 < HEAD / 64)
            load_angles<HEAD>(p, a[(c + 1) % 2], position, lane, c + 1);
#pragma unroll
        for (int head = 0; head < TILE_N / HEAD; head++)
            if (head < n)
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    int h = (8 * c + i) / (HEAD / 16), j = (8 * c + i) % (HEAD / 16);
                    float *f = d + head * (HEAD / 2) + 4 * j + 2 * h;
                    ctw_cuda_turn(f, f + HEAD / 4, a[c % 2][i].x, a[c % 2][i].z);
                    ctw_cuda_turn(f + 1, f + HEAD / 4 + 1, a[c % 2][i].y, a[c % 2][i].w);
                }
    }
}

/* Stores the head in d, whose first column is column `col` of the product; like store_16(). */
template <bool F16, int HEAD>
CTW_DEV void store_head(const struct product &p, const float *d, int row, int col, int lane)
{
    const struct heads &a = p.heads;
    bool query = col < a.q_cols, key = col < a.q_cols + a.kv_cols;
    int ld = query ? a.q_cols : a.kv_cols, at = query ? col : col - a.q_cols - (key ? 0 : a.kv_cols);
    uint16_t *y = (query ? a.q : key ? a.k : a.v) + (int64_t)row * ld + at + 8 * (lane & 3);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int c = 0; c < HEAD / 32; c++) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *f = d + 16 * c + 4 * i + 2 * h;
                v[i] = pack<F16>(f[0], f[1]);
            }
            exchange(v, lane);
            if (row + 8 * h < p.m && col < p.n) /* a plain store became four */
                __stwb((uint4 *)(y + (int64_t)(8 * h) * ld + 32 * c), make_uint4(v[0], v[1], v[2], v[3]));
        }
}

template <bool F16, int HEAD>
CTW_DEV void finish_heads(const struct product &p, float (&d)[128], const float4 (&first)[8],
                          const int32_t (&position)[2], int row, int col0, int lane)
{
    const struct heads &a = p.heads;
    int n = n_turning<HEAD>(p, col0);
    add_bias(p, d, col0, lane);
    round_to_16<F16>(d);
#pragma unroll
    for (int head = 0; head < TILE_N / HEAD; head++) {
        int col = col0 + head * HEAD;
        const uint16_t *norm = col < a.q_cols ? a.q_norm : col < a.q_cols + a.kv_cols ? a.k_norm : NULL;
        if (norm != NULL)
            norm_head<F16, HEAD>(d + head * (HEAD / 2), norm, a.eps, lane);
    }
    if (n > 0)
        turn_heads<HEAD>(p, d, first, position, n, lane);
#pragma unroll
    for (int head = 0; head < TILE_N / HEAD; head++)
        store_head<F16, HEAD>(p, d + head * (HEAD / 2), row, col0 + head * HEAD, lane);
}

#endif
#endif
