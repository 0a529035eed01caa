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
 * p: {ap, an, beta, eps}. e^m - 1 - m is a series near 0, where the difference would cancel: the
 * first term left out is below 2^-28 of the sum. -infinity gives NaN.
 */
static __device__ __forceinline__ float ctw_cuda_xielu(const float *p, float g)
{
    if (g > 0)
        return fmaf(p[0] * g, g, p[2] * g);
    float m = fminf(g, p[3]), h = expm1f(m) - m;
    if (fabsf(m) < 0.5f) {
        h = fmaf(m, 2.75573192e-6f, 2.48015873e-5f);
        h = fmaf(m, h, 1.98412698e-4f);
        h = fmaf(m, h, 1.38888889e-3f);
        h = fmaf(m, h, 8.33333333e-3f);
        h = fmaf(m, h, 4.16666667e-2f);
        h = fmaf(m, h, 1.66666667e-1f);
        h = fmaf(m, h, 0.5f) * m * m;
    }
    if (m != g) /* also if g is NaN, which stays */
        h += m - g;
    return fmaf(h, p[1], p[2] * g);
}

static __device__ __forceinline__ float ctw_cuda_clamp(float v, float least, float most)
{
    return v > most ? most : v < least ? least : v;
}

/* struct ctw_glu; NaN stays. */
static __device__ __forceinline__ float ctw_cuda_glu(enum ctw_activation act, const struct ctw_glu &glu,
                                                     float g, float u)
{
    float most = glu.limit, below = g > most ? most : g;
    if (glu.kind == CTW_GLU_OFFSET)
        return below / (1.0f + expf(-glu.alpha * below)) * (ctw_cuda_clamp(u, -most, most) + 1.0f);
    if (glu.kind == CTW_GLU_SLOPED)
        return below / (1.0f + expf(-glu.alpha * below)) * ctw_cuda_clamp(u, -most, most);
    if (glu.kind == CTW_GLU_BOUNDED)
        return glu.alpha * tanhf(g / glu.alpha) / (1.0f + expf(-g)) *
               (isinf(most) ? u : most * tanhf(u / most));
    float x = glu.kind == CTW_GLU_CLAMPED ? below : g;
    float a = ctw_cuda_is_relu(act) ? ctw_cuda_relu(act, x) : ctw_cuda_smooth(act, x);
    if (glu.kind == CTW_GLU_PLAIN)
        return a * u;
    a = glu.kind == CTW_GLU_CLAMPED_ACT && a > most ? most : a;
    return a * ctw_cuda_clamp(u, -most, most);
}

/* p: {limit} */
static __device__ __forceinline__ float ctw_cuda_clip(const float *p, float g)
{
    return g > p[0] ? p[0] : g < -p[0] ? -p[0] : g;
}

#endif
#endif
