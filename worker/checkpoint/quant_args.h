/*
 * QuantizationArgs objects, as quantization_config's schemes hold them: used by quant_config.c
 * only.
 */
#ifndef CTW_WORKER_QUANT_ARGS_H
#define CTW_WORKER_QUANT_ARGS_H

#include "worker/checkpoint/quant_config.h"

/* CTW_EUNSUP when the object has a member other than `keys` that is not null. */
enum ctw_status ctw_quant_known_keys(const struct ctw_json_node *object, const char *const *keys,
                                     size_t n, struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Fills g->quantised and g->args (all but format). scale_dtype and zp_dtype are not looked at: the
 * tensors' own dtypes say it.
 */
enum ctw_status ctw_quant_read_weights(struct ctw_quant_group *g, const struct ctw_json_node *node,
                                       struct ctw_err *err) CTW_MUST_CHECK;

/* Writes how activations are quantised: "int8 token dynamic". */
enum ctw_status ctw_quant_read_activations(char *text, size_t bytes,
                                           const struct ctw_json_node *node,
                                           struct ctw_err *err) CTW_MUST_CHECK;

#endif
