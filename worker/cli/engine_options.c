#include "worker/cli/engine_options.h"

#include <string.h>

enum { N_WHERE = 5, N_HOW = CTW_N_ENGINE_OPTIONS - N_WHERE };

/* What is computed on. */
static void where_rows(struct ctw_option rows[N_WHERE], struct ctw_engine_option_values *v)
{
    const struct ctw_option all[] = {
        {.name = "config",
         .type = CTW_OPT_STRING,
         .value = &v->config,
         .meta = "NAME",
         .help = "read this file of the folder instead of config.json"},
        {.name = "backend",
         .type = CTW_OPT_CHOICE,
         .value = &v->backend,
         .choices = "auto|cpu|cuda",
         .help = "what computes (default: auto, a GPU where there is one)"},
        {.name = "device",
         .type = CTW_OPT_INT,
         .value = &v->device,
         .min = 0,
         .max = 255,
         .meta = "N",
         .help = "which GPU, as nvidia-smi numbers those that are visible (default: 0)"},
        {.name = "cpu-variant",
         .type = CTW_OPT_CHOICE,
         .value = &v->variant,
         .choices = "auto|c|avx2|avx512|avx512bf16",
         .help = "force one set of CPU kernels (default: auto, the best that this machine runs)"},
        {.name = "cuda-variant",
         .type = CTW_OPT_CHOICE,
         .value = &v->cuda_variant,
         .choices = "auto|general|hopper",
         .help = "force one set of GPU kernels (default: auto, the best that the GPU runs)"},
    };
    _Static_assert(CTW_COUNT(all) == N_WHERE, "count the rows");
    memcpy(rows, all, sizeof(all));
}

/* How, and how much at a time. */
static void how_rows(struct ctw_option rows[N_HOW], struct ctw_engine_option_values *v)
{
    const struct ctw_option all[] = {
        {.name = "dtype",
         .type = CTW_OPT_CHOICE,
         .value = &v->dtype,
         .choices = "auto|bfloat16|float16|float32",
         .help =
             "activations (default: auto, the checkpoint's own; float32 is the reference mode)"},
        {.name = "threads",
         .type = CTW_OPT_INT,
         .value = &v->n_threads,
         .min = 0,
         .max = 1024,
         .meta = "N",
         .help = "CPU threads (default: 0, one a CPU)"},
        {.name = "memory-limit",
         .type = CTW_OPT_BYTES,
         .value = &v->memory_limit,
         .meta = "SIZE",
         .help = "memory beyond the weights, such as 2GiB (default: a quarter of what is "
                 "available)"},
        {.name = "max-length",
         .type = CTW_OPT_INT,
         .value = &v->max_length,
         .min = 0,
         .max = 1 << 24,
         .meta = "N",
         .help = "longest input in tokens (default: 0, the model's own)"},
        {.name = "chunk-tokens",
         .type = CTW_OPT_INT,
         .value = &v->chunk_tokens,
         .min = 0,
         .max = 1 << 24,
         .meta = "N",
         .help = "tokens that go through a layer together (default: 0, planned; never changes a "
                 "score)"},
        {.name = "pass-tokens",
         .type = CTW_OPT_INT,
         .value = &v->pass_tokens,
         .min = 0,
         .max = 1 << 24,
         .meta = "N",
         .help = "tokens that go through the layers together (default: 0, planned; never changes a "
                 "score)"},
    };
    _Static_assert(CTW_COUNT(all) == N_HOW, "count the rows");
    memcpy(rows, all, sizeof(all));
}

void ctw_engine_option_rows(struct ctw_option *rows, struct ctw_engine_option_values *values)
{
    where_rows(rows, values);
    how_rows(rows + N_WHERE, values);
}

/* "auto" is the default's other name. */
static const char *named(const char *variant)
{
    return variant == NULL || strcmp(variant, "auto") == 0 ? NULL : variant;
}

struct ctw_engine_options ctw_engine_options_from(const struct ctw_engine_option_values *v,
                                                  const char *model_dir)
{
    return (struct ctw_engine_options){
        .model_dir = model_dir,
        .config_name = v->config,
        .backend = v->backend,
        .variant = named(v->variant),
        .cuda_variant = named(v->cuda_variant),
        .device = (int)v->device,
        .dtype = v->dtype,
        .n_threads = (int)v->n_threads,
        .memory_limit = v->memory_limit,
        .max_length = v->max_length,
        .chunk_tokens = v->chunk_tokens,
        .pass_tokens = v->pass_tokens,
    };
}
