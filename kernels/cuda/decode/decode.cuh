/*
 * Shared by the kernels that decode weights: which rows they decode, and where these are stored.
 *
 * A thread has a unit of 8 (or 4) neighbouring columns of ROWS rows: a warp then stores 512
 * contiguous bytes, and each thread has ROWS loads in flight at once. Such a kernel moves at least
 * 2 bytes per element. To be bound by memory it must spend at most about 12 instructions per
 * element, including address computation: addresses are therefore 32-bit products, which take one
 * instruction.
 */
#ifndef CTW_KERNELS_CUDA_DECODE_CUH
#define CTW_KERNELS_CUDA_DECODE_CUH

#include "kernels/cuda/elements.h"
#include "kernels/formats/format.h"

enum { THREADS = 128, ROWS = 2 };

/* Which rows are decoded, and where they are stored. Rows and columns are at most CTW_MAX_DIM. */
struct plane {
    const int32_t *rows; /* device: our row r is the weight's row row0 + rows[r]; NULL: row0 + r */
    uint32_t row0, n_rows, k;
    uint32_t units;  /* per row */
    int shift;       /* our rows go to dst in blocks of 1 << shift (ROWS or more), */
    uint32_t stride; /* which start at every stride-th row of dst */
    void *dst;
};

/* The weight, as device code sees it. */
struct source {
    struct ctw_weight w;
    struct ctw_weight_data data;
};

/*
 * Blocks for units of `unit` columns, with THREADS units and ROWS rows per block: x counts along a
 * row, y and z together the rows. The last z may have blocks without rows.
 */
static inline dim3 plane_cut(struct plane *p, uint32_t unit)
{
    uint32_t down = (p->n_rows + ROWS - 1) / ROWS, z = (down + 32767) / 32768;
    p->units = (p->k + unit - 1) / unit;
    return dim3((p->units + THREADS - 1) / THREADS, (down + z - 1) / z, z);
}

/* The thread's unit and the first of its ROWS rows; false: the thread has no work. */
static __device__ __forceinline__ bool plane_place(const struct plane &p, uint32_t *unit, uint32_t *r0)
{
    *unit = blockIdx.x * THREADS + threadIdx.x;
    *r0 = (blockIdx.z * gridDim.y + blockIdx.y) * ROWS;
    return *unit < p.units && *r0 < p.n_rows;
}

static __device__ __forceinline__ uint32_t plane_row(const struct plane &p, uint32_t r)
{
    return p.row0 + (p.rows != NULL ? (uint32_t)p.rows[r] : r);
}

/* The weight's rows for ours from r0 on. Past the last row, the last row is used, so that loads
 * need no branches. */
template <int N>
static __device__ __forceinline__ void plane_rows(const struct plane &p, uint32_t r0, uint32_t (&row)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        row[i] = r0 + i < p.n_rows ? r0 + i : p.n_rows - 1;
    if (p.rows != NULL) {
#pragma unroll
        for (int i = 0; i < N; i++)
            row[i] = (uint32_t)p.rows[row[i]];
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        row[i] += p.row0;
}

/* The index in dst of the first element of our row r. For row r + i, with r a multiple of a
 * block's rows and i less than a block's rows, the index is i * k more. */
static __device__ __forceinline__ uint64_t plane_at(const struct plane &p, uint32_t r)
{
    uint32_t row = (r >> p.shift) * p.stride + (r & ((1u << p.shift) - 1u));
    return (uint64_t)row * p.k;
}

/* *p = v. The compiler (13.0) splits this into words if it derives p from another store's
 * address. */
static __device__ __forceinline__ void store16(uint4 *p, uint4 v)
{
    asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* Stores a unit's values to p, each rounded once. */
template <typename T> static __device__ __forceinline__ void unit_store(T *p, const float (&v)[8])
{
    T raw[8];
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        ctw_cuda_narrow2(v[i], v[i + 1], raw + i);
#pragma unroll
    for (int i = 0; i < (int)sizeof(T) / 2; i++) {
        uint4 part;
        memcpy(&part, raw + i * (16 / sizeof(T)), 16);
        store16((uint4 *)p + i, part);
    }
}

/* Host: is p aligned for accesses of this many bytes? */
static inline bool is_aligned(const void *p, size_t bytes)
{
    return (uintptr_t)p % bytes == 0;
}

/* decode_pack.cu: any pack-quantized weight. */
void ctw_cuda_decode_pack(cudaStream_t stream, struct plane *p, const struct source *s,
                          enum ctw_dtype dtype);

/* decode_pack.cu: mlx-affine weights; false: another format, or a layout that its kernels do not
 * support. */
bool ctw_cuda_decode_affine(cudaStream_t stream, struct plane *p, const struct source *s,
                            enum ctw_dtype dtype);

/* decode_ggml.cu: ggml weights; decode_bnb.cu: bnb-4bit weights; false as above. */
bool ctw_cuda_decode_ggml(cudaStream_t stream, struct plane *p, const struct source *s,
                          enum ctw_dtype dtype);
bool ctw_cuda_decode_bnb(cudaStream_t stream, struct plane *p, const struct source *s,
                         enum ctw_dtype dtype);

/* decode_bytes.cu: float-quantized, int-quantized and mxfp8 weights; false as above. */
bool ctw_cuda_decode_bytes(cudaStream_t stream, struct plane *p, const struct source *s,
                           enum ctw_dtype dtype);

/* decode_bands.cu: exl3 weights. */
void ctw_cuda_decode_bands(cudaStream_t stream, const struct plane *p, const struct source *s,
                           enum ctw_dtype dtype);

/* decode_transposed.cu: dense-transposed, gptq and awq weights; false as above. */
bool ctw_cuda_decode_transposed(cudaStream_t stream, struct plane *p, const struct source *s,
                                enum ctw_dtype dtype);

#endif
