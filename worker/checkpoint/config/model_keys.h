/*
 * The keys of the model that a checkpoint holds: those of config.json, which lies beside the files
 * of a container. A container that has them in its own files yields them in the same form.
 */
#ifndef CTW_WORKER_MODEL_KEYS_H
#define CTW_WORKER_MODEL_KEYS_H

#include "base/json.h"

enum { CTW_MODEL_KEYS_MAX_BYTES = 16 << 20 };

/* `file` of the folder. CTW_ENOTFOUND: there is none; the message says what dir is, and what to
 * give. Also CTW_EIO, or an error of ctw_json_parse(). */
enum ctw_status ctw_model_keys_read(struct ctw_json **out, const char *dir, const char *file,
                                    struct ctw_err *err) CTW_MUST_CHECK;

#endif
