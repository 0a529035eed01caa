/* Shared by the kernels of attention over pooled keys. */
#ifndef CTW_KERNELS_CUDA_POOL_ATTENTION_CUH
#define CTW_KERNELS_CUDA_POOL_ATTENTION_CUH

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/pool.h"

enum { CTW_POOL_QUERIES = 16 }; /* of a tile */

/* The launch by tensor cores; NULL: they do not take these heads, this alignment, or need more than
 * shared_bytes of shared memory. Depends on the model and the GPU's architecture alone. */
ctw_attn_launch_fn *ctw_pool_attention_tiles(const struct ctw_op_pool_attention *op,
                                             int shared_bytes);

#endif
