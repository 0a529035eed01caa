/* ctworker inspect --hashes: what every linear layer's weight decodes to. */
#ifndef CTW_WORKER_INSPECT_HASHES_H
#define CTW_WORKER_INSPECT_HASHES_H

#include "worker/model.h"

/*
 * Writes a line for each matrix but the embedding to standard output, layer by layer:
 *     NAME  N  K  DTYPE  SHA-256
 * of the N x K decoded values, row by row, in the checkpoint's dtype. n_threads 0: all CPUs.
 */
enum ctw_status ctw_inspect_hashes(const struct ctw_model *model, int n_threads,
                                   struct ctw_err *err) CTW_MUST_CHECK;

#endif
