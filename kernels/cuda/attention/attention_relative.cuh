/* A learned bias of scores by distance (struct ctw_relative), element by element of a head's state. */
#ifndef CTW_CUDA_ATTENTION_RELATIVE_CUH
#define CTW_CUDA_ATTENTION_RELATIVE_CUH

#include "kernels/cuda/attention/attention.cuh"

/* The bias of row `row` of a tile by distance, in units of scores before scaling: add(i, x) is called
 * with each element i of the row's state and its factor, x. Rows past the last have the last row's. */
template <typename T, typename Add>
ATTN_DEV void attn_each_state(const struct ctw_attn &a, const struct ctw_attn_tile &t, int kv, int sub,
                              int row, Add add)
{
    const struct ctw_relative &r = a.relative;
    const int p = row / a.pack, last = min(p, t.n_q - 1);
    const int head = kv * a.group + min(row - p * a.pack + sub * a.pack, a.group - 1);
    const T *state = (const T *)r.states + (int64_t)(t.q_row + last) * r.ld + head * r.rank;
    const float factor = r.factor == NULL ? a.per_scale : a.per_scale * r.factor[t.pos + last];
    for (int i = 0; i < r.rank; i++)
        add(i, factor * ctw_cuda_widen(state[i]));
}

/* Element i of the bias's proj at distance d, or 0. */
ATTN_DEV float attn_relative_at(const struct ctw_relative &r, int i, int d)
{
    return d >= 0 && d < r.extent ? ctw_cuda_number(r.proj, r.proj_dtype, i * r.extent + d) : 0.0f;
}

#endif
