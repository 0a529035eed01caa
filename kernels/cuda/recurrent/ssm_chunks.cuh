/*
 * For ssm_chunks_hopper.cu, ctw_ssm() in chunks of CTW_SSM_CHUNK tokens. A unit is up to 64 rows of
 * a head's state, which one warpgroup has in fp32 registers. A block goes through a part with
 * UNITS units of one group. For each chunk, with L the sum of the logarithms of decays since the
 * chunk's border:
 *
 *     M[t, s] = (sum over n of c[t, n] b[s, n]) exp(L[t] - L[s]) step[s], for s <= t
 *
 *     y[t, i] = exp(L[t]) (sum over n of S[i, n] c[t, n]) + sum over s of M[t, s] x[s, i]
 *
 *     S[i, n] = exp(L[end]) S[i, n] + sum over s of (x[s, i] step[s] exp(L[end] - L[s])) b[s, n]
 *
 * by products of 16-bit numbers with sums in fp32. b, c and x are such numbers. M, the S of y and
 * the factor of b become two of them, their value and what rounding has left.
 *
 * Beside the units' warpgroups, a block has a warpgroup that loads and computes M, and a warpgroup
 * that finishes y (ssm_helpers.cuh). Each chunk depends on the S of the chunk before. Only the work
 * that this chain needs is left to the units' warpgroups.
 */
#ifndef CTW_KERNELS_CUDA_SSM_CHUNKS_CUH
#define CTW_KERNELS_CUDA_SSM_CHUNKS_CUH

#include "kernels/cuda/ptx_mma.h"
#include "kernels/cuda/ptx_wgmma.h"
#include "kernels/cuda/recurrent/ssm.cuh"

enum {
    CHUNK = CTW_SSM_CHUNK,
    ROWS = 64, /* of a unit */
    UNIT_WARPS = 4,
    UNIT_THREADS = 32 * UNIT_WARPS,
    TILE = CHUNK * 64 * 2, /* CHUNK rows of 64 elements; wider matrices are several tiles */
    Y_PITCH = ROWS + 4,    /* floats from a token's y to the next; without bank conflicts */
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

/* Barriers: b, c and x of a chunk have been loaded, are no longer needed; M and factors likewise;
 * and y of a unit. */
struct barriers {
    uint64_t loaded[3], used[3], ready[2], spent[2], summed[2], stored[2];
};

/* Offsets in shared memory, which has b, c and x of STAGES chunks, and M and factors of two. */
template <int UNITS, int STATE> struct layout {
    static constexpr int STAGES = UNITS == 1 ? 3 : 2;
    static constexpr int STAGE = (2 * STATE / ROWS + UNITS) * TILE;
    static constexpr int MATRICES = 2 * UNITS * TILE; /* M of each unit, and what rounding left */
    static constexpr int M = STAGES * STAGE;
    static constexpr int Y = M + 2 * MATRICES; /* fp32 */
    static constexpr int FACTORS = Y + UNITS * CHUNK * Y_PITCH * 4;
    static constexpr int BARRIERS = FACTORS + 2 * UNITS * (int)sizeof(struct factors);
    static constexpr int BYTES = BARRIERS + (int)sizeof(struct barriers);
};

/* A part of the launch, and where it lies: position p is row p + shift; carried before `pos0`.
 */
struct place {
    int64_t pos0, end, shift;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

CTW_DEV float exp2_fast(float v)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

/* The offset in bytes of 8 elements of a row of a matrix in tiles, swizzled as a tensor copy does.
 */
CTW_DEV uint32_t tile_chunk(int row, int chunk)
{
    return (uint32_t)(chunk / 8 * TILE) + (uint32_t)(row * 128 + ((chunk % 8 ^ (row & 7)) << 4));
}

/* 8 elements of which the first n exist, at any alignment, to shared memory. */
template <typename T> CTW_DEV void load_slowly(uint32_t to, const T *from, int n)
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
 * A tile of CHUNK rows of WIDTH elements, of which `width` exist, by 128 threads: positions from
 * `border` on of a matrix, ld apart, whose row 0 `rows` points to; before pos0, of `carried`,
 * carried_ld apart (NULL: zeros).
 */
template <int WIDTH, bool WHOLE, typename T>
CTW_DEV void load_tile(uint32_t to, const T *rows, int64_t ld, const T *carried, int64_t carried_ld,
                       int width, const struct place &at, int64_t border, int thread)
{
    constexpr int PER_ROW = WIDTH / 8, STEP = UNIT_THREADS / PER_ROW; /* rows; a multiple of 8 */
    const int chunk = thread % PER_ROW, row = thread / PER_ROW;
    const uint32_t dst = to + tile_chunk(row, chunk);
    if (WHOLE && border >= at.pos0 && border + CHUNK <= at.end) {
        const T *from = rows + (border + at.shift + row) * ld + chunk * 8;
#pragma unroll
        for (int i = 0; i < CHUNK / STEP; i++)
            copy_16(dst + i * STEP * 128, from + i * STEP * ld, 16);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < CHUNK / STEP; i++) {
        const int r = row + i * STEP;
        const int64_t pos = border + r;
        const bool old = pos < at.pos0, here = pos < at.end && (!old || carried != NULL);
        const T *from = !here ? rows
                        : old ? carried + r * carried_ld + chunk * 8
                              : rows + (pos + at.shift) * ld + chunk * 8;
        if constexpr (WHOLE)
            copy_16(dst + i * STEP * 128, from, here ? 16 : 0);
        else
            load_slowly(dst + i * STEP * 128, from, here ? width - chunk * 8 : 0);
    }
}

/* Lane l has tokens 2 l and 2 l + 1. */
CTW_DEV void scan_factors(float rate, const float (&step)[2], int lane, struct factors *f)
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

template <typename T> CTW_DEV uint32_t pair(float lo, float hi)
{
    T both[2];
    ctw_cuda_narrow2(lo, hi, both);
    uint32_t r;
    memcpy(&r, both, 4);
    return r;
}

template <typename T> CTW_DEV float2 unpair(uint32_t v)
{
    T both[2];
    memcpy(both, &v, 4);
    return make_float2(ctw_cuda_widen(both[0]), ctw_cuda_widen(both[1]));
}

/* What pair() left out. */
template <typename T> CTW_DEV uint32_t pair_rest(uint32_t v, float lo, float hi)
{
    float2 had = unpair<T>(v);
    return pair<T>(lo - had.x, hi - had.y);
}

/*
 * 0 times infinity is NaN: an x that is not finite would spoil the tokens before it. So products
 * with M take such an x as 0, and the tokens after it get NaN. Returns whether there is such an x.
 */
template <typename T>
CTW_DEV bool clean(const uint32_t (&x)[4], uint32_t (&finite)[4], int k, int lane, int *bad)
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
template <int N> CTW_DEV void spoil(float (&y)[N], int k, int t, int bad, int lane)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (t + 8 * (i / 2) + 2 * (lane % 4) + e > bad)
                y[8 * k + 2 * i + e] = nanf("");
}

/* Where a lane's row of 4 squares of 8 x 8 is in a tile: 16 tokens, k, of a warp's 16 columns. */
CTW_DEV uint32_t own_square(int k, int first, int lane)
{
    return tile_chunk(16 * k + (lane & 7) + (lane >> 4 << 3), first + (lane >> 3 & 1));
}

template <int STATE, bool STORE>
CTW_DEV void move_state(float (&state)[STATE / 2], float *memory, int64_t n_state, int width,
                        int row, int lane)
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

/* The block's part, and its units' share of it. */
struct work {
    struct place at;
    int64_t group;
    int in_group; /* the first unit */
    bool goes_on;
    int64_t before, after; /* bytes from state 0 to the part's states; after: -1: none */
};

/* Behind p, by so many bytes. */
template <typename P> CTW_DEV P *bytes_behind(P *p, int64_t bytes)
{
    return (P *)((char *)p + bytes);
}

struct unit {
    int64_t head, column; /* of x */
    int slab, width;
};

template <int UNITS> CTW_DEV struct work work_of(const struct ssm_chunks &a)
{
    struct work w;
    w.group = blockIdx.x / a.group_blocks;
    w.in_group = (int)(blockIdx.x % a.group_blocks) * UNITS;
    const struct ctw_cuda_part &part = a.parts.part[blockIdx.y];
    const int64_t bytes = (int64_t)a.op.states.bytes;
    w.at.pos0 = part.pos0;
    w.at.shift = part.row - w.at.pos0;
    w.at.end = w.at.pos0 + part.n_tok;
    w.goes_on = part.before >= 0;
    w.before = part.before * bytes;
    w.after = part.after < 0 ? -1 : part.after * bytes;
    return w;
}

CTW_DEV struct unit unit_of(const struct ssm_chunks &a, const struct work &w, int i)
{
    const struct ctw_op_ssm &op = a.op;
    struct unit u;
    u.head = w.group * (op.n_head / op.n_groups) + (w.in_group + i) / a.slabs;
    u.slab = (w.in_group + i) % a.slabs;
    u.column = u.head * op.head + u.slab * ROWS;
    u.width = op.head - u.slab * ROWS < ROWS ? (int)(op.head - u.slab * ROWS) : (int)ROWS;
    return u;
}

/* The border of the sequence's first chunk. */
CTW_DEV int64_t first_border(const struct work &w)
{
    return w.at.pos0 - w.at.pos0 % CHUNK;
}

template <typename T>
CTW_DEV T dt_at(const struct ssm_chunks &a, const struct work &w, const struct unit &u, int64_t pos)
{
    const T *from = pos < w.at.pos0
                        ? (const T *)bytes_behind(a.carry.dt, w.before) + pos % CHUNK * a.op.n_head
                        : (const T *)a.op.dt + (pos + w.at.shift) * a.op.lddt;
    return from[u.head];
}

/* What the next call needs: the state, and the rows of the unfinished chunk, whose tiles lie at
 * `tiles`. By the unit's threads. */
template <int UNITS, int STATE, typename T>
CTW_DEV void leave(const struct ssm_chunks &a, const struct work &w, const struct unit &u,
                   float (&state)[STATE / 2], const char *tiles, int64_t border)
{
    const struct ctw_op_ssm &op = a.op;
    const int n = (int)(w.at.end % CHUNK), thread = threadIdx.x % UNIT_THREADS;
    const int own = threadIdx.x / UNIT_THREADS;
    move_state<STATE, true>(state, bytes_behind(a.carry.state, w.after) + u.column * op.n_state,
                            op.n_state, u.width, thread / 32 * 16, thread % 32);
    keep_rows(tiles + (2 * STATE / ROWS + own) * TILE, n, u.width,
              (T *)bytes_behind(a.carry.x, w.after) + u.column, op.n_head * op.head, thread,
              UNIT_THREADS);
    if (w.in_group == 0)
        keep_rows(tiles, n, (int)op.n_state,
                  (T *)bytes_behind(a.carry.b, w.after) + w.group * op.n_state,
                  op.n_groups * op.n_state, threadIdx.x, UNITS * UNIT_THREADS);
    for (int r = thread; u.slab == 0 && r < n; r += UNIT_THREADS)
        ((T *)bytes_behind(a.carry.dt, w.after))[r * op.n_head + u.head] =
            dt_at<T>(a, w, u, border + r);
}

#endif
#endif
