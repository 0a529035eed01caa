/*
 * For kernels with mma.sync m16n8k16 on 16-bit floats (sm_80 on): tiles in shared memory, their loads,
 * and products of them. Rows have HD elements in chunks of 16 bytes, swizzled so that 8 rows' chunks of
 * one column lie in different banks.
 */
#ifndef CTW_KERNELS_CUDA_ATTENTION_MMA_CUH
#define CTW_KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/ptx_mma.h"

ATTN_DEV uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* The offset in bytes of a row's chunk from the tile's start. */
template <int HD> ATTN_DEV uint32_t chunk_at(int row, int chunk)
{
    int mask = HD % 64 == 0 ? row & 7 : row >> 1 & 3;
    return (uint32_t)(row * HD * 2 + ((chunk ^ mask) << 4));
}

/* ---- loading ------------------------------------------------------------------------------ */

ATTN_DEV void copy_16(uint32_t to, const void *from, int bytes) /* 16, or 0 for zeros */
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

ATTN_DEV void copies_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

ATTN_DEV void copies_wait(void)
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* Elements d .. d+7 of the n elements at `from`, zeros past the end; finite: also zeros for
 * elements that are not finite. */
template <typename T> ATTN_DEV void load_slowly(uint32_t to, const T *from, int d, int n, bool finite)
{
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float lo = d + 2 * i < n ? (float)from[d + 2 * i] : 0.0f;
        float hi = d + 2 * i + 1 < n ? (float)from[d + 2 * i + 1] : 0.0f;
        w[i] = attn_pair<T>(lo, hi); /* exact */
        if (finite)
            w[i] = attn_pair_finite<T>(w[i]);
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]),
                 "r"(w[3])
                 : "memory");
}

/* ---- products ----------------------------------------------------------------------------- */

/* s [16 * MT rows, N] = q k^T of a warp; s as in attention.cuh, 16 rows after another. */
template <typename T, int HD, int MT, int N>
ATTN_DEV void scores(float (&s)[MT][N / 2], uint32_t q, uint32_t k)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            s[m][i] = 0;
#pragma unroll
    for (int c = 0; c < HD / 8; c += 2) { /* 16 elements of the head */
        uint32_t qf[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            load_4(qf[m], q + chunk_at<HD>(16 * m + (lane & 15), c + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < N / 16; n++) { /* 16 keys */
            uint32_t kf[4];
            load_4(kf, k + chunk_at<HD>(16 * n + (lane & 7) + (lane >> 4) * 8, c + (lane >> 3 & 1)));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                product<T>(&s[m][8 * n], qf[m], kf[0], kf[1]);
                product<T>(&s[m][8 * n + 4], qf[m], kf[2], kf[3]);
            }
        }
    }
}

#undef PRODUCT

#endif
