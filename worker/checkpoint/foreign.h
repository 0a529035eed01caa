/*
 * Weight formats of other tools that are not read: recognised by config.json, by ModelOpt's
 * hf_quant_config.json or by the names of a matrix's tensors, and refused with the format's name
 * and the way out.
 */
#ifndef CTW_WORKER_FOREIGN_H
#define CTW_WORKER_FOREIGN_H

#include <stdbool.h>

#include "base/json.h"
#include "worker/checkpoint/container.h"

/* quantization_config, if it is not compressed-tensors': CTW_EUNSUP, or CTW_EFORMAT if nothing
 * tells whose it is. */
enum ctw_status ctw_foreign_check(const struct ctw_json_node *quantization,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/* A configuration without quantization_config: CTW_EUNSUP if `root` has MLX's or msModelSlim's own
 * key for it. */
enum ctw_status ctw_foreign_check_root(const struct ctw_json_node *root,
                                       struct ctw_err *err) CTW_MUST_CHECK;
/* Likewise: CTW_EUNSUP if the folder's hf_quant_config.json declares quantised weights. */
enum ctw_status ctw_foreign_check_folder(const char *dir, struct ctw_err *err) CTW_MUST_CHECK;

/* Is this a GGUF file, or a folder that holds one? */
bool ctw_foreign_is_gguf(const char *path) CTW_MUST_CHECK;

/*
 * To call when a matrix, "model.layers.0.self_attn.q_proj", cannot be read, with the status and the
 * message of that: if its tensors are another tool's, the message names the format instead.
 */
enum ctw_status ctw_foreign_explain(const struct ctw_container *container, const char *matrix,
                                    enum ctw_status status, struct ctw_err *err);

#endif
