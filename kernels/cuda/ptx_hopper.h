/*
 * The instructions of sm_90a that gemm_hopper.cu needs and that C++ has no names for: barriers in
 * shared memory, tensor copies, matrix products of a warpgroup (128 threads, 4 warps).
 *
 * Addresses in shared memory are 32-bit numbers (shared_address()), which the instructions take.
 */
#ifndef CTW_KERNELS_CUDA_PTX_HOPPER_H
#define CTW_KERNELS_CUDA_PTX_HOPPER_H

#include <cuda.h>
#include <stdint.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define CTW_DEV static __device__ __forceinline__

CTW_DEV uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers in shared memory ------------------------------------------------------------ */

CTW_DEV void barrier_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

/* Makes initialised barriers visible to the other blocks of the cluster and to tensor copies. */
CTW_DEV void barrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

CTW_DEV void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives, and lets the phase end only after this many more bytes have been copied. */
CTW_DEV void barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* Lets the phase end only after this many more bytes have been copied. */
CTW_DEV void barrier_expect_more(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* The address of the same place in another block of the cluster, and an arrival there. The
 * arrival does not order the arriving thread's own memory accesses for the other block (that
 * would cost a GPU-wide fence): it is for slots that only matrix products have read, which have
 * finished by then. */
CTW_DEV uint32_t address_in_block(uint32_t address, uint32_t block)
{
    uint32_t r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(block));
    return r;
}

CTW_DEV void barrier_arrive_far(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Waits until the phase of this parity has ended. A new barrier's phase is 0; waiting for 1 passes. */
CTW_DEV void barrier_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@!over bra again;\n"
                 "}\n" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

CTW_DEV uint32_t block_in_cluster(void)
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

/* Synchronises all threads of all blocks of the cluster. */
CTW_DEV void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}

/* ---- tensor copies ------------------------------------------------------------------------ */

CTW_DEV void tensor_prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* A box of a matrix, from column c and row r on, to shared memory; its bytes count at `bar`. */
CTW_DEV void tensor_load(uint32_t dst, const CUtensorMap *map, int c, int r, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(dst),
                 "l"(map), "r"(c), "r"(r), "r"(bar)
                 : "memory");
}

/* The same copy to the same place, counting at the same barrier, in each block of the cluster in
 * `mask`. */
CTW_DEV void tensor_load_all(uint32_t dst, const CUtensorMap *map, int c, int r, uint32_t bar,
                             uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(dst),
                 "l"(map), "r"(c), "r"(r), "r"(bar), "h"(mask)
                 : "memory");
}

/* ---- copies by threads -------------------------------------------------------------------- */

CTW_DEV void copy_16(uint32_t to, const void *from, int bytes) /* 16, or 0 for zeros */
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* Arrives once all copies of this thread so far have been written. */
CTW_DEV void copies_arrive(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

/* Makes writes to shared memory, this thread's or those it has seen, visible to its matrix products and
 * tensor copies. */
CTW_DEV void shared_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- L2 ----------------------------------------------------------------------------------- */

/* Prefetches memory into L2. p and bytes are multiples of 16. */
CTW_DEV void prefetch_l2(const void *p, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}

/* p[0 .. 3] += v, at a multiple of 16 bytes. Rounded to nearest; subnormal numbers may become zeros. */
CTW_DEV void add_in_l2(float *p, const float (&v)[4])
{
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v[0]),
                 "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}

/* ---- matrix products ---------------------------------------------------------------------- */

template <int REGISTERS> CTW_DEV void registers_fewer(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> CTW_DEV void registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/*
 * The descriptor of a matrix in shared memory with contiguous rows of 64 16-bit elements (128
 * bytes), as laid out by a tensor copy with 128-byte swizzle, at a multiple of 1024 bytes:
 * start / 16 in bits 0..13, the stride between groups of 8 rows / 16 from bit 32 on (1024 / 16),
 * layout 1 (128-byte swizzle) from bit 62 on; the leading stride (bits 16..29) has no meaning in
 * this layout. The next 16 elements of k are 32 bytes, so 2, further on.
 */
CTW_DEV uint64_t matrix_descriptor(uint32_t address)
{
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

CTW_DEV void products_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

CTW_DEV void products_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most the PENDING most recently committed groups are still running. */
template <int PENDING> CTW_DEV void products_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from moving reads of accumulators above the preceding wait. */
CTW_DEV void accumulators_ready(float (&d)[128])
{
#pragma unroll
    for (int i = 0; i < 128; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#define CTW_PRODUCT_256(type)                                                                        \
    asm volatile(                                                                                    \
        "{\n"                                                                                        \
        ".reg .pred keep;\n"                                                                          \
        "setp.ne.b32 keep, %130, 0;\n"                                                                \
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {"                            \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "           \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "           \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
        "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
        "%126, %127}, "                                                                              \
        "%128, %129, keep, 1, 1, 0, 0;\n"                                                             \
        "}\n"                                                                                        \
        : CTW_F32S(0), CTW_F32S(32), CTW_F32S(64), CTW_F32S(96)                                      \
        : "l"(a), "l"(b), "r"(add))
#define CTW_F32S(i) CTW_F8S(i), CTW_F8S(i + 8), CTW_F8S(i + 16), CTW_F8S(i + 24)
#define CTW_F8S(i)                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),      \
        "+f"(d[i + 6]), "+f"(d[i + 7])

/*
 * d [64, 256] = (add ? d : 0) + a [64, 16] b [256, 16]^T. A thread holds rows 16 * warp + lane / 4
 * of d and 8 further down, columns 8 * j + 2 * (lane % 4) and the next:
 * d[4 * j + 2 * (lower row) + (next)].
 */
template <bool F16> CTW_DEV void product_64_256_16(float (&d)[128], uint64_t a, uint64_t b, int add)
{
    if constexpr (F16)
        CTW_PRODUCT_256("f16");
    else
        CTW_PRODUCT_256("bf16");
}

#undef CTW_F8S
#undef CTW_F32S
#undef CTW_PRODUCT_256

#endif
#endif
