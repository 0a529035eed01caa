/* A GPU that a plan is made for, which need not be there: see ctw_backend_open_planned(). */
#include <stdio.h>

#include "base/mem.h"
#include "kernels/gpu_scratch.h"

struct planned {
    struct ctw_backend backend;
    uint64_t memory;
};

/* What a process's CUDA context takes of a GPU's memory before the first allocation. */
static const uint64_t CONTEXT_BYTES = 600ull << 20;

/* Of a card for workstations, if nobody says more. */
static const double ASSUMED_FLOPS = 1.5e14;

static enum ctw_status planned_count(int *n, struct ctw_err *err)
{
    (void)err;
    *n = 1;
    return CTW_OK;
}

static void planned_close(struct ctw_backend *be)
{
    ctw_free(be);
}

static void planned_info(const struct ctw_backend *be, struct ctw_backend_info *out)
{
    const struct planned *p = (const struct planned *)be;
    out->backend = "cuda";
    out->variant = "general";
    snprintf(out->device, sizeof(out->device), "a GPU that need not be here");
    snprintf(out->numerics, sizeof(out->numerics), "planned");
    out->memory_total = p->memory;
    out->flops = ASSUMED_FLOPS;
}

static void planned_describe(const struct ctw_backend *be, char *buf, size_t cap)
{
    (void)be;
    snprintf(buf, cap, "%s", "");
}

/* Of the kernels that take more. */
static size_t planned_scratch_bytes(const struct ctw_backend *be, const struct ctw_reserve *r)
{
    (void)be;
    size_t general = ctw_gpu_scratch_bytes(false, r), hopper = ctw_gpu_scratch_bytes(true, r);
    return general > hopper ? general : hopper;
}

/* Of the kernels whose parts are larger. */
static int64_t planned_head_rows(const struct ctw_backend *be, enum ctw_dtype dtype, int64_t k,
                                 bool plain)
{
    (void)be;
    return ctw_gpu_head_rows(false, dtype, k, plain);
}

static void planned_trim(struct ctw_backend *be)
{
    (void)be;
}

static uint64_t planned_memory_free(const struct ctw_backend *be)
{
    uint64_t memory = ((const struct planned *)be)->memory;
    return memory > CONTEXT_BYTES ? memory - CONTEXT_BYTES : 0;
}

static enum ctw_status planned_sync(struct ctw_backend *be, struct ctw_err *err)
{
    (void)be;
    (void)err;
    return CTW_OK;
}

static const struct ctw_backend_ops planned_ops = {
    .name = "planned",
    .traits = {.host_memory = false,
               .chunk_tokens = CTW_GPU_CHUNK,
               .pass_tokens = CTW_GPU_PASS,
               .mixture_pass_tokens = CTW_GPU_PASS,
               .pass_flops = CTW_GPU_PASS_FLOPS,
               .decodes_ahead = true},
    .head_rows = planned_head_rows,
    .count = planned_count,
    .close = planned_close,
    .info = planned_info,
    .describe = planned_describe,
    .scratch_bytes = planned_scratch_bytes,
    .trim = planned_trim,
    .memory_free = planned_memory_free,
    .sync = planned_sync,
};

enum ctw_status ctw_backend_open_planned(struct ctw_backend **out, uint64_t memory,
                                         struct ctw_err *err)
{
    struct planned *p = ctw_calloc(1, sizeof(*p));
    if (p == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    p->backend.ops = &planned_ops;
    snprintf(p->backend.reason, sizeof(p->backend.reason), "described by --device-memory");
    p->memory = memory;
    *out = &p->backend;
    return CTW_OK;
}
