/* Tensor maps: descriptors of arrays of 16-bit elements from which the copy engine loads boxes. */
#ifndef CTW_KERNELS_CUDA_TENSOR_MAP_H
#define CTW_KERNELS_CUDA_TENSOR_MAP_H

#include <cuda.h>

#include "kernels/cuda/cuda.h"

typedef CUresult ctw_encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                           const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                           CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                           CUtensorMapFloatOOBfill);

/*
 * An array of n_dims dimensions, innermost first: size[] in elements, stride[] in bytes for every
 * dimension except the innermost, loaded in boxes of box[] elements, swizzled by 128 bytes.
 * Elements outside the array read as 0. The driver's function is looked up by name, so that nothing
 * links against libcuda.
 */
static inline enum ctw_status ctw_tensor_map(CUtensorMap *map, enum ctw_dtype dtype, const void *p,
                                             int n_dims, const cuuint64_t *size,
                                             const cuuint64_t *stride, const cuuint32_t *box,
                                             struct ctw_err *err)
{
    static ctw_encode_fn *encode;
    static const cuuint32_t one[5] = {1, 1, 1, 1, 1};
    if (encode == NULL) {
        void *fn = NULL;
        enum cudaDriverEntryPointQueryResult found;
        enum ctw_status st = ctw_cuda_check(
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000,
                                             cudaEnableDefault, &found),
            "looking up cuTensorMapEncodeTiled", err);
        if (st != CTW_OK)
            return st;
        if (fn == NULL || found != cudaDriverEntryPointSuccess)
            return ctw_fail(err, CTW_EDEVICE, "cuda: the driver has no cuTensorMapEncodeTiled");
        encode = (ctw_encode_fn *)fn;
    }
    CUresult r = encode(map,
                        dtype == CTW_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                         : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                        (cuuint32_t)n_dims, (void *)p, size, stride, box, one,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS)
        return ctw_fail(err, CTW_EDEVICE,
                        "cuda: a tensor map of %d dimensions, [.., %llu, %llu]: error %d", n_dims,
                        (unsigned long long)size[1], (unsigned long long)size[0], (int)r);
    return CTW_OK;
}

#endif
