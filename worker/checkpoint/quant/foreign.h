/*
 * Weight formats of other tools: recognised by config.json or by the names of a matrix's tensors.
 * Those that are not supported are refused with the format's name and a remedy.
 */
#ifndef CTW_WORKER_FOREIGN_H
#define CTW_WORKER_FOREIGN_H

#include <stdbool.h>

#include "base/json.h"
#include "kernels/formats/format.h"
#include "worker/checkpoint/container/container.h"

/* Checks the quantization_config of a method that is not supported. If it is not
 * compressed-tensors': CTW_EUNSUP, or CTW_EFORMAT if no key identifies the tool. */
enum ctw_status ctw_foreign_check(const struct ctw_json_node *quantization,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/* Checks a configuration without quantization_config. CTW_EUNSUP: `root` has MLX's or msModelSlim's
 * own key for quantisation. */
enum ctw_status ctw_foreign_check_root(const struct ctw_json_node *root,
                                       struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Call it after a matrix, "model.layers.0.self_attn.q_proj", of the method that the configuration
 * declares could not be read, with that failure's status and message. If the tensors are another
 * method's, the message is replaced by one that names the format.
 */
enum ctw_status ctw_foreign_explain(const struct ctw_container *container,
                                    const struct ctw_part_names *names, const char *matrix,
                                    enum ctw_status status, struct ctw_err *err);

#endif
