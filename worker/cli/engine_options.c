#include "worker/cli/engine_options.h"

#include <string.h>

#ifdef CTW_WITH_AMX_EMULATED
#define CPU_VARIANTS "auto|c|avx2|avx512|avx512bf16|amx|amx-emulated"
#else
#define CPU_VARIANTS "auto|c|avx2|avx512|avx512bf16|amx"
#endif

enum { N_WHERE = 8, N_MEMORY = 5, N_HOW = CTW_N_ENGINE_OPTIONS - N_WHERE - N_MEMORY };

/* The config file, the backend and device that compute, and their precision. */
static void where_rows(struct ctw_option rows[N_WHERE], struct ctw_engine_option_values *v)
{
    const struct ctw_option all[] = {
        ctw_opt_string("config", &v->config, "NAME",
                       "read this file in the folder instead of config.json; for a model with its "
                       "configuration in the weights' file, the original's config.json or its "
                       "folder, which must agree"),
        ctw_opt_choice("backend", &v->backend, "auto|cpu|cuda",
                       "device that computes (default: auto, a GPU if the machine has one)"),
        ctw_opt_int("device", &v->device, 0, 255, "N",
                    "index of the GPU among the visible GPUs, in nvidia-smi's order (default: 0)"),
        ctw_opt_string(
            "devices", &v->devices, "LIST",
            "GPUs that share the work: 0,1 or 0-3 (numbers as CUDA_VISIBLE_DEVICES leaves "
            "them), GPU-6b0c,GPU-1f (beginnings of UUIDs), or all (default: --device); they "
            "must be of one kind; does not affect scores"),
        ctw_opt_choice(
            "cpu-variant", &v->variant, CPU_VARIANTS,
            "force a set of CPU kernels (default: auto, the best set that this machine supports)"),
        ctw_opt_choice(
            "cuda-variant", &v->cuda_variant, "auto|general|hopper",
            "force a set of GPU kernels (default: auto, the best set that the GPU supports)"),
        ctw_opt_choice(
            "dtype", &v->dtype, "auto|bfloat16|float16|float32",
            "activations (default: auto, the checkpoint's dtype; float32 is the reference mode)"),
        ctw_opt_choice("activations", &v->activations, "none|checkpoint",
                       "quantisation of activations: none, or as the checkpoint declares, exactly "
                       "as compressed-tensors simulates it (default: none, weights only)"),
    };
    _Static_assert(CTW_COUNT(all) == N_WHERE, "count the rows");
    memcpy(rows, all, sizeof(all));
}

/* Memory, and the places of the weights. */
static void memory_rows(struct ctw_option rows[N_MEMORY], struct ctw_engine_option_values *v)
{
    const struct ctw_option all[] = {
        ctw_opt_amount(
            "device-memory-limit", &v->device_limit, "SIZE",
            "memory of each device for weights and passes together, such as 20GiB, or 50% of the "
            "device's memory; on the CPU, of the machine's memory (default: all free memory)"),
        ctw_opt_bytes("memory-limit", &v->memory_limit, "SIZE",
                      "memory beyond the weights, such as 2GiB (default: a quarter of the "
                      "available memory, at least 512 MiB, or most of the memory that the weights "
                      "leave free on a GPU); on the CPU never more than the free memory"),
        ctw_opt_choice("placement", &v->place, "auto|mapped|resident|sharded|streamed",
                       "place of the weights: mapped files (CPU), memory, memory spread over the "
                       "--devices, or files that are read in every pass (default: auto, sharded or "
                       "streamed if they do not fit; does not affect scores)"),
        ctw_opt_bytes("weights-limit", &v->weights_limit, "SIZE",
                      "memory for the weights, on the GPU if a GPU computes; layers that do not "
                      "fit are streamed (default: all free memory)"),
        ctw_opt_bytes(
            "host-memory-limit", &v->host_limit, "SIZE",
            "host memory for weights that the GPUs do not hold: read once, locked, and shared by "
            "all GPUs (default: none; such weights are read from the files, or the page cache)"),
    };
    _Static_assert(CTW_COUNT(all) == N_MEMORY, "count the rows");
    memcpy(rows, all, sizeof(all));
}

/* Threads and lengths. */
static void how_rows(struct ctw_option rows[N_HOW], struct ctw_engine_option_values *v)
{
    const struct ctw_option all[] = {
        ctw_opt_int("threads", &v->n_threads, 0, 1024, "N",
                    "CPU threads (default: 0, one per CPU)"),
        ctw_opt_int("max-length", &v->max_length, 0, 1 << 24, "N",
                    "longest input in tokens (default: 0, the model's limit)"),
        ctw_opt_int(
            "vocabulary", &v->vocab, 0, 1 << 24, "N",
            "probabilities over the first N tokens only, if the head has more rows than the "
            "tokenizer has tokens (default: 0, over all rows)"),
        ctw_opt_int("chunk-tokens", &v->chunk_tokens, 0, 1 << 24, "N",
                    "tokens that go through a layer together (default: 0, planned; does not affect "
                    "scores)"),
        ctw_opt_int(
            "pass-tokens", &v->pass_tokens, 0, 1 << 24, "N",
            "tokens that go through all layers before the next tokens (default: 0, planned; does "
            "not affect scores)"),
        ctw_opt_flag("no-share", &v->no_share,
                     "compute every sequence whole (default: sequences that begin with the same "
                     "tokens share their computation; does not affect scores)"),
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
        .no_share = v->no_share,
    };
}
