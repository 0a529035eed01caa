/* Device memory, for the files that open and describe the GPU. */
#ifndef CTW_KERNELS_CUDA_CONTEXT_H
#define CTW_KERNELS_CUDA_CONTEXT_H

#include "kernels/cuda/cuda.h"

/* Row of the table, as in kernels/backend.h. */
enum ctw_status ctw_cuda_alloc(struct ctw_backend *be, void **out, size_t bytes,
                               struct ctw_err *err);

#endif
