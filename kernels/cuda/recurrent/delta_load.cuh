/* Loads of a chunk's q, k and v to shared memory, and its decays, by the producers of
 * delta_chunks.cu. */
#ifndef CTW_KERNELS_CUDA_DELTA_LOAD_CUH
#define CTW_KERNELS_CUDA_DELTA_LOAD_CUH

#include "kernels/cuda/recurrent/delta_tiles.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* The q, k and v of token t of those in the state before. */
template <typename T>
CTW_DEV const T *row_before(const struct ctw_op_delta &op, const struct work &w, int64_t t)
{
    const T *rows = (const T *)((const float *)ctw_state_at(&op.states, w.before) +
                                ctw_delta_floats(op.n_value, op.key, op.value));
    return rows + t * ctw_delta_row(op.n_key, op.n_value, op.key, op.value);
}

/* 8 elements from `from` on, of which n are there. */
template <typename T> CTW_DEV void copy_slowly(T *to, const T *from, int n)
{
    T zero;
    ctw_cuda_narrow(0.0f, &zero);
#pragma unroll 1
    for (int i = 0; i < 8; i++)
        to[i] = i < n ? from[i] : zero;
}

/* A thread has 8 columns of each of q, k and v, of every eighth row. */
template <typename T>
CTW_DEV void load_chunk(const struct ctw_op_delta &op, const struct work &w, int chunk, int stage,
                        struct shared<T> &s, bool aligned)
{
    const int thread = threadIdx.x % PRODUCERS, eighth = thread % 16;
    const int64_t keys = (int64_t)op.n_key * op.key, left = w.n_tok - (int64_t)chunk * CHUNK;
    const int64_t q = (int64_t)ctw_delta_key_head(&op, w.head) * op.key + 8 * eighth;
    const int64_t v = 2 * keys + (int64_t)w.head * op.value + w.col0 + 8 * eighth;
    const int n_key = op.key - 8 * eighth, n_value = op.value - w.col0 - 8 * eighth;
    const int begun = chunk == 0 ? w.begun : 0, first = thread / 16;
    const T *x =
        (const T *)op.x + (w.first - w.begun + (int64_t)chunk * CHUNK + first) * op.ldx;
    if (aligned && begun == 0 && left >= CHUNK && op.key == KEY && w.col0 + VALUE <= op.value) {
        const uint32_t at = tile_at<KEY>(first, eighth);
        const uint32_t to[3] = {shared_address(s.q[stage]) + at, shared_address(s.k[stage]) + at,
                                shared_address(s.v[stage]) + at};
        const T *from[3] = {x + q, x + keys + q, x + v};
#pragma unroll
        for (int i = 0; i < CHUNK; i += 8) {
#pragma unroll
            for (int j = 0; j < 3; j++) {
                copy_16(to[j] + i * KEY * sizeof(T), from[j], 16);
                from[j] += 8 * op.ldx;
            }
        }
        copies_arrive(shared_address(&s.loaded[stage]));
        return;
    }
#pragma unroll 2
    for (int i = 0; i < CHUNK; i += 8, x += 8 * op.ldx) {
        const bool in = first + i < left;
        const T *row = !in ? (const T *)op.x
                       : first + i < begun ? row_before<T>(op, w, first + i) : x;
        const uint32_t at = tile_at<KEY>(first + i, eighth) / sizeof(T);
        if (aligned) {
            const bool key = in && n_key > 0, value = in && n_value > 0;
            copy_16(shared_address(&s.q[stage][at]), key ? row + q : row, key ? 16 : 0);
            copy_16(shared_address(&s.k[stage][at]), key ? row + keys + q : row, key ? 16 : 0);
            copy_16(shared_address(&s.v[stage][at]), value ? row + v : row, value ? 16 : 0);
        } else {
            copy_slowly(&s.q[stage][at], row + q, in ? n_key : 0);
            copy_slowly(&s.k[stage][at], row + keys + q, in ? n_key : 0);
            copy_slowly(&s.v[stage][at], row + v, in ? n_value : 0);
        }
    }
    if (aligned)
        copies_arrive(shared_address(&s.loaded[stage]));
    else
        barrier_arrive(shared_address(&s.loaded[stage]));
}

/* a of two tokens, as loaded, and the head's own numbers: whoever uses them waits for them. */
template <typename T> struct gates {
    T of[2];
    int head; /* of a_log and dt_bias; -1: of none yet */
    float a_log, dt_bias;
};

/* b, with column 0, or a, with column 1, of two tokens of a lane. */
template <typename T>
CTW_DEV void load_gates(const struct ctw_op_delta &op, const struct work &w, int chunk, int column,
                        T (&of)[2])
{
    const int64_t keys = (int64_t)op.n_key * op.key, values = (int64_t)op.n_value * op.value;
    const T *x = (const T *)(column == 0 ? op.b : op.a) + ctw_delta_column(&op, w.head);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int64_t t = (int64_t)chunk * CHUNK + 2 * (threadIdx.x % 32) + i;
        ctw_cuda_narrow(0.0f, &of[i]);
        if (t < w.begun)
            of[i] = row_before<T>(op, w, t)[2 * keys + values + column * op.n_value + w.head];
        else if (t < w.n_tok)
            of[i] = x[(w.first + t - w.begun) * op.ldba];
    }
}

/* A warp. */
template <typename T>
CTW_DEV void store_betas(const struct ctw_op_delta &op, const T (&b)[2], struct preparation &p)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        p.beta[2 * (threadIdx.x % 32) + i] =
            (op.twice ? 2.0f : 1.0f) / (1.0f + expf(-ctw_cuda_widen(b[i])));
}

/* A warp: logarithms of decays, summed in double. n_tok: of the chunk. */
template <typename T>
CTW_DEV void sum_decays(const struct ctw_op_delta &op, const struct gates<T> &g, int64_t n_tok,
                        struct preparation &p)
{
    const int lane = threadIdx.x % 32;
    const float rate = delta_rate_of(op, g.a_log);
    double log2[2], sum;
#pragma unroll
    for (int i = 0; i < 2; i++)
        log2[i] = 2 * lane + i < n_tok
                      ? 1.4426950408889634 *
                            (double)delta_log_decay(
                                rate, ctw_cuda_widen(g.of[i]) + g.dt_bias, op.least_log)
                      : 0.0;
    sum = log2[0] + log2[1];
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        const double before = __shfl_up_sync(0xffffffff, sum, i);
        sum = lane >= i ? before + sum : sum;
    }
    const double before = __shfl_up_sync(0xffffffff, sum, 1);
    const double at[2] = {(lane > 0 ? before : 0.0) + log2[0], sum};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float high = (float)at[i];
        const double end = __shfl_sync(0xffffffff, sum, lane / 8 * 8 + 7);
        p.log_high[2 * lane + i] = high;
        p.log_low[2 * lane + i] = (float)(at[i] - (double)high);
        p.to_end[2 * lane + i] = exp2f((float)(end - at[i]));
    }
}

#endif
#endif
