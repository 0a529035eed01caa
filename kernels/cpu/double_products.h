/* Products of heads in double, in a fixed order: for the choice of keys (c_index.c, c_blocks.c). */
#ifndef CTW_KERNELS_CPU_DOUBLE_PRODUCTS_H
#define CTW_KERNELS_CPU_DOUBLE_PRODUCTS_H

#include <string.h>

#include "kernels/dtype.h"

enum { LANES = 8 }; /* partial sums of a product */

/* to [n + LANES]: n elements from `from` on as fp32, then zeros. */
static inline void widen(float *to, const void *array, enum ctw_dtype dtype, int64_t from, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = ctw_load_float(array, dtype, from + i);
    memset(to + n, 0, (size_t)(LANES - 1) * sizeof(*to));
}

static inline double product(const float *x, const float *y, int n)
{
    double sum[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++)
            sum[l] += (double)x[i + l] * (double)y[i + l];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

#endif
