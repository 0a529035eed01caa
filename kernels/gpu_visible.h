/* Messages about GPUs that a program does not see, for backends of GPUs; without CUDA. */
#ifndef CTW_KERNELS_GPU_VISIBLE_H
#define CTW_KERNELS_GPU_VISIBLE_H

#include <stdbool.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CTW_EUNSUP: the program sees no GPU. */
enum ctw_status ctw_gpu_none(struct ctw_err *err);
/* CTW_EINVAL: n GPUs are visible, numbered from 0, and there is no GPU `device`. `mig`: the visible
 * one is a MIG instance; CUDA shows a process at most one. */
enum ctw_status ctw_gpu_missing(int device, int n, bool mig, struct ctw_err *err);

#ifdef __cplusplus
}
#endif

#endif
