/*
 * The gated delta rule by chunks of 64 tokens, on Hopper's tensor cores, for 16-bit activations,
 * keys of up to 128 elements and one decay a head. A block has 128 columns of one value head's S
 * for a whole part of a sequence, or for its first or last chunks: then a block hands S on to the
 * next one, unrounded, so that all multiprocessors finish together. Eight warps have 16 columns
 * each, as the rows of S^T in registers, so that S^T is an operand as it is. Two groups of four
 * warps prepare, in turn, what does not depend on S (delta_prepare.cuh). For a chunk, with S before
 * it:
 *     X[i] = beta[i] (v[i] - exp(g[i]) S^T k[i])        D = T X
 *     y[i] = exp(g[i]) S^T q[i] / sqrt(key) + sum over j <= i of P[i, j] D[j]
 *     S = exp(g[63]) S + sum over j of exp(g[63] - g[j]) k[j] D[j]^T
 *
 * S, sums and factors are fp32. Operands of tensor cores are q and k as they are, and S, X, D, T
 * and P as sums of two 16-bit numbers, so with 16 bits at least of bf16, 22 of fp16: of products of
 * two such sums, that of both second parts is left out.
 */
#include "kernels/cuda/recurrent/delta_prepare.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Rows of S^T: keys 8 n + 2 (lane % 4) and the next, columns lane / 4 and 8 further down. */
CTW_DEV int64_t state_at(const struct ctw_op_delta &op, const struct work &w, int col, int n, int e)
{
    const int lane = threadIdx.x % 32, key = 8 * n + 2 * (lane % 4) + e % 2;
    const int column = col + lane / 4 + e / 2 * 8;
    return key < op.key && column < op.value
               ? ((int64_t)w.head * op.key + key) * op.value + column
               : -1;
}

CTW_DEV void take_state(const struct ctw_op_delta &op, const struct work &w, int col,
                        float (&S)[KEY / 8][4])
{
    const float *before = (const float *)ctw_state_at(&op.states, w.before);
#pragma unroll
    for (int n = 0; n < KEY / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int64_t at = before != NULL ? state_at(op, w, col, n, e) : -1;
            S[n][e] = at >= 0 ? before[at] : 0.0f;
        }
}

CTW_DEV void leave_state(const struct ctw_op_delta &op, const struct work &w, int col,
                         const float (&S)[KEY / 8][4])
{
    float *after = (float *)ctw_state_at(&op.states, w.after);
#pragma unroll
    for (int n = 0; n < KEY / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int64_t at = state_at(op, w, col, n, e);
            if (at >= 0)
                after[at] = S[n][e];
        }
}

CTW_DEV void consumers_sync(void)
{
    asm volatile("bar.sync 3, 256;" ::: "memory"); /* CONSUMERS */
}

/* Hands S on to the next block. */
CTW_DEV void hand_on(const struct ctw_cuda_delta &a, const float (&S)[KEY / 8][4])
{
    float4 *to = (float4 *)a.handed + (int64_t)blockIdx.x * (KEY * VALUE / 4) + threadIdx.x;
#pragma unroll
    for (int n = 0; n < KEY / 8; n++)
        to[n * CONSUMERS] = make_float4(S[n][0], S[n][1], S[n][2], S[n][3]);
    __threadfence();
    consumers_sync();
    if (threadIdx.x == 0)
        asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(a.there + blockIdx.x) : "memory");
}

/* Takes S from the block before. That block did this first, and began no later: blocks begin in
 * their order, and each has a multiprocessor of its own. */
CTW_DEV void take_over(const struct ctw_cuda_delta &a, float (&S)[KEY / 8][4])
{
    const int block = (int)blockIdx.x - 1;
    const float4 *from = (const float4 *)a.handed + (int64_t)block * (KEY * VALUE / 4);
    int there = 0;
    while (threadIdx.x == 0 && there == 0)
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                     : "=r"(there)
                     : "l"(a.there + block)
                     : "memory");
    consumers_sync();
#pragma unroll
    for (int n = 0; n < KEY / 8; n++) {
        const float4 v = __ldcg(from + n * CONSUMERS + threadIdx.x);
        S[n][0] = v.x;
        S[n][1] = v.y;
        S[n][2] = v.z;
        S[n][3] = v.w;
    }
}

/* read = S^T k, out = S^T q, columns: the chunk's tokens. */
template <typename T>
CTW_DEV void read_state(const struct shared<T> &s, int stage, const float (&S)[KEY / 8][4],
                        float (&read)[CHUNK / 8][4], float (&out)[CHUNK / 8][4])
{
    const uint32_t q = shared_address(s.q[stage]), k = shared_address(s.k[stage]);
#pragma unroll
    for (int i = 0; i < CHUNK / 2; i++)
        read[i / 4][i % 4] = out[i / 4][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < KEY / 16; i++) {
        struct halves h;
        split_tile<T>(S[2 * i], S[2 * i + 1], h);
#pragma unroll
        for (int p = 0; p < CHUNK / 16; p++) {
            uint32_t b[4], c[4];
            load_4(b, tile_columns<KEY>(k, 16 * p, 16 * i));
            load_4(c, tile_columns<KEY>(q, 16 * p, 16 * i));
            product<T>(read[2 * p], h.high, b[0], b[1]);
            product<T>(read[2 * p + 1], h.high, b[2], b[3]);
            product<T>(out[2 * p], h.high, c[0], c[1]);
            product<T>(out[2 * p + 1], h.high, c[2], c[3]);
            product<T>(read[2 * p], h.low, b[0], b[1]);
            product<T>(read[2 * p + 1], h.low, b[2], b[3]);
            product<T>(out[2 * p], h.low, c[0], c[1]);
            product<T>(out[2 * p + 1], h.low, c[2], c[3]);
        }
    }
}

/* sum [16, 64] += x M^T, M [64, 64] 0 above its diagonal. */
template <typename T>
CTW_DEV void multiply_lower(const T *high, const T *low, const struct halves (&x)[CHUNK / 16],
                            float (&sum)[CHUNK / 8][4])
{
    const uint32_t h = shared_address(high), l = shared_address(low);
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++)
#pragma unroll
        for (int p = j; p < CHUNK / 16; p++)
            product_of_halves<T>(sum[2 * p], sum[2 * p + 1], x[j],
                                 tile_columns<CHUNK>(h, 16 * p, 16 * j),
                                 tile_columns<CHUNK>(l, 16 * p, 16 * j));
}

/* f[columns of n] of a lane */
CTW_DEV float2 factors_at(const float *f, int n)
{
    return *(const float2 *)(f + 8 * n + 2 * (threadIdx.x % 4));
}

template <int N>
CTW_DEV void scale_columns(const float *f, const float (&x)[N][4], float (&y)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float2 by = factors_at(f, n);
        y[n][0] = by.x * x[n][0];
        y[n][1] = by.y * x[n][1];
        y[n][2] = by.x * x[n][2];
        y[n][3] = by.y * x[n][3];
    }
}

template <typename T>
CTW_DEV void split_columns(const float (&x)[CHUNK / 8][4], struct halves (&h)[CHUNK / 16])
{
#pragma unroll
    for (int p = 0; p < CHUNK / 16; p++)
        split_tile<T>(x[2 * p], x[2 * p + 1], h[p]);
}

/* x = X^T, from read = S^T k. v: of the warp's 16 columns. */
template <typename T>
CTW_DEV void subtract(const struct factors &f, uint32_t v, int column,
                      const float (&read)[CHUNK / 8][4], float (&x)[CHUNK / 8][4])
{
#pragma unroll
    for (int p = 0; p < CHUNK / 16; p++) {
        uint32_t r[4];
        load_4_transposed(r, tile_columns<VALUE>(v, 16 * p, column));
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float2 beta = factors_at(f.beta, 2 * p + n), by = factors_at(f.read, 2 * p + n);
            const float2 upper = unpack<T>(r[2 * n]), lower = unpack<T>(r[2 * n + 1]);
            const float(&from)[4] = read[2 * p + n];
            x[2 * p + n][0] = beta.x * fmaf(-by.x, from[0], upper.x);
            x[2 * p + n][1] = beta.y * fmaf(-by.y, from[1], upper.y);
            x[2 * p + n][2] = beta.x * fmaf(-by.x, from[2], lower.x);
            x[2 * p + n][3] = beta.y * fmaf(-by.y, from[3], lower.y);
        }
    }
}

/* S = last S + k^T d, d with factors. */
template <typename T>
CTW_DEV void add_keys(const struct shared<T> &s, int stage, float last,
                      const struct halves (&d)[CHUNK / 16], float (&S)[KEY / 8][4])
{
    const uint32_t k = shared_address(s.k[stage]);
#pragma unroll
    for (int n = 0; n < KEY / 16; n++) {
        float sum[2][4] = {};
#pragma unroll
        for (int j = 0; j < CHUNK / 16; j++) {
            uint32_t b[4];
            load_4_transposed(b, tile_rows<KEY>(k, 16 * j, 16 * n));
            product<T>(sum[0], d[j].high, b[0], b[1]);
            product<T>(sum[1], d[j].high, b[2], b[3]);
            product<T>(sum[0], d[j].low, b[0], b[1]);
            product<T>(sum[1], d[j].low, b[2], b[3]);
        }
#pragma unroll
        for (int e = 0; e < 8; e++)
            S[2 * n + e / 4][e % 4] = fmaf(last, S[2 * n + e / 4][e % 4], sum[e / 4][e % 4]);
    }
}

/* The warp's columns of y, by way of its columns of v. */
template <typename T>
CTW_DEV void store_outputs(const struct ctw_op_delta &op, const struct work &w, int64_t chunk,
                           T *tile, int column, const float (&out)[CHUNK / 8][4])
{
    const int lane = threadIdx.x % 32, eighth = column / 8 + lane % 2;
    const int n = op.value - w.col0 - 8 * eighth; /* of these 8 columns that are there */
    const bool whole =
        n >= 8 && op.ldy % 8 == 0 && op.value % 8 == 0 && ((uintptr_t)op.y & 15) == 0;
#pragma unroll
    for (int p = 0; p < CHUNK / 16; p++) {
        const uint32_t r[4] = {
            pack<T>(out[2 * p][0], out[2 * p][1]), pack<T>(out[2 * p][2], out[2 * p][3]),
            pack<T>(out[2 * p + 1][0], out[2 * p + 1][1]),
            pack<T>(out[2 * p + 1][2], out[2 * p + 1][3])};
        store_4_transposed(tile_columns<VALUE>(shared_address(tile), 16 * p, column), r);
    }
    __syncwarp();
#pragma unroll
    for (int p = 0; p < CHUNK / 16; p++) {
        const int row = 16 * p + lane / 2;
        const int64_t t = chunk * CHUNK + row;
        const T *from = tile + tile_at<VALUE>(row, eighth) / sizeof(T);
        T *to = (T *)op.y + (w.first + t - w.begun) * op.ldy + (int64_t)w.head * op.value + w.col0 +
                8 * eighth;
        if (t < w.begun || t >= w.n_tok)
            continue;
        if (whole)
            *(uint4 *)to = *(const uint4 *)from;
        else
            for (int i = 0; i < 8 && i < n; i++)
                to[i] = from[i];
    }
}

/* Chunk c of the block's, whose stages are full or being filled. adds: S goes on. */
template <typename T>
CTW_DEV void compute_chunk(const struct ctw_op_delta &op, const struct work &w, struct shared<T> &s,
                           int c, int64_t chunk, bool adds, float (&S)[KEY / 8][4])
{
    const int stage = c % LOADED, ready = c % READY;
    const int column = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    const struct factors &f = s.factors[ready];
    const T(&m)[MATRICES][CHUNK * CHUNK] = s.matrix[ready];
    float x[CHUNK / 8][4], out[CHUNK / 8][4];
    struct halves h[CHUNK / 16];
    barrier_wait(shared_address(&s.loaded[stage]), (uint32_t)(c / LOADED & 1));
    read_state<T>(s, stage, S, x, out);
    barrier_wait(shared_address(&s.ready[ready]), (uint32_t)(c / READY & 1));
    subtract<T>(f, shared_address(s.v[stage]), column, x, x);
    split_columns<T>(x, h);
#pragma unroll
    for (int i = 0; i < CHUNK / 2; i++)
        x[i / 4][i % 4] = 0;
    multiply_lower<T>(m[T_HIGH], m[T_LOW], h, x);
    split_columns<T>(x, h);
    scale_columns(f.out, out, out);
    multiply_lower<T>(m[P_HIGH], m[P_LOW], h, out);
    const float last = f.last;
    scale_columns(f.add, x, x);
    __syncwarp();
    if (lane == 0)
        barrier_arrive(shared_address(&s.done[ready]));
    store_outputs<T>(op, w, chunk, s.v[stage], column, out);
    if (adds) {
        split_columns<T>(x, h);
        add_keys<T>(s, stage, last, h, S);
    }
    __syncwarp();
    if (lane == 0)
        barrier_arrive(shared_address(&s.used[stage]));
}

template <typename T>
CTW_DEV void compute_chunks(const struct ctw_cuda_delta &a, struct shared<T> &s)
{
    const int column = threadIdx.x / 32 * 16;
    struct steps steps = steps_of_block(a);
    struct work w;
    float S[KEY / 8][4];
    for (int c = 0; next_unit(a, steps, w);) {
        const bool leaves = w.after >= 0;
        if (w.from > 0)
            take_over(a, S);
        else
            take_state(a.op, w, w.col0 + column, S);
        for (int chunk = w.from; chunk < w.to; chunk++, c++) {
            const int64_t end = ((int64_t)chunk + 1) * CHUNK;
            compute_chunk<T>(a.op, w, s, c, chunk,
                             end <= w.n_tok && (leaves || end < w.n_tok), S);
        }
        if (w.to < w.n_chunks)
            hand_on(a, S);
        else if (leaves)
            leave_state(a.op, w, w.col0 + column, S);
    }
}

#endif

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    delta_chunks(const __grid_constant__ struct ctw_cuda_delta a, bool aligned)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char memory[];
    struct shared<T> &s = *(struct shared<T> *)memory;
    if (threadIdx.x == 0) {
        for (int i = 0; i < LOADED; i++) {
            barrier_init(shared_address(&s.loaded[i]), PRODUCERS);
            barrier_init(shared_address(&s.used[i]), CONSUMERS / 32);
        }
        for (int i = 0; i < READY; i++) {
            barrier_init(shared_address(&s.ready[i]), PRODUCERS);
            barrier_init(shared_address(&s.done[i]), CONSUMERS / 32);
        }
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        registers_fewer<PRODUCER_REGISTERS>();
        prepare_chunks<T>(a, s, aligned);
    } else {
        registers_more<CONSUMER_REGISTERS>();
        compute_chunks<T>(a, s);
    }
#endif
}

/* The rows of the part blockIdx.y after its last border. */
template <typename T>
__global__ void delta_rows(const __grid_constant__ struct ctw_cuda_delta a)
{
    const struct ctw_op_delta &op = a.op;
    const struct ctw_cuda_part &part = a.parts.part[blockIdx.y];
    const int64_t begun = part.pos0 % CHUNK, n_tok = begun + part.n_tok;
    /* from the border before the part's first token */
    const int64_t t = n_tok - n_tok % CHUNK + blockIdx.x;
    if (part.after < 0 || t >= n_tok)
        return;
    const int64_t length = ctw_delta_row(op.n_key, op.n_value, op.key, op.value);
    const int64_t x = 2 * (int64_t)op.n_key * op.key + (int64_t)op.n_value * op.value;
    const int64_t row = part.row + t - begun;
    const int64_t rows = ctw_delta_floats(op.n_value, op.key, op.value);
    const float *old = (const float *)ctw_state_at(&op.states, part.before);
    const T *before = old == NULL ? NULL : (const T *)(old + rows) + t * length;
    T *after = (T *)((float *)ctw_state_at(&op.states, part.after) + rows) + blockIdx.x * length;
    for (int64_t i = threadIdx.x; i < x + 2 * op.n_value; i += blockDim.x) {
        const int head = (int)((i - x) % op.n_value);
        if (t < begun)
            after[i] = before[i];
        else if (i < x)
            after[i] = ((const T *)op.x)[row * op.ldx + i];
        else
            after[i] = ((const T *)(i - x < op.n_value ? op.b : op.a))[row * op.ldba +
                                                                     ctw_delta_column(&op, head)];
    }
}

/* Deals the chunks of all units to the blocks. Returns how many blocks there are. */
static int deal(const struct ctw_cuda *cu, struct ctw_cuda_delta *a)
{
    const int64_t most = cu->n_sm < CTW_GPU_HANDED ? cu->n_sm : CTW_GPU_HANDED;
    int64_t n = 0, longest = 0;
    for (int i = 0; i < a->parts.n; i++) {
        const int chunks = chunks_of(&a->parts.part[i]);
        longest = chunks > longest ? chunks : longest;
        n += (int64_t)chunks * units_of(&a->op);
    }
    /* A unit is never shared by three. */
    const int64_t even = (n + most - 1) / most, share = even > longest ? even : longest;
    a->n_steps = (int)n;
    a->block_steps = (int)share;
    return (int)((n + share - 1) / share);
}

template <typename T>
static enum ctw_status launch(struct ctw_cuda *cu, struct ctw_cuda_delta *a, struct ctw_err *err)
{
    const struct ctw_op_delta *op = &a->op;
    const size_t bytes = sizeof(struct shared<T>);
    const bool aligned = op->key % 8 == 0 && op->value % 8 == 0 && op->ldx % 8 == 0 &&
                         ctw_cuda_aligned16(op->x) &&
                         ctw_cuda_aligned16(op->states.data) && op->states.bytes % 16 == 0;
    const int blocks = deal(cu, a);
    struct ctw_cuda_buffer *scratch = &cu->scratch[CTW_CUDA_PRODUCT];
    enum ctw_status st = ctw_cuda_grow(cu, scratch, CTW_GPU_HANDED_BYTES, err);
    if (st == CTW_OK)
        st = ctw_cuda_check(
            cudaFuncSetAttribute(delta_chunks<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)bytes),
            "gated delta rule", err);
    if (st != CTW_OK)
        return st;
    a->handed = (float *)scratch->p;
    a->there = (int *)(a->handed + (int64_t)CTW_GPU_HANDED * KEY * VALUE);
    st = ctw_cuda_check(
        cudaMemsetAsync(a->there, 0, CTW_GPU_HANDED * sizeof(int), cu->stream),
        "gated delta rule", err);
    if (st != CTW_OK)
        return st;
    delta_chunks<T><<<(unsigned)blocks, THREADS, bytes, cu->stream>>>(*a, aligned);
    if (a->parts.leave)
        delta_rows<T><<<dim3(CHUNK - 1, (unsigned)a->parts.n), 256, 0, cu->stream>>>(*a);
    return CTW_OK;
}

bool ctw_cuda_delta_has_chunks(const struct ctw_cuda *cu, const struct ctw_op_delta *op)
{
    return cu->hopper && op->dtype != CTW_F32 && op->key <= KEY && !op->by_channel;
}

enum ctw_status ctw_cuda_delta_chunks(struct ctw_cuda *cu, struct ctw_cuda_delta *a,
                                      struct ctw_err *err)
{
    return a->op.dtype == CTW_BF16 ? launch<__nv_bfloat16>(cu, a, err) : launch<__half>(cu, a, err);
}
