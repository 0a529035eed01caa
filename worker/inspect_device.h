/* ctworker inspect --hashes on a backend with memory of its own: its decoders, from its memory. */
#ifndef CTW_WORKER_INSPECT_DEVICE_H
#define CTW_WORKER_INSPECT_DEVICE_H

#include "worker/engine.h"

/* As ctw_inspect_hashes(), with what opt's backend decodes. CTW_EUNSUP: it decodes host memory. */
enum ctw_status ctw_inspect_device_hashes(const struct ctw_model *model,
                                          const struct ctw_engine_options *opt,
                                          struct ctw_err *err) CTW_MUST_CHECK;

#endif
