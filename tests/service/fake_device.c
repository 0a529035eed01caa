/*
 * A backend for tests, loaded in place of the CUDA backend (CTWORKER_CUDA_LIBRARY). It computes
 * with the CPU backend's kernels, so its scores equal the CPU's bit for bit, but it behaves like a
 * GPU: separate memory, uploads that take time, weights announced in advance, faults. --cpu-variant
 * and --threads choose the kernels; --cuda-variant and --device have the same meaning as for a GPU.
 * The backend checks that the operands of every operation lie in the memory that they claim to be
 * in. fake_device_gpu.h describes how to make the backend fail.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fake_device_gpu.h"
#include "fake_device_operands.h"
#include "fake_device_slots.h"
#include "kernels/backend.h"
#include "kernels/contract.h"

struct fake {
    struct ctw_backend backend; /* first: a struct ctw_backend * is a struct fake * */
    struct ctw_backend *cpu;
    struct gpu *gpu;
    int device;
    char variant[16];
    uint64_t joined;  /* uploads before this ticket precede the next operation */
    uint64_t scratch; /* bytes taken by reserve() */
    struct slot slot[CTW_N_SLOTS];
    uint64_t n_linear, n_prepared, n_trims;
};

static const struct ctw_backend_ops fake_ops; /* at the end */

static struct fake *fake_of(struct ctw_backend *be)
{
    return (struct fake *)be;
}

/* ---- opening ------------------------------------------------------------------------------ */

static void fake_close(struct ctw_backend *be)
{
    struct fake *f = fake_of(be);
    for (int i = 0; i < CTW_N_SLOTS; i++)
        slot_empty(&f->slot[i]);
    ctw_backend_cpu.close(f->cpu);
    gpu_give(f->gpu, f->scratch);
    gpu_close(f->gpu);
    ctw_free(f);
}

static enum ctw_status fake_open(struct ctw_backend **out, const struct ctw_backend_options *opt,
                                 struct ctw_err *err)
{
    struct fake *f = ctw_calloc(1, sizeof(*f));
    if (f == NULL)
        return ctw_fail(err, CTW_ENOMEM, "fake: out of memory");
    f->backend.ops = &fake_ops;
    f->device = opt->device;
    snprintf(f->variant, sizeof(f->variant), "%s",
             opt->cuda_variant == NULL ? "hopper" : opt->cuda_variant);
    enum ctw_status st = ctw_backend_cpu.open(&f->cpu, opt, err);
    if (st == CTW_OK) {
        st = gpu_open(&f->gpu, opt->device, err);
        if (st != CTW_OK)
            ctw_backend_cpu.close(f->cpu);
    }
    if (st != CTW_OK) {
        ctw_free(f);
        return st;
    }
    *out = &f->backend;
    return CTW_OK;
}

static enum ctw_status fake_uuid(int device, char out[48], struct ctw_err *err)
{
    (void)err;
    snprintf(out, 48, "GPU-%08x-0000-0000-0000-000000000000", device);
    return CTW_OK;
}

static void fake_info(const struct ctw_backend *be, struct ctw_backend_info *out)
{
    const struct fake *f = (const struct fake *)be;
    ctw_backend_cpu.info(f->cpu, out);
    snprintf(out->numerics, sizeof(out->numerics), "fake-%s%.*d", out->variant,
             gpu_kind(f->gpu) > 0, gpu_kind(f->gpu));
    snprintf(out->device, sizeof(out->device), "fake GPU %d", f->device);
    snprintf(out->pci, sizeof(out->pci), "00000000:%02X:00.0", 0x10 + f->device);
    (void)fake_uuid(f->device, out->uuid, NULL);
    out->backend = "cuda";
    out->variant = f->variant;
    out->n_threads = 0;
    out->memory_total = gpu_memory_total(f->gpu);
}

static void fake_describe(const struct ctw_backend *be, char *buf, size_t cap)
{
    const struct fake *f = (const struct fake *)be;
    int n = snprintf(buf, cap, "products %llu\nprepared %llu\ntrims %llu\n",
                     (unsigned long long)f->n_linear, (unsigned long long)f->n_prepared,
                     (unsigned long long)f->n_trims);
    if (n >= 0 && (size_t)n < cap)
        gpu_describe(f->gpu, buf + n, cap - (size_t)n);
}

/* ---- memory ------------------------------------------------------------------------------- */

static size_t fake_scratch_bytes(const struct ctw_backend *be, const struct ctw_reserve *r)
{
    size_t bytes = (size_t)(r->n_tok * r->max_n) * ctw_dtype_bytes(r->dtype);
    (void)be;
    for (int s = 0; s < CTW_N_SLOTS; s++)
        bytes += (size_t)r->slot_elems[s] * ctw_dtype_bytes(r->dtype);
    return bytes;
}

static enum ctw_status fake_reserve(struct ctw_backend *be, const struct ctw_reserve *r,
                                    struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    size_t bytes = fake_scratch_bytes(be, r);
    if (bytes <= f->scratch)
        return CTW_OK;
    enum ctw_status st = gpu_take(f->gpu, bytes - f->scratch, err);
    if (st == CTW_OK)
        f->scratch = bytes;
    return st;
}

static void fake_trim(struct ctw_backend *be)
{
    struct fake *f = fake_of(be);
    gpu_give(f->gpu, f->scratch);
    f->scratch = 0;
    for (int i = 0; i < CTW_N_SLOTS; i++)
        slot_empty(&f->slot[i]);
    f->n_trims++;
}

static uint64_t fake_memory_free(const struct ctw_backend *be)
{
    return gpu_memory_free(((const struct fake *)be)->gpu);
}

static enum ctw_status fake_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                  struct ctw_err *err)
{
    return gpu_alloc(fake_of(be)->gpu, out, bytes, err);
}

static void fake_free(struct ctw_backend *be, void *p)
{
    gpu_free(fake_of(be)->gpu, p);
}

static enum ctw_status fake_sync(struct ctw_backend *be, struct ctw_err *err)
{
    return gpu_sync(fake_of(be)->gpu, fake_of(be)->joined, err);
}

static enum ctw_status fake_upload(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                   struct ctw_err *err)
{
    const struct fake *f = fake_of(be);
    gpu_check_write(f->gpu, dst, bytes, "upload: the target");
    gpu_check_host(f->gpu, src, "upload: the source");
    enum ctw_status st = fake_sync(be, err);
    if (st == CTW_OK && bytes > 0)
        memcpy(dst, src, bytes);
    return st;
}

static enum ctw_status fake_download(struct ctw_backend *be, void *dst, const void *src,
                                     size_t bytes, struct ctw_err *err)
{
    const struct fake *f = fake_of(be);
    gpu_check_host(f->gpu, dst, "download: the target");
    gpu_check(f->gpu, src, bytes, "download: the source");
    enum ctw_status st = fake_sync(be, err);
    if (st == CTW_OK && bytes > 0)
        memcpy(dst, src, bytes);
    return st;
}

static enum ctw_status fake_copy(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                 struct ctw_err *err)
{
    const struct fake *f = fake_of(be);
    bool lost;
    gpu_check_write(f->gpu, dst, bytes, "copy: the target");
    gpu_check(f->gpu, src, bytes, "copy: the source");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    if (st == CTW_OK && !lost && bytes > 0)
        memmove(dst, src, bytes);
    return st;
}

static enum ctw_status fake_zero(struct ctw_backend *be, void *p, size_t bytes, struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    bool lost;
    gpu_check_write(f->gpu, p, bytes, "zero: the target");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.zero(f->cpu, p, bytes, err);
}

/* ---- uploads of other threads ------------------------------------------------------------- */

static enum ctw_status fake_stage_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                        struct ctw_err *err)
{
    return gpu_stage_alloc(fake_of(be)->gpu, out, bytes, err);
}

static void fake_stage_free(struct ctw_backend *be, void *p)
{
    gpu_stage_free(fake_of(be)->gpu, p);
}

static enum ctw_status fake_upload_begin(struct ctw_backend *be, void *dst, const void *stage,
                                         size_t bytes, uint64_t *ticket, struct ctw_err *err)
{
    return gpu_upload_begin(fake_of(be)->gpu, dst, stage, bytes, ticket, err);
}

static enum ctw_status fake_peer_begin(struct ctw_backend *be, void *dst, struct ctw_backend *from,
                                       const void *src, size_t bytes, uint64_t *ticket,
                                       struct ctw_err *err)
{
    return gpu_peer_begin(fake_of(be)->gpu, dst, fake_of(from)->gpu, src, bytes, ticket, err);
}

static enum ctw_link fake_peer_link(struct ctw_backend *be, struct ctw_backend *from)
{
    return gpu_link(fake_of(be)->gpu, fake_of(from)->gpu);
}

static enum ctw_status fake_upload_wait(struct ctw_backend *be, uint64_t ticket,
                                        struct ctw_err *err)
{
    return gpu_upload_wait(fake_of(be)->gpu, ticket, err);
}

static enum ctw_status fake_upload_join(struct ctw_backend *be, struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    f->joined = gpu_uploads_begun(f->gpu);
    return gpu_sync(f->gpu, 0, err);
}

static enum ctw_status fake_fence_record(struct ctw_backend *be, uint64_t *fence,
                                         struct ctw_err *err)
{
    return gpu_fence_record(fake_of(be)->gpu, fence, err);
}

static enum ctw_status fake_fence_wait(struct ctw_backend *be, uint64_t fence, struct ctw_err *err)
{
    return gpu_fence_wait(fake_of(be)->gpu, fence, err);
}

/* ---- weights ------------------------------------------------------------------------------ */

static enum ctw_status fake_prepare(struct ctw_backend *be, const struct ctw_op_linear *op,
                                    struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    struct slot *slot = &f->slot[op->slot];
    bool lost;
    slot_empty(slot);
    for (int i = 0; i < op->n_shards; i++)
        fake_read_shard(f->gpu, &op->shards[i], "prepare: a weight");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    if (st != CTW_OK || lost)
        return st;
    return slot_fill(slot, op, err);
}

static enum ctw_status fake_linear(struct ctw_backend *be, const struct ctw_op_linear *op,
                                   struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    struct ctw_shard shards[CTW_MAX_SHARDS];
    int64_t n = 0;
    const struct slot *slot = &f->slot[op->slot];
    bool lost, prepared = slot_has(slot, op);
    for (int i = 0; i < op->n_shards; i++) {
        if (!prepared || ctw_weight_is_dense(op->shards[i].weight))
            fake_read_shard(f->gpu, &op->shards[i], "linear: a weight");
        else
            fake_read_bias(f->gpu, &op->shards[i], "linear: a bias");
        n += op->shards[i].n;
    }
    n = op->epilogue == CTW_EPI_GATE ? n / 2 : n;
    fake_check_product(f->gpu, op, n);
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    if (st != CTW_OK || lost)
        return st;
    f->n_linear++;
    f->n_prepared += prepared;
    if (!prepared)
        return ctw_backend_cpu.linear(f->cpu, op, err);
    const struct ctw_op_linear own = slot_product(slot, op, shards);
    return ctw_backend_cpu.linear(f->cpu, &own, err);
}

/* ---- the other operations ----------------------------------------------------------------- */

#define OPERATION(name)                                                                            \
    static enum ctw_status fake_##name(struct ctw_backend *be, const struct ctw_op_##name *op,     \
                                       struct ctw_err *err)                                        \
    {                                                                                              \
        struct fake *f = fake_of(be);                                                              \
        bool lost;                                                                                 \
        fake_check_##name(f->gpu, op);                                                             \
        enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);                             \
        return st != CTW_OK || lost ? st : ctw_backend_cpu.name(f->cpu, op, err);                  \
    }
CTW_OPERATIONS(OPERATION)

static int64_t fake_head_rows(const struct ctw_backend *be, enum ctw_dtype dtype, int64_t k,
                              bool plain)
{
    return ctw_backend_cpu.head_rows(((const struct fake *)be)->cpu, dtype, k, plain);
}

#define ROW(name) .name = fake_##name,
static const struct ctw_backend_ops fake_ops = {.name = "cuda",
                                                .traits = {.host_memory = false,
                                                           .chunk_tokens = 256,
                                                           .pass_tokens = 8192,
                                                           .mixture_pass_tokens = 8192,
                                                           .pass_flops = 1e13,
                                                           .decodes_ahead = true},
                                                .head_rows = fake_head_rows,
                                                .uuid = fake_uuid,
                                                .count = gpu_count,
                                                .open = fake_open,
                                                .close = fake_close,
                                                .info = fake_info,
                                                .describe = fake_describe,
                                                .scratch_bytes = fake_scratch_bytes,
                                                .reserve = fake_reserve,
                                                .trim = fake_trim,
                                                .memory_free = fake_memory_free,
                                                .alloc = fake_alloc,
                                                .free = fake_free,
                                                .upload = fake_upload,
                                                .download = fake_download,
                                                .copy = fake_copy,
                                                .zero = fake_zero,
                                                .sync = fake_sync,
                                                .stage_alloc = fake_stage_alloc,
                                                .stage_free = fake_stage_free,
                                                .upload_begin = fake_upload_begin,
                                                .peer_begin = fake_peer_begin,
                                                .peer_link = fake_peer_link,
                                                .upload_wait = fake_upload_wait,
                                                .upload_join = fake_upload_join,
                                                .fence_record = fake_fence_record,
                                                .fence_wait = fake_fence_wait,
                                                .prepare = fake_prepare,
                                                .linear = fake_linear,
                                                CTW_OPERATIONS(ROW)};

__attribute__((visibility("default"))) ctw_cuda_contract_fn ctw_cuda_contract;
const char *ctw_cuda_contract(void)
{
    return CTW_CONTRACT;
}

__attribute__((visibility("default"))) ctw_cuda_ops_fn ctw_cuda_ops;
const struct ctw_backend_ops *ctw_cuda_ops(void)
{
    return &fake_ops;
}
