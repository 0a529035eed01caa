/*
 * A configuration that a user gives beside a container with metadata: the original model's
 * config.json knows more than the metadata (windows, dtype, numbers that were rounded to fp32).
 */
#ifndef CTW_WORKER_AGREEMENT_H
#define CTW_WORKER_AGREEMENT_H

#include "base/json.h"

/* CTW_EFORMAT if a key of the metadata has another value in `config`, or in its text_config; the
 * message names both. Keys that only one of them has are fine. */
enum ctw_status ctw_keys_agree(const struct ctw_json *metadata, const struct ctw_json *config,
                               struct ctw_err *err) CTW_MUST_CHECK;

#endif
