/*
 * For ssm_chunks_hopper.cu, ctw_ssm() in chunks of CTW_SSM_CHUNK tokens: all but matrix products. A
 * unit is up to 64 rows of a head's state; 4 warps have it, 16 rows each, in fp32 registers. A
 * block goes through a part with UNITS units of one group. For each chunk, with L the sum of
 * the logarithms of decays since the chunk's border:
 *
 *     M[t, s] = (sum over n of c[t, n] b[s, n]) exp(L[t] - L[s]) step[s], for s <= t
 *
 *     y[t, i] = exp(L[t]) (sum over n of S[i, n] c[t, n]) + sum over s of M[t, s] x[s, i]
 *
 *     S[i, n] = exp(L[end]) S[i, n] + sum over s of (x[s, i] step[s] exp(L[end] - L[s])) b[s, n]
 *
 * by products of 16-bit numbers with sums in fp32. b, c and x are such numbers. M, the S of y and
 * the factor of b become two of them, their value and what rounding has left.
 */
#ifndef CTW_KERNELS_CUDA_SSM_CHUNKS_CUH
#define CTW_KERNELS_CUDA_SSM_CHUNKS_CUH

#include "kernels/cuda/ptx_mma.h"
#include "kernels/cuda/recurrent/ssm.cuh"

enum {
    CHUNK = CTW_SSM_CHUNK,
    ROWS = 64, /* of a unit */
    UNIT_WARPS = 4,
    UNIT_THREADS = 32 * UNIT_WARPS,
    TILE = CHUNK * 64 * 2, /* CHUNK rows of 64 elements; wider matrices are several tiles */
};

struct ssm_chunks {
    struct ctw_op_ssm op;
    struct ctw_ssm_carry carry; /* of state 0 */
    int slabs;                  /* units of a head */
    int group_blocks;
    struct ctw_cuda_parts parts;
};

/* What a token has beside its rows, [CHUNK] each: L / ln 2, step, exp(L), step exp(L[end] - L). */
struct factors {
    float log2[CHUNK], step[CHUNK], decay[CHUNK], rest[CHUNK];
};

/* A part of the launch, and where it lies: position p is row p + shift; carried before `pos0`.
 */
struct place {
    int64_t pos0, end, shift;
};

static __device__ __forceinline__ float exp2_fast(float v)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

/* Copies 16 bytes to shared memory, or as many zeros if bytes is 0. */
static __device__ __forceinline__ void fetch_16(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void fetches_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most the PENDING most recently committed groups of this thread are on their way.
 */
template <int PENDING> static __device__ __forceinline__ void fetches_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* The inverse of load_4_transposed(). */
static __device__ __forceinline__ void store_4_transposed(uint32_t address, const uint32_t (&r)[4])
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}

/* The offset in bytes of 8 elements of a row of a matrix in tiles, swizzled as a tensor copy does.
 */
static __device__ __forceinline__ uint32_t tile_chunk(int row, int chunk)
{
    return (uint32_t)(chunk / 8 * TILE) + (uint32_t)(row * 128 + ((chunk % 8 ^ (row & 7)) << 4));
}

/* 8 elements of which the first n exist, at any alignment, to shared memory. */
template <typename T>
static __device__ __noinline__ void load_slowly(uint32_t to, const T *from, int n)
{
    uint32_t w[4] = {0, 0, 0, 0};
    for (int i = 0; i < n && i < 8; i++) {
        uint16_t bits;
        memcpy(&bits, from + i, 2);
        w[i / 2] |= (uint32_t)bits << 16 * (i % 2);
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
}

/*
 * A tile of CHUNK rows of WIDTH elements, of which `width` exist, by THREADS threads: positions
 * from `border` on of a matrix, ld apart, whose row 0 `rows` points to; before pos0, of `carried`,
 * carried_ld apart (NULL: zeros).
 */
template <int WIDTH, int THREADS, bool WHOLE, typename T>
static __device__ __forceinline__ void load_tile(uint32_t to, const T *rows, int64_t ld,
                                                 const T *carried, int64_t carried_ld, int width,
                                                 const struct place &at, int64_t border, int thread)
{
#pragma unroll
    for (int i = thread; i < CHUNK * WIDTH / 8; i += THREADS) {
        const int r = i / (WIDTH / 8), chunk = i % (WIDTH / 8);
        const int64_t pos = border + r;
        const bool old = pos < at.pos0, here = pos < at.end && (!old || carried != NULL);
        const T *from = !here ? rows
                        : old ? carried + r * carried_ld + chunk * 8
                              : rows + (pos + at.shift) * ld + chunk * 8;
        const uint32_t dst = to + tile_chunk(r, chunk);
        if constexpr (WHOLE)
            fetch_16(dst, from, here ? 16 : 0);
        else
            load_slowly(dst, from, here ? width - chunk * 8 : 0);
    }
}

/* Lane l has tokens 2 l and 2 l + 1. */
static __device__ __forceinline__ void scan_factors(float rate, const float (&step)[2], int lane,
                                                    struct factors *f)
{
    float l0 = rate * step[0], sum = l0 + rate * step[1];
#pragma unroll
    for (int off = 1; off < 32; off *= 2) {
        float other = __shfl_up_sync(0xffffffffu, sum, off);
        if (lane >= off)
            sum += other;
    }
    float first = __shfl_up_sync(0xffffffffu, sum, 1);
    first = lane == 0 ? l0 : first + l0;
    const float end = __shfl_sync(0xffffffffu, sum, 31);
    *(float2 *)(f->log2 + 2 * lane) = make_float2(first, sum);
    *(float2 *)(f->step + 2 * lane) = make_float2(step[0], step[1]);
    *(float2 *)(f->decay + 2 * lane) = make_float2(exp2_fast(first), exp2_fast(sum));
    *(float2 *)(f->rest + 2 * lane) =
        make_float2(step[0] * exp2_fast(end - first), step[1] * exp2_fast(end - sum));
}

template <typename T> static __device__ __forceinline__ uint32_t pair(float lo, float hi)
{
    T both[2];
    ctw_cuda_narrow2(lo, hi, both);
    uint32_t r;
    memcpy(&r, both, 4);
    return r;
}

template <typename T> static __device__ __forceinline__ float2 unpair(uint32_t v)
{
    T both[2];
    memcpy(both, &v, 4);
    return make_float2(ctw_cuda_widen(both[0]), ctw_cuda_widen(both[1]));
}

/* What pair() left out. */
template <typename T>
static __device__ __forceinline__ uint32_t pair_rest(uint32_t v, float lo, float hi)
{
    float2 had = unpair<T>(v);
    return pair<T>(lo - had.x, hi - had.y);
}

/*
 * 0 times infinity is NaN: an x that is not finite would spoil the tokens before it. So products
 * with M take such an x as 0, and the tokens after it get NaN. Returns whether there is such an x.
 */
template <typename T>
static __device__ __forceinline__ bool clean(const uint32_t (&x)[4], uint32_t (&finite)[4], int k,
                                             int lane, int *bad)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 v = unpair<T>(x[i]);
        sum = fmaf(v.x, 0.0f, fmaf(v.y, 0.0f, sum));
        finite[i] = x[i];
    }
    if (!__any_sync(0xffffffffu, !(sum == 0)))
        return *bad < CHUNK;
    int token = CHUNK;
#pragma unroll
    for (int i = 3; i >= 0; i--) {
        const float2 v = unpair<T>(x[i]);
        const int t = 16 * k + 8 * (i / 2) + 2 * (lane % 4);
        token = isfinite(v.y) ? token : t + 1;
        token = isfinite(v.x) ? token : t;
        finite[i] = pair<T>(isfinite(v.x) ? v.x : 0.0f, isfinite(v.y) ? v.y : 0.0f);
    }
    token = __reduce_min_sync(0xffffffffu, token);
    *bad = token < *bad ? token : *bad;
    return true;
}

/* NaN for those of 16 tokens, from `t` on, that come after token `bad`. */
template <int N>
static __device__ __forceinline__ void spoil(float (&y)[N], int k, int t, int bad, int lane)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (t + 8 * (i / 2) + 2 * (lane % 4) + e > bad)
                y[8 * k + 2 * i + e] = nanf("");
}

/* Finishes 16 tokens of y, k: skip, gate. y takes the place of z, which lies at `at`. */
template <typename T, bool GATE, int N>
static __device__ __forceinline__ void finish(const float (&y)[N], const uint32_t (&x)[4], float d,
                                              uint32_t at, int k)
{
    uint32_t z[4], out[4];
    if (GATE)
        load_4_transposed(z, at);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *v = y + 8 * k + 2 * i;
        const float2 skip = unpair<T>(x[i]);
        float v0 = fmaf(d, skip.x, v[0]), v1 = fmaf(d, skip.y, v[1]);
        if (GATE) {
            const float2 g = unpair<T>(z[i]);
            v0 *= __fdividef(g.x, 1 + __expf(-g.x));
            v1 *= __fdividef(g.y, 1 + __expf(-g.y));
        }
        out[i] = pair<T>(v0, v1);
    }
    __syncwarp();
    store_4_transposed(at, out);
}

/* Where a lane's row of 4 squares of 8 x 8 is in a tile: 16 tokens, k, of a warp's 16 columns. */
static __device__ __forceinline__ uint32_t own_square(int k, int first, int lane)
{
    return tile_chunk(16 * k + (lane & 7) + (lane >> 4 << 3), first + (lane >> 3 & 1));
}

/* The 16 columns of y, from chunk `first` of a tile on, to memory. */
template <bool WHOLE, typename T>
static __device__ __forceinline__ void store_y(const struct ssm_chunks &a, uint32_t tile, int first,
                                               int64_t column, int width, const struct place &at,
                                               int64_t border, int lane)
{
#pragma unroll
    for (int i = lane; i < CHUNK * 2; i += 32) {
        const int r = i / 2, chunk = first + i % 2;
        const int64_t pos = border + r;
        if (pos < at.pos0 || pos >= at.end)
            continue;
        uint32_t v[4];
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(tile + tile_chunk(r, chunk))
                     : "memory");
        T *to = (T *)a.op.y + (pos + at.shift) * a.op.ldy + column + chunk * 8;
        if constexpr (WHOLE) {
            *(uint4 *)to = make_uint4(v[0], v[1], v[2], v[3]);
        } else {
            T all[8];
            memcpy(all, v, 16);
            for (int e = 0; e < 8 && chunk * 8 + e < width; e++)
                to[e] = all[e];
        }
    }
}

template <int STATE, bool STORE>
static __device__ __forceinline__ void move_state(float (&state)[STATE / 2], float *memory,
                                                  int64_t n_state, int width, int row, int lane)
{
#pragma unroll
    for (int j = 0; j < STATE / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = row + lane / 4 + 8 * (e / 2), n = 8 * j + 2 * (lane % 4) + e % 2;
            const bool here = i < width && n < n_state;
            if (STORE && here)
                memory[i * n_state + n] = state[4 * j + e];
            if (!STORE)
                state[4 * j + e] = here && memory != NULL ? memory[i * n_state + n] : 0.0f;
        }
}

/* Rows r < n of a tile in shared memory, of `width` elements, to memory, ld apart. */
template <typename T>
static __device__ void keep_rows(const char *tile, int n, int width, T *to, int64_t ld, int thread,
                                 int n_threads)
{
    for (int i = thread; i < n * width; i += n_threads) {
        const int r = i / width, col = i % width;
        to[r * ld + col] = *(const T *)(tile + tile_chunk(r, col / 8) + col % 8 * 2);
    }
}

/* The block's and the warp's part of the work. */
template <typename T> struct part {
    int warp, lane, unit, first; /* of the unit's columns, in chunks of 8 */
    int thread;                  /* of the unit */
    int64_t group, head, column;
    int slab, width, in_group;
    struct place at;
    bool goes_on, scans;
    int64_t before, after; /* bytes from state 0 to the part's states; after: -1: none */
};

/* Behind p, by so many bytes. */
template <typename P> static __device__ __forceinline__ P *bytes_behind(P *p, int64_t bytes)
{
    return (P *)((char *)p + bytes);
}

template <typename T, int UNITS>
static __device__ __forceinline__ struct part<T> part_of(const struct ssm_chunks &a) {
    const struct ctw_op_ssm &op = a.op;
    struct part<T> p;
    p.warp = threadIdx.x / 32;
    p.lane = threadIdx.x % 32;
    p.unit = p.warp / UNIT_WARPS;
    p.thread = threadIdx.x % UNIT_THREADS;
    p.first = 2 * (p.warp % UNIT_WARPS);
    p.group = blockIdx.x / a.group_blocks;
    p.in_group = (int)(blockIdx.x % a.group_blocks) * UNITS;
    p.head = p.group * (op.n_head / op.n_groups) + (p.in_group + p.unit) / a.slabs;
    p.slab = (p.in_group + p.unit) % a.slabs;
    p.column = p.head * op.head + p.slab * ROWS;
    p.width = op.head - p.slab * ROWS < ROWS ? (int)(op.head - p.slab * ROWS) : (int)ROWS;
    const struct ctw_cuda_part &q = a.parts.part[blockIdx.y];
    p.at.pos0 = q.pos0;
    p.at.shift = q.row - p.at.pos0;
    p.at.end = p.at.pos0 + q.n_tok;
    p.goes_on = q.before >= 0;
    p.before = q.before * (int64_t)op.states.bytes;
    p.after = q.after < 0 ? -1 : q.after * (int64_t)op.states.bytes;
    p.scans = p.warp % UNIT_WARPS == p.unit % UNIT_WARPS; /* of another scheduler for each unit */
    return p;
}

/* b, c and x of a chunk, which lie one behind another: those of the block, and the unit's. */
template <int UNITS, int STATE, bool WHOLE, typename T>
static __device__ __forceinline__ void
load_stage(const struct ssm_chunks &a, const struct part<T> &p, uint32_t to, int64_t from)
{
    const struct ctw_op_ssm &op = a.op;
    const int64_t at = p.group * op.n_state;
    const T *old_b = p.goes_on ? (const T *)bytes_behind(a.carry.b, p.before) + at : NULL;
    const T *old_x = p.goes_on ? (const T *)bytes_behind(a.carry.x, p.before) + p.column : NULL;
    load_tile<STATE, UNITS * UNIT_THREADS, WHOLE>(to, (const T *)op.b + at, op.ldbc, old_b,
                                                  op.n_groups * op.n_state, (int)op.n_state, p.at,
                                                  from, threadIdx.x);
    load_tile<STATE, UNITS * UNIT_THREADS, WHOLE>(to + STATE / ROWS * TILE, (const T *)op.c + at,
                                                  op.ldbc, (const T *)NULL, 0, (int)op.n_state,
                                                  p.at, from, threadIdx.x);
    load_tile<ROWS, UNIT_THREADS, WHOLE>(to + (2 * STATE / ROWS + p.unit) * TILE,
                                         (const T *)op.x + p.column, op.ldx, old_x,
                                         op.n_head * op.head, p.width, p.at, from, p.thread);
    fetches_commit();
}

/* A warp loads the columns of z whose y it has. */
template <bool GATE, bool WHOLE, typename T>
static __device__ __forceinline__ void load_z(const struct ssm_chunks &a, const struct part<T> &p,
                                              uint32_t own, int64_t from)
{
#pragma unroll
    for (int i = p.lane; GATE && i < CHUNK * 2; i += 32) {
        const int r = i / 2, chunk = p.first + i % 2;
        const int64_t pos = from + r;
        const bool here = pos >= p.at.pos0 && pos < p.at.end;
        const T *z =
            (const T *)a.op.z + (here ? (pos + p.at.shift) * a.op.ldz : 0) + p.column + chunk * 8;
        const uint32_t to = own + tile_chunk(r, chunk);
        if constexpr (WHOLE)
            fetch_16(to, z, here ? 16 : 0);
        else
            load_slowly(to, z, here ? p.width - chunk * 8 : 0);
    }
    fetches_commit();
}

template <typename T>
static __device__ __forceinline__ T dt_at(const struct ssm_chunks &a, const struct part<T> &p,
                                          int64_t pos)
{
    const T *from = pos < p.at.pos0 ? (const T *)bytes_behind(a.carry.dt, p.before) +
                                          pos % CHUNK * a.op.n_head
                                    : (const T *)a.op.dt + (pos + p.at.shift) * a.op.lddt;
    return from[p.head];
}

/* dt of a lane's two tokens of a chunk. */
template <typename T>
static __device__ __forceinline__ void load_dt(const struct ssm_chunks &a, const struct part<T> &p,
                                               int64_t from, float (&dt)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int64_t pos = from + 2 * p.lane + i;
        dt[i] = pos < p.at.end ? ctw_cuda_widen(dt_at(a, p, pos)) : 0.0f;
    }
}

/* The factors of a chunk, by a warp. rate: the logarithm to base 2 of a step of 1's decay. */
template <typename T>
static __device__ __forceinline__ void
make_factors(const struct ssm_chunks &a, const struct part<T> &p, float rate, const float (&dt)[2],
             int64_t from, struct factors *f)
{
    float step[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        step[i] = from + 2 * p.lane + i < p.at.end ? ctw_ssm_step(a.op, dt[i], p.head) : 0.0f;
    scan_factors(rate, step, p.lane, f);
}

/* What the next call needs: the state, and the rows of the unfinished chunk, whose tiles lie at
 * `tiles`. */
template <int UNITS, int STATE, typename T>
static __device__ __forceinline__ void leave(const struct ssm_chunks &a, const struct part<T> &p,
                                             float (&state)[STATE / 2], const char *tiles,
                                             int64_t border)
{
    const struct ctw_op_ssm &op = a.op;
    const int n = (int)(p.at.end % CHUNK);
    move_state<STATE, true>(state, bytes_behind(a.carry.state, p.after) + p.column * op.n_state,
                            op.n_state, p.width, p.first * 8, p.lane);
    keep_rows(tiles + (2 * STATE / ROWS + p.unit) * TILE, n, p.width,
              (T *)bytes_behind(a.carry.x, p.after) + p.column, op.n_head * op.head, p.thread,
              UNIT_THREADS);
    if (p.in_group == 0)
        keep_rows(tiles, n, (int)op.n_state,
                  (T *)bytes_behind(a.carry.b, p.after) + p.group * op.n_state,
                  op.n_groups * op.n_state, threadIdx.x, UNITS * UNIT_THREADS);
    if (p.scans && p.slab == 0)
        for (int r = p.lane; r < n; r += 32)
            ((T *)bytes_behind(a.carry.dt, p.after))[r * op.n_head + p.head] =
                dt_at(a, p, border + r);
}

#endif
