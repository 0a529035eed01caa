/*
 * The quantisation of a module's input and of a layer's keys and values: from quantization_config
 * and the scales in the checkpoint to the description for a backend. Used by model.c and tensors.c
 * only.
 */
#ifndef CTW_WORKER_INPUTS_H
#define CTW_WORKER_INPUTS_H

#include "worker/model/tensors.h"

/* Fills m->input and its tensors. CTW_EUNSUP: the quantisation cannot be simulated; the message
 * states the reason. */
enum ctw_status ctw_input_open(const struct ctw_finder *finder, struct ctw_matrix *m,
                               const struct ctw_quant_group *group,
                               struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Once all matrices are open: the same for the keys and values of all layers (kv_cache_scheme), and
 * for keys, values and queries of the attention modules that are a group's targets. CTW_EUNSUP also
 * if other activations are quantised than those of matrices, or by another method.
 */
enum ctw_status ctw_inputs_open(const struct ctw_finder *finder, struct ctw_model *m,
                                struct ctw_err *err) CTW_MUST_CHECK;

/* Does `ignore` list all targets of a group without weights? Such a group has no effect. */
enum ctw_status ctw_inputs_are_ignored(const struct ctw_config *c, const struct ctw_quant_group *g,
                                       bool *out, struct ctw_err *err) CTW_MUST_CHECK;

#endif
