#include "worker/cli/engine_options.h"

#include <string.h>

enum { N_WHERE = 8, N_MEMORY = 5, N_HOW = CTW_N_ENGINE_OPTIONS - N_WHERE - N_MEMORY };

/* The config file, the backend and device that compute, and their precision. */
static void where_rows(struct ctw_option rows[N_WHERE], struct ctw_engine_option_values *v)
{
    const struct ctw_option all[] = {
        {.name = "config",
         .type = CTW_OPT_STRING,
         .value = &v->config,
         .meta = "NAME",
         .help = "read this file in the folder instead of config.json"},
        {.name = "backend",
         .type = CTW_OPT_CHOICE,
         .value = &v->backend,
         .choices = "auto|cpu|cuda",
         .help = "what computes (default: auto, a GPU if the machine has one)"},
        {.name = "device",
         .type = CTW_OPT_INT,
         .value = &v->device,
         .min = 0,
         .max = 255,
         .meta = "N",
         .help = "index of the GPU among the visible GPUs, in nvidia-smi's order (default: 0)"},
        {.name = "devices",
         .type = CTW_OPT_STRING,
         .value = &v->devices,
         .meta = "LIST",
         .help = "GPUs that share the work: 0,1 or 0-3 (numbers as CUDA_VISIBLE_DEVICES leaves "
                 "them), GPU-6b0c,GPU-1f (beginnings of UUIDs), or all (default: --device); they "
                 "must be of one kind; does not affect scores"},
        {.name = "cpu-variant",
         .type = CTW_OPT_CHOICE,
         .value = &v->variant,
         .choices = "auto|c|avx2|avx512|avx512bf16",
         .help =
             "force a set of CPU kernels (default: auto, the best set that this machine supports)"},
        {.name = "cuda-variant",
         .type = CTW_OPT_CHOICE,
         .value = &v->cuda_variant,
         .choices = "auto|general|hopper",
         .help = "force a set of GPU kernels (default: auto, the best set that the GPU supports)"},
        {.name = "dtype",
         .type = CTW_OPT_CHOICE,
         .value = &v->dtype,
         .choices = "auto|bfloat16|float16|float32",
         .help =
             "activations (default: auto, the checkpoint's dtype; float32 is the reference mode)"},
        {.name = "activations",
         .type = CTW_OPT_CHOICE,
         .value = &v->activations,
         .choices = "none|checkpoint",
         .help = "quantised: not, or as the checkpoint declares, exactly as compressed-tensors "
                 "simulates it (default: none, weights only)"},
    };
    _Static_assert(CTW_COUNT(all) == N_WHERE, "count the rows");
    memcpy(rows, all, sizeof(all));
}

/* Memory, and where the weights are. */
static void memory_rows(struct ctw_option rows[N_MEMORY], struct ctw_engine_option_values *v)
{
    const struct ctw_option all[] = {
        {.name = "device-memory-limit",
         .type = CTW_OPT_AMOUNT,
         .value = &v->device_limit,
         .meta = "SIZE",
         .help = "memory of each device for weights and passes together, such as 20GiB, or 50% of "
                 "what it has; on the CPU, of the machine's memory (default: what is free)"},
        {.name = "memory-limit",
         .type = CTW_OPT_BYTES,
         .value = &v->memory_limit,
         .meta = "SIZE",
         .help =
             "memory beyond the weights, such as 2GiB (default: a quarter of the available "
             "memory, at least 512 MiB, or most of what the weights leave free on a GPU); on the "
             "CPU never more than what is free"},
        {.name = "placement",
         .type = CTW_OPT_CHOICE,
         .value = &v->place,
         .choices = "auto|mapped|resident|sharded|streamed",
         .help = "where the weights are: in mapped files (CPU), all in memory, spread over the "
                 "--devices, or read in every pass (default: auto, sharded or streamed if they do "
                 "not fit; does not affect scores)"},
        {.name = "weights-limit",
         .type = CTW_OPT_BYTES,
         .value = &v->weights_limit,
         .meta = "SIZE",
         .help = "memory for the weights, the GPU's if it computes; what does not fit is streamed "
                 "(default: what is free)"},
        {.name = "host-memory-limit",
         .type = CTW_OPT_BYTES,
         .value = &v->host_limit,
         .meta = "SIZE",
         .help =
             "host memory for weights that the GPUs do not hold: read once, locked, and shared by "
             "all GPUs (default: none, they are read from the files, or the page cache)"},
    };
    _Static_assert(CTW_COUNT(all) == N_MEMORY, "count the rows");
    memcpy(rows, all, sizeof(all));
}

/* Threads and lengths. */
static void how_rows(struct ctw_option rows[N_HOW], struct ctw_engine_option_values *v)
{
    const struct ctw_option all[] = {
        {.name = "threads",
         .type = CTW_OPT_INT,
         .value = &v->n_threads,
         .min = 0,
         .max = 1024,
         .meta = "N",
         .help = "CPU threads (default: 0, one per CPU)"},
        {.name = "max-length",
         .type = CTW_OPT_INT,
         .value = &v->max_length,
         .min = 0,
         .max = 1 << 24,
         .meta = "N",
         .help = "longest input in tokens (default: 0, the model's limit)"},
        {.name = "vocabulary",
         .type = CTW_OPT_INT,
         .value = &v->vocab,
         .min = 0,
         .max = 1 << 24,
         .meta = "N",
         .help = "probabilities over the first N tokens only, if the head has more rows than the "
                 "tokenizer has tokens (default: 0, over all rows)"},
        {.name = "chunk-tokens",
         .type = CTW_OPT_INT,
         .value = &v->chunk_tokens,
         .min = 0,
         .max = 1 << 24,
         .meta = "N",
         .help = "tokens that go through a layer together (default: 0, planned; does not affect "
                 "scores)"},
        {.name = "pass-tokens",
         .type = CTW_OPT_INT,
         .value = &v->pass_tokens,
         .min = 0,
         .max = 1 << 24,
         .meta = "N",
         .help =
             "tokens that go through all layers before the next tokens (default: 0, planned; does "
             "not affect scores)"},
    };
    _Static_assert(CTW_COUNT(all) == N_HOW, "count the rows");
    memcpy(rows, all, sizeof(all));
}

void ctw_engine_option_rows(struct ctw_option *rows, struct ctw_engine_option_values *values)
{
    where_rows(rows, values);
    memory_rows(rows + N_WHERE, values);
    how_rows(rows + N_WHERE + N_MEMORY, values);
}

/* "auto" means the default, which is NULL. */
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
        .device_list = v->devices,
        .dtype = v->dtype,
        .quantises_activations =
            v->activations != NULL && strcmp(v->activations, "checkpoint") == 0,
        .n_threads = (int)v->n_threads,
        .device_limit = v->device_limit,
        .memory_limit = v->memory_limit,
        .place = v->place,
        .weights_limit = v->weights_limit,
        .host_limit = v->host_limit,
        .max_length = v->max_length,
        .vocab = v->vocab,
        .chunk_tokens = v->chunk_tokens,
        .pass_tokens = v->pass_tokens,
    };
}
