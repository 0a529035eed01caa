/* Part of gemm_hopper_kernel.h: the sizes of its tiles, their order, and the epilogue on a tile's
 * sums. */
#ifndef CTW_KERNELS_CUDA_GEMM_HOPPER_H
#define CTW_KERNELS_CUDA_GEMM_HOPPER_H

#include "kernels/cuda/ptx_hopper.h"
#include "kernels/head_targets.h"

enum {
    TILE_M = 128, /* rows of x per block */
    TILE_N = 256, /* rows of w per cluster */
    STEP = 64,    /* of k */
    W_SLOTS = 5,
    X_SLOTS = 4,
    W_BYTES = TILE_N * STEP * 2,
    X_BYTES = 64 * STEP * 2, /* of one warpgroup */
    /* 1024: rings start at a multiple of 1024. 256: 27 barriers. */
    SHARED_BYTES = 1024 + W_SLOTS * W_BYTES + 2 * X_SLOTS * X_BYTES + 256,
    THREADS = 3 * 128
};

/* y = sums, or y + sums, of 16 or 32 bits; act(gate) * up; a row's logits reduced to a state, and
 * perhaps stored; or heads of 64, 128 or 256 columns, each finished and stored in its array
 * (gemm_hopper_qkv.h). Of experts (gemm_experts_hopper.cu): act(gate) * up with clamps; the rounded
 * sums' ReLU, squared; y + weight * sums, to scattered rows. */
enum {
    EPI_STORE16,
    EPI_STORE32,
    EPI_ADD16,
    EPI_ADD32,
    EPI_SILU,
    EPI_GELU,
    EPI_GELU_TANH,
    EPI_HEAD,
    EPI_HEAD_STORE,
    EPI_QKV_64,
    EPI_QKV_128,
    EPI_QKV_256,
    N_EPI,
    EPI_GLU = N_EPI,
    EPI_RELU2,
    EPI_SCATTER
};

/* What tests/gpu/test_gemm.cu varies: see tile_at() and multiply(). It does not affect any bit
 * of a result. */
extern int ctw_hopper_group, ctw_hopper_lead;

/* Of EPI_QKV_*: queries [m, q_cols], keys and values [m, kv_cols]. */
struct heads {
    int q_cols, kv_cols;
    uint16_t *q, *k, *v;
    const uint16_t *q_norm, *k_norm; /* [head] of the sums' 16-bit type, or NULL */
    float eps;
    const int32_t *positions; /* [m] */
    const float *cos_sin;     /* [position, head]: half cosines, then sines; NULL: no rotation */
};

/* Of EPI_GLU: y = above(below(g) * sigmoid(alpha below(g))) * (clamp(u) + offset), where below(g) is
 * g up to `below`, above() up to `above`, and clamp() within +-limit. */
struct glu {
    float alpha, below, above, limit, offset;
};

struct product {
    int m, n, n_steps;
    int rows, cols, n_tiles; /* tiles of clusters: 2 TILE_M by TILE_N */
    int group, lead;
    int64_t ldy;
    void *y;
    const float *bias; /* [n] or NULL */
    /* EPI_HEAD*: y is states [cols, m]; column 0 is token id0 */
    const int32_t *first_target, *targets; /* see struct ctw_op_head */
    struct ctw_head_result *results;       /* where targets' logits go */
    int32_t id0;
    float scale;
    float *logits; /* EPI_HEAD_STORE: [m, ld_logits], from column id0 on */
    int64_t ld_logits;
    struct heads heads;
    struct glu glu;
    const int32_t *y_rows; /* EPI_SCATTER: [m], or NULL: row r */
    const float *y_weight; /* EPI_SCATTER: [m], or NULL: 1 */
    /* Gathered rows: */
    const void *x;
    int64_t x_pitch; /* bytes */
    int k;
    const int32_t *x_rows; /* [m] */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct tile {
    int row, col; /* the first row of x and of w */
};

/* Tiles go down `group` tiles of rows, then one column further: tiles that run at the same time
 * share rows of x and of w in L2. */
CTW_DEV struct tile tile_at(const struct product &p, int i)
{
    int per_group = p.group * p.cols, g = i / per_group, r = i % per_group;
    int height = min(p.rows - g * p.group, p.group);
    struct tile t;
    t.row = (g * p.group + r % height) * (2 * TILE_M);
    t.col = r / height * TILE_N;
    return t;
}

/* ---- 16-bit pairs ------------------------------------------------------------------------- */

template <bool F16> CTW_DEV uint32_t pack(float lo, float hi)
{
    uint32_t r;
    if constexpr (F16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

template <bool F16> CTW_DEV float2 unpack(uint32_t v)
{
    if constexpr (F16) {
        __half2 h;
        memcpy(&h, &v, 4);
        return __half22float2(h);
    } else {
        return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xFFFF0000));
    }
}

/*
 * Among the four lanes of a row: lane q gives v[i], its part of block i, and gets the parts of
 * block q in lane order, which are 16 contiguous bytes. The exchange is its own inverse.
 */
CTW_DEV void exchange(uint32_t (&v)[4], int lane)
{
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if ((i & bit) == 0) {
                bool upper = lane & bit;
                uint32_t got = __shfl_xor_sync(0xFFFFFFFF, upper ? v[i] : v[i + bit], bit);
                v[i] = upper ? got : v[i];
                v[i + bit] = upper ? v[i + bit] : got;
            }
}

/* ---- activations -------------------------------------------------------------------------- */

/*
 * Two of v / (1 + exp(-z)), z = v for SiLU. exp is ex2.approx of z log2(e): 2^-22 relative, and |z|
 * 2^-24 for the rounding of that argument; the reciprocal, of both denominators at once, 2^-22.
 * Beyond exp(-z) = 2^60 the result is v 2^-60: the error is below 2^-60 |v|, and the product of the
 * two denominators stays in range. NaN propagates through v.
 */
CTW_DEV void sigmoid_times(float v[2], const float z[2])
{
    float e[2], r;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float t = fminf(z[i] * -1.44269504f, 60.0f);
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e[i]) : "f"(t));
        e[i] += 1.0f;
    }
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(e[0] * e[1]));
    v[0] *= r * e[1];
    v[1] *= r * e[0];
}

/* g[i] = act(g[i]) * u[i] */
template <int EPI> CTW_DEV void gate(float g[2], const float u[2])
{
    if (EPI == EPI_SILU) {
        float z[2] = {g[0], g[1]};
        sigmoid_times(g, z);
    } else if (EPI == EPI_GELU_TANH) {
        /* (1 + tanh(c)) / 2 = 1 / (1 + exp(-2 c)), c = sqrt(2 / pi) (g + 0.044715 g^3) */
        float z[2];
        for (int i = 0; i < 2; i++)
            z[i] = g[i] * fmaf(g[i] * g[i], 0.0713548163f, 1.59576912f);
        sigmoid_times(g, z);
    } else {
        for (int i = 0; i < 2; i++)
            g[i] *= 0.5f * erfcf(g[i] * -0.707106781f);
    }
    g[0] *= u[0];
    g[1] *= u[1];
}

/* ---- a tile's end ------------------------------------------------------------------------- */

/*
 * d is a thread's part of 64 rows by 256 columns (see product_64_256_16()), `row` its upper row,
 * col0 the tile's first column.
 */

/* v, opaque to the compiler. If accumulators are converted to or from integers, the compiler
 * would otherwise keep them as integers from step to step, and move all of them back and forth. */
CTW_DEV float opaque(float v)
{
    float r;
    asm("mov.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

/* The squares of the ReLU of two 16-bit floats, rounded; NaN stays. */
template <bool F16> CTW_DEV uint32_t relu2(uint32_t v)
{
    float2 f = unpack<F16>(v);
    f.x = f.x < 0 ? 0.0f : f.x;
    f.y = f.y < 0 ? 0.0f : f.y;
    return pack<F16>(f.x * f.x, f.y * f.y);
}

/* y, or y + d, or relu2(d), of 16 bits: 32 columns at a time, of which the lane stores 8. */
template <bool F16, bool ADD, bool RELU2>
CTW_DEV void store_16(const struct product &p, float (&d)[128], int row, int col0, int lane)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = row + 8 * h;
        uint16_t *y = (uint16_t *)p.y + r * p.ldy + col0 + 8 * (lane & 3);
#pragma unroll
        for (int c = 0; c < 8; c++) {
            bool mine = r < p.m && col0 + 32 * c + 8 * (lane & 3) < p.n;
            uint32_t v[4];
            if (ADD) {
                uint4 old = mine ? *(const uint4 *)(y + 32 * c) : make_uint4(0, 0, 0, 0);
                v[0] = old.x, v[1] = old.y, v[2] = old.z, v[3] = old.w;
                exchange(v, lane);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *f = d + 16 * c + 4 * i + 2 * h;
                float2 old = ADD ? unpack<F16>(v[i]) : make_float2(0, 0);
                v[i] = ADD ? pack<F16>(old.x + f[0], old.y + f[1]) : pack<F16>(f[0], f[1]);
                v[i] = RELU2 ? relu2<F16>(v[i]) : v[i];
            }
            exchange(v, lane);
            if (mine)
                *(uint4 *)(y + 32 * c) = make_uint4(v[0], v[1], v[2], v[3]);
        }
    }
}

CTW_DEV void store_32(const struct product &p, float (&d)[128], int row, int col0, int lane)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *y = (float *)p.y + (row + 8 * h) * p.ldy + col0 + 2 * (lane & 3);
        if (row + 8 * h < p.m)
#pragma unroll
            for (int j = 0; j < 32; j++)
                if (col0 + 8 * j < p.n)
                    *(float2 *)(y + 8 * j) = make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
    }
}

/* Of 16 columns of a row, lane q of four has 2 q, 2 q + 1, 8 + 2 q, 9 + 2 q; it gets 4 q .. 4 q + 3. */
CTW_DEV void exchange_16(float (&v)[4], int lane)
{
#pragma unroll
    for (int bit = 2; bit >= 1; bit /= 2)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bool upper = lane & bit;
            float got = __shfl_xor_sync(0xFFFFFFFF, upper ? v[i] : v[i + 2], bit);
            v[i] = upper ? got : v[i];
            v[i + 2] = upper ? v[i + 2] : got;
        }
}

/*
 * Are all of v so large that adding them gives the same result whether or not subnormal numbers
 * count as zeros? True from 2^-100 on: a sum that is not 0 is a multiple of 2^-124, and a subnormal
 * y is less than a quarter of v's last place.
 */
CTW_DEV bool none_tiny(const float (&v)[4])
{
    return fminf(fminf(fabsf(v[0]), fabsf(v[1])), fminf(fabsf(v[2]), fabsf(v[3]))) >= 0x1p-100f;
}

/* y + d, 16 bytes per lane, 64 contiguous bytes of a row. Sent to L2 and added there, once per
 * element: y is not read first. */
CTW_DEV void add_32(const struct product &p, float (&d)[128], int row, int col0, int lane)
{
    int col = col0 + 4 * (lane & 3);
    float *y = (float *)p.y + row * p.ldy + col;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int j = i / 2, h = i % 2;
        float *f = d + 8 * j + 2 * h, *to = y + h * 8 * p.ldy + 16 * j;
        float v[4] = {f[0], f[1], f[4], f[5]};
        exchange_16(v, lane);
        if (row + 8 * h >= p.m || col + 16 * j >= p.n)
            continue;
        if (none_tiny(v)) {
            add_in_l2(to, v);
        } else {
            float4 old = __ldcg((const float4 *)to);
            *(float4 *)to = make_float4(old.x + v[0], old.y + v[1], old.z + v[2], old.w + v[3]);
        }
    }
}

/* ---- act(gate) * up ----------------------------------------------------------------------- */

/* g[i] = the result; NaN stays. */
CTW_DEV void apply_glu(const struct glu &a, float g[2], const float u[2])
{
    float z[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        g[i] = g[i] > a.below ? a.below : g[i];
        z[i] = a.alpha * g[i];
    }
    sigmoid_times(g, z);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float v = u[i] > a.limit ? a.limit : u[i] < -a.limit ? -a.limit : u[i];
        g[i] = (g[i] > a.above ? a.above : g[i]) * (v + a.offset);
    }
}

/* Blocks of 8 columns are alternately gate and up; 64 columns give 32 results, of which the lane
 * stores 8. */
template <bool F16, int EPI>
CTW_DEV void store_gated(const struct product &p, float (&d)[128], int row, int col0, int lane)
{
    int out0 = col0 / 2 + 8 * (lane & 3);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = row + 8 * h;
        uint16_t *y = (uint16_t *)p.y + r * p.ldy + out0;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float *f = d + 32 * c + 8 * i + 2 * h;
                if constexpr (EPI == EPI_GLU)
                    apply_glu(p.glu, f, f + 4);
                else
                    gate<EPI>(f, f + 4);
                v[i] = pack<F16>(f[0], f[1]);
            }
            exchange(v, lane);
            if (r < p.m && out0 + 32 * c < p.n / 2)
                *(uint4 *)(y + 32 * c) = make_uint4(v[0], v[1], v[2], v[3]);
        }
    }
}

/* logits = d, 16 bytes per lane, 64 contiguous bytes of a row. */
CTW_DEV void store_logits(const struct product &p, const float (&d)[128], int row, int col0, int lane)
{
    int col = col0 + 4 * (lane & 3);
    float *y = p.logits + row * p.ld_logits + col;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int j = i / 2, h = i % 2;
        const float *f = d + 8 * j + 2 * h;
        float v[4] = {f[0], f[1], f[4], f[5]};
        exchange_16(v, lane);
        if (row + 8 * h < p.m && col + 16 * j < p.n)
            *(float4 *)(y + h * 8 * p.ld_logits + 16 * j) = make_float4(v[0], v[1], v[2], v[3]);
    }
}

/* The logits of row r's targets that are in the tile, to the results; h: which of the lane's rows. */
CTW_DEV void keep_targets(const struct product &p, const float (&d)[128], int r, int h, int col0,
                          int lane)
{
    const int end = r < p.m ? ctw_head_target(p.first_target, r + 1) : 0;
    for (int t = r < p.m ? ctw_head_target(p.first_target, r) : 0; t < end; t++) {
        const int target = p.targets[t] - p.id0 - col0;
        if ((unsigned)target < TILE_N && (lane & 3) == (target >> 1 & 3)) {
            float wanted = 0;
#pragma unroll
            for (int i = 0; i < 64; i++)
                if (target == 8 * (i / 2) + 2 * (lane & 3) + i % 2)
                    wanted = d[4 * (i / 2) + 2 * h + i % 2];
            p.results[t].logprob = wanted;
        }
    }
}

/*
 * Reduces the tile's columns of each row to one state, and stores them before if STORE. Sums of
 * exp(logit - max) are four chains of 16 in each of four lanes, added by halves, in fp32; exp is
 * ex2.approx, 2^-22 relative, of (logit - max) log2(e).
 */
template <bool STORE>
CTW_DEV void reduce_logits(const struct product &p, float (&d)[128], int row, int col0, int lane)
{
    if (p.scale != 1.0f)
#pragma unroll
        for (int i = 0; i < 128; i++)
            d[i] *= p.scale;
    if (STORE)
        store_logits(p, d, row, col0, lane);
    if (col0 + TILE_N > p.n)
#pragma unroll
        for (int i = 0; i < 128; i++)
            if (col0 + 8 * (i / 4) + 2 * (lane & 3) + i % 2 >= p.n)
                d[i] = -INFINITY;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = row + 8 * h, first = 0;
        float best = -INFINITY, s[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 64; i++) {
            float v = d[4 * (i / 2) + 2 * h + i % 2];
            if (v > best) {
                best = v;
                first = 8 * (i / 2) + 2 * (lane & 3) + i % 2;
            }
        }
        best = opaque(best);
#pragma unroll
        for (int bit = 1; bit <= 2; bit *= 2) {
            float b = __shfl_xor_sync(0xFFFFFFFF, best, bit);
            int f = __shfl_xor_sync(0xFFFFFFFF, first, bit);
            if (b > best || (b == best && f < first)) {
                best = b;
                first = f;
            }
        }
        float from = best == -INFINITY ? 0.0f : best;
#pragma unroll
        for (int i = 0; i < 64; i++) {
            float e;
            asm("ex2.approx.ftz.f32 %0, %1;"
                : "=f"(e)
                : "f"((d[4 * (i / 2) + 2 * h + i % 2] - from) * 1.44269504f));
            s[i % 4] += e; /* NaN stays */
        }
        float sum = (s[0] + s[1]) + (s[2] + s[3]);
        sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
        keep_targets(p, d, r, h, col0, lane);
        struct ctw_cuda_head_state state = {best, sum, p.id0 + col0 + first, 0};
        if ((lane & 3) == 0 && r < p.m)
            ((struct ctw_cuda_head_state *)p.y)[(int64_t)(col0 / TILE_N) * p.m + r] = state;
    }
}

CTW_DEV void add_bias(const struct product &p, float (&d)[128], int col0, int lane)
{
    const float *bias = p.bias + col0 + 2 * (lane & 3);
    if (p.bias == NULL)
        return;
#pragma unroll
    for (int j = 0; j < 32; j++) {
        float2 b = col0 + 8 * j < p.n ? __ldg((const float2 *)(bias + 8 * j)) : make_float2(0, 0);
        d[4 * j] += b.x;
        d[4 * j + 1] += b.y;
        d[4 * j + 2] += b.x;
        d[4 * j + 3] += b.y;
    }
}

template <bool F16, int EPI>
CTW_DEV void finish(const struct product &p, float (&d)[128], int row, int col0, int lane)
{
    if (EPI != EPI_HEAD && EPI != EPI_HEAD_STORE)
        add_bias(p, d, col0, lane);
    if (EPI == EPI_STORE16 || EPI == EPI_ADD16 || EPI == EPI_RELU2)
        store_16<F16, EPI == EPI_ADD16, EPI == EPI_RELU2>(p, d, row, col0, lane);
    else if (EPI == EPI_STORE32)
        store_32(p, d, row, col0, lane);
    else if (EPI == EPI_ADD32)
        add_32(p, d, row, col0, lane);
    else if (EPI == EPI_HEAD || EPI == EPI_HEAD_STORE)
        reduce_logits<EPI == EPI_HEAD_STORE>(p, d, row, col0, lane);
    else
        store_gated<F16, EPI>(p, d, row, col0, lane);
}

#endif
#endif
