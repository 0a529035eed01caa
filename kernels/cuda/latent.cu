/*
 * The heads of latent attention, and gates of heads. Memory-bound: a block takes a token's row, and
 * copies 8 elements at a time where parts of heads allow it.
 */
#include "kernels/cuda/elements.h"

enum { THREADS = 256, VECTOR = 8 };

/* Pair i of a part that turns: its elements in the part. */
struct pair {
    int first, second;
};

static __device__ __forceinline__ struct pair pair_of(const struct ctw_op_latent &op, int i)
{
    struct pair p;
    bool halves = op.pairing == CTW_ROPE_HALVES;
    p.first = halves ? i : 2 * i;
    p.second = halves ? i + op.turning / 2 : 2 * i + 1;
    return p;
}

/* y = x turned, times factor */
template <typename T>
static __device__ __forceinline__ void turn_pair(const struct ctw_op_latent &op,
                                                 const float *cos_sin, int i, float factor,
                                                 const T *x, T *y)
{
    struct pair p = pair_of(op, i);
    float a = ctw_cuda_widen(x[p.first]), b = ctw_cuda_widen(x[p.second]);
    ctw_cuda_turn(&a, &b, cos_sin[i], cos_sin[op.turning / 2 + i]);
    ctw_cuda_narrow(a * factor, y + p.first);
    ctw_cuda_narrow(b * factor, y + p.second);
}

/* n elements of each head: from src, heads from_step apart, to dst, heads to_step apart. */
template <typename T>
static __device__ __forceinline__ void copy_parts(const T *src, int from_step, T *dst, int to_step,
                                                  int n_head, int n, bool vectors)
{
    int step = vectors ? VECTOR : 1, per_head = n / step;
    for (int i = (int)threadIdx.x; i < n_head * per_head; i += THREADS) {
        int h = i / per_head, at = i % per_head * step;
        const T *from = src + (int64_t)h * from_step + at;
        T *to = dst + (int64_t)h * to_step + at;
        if (vectors) {
            float v[VECTOR];
            ctw_cuda_load<true>(from, v);
            ctw_cuda_store(to, v);
        } else {
            *to = *from;
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    latent_rows(const __grid_constant__ struct ctw_op_latent op, bool vectors)
{
    __shared__ alignas(16) unsigned char shared[CTW_MAX_HEAD * sizeof(float)];
    T *turned = (T *)shared;
    const int64_t t = blockIdx.x;
    const int head = op.own + op.turning, half = op.turning / 2;
    const T *k_turned = (const T *)op.k_turned + t * op.ld_turned;
    const T *kv = (const T *)op.kv + t * op.n_head * (op.own + op.head_v);
    T *q = (T *)op.q + t * op.n_head * head, *k = (T *)op.k + t * op.n_head * head;
    T *v = (T *)op.v + t * op.n_head * op.head_v;
    const float *cos_sin =
        op.cos_sin != NULL ? op.cos_sin + (int64_t)op.positions[t] * op.turning : NULL;
    float factor = op.q_factor != NULL ? op.q_factor[op.positions[t]] : 1.0f;
    for (int i = (int)threadIdx.x; i < (cos_sin != NULL ? half : op.turning); i += THREADS) {
        if (cos_sin != NULL)
            turn_pair(op, cos_sin, i, 1.0f, k_turned, turned);
        else
            turned[i] = k_turned[i];
    }
    __syncthreads();
    copy_parts(kv, op.own + op.head_v, k, head, op.n_head, op.own, vectors);
    copy_parts(kv + op.own, op.own + op.head_v, v, op.head_v, op.n_head, op.head_v, vectors);
    copy_parts((const T *)turned, 0, k + op.own, head, op.n_head, op.turning, false);
    int scaled = cos_sin != NULL ? op.own : head;
    for (int i = (int)threadIdx.x; factor != 1.0f && i < op.n_head * scaled; i += THREADS) {
        T *x = q + (int64_t)(i / scaled) * head + i % scaled;
        ctw_cuda_narrow(ctw_cuda_widen(*x) * factor, x);
    }
    for (int i = (int)threadIdx.x; cos_sin != NULL && i < op.n_head * half; i += THREADS) {
        T *x = q + (int64_t)(i / half) * head + op.own;
        turn_pair(op, cos_sin, i % half, factor, (const T *)x, x);
    }
}

enum ctw_status ctw_cuda_latent(struct ctw_cuda *cu, const struct ctw_op_latent *op,
                                struct ctw_err *err)
{
    bool vectors = (op->own | op->turning | op->head_v) % VECTOR == 0 &&
                   ctw_cuda_aligned16(op->kv) && ctw_cuda_aligned16(op->k) &&
                   ctw_cuda_aligned16(op->v);
#define ROWS(T) latent_rows<T><<<(unsigned)op->n_tok, THREADS, 0, cu->stream>>>(*op, vectors)
    CTW_CUDA_FLOAT_SWITCH(op->dtype, ROWS);
#undef ROWS
    return ctw_cuda_launched("latent attention's heads", err);
}

/* About 3 steps of relative error. NaN stays NaN. */
static __device__ __forceinline__ float gate_of(enum ctw_gate_kind kind, float x)
{
    if (kind == CTW_GATE_SIGMOID)
        return 1.0f / (1.0f + expf(-x));
    return (x > 0 ? x : 0.0f) + log1pf(expf(-fabsf(x)));
}

template <typename T>
__global__ void __launch_bounds__(THREADS) gate_rows(const __grid_constant__ struct ctw_op_gate op)
{
    const int64_t t = blockIdx.x;
    const T *x = (const T *)op.x + t * op.ldx;
    T *y = (T *)op.y + t * op.ldy;
    for (int64_t i = threadIdx.x; i < op.n_groups * op.size; i += THREADS) {
        float factor = gate_of(op.kind, ctw_cuda_widen(x[ctw_gate_column(&op, i / op.size)]));
        ctw_cuda_narrow(ctw_cuda_widen(y[i]) * factor, y + i);
    }
}

/* Gates of one element each, VECTOR at a time. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    gate_vectors(const __grid_constant__ struct ctw_op_gate op)
{
    const T *x = (const T *)op.x + (int64_t)blockIdx.x * op.ldx;
    T *y = (T *)op.y + (int64_t)blockIdx.x * op.ldy;
    const int run = op.run == 0 ? (int)op.n_groups : (int)op.run, step = (int)op.step;
    for (int i = (int)threadIdx.x * VECTOR; i < (int)op.n_groups; i += THREADS * VECTOR) {
        float v[VECTOR], g[VECTOR];
        ctw_cuda_load<true>(x + i / run * step + i % run, g);
        ctw_cuda_load<true>(y + i, v);
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            v[j] *= gate_of(op.kind, g[j]);
        ctw_cuda_store(y + i, v);
    }
}

enum ctw_status ctw_cuda_gate(struct ctw_cuda *cu, const struct ctw_op_gate *op,
                              struct ctw_err *err)
{
    const bool vectors = op->size == 1 && op->n_groups <= INT32_MAX / 2 &&
                         (op->n_groups | op->run | op->step | op->ldx | op->ldy) % VECTOR == 0 &&
                         ctw_cuda_aligned16(op->x) && ctw_cuda_aligned16(op->y);
#define VECTORS(T) gate_vectors<T><<<(unsigned)op->n_tok, THREADS, 0, cu->stream>>>(*op)
#define ROWS(T) gate_rows<T><<<(unsigned)op->n_tok, THREADS, 0, cu->stream>>>(*op)
    if (vectors)
        CTW_CUDA_FLOAT_SWITCH(op->dtype, VECTORS);
    else
        CTW_CUDA_FLOAT_SWITCH(op->dtype, ROWS);
#undef ROWS
#undef VECTORS
    return ctw_cuda_launched("gates", err);
}
