/*
 * The keys of the model that a checkpoint holds: those of config.json, which lies beside the files
 * of a container. A container that has them in its own files yields them in the same form.
 */
#ifndef CTW_WORKER_MODEL_KEYS_H
#define CTW_WORKER_MODEL_KEYS_H

#include "base/json.h"
#include "worker/checkpoint/container/container.h"

enum { CTW_MODEL_KEYS_MAX_BYTES = 16 << 20 };

/*
 * Those of the checkpoint at `path`: of its container `files` (NULL: it could not be opened), whose
 * tensors then get the names that the keys' model has, or else `file` of the folder (NULL:
 * config.json). If the container has keys of its own, `file` may also be a path, or a folder with
 * config.json, whose keys then replace the container's and must agree with them. *title: the file's
 * name for messages, valid as long as `file` and `files`.
 *
 * CTW_ENOTFOUND: there is no such file; the message says what the folder is, and what to give.
 * CTW_EUNSUP: the container's metadata describe no supported model. Also CTW_EIO, or an error of
 * ctw_json_parse().
 */
enum ctw_status ctw_model_keys_read(struct ctw_json **out, const char *path, const char *file,
                                    struct ctw_container *files, const char **title,
                                    struct ctw_err *err) CTW_MUST_CHECK;

#endif
