/*
 * ssm_chunks.cuh with the matrix products of warpgroups (sm_90a): a unit is a warpgroup's, whose
 * rows of S, of the sums and of x^T are in registers; b, c and M come from shared memory.
 */
#include "kernels/cuda/recurrent/ssm_helpers.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* 16 columns of S, k, as two numbers. */
template <typename T, int STATE>
CTW_DEV void split_columns(const float (&state)[STATE / 2], int k, uint32_t (&s)[4],
                           uint32_t (&rest)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *v = state + 8 * k + 2 * i;
        s[i] = pair<T>(v[0], v[1]);
        rest[i] = pair_rest<T>(s[i], v[0], v[1]);
    }
}

/*
 * Begins y [64 rows, CHUNK tokens] = S c^T, once c is there. SHORT of registers: S is split before
 * products begin, which would otherwise wait for each other.
 */
template <typename T, int STATE, bool SHORT>
CTW_DEV void begin_y(float (&y)[32], const float (&state)[STATE / 2], uint32_t c, uint64_t *loaded,
                     int turn)
{
    uint32_t s[STATE / 16][4], rest[STATE / 16][4];
#pragma unroll
    for (int k = 0; SHORT && k < STATE / 16; k++)
        split_columns<T, STATE>(state, k, s[k], rest[k]);
#pragma unroll
    for (int i = 0; i < 32; i++)
        y[i] = 0;
    wait_turn(loaded, turn);
    shared_fence();
    products_fence();
#pragma unroll
    for (int k = 0; k < STATE / 16; k++) {
        if (!SHORT)
            split_columns<T, STATE>(state, k, s[k], rest[k]);
        row_product<T>(y, s[k], columns_descriptor(c, k));
        row_product<T>(y, rest[k], columns_descriptor(c, k));
    }
    products_commit();
    if (SHORT) {
        products_wait<0>();
        sums_ready(y);
    }
}

/* Returns the first token with an x that is not finite; CHUNK: none. */
template <typename T>
CTW_DEV int clean_all(const uint32_t (&x)[CHUNK / 16][4], uint32_t (&finite)[CHUNK / 16][4],
                      int lane)
{
    int bad = CHUNK;
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++)
        clean<T>(x[k], finite[k], k, lane, &bad);
    return bad;
}

/* x step exp(L[end] - L), as two numbers. */
struct addition {
    uint32_t by[CHUNK / 16][4], rest[CHUNK / 16][4];
};

template <typename T>
CTW_DEV void make_addition(struct addition &add, const uint32_t (&x)[CHUNK / 16][4],
                           const struct factors *f, int lane)
{
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 w = *(const float2 *)(f->rest + 16 * k + 8 * (i / 2) + 2 * (lane % 4));
            const float2 v = unpair<T>(x[k][i]);
            add.by[k][i] = pair<T>(v.x * w.x, v.y * w.y);
            add.rest[k][i] = pair_rest<T>(add.by[k][i], v.x * w.x, v.y * w.y);
        }
}

CTW_DEV void scale_y(float (&y)[32], const struct factors *f, int lane)
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        y[i] *= f->decay[8 * (i / 4) + 2 * (lane % 4) + i % 2];
}

/* Begins y += x^T M^T. */
template <typename T>
CTW_DEV void add_to_y(float (&y)[32], const uint32_t (&finite)[CHUNK / 16][4], uint32_t m)
{
    products_fence();
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) {
        row_product<T>(y, finite[k], columns_descriptor(m, k));
        row_product<T>(y, finite[k], columns_descriptor(m + TILE, k));
    }
    products_commit();
}

/* Begins S = exp(L[end]) S + (x step exp(L[end] - L))^T b. */
template <typename T, int STATE>
CTW_DEV void begin_state(float (&state)[STATE / 2], const struct addition &add, uint32_t b,
                         const struct factors *f)
{
    const float decay = f->decay[CHUNK - 1];
#pragma unroll
    for (int i = 0; i < STATE / 2; i++)
        state[i] *= decay;
    products_fence();
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) { /* 16 tokens have 2048 bytes of a tile */
        value_product<T>(state, add.by[k], value_descriptor(b + k * 2048, TILE));
        value_product<T>(state, add.rest[k], value_descriptor(b + k * 2048, TILE));
    }
    products_commit();
}

/* Hands the sums of a warp's 16 rows, from `first` on, over. */
CTW_DEV void hand_over(const float (&y)[32], float *to, int first, int lane)
{
    to += 2 * (lane % 4) * Y_PITCH + first + lane / 4;
#pragma unroll
    for (int i = 0; i < 32; i++)
        to[(8 * (i / 4) + i % 2) * Y_PITCH + i / 2 % 2 * 8] = y[i];
}

/* A unit's warpgroup. */
template <typename T, int UNITS, int STATE>
CTW_DEV void go_through(const struct ssm_chunks &a, const struct work &w,
                        const struct shared<UNITS, STATE> &s)
{
    constexpr bool SHORT = UNITS > 1; /* of registers */
    const int own = threadIdx.x / UNIT_THREADS, warp = threadIdx.x / 32 % UNIT_WARPS;
    const int lane = threadIdx.x % 32;
    const struct unit u = unit_of(a, w, own);
    const bool leaves = w.after >= 0;
    struct barriers *const bars = s.bars();
    float state[STATE / 2];
    move_state<STATE, false>(
        state, w.goes_on ? bytes_behind(a.carry.state, w.before) + u.column * a.op.n_state : NULL,
        a.op.n_state, u.width, 16 * warp, lane);
    int64_t border = first_border(w);
    for (int i = 0; border < w.at.end; i++, border += CHUNK) {
        const struct factors *const f = s.factors_of(i, own);
        float y[32];
        uint32_t x[CHUNK / 16][4], finite[CHUNK / 16][4];
        struct addition add;
        int bad;
        begin_y<T, STATE, SHORT>(y, state, s.c(i), s.loaded(i), i / layout<UNITS, STATE>::STAGES);
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++)
            load_4_transposed(x[k], s.x(i, own) + own_square(k, 2 * warp, lane));
        if (!SHORT)
            bad = clean_all<T>(x, finite, lane);
        wait_turn(&bars->ready[i % 2], i / 2);
        if (!SHORT)
            make_addition<T>(add, x, f, lane);
        products_wait<0>();
        sums_ready(y);
        scale_y(y, f, lane);
        if (SHORT)
            bad = clean_all<T>(x, finite, lane);
        add_to_y<T>(y, finite, s.m(i, own));
        if (leaves && border + CHUNK > w.at.end) /* the chunk is unfinished */
            leave<UNITS, STATE, T>(a, w, u, state, s.at(s.b(i)), border);
        if (SHORT)
            make_addition<T>(add, x, f, lane);
        begin_state<T, STATE>(state, add, s.b(i), f);
        products_wait<1>();
        sums_ready(y);
        warp_arrives(&bars->spent[i % 2]);
        if (bad < CHUNK)
#pragma unroll
            for (int k = 0; k < CHUNK / 16; k++)
                spoil(y, k, 16 * k, bad, lane);
        wait_turn(&bars->stored[own], i - 1);
        hand_over(y, s.y(own), 16 * warp, lane);
        warp_arrives(&bars->summed[own]);
        products_wait<0>();
        sums_ready(state);
        if (leaves && border + CHUNK == w.at.end)
            leave<UNITS, STATE, T>(a, w, u, state, s.at(s.b(i)), border);
        warp_arrives(s.used(i));
    }
}

/* Registers of a thread of each of the three kinds of warpgroups. */
template <int UNITS> struct registers {
    static constexpr int UNIT = UNITS == 2 ? 176 : 240, PREPARES = UNITS == 2 ? 96 : 152,
                         FINISHES = UNITS == 2 ? 64 : 112;
};

template <typename T, int UNITS, int STATE, bool GATE, bool WHOLE>
CTW_DEV void run_block(const struct ssm_chunks &a, char *memory)
{
    const struct shared<UNITS, STATE> s = {
        memory, shared_address(memory)
    };
    const struct work w = work_of<UNITS>(a);
    if (threadIdx.x == 0) {
        struct barriers *const bars = s.bars();
        for (int i = 0; i < 3; i++) {
            barrier_init(shared_address(&bars->loaded[i]), UNIT_THREADS);
            barrier_init(shared_address(&bars->used[i]), (UNITS + 2) * UNIT_WARPS);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(shared_address(&bars->ready[i]), UNIT_THREADS);
            barrier_init(shared_address(&bars->spent[i]), UNITS * UNIT_WARPS);
            barrier_init(shared_address(&bars->summed[i]), UNIT_WARPS);
            barrier_init(shared_address(&bars->stored[i]), UNIT_WARPS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < UNITS * UNIT_THREADS) {
        registers_more<registers<UNITS>::UNIT>();
        go_through<T>(a, w, s);
    } else if (threadIdx.x < (UNITS + 1) * UNIT_THREADS) {
        registers_fewer<registers<UNITS>::PREPARES>();
        prepare<T, WHOLE>(a, w, s);
    } else {
        registers_fewer<registers<UNITS>::FINISHES>();
        finish<T, GATE, WHOLE>(a, w, s);
    }
}

#endif

template <typename T, int UNITS, int STATE, bool GATE, bool WHOLE>
__global__ void __launch_bounds__((UNITS + 2) * UNIT_THREADS, 1)
    ssm_chunks_hopper(const __grid_constant__ struct ssm_chunks a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char memory[];
    run_block<T, UNITS, STATE, GATE, WHOLE>(a, memory);
#endif
}

template <int UNITS, int STATE, bool GATE, bool WHOLE>
static void launch(const struct ssm_chunks *a, dim3 grid, cudaStream_t stream)
{
    using in = layout<UNITS, STATE>;
    auto kernel = ssm_chunks_hopper<__nv_bfloat16, UNITS, STATE, GATE, WHOLE>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, in::BYTES);
    kernel<<<grid, (UNITS + 2) * UNIT_THREADS, in::BYTES, stream>>>(*a);
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
    const bool whole = op->head % ROWS == 0 && op->n_state % 64 == 0 &&
                       is_aligned(op->x, op->ldx) && is_aligned(op->b, op->ldbc) &&
                       is_aligned(op->c, op->ldbc) && is_aligned(op->y, op->ldy) &&
                       (op->z == NULL || is_aligned(op->z, op->ldz)) &&
                       ctw_cuda_aligned16(op->states.data) && op->states.bytes % 16 == 0;
    const int group_units = (int)(op->n_head / op->n_groups) * a.slabs;
    for (int64_t i = 0; i < op->n_parts; i += a.parts.n) {
        ctw_cuda_take_parts(&a.parts, op->parts + i, op->n_parts - i);
        /* The larger blocks if there are more units than multiprocessors; the bits are the same. */
        const bool two = op->n_groups * group_units * a.parts.n > cu->n_sm && group_units % 2 == 0;
        if (!whole)
            launch_units<1, false>(&a, group_units, cu->stream);
        else if (two)
            launch_units<2, true>(&a, group_units, cu->stream);
        else
            launch_units<1, true>(&a, group_units, cu->stream);
    }
    return ctw_cuda_launched("state space in chunks", err);
}
