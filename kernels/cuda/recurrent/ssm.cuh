/* Shared by the two forms of ctw_ssm() on the GPU: ssm.cu, token by token; ssm_chunks_hopper.cu. */
#ifndef CTW_KERNELS_CUDA_SSM_CUH
#define CTW_KERNELS_CUDA_SSM_CUH

#include "kernels/cuda/elements.h"
#include "kernels/cuda/recurrent/seq_parts.h"
#include "kernels/ssm.h"

static __device__ __forceinline__ float ctw_ssm_number(const struct ctw_ssm_vector &v, int64_t i)
{
    return v.data == NULL ? 0.0f : ctw_cuda_number(v.data, v.dtype, i);
}

/* -exp(a_log) */
static __device__ __forceinline__ float ctw_ssm_rate(const struct ctw_op_ssm &op, int64_t i)
{
    const float a = ctw_ssm_number(op.a_log, i);
    return op.as_rates ? a : -expf(a);
}

/* The step of head h, from its element of dt. */
static __device__ __forceinline__ float ctw_ssm_step(const struct ctw_op_ssm &op, float dt,
                                                     int64_t h)
{
    dt += ctw_ssm_number(op.dt_bias, h);
    float step = dt > 20.0f ? dt : log1pf(expf(dt));
    return step < op.dt_min ? op.dt_min : step > op.dt_max ? op.dt_max : step; /* NaN stays */
}

/* By chunks, if ctw_ssm_has_chunks(). */
enum ctw_status ctw_cuda_ssm_chunks(struct ctw_cuda *cu, const struct ctw_op_ssm *op,
                                    struct ctw_err *err);

#endif
