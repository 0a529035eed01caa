/* ctworker inspect --hashes: hashes of the decoded weights of all linear layers. */
#ifndef CTW_WORKER_INSPECT_HASHES_H
#define CTW_WORKER_INSPECT_HASHES_H

#include "worker/engine/engine.h"

/*
 * Writes one line per matrix except the embedding to standard output, layer by layer:
 *     NAME  N  K  DTYPE  SHA-256
 * The hash covers the N x K decoded values, row by row, in the checkpoint's dtype. opt->backend
 * "cuda": the GPU decodes, from its memory; else the definition decodes, with opt->n_threads
 * threads (0: all CPUs).
 */
enum ctw_status ctw_inspect_hashes(const struct ctw_model *model,
                                   const struct ctw_engine_options *opt,
                                   struct ctw_err *err) CTW_MUST_CHECK;

#endif
