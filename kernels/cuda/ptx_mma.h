/*
 * Products of 16-bit tiles by a warp (mma.sync m16n8k16, sm_80 on) and their loads and stores.
 * Addresses in shared memory are 32-bit numbers, of rows of 8 elements (16 bytes).
 *
 * Of a tile d [16, 8] a lane holds rows lane / 4 and 8 further down, columns 2 (lane % 4) and the
 * next: d[2 * (lower row) + (next)]. Two such tiles side by side, each pair of columns packed, are
 * the operand a [16, 16]. The tile [8, 16] in which column n of b is row n has b0 and b1 like two
 * quarters of a.
 */
#ifndef CTW_KERNELS_CUDA_PTX_MMA_H
#define CTW_KERNELS_CUDA_PTX_MMA_H

#include "kernels/cuda/elements.h"

#ifdef __CUDACC__

/* Four matrices of 8 rows; lane i has the address of row i % 8 of matrix i / 8. */
static __device__ __forceinline__ void load_4(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void load_4_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

#define CTW_PRODUCT(type)                                                                          \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                             \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                          \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                           \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

/* d [16, 8] += a [16, 16] b [16, 8] */
template <typename T>
static __device__ __forceinline__ void product(float *d, const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
{
    if constexpr (ctw_cuda_same_type<T, __half>)
        CTW_PRODUCT("f16");
    else
        CTW_PRODUCT("bf16");
}

#undef CTW_PRODUCT

#endif
#endif
