/*
 * The command-line options for an engine, shared by score, serve and inspect.
 */
#ifndef CTW_WORKER_ENGINE_OPTIONS_H
#define CTW_WORKER_ENGINE_OPTIONS_H

#include "worker/cli/options.h"
#include "worker/engine/engine.h"

enum { CTW_N_ENGINE_OPTIONS = 19 };

/* Values that the parser fills in; start from {0}. */
struct ctw_engine_option_values {
    const char *config, *backend, *variant, *cuda_variant, *dtype, *activations, *place, *devices;
    int64_t n_threads, device, max_length, vocab, chunk_tokens, pass_tokens;
    bool no_share;
    struct ctw_amount device_limit;
    uint64_t memory_limit, weights_limit, host_limit;
};

/* Fills rows[CTW_N_ENGINE_OPTIONS]; parsing them fills *values. */
void ctw_engine_option_rows(struct ctw_option *rows, struct ctw_engine_option_values *values);

/* Engine options for the model in model_dir. */
struct ctw_engine_options ctw_engine_options_from(const struct ctw_engine_option_values *values,
                                                  const char *model_dir);

#endif
