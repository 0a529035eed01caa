/*
 * Times of a program's kernels and copies on the GPU, by CUPTI. The driver loads this library into
 * the program that is to be measured:
 *
 *     CUDA_INJECTION64_PATH=.../libkernel_times.so KERNEL_TIMES=out.txt ctworker score ...
 *
 * When the program ends, each line of out.txt is "NS COUNT NAME": the sum of a kernel's times in
 * nanoseconds, its launches, its mangled name. Kernels of two streams that run at the same time
 * count twice.
 */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_KERNELS = 4096, BUFFER = 8 << 20, ALIGNMENT = 8, MOST_NAME = 512 };

struct kernel {
    char name[MOST_NAME];
    unsigned long long ns, count;
};

/* Written by CUPTI's one thread, and read after the last flush. */
static struct kernel kernels[MOST_KERNELS];
static int n_kernels;

static void add(const char *name, uint64_t ns)
{
    int i = 0;
    while (i < n_kernels && strncmp(kernels[i].name, name, MOST_NAME - 1) != 0)
        i++;
    if (i == MOST_KERNELS)
        return;
    if (i == n_kernels) {
        n_kernels++;
        (void)snprintf(kernels[i].name, MOST_NAME, "%s", name);
    }
    kernels[i].ns += ns;
    kernels[i].count++;
}

static void CUPTIAPI begin_buffer(uint8_t **buffer, size_t *bytes, size_t *n_records)
{
    *buffer = aligned_alloc(ALIGNMENT, BUFFER);
    *bytes = *buffer != NULL ? BUFFER : 0;
    *n_records = 0;
}

static void CUPTIAPI end_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes,
                                size_t valid)
{
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)bytes;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const CUpti_ActivityKernel10 *k = (const CUpti_ActivityKernel10 *)record;
            add(k->name, k->end - k->start);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy6 *c = (const CUpti_ActivityMemcpy6 *)record;
            add(c->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "copy to the GPU"
                : c->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy from the GPU"
                                                                 : "copy",
                c->end - c->start);
        }
    }
    free(buffer);
}

static void finish(void)
{
    const char *path = getenv("KERNEL_TIMES");
    (void)cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    FILE *f = fopen(path != NULL ? path : "kernel_times.txt", "w");
    if (f == NULL)
        return;
    for (int i = 0; i < n_kernels; i++)
        fprintf(f, "%llu %llu %s\n", kernels[i].ns, kernels[i].count, kernels[i].name);
    (void)fclose(f);
}

/* The driver calls it once, when the program opens the GPU. */
int InitializeInjection(void);
int InitializeInjection(void)
{
    if (cuptiActivityRegisterCallbacks(begin_buffer, end_buffer) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) != CUPTI_SUCCESS) {
        fprintf(stderr, "kernel_times: CUPTI does not start\n");
        return 0;
    }
    (void)atexit(finish);
    return 1;
}
