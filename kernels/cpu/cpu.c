/* The CPU backend: opening, memory, and dispatch from the backend's table to the variant's. */
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

const struct ctw_cpu_variant *const ctw_cpu_variants[] = {
#if defined(__x86_64__)
    &ctw_cpu_amx,
    &ctw_cpu_avx512bf16,
    &ctw_cpu_avx512,
    &ctw_cpu_avx2,
#ifdef CTW_WITH_AMX_EMULATED
    &ctw_cpu_amx_emulated,
#endif
#endif
    &ctw_cpu_c,
    NULL,
};

static size_t scratch_bytes_c(const struct ctw_cpu *cpu, const struct ctw_reserve *r)
{
    size_t n_threads = (size_t)ctw_threads_count(cpu->threads);
    size_t rows =
        n_threads * 2 * (size_t)r->max_k * sizeof(float) + (size_t)r->n_tok * CTW_CPU_HEAD_STATE;
    size_t states = n_threads * (size_t)r->state * sizeof(float);
    return rows > states ? rows : states;
}

#define REFERENCE(name) .name = ctw_cpu_##name##_c,
const struct ctw_cpu_variant ctw_cpu_c = {.name = "c",
                                          .lacks = ctw_cpu_lacks_none,
                                          .scratch_bytes = scratch_bytes_c,
                                          CTW_CPU_VARIED(REFERENCE)};

static struct ctw_cpu *cpu_of(struct ctw_backend *be)
{
    return (struct ctw_cpu *)be;
}

/* May this variant be selected by default? Intel's processors multiply bf16 pairs at half the
 * rate of their fp32 multiply-adds, so avx512 is 1.8 times as fast there
 * (docs/BENCHMARKS_LOG.md). */
static bool pays_here(const struct ctw_cpu_variant *v)
{
    return !v->by_request && (strcmp(v->name, "avx512bf16") != 0 || !ctw_cpu_is_intel());
}

static enum ctw_status refuse_variant(const char *name, struct ctw_err *err)
{
    char have[128] = "";
    const char *lacks = "is unknown";
    bool known = false;
    for (int i = 0; ctw_cpu_variants[i] != NULL; i++) {
        const struct ctw_cpu_variant *v = ctw_cpu_variants[i];
        const char *missing = v->lacks();
        const size_t used = strlen(have);
        if (strcmp(name, v->name) == 0) {
            known = true;
            lacks = missing;
        }
        if (missing == NULL)
            snprintf(have + used, sizeof(have) - used, "%s%s", used > 0 ? ", " : "", v->name);
    }
    return ctw_fail(err, CTW_EINVAL, "cpu variant \"%s\" %s%s; this machine has: %s", name,
                    known ? "does not run here: " : "", lacks, have);
}

/* The named variant, or the best one; CTW_EINVAL says what is missing, and lists the variants that
 * run here. */
static enum ctw_status choose_variant(const struct ctw_cpu_variant **out, const char *name,
                                      struct ctw_err *err)
{
    for (int i = 0; ctw_cpu_variants[i] != NULL; i++) {
        const struct ctw_cpu_variant *v = ctw_cpu_variants[i];
        const bool wanted = name != NULL ? strcmp(name, v->name) == 0 : pays_here(v);
        if (wanted && v->lacks() == NULL) {
            *out = v;
            return CTW_OK;
        }
    }
    return refuse_variant(name, err);
}

static void cpu_close(struct ctw_backend *be)
{
    struct ctw_cpu *cpu = cpu_of(be);
    if (cpu == NULL)
        return;
    ctw_threads_close(cpu->threads);
    ctw_free_aligned(cpu->scratch);
    ctw_free(cpu);
}

static enum ctw_status cpu_count(int *n, struct ctw_err *err)
{
    (void)err;
    *n = 1;
    return CTW_OK;
}

static enum ctw_status cpu_open(struct ctw_backend **out, const struct ctw_backend_options *opt,
                                struct ctw_err *err)
{
    struct ctw_cpu *cpu = ctw_calloc(1, sizeof(*cpu));
    if (cpu == NULL)
        return ctw_fail(err, CTW_ENOMEM, "cpu: out of memory");
    cpu->backend.ops = &ctw_backend_cpu;
    enum ctw_status st = choose_variant(&cpu->variant, opt->variant, err);
    if (st == CTW_OK)
        st = ctw_threads_open(&cpu->threads, opt->n_threads, err);
    if (st != CTW_OK) {
        cpu_close(&cpu->backend);
        return st;
    }
    *out = &cpu->backend;
    return CTW_OK;
}

static void cpu_info(const struct ctw_backend *be, struct ctw_backend_info *out)
{
    const struct ctw_cpu *cpu = (const struct ctw_cpu *)be;
    *out = (struct ctw_backend_info){.backend = "cpu",
                                     .variant = cpu->variant->name,
                                     .n_threads = ctw_threads_count(cpu->threads)};
    snprintf(out->numerics, sizeof(out->numerics), "cpu-%s", cpu->variant->name);
    ctw_cpu_name(out->device, sizeof(out->device));
}

static void cpu_describe(const struct ctw_backend *be, char *buf, size_t cap)
{
    (void)be;
    if (cap > 0)
        buf[0] = '\0';
}

static size_t cpu_scratch_bytes(const struct ctw_backend *be, const struct ctw_reserve *r)
{
    const struct ctw_cpu *cpu = (const struct ctw_cpu *)be;
    size_t variant = cpu->variant->scratch_bytes(cpu, r);
    size_t index = ctw_cpu_index_bytes(cpu, r->index_keys);
    size_t rotation = ctw_cpu_rotate_bytes(cpu, r->rotation),
           most = index > variant ? index : variant;
    return rotation > most ? rotation : most;
}

/* Scratch is small and allocated on first use. */
static enum ctw_status cpu_reserve(struct ctw_backend *be, const struct ctw_reserve *r,
                                   struct ctw_err *err)
{
    (void)be;
    (void)r;
    (void)err;
    return CTW_OK;
}

static void cpu_trim(struct ctw_backend *be)
{
    struct ctw_cpu *cpu = cpu_of(be);
    ctw_free_aligned(cpu->scratch);
    cpu->scratch = NULL;
    cpu->scratch_bytes = 0;
}

static uint64_t cpu_memory_free(const struct ctw_backend *be)
{
    (void)be;
    return UINT64_MAX;
}

static enum ctw_status cpu_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                 struct ctw_err *err)
{
    (void)be;
    *out = ctw_alloc_aligned(bytes);
    if (*out == NULL)
        return ctw_fail(err, CTW_ENOMEM, "cpu: no memory for %zu bytes", bytes);
    return CTW_OK;
}

static void cpu_free(struct ctw_backend *be, void *p)
{
    (void)be;
    ctw_free_aligned(p);
}

/* Upload, download and copy are the same if the device is the host. */
static enum ctw_status cpu_copy(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                struct ctw_err *err)
{
    (void)be;
    (void)err;
    if (bytes > 0)
        memmove(dst, src, bytes);
    return CTW_OK;
}

static enum ctw_status cpu_zero(struct ctw_backend *be, void *p, size_t bytes, struct ctw_err *err)
{
    (void)be;
    (void)err;
    memset(p, 0, bytes);
    return CTW_OK;
}

static enum ctw_status cpu_sync(struct ctw_backend *be, struct ctw_err *err)
{
    (void)be;
    (void)err;
    return CTW_OK;
}

/* Weights are read directly from their mappings, so nothing is staged. */
static enum ctw_status cpu_stage_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                       struct ctw_err *err)
{
    return cpu_alloc(be, out, bytes, err);
}

static enum ctw_status cpu_upload_begin(struct ctw_backend *be, void *dst, const void *stage,
                                        size_t bytes, uint64_t *ticket, struct ctw_err *err)
{
    *ticket = 0;
    return cpu_copy(be, dst, stage, bytes, err);
}

static enum ctw_status cpu_peer_begin(struct ctw_backend *be, void *dst, struct ctw_backend *from,
                                      const void *src, size_t bytes, uint64_t *ticket,
                                      struct ctw_err *err)
{
    (void)from;
    return cpu_upload_begin(be, dst, src, bytes, ticket, err);
}

static enum ctw_status cpu_upload_wait(struct ctw_backend *be, uint64_t ticket, struct ctw_err *err)
{
    (void)ticket;
    return cpu_sync(be, err);
}

static enum ctw_status cpu_fence_record(struct ctw_backend *be, uint64_t *fence,
                                        struct ctw_err *err)
{
    *fence = 0;
    return cpu_sync(be, err);
}

static enum ctw_status cpu_fence_wait(struct ctw_backend *be, uint64_t fence, struct ctw_err *err)
{
    (void)fence;
    return cpu_sync(be, err);
}

/* A product decodes its weights as it runs (docs/ARCHITECTURE.md). */
static enum ctw_status cpu_prepare(struct ctw_backend *be, const struct ctw_op_linear *op,
                                   struct ctw_err *err)
{
    (void)be;
    (void)op;
    (void)err;
    return CTW_OK;
}

/* ---- operations --------------------------------------------------------------------------- */

#define VARIED(name)                                                                               \
    enum ctw_status ctw_cpu_##name(struct ctw_cpu *cpu, const struct ctw_op_##name *op,            \
                                   struct ctw_err *err)                                            \
    {                                                                                              \
        return cpu->variant->name(cpu, op, err);                                                   \
    }
CTW_CPU_VARIED(VARIED)

#define OPERATION(name)                                                                            \
    static enum ctw_status cpu_##name(struct ctw_backend *be, const struct ctw_op_##name *op,      \
                                      struct ctw_err *err)                                         \
    {                                                                                              \
        return ctw_cpu_##name(cpu_of(be), op, err);                                                \
    }
CTW_OPERATIONS(OPERATION)
OPERATION(linear)

static int64_t cpu_head_rows(const struct ctw_backend *be, enum ctw_dtype dtype, int64_t k,
                             bool plain)
{
    (void)be;
    (void)dtype;
    (void)k;
    (void)plain;
    return CTW_CPU_HEAD_ROWS;
}

#define ROW(name) .name = cpu_##name,
const struct ctw_backend_ops ctw_backend_cpu = {
    .name = "cpu",
    .traits = {.host_memory = true,
               .chunk_tokens = 4096, /* decoding a weight then costs under 1 % of using it */
               .pass_tokens = 4096,  /* a chunk: results are final within seconds */
               .mixture_pass_tokens = 32768, /* decodes each expert for 2048 tokens or so */
               .pass_flops = 1.2e13},
    .head_rows = cpu_head_rows,
    .count = cpu_count,
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .describe = cpu_describe,
    .scratch_bytes = cpu_scratch_bytes,
    .reserve = cpu_reserve,
    .trim = cpu_trim,
    .memory_free = cpu_memory_free,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_copy,
    .download = cpu_copy,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .sync = cpu_sync,
    .stage_alloc = cpu_stage_alloc,
    .stage_free = cpu_free,
    .upload_begin = cpu_upload_begin,
    .peer_begin = cpu_peer_begin,
    .upload_wait = cpu_upload_wait,
    .upload_join = cpu_sync,
    .fence_record = cpu_fence_record,
    .fence_wait = cpu_fence_wait,
    .prepare = cpu_prepare,
    .linear = cpu_linear,
    CTW_OPERATIONS(ROW)};
