/* The layers that the forward pass and the backend allow to be cut into units
 * (worker/weights/units.h). */
#ifndef CTW_WORKER_CUTS_H
#define CTW_WORKER_CUTS_H

#include "kernels/backend.h"
#include "worker/weights/units.h"

/* ctw_cuts_free() frees what *out holds, also after a failure. */
enum ctw_status ctw_cuts_find(struct ctw_cuts *out, const struct ctw_model *m,
                              const struct ctw_backend *be, enum ctw_dtype dtype,
                              struct ctw_err *err) CTW_MUST_CHECK;
void ctw_cuts_free(struct ctw_cuts *cuts);

#endif
