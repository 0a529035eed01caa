/*
 * For attention_hopper.cu: a warpgroup's matrix products, and copies and barriers.
 */
#ifndef CTW_KERNELS_CUDA_ATTENTION_WGMMA_CUH
#define CTW_KERNELS_CUDA_ATTENTION_WGMMA_CUH

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/ptx_wgmma.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* ---- copies and barriers ------------------------------------------------------------------ */

/* Copies a box of an array [rows, heads, elements], starting at an element, head and row, to
 * shared memory. */
CTW_DEV void box_load(uint32_t dst, const CUtensorMap *map, int element, int head, int row, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(dst),
                 "l"(map), "r"(element), "r"(head), "r"(row), "r"(bar)
                 : "memory");
}

CTW_DEV void copies_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

CTW_DEV void store_16(uint32_t to, uint4 x)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}

/* Barriers among some warps: n threads in total. */
CTW_DEV void meet(int id, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}

CTW_DEV void meet_later(int id, int n)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}

#endif
#endif
