/* act(g) in double, written apart from the code's own, and the error that a place may make. */
#ifndef CTW_TESTS_ACTIVATION_H
#define CTW_TESTS_ACTIVATION_H

#include "places.h"

static double gelu_inner(double g)
{
    return 0.7978845608028654 * (g + 0.044715 * g * g * g);
}

UNUSED_OK static double activation(enum ctw_activation act, const float *param, double g)
{
    if (isnan(g))
        return g;
    switch (act) {
    case CTW_ACT_SILU:
        return g / (1 + exp(-g));
    case CTW_ACT_GELU:
        return 0.5 * g * erfc(-g * M_SQRT1_2);
    case CTW_ACT_GELU_TANH:
        return g / (1 + exp(-2 * gelu_inner(g)));
    case CTW_ACT_RELU:
        return fmax(g, 0);
    case CTW_ACT_RELU2:
        return fmax(g, 0) * fmax(g, 0);
    case CTW_ACT_XIELU:
        if (g > 0)
            return param[0] * g * g + param[2] * g;
        return (expm1(fmin(g, param[3])) - g) * param[1] + param[2] * g;
    case CTW_ACT_SIGMOID:
        return 1 / (1 + exp(-g));
    default:
        return fmax(fmin(g, param[0]), -param[0]);
    }
}

/* The errors that NUMERICS.md states for act(g), before the result is rounded. A CPU's gelu_tanh
 * cancels below 0, as tanh nears -1. */
UNUSED_OK static double activation_error(enum ctw_activation act, const float *param, double g)
{
    const double u = 0x1p-24, value = activation(act, param, g), size = fabs(value);
    switch (act) {
    case CTW_ACT_SILU:
        return (CTW_ON_GPU ? 8 : 4) * u * size;
    case CTW_ACT_GELU:
        return (CTW_ON_GPU ? 12 + 2 * g * g : 8 + fmin(4, 2 * g * g)) * u * size;
    case CTW_ACT_GELU_TANH:
        return CTW_ON_GPU ? (12 + 16 * fabs(gelu_inner(g))) * u * size
                          : 8 * u * fmax(size, fabs(g) * (g < -0.5));
    case CTW_ACT_RELU2:
        return (CTW_ON_GPU ? 2 : 1) * u * size;
    case CTW_ACT_XIELU:
        if (g > 0)
            return 4 * u * size;
        return 24 * u * (fabs(value - param[2] * g) + fabs(param[2] * g));
    case CTW_ACT_SIGMOID:
        return 8 * u * size;
    default:
        return 0;
    }
}

#endif
