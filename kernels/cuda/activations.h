/* Activations in device code, in fp32. NaN stays NaN. */
#ifndef CTW_KERNELS_CUDA_ACTIVATIONS_H
#define CTW_KERNELS_CUDA_ACTIVATIONS_H

#include "kernels/operations.h"

#ifdef __CUDACC__

static inline __host__ __device__ bool ctw_cuda_is_relu(enum ctw_activation act)
{
    return act == CTW_ACT_RELU || act == CTW_ACT_RELU2;
}

/*
 * SiLU and both GELUs. About 3 steps of relative error; gelu_tanh is g / (1 + exp(-2 z)), because 1
 * + tanh(z) would cancel below 0. -infinity gives NaN, as in the definition.
 */
static __device__ __forceinline__ float ctw_cuda_smooth(enum ctw_activation act, float g)
{
    if (act == CTW_ACT_SILU)
        return g / (1.0f + expf(-g));
    if (act == CTW_ACT_GELU)
        return 0.5f * g * erfcf(-0.70710678118654752f * g);
    float z2 = 1.5957691216057308f * (g + 0.044715f * g * g * g);
    return g / (1.0f + expf(-z2));
}

/* ReLU and its square; NaN stays. */
static __device__ __forceinline__ float ctw_cuda_relu(enum ctw_activation act, float g)
{
    return g < 0 ? 0.0f : act == CTW_ACT_RELU ? g : g * g;
}

/*
 * p: {ap, an, beta, eps}. expm1() keeps the precision of small g. Each of the terms an expm1(g), an
 * g and beta g has about 2 steps of error.
 */
static __device__ __forceinline__ float ctw_cuda_xielu(const float *p, float g)
{
    if (g > 0)
        return fmaf(p[0] * g, g, p[2] * g);
    return fmaf(expm1f(fminf(g, p[3])) - g, p[1], p[2] * g);
}

/* p: {limit} */
static __device__ __forceinline__ float ctw_cuda_clip(const float *p, float g)
{
    return g > p[0] ? p[0] : g < -p[0] ? -p[0] : g;
}

#endif
#endif
