/* Why a checkpoint may lack a tensor or its configuration, for the message. */
#ifndef CTW_WORKER_MISSING_H
#define CTW_WORKER_MISSING_H

#include "worker/checkpoint/container.h"
#include "worker/model/config.h"

/* "; the likely cause and the remedy", for what is wanted and not found; "" if nothing is known. */
const char *ctw_missing_remedy(const struct ctw_container *files, const struct ctw_want *want);

/* Fails because dir has no configuration `file`: says what dir is, and what to give. */
enum ctw_status ctw_missing_config(const char *dir, const char *file,
                                   struct ctw_err *err) CTW_MUST_CHECK;

#endif
