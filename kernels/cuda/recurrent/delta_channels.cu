/*
 * The gated delta rule with a decay of each row's own, token by token. A block has some columns of
 * one value head's S for a whole part: 8 lanes share C columns and have an eighth of the rows of
 * each, in registers, so that a row's k, q and decay are loaded once for C columns. Tokens come in
 * tiles of two buffers; while a tile is computed, the next one's loads are on their way.
 *
 * Sums of 8 lanes go to the lane that owns the column: in each of three steps, a lane sends half of
 * what it has to a partner and adds the partner's to the rest, or exchanges its one sum. Register r
 * of a lane has column r ^ (lane / (8 / C)), so every lane sends the same registers.
 *
 * A column's arithmetic depends on `key` alone: neither the columns of a block nor a tile's border
 * changes a bit. So products and sums are fused only where the source says so.
 */
#include "kernels/cuda/recurrent/delta_launch.h"

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    LANES = 8,                 /* of a column */
    COLUMNS = THREADS / LANES, /* of a block, times those of a lane */
    TILE = 8,                  /* tokens */
    OWN = TILE / WARPS         /* of a warp, to prepare */
};

/* Tokens as they are computed: q and k as given; unit: what makes them q and k of the definition;
 * qk: of those. */
template <int KEY, int C> struct tile {
    float q[TILE][KEY], k[TILE][KEY], decay[TILE][KEY], v[TILE][COLUMNS * C];
    float beta[TILE], unit_q[TILE], unit_k[TILE], qk[TILE];
};

/* A lane's part of its warp's tokens of a tile, as loaded; 0 beyond the end and beyond a head. */
template <typename T, int KEY, int C> struct loaded {
    T q[OWN][KEY / 32], k[OWN][KEY / 32], a[OWN][KEY / 32], v[OWN][COLUMNS * C / 32];
    T b; /* of the warp's token `lane` */
};

template <typename T> static __device__ __forceinline__ T number_or_zero(bool in, const T *from)
{
    T zero;
    ctw_cuda_narrow(0.0f, &zero);
    return in ? *from : zero;
}

template <typename T, int KEY, int C>
static __device__ __forceinline__ void load_tile(const struct ctw_op_delta &op, int head, int col0,
                                                 int64_t row0, int64_t end,
                                                 struct loaded<T, KEY, C> &l)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t keys = (int64_t)op.n_key * op.key, from = (int64_t)head * op.key;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int64_t row = row0 + warp + WARPS * i;
        const T *x = (const T *)op.x + row * op.ldx, *a = (const T *)op.a + row * op.ldba;
#pragma unroll
        for (int e = 0; e < KEY / 32; e++) {
            const int at = 32 * e + lane;
            const bool in = row < end && at < op.key;
            l.q[i][e] = number_or_zero(in, x + from + at);
            l.k[i][e] = number_or_zero(in, x + keys + from + at);
            l.a[i][e] = number_or_zero(in, a + from + at);
        }
#pragma unroll
        for (int e = 0; e < COLUMNS * C / 32; e++) {
            const int at = col0 + 32 * e + lane;
            l.v[i][e] = number_or_zero(row < end && at < op.value,
                                       x + 2 * keys + (int64_t)head * op.value + at);
        }
    }
    const int64_t row = row0 + warp + WARPS * lane;
    l.b = number_or_zero(lane < OWN && row < end,
                         (const T *)op.b + row * op.ldba + ctw_delta_column(&op, head));
}

static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        v += __shfl_xor_sync(0xffffffff, v, i);
    return v;
}

/* Without the branches of a division: 1 / x for x in 1 .. inf, within an ulp or two. */
static __device__ __forceinline__ float reciprocal(float x)
{
    float r;
    x = x > 0x1p100f ? 0x1p100f : x; /* NaN stays */
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return fmaf(r, fmaf(-x, r, 1.0f), r);
}

/* log(1 + u) / 2, u in 0 .. 1: atanh(z) with z = u / (2 + u) up to 1/3, by its series, of which
 * less than 2^-25 is left out. */
static __device__ __forceinline__ float half_log(float u)
{
    const float z = u * reciprocal(__fadd_rn(2.0f, u)), zz = z * z;
    float series = 1.0f / 15;
    series = fmaf(series, zz, 1.0f / 13);
    series = fmaf(series, zz, 1.0f / 11);
    series = fmaf(series, zz, 1.0f / 9);
    series = fmaf(series, zz, 1.0f / 7);
    series = fmaf(series, zz, 1.0f / 5);
    series = fmaf(series, zz, 1.0f / 3);
    return fmaf(__fmul_rn(z, zz), series, z);
}

/* exp(delta_log_decay()) of N rows of a token. */
template <int N>
static __device__ __forceinline__ void decays_of(float rate, float least, float (&x)[N])
{
    if (least < 0) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = expf(least * reciprocal(__fadd_rn(1.0f, expf(-rate * x[i]))));
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = expf(-rate * fmaf(2.0f, half_log(expf(-fabsf(x[i]))), fmaxf(x[i], 0.0f)));
}

template <typename T, int KEY, int C>
static __device__ __forceinline__ void
store_tile(const struct ctw_op_delta &op, float scale, float rate, const float (&dt_bias)[KEY / 32],
           const struct loaded<T, KEY, C> &l, struct tile<KEY, C> &s)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float decay[OWN * (KEY / 32)];
#pragma unroll
    for (int i = 0; i < OWN * (KEY / 32); i++)
        decay[i] = ctw_cuda_widen(l.a[i / (KEY / 32)][i % (KEY / 32)]) + dt_bias[i % (KEY / 32)];
    decays_of(rate, op.least_log, decay);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int t = warp + WARPS * i;
        float qq = 0, kk = 0, qk = 0;
#pragma unroll
        for (int e = 0; e < KEY / 32; e++) {
            const float q = ctw_cuda_widen(l.q[i][e]), k = ctw_cuda_widen(l.k[i][e]);
            qq = fmaf(q, q, qq);
            kk = fmaf(k, k, kk);
            qk = fmaf(q, k, qk);
            s.q[t][32 * e + lane] = q;
            s.k[t][32 * e + lane] = k;
            s.decay[t][32 * e + lane] = decay[i * (KEY / 32) + e];
        }
#pragma unroll
        for (int e = 0; e < COLUMNS * C / 32; e++)
            s.v[t][32 * e + lane] = ctw_cuda_widen(l.v[i][e]);
        const float rq = scale * rsqrtf(warp_sum(qq) + 1e-6f);
        const float rk = rsqrtf(warp_sum(kk) + 1e-6f);
        qk = warp_sum(qk);
        if (lane == 0) {
            s.unit_q[t] = rq;
            s.unit_k[t] = rk;
            s.qk[t] = rq * rk * qk;
        }
    }
    if (lane < OWN)
        s.beta[warp + WARPS * lane] =
            (op.twice ? 2.0f : 1.0f) * reciprocal(__fadd_rn(1.0f, expf(-ctw_cuda_widen(l.b))));
}

/* The column, in the block, of register r of a lane; the lane owns that of register 0. */
template <int C> static __device__ __forceinline__ int column_of(int r)
{
    return threadIdx.x / LANES * C + (r ^ (threadIdx.x % LANES / (LANES / C)));
}

/* The row of register i of a lane's share of a column. */
static __device__ __forceinline__ int row_of(int i)
{
    return i / 4 * (4 * LANES) + 4 * (threadIdx.x % LANES) + i % 4;
}

/* x[0]: the sum of 8 lanes' sums of the column that the lane owns. */
template <int C> static __device__ __forceinline__ void sum_lanes(float (&x)[C])
{
#pragma unroll
    for (int with = LANES / 2, n = C; with > 0; with /= 2) {
        if (n == 1) {
            x[0] += __shfl_xor_sync(0xffffffff, x[0], with);
            continue;
        }
        n /= 2;
#pragma unroll
        for (int r = 0; r < C / 2; r++)
            if (r < n)
                x[r] += __shfl_xor_sync(0xffffffff, x[r + n], with);
    }
}

/* One token. Returns y of the column that the lane owns. S: of register [column][row]. */
template <int KEY, int C>
static __device__ __forceinline__ float token_step(const struct tile<KEY, C> &s, int t,
                                                   float (&S)[C][KEY / LANES])
{
    const int at = 4 * (threadIdx.x % LANES);
    float read[C] = {}, out[C] = {};
#pragma unroll
    for (int m = 0; m < KEY / LANES / 4; m++) {
        const float4 k = *(const float4 *)&s.k[t][4 * LANES * m + at];
        const float4 q = *(const float4 *)&s.q[t][4 * LANES * m + at];
        const float4 decay = *(const float4 *)&s.decay[t][4 * LANES * m + at];
#pragma unroll
        for (int r = 0; r < C; r++) {
            float *e = &S[r][4 * m];
            e[0] *= decay.x;
            e[1] *= decay.y;
            e[2] *= decay.z;
            e[3] *= decay.w;
            read[r] = fmaf(k.x, e[0], read[r]);
            out[r] = fmaf(q.x, e[0], out[r]);
            read[r] = fmaf(k.y, e[1], read[r]);
            out[r] = fmaf(q.y, e[1], out[r]);
            read[r] = fmaf(k.z, e[2], read[r]);
            out[r] = fmaf(q.z, e[2], out[r]);
            read[r] = fmaf(k.w, e[3], read[r]);
            out[r] = fmaf(q.w, e[3], out[r]);
        }
    }
    sum_lanes<C>(read);
    sum_lanes<C>(out);
    const float d = s.beta[t] * fmaf(-s.unit_k[t], read[0], s.v[t][column_of<C>(0)]);
    float add[C];
    add[0] = s.unit_k[t] * d;
#pragma unroll
    for (int r = 1; r < C; r++)
        add[r] = __shfl_xor_sync(0xffffffff, add[0], r * (LANES / C));
#pragma unroll
    for (int m = 0; m < KEY / LANES / 4; m++) {
        const float4 k = *(const float4 *)&s.k[t][4 * LANES * m + at];
#pragma unroll
        for (int r = 0; r < C; r++) {
            float *e = &S[r][4 * m];
            e[0] = fmaf(k.x, add[r], e[0]);
            e[1] = fmaf(k.y, add[r], e[1]);
            e[2] = fmaf(k.z, add[r], e[2]);
            e[3] = fmaf(k.w, add[r], e[3]);
        }
    }
    return fmaf(s.qk[t], d, s.unit_q[t] * out[0]);
}

/* The lane's share of the columns col0 .. of S, which lies at `state` or is 0. */
template <int KEY, int C>
static __device__ __forceinline__ void take_state(const struct ctw_op_delta &op, const void *state,
                                                  int head, int col0, float (&S)[C][KEY / LANES])
{
    const float *from = (const float *)state + (int64_t)head * op.key * op.value;
#pragma unroll
    for (int r = 0; r < C; r++)
#pragma unroll
        for (int i = 0; i < KEY / LANES; i++) {
            const int row = row_of(i), col = col0 + column_of<C>(r);
            const bool in = state != NULL && row < op.key && col < op.value;
            S[r][i] = in ? from[(int64_t)row * op.value + col] : 0.0f;
        }
}

template <int KEY, int C>
static __device__ __forceinline__ void leave_state(const struct ctw_op_delta &op, void *state,
                                                   int head, int col0,
                                                   const float (&S)[C][KEY / LANES])
{
    float *to = (float *)state + (int64_t)head * op.key * op.value;
#pragma unroll
    for (int r = 0; r < C; r++)
#pragma unroll
        for (int i = 0; i < KEY / LANES; i++) {
            const int row = row_of(i), col = col0 + column_of<C>(r);
            if (row < op.key && col < op.value)
                to[(int64_t)row * op.value + col] = S[r][i];
        }
}

/* Columns blockIdx.x * COLUMNS * C .. of value head blockIdx.y, of the part blockIdx.z. */
template <typename T, int KEY, int C>
__global__ void __launch_bounds__(THREADS, 2)
    delta_channels(const __grid_constant__ struct ctw_cuda_delta a)
{
    __shared__ __align__(16) struct tile<KEY, C> tiles[2];
    const struct ctw_op_delta &op = a.op;
    const int head = blockIdx.y, col0 = blockIdx.x * COLUMNS * C;
    const struct ctw_cuda_part &part = a.parts.part[blockIdx.z];
    const int64_t first = part.row, end = first + part.n_tok;
    const float rate = delta_rate(op, head), scale = 1.0f / sqrtf((float)op.key);
    const int own = col0 + column_of<C>(0);
    const bool writes = threadIdx.x % (LANES / C) == 0 && own < op.value;
    float dt_bias[KEY / 32], S[C][KEY / LANES];
    struct loaded<T, KEY, C> next;
#pragma unroll
    for (int e = 0; e < KEY / 32; e++) {
        const int row = 32 * e + threadIdx.x % 32;
        dt_bias[e] = row < op.key ? ctw_cuda_number(op.dt_bias, op.dt_bias_dtype,
                                                    (int64_t)head * op.key + row)
                                  : 0.0f;
    }
    load_tile<T, KEY, C>(op, head, col0, first, end, next);
    take_state<KEY, C>(op, ctw_state_at(&op.states, part.before), head, col0, S);
    T *y = (T *)op.y + first * op.ldy + (int64_t)head * op.value + own;
    for (int64_t row0 = first; row0 < end; row0 += TILE) {
        struct tile<KEY, C> &s = tiles[(row0 - first) / TILE % 2];
        store_tile<T, KEY, C>(op, scale, rate, dt_bias, next, s);
        __syncthreads(); /* the tile is whole, and the one before is done with */
        load_tile<T, KEY, C>(op, head, col0, row0 + TILE, end, next);
        const int n = end - row0 < TILE ? (int)(end - row0) : TILE;
#pragma unroll 1
        for (int t = 0; t < n; t++, y += op.ldy) {
            const float v = token_step<KEY, C>(s, t, S);
            if (writes)
                ctw_cuda_narrow(v, y);
        }
    }
    if (part.after >= 0)
        leave_state<KEY, C>(op, ctw_state_at(&op.states, part.after), head, col0, S);
}

template <typename T, int KEY, int C>
static void launch(struct ctw_cuda *cu, const struct ctw_cuda_delta *a)
{
    dim3 grid((unsigned)((a->op.value + COLUMNS * C - 1) / (COLUMNS * C)), (unsigned)a->op.n_value,
              (unsigned)a->parts.n);
    delta_channels<T, KEY, C><<<grid, THREADS, 0, cu->stream>>>(*a);
}

/* Wide shares take fewer instructions, narrow ones more of the GPU. */
template <typename T> static void launch_any(struct ctw_cuda *cu, const struct ctw_cuda_delta *a)
{
    const int64_t heads = (int64_t)a->op.n_value * a->parts.n, value = a->op.value;
    const int64_t enough = cu->n_sm * 3 / 4; /* blocks */
    if (a->op.key <= 32)
        launch<T, 32, 1>(cu, a);
    else if (value > 64 && heads * ((value + 127) / 128) >= enough)
        launch<T, 128, 4>(cu, a);
    else if (value > 32 && heads * ((value + 63) / 64) >= enough)
        launch<T, 128, 2>(cu, a);
    else
        launch<T, 128, 1>(cu, a);
}

void ctw_cuda_delta_channels(struct ctw_cuda *cu, const struct ctw_cuda_delta *a)
{
#define LAUNCH(T) launch_any<T>(cu, a)
    CTW_CUDA_FLOAT_SWITCH(a->op.dtype, LAUNCH);
#undef LAUNCH
}
