/*
 * Shared by the tests that use the contract and are the GPU's alone: its types, the clock, random
 * operands.
 */
#ifndef CTW_TESTS_GPU_DEVICE_H
#define CTW_TESTS_GPU_DEVICE_H

#include <time.h>

#include "places.h"

UNUSED_OK static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

/* Rates take longer than all checks, and are measured only if the first argument says so. */
UNUSED_OK static bool rates_wanted(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "rates") == 0;
}

UNUSED_OK static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* `count` numbers of dtype: a million random numbers, repeated. */
UNUSED_OK static struct dev dev_random(struct ctw_backend *be, enum ctw_dtype dtype, int64_t count)
{
    enum { PERIOD = 999983 };
    size_t step = ctw_dtype_bytes(dtype), bytes = (size_t)count * step;
    struct buf once = buf_random(dtype, PERIOD, 1, 0);
    char *all = malloc(bytes);
    assert_non_null(all);
    for (size_t at = 0; at < bytes; at += PERIOD * step)
        memcpy(all + at, once.p, bytes - at < PERIOD * step ? bytes - at : PERIOD * step);
    struct dev d = dev_open(be, all, bytes, 0);
    free(all);
    buf_close(&once);
    return d;
}

#endif
