/* Selects the GPU and the variant of the kernels; creates the streams and events of operations. */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/gpu_visible.h"

enum { MIN_MAJOR = 8 }; /* compute capability */

/* Compiled for the same architectures as every kernel here except *_hopper.cu; never launched. */
static __global__ void any_kernel(void)
{
}

/* Makes p's GPU current for the calling thread. CTW_EUNSUP: this library has no code for that GPU. */
static enum ctw_status take(struct ctw_cuda *cu, const cudaDeviceProp *p, int device,
                            struct ctw_err *err)
{
    cudaFuncAttributes found;
    enum ctw_status st = ctw_cuda_check(cudaSetDevice(device), "selecting GPU", err);
    if (st != CTW_OK)
        return st;
    cudaError_t e = cudaFuncGetAttributes(&found, any_kernel);
    if (e == cudaSuccess) {
        cu->code = found.binaryVersion;
        cu->ptx = found.ptxVersion;
        return CTW_OK;
    }
    (void)cudaGetLastError();
    if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction ||
        e == cudaErrorUnsupportedPtxVersion || e == cudaErrorInvalidPtx ||
        e == cudaErrorJitCompilerNotFound || e == cudaErrorJitCompilationDisabled) {
        (void)cudaDeviceReset(); /* without this GPU, its memory must not stay in use */
        return ctw_fail(err, CTW_EUNSUP,
                        "no GPU: %s has compute capability %d.%d, and this build is for "
                        CTW_CUDA_BUILT_FOR " (%s): build with -DCTW_CUDA_ARCHITECTURES=\"%d%d;90a\"",
                        p->name, p->major, p->minor, cudaGetErrorString(e), p->major, p->minor);
    }
    return ctw_cuda_check(e, "loading kernels", err);
}

enum ctw_status ctw_cuda_count(int *n, struct ctw_err *err)
{
    *n = 0;
    cudaError_t e = cudaGetDeviceCount(n);
    if (e == cudaErrorInsufficientDriver) {
        int has = 0, needs = 0;
        (void)cudaDriverGetVersion(&has);
        (void)cudaRuntimeGetVersion(&needs);
        return ctw_fail(err, CTW_EUNSUP,
                        has == 0 ? "no GPU: there is no NVIDIA driver"
                                 : "no GPU: the NVIDIA driver is for CUDA %d.%d, this program needs "
                                   "%d.%d: update the driver",
                        has / 1000, has % 1000 / 10, needs / 1000, needs % 1000 / 10);
    }
    if (e == cudaErrorStubLibrary || e == cudaErrorCompatNotSupportedOnDevice)
        return ctw_fail(err, CTW_EUNSUP, "no GPU: the driver's library is unusable: %s",
                        cudaGetErrorString(e));
    if (e == cudaErrorNoDevice || (e == cudaSuccess && *n == 0))
        return ctw_gpu_none(err);
    if (e != cudaSuccess)
        return ctw_fail(err, CTW_EDEVICE,
                        "cuda: looking for GPUs: %s: %s (check nvidia-smi; --backend cpu needs no "
                        "GPU)",
                        cudaGetErrorName(e), cudaGetErrorString(e));
    return CTW_OK;
}

static bool is_mig(const cudaDeviceProp *p)
{
    return strstr(p->name, " MIG ") != NULL;
}

static void name_uuid(const cudaDeviceProp *p, char out[48])
{
    const unsigned char *b = (const unsigned char *)p->uuid.bytes;
    size_t n = (size_t)snprintf(out, 48, "%s", is_mig(p) ? "MIG" : "GPU");
    for (int i = 0; i < 16; i++)
        n += (size_t)snprintf(out + n, 48 - n, "%s%02x",
                              i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", b[i]);
}

static void name_place(struct ctw_cuda *cu, const cudaDeviceProp *p)
{
    snprintf(cu->pci, sizeof(cu->pci), "%08X:%02X:%02X.0", (unsigned)p->pciDomainID,
             (unsigned)p->pciBusID & 0xff, (unsigned)p->pciDeviceID & 0xff);
    name_uuid(p, cu->uuid);
}

enum ctw_status ctw_cuda_uuid(int device, char out[48], struct ctw_err *err)
{
    cudaDeviceProp p;
    enum ctw_status st = ctw_cuda_check(cudaGetDeviceProperties(&p, device), "querying GPU", err);
    if (st == CTW_OK)
        name_uuid(&p, out);
    return st;
}

/* Is there a usable GPU? CTW_EUNSUP gives the reason if not; a broken GPU is a different error.
 * On success the GPU is current for the calling thread. */
static enum ctw_status find(struct ctw_cuda *cu, const struct ctw_backend_options *opt,
                            struct ctw_err *err)
{
    int n;
    enum ctw_status st = ctw_cuda_count(&n, err);
    if (st != CTW_OK)
        return st;
    cudaDeviceProp p;
    bool seen = opt->device >= 0 && opt->device < n;
    if (!seen && n == 1 && cudaGetDeviceProperties(&p, 0) == cudaSuccess)
        return ctw_gpu_missing(opt->device, n, is_mig(&p), err);
    if (!seen)
        return ctw_gpu_missing(opt->device, n, false, err);
    st = ctw_cuda_check(cudaGetDeviceProperties(&p, opt->device), "querying GPU", err);
    if (st != CTW_OK)
        return st;
    if (p.major < MIN_MAJOR)
        return ctw_fail(err, CTW_EUNSUP,
                        "no GPU: %s has compute capability %d.%d; 8.0 or newer is needed", p.name,
                        p.major, p.minor);
    st = take(cu, &p, opt->device, err);
    if (st != CTW_OK)
        return st;
    cu->device = opt->device;
    cu->n_sm = p.multiProcessorCount;
    (void)cudaDeviceGetAttribute(&cu->clock_khz, cudaDevAttrClockRate, opt->device);
    cu->major = p.major;
    cu->minor = p.minor;
    cu->memory_total = p.totalGlobalMem;
    cu->can_register = p.hostRegisterSupported != 0;
    snprintf(cu->name, sizeof(cu->name), "%.95s", p.name);
    name_place(cu, &p);
    return CTW_OK;
}

static enum ctw_status choose_variant(struct ctw_cuda *cu, const char *name, struct ctw_err *err)
{
    bool can = cu->major == 9 && cu->minor == 0;
    if (name != NULL && strcmp(name, "general") != 0 && strcmp(name, "hopper") != 0)
        return ctw_fail(err, CTW_EINVAL, "cuda variant \"%s\" is unknown; expected general or hopper",
                        name);
    if (name != NULL && strcmp(name, "hopper") == 0 && !can)
        return ctw_fail(err, CTW_EINVAL,
                        "cuda variant \"hopper\" does not run on %s; this machine has: general",
                        cu->name);
    cu->hopper = can && (name == NULL || strcmp(name, "hopper") == 0);
    return CTW_OK;
}

enum ctw_status ctw_cuda_find_device(struct ctw_cuda *cu, const struct ctw_backend_options *opt,
                                     struct ctw_err *err)
{
    enum ctw_status st = find(cu, opt, err);
    return st != CTW_OK ? st : choose_variant(cu, opt->cuda_variant, err);
}

enum { N_STREAMS = 4, N_EVENTS = CTW_CUDA_TICKETS + 2 * CTW_CUDA_FENCES + 2 * CTW_N_SLOTS + 6 };

static void list_streams(struct ctw_cuda *cu, cudaStream_t *(&streams)[N_STREAMS],
                         cudaEvent_t *(&events)[N_EVENTS])
{
    cudaStream_t *all[N_STREAMS] = {&cu->stream, &cu->ahead, &cu->copy, &cu->tables};
    size_t n = 0;
    memcpy(streams, all, sizeof(all));
    for (int i = 0; i < CTW_CUDA_TICKETS; i++)
        events[n++] = &cu->ticket[i];
    for (int i = 0; i < CTW_CUDA_FENCES; i++) {
        events[n++] = &cu->fence[i].stream;
        events[n++] = &cu->fence[i].ahead;
    }
    for (int i = 0; i < CTW_N_SLOTS; i++) {
        events[n++] = &cu->slot[i].ready;
        events[n++] = &cu->slot[i].unused;
    }
    for (int i = 0; i < 4; i++)
        events[n++] = &cu->ring.freed[i];
    events[n++] = &cu->ring.arrived;
    events[n++] = &cu->joined;
}

enum ctw_status ctw_cuda_make_streams(struct ctw_cuda *cu, struct ctw_err *err)
{
    cudaStream_t *streams[N_STREAMS];
    cudaEvent_t *events[N_EVENTS];
    enum ctw_status st = CTW_OK;
    list_streams(cu, streams, events);
    for (int i = 0; st == CTW_OK && i < N_STREAMS; i++)
        st = ctw_cuda_check(cudaStreamCreateWithFlags(streams[i], cudaStreamNonBlocking),
                            "opening a stream", err);
    for (int i = 0; st == CTW_OK && i < N_EVENTS; i++)
        st = ctw_cuda_check(
            cudaEventCreateWithFlags(events[i], cudaEventDisableTiming | cudaEventBlockingSync),
            "opening an event", err);
    return st;
}

void ctw_cuda_close_streams(struct ctw_cuda *cu)
{
    cudaStream_t *streams[N_STREAMS];
    cudaEvent_t *events[N_EVENTS];
    list_streams(cu, streams, events);
    for (int i = 0; i < N_EVENTS; i++)
        if (*events[i] != NULL)
            (void)cudaEventDestroy(*events[i]);
    for (int i = 0; i < N_STREAMS; i++)
        if (*streams[i] != NULL)
            (void)cudaStreamDestroy(*streams[i]);
}
