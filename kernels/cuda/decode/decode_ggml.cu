/*
 * GGUF's blocks of codes decoded into matrices: bit-equal to kernels/formats/ggml, except for a
 * NaN's payload. A thread decodes units of eight columns (decode_ggml.cuh); of most types a block
 * has 32 of them, so a warp decodes a block of each row, and stores 512 contiguous bytes.
 * any_format does the types with grids (IQ1 to IQ3), the ternary ones, and odd alignments.
 */
#include "kernels/cuda/decode/decode_ggml.cuh"

/* ctw_stored_row(), in 32 bits. */
static __device__ __forceinline__ uint32_t stored_row(uint32_t paired, uint32_t row)
{
    if (paired == 0)
        return row;
    const uint32_t i = row % paired, half = paired / 2;
    return row - i + 2 * (i < half ? i : i - half) + (i < half ? 0 : 1);
}

template <uint32_t TYPE, typename T>
__global__ void __launch_bounds__(THREADS)
    ggml_units(const __grid_constant__ struct plane p, const __grid_constant__ struct source s)
{
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    const uint32_t u = unit % BLOCK_UNITS<TYPE>, row_bytes = (uint32_t)s.w.row_bytes;
    const uint8_t *block = (const uint8_t *)s.data.part[CTW_PART_VALUES] +
                           unit / BLOCK_UNITS<TYPE> * BLOCK_BYTES<TYPE>;
    T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
    uint32_t row[ROWS];
    struct stored in[ROWS];
    plane_rows(p, r0, row);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        unit_of<TYPE>::load(block + (uint64_t)stored_row((uint32_t)s.w.paired, row[i]) * row_bytes,
                            u, in[i]);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (r0 + i >= p.n_rows)
            break;
        float v[8];
        unit_of<TYPE>::values(in[i], u, v);
        unit_store(dst + (uint64_t)i * p.k, v);
    }
}

template <uint32_t TYPE>
static bool decode_type(cudaStream_t stream, struct plane *p, const struct source *s,
                        enum ctw_dtype dtype)
{
    constexpr int ALIGN = unit_of<TYPE>::ALIGN;
    static_assert(BLOCK_BYTES<TYPE> % ALIGN == 0, "every block has the alignment of the first");
    if (!ctw_cuda_aligned16(p->dst) || !is_aligned(s->data.part[CTW_PART_VALUES], ALIGN))
        return false;
    const dim3 blocks = plane_cut(p, 8);
#define TO(T) ggml_units<TYPE, T><<<blocks, THREADS, 0, stream>>>(*p, *s)
    CTW_CUDA_FLOAT_SWITCH(dtype, TO);
#undef TO
    return true;
}

bool ctw_cuda_decode_ggml(cudaStream_t stream, struct plane *p, const struct source *s,
                          enum ctw_dtype dtype)
{
    if (s->w.format->id != CTW_FORMAT_ggml)
        return false;
#define CASE(name)                                                                                 \
    case CTW_BLOCK_##name:                                                                         \
        return decode_type<CTW_BLOCK_##name>(stream, p, s, dtype);
    switch (s->w.block) {
        CASE(Q4_0)
        CASE(Q4_1)
        CASE(Q5_0)
        CASE(Q5_1)
        CASE(Q8_0)
        CASE(Q2_K)
        CASE(Q3_K)
        CASE(Q4_K)
        CASE(Q5_K)
        CASE(Q6_K)
        CASE(IQ4_NL)
        CASE(IQ4_XS)
        CASE(IQ2_XXS)
        CASE(IQ2_XS)
        CASE(IQ2_S)
        CASE(IQ3_XXS)
        CASE(IQ3_S)
        CASE(IQ1_S)
        CASE(IQ1_M)
        CASE(TQ2_0)
        CASE(MXFP4)
        CASE(NVFP4)
    default:
        return false;
    }
#undef CASE
}
