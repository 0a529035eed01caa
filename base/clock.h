/* Monotonic time: setting the system clock does not change it. */
#ifndef CTW_BASE_CLOCK_H
#define CTW_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t ctw_now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static inline double ctw_now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

#endif
