/*
 * bitsandbytes' NF4 and FP4 decoded into matrices: bit-equal to kernels/formats/bnb_4bit. The codes
 * of the whole matrix are one stream, so a unit of eight columns is a word, and lies in one block
 * if rows are whole units.
 */
#include "kernels/cuda/decode/decode.cuh"
#include "kernels/formats/bnb_4bit/decode.h"

/* The scale of a block (ctw_bnb_scale()), from aligned parts. */
template <bool NESTED>
static __device__ __forceinline__ float block_scale(const struct source &s, uint64_t block)
{
    const void *scales = s.data.part[CTW_PART_SCALE];
    if constexpr (!NESTED)
        return ((const float *)scales)[block];
    float a = ((const float *)s.data.part[CTW_PART_SCALE_VALUES])[((const uint8_t *)scales)[block]];
    a *= ((const float *)s.data.part[CTW_PART_SCALE_SCALE])[block / CTW_BNB_NESTED_BLOCK];
    return a + s.w.scale_offset;
}

/* shift: of a block of 1 << shift values. Values have the type VALUES before they are stored as T.
 */
template <typename T, enum ctw_dtype VALUES, bool NESTED>
__global__ void __launch_bounds__(THREADS)
    bnb_units(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
              int shift)
{
    __shared__ float table[16];
    if (threadIdx.x < 16)
        table[threadIdx.x] = ctw_bnb_value(threadIdx.x, s.w.fp4);
    __syncthreads();
    uint32_t unit, r0;
    if (!plane_place(p, &unit, &r0))
        return;
    const uint32_t *values = (const uint32_t *)s.data.part[CTW_PART_VALUES] + unit;
    T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
    uint32_t row[ROWS], word[ROWS];
    float scale[ROWS];
    plane_rows(p, r0, row);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint64_t at = (uint64_t)row[i] * p.units;
        const uint64_t block = (at + unit) * 8 >> shift;
        word[i] = __ldcs(values + at);
        scale[i] = block_scale<NESTED>(s, block);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (r0 + i >= p.n_rows)
            break;
        float v[8];
#pragma unroll
        for (int c = 0; c < 8; c++) { /* the first of a byte is in its high half */
            v[c] = table[word[i] >> (4 * (c ^ 1)) & 15u] * scale[i];
            if constexpr (VALUES != CTW_F32)
                v[c] = ctw_cuda_round(v[c], VALUES);
        }
        unit_store(dst + (uint64_t)i * p.k, v);
    }
}

template <typename T, enum ctw_dtype VALUES>
static void decode_values(cudaStream_t stream, const dim3 &blocks, const struct plane *p,
                          const struct source *s, int shift)
{
    if (s->w.part[CTW_PART_SCALE].dtype == CTW_F32)
        bnb_units<T, VALUES, false><<<blocks, THREADS, 0, stream>>>(*p, *s, shift);
    else
        bnb_units<T, VALUES, true><<<blocks, THREADS, 0, stream>>>(*p, *s, shift);
}

bool ctw_cuda_decode_bnb(cudaStream_t stream, struct plane *p, const struct source *s,
                         enum ctw_dtype dtype)
{
    const struct ctw_weight *w = &s->w;
    const bool nested = w->part[CTW_PART_SCALE].dtype != CTW_F32;
    int shift = 3;
    while ((int64_t)1 << shift < w->group_size)
        shift++;
    if (w->format->id != CTW_FORMAT_bnb_4bit || (int64_t)1 << shift != w->group_size ||
        p->k % 8 != 0 || !ctw_cuda_aligned16(p->dst) ||
        !is_aligned(s->data.part[CTW_PART_VALUES], 4) ||
        (nested ? !is_aligned(s->data.part[CTW_PART_SCALE_VALUES], 4) ||
                      !is_aligned(s->data.part[CTW_PART_SCALE_SCALE], 4)
                : !is_aligned(s->data.part[CTW_PART_SCALE], 4)))
        return false;
    const dim3 blocks = plane_cut(p, 8);
    /* A value that is stored in its own type, or as fp32's nearest of a narrower one, is rounded
     * once. */
#define TO(T)                                                                                      \
    do {                                                                                           \
        if (w->dtype == CTW_F32 || w->dtype == dtype)                                              \
            decode_values<T, CTW_F32>(stream, blocks, p, s, shift);                                \
        else if (w->dtype == CTW_BF16)                                                             \
            decode_values<T, CTW_BF16>(stream, blocks, p, s, shift);                               \
        else                                                                                       \
            decode_values<T, CTW_F16>(stream, blocks, p, s, shift);                                \
    } while (0)
    CTW_CUDA_FLOAT_SWITCH(dtype, TO);
#undef TO
    return true;
}
