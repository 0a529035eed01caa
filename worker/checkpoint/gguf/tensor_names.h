/* The names of a GGUF file's tensors in the checkpoint that it was made from. */
#ifndef CTW_WORKER_TENSOR_NAMES_H
#define CTW_WORKER_TENSOR_NAMES_H

#include "worker/checkpoint/gguf/config_writer.h"

/* Renames all tensors, as k->arch says; a stack of experts becomes a tensor for each. A tensor of
 * an unknown name keeps it, so that the model refuses it. */
enum ctw_status ctw_gguf_rename(struct ctw_gguf_keys *k,
                                struct ctw_container *files) CTW_MUST_CHECK;

#endif
