/*
 * Uploads to the GPU. Weights, from any thread: stages, which are host memory that the GPU reads
 * directly; uploads from stages on a separate stream; fences, after which a stage's memory is free.
 * Small tables of operations.
 */
#include "kernels/cuda/cuda.h"

#include <pthread.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

/* *out: memory whose pages have all been touched, and which is now pinned, for every GPU. */
static cudaError_t lock_pages(void **out, size_t bytes)
{
    const size_t least = (size_t)4 << 20; /* smaller blocks might share a page: pinned twice */
    const size_t page = 4 << 10;
    char *p = (char *)ctw_alloc_aligned(bytes > least ? bytes : least);
    if (p == NULL)
        return cudaErrorMemoryAllocation;
    for (size_t i = 0; i < bytes; i += page)
        *(volatile char *)(p + i) = 0;
    cudaError_t e = cudaHostRegister(p, bytes, cudaHostRegisterPortable);
    if (e == cudaSuccess)
        *out = p;
    else
        ctw_free_aligned(p);
    return e;
}

/* Uses pages of 2 MiB if the system has them: the driver pins 8 MiB of them in 0.7 ms, in
 * several threads at a time. cudaMallocHost takes 4 ms, one thread after another; it is for GPUs
 * that cannot pin them. */
enum ctw_status ctw_cuda_stage_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                     struct ctw_err *err)
{
    struct ctw_cuda *cu = ctw_cuda_of(be);
    cudaError_t e = cu->can_register ? lock_pages(out, bytes) : cudaMallocHost(out, bytes);
    if (e != cudaErrorMemoryAllocation)
        return ctw_cuda_check(e, "allocating host memory", err);
    (void)cudaGetLastError();
    return ctw_fail(err, CTW_ENOMEM, "cuda: no pinned host memory for %zu MiB",
                    bytes >> 20);
}

void ctw_cuda_stage_free(struct ctw_backend *be, void *p)
{
    struct ctw_cuda *cu = ctw_cuda_of(be);
    if (!cu->can_register)
        (void)cudaFreeHost(p);
    else if (cudaHostUnregister(p) == cudaSuccess) /* otherwise the GPU may still read it */
        ctw_free_aligned(p);
}

enum ctw_status ctw_cuda_upload_begin(struct ctw_backend *be, void *dst, const void *stage, size_t bytes,
                                      uint64_t *ticket, struct ctw_err *err)
{
    struct ctw_cuda *cu = ctw_cuda_of(be);
    pthread_mutex_t *lock = (pthread_mutex_t *)cu->lock;
    pthread_mutex_lock(lock);
    enum ctw_status st =
        ctw_cuda_check(cudaMemcpyAsync(dst, stage, bytes, cudaMemcpyHostToDevice, cu->copy),
                       "uploading weights", err);
    *ticket = cu->n_tickets;
    if (st == CTW_OK)
        st = ctw_cuda_check(
            cudaEventRecord(cu->ticket[cu->n_tickets++ % CTW_CUDA_TICKETS], cu->copy),
            "uploading weights", err);
    pthread_mutex_unlock(lock);
    return st;
}

/* NVLink is faster than PCIe, the host's own link: only there are atomic operations the memory's own. */
enum ctw_link ctw_cuda_peer_link(struct ctw_backend *be, struct ctw_backend *from)
{
    const struct ctw_cuda *cu = ctw_cuda_of(be), *peer = (const struct ctw_cuda *)from;
    int direct = 0, by_nvlink = 0;
    if (cu->device == peer->device)
        return CTW_LINK_DIRECT;
    (void)cudaDeviceCanAccessPeer(&direct, cu->device, peer->device);
    (void)cudaDeviceGetP2PAttribute(&by_nvlink, cudaDevP2PAttrNativeAtomicSupported, cu->device,
                                    peer->device);
    (void)cudaGetLastError();
    return !direct ? CTW_LINK_HOST : by_nvlink ? CTW_LINK_FASTER : CTW_LINK_DIRECT;
}

/*
 * Lets the copy engines read the other GPU's memory directly, the first time that it is asked for.
 * If the two GPUs have no path, cudaMemcpyPeerAsync() copies through the host by itself. Under
 * lock.
 */
static void allow_peer(struct ctw_cuda *cu, const struct ctw_cuda *from)
{
    uint64_t bit = (uint64_t)1 << from->device % 64, *asked = &cu->peers_asked[from->device / 64];
    if (from->device == cu->device || (*asked & bit) != 0)
        return;
    *asked |= bit;
    bool can = ctw_cuda_peer_link(&cu->backend, (struct ctw_backend *)&from->backend) != CTW_LINK_HOST;
    if (can)
        (void)cudaDeviceEnablePeerAccess(from->device, 0);
    (void)cudaGetLastError(); /* another backend of this GPU may have enabled it */
    ctw_debug("GPU %d copies from GPU %d %s", cu->device, from->device,
              can ? "directly" : "through the host");
}

enum ctw_status ctw_cuda_peer_begin(struct ctw_backend *be, void *dst, struct ctw_backend *from,
                                    const void *src, size_t bytes, uint64_t *ticket,
                                    struct ctw_err *err)
{
    struct ctw_cuda *cu = ctw_cuda_of(be);
    const struct ctw_cuda *peer = (const struct ctw_cuda *)from;
    pthread_mutex_t *lock = (pthread_mutex_t *)cu->lock;
    pthread_mutex_lock(lock);
    allow_peer(cu, peer);
    cudaError_t e =
        peer->device == cu->device
            ? cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, cu->copy)
            : cudaMemcpyPeerAsync(dst, cu->device, src, peer->device, bytes, cu->copy);
    enum ctw_status st = ctw_cuda_check(e, "copying from another GPU", err);
    *ticket = cu->n_tickets;
    if (st == CTW_OK)
        st = ctw_cuda_check(
            cudaEventRecord(cu->ticket[cu->n_tickets++ % CTW_CUDA_TICKETS], cu->copy),
            "copying from another GPU", err);
    pthread_mutex_unlock(lock);
    return st;
}

/* A ticket's event may since have been recorded again for a later upload of the same stream;
 * waiting for the later upload is sufficient, and is avoided for a ticket that was waited for. */
enum ctw_status ctw_cuda_upload_wait(struct ctw_backend *be, uint64_t ticket, struct ctw_err *err)
{
    struct ctw_cuda *cu = ctw_cuda_of(be);
    pthread_mutex_t *lock = (pthread_mutex_t *)cu->lock;
    cudaEvent_t event = cu->ticket[ticket % CTW_CUDA_TICKETS];
    pthread_mutex_lock(lock);
    bool has_ended = ticket < cu->n_ended;
    pthread_mutex_unlock(lock);
    cudaError_t e = has_ended ? cudaEventQuery(event) : cudaEventSynchronize(event);
    if (e == cudaErrorNotReady) { /* the later upload; the GPU is well */
        (void)cudaGetLastError();
        e = cudaSuccess;
    }
    enum ctw_status st = ctw_cuda_check(e, "uploading weights", err);
    pthread_mutex_lock(lock);
    if (st == CTW_OK && ticket >= cu->n_ended)
        cu->n_ended = ticket + 1;
    pthread_mutex_unlock(lock);
    return st;
}

enum ctw_status ctw_cuda_upload_join(struct ctw_backend *be, struct ctw_err *err)
{
    struct ctw_cuda *cu = ctw_cuda_of(be);
    enum ctw_status st = ctw_cuda_check(cudaEventRecord(cu->joined, cu->copy), "uploading", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaStreamWaitEvent(cu->stream, cu->joined, 0), "uploading", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaStreamWaitEvent(cu->ahead, cu->joined, 0), "uploading", err);
    return st;
}

/* Both streams: a weight decoded ahead may not have been used by an operation since. */
enum ctw_status ctw_cuda_fence_record(struct ctw_backend *be, uint64_t *fence, struct ctw_err *err)
{
    struct ctw_cuda *cu = ctw_cuda_of(be);
    uint64_t i = cu->n_fences % CTW_CUDA_FENCES;
    enum ctw_status st = ctw_cuda_check(cudaEventRecord(cu->fence[i].ahead, cu->ahead), "running", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaEventRecord(cu->fence[i].stream, cu->stream), "running", err);
    if (st == CTW_OK)
        *fence = cu->n_fences++;
    return st;
}

/* As with tickets, the events may since belong to a later fence; waiting for that fence is
 * sufficient. */
enum ctw_status ctw_cuda_fence_wait(struct ctw_backend *be, uint64_t fence, struct ctw_err *err)
{
    struct ctw_cuda *cu = ctw_cuda_of(be);
    uint64_t i = fence % CTW_CUDA_FENCES;
    enum ctw_status st = ctw_cuda_check(cudaEventSynchronize(cu->fence[i].ahead), "running", err);
    return st != CTW_OK ? st : ctw_cuda_check(cudaEventSynchronize(cu->fence[i].stream), "running", err);
}

/* ---- small tables ------------------------------------------------------------------------- */

enum ctw_status ctw_cuda_table(struct ctw_cuda *cu, const void *host, size_t bytes, void **device,
                               struct ctw_err *err)
{
    struct ctw_cuda_ring *r = &cu->ring;
    size_t quarter = r->bytes / 4, need = (bytes + 255) & ~(size_t)255;
    enum ctw_status st = CTW_OK;
    if (need > quarter)
        return ctw_fail(err, CTW_EINTERNAL, "cuda: a table of %zu bytes", bytes);
    if (r->at + need > (size_t)(r->quarter + 1) * quarter) {
        /* This quarter is full: record an event behind its readers, and wait for the next
         * quarter's readers. */
        st = ctw_cuda_check(cudaEventRecord(r->freed[r->quarter], cu->stream), "running", err);
        r->quarter = (r->quarter + 1) % 4;
        r->at = (size_t)r->quarter * quarter;
        if (st == CTW_OK)
            st = ctw_cuda_check(cudaEventSynchronize(r->freed[r->quarter]), "running", err);
    }
    if (st != CTW_OK)
        return st;
    memcpy(r->host + r->at, host, bytes);
    *device = r->device + r->at;
    /* Not on the operations' stream: 10 us would pass between two kernels. */
    st = ctw_cuda_check(
        cudaMemcpyAsync(*device, r->host + r->at, bytes, cudaMemcpyHostToDevice, cu->tables),
        "uploading", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaEventRecord(r->arrived, cu->tables), "uploading", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaStreamWaitEvent(cu->stream, r->arrived, 0), "uploading", err);
    r->at += need;
    return st;
}
