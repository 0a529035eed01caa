/*
 * A warpgroup's matrix products (sm_90a) of 16-bit floats, for attention and recurrences: both
 * operands in shared memory, or the first in registers.
 */
#ifndef CTW_KERNELS_CUDA_PTX_WGMMA_H
#define CTW_KERNELS_CUDA_PTX_WGMMA_H

#include "kernels/cuda/elements.h"
#include "kernels/cuda/ptx_hopper.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/*
 * The descriptor of a matrix in shared memory whose rows run along k: 16 rows of k, their columns
 * in chunks of 64 elements (128 bytes, as laid out by a tensor copy with 128-byte swizzle), the
 * chunks `stride` bytes apart: start / 16; stride / 16 from bit 16 on; groups of 8 rows are 1024
 * bytes apart.
 */
CTW_DEV uint64_t value_descriptor(uint32_t address, uint32_t stride)
{
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(stride >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Keeps the compiler from moving reads of accumulators above the preceding wait. */
template <int N> CTW_DEV void sums_ready(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#define F8(i)                                                                                       \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),     \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define F32(i) F8(i), F8(i + 8), F8(i + 16), F8(i + 24)

#define D_32                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D_64                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "              \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "              \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D_128                                                                                       \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "              \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "              \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "              \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "              \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "              \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "  \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, "                                        \
    "%121, %122, %123, %124, %125, %126, %127"

#define SCORES_64(type)                                                                             \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"                                   \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" D_32              \
                 "}, %32, %33, add, 1, 1, 0, 0;\n}\n"                                               \
                 : F32(0)                                                                           \
                 : "l"(a), "l"(b), "r"(add))
#define SCORES_128(type)                                                                            \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                                   \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" D_64             \
                 "}, %64, %65, add, 1, 1, 0, 0;\n}\n"                                               \
                 : F32(0), F32(32)                                                                  \
                 : "l"(a), "l"(b), "r"(add))
#define VALUES_64(type)                                                                             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" D_32              \
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"                                      \
                 : F32(0)                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define ROWS_64(type)                                                                               \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" D_32              \
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;\n"                                      \
                 : F32(0)                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define VALUES_128(type)                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" D_64             \
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"                                      \
                 : F32(0), F32(32)                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define VALUES_256(type)                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" D_128            \
                 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;\n"                                 \
                 : F32(0), F32(32), F32(64), F32(96)                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/*
 * d [64, 2 * N] = (add ? d : 0) + a [64, 16] b [2 * N, 16]^T. A thread holds rows 16 * warp + lane
 * / 4 of d and 8 further down, columns 8 * j + 2 * (lane % 4) and the next: d[4 * j + 2 * (lower
 * row) + (next)].
 */
template <typename T, int N> CTW_DEV void score_product(float (&d)[N], uint64_t a, uint64_t b, int add)
{
    constexpr bool half = ctw_cuda_same_type<T, __half>;
    static_assert(N == 32 || N == 64, "no such product");
    if constexpr (N == 32 && half)
        SCORES_64("f16");
    else if constexpr (N == 32)
        SCORES_64("bf16");
    else if constexpr (half)
        SCORES_128("f16");
    else
        SCORES_128("bf16");
}

/* d [64, 2 * N] += a [64, 16] b [16, 2 * N]; a thread holds the same rows and columns of a. */
template <typename T, int N> CTW_DEV void value_product(float (&d)[N], const uint32_t *a, uint64_t b)
{
    constexpr bool half = ctw_cuda_same_type<T, __half>;
    static_assert(N == 32 || N == 64 || N == 128, "no such product");
    if constexpr (N == 32 && half)
        VALUES_64("f16");
    else if constexpr (N == 32)
        VALUES_64("bf16");
    else if constexpr (N == 64 && half)
        VALUES_128("f16");
    else if constexpr (N == 64)
        VALUES_128("bf16");
    else if constexpr (half)
        VALUES_256("f16");
    else
        VALUES_256("bf16");
}

/* d [64, 64] += a [64, 16] b [64, 16]^T; a thread holds the same rows and columns of a. */
template <typename T> CTW_DEV void row_product(float (&d)[32], const uint32_t *a, uint64_t b)
{
    if constexpr (ctw_cuda_same_type<T, __half>)
        ROWS_64("f16");
    else
        ROWS_64("bf16");
}

#undef ROWS_64
#undef VALUES_256
#undef VALUES_128
#undef VALUES_64
#undef SCORES_128
#undef SCORES_64
#undef D_128
#undef D_64
#undef D_32
#undef F32
#undef F8

#endif
#endif
