/* How fast a backend multiplies matrices now. */
#ifndef CTW_WORKER_COMPUTE_RATE_H
#define CTW_WORKER_COMPUTE_RATE_H

#include "kernels/backend.h"

/* Floating-point operations a second. On a CPU, measured on a product of a typical size, for a few
 * dozen milliseconds; on a GPU, the figure that the backend states. */
double ctw_compute_rate(struct ctw_backend *be, enum ctw_dtype dtype);

#endif
