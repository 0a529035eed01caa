/*
 * The rotations of matrices' inputs and outputs and of layers' queries and keys: from
 * transform_config and the tensors in the checkpoint to the description for a backend. Used by
 * model.c only.
 */
#ifndef CTW_WORKER_ROTATIONS_H
#define CTW_WORKER_ROTATIONS_H

#include "worker/model/tensors.h"

/* Call this once all matrices are open. CTW_EUNSUP: a rotation is not supported; the message states
 * the reason. */
enum ctw_status ctw_rotations_open(const struct ctw_finder *finder, struct ctw_model *m,
                                   struct ctw_err *err) CTW_MUST_CHECK;
void ctw_rotations_close(struct ctw_model *m);

#endif
