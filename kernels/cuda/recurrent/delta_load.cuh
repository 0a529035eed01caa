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
    const T *rows = (const T *)((const float *)w.before +
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
CTW_DEV void load_chunk(const struct ctw_cuda_delta &a, const struct work &w, int64_t chunk,
                        struct shared<T> &s, bool aligned)
{
    const struct ctw_op_delta &op = a.op;
    const int thread = threadIdx.x - CONSUMERS, eighth = thread % 16, stage = (int)(chunk % LOADED);
    const int64_t keys = (int64_t)op.n_key * op.key, left = w.n_tok - chunk * CHUNK;
    const int64_t q = (int64_t)ctw_delta_key_head(&op, w.head) * op.key + 8 * eighth;
    const int64_t v = 2 * keys + (int64_t)w.head * op.value + w.col0 + 8 * eighth;
    const int n_key = op.key - 8 * eighth, n_value = op.value - w.col0 - 8 * eighth;
    const int begun = chunk == 0 ? (int)w.begun : 0, first = thread / 16;
    const T *x = (const T *)op.x + (w.first - w.begun + chunk * CHUNK + first) * op.ldx;
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

/* b and a of two tokens. */
struct gates {
    float b[2], a[2];
    bool in[2];
};

template <typename T>
CTW_DEV void load_gates(const struct ctw_op_delta &op, const struct work &w, int64_t chunk,
                        struct gates &g)
{
    const int64_t keys = (int64_t)op.n_key * op.key, values = (int64_t)op.n_value * op.value;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int64_t t = chunk * CHUNK + 2 * (threadIdx.x % 32) + i;
        g.in[i] = t < w.n_tok;
        g.b[i] = g.a[i] = 0.0f;
        if (g.in[i] && t < w.begun) {
            const T *row = row_before<T>(op, w, t) + 2 * keys + values + w.head;
            g.b[i] = ctw_cuda_widen(row[0]);
            g.a[i] = ctw_cuda_widen(row[op.n_value]);
        } else if (g.in[i]) {
            const int64_t at = (w.first + t - w.begun) * op.ldba + ctw_delta_column(&op, w.head);
            g.b[i] = ctw_cuda_widen(((const T *)op.b)[at]);
            g.a[i] = ctw_cuda_widen(((const T *)op.a)[at]);
        }
    }
}

/* A warp: logarithms of decays, summed in double. */
template <typename T>
CTW_DEV void sum_decays(const struct ctw_op_delta &op, const struct gates &g, float rate,
                        float dt_bias, struct shared<T> &s)
{
    const int lane = threadIdx.x % 32;
    double log2[2], sum;
#pragma unroll
    for (int i = 0; i < 2; i++)
        log2[i] = g.in[i] ? 1.4426950408889634 *
                                (double)delta_log_decay(rate, g.a[i] + dt_bias, op.least_log)
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
        s.log_high[2 * lane + i] = high;
        s.log_low[2 * lane + i] = (float)(at[i] - (double)high);
        s.to_end[2 * lane + i] = exp2f((float)(end - at[i]));
        s.beta[2 * lane + i] = (op.twice ? 2.0f : 1.0f) / (1.0f + expf(-g.b[i]));
    }
}

#endif
#endif
