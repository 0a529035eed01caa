/*
 * ssm_chunks.cuh with the matrix products of warpgroups (sm_90a): a unit is a warpgroup's, whose
 * rows of S, of the sums and of x^T are in registers; b, c and M come from shared memory.
 */
#include "kernels/cuda/ptx_wgmma.h"
#include "kernels/cuda/recurrent/ssm_chunks.cuh"

template <int UNITS, int STATE> struct layout {
    static constexpr int STAGE = (2 * STATE / ROWS + UNITS) * TILE; /* b, c, x */
    static constexpr int M = 2 * STAGE;                             /* and what rounding left */
    static constexpr int Y = M + 2 * UNITS * TILE;
    static constexpr int FACTORS = Y + UNITS * TILE;
    static constexpr int BYTES = FACTORS + 2 * UNITS * (int)sizeof(struct factors);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Of 16 columns, k, of a matrix in tiles. */
static __device__ __forceinline__ uint64_t columns_descriptor(uint32_t tiles, int k)
{
    return matrix_descriptor(tiles + k / 4 * TILE + k % 4 * 32);
}

/* M from c b^T, for s <= t; what is above the diagonal of its squares of 16 stays 0. */
template <typename T>
static __device__ __forceinline__ void store_m(const float (&g)[32], const struct factors *f,
                                               char *m, int warp, int lane)
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

/* Begins g [CHUNK, CHUNK] = c b^T, and behind it y [64 rows, CHUNK tokens] = S c^T. */
template <typename T, int STATE>
static __device__ __forceinline__ void
begin(float (&g)[32], float (&y)[32], const float (&state)[STATE / 2], uint32_t b, uint32_t c)
{
    uint32_t s[STATE / 16][4], rest[STATE / 16][4];
#pragma unroll
    for (int k = 0; k < STATE / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *v = state + 8 * k + 2 * i;
            s[k][i] = pair<T>(v[0], v[1]);
            rest[k][i] = pair_rest<T>(s[k][i], v[0], v[1]);
        }
#pragma unroll
    for (int i = 0; i < 32; i++)
        g[i] = y[i] = 0;
    products_fence();
#pragma unroll
    for (int k = 0; k < STATE / 16; k++)
        score_product<T>(g, columns_descriptor(c, k), columns_descriptor(b, k), 1);
    products_commit();
#pragma unroll
    for (int k = 0; k < STATE / 16; k++) {
        row_product<T>(y, s[k], columns_descriptor(c, k));
        row_product<T>(y, rest[k], columns_descriptor(c, k));
    }
    products_commit();
}

/*
 * Begins y = exp(L) y + x^T M^T. Returns the first token with an x that is not finite; CHUNK: none.
 */
template <typename T>
static __device__ __forceinline__ int begin_y(float (&y)[32], uint32_t x, uint32_t m,
                                              const struct factors *f, int first, int lane)
{
    uint32_t finite[CHUNK / 16][4];
    int bad = CHUNK;
#pragma unroll
    for (int i = 0; i < 32; i++)
        y[i] *= f->decay[8 * (i / 4) + 2 * (lane % 4) + i % 2];
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) {
        uint32_t fx[4];
        load_4_transposed(fx, x + own_square(k, first, lane));
        clean<T>(fx, finite[k], k, lane, &bad);
    }
    products_fence();
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) {
        row_product<T>(y, finite[k], columns_descriptor(m, k));
        row_product<T>(y, finite[k], columns_descriptor(m + TILE, k));
    }
    products_commit();
    return bad;
}

/* Begins S = exp(L[end]) S + (x step exp(L[end] - L))^T b. */
template <typename T, int STATE>
static __device__ __forceinline__ void begin_state(float (&state)[STATE / 2], uint32_t x,
                                                   uint32_t b, const struct factors *f, int first,
                                                   int lane)
{
    uint32_t by[CHUNK / 16][4], rest[CHUNK / 16][4];
    const float decay = f->decay[CHUNK - 1];
#pragma unroll
    for (int i = 0; i < STATE / 2; i++)
        state[i] *= decay;
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) {
        uint32_t fx[4];
        load_4_transposed(fx, x + own_square(k, first, lane));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 w = *(const float2 *)(f->rest + 16 * k + 8 * (i / 2) + 2 * (lane % 4));
            const float2 v = unpair<T>(fx[i]);
            by[k][i] = pair<T>(v.x * w.x, v.y * w.y);
            rest[k][i] = pair_rest<T>(by[k][i], v.x * w.x, v.y * w.y);
        }
    }
    products_fence();
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) { /* 16 tokens have 2048 bytes of a tile */
        value_product<T>(state, by[k], value_descriptor(b + k * 2048, TILE));
        value_product<T>(state, rest[k], value_descriptor(b + k * 2048, TILE));
    }
    products_commit();
}

template <typename T, int UNITS, int STATE, bool GATE, bool WHOLE>
static __device__ void chunks(const struct ssm_chunks &a, char *memory)
{
    using in = layout<UNITS, STATE>;
    const struct part<T> p = part_of<T, UNITS>(a);
    const uint32_t base = shared_address(memory), own = base + in::Y + p.unit * TILE;
    struct factors *const factors = (struct factors *)(memory + in::FACTORS) + p.unit;
    const int warp = p.warp % UNIT_WARPS, lane = p.lane;
    const float rate = ctw_ssm_rate(a.op, p.head) * 1.4426950408889634f;
    const float d = ctw_ssm_number(a.op.d, p.head);
    char *const m_tile = memory + in::M + 2 * p.unit * TILE;
    const uint32_t m = base + in::M + 2 * p.unit * TILE;
    float state[STATE / 2];
    move_state<STATE, false>(
        state,
        p.goes_on ? bytes_behind(a.carry.state, p.before) + p.column * a.op.n_state : NULL,
        a.op.n_state, p.width, p.first * 8, lane);
    for (int i = p.thread; i < 2 * TILE / 16; i += UNIT_THREADS)
        ((uint4 *)m_tile)[i] = make_uint4(0, 0, 0, 0);

    int64_t border = p.at.pos0 - p.at.pos0 % CHUNK;
    float dt[2];
    load_stage<UNITS, STATE, WHOLE>(a, p, base, border);
    load_z<GATE, WHOLE>(a, p, own, border);
    if (p.scans) {
        load_dt(a, p, border, dt);
        make_factors(a, p, rate, dt, border, factors);
    }
    int stage = 0;
    for (;; border += CHUNK, stage ^= 1) {
        const uint32_t b = base + stage * in::STAGE, c = b + STATE / ROWS * TILE;
        const uint32_t x = c + (STATE / ROWS + p.unit) * TILE;
        const struct factors *const f = factors + stage * UNITS;
        const bool more = border + CHUNK < p.at.end;
        fetches_wait<1>();
        shared_fence();
        __syncthreads();
        if (more) {
            load_stage<UNITS, STATE, WHOLE>(a, p, base + (stage ^ 1) * in::STAGE, border + CHUNK);
            if (p.scans)
                load_dt(a, p, border + CHUNK, dt);
        } else {
            fetches_commit();
        }
        float g[32], y[32];
        begin<T, STATE>(g, y, state, b, c);
        products_wait<1>();
        sums_ready(g);
        store_m<T>(g, f, m_tile, warp, lane);
        shared_fence();
        asm volatile("bar.sync %0, 128;" ::"r"(1 + p.unit) : "memory");
        products_wait<0>();
        sums_ready(y);
        const int bad = begin_y<T>(y, x, m, f, p.first, lane);
        const bool leaves = !more && p.after >= 0;
        if (leaves && border + CHUNK > p.at.end) /* the chunk is unfinished */
            leave<UNITS, STATE>(a, p, state, memory + stage * in::STAGE, border);
        begin_state<T, STATE>(state, x, b, f, p.first, lane);
        products_wait<1>();
        sums_ready(y);
        if (more && p.scans)
            make_factors(a, p, rate, dt, border + CHUNK, factors + (stage ^ 1) * UNITS);
        fetches_wait<1>();
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t fx[4];
            load_4_transposed(fx, x + own_square(k, p.first, lane));
            if (bad < CHUNK)
                spoil(y, k, 16 * k, bad, lane);
            finish<T, GATE>(y, fx, d, own + own_square(k, p.first, lane), k);
        }
        __syncwarp();
        store_y<WHOLE, T>(a, own, p.first, p.column, p.width, p.at, border, lane);
        __syncwarp();
        if (more)
            load_z<GATE, WHOLE>(a, p, own, border + CHUNK);
        products_wait<0>();
        sums_ready(state);
        if (leaves && border + CHUNK == p.at.end)
            leave<UNITS, STATE>(a, p, state, memory + stage * in::STAGE, border);
        if (!more)
            break;
    }
}

#endif

template <typename T, int UNITS, int STATE, bool GATE, bool WHOLE>
__global__ void __launch_bounds__(UNITS *UNIT_THREADS, 2 / UNITS)
    ssm_chunks_hopper(const __grid_constant__ struct ssm_chunks a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char memory[];
    chunks<T, UNITS, STATE, GATE, WHOLE>(a, memory);
#endif
}

template <int UNITS, int STATE, bool GATE, bool WHOLE>
static void launch(const struct ssm_chunks *a, dim3 grid, cudaStream_t stream)
{
    using in = layout<UNITS, STATE>;
    auto kernel = ssm_chunks_hopper<__nv_bfloat16, UNITS, STATE, GATE, WHOLE>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, in::BYTES);
    kernel<<<grid, UNITS * UNIT_THREADS, in::BYTES, stream>>>(*a);
}

template <int UNITS, bool WHOLE>
static void launch_units(struct ssm_chunks *a, int group_units, cudaStream_t stream)
{
    a->group_blocks = group_units / UNITS;
    const dim3 grid((unsigned)(a->op.n_groups * a->group_blocks), (unsigned)a->parts.n);
    const bool wide = a->op.n_state > 64, gate = a->op.z != NULL;
    if (wide && gate)
        launch<UNITS, 128, true, WHOLE>(a, grid, stream);
    else if (wide)
        launch<UNITS, 128, false, WHOLE>(a, grid, stream);
    else if (gate)
        launch<UNITS, 64, true, WHOLE>(a, grid, stream);
    else
        launch<UNITS, 64, false, WHOLE>(a, grid, stream);
}

static bool is_aligned(const void *p, int64_t ld)
{
    return ctw_cuda_aligned16(p) && ld % 8 == 0;
}

enum ctw_status ctw_cuda_ssm_chunks(struct ctw_cuda *cu, const struct ctw_op_ssm *op,
                                    struct ctw_err *err)
{
    struct ssm_chunks a = {};
    a.op = *op;
    a.carry = ctw_ssm_carry(op, op->states.data);
    a.slabs = (int)((op->head + ROWS - 1) / ROWS);
    const bool whole =
        op->head % ROWS == 0 && op->n_state % 64 == 0 && is_aligned(op->x, op->ldx) &&
        is_aligned(op->b, op->ldbc) && is_aligned(op->c, op->ldbc) && is_aligned(op->y, op->ldy) &&
        (op->z == NULL || is_aligned(op->z, op->ldz)) && ctw_cuda_aligned16(op->states.data) &&
        op->states.bytes % 16 == 0;
    const int group_units = (int)(op->n_head / op->n_groups) * a.slabs;
    for (int64_t i = 0; i < op->n_parts; i += a.parts.n) {
        ctw_cuda_take_parts(&a.parts, op->parts + i, op->n_parts - i);
        /* The larger blocks if they leave few multiprocessors idle; the bits are the same. */
        const int64_t units = op->n_groups * group_units * a.parts.n;
        const bool two = 2 * units >= 3 * cu->n_sm && group_units % 2 == 0;
        if (!whole)
            launch_units<1, false>(&a, group_units, cu->stream);
        else if (two)
            launch_units<2, true>(&a, group_units, cu->stream);
        else
            launch_units<1, true>(&a, group_units, cu->stream);
    }
    return ctw_cuda_launched("state space in chunks", err);
}
