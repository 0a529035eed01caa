/* Opens the GPU; memory, uploads and the table of operations. */
#include "kernels/cuda/context.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/contract.h"

enum { RING_BYTES = CTW_GPU_RING };

static struct ctw_cuda *cuda_of(struct ctw_backend *be)
{
    return ctw_cuda_of(be);
}

static const struct ctw_cuda *cuda_of(const struct ctw_backend *be)
{
    return (const struct ctw_cuda *)be;
}

/* ---- memory ------------------------------------------------------------------------------- */

static void cuda_free(struct ctw_backend *be, void *p)
{
    (void)cuda_of(be);
    (void)cudaFree(p);
}

static void drop(struct ctw_cuda_buffer *b)
{
    (void)cudaFree(b->p); /* waits for the device */
    b->p = NULL;
    b->bytes = 0;
}

static void cuda_trim(struct ctw_backend *be)
{
    struct ctw_cuda *cu = cuda_of(be);
    for (int i = 0; i < CTW_N_SLOTS; i++) {
        cu->slot[i].n_shards = 0;
        drop(&cu->slot[i].w);
    }
    for (int i = 0; i < CTW_CUDA_N_SCRATCH; i++)
        drop(&cu->scratch[i]);
}

static uint64_t cuda_memory_free(const struct ctw_backend *be)
{
    (void)cudaSetDevice(cuda_of(be)->device);
    size_t free_bytes = 0, total = 0;
    return cudaMemGetInfo(&free_bytes, &total) == cudaSuccess ? free_bytes : 0;
}

/* Copies from pageable memory have been read when the call returns, so the caller may reuse it. */
static enum ctw_status cuda_upload(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                   struct ctw_err *err)
{
    if (bytes == 0)
        return CTW_OK;
    cudaStream_t stream = cuda_of(be)->stream;
    enum ctw_status st = ctw_cuda_check(
        cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, stream), "uploading", err);
    return st != CTW_OK ? st : ctw_cuda_check(cudaStreamSynchronize(stream), "uploading", err);
}

static enum ctw_status cuda_download(struct ctw_backend *be, void *dst, const void *src,
                                     size_t bytes, struct ctw_err *err)
{
    cudaStream_t stream = cuda_of(be)->stream;
    enum ctw_status st = CTW_OK;
    if (bytes > 0)
        st = ctw_cuda_check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, stream),
                            "downloading", err);
    return st != CTW_OK ? st : ctw_cuda_check(cudaStreamSynchronize(stream), "running", err);
}

/* If source and destination overlap, the copy runs forward in pieces that do not overlap. */
static enum ctw_status cuda_copy(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                 struct ctw_err *err)
{
    char *to = (char *)dst;
    const char *from = (const char *)src;
    size_t apart = to < from ? (size_t)(from - to) : (size_t)(to - from);
    if (bytes == 0 || apart == 0)
        return CTW_OK;
    if (to > from && apart < bytes)
        return ctw_fail(err, CTW_EINTERNAL, "cuda: an overlapping copy to a higher address");
    for (size_t at = 0; at < bytes; at += apart) {
        size_t n = bytes - at < apart ? bytes - at : apart;
        enum ctw_status st = ctw_cuda_check(
            cudaMemcpyAsync(to + at, from + at, n, cudaMemcpyDeviceToDevice, cuda_of(be)->stream),
            "copying", err);
        if (st != CTW_OK)
            return st;
    }
    return CTW_OK;
}

static enum ctw_status cuda_zero(struct ctw_backend *be, void *p, size_t bytes, struct ctw_err *err)
{
    return ctw_cuda_check(cudaMemsetAsync(p, 0, bytes, cuda_of(be)->stream), "zeroing", err);
}

static enum ctw_status cuda_sync(struct ctw_backend *be, struct ctw_err *err)
{
    return ctw_cuda_check(cudaStreamSynchronize(cuda_of(be)->stream), "running", err);
}

/* ---- opening ------------------------------------------------------------------------------ */

static void cuda_close(struct ctw_backend *be)
{
    struct ctw_cuda *cu = (struct ctw_cuda *)be;
    if (cu == NULL || cu->name[0] == '\0') { /* no GPU was selected: touch none */
        ctw_free(cu);
        return;
    }
    (void)cudaSetDevice(cu->device);
    (void)cudaDeviceSynchronize();
    cuda_trim(be);
    ctw_cuda_gemms_close(cu);
    (void)cudaFree(cu->ring.device);
    if (cu->ring.host != NULL)
        ctw_cuda_stage_free(&cu->backend, cu->ring.host);
    (void)cudaFree(cu->workspace);
    (void)cudaFree(cu->evens);
    if (cu->lt != NULL)
        (void)cublasLtDestroy(cu->lt);
    ctw_cuda_close_streams(cu);
    if (cu->lock != NULL)
        pthread_mutex_destroy((pthread_mutex_t *)cu->lock);
    ctw_free(cu->lock);
    ctw_free(cu);
    (void)cudaGetLastError();
}

/*
 * Everything that a score's last bit depends on, in addition to the version of our own code. nvcc
 * chooses instructions and supplies exp and similar functions. A GPU without its own code in this
 * library runs an older architecture's code, or code that the driver compiles from PTX.
 */
static void name_numerics(struct ctw_cuda *cu)
{
    char code[48] = "";
    int own = 10 * cu->major + cu->minor, driver = 0;
    if (cu->code != own) {
        snprintf(code, sizeof(code), "-code%d", cu->code);
    } else if (cu->ptx != own) {
        (void)cudaDriverGetVersion(&driver);
        snprintf(code, sizeof(code), "-ptx%d-driver%d", cu->ptx, driver);
    }
    snprintf(cu->numerics, sizeof(cu->numerics), "cuda-%s-sm%d-%d%s-nvcc%d.%d.%d-cublaslt%zu",
             cu->hopper ? "hopper" : "general", own, cu->n_sm, code, __CUDACC_VER_MAJOR__,
             __CUDACC_VER_MINOR__, __CUDACC_VER_BUILD__, cublasLtGetVersion());
}

static enum ctw_status make_evens(struct ctw_cuda *cu, struct ctw_err *err)
{
    int32_t *host = (int32_t *)ctw_calloc(CTW_CUDA_EVENS, sizeof(*host));
    if (host == NULL)
        return ctw_fail(err, CTW_ENOMEM, "cuda: out of memory");
    for (int i = 0; i < CTW_CUDA_EVENS; i++)
        host[i] = 2 * i;
    size_t bytes = CTW_CUDA_EVENS * sizeof(*host);
    enum ctw_status st = ctw_cuda_alloc(&cu->backend, (void **)&cu->evens, bytes, err);
    if (st == CTW_OK)
        st = cuda_upload(&cu->backend, cu->evens, host, bytes, err);
    ctw_free(host);
    return st;
}

static enum ctw_status open_all(struct ctw_cuda *cu, const struct ctw_backend_options *opt,
                                struct ctw_err *err)
{
    enum ctw_status st = ctw_cuda_find_device(cu, opt, err);
    if (st == CTW_OK)
        st = ctw_cuda_make_streams(cu, err);
    if (st == CTW_OK && (cu->lock = ctw_calloc(1, sizeof(pthread_mutex_t))) == NULL)
        st = ctw_fail(err, CTW_ENOMEM, "cuda: out of memory");
    if (st != CTW_OK)
        return st;
    pthread_mutex_init((pthread_mutex_t *)cu->lock, NULL);
    cu->ring.bytes = RING_BYTES;
    st = ctw_cuda_stage_alloc(&cu->backend, (void **)&cu->ring.host, RING_BYTES, err);
    if (st == CTW_OK)
        st = ctw_cuda_alloc(&cu->backend, (void **)&cu->ring.device, RING_BYTES, err);
    if (st == CTW_OK)
        st = ctw_cuda_alloc(&cu->backend, &cu->workspace, CTW_CUDA_WORKSPACE, err);
    if (st == CTW_OK)
        st = make_evens(cu, err);
    if (st == CTW_OK && cublasLtCreate(&cu->lt) != CUBLAS_STATUS_SUCCESS)
        st = ctw_fail(err, CTW_EDEVICE, "cuda: cuBLASLt does not initialise on %s", cu->name);
    if (st == CTW_OK)
        st = ctw_cuda_gemms_open(cu, err);
    if (st == CTW_OK)
        name_numerics(cu);
    return st;
}

static enum ctw_status cuda_open(struct ctw_backend **out, const struct ctw_backend_options *opt,
                                 struct ctw_err *err)
{
    struct ctw_cuda *cu = (struct ctw_cuda *)ctw_calloc(1, sizeof(*cu));
    if (cu == NULL)
        return ctw_fail(err, CTW_ENOMEM, "cuda: out of memory");
    extern const struct ctw_backend_ops ctw_backend_cuda;
    cu->backend.ops = &ctw_backend_cuda;
    enum ctw_status st = open_all(cu, opt, err);
    if (st != CTW_OK) {
        cuda_close(&cu->backend);
        return st;
    }
    *out = &cu->backend;
    return CTW_OK;
}

/*
 * Tensor cores' operations with 16-bit operands and fp32 sums, per multiprocessor and cycle, by
 * NVIDIA's architecture papers; of these, products of a model's shapes reach about 0.6 (H200: 640 of
 * 1070 TFLOP/s).
 */
static double about_flops(const struct ctw_cuda *cu)
{
    double per_cycle = cu->major == 9                       ? 4096
                       : cu->major == 10                    ? 8192
                       : cu->major == 8 && cu->minor == 0 ? 2048
                       : strstr(cu->name, "GeForce") != NULL ? 512 /* half, with fp32 sums */
                                                            : 1024;
    return 0.6 * per_cycle * cu->n_sm * cu->clock_khz * 1e3;
}

static void cuda_info(const struct ctw_backend *be, struct ctw_backend_info *out)
{
    const struct ctw_cuda *cu = cuda_of(be);
    out->backend = "cuda";
    out->variant = cu->hopper ? "hopper" : "general";
    memcpy(out->device, cu->name, sizeof(out->device));
    memcpy(out->numerics, cu->numerics, sizeof(out->numerics));
    memcpy(out->pci, cu->pci, sizeof(out->pci));
    memcpy(out->uuid, cu->uuid, sizeof(out->uuid));
    out->memory_total = cu->memory_total;
    out->flops = about_flops(cu);
}

static void cuda_describe(const struct ctw_backend *be, char *buf, size_t cap)
{
    (void)ctw_cuda_gemms_describe(cuda_of(be), buf, cap);
}

/* ---- scratch ------------------------------------------------------------------------------ */

static size_t cuda_scratch_bytes(const struct ctw_backend *be, const struct ctw_reserve *r)
{
    return ctw_gpu_scratch_bytes(cuda_of(be)->hopper, r);
}

static int64_t cuda_head_rows(const struct ctw_backend *be, enum ctw_dtype dtype, int64_t k,
                              bool plain)
{
    return ctw_gpu_head_rows(cuda_of(be)->hopper, dtype, k, plain);
}

static enum ctw_status cuda_reserve(struct ctw_backend *be, const struct ctw_reserve *r,
                                    struct ctw_err *err)
{
    struct ctw_cuda *cu = cuda_of(be);
    enum ctw_status st = CTW_OK;
    for (int s = 0; st == CTW_OK && s < CTW_N_SLOTS; s++) {
        cu->slot[s].n_shards = 0;
        st = ctw_cuda_grow(cu, &cu->slot[s].w, ctw_gpu_slot_bytes(r, s), err);
    }
    if (st == CTW_OK)
        st = ctw_cuda_grow(cu, &cu->scratch[CTW_CUDA_PRODUCT],
                           ctw_gpu_operation_bytes(cu->hopper, r), err);
    if (st == CTW_OK)
        st = ctw_cuda_grow(cu, &cu->scratch[CTW_CUDA_ROWS], ctw_gpu_rows_scratch(r), err);
    return st;
}

/* ---- the table ---------------------------------------------------------------------------- */

#define OPERATION(name)                                                                            \
    static enum ctw_status cuda_##name(struct ctw_backend *be, const struct ctw_op_##name *op,     \
                                       struct ctw_err *err)                                        \
    {                                                                                              \
        return ctw_cuda_##name(cuda_of(be), op, err);                                             \
    }
CTW_OPERATIONS(OPERATION)
OPERATION(linear)
#undef OPERATION

static enum ctw_status cuda_linear_qkv(struct ctw_backend *be, const struct ctw_op_linear *op,
                                       const struct ctw_op_qkv *qkv, bool *done,
                                       struct ctw_err *err)
{
    return ctw_cuda_linear_qkv(cuda_of(be), op, qkv, done, err);
}

static enum ctw_status cuda_linear_act(struct ctw_backend *be, const struct ctw_op_linear *op,
                                       const struct ctw_op_act *act, bool *done, struct ctw_err *err)
{
    return ctw_cuda_linear_act(cuda_of(be), op, act, done, err);
}

static enum ctw_status cuda_linear_pair(struct ctw_backend *be, const struct ctw_op_linear *gathered,
                                        const struct ctw_op_act *act,
                                        const struct ctw_op_linear *scattered, bool *done,
                                        struct ctw_err *err)
{
    return ctw_cuda_linear_pair(cuda_of(be), gathered, act, scattered, done, err);
}

static enum ctw_status cuda_norm_act(struct ctw_backend *be, const struct ctw_op_norm *norm,
                                     const struct ctw_op_act *act, bool *done, struct ctw_err *err)
{
    return ctw_cuda_norm_act(cuda_of(be), norm, act, done, err);
}

static enum ctw_status cuda_prepare(struct ctw_backend *be, const struct ctw_op_linear *op,
                                    struct ctw_err *err)
{
    return ctw_cuda_prepare(cuda_of(be), op, err);
}

#define ROW(name) cuda_##name,
extern const struct ctw_backend_ops ctw_backend_cuda;
const struct ctw_backend_ops ctw_backend_cuda = {
    "cuda",
    {/* host_memory */ false,
     /* chunk_tokens */ CTW_GPU_CHUNK,
     /* pass_tokens */ CTW_GPU_PASS,
     /* mixture_pass_tokens */ CTW_GPU_PASS,
     /* pass_flops */ CTW_GPU_PASS_FLOPS,
     /* decodes_ahead */ true},
    ctw_cuda_count,
    ctw_cuda_uuid,
    cuda_open,
    cuda_close,
    cuda_info,
    cuda_describe,
    cuda_scratch_bytes,
    cuda_head_rows,
    cuda_reserve,
    cuda_trim,
    cuda_memory_free,
    ctw_cuda_alloc,
    cuda_free,
    cuda_upload,
    cuda_download,
    cuda_copy,
    cuda_zero,
    cuda_sync,
    ctw_cuda_stage_alloc,
    ctw_cuda_stage_free,
    ctw_cuda_upload_begin,
    ctw_cuda_peer_begin,
    ctw_cuda_peer_link,
    ctw_cuda_upload_wait,
    ctw_cuda_upload_join,
    ctw_cuda_fence_record,
    ctw_cuda_fence_wait,
    cuda_prepare,
    cuda_linear,
    cuda_linear_qkv,
    cuda_linear_act,
    cuda_linear_pair,
    cuda_norm_act,
    CTW_OPERATIONS(ROW)
};

extern "C" __attribute__((visibility("default"))) const char *ctw_cuda_contract(void)
{
    return CTW_CONTRACT;
}

extern "C" __attribute__((visibility("default"))) const struct ctw_backend_ops *ctw_cuda_ops(void)
{
    return &ctw_backend_cuda;
}
