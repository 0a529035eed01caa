/* ctworker inspect --hashes: what every linear layer's weight decodes to. */
#ifndef CTW_WORKER_INSPECT_HASHES_H
#define CTW_WORKER_INSPECT_HASHES_H

#include "worker/engine/engine.h"

/*
 * Writes a line for each matrix but the embedding to standard output, layer by layer:
 *     NAME  N  K  DTYPE  SHA-256
 * of the N x K decoded values, row by row, in the checkpoint's dtype. opt->backend "cuda": as the
 * GPU decodes them, from its memory; else by the definition, with opt->n_threads threads (0: all
 * CPUs).
 */
enum ctw_status ctw_inspect_hashes(const struct ctw_model *model,
                                   const struct ctw_engine_options *opt,
                                   struct ctw_err *err) CTW_MUST_CHECK;

#endif
