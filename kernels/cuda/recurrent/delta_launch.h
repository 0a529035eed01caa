/* Shared by the kernels of the gated delta rule: token by token (delta.cu, delta_channels.cu), and
 * by chunks (delta_chunks.cu). */
#ifndef CTW_KERNELS_CUDA_DELTA_LAUNCH_H
#define CTW_KERNELS_CUDA_DELTA_LAUNCH_H

#include "kernels/cuda/elements.h"
#include "kernels/cuda/recurrent/seq_parts.h"
#include "kernels/delta.h"

struct ctw_cuda_delta {
    struct ctw_op_delta op;
    struct ctw_cuda_parts parts;
    /* By chunks: of all units, and of a block. A unit that two blocks share is handed on: its state
     * lies in handed[the first block], and there[the first block] is 1 then. */
    int n_steps, block_steps;
    float *handed;
    int *there;
};

/* Is the operation computed by chunks? That depends on its shape alone. */
bool ctw_cuda_delta_has_chunks(const struct ctw_cuda *cu, const struct ctw_op_delta *op);
enum ctw_status ctw_cuda_delta_chunks(struct ctw_cuda *cu, struct ctw_cuda_delta *a,
                                      struct ctw_err *err);

/* by_channel */
void ctw_cuda_delta_channels(struct ctw_cuda *cu, const struct ctw_cuda_delta *a);

#ifdef __CUDACC__

/* exp(a_log), of an element of op.a_log */
static __device__ __forceinline__ float delta_rate_of(const struct ctw_op_delta &op, float a_log)
{
    return op.as_rates ? fabsf(a_log) : expf(a_log);
}

static __device__ __forceinline__ float delta_rate(const struct ctw_op_delta &op, int head)
{
    return delta_rate_of(op, ctw_cuda_number(op.a_log, op.a_log_dtype, head));
}

/* -rate softplus(x), or least sigmoid(rate x) */
static __device__ __forceinline__ float delta_log_decay(float rate, float x, float least)
{
    if (least < 0)
        return least / (1.0f + expf(-rate * x));
    return -rate * ((x > 0 ? x : 0.0f) + log1pf(expf(-fabsf(x))));
}

#endif
#endif
