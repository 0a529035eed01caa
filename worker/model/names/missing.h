/* Why a checkpoint may lack a tensor, for the message. */
#ifndef CTW_WORKER_MISSING_H
#define CTW_WORKER_MISSING_H

#include "worker/checkpoint/container/container.h"
#include "worker/model/config.h"

/* Writes "; the likely cause and the remedy" for a tensor that is missing; "" if no cause is
 * known. */
const char *ctw_missing_remedy(const struct ctw_container *files, const struct ctw_want *want);

#endif
