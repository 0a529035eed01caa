/*
 * Shared by the tests that use the contract (test_linear.c, test_divergence.c, test_difference.c):
 * GPUs, memory on them between guard bytes, and the clock.
 */
#ifndef CTW_TESTS_GPU_DEVICE_H
#define CTW_TESTS_GPU_DEVICE_H

#include <time.h>

#include "ops.h"

UNUSED_OK static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

static const char *const variants[] = {"general", "hopper"};

/* NULL: this GPU does not run the variant. */
UNUSED_OK static struct ctw_backend *gpu(const char *variant)
{
    struct ctw_backend *be;
    enum ctw_status st = ctw_backend_open(
        &be, "cuda", &(struct ctw_backend_options){.cuda_variant = variant}, &last_err);
    if (st == CTW_EINVAL)
        return NULL;
    if (st != CTW_OK)
        fail_msg("%s", last_err.msg);
    return be;
}

/* Device memory with a copy of `bytes` bytes, `misalign` past a multiple of 256, GUARD bytes
 * around. */
struct dev {
    struct ctw_backend *be;
    char *base, *p;
    size_t bytes;
};

UNUSED_OK static struct dev dev_open(struct ctw_backend *be, const void *src, size_t bytes,
                                     size_t misalign)
{
    struct dev d = {.be = be, .bytes = bytes};
    void *p;
    size_t all = bytes + 512 + misalign;
    OK(ctw_device_alloc(be, &p, all, &last_err));
    d.base = p;
    d.p = d.base + 256 + misalign;
    uint8_t *host = malloc(all);
    assert_non_null(host);
    memset(host, GUARD_BYTE, all);
    memcpy(host + 256 + misalign, src, bytes);
    OK(ctw_device_upload(be, d.base, host, all, &last_err));
    free(host);
    return d;
}

/* Copies its bytes into dst; checks the guards. */
UNUSED_OK static void dev_read(const struct dev *d, void *dst)
{
    size_t before = (size_t)(d->p - d->base), all = d->bytes + before + 256;
    uint8_t *host = malloc(all);
    assert_non_null(host);
    OK(ctw_device_download(d->be, host, d->base, all, &last_err));
    for (size_t i = 0; i < all; i++)
        if ((i < before || i >= before + d->bytes) && host[i] != GUARD_BYTE)
            fail_msg("byte %zd of %zu of device memory was written", (ssize_t)(i - before),
                     d->bytes);
    memcpy(dst, host + before, d->bytes);
    free(host);
}

UNUSED_OK static void dev_close(struct dev *d)
{
    ctw_device_free(d->be, d->base);
    d->base = NULL;
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
