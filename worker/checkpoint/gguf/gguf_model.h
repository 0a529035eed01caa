/*
 * A GGUF container as the Hugging Face checkpoint that it was made from: its metadata become the
 * keys of config.json, and its tensors get their names back. What the converter changed (rows of
 * queries and keys in another order, norms stored as 1 + w) is noted in the tensors.
 */
#ifndef CTW_WORKER_GGUF_MODEL_H
#define CTW_WORKER_GGUF_MODEL_H

#include "base/json.h"
#include "worker/checkpoint/container/container.h"

/* The dtype to compute in is "dtype" of *keys. CTW_EUNSUP: the architecture, or what the file says
 * of it, is not supported; the message names it. `file`: for messages, also those of *keys. */
enum ctw_status ctw_gguf_describe(struct ctw_json **keys, struct ctw_container *files,
                                  const char *file, struct ctw_err *err) CTW_MUST_CHECK;

#endif
