/*
 * QuantizationArgs objects in quantization_config's schemes, and functions that the quant_*.c
 * share.
 */
#ifndef CTW_WORKER_QUANT_ARGS_H
#define CTW_WORKER_QUANT_ARGS_H

#include "worker/checkpoint/quant/quant_config.h"

/* CTW_EUNSUP if the object has a member that is neither in `keys` nor null. */
enum ctw_status ctw_quant_known_keys(const struct ctw_json_node *object, const char *const *keys,
                                     size_t n, struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Fills g->quantised and g->args (all but format). Ignores scale_dtype and zp_dtype: the tensors'
 * own dtypes decide.
 */
enum ctw_status ctw_quant_read_weights(struct ctw_quant_group *g, const struct ctw_json_node *node,
                                       struct ctw_err *err) CTW_MUST_CHECK;

enum ctw_status ctw_quant_read_activations(struct ctw_quant_activations *out,
                                           const struct ctw_json_node *node,
                                           struct ctw_err *err) CTW_MUST_CHECK;

/* Reads a scheme of keys and values. */
enum ctw_status ctw_quant_read_kv(struct ctw_quant_config *qc, const struct ctw_json_node *node,
                                  struct ctw_err *err) CTW_MUST_CHECK;

/* ---- what the methods share ---- */

/* A group of the modules that `targets` names (NULL: all), appended to *out. */
enum ctw_status ctw_quant_add_group(struct ctw_quant_config *out, const char *name,
                                    const struct ctw_pattern *target,
                                    const struct ctw_quant_args *args, const char *activations,
                                    struct ctw_err *err) CTW_MUST_CHECK;
/* The list of modules that are not quantised, under either key. */
enum ctw_status ctw_quant_read_list(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                    const char *key, const char *also,
                                    struct ctw_err *err) CTW_MUST_CHECK;
/* The key's value, spelled as in `known`, which ends with NULL; NULL if the key is absent.
 * CTW_EUNSUP if the value is not in `known`. */
enum ctw_status ctw_quant_expect_word(const struct ctw_json_node *q, const char *key,
                                      const char *const *known, const char **word,
                                      struct ctw_err *err) CTW_MUST_CHECK;

#endif
