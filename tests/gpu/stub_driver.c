/*
 * A fake NVIDIA driver, as libcuda.so.1, for tests/gpu/test_drivers.py. Its version is
 * CTW_STUB_DRIVER_VERSION (12040 is for CUDA 12.4); cuInit() returns CTW_STUB_DRIVER_INIT, a
 * CUresult.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { CUDA_ERROR_NOT_FOUND = 500 };

static int setting(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : 0;
}

int cuInit(unsigned flags)
{
    (void)flags;
    return setting("CTW_STUB_DRIVER_INIT");
}

int cuDriverGetVersion(int *version)
{
    *version = setting("CTW_STUB_DRIVER_VERSION");
    return 0;
}

/* The CUDA runtime finds every other function through this one; its arguments are as in CUDA's
 * driver API. */
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *why)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } has[] = {
        {"cuInit", (void (*)(void))cuInit},
        {"cuDriverGetVersion", (void (*)(void))cuDriverGetVersion},
        {"cuGetProcAddress", (void (*)(void))cuGetProcAddress_v2},
    };
    (void)version;
    (void)flags;
    if (why != NULL)
        *why = 0;
    for (size_t i = 0; i < sizeof(has) / sizeof(has[0]); i++) {
        if (strcmp(name, has[i].name) == 0) {
            memcpy(function, &has[i].function, sizeof(*function));
            return 0;
        }
    }
    *function = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
