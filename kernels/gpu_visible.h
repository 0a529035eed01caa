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
/* CTW_EINVAL: it sees n, numbered from 0, and `device` is none of them. `mig`: the one that it sees
 * is an instance of a GPU, and CUDA never shows a program more than one. */
enum ctw_status ctw_gpu_missing(int device, int n, bool mig, struct ctw_err *err);

#ifdef __cplusplus
}
#endif

#endif
