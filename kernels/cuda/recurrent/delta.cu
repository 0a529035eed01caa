/*
 * The gated delta rule, token by token, for what delta_chunks.cu does not have. A block has some
 * columns of one value head's S for a whole part: 4 lanes share a column and have a quarter of
 * its rows each, in registers. S = factor * T: T is what the registers hold, so that a token takes
 * three multiply-adds an element, of which decay is none. Tokens come in tiles; while a tile is
 * computed, the next one's loads are on their way. Decays of each row's own: delta_channels.cu.
 *
 * A column's arithmetic depends on `key` alone: neither the columns of a block nor a tile's border
 * changes a bit. So products and sums are fused only where the source says so.
 */
#include "kernels/cuda/recurrent/delta_launch.h"

enum {
    WARPS = 4,
    THREADS = 32 * WARPS,
    LANES = 4,                 /* of a column */
    COLUMNS = THREADS / LANES, /* of a block, times those of a lane */
    TILE = 16,                 /* tokens */
    OWN = TILE / WARPS         /* of a warp, to prepare */
};

/* T is multiplied by a factor below this, which becomes 1. */
#define LEAST_FACTOR 0x1p-40f

/* Tokens as they are computed: q and k normalised, q with its factor. */
template <int KEY, int C> struct tile {
    float q[TILE][KEY], k[TILE][KEY], v[TILE][COLUMNS * C];
    float decay[TILE], beta[TILE], qk[TILE];
};

/* A lane's part of its warp's tokens of a tile, as loaded; 0 beyond the end and beyond a head. */
template <typename T, int KEY, int C> struct loaded {
    T q[OWN][KEY / 32], k[OWN][KEY / 32], v[OWN][C];
    float b, a; /* of the warp's token `lane` */
};

template <typename T> static __device__ __forceinline__ T zero()
{
    T z;
    ctw_cuda_narrow(0.0f, &z);
    return z;
}

template <typename T, int KEY, int C>
static __device__ __forceinline__ void load_tile(const struct ctw_op_delta &op, int head, int col0,
                                                 int64_t row0, int64_t end,
                                                 struct loaded<T, KEY, C> &l)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t keys = (int64_t)op.n_key * op.key;
    const int64_t from = (int64_t)ctw_delta_key_head(&op, head) * op.key;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int64_t row = row0 + warp + WARPS * i;
        const T *x = (const T *)op.x + row * op.ldx;
        const bool live = row < end;
#pragma unroll
        for (int e = 0; e < KEY / 32; e++) {
            const int at = 32 * e + lane;
            const bool in = live && at < op.key;
            l.q[i][e] = in ? x[from + at] : zero<T>();
            l.k[i][e] = in ? x[keys + from + at] : zero<T>();
        }
#pragma unroll
        for (int c = 0; c < C; c++) {
            const int at = col0 + 32 * c + lane;
            l.v[i][c] =
                live && at < op.value ? x[2 * keys + (int64_t)head * op.value + at] : zero<T>();
        }
    }
    const int64_t row = row0 + warp + WARPS * lane;
    const bool live = lane < OWN && row < end;
    const int64_t at = row * op.ldba + ctw_delta_column(&op, head);
    l.b = live ? ctw_cuda_widen(((const T *)op.b)[at]) : 0.0f;
    l.a = live ? ctw_cuda_widen(((const T *)op.a)[at]) : 0.0f;
}

static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        v += __shfl_xor_sync(0xffffffff, v, i);
    return v;
}

template <typename T, int KEY, int C>
static __device__ __forceinline__ void store_tile(const struct ctw_op_delta &op, float rate,
                                                  float dt_bias, const struct loaded<T, KEY, C> &l,
                                                  struct tile<KEY, C> &s)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float scale = 1.0f / sqrtf((float)op.key);
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
        }
        const float rq = scale / sqrtf(warp_sum(qq) + 1e-6f);
        const float rk = 1.0f / sqrtf(warp_sum(kk) + 1e-6f);
        qk = warp_sum(qk);
#pragma unroll
        for (int e = 0; e < KEY / 32; e++) {
            s.q[t][32 * e + lane] = rq * ctw_cuda_widen(l.q[i][e]);
            s.k[t][32 * e + lane] = rk * ctw_cuda_widen(l.k[i][e]);
        }
#pragma unroll
        for (int c = 0; c < C; c++)
            s.v[t][32 * c + lane] = ctw_cuda_widen(l.v[i][c]);
        if (lane == 0)
            s.qk[t] = rq * rk * qk;
    }
    if (lane < OWN) {
        s.beta[warp + WARPS * lane] = (op.twice ? 2.0f : 1.0f) / (1.0f + expf(-l.b));
        s.decay[warp + WARPS * lane] = expf(delta_log_decay(rate, l.a + dt_bias, op.least_log));
    }
}

/*
 * A lane's share of S: elements [c][4 m + i] are of column C g + c, g = 8 warp + lane / 4, and row
 * 16 m + 4 (lane % 4) + i.
 */
template <int KEY, int C> struct share {
    float t[C][KEY / LANES];
    float factor;
};

/* One token. y: the lane's columns, equal in the 4 lanes. */
template <int KEY, int C>
static __device__ __forceinline__ void token_step(const struct tile<KEY, C> &s, int t,
                                                  struct share<KEY, C> &h, float (&y)[C])
{
    const int lane = threadIdx.x % 32, group = threadIdx.x / LANES;
    float read[C] = {}, out[C] = {};
    h.factor *= s.decay[t];
    if (!(h.factor >= LEAST_FACTOR)) { /* alike in all threads of the block */
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int i = 0; i < KEY / LANES; i++)
                h.t[c][i] *= h.factor;
        h.factor = 1.0f;
    }
#pragma unroll
    for (int m = 0; m < KEY / 16; m++) {
        const float4 k = *(const float4 *)&s.k[t][16 * m + 4 * (lane % LANES)];
        const float4 q = *(const float4 *)&s.q[t][16 * m + 4 * (lane % LANES)];
#pragma unroll
        for (int c = 0; c < C; c++) {
            const float *e = &h.t[c][4 * m];
            read[c] = fmaf(k.x, e[0], read[c]);
            out[c] = fmaf(q.x, e[0], out[c]);
            read[c] = fmaf(k.y, e[1], read[c]);
            out[c] = fmaf(q.y, e[1], out[c]);
            read[c] = fmaf(k.z, e[2], read[c]);
            out[c] = fmaf(q.z, e[2], out[c]);
            read[c] = fmaf(k.w, e[3], read[c]);
            out[c] = fmaf(q.w, e[3], out[c]);
        }
    }
    const float inverse = 1.0f / h.factor;
    float add[C];
#pragma unroll
    for (int c = 0; c < C; c++) {
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) {
            read[c] += __shfl_xor_sync(0xffffffff, read[c], i);
            out[c] += __shfl_xor_sync(0xffffffff, out[c], i);
        }
        const float d = s.beta[t] * fmaf(-h.factor, read[c], s.v[t][C * group + c]);
        y[c] = fmaf(s.qk[t], d, h.factor * out[c]);
        add[c] = d * inverse;
    }
#pragma unroll
    for (int m = 0; m < KEY / 16; m++) {
        const float4 k = *(const float4 *)&s.k[t][16 * m + 4 * (lane % LANES)];
#pragma unroll
        for (int c = 0; c < C; c++) {
            float *e = &h.t[c][4 * m];
            e[0] = fmaf(k.x, add[c], e[0]);
            e[1] = fmaf(k.y, add[c], e[1]);
            e[2] = fmaf(k.z, add[c], e[2]);
            e[3] = fmaf(k.w, add[c], e[3]);
        }
    }
}

/* The row and column of S of element [c][i] of the lane's share; col0: the block's first. */
template <int C> static __device__ __forceinline__ int row_of(int i)
{
    return i / 4 * 16 + 4 * (threadIdx.x % LANES) + i % 4;
}

template <int C> static __device__ __forceinline__ int column_of(int col0, int c)
{
    return col0 + C * (threadIdx.x / LANES) + c;
}

template <int KEY, int C>
static __device__ __forceinline__ void take_state(const struct ctw_op_delta &op, const void *before,
                                                  int head, int col0, struct share<KEY, C> &h)
{
    const float *from = (const float *)before;
    const float *S = from == NULL ? NULL : from + (int64_t)head * op.key * op.value;
    h.factor = from == NULL ? 1.0f : from[(int64_t)op.n_value * op.key * op.value + head];
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < KEY / LANES; i++) {
            const int row = row_of<C>(i), col = column_of<C>(col0, c);
            h.t[c][i] = S != NULL && row < op.key && col < op.value
                            ? S[(int64_t)row * op.value + col]
                            : 0.0f;
        }
}

template <int KEY, int C>
static __device__ __forceinline__ void leave_state(const struct ctw_op_delta &op, void *after,
                                                   int head, int col0,
                                                   const struct share<KEY, C> &h)
{
    float *to = (float *)after, *S = to + (int64_t)head * op.key * op.value;
    if (col0 == 0 && threadIdx.x == 0)
        to[(int64_t)op.n_value * op.key * op.value + head] = h.factor;
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < KEY / LANES; i++) {
            const int row = row_of<C>(i), col = column_of<C>(col0, c);
            if (row < op.key && col < op.value)
                S[(int64_t)row * op.value + col] = h.t[c][i];
        }
}

/* Columns blockIdx.x * COLUMNS * C .. of value head blockIdx.y, of the part blockIdx.z. */
template <typename T, int KEY, int C>
__global__ void __launch_bounds__(THREADS, KEY > 128 || C == 4 ? 2 : 4)
    delta_heads(const __grid_constant__ struct ctw_cuda_delta a)
{
    __shared__ __align__(16) struct tile<KEY, C> s;
    const struct ctw_op_delta &op = a.op;
    const int head = blockIdx.y, col0 = blockIdx.x * COLUMNS * C, lane = threadIdx.x % LANES;
    const struct ctw_cuda_part &part = a.parts.part[blockIdx.z];
    const int64_t first = part.row, end = first + part.n_tok;
    const float rate = delta_rate(op, head);
    const float dt_bias = ctw_cuda_number(op.dt_bias, op.dt_bias_dtype, head);
    struct share<KEY, C> h;
    struct loaded<T, KEY, C> next;
    take_state(op, ctw_state_at(&op.states, part.before), head, col0, h);
    load_tile<T, KEY, C>(op, head, col0, first, end, next);
    for (int64_t row0 = first; row0 < end; row0 += TILE) {
        __syncthreads(); /* the tile before is done with */
        store_tile<T, KEY, C>(op, rate, dt_bias, next, s);
        __syncthreads();
        load_tile<T, KEY, C>(op, head, col0, row0 + TILE, end, next);
        const int n = end - row0 < TILE ? (int)(end - row0) : TILE;
        for (int t = 0; t < n; t++) {
            float y[C];
            token_step<KEY, C>(s, t, h, y);
            T *to = (T *)op.y + (row0 + t) * op.ldy + (int64_t)head * op.value;
#pragma unroll
            for (int c = 0; c < C; c++)
                if (c % LANES == lane && column_of<C>(col0, c) < op.value)
                    ctw_cuda_narrow(y[c], to + column_of<C>(col0, c));
        }
    }
    if (part.after >= 0)
        leave_state(op, ctw_state_at(&op.states, part.after), head, col0, h);
}

template <typename T, int KEY, int C>
static void launch(struct ctw_cuda *cu, const struct ctw_cuda_delta *a)
{
    dim3 grid((unsigned)((a->op.value + COLUMNS * C - 1) / (COLUMNS * C)), (unsigned)a->op.n_value,
              (unsigned)a->parts.n);
    delta_heads<T, KEY, C><<<grid, THREADS, 0, cu->stream>>>(*a);
}

/* Wide shares take fewer instructions, narrow ones more of the GPU. */
template <typename T> static void launch_any(struct ctw_cuda *cu, const struct ctw_cuda_delta *a)
{
    enum { ENOUGH = 2 * 132 }; /* blocks */
    const int64_t heads = (int64_t)a->op.n_value * a->parts.n;
    if (a->op.key > 128)
        launch<T, 256, 1>(cu, a);
    else if (a->op.key <= 32)
        launch<T, 32, 1>(cu, a);
    else if (a->op.value > 64 && heads >= ENOUGH)
        launch<T, 128, 4>(cu, a);
    else if (a->op.value > 32 && heads * ((a->op.value + 63) / 64) >= ENOUGH)
        launch<T, 128, 2>(cu, a);
    else
        launch<T, 128, 1>(cu, a);
}

enum ctw_status ctw_cuda_delta(struct ctw_cuda *cu, const struct ctw_op_delta *op,
                               struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    struct ctw_cuda_delta a = {};
    a.op = *op;
    for (int64_t i = 0; i < op->n_parts && st == CTW_OK; i += a.parts.n) {
        ctw_cuda_take_parts(&a.parts, op->parts + i, op->n_parts - i);
#define LAUNCH(T) launch_any<T>(cu, &a)
        if (ctw_cuda_delta_has_chunks(cu, op))
            st = ctw_cuda_delta_chunks(cu, &a, err);
        else if (op->by_channel)
            ctw_cuda_delta_channels(cu, &a);
        else
            CTW_CUDA_FLOAT_SWITCH(op->dtype, LAUNCH);
#undef LAUNCH
    }
    return st == CTW_OK ? ctw_cuda_launched("gated delta rule", err) : st;
}
