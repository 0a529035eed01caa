/* For ssm_chunks_hopper.cu: the warpgroup that loads and computes M, and that which finishes y. */
#ifndef CTW_KERNELS_CUDA_SSM_HELPERS_CUH
#define CTW_KERNELS_CUDA_SSM_HELPERS_CUH

#include "kernels/cuda/recurrent/ssm_chunks.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Where the parts of shared memory are, of chunk i. */
template <int UNITS, int STATE> struct shared {
    using in = layout<UNITS, STATE>;
    char *memory;
    uint32_t base;

    __device__ __forceinline__ uint32_t b(int i) const
    {
        return base + i % in::STAGES * in::STAGE;
    }
    __device__ __forceinline__ uint32_t c(int i) const
    {
        return b(i) + STATE / ROWS * TILE;
    }
    __device__ __forceinline__ uint32_t x(int i, int unit) const
    {
        return b(i) + (2 * STATE / ROWS + unit) * TILE;
    }
    __device__ __forceinline__ uint32_t m(int i, int unit) const
    {
        return base + in::M + i % 2 * in::MATRICES + 2 * unit * TILE;
    }
    __device__ __forceinline__ char *at(uint32_t address) const
    {
        return memory + (address - base);
    }
    __device__ __forceinline__ float *y(int unit) const
    {
        return (float *)(memory + in::Y) + unit * CHUNK * Y_PITCH;
    }
    __device__ __forceinline__ struct factors *factors_of(int i, int unit) const
    {
        return (struct factors *)(memory + in::FACTORS) + i % 2 * UNITS + unit;
    }
    __device__ __forceinline__ struct barriers *bars() const
    {
        return (struct barriers *)(memory + in::BARRIERS);
    }
    __device__ __forceinline__ uint64_t *loaded(int i) const
    {
        return &bars()->loaded[i % in::STAGES];
    }
    __device__ __forceinline__ uint64_t *used(int i) const
    {
        return &bars()->used[i % in::STAGES];
    }
};

/* Waits for turn `turn` of a barrier, counted from 0; turn -1 has passed. */
CTW_DEV void wait_turn(uint64_t *barrier, int turn)
{
    barrier_wait(shared_address(barrier), (uint32_t)(turn & 1));
}

CTW_DEV void warp_arrives(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(shared_address(barrier));
}

/* Of 16 columns, k, of a matrix in tiles. */
CTW_DEV uint64_t columns_descriptor(uint32_t tiles, int k)
{
    return matrix_descriptor(tiles + k / 4 * TILE + k % 4 * 32);
}

/* ---- preparing ---------------------------------------------------------------------------- */

/* b, c and x of chunk i, which begins at `border`. */
template <typename T, bool WHOLE, int UNITS, int STATE>
CTW_DEV void load_chunk(const struct ssm_chunks &a, const struct work &w,
                        const struct shared<UNITS, STATE> &s, int i, int64_t border)
{
    const struct ctw_op_ssm &op = a.op;
    const int64_t at = w.group * op.n_state;
    const int thread = threadIdx.x % UNIT_THREADS;
    const T *old = w.goes_on ? (const T *)bytes_behind(a.carry.b, w.before) + at : NULL;
    const uint32_t loaded = shared_address(s.loaded(i));
    load_tile<STATE, WHOLE>(s.b(i), (const T *)op.b + at, op.ldbc, old, op.n_groups * op.n_state,
                            (int)op.n_state, w.at, border, thread);
    load_tile<STATE, WHOLE>(s.c(i), (const T *)op.c + at, op.ldbc, (const T *)NULL, 0,
                            (int)op.n_state, w.at, border, thread);
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
        const struct unit u = unit_of(a, w, j);
        load_tile<ROWS, WHOLE>(s.x(i, j), (const T *)op.x + u.column, op.ldx,
                               w.goes_on ? (const T *)bytes_behind(a.carry.x, w.before) + u.column
                                         : (const T *)NULL,
                               op.n_head * op.head, u.width, w.at, border, thread);
    }
    if (WHOLE)
        copies_arrive(loaded);
    else
        barrier_arrive(loaded);
}

/* dt of a lane's two tokens of the chunk that begins at `border`. */
template <typename T>
CTW_DEV void load_dt(const struct ssm_chunks &a, const struct work &w, const struct unit &u,
                     int64_t border, float (&dt)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int64_t pos = border + 2 * (threadIdx.x % 32) + i;
        dt[i] = pos < w.at.end ? ctw_cuda_widen(dt_at<T>(a, w, u, pos)) : 0.0f;
    }
}

/* The factors of a chunk, by a warp. rate: the logarithm to base 2 of a step of 1's decay. */
CTW_DEV void make_factors(const struct ssm_chunks &a, const struct work &w, const struct unit &u,
                          float rate, const float (&dt)[2], int64_t border, struct factors *f)
{
    const int lane = threadIdx.x % 32;
    float step[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        step[i] = border + 2 * lane + i < w.at.end ? ctw_ssm_step(a.op, dt[i], u.head) : 0.0f;
    scan_factors(rate, step, lane, f);
}

/* M from c b^T, for s <= t; what is above the diagonal of its squares of 16 stays 0. */
template <typename T>
CTW_DEV void store_m(const float (&g)[32], const struct factors *f, char *m, int warp, int lane)
{
    const int t = 16 * warp + lane / 4;
    const float to[2] = {f->log2[t], f->log2[t + 8]};
#pragma unroll
    for (int j = 0; j < CHUNK / 8; j++) {
        if (j >= 2 * (warp + 1))
            break;
        const int s = 8 * j + 2 * (lane % 4);
        const float2 from = *(const float2 *)(f->log2 + s), step = *(const float2 *)(f->step + s);
#pragma unroll
        for (int low = 0; low < 2; low++) {
            const int row = t + 8 * low;
            float v0 = g[4 * j + 2 * low] * (exp2_fast(to[low] - from.x) * step.x);
            float v1 = g[4 * j + 2 * low + 1] * (exp2_fast(to[low] - from.y) * step.y);
            v0 = s <= row ? v0 : 0.0f;
            v1 = s + 1 <= row ? v1 : 0.0f;
            const uint32_t v = pair<T>(v0, v1);
            char *dst = m + tile_chunk(row, j) + 4 * (lane % 4);
            *(uint32_t *)dst = v;
            *(uint32_t *)(dst + TILE) = pair_rest<T>(v, v0, v1);
        }
    }
}

/* g [CHUNK, CHUNK] = c b^T of chunk i. */
template <typename T, int UNITS, int STATE>
CTW_DEV void begin_m(const struct shared<UNITS, STATE> &s, int i, float (&g)[32])
{
#pragma unroll
    for (int j = 0; j < 32; j++)
        g[j] = 0;
    shared_fence();
    products_fence();
#pragma unroll
    for (int k = 0; k < STATE / 16; k++)
        score_product<T>(g, columns_descriptor(s.c(i), k), columns_descriptor(s.b(i), k), 1);
    products_commit();
}

template <typename T, bool WHOLE, int UNITS, int STATE>
CTW_DEV void prepare(const struct ssm_chunks &a, const struct work &w,
                     const struct shared<UNITS, STATE> &s)
{
    const int warp = threadIdx.x / 32 % UNIT_WARPS, lane = threadIdx.x % 32;
    const struct unit own = unit_of(a, w, warp % UNITS); /* whose factors the warp makes */
    const float rate = ctw_ssm_rate(a.op, own.head) * 1.4426950408889634f;
    constexpr int STAGES = layout<UNITS, STATE>::STAGES, AHEAD = STAGES - 1;
    struct barriers *const bars = s.bars();
    int64_t border = first_border(w);
    float dt[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (border + i * CHUNK < w.at.end)
            load_chunk<T, WHOLE>(a, w, s, i, border + i * CHUNK);
    if (warp < UNITS)
        load_dt<T>(a, w, own, border, dt);
    for (int i = threadIdx.x % UNIT_THREADS; i < 4 * UNITS * TILE / 16; i += UNIT_THREADS)
        ((uint4 *)s.at(s.m(0, 0)))[i] = make_uint4(0, 0, 0, 0);
    asm volatile("bar.sync 1, 128;" ::: "memory");
    for (int i = 0; border < w.at.end; i++, border += CHUNK) {
        wait_turn(&bars->spent[i % 2], i / 2 - 1);
        if (warp < UNITS) {
            make_factors(a, w, own, rate, dt, border, s.factors_of(i, warp));
            load_dt<T>(a, w, own, border + CHUNK, dt);
        }
        wait_turn(s.loaded(i), i / STAGES);
        float g[32];
        begin_m<T>(s, i, g);
        asm volatile("bar.sync 1, 128;" ::: "memory"); /* factors are there */
        products_wait<0>();
        sums_ready(g);
        warp_arrives(s.used(i));
#pragma unroll
        for (int j = 0; j < UNITS; j++)
            store_m<T>(g, s.factors_of(i, j), s.at(s.m(i, j)), warp, lane);
        shared_fence();
        barrier_arrive(shared_address(&bars->ready[i % 2]));
        if (border + AHEAD * CHUNK < w.at.end) {
            wait_turn(s.used(i + AHEAD), (i + AHEAD) / STAGES - 1);
            load_chunk<T, WHOLE>(a, w, s, i + AHEAD, border + AHEAD * CHUNK);
        }
    }
}

/* ---- finishing ---------------------------------------------------------------------------- */

/* 8 elements, of which n exist: all of them if WHOLE. */
template <bool WHOLE, typename T> CTW_DEV void load_8(const T *from, int n, T (&v)[8])
{
    if constexpr (WHOLE) {
        const uint4 all = *(const uint4 *)from;
        memcpy(v, &all, 16);
    } else {
        for (int e = 0; e < 8; e++)
            v[e] = e < n ? from[e] : T();
    }
}

template <bool WHOLE, typename T> CTW_DEV void store_8(const T (&v)[8], int n, T *to)
{
    if constexpr (WHOLE) {
        uint4 all;
        memcpy(&all, v, 16);
        *(uint4 *)to = all;
    } else {
        for (int e = 0; e < 8 && e < n; e++)
            to[e] = v[e];
    }
}

/* y = (sums + d x) silu(z), of 8 elements of a token. */
template <typename T, bool GATE>
CTW_DEV void finish_8(const float *sums, const T (&x)[8], float d, const T (&z)[8], T (&y)[8])
{
    const float4 low = *(const float4 *)sums, high = *(const float4 *)(sums + 4);
    const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
        float v0 = fmaf(d, ctw_cuda_widen(x[e]), v[e]);
        float v1 = fmaf(d, ctw_cuda_widen(x[e + 1]), v[e + 1]);
        if (GATE) {
            const float z0 = ctw_cuda_widen(z[e]), z1 = ctw_cuda_widen(z[e + 1]);
            v0 *= __fdividef(z0, 1 + __expf(-z0));
            v1 *= __fdividef(z1, 1 + __expf(-z1));
        }
        ctw_cuda_narrow2(v0, v1, y + e);
    }
}

/* y of unit j in chunk i, which begins at `border`. */
template <typename T, bool GATE, bool WHOLE, int UNITS, int STATE>
CTW_DEV void finish_unit(const struct ssm_chunks &a, const struct work &w,
                         const struct shared<UNITS, STATE> &s, int i, int j, int64_t border)
{
    enum { PARTS = CHUNK * ROWS / 8 / UNIT_THREADS }; /* of a thread */
    const struct ctw_op_ssm &op = a.op;
    const struct unit u = unit_of(a, w, j);
    const float d = ctw_ssm_number(op.d, u.head);
    const int thread = threadIdx.x % UNIT_THREADS, chunk = thread % 8, n = u.width - 8 * chunk;
    const int64_t column = u.column + 8 * chunk;
    T z[PARTS][8], x[PARTS][8], y[8];
#pragma unroll
    for (int k = 0; GATE && k < PARTS; k++) {
        const int64_t pos = border + thread / 8 + 16 * k;
        if (pos >= w.at.pos0 && pos < w.at.end)
            load_8<WHOLE>((const T *)op.z + (pos + w.at.shift) * op.ldz + column, n, z[k]);
    }
    wait_turn(s.loaded(i), i / layout<UNITS, STATE>::STAGES);
#pragma unroll
    for (int k = 0; k < PARTS; k++)
        load_8<true>((const T *)s.at(s.x(i, j) + tile_chunk(thread / 8 + 16 * k, chunk)), 8, x[k]);
    if (j == UNITS - 1)
        warp_arrives(s.used(i));
    wait_turn(&s.bars()->summed[j], i);
#pragma unroll
    for (int k = 0; k < PARTS; k++) {
        const int r = thread / 8 + 16 * k;
        const int64_t pos = border + r;
        finish_8<T, GATE>(s.y(j) + r * Y_PITCH + 8 * chunk, x[k], d, z[k], y);
        if (pos >= w.at.pos0 && pos < w.at.end)
            store_8<WHOLE>(y, n, (T *)op.y + (pos + w.at.shift) * op.ldy + column);
    }
    warp_arrives(&s.bars()->stored[j]);
}

template <typename T, bool GATE, bool WHOLE, int UNITS, int STATE>
CTW_DEV void finish(const struct ssm_chunks &a, const struct work &w,
                    const struct shared<UNITS, STATE> &s)
{
    int64_t border = first_border(w);
    for (int i = 0; border < w.at.end; i++, border += CHUNK)
#pragma unroll
        for (int j = 0; j < UNITS; j++)
            finish_unit<T, GATE, WHOLE>(a, w, s, i, j, border);
}

#endif
#endif
