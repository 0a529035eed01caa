/* Memory that a device copies from should lie at the device's node (base/numa.h). */
#ifndef CTW_WORKER_NEAR_H
#define CTW_WORKER_NEAR_H

#include "kernels/backend.h"

/* From now on, the calling thread runs at the device's node, where its stages then lie. */
void ctw_run_near(struct ctw_backend *be);

#endif
