/* Why a checkpoint may lack a tensor, for the message. Used by tensors.c only. */
#ifndef CTW_WORKER_MISSING_H
#define CTW_WORKER_MISSING_H

#include "worker/checkpoint/container.h"
#include "worker/model/config.h"

/* "; the likely cause and the remedy", for what is wanted and not found; "" if nothing is known. */
const char *ctw_missing_remedy(const struct ctw_container *files, const struct ctw_want *want);

#endif
