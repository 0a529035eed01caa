/*
 * A GPU that fails in the middle of a pass, for tests/gpu/run. Loaded before ctworker (LD_PRELOAD),
 * this library intercepts cuBLASLt's product. After product number CTW_FAULT_AT (from 1) it
 * launches a kernel that traps on the product's stream. The context is then lost: every later call
 * on it fails.
 *
 * ctworker launches its kernels through its own copy of the runtime, which cannot be intercepted.
 * Of the functions that its library calls by name (nm -D), cuBLASLt's product is the one every pass
 * uses.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

static __global__ void trap_kernel(void)
{
    __trap();
}

/* cuBLASLt's own function. The worker opens its backend with RTLD_LOCAL, so RTLD_NEXT would not
 * find it. */
static decltype(&cublasLtMatmul) library_matmul(void)
{
    static const char name[] = "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR);
    void *lib = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    void *found = lib != NULL ? dlsym(lib, "cublasLtMatmul") : NULL;
    if (found == NULL)
        fprintf(stderr, "fault_shim: no cublasLtMatmul in %s\n", name);
    return (decltype(&cublasLtMatmul))found;
}

extern "C" __attribute__((visibility("default"))) cublasStatus_t
cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
               cublasLtMatrixLayout_t a_desc, const void *b, cublasLtMatrixLayout_t b_desc,
               const void *beta, const void *c, cublasLtMatrixLayout_t c_desc, void *d,
               cublasLtMatrixLayout_t d_desc, const cublasLtMatmulAlgo_t *algo, void *workspace,
               size_t workspace_bytes, cudaStream_t stream)
{
    static decltype(&cublasLtMatmul) matmul; /* products come from one thread */
    static long n_calls, fault_at;
    if (matmul == NULL) {
        const char *at = getenv("CTW_FAULT_AT");
        fault_at = at != NULL ? strtol(at, NULL, 10) : 0;
        matmul = library_matmul();
        if (matmul == NULL)
            return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    cublasStatus_t s = matmul(handle, desc, alpha, a, a_desc, b, b_desc, beta, c, c_desc, d, d_desc, algo,
                              workspace, workspace_bytes, stream);
    if (++n_calls == fault_at) {
        trap_kernel<<<1, 1, 0, stream>>>();
        cudaError_t e = cudaGetLastError();
        if (e != cudaSuccess)
            fprintf(stderr, "fault_shim: no trap: %s\n", cudaGetErrorString(e));
    }
    return s;
}
