/*
 * Real-gated linear recurrent units, token by token: a thread has one channel of one part, with its
 * state in a register. It loads the numbers of TOKENS tokens before it computes them, so that loads
 * are in flight together. Every token goes through the same code, so results do not depend on how a
 * sequence is cut. The definition's exponentials are in double precision; these are in single.
 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/recurrent/seq_parts.h"
#include "kernels/lru.h"

enum { THREADS = 64, TOKENS = 8 };

struct lru {
    struct ctw_op_lru op;
    struct ctw_cuda_parts parts;
};

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* Channels of blockIdx.x, of the part blockIdx.y. */
template <typename T>
__global__ void __launch_bounds__(THREADS) lru_channels(const __grid_constant__ struct lru a)
{
    const struct ctw_op_lru &op = a.op;
    const struct ctw_cuda_part &p = a.parts.part[blockIdx.y];
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (c >= op.n_head * op.head)
        return;
    const float *before = (const float *)ctw_state_at(&op.states, p.before);
    float *after = (float *)ctw_state_at(&op.states, p.after);
    const T *x = (const T *)op.x + c;
    const T *gates = (const T *)op.gates + c / op.head * 2 * op.head + c % op.head;
    const float decay = ctw_cuda_number(op.decay, op.decay_dtype, c);
    const float rate = -8 * (decay > 30 ? decay : log1pf(expf(decay)));
    float state = before != NULL ? before[c] : 0.0f;
    for (int t0 = 0; t0 < p.n_tok; t0 += TOKENS) {
        float in[TOKENS], input[TOKENS], forget[TOKENS];
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            const int64_t row = p.row + (t0 + i < p.n_tok ? t0 + i : p.n_tok - 1);
            in[i] = ctw_cuda_widen(x[row * op.ldx]);
            input[i] = ctw_cuda_widen(gates[row * op.ldg]);
            forget[i] = ctw_cuda_widen(gates[row * op.ldg + op.head]);
        }
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            if (t0 + i >= p.n_tok)
                break;
            const float l = rate * sigmoid(forget[i]), u = sigmoid(input[i]) * in[i];
            const bool first = before == NULL && t0 + i == 0;
            const float share = first ? 1.0f : sqrtf(-expm1f(2 * l));
            state = __fmaf_rn(expf(l), state, __fmul_rn(u, share));
            ctw_cuda_narrow(state, (T *)op.y + (p.row + t0 + i) * op.ldy + c);
        }
    }
    if (after != NULL)
        after[c] = state;
}

enum ctw_status ctw_cuda_lru(struct ctw_cuda *cu, const struct ctw_op_lru *op, struct ctw_err *err)
{
    struct lru a = {};
    a.op = *op;
    for (int64_t i = 0; i < op->n_parts; i += a.parts.n) {
        (void)ctw_cuda_take_parts(&a.parts, op->parts + i, op->n_parts - i);
        const dim3 grid((unsigned)((op->n_head * op->head + THREADS - 1) / THREADS),
                        (unsigned)a.parts.n);
#define RUN(T) lru_channels<T><<<grid, THREADS, 0, cu->stream>>>(a)
        CTW_CUDA_FLOAT_SWITCH(op->dtype, RUN);
#undef RUN
    }
    return ctw_cuda_launched("gated linear recurrence", err);
}
