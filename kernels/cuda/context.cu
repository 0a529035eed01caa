/* What every file of the backend needs of the GPU: errors, and memory that grows. */
#include "kernels/cuda/context.h"

enum ctw_status ctw_cuda_check(cudaError_t e, const char *what, struct ctw_err *err)
{
    if (e == cudaSuccess)
        return CTW_OK;
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* it is not sticky */
        return ctw_fail(err, CTW_ENOMEM, "cuda: %s: the GPU's memory is exhausted", what);
    }
    return ctw_fail(err, CTW_EDEVICE, "cuda: %s: %s: %s", what, cudaGetErrorName(e),
                    cudaGetErrorString(e));
}

enum ctw_status ctw_cuda_launched(const char *what, struct ctw_err *err)
{
    return ctw_cuda_check(cudaGetLastError(), what, err);
}

enum ctw_status ctw_cuda_alloc(struct ctw_backend *be, void **out, size_t bytes, struct ctw_err *err)
{
    (void)ctw_cuda_of(be);
    cudaError_t e = cudaMalloc(out, bytes > 0 ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &total);
        return ctw_fail(err, CTW_ENOMEM, "cuda: no memory for %zu MiB: %zu of %zu MiB are free",
                        bytes >> 20, free_bytes >> 20, total >> 20);
    }
    return ctw_cuda_check(e, "allocating", err);
}

enum ctw_status ctw_cuda_grow(struct ctw_cuda *cu, struct ctw_cuda_buffer *b, size_t bytes,
                              struct ctw_err *err)
{
    if (b->bytes >= bytes)
        return CTW_OK;
    if (b->p != NULL) {
        enum ctw_status st =
            ctw_cuda_check(cudaDeviceSynchronize(), "waiting before memory is replaced", err);
        if (st != CTW_OK)
            return st;
        (void)cudaFree(b->p);
        b->p = NULL;
        b->bytes = 0;
    }
    enum ctw_status st = ctw_cuda_alloc(&cu->backend, &b->p, bytes, err);
    if (st == CTW_OK)
        b->bytes = bytes;
    return st;
}
