/*
 * Which matrices' inputs and outputs, and which layers' queries and keys, are rotated: from
 * transform_config and the tensors in the checkpoint to what a backend computes. Used by model.c
 * only.
 */
#ifndef CTW_WORKER_ROTATIONS_H
#define CTW_WORKER_ROTATIONS_H

#include "worker/model/tensors.h"

/* Once all matrices are open. CTW_EUNSUP: it cannot be done; the message says why. */
enum ctw_status ctw_rotations_open(const struct ctw_finder *finder, struct ctw_model *m,
                                   struct ctw_err *err) CTW_MUST_CHECK;
void ctw_rotations_close(struct ctw_model *m);

#endif
