/*
 * RMS norms of groups of a row, then an activation's product with them: ctw_norm() and ctw_act() in
 * one pass over memory, with their bits. A group has 16 or 32 lanes, each 8 elements. The sums of
 * squares are those of norm.cu, where lanes without elements add zeros.
 */
#include "kernels/cuda/activations.h"
#include "kernels/cuda/elements.h"

enum { THREADS = 128, VECTOR = 8, ITEMS = 2 }; /* items of a thread are loaded together */

struct norm_act {
    const void *x, *weight, *gate;
    void *y;
    int64_t ldx, ldgate, ldy;
    enum ctw_dtype weight_dtype;
    enum ctw_activation act;
    float weight_offset, eps;
    unsigned n_items, n_groups, dim; /* items: groups of all rows */
    unsigned gate_rows, gate_dim;    /* rows of the activation per row of the norm */
};

/* Where a thread's elements of an item are. */
struct place {
    int64_t x, gate, y;
};

static __device__ __forceinline__ struct place place_of(const struct norm_act &a, unsigned item,
                                                        unsigned at)
{
    const unsigned t = item / a.n_groups, element = (item - t * a.n_groups) * a.dim + at;
    const unsigned part = element / a.gate_dim, column = element - part * a.gate_dim;
    const int64_t row = (int64_t)t * a.gate_rows + part;
    return (struct place){t * a.ldx + element, row * a.ldgate + column, row * a.ldy + column};
}

template <typename T, int LANES>
__global__ void __launch_bounds__(THREADS) norm_act(const __grid_constant__ struct norm_act a)
{
    const unsigned at = threadIdx.x % LANES * VECTOR;
    const unsigned first = blockIdx.x * (THREADS / LANES * ITEMS) + threadIdx.x / LANES;
    float w[VECTOR] = {};
    uint4 x[ITEMS], gate[ITEMS];
    struct place place[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const unsigned item = first + i * (THREADS / LANES);
        x[i] = gate[i] = make_uint4(0, 0, 0, 0);
        place[i] = place_of(a, item, at);
        if (item < a.n_items && at < a.dim) {
            x[i] = __ldcs((const uint4 *)((const T *)a.x + place[i].x));
            gate[i] = __ldcs((const uint4 *)((const T *)a.gate + place[i].gate));
        }
    }
    if (at < a.dim) {
#define WEIGHT(W) ctw_cuda_load<false>((const W *)a.weight + at, w)
        CTW_CUDA_FLOAT_SWITCH(a.weight_dtype, WEIGHT);
#undef WEIGHT
    }
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        T rx[VECTOR], rg[VECTOR];
        float v[VECTOR], sum = 0;
        memcpy(rx, &x[i], 16);
        memcpy(rg, &gate[i], 16);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            v[j] = ctw_cuda_widen(rx[j]);
            sum = fmaf(v[j], v[j], sum);
        }
        const float r = 1.0f / sqrtf(ctw_cuda_lanes_sum(sum, LANES) / (float)(int)a.dim + a.eps);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            T normed;
            ctw_cuda_narrow(fmaf(v[j] * r, w[j] + a.weight_offset, 0.0f), &normed);
            const float g = ctw_cuda_widen(rg[j]);
            const float act = a.act == CTW_ACT_SIGMOID ? 1.0f / (1.0f + expf(-g))
                                                       : ctw_cuda_smooth(CTW_ACT_SILU, g);
            v[j] = act * ctw_cuda_widen(normed);
        }
        if (first + i * (THREADS / LANES) < a.n_items && at < a.dim)
            ctw_cuda_store((T *)a.y + place[i].y, v);
    }
}

/* Depends on the model alone. */
static bool can(const struct ctw_op_norm *n, const struct ctw_op_act *g)
{
    return n->kind == CTW_NORM_RMS && n->dtype != CTW_F32 && n->x_dtype == n->dtype &&
           n->weight != NULL && !n->own_weights && n->bias == NULL && n->factor == 1 && !n->add &&
           n->rows == NULL && n->bad == NULL && n->dim % VECTOR == 0 && n->dim <= 32 * VECTOR &&
           (g->act == CTW_ACT_SILU || g->act == CTW_ACT_SIGMOID) && g->dim % n->dim == 0 &&
           n->n_tok * n->n_groups <= INT32_MAX / 32 &&
           (n->ldx | g->ldx | g->ldy) % VECTOR == 0 && ctw_cuda_aligned16(n->x) &&
           ctw_cuda_aligned16(n->weight) && ctw_cuda_aligned16(g->x) && ctw_cuda_aligned16(g->y);
}

enum ctw_status ctw_cuda_norm_act(struct ctw_cuda *cu, const struct ctw_op_norm *n,
                                  const struct ctw_op_act *g, bool *done, struct ctw_err *err)
{
    *done = can(n, g);
    if (!*done || n->n_tok == 0)
        return CTW_OK;
    struct norm_act a = {};
    a.x = n->x;
    a.weight = n->weight;
    a.gate = g->x;
    a.y = g->y;
    a.ldx = n->ldx;
    a.ldgate = g->ldx;
    a.ldy = g->ldy;
    a.weight_dtype = n->weight_dtype;
    a.act = g->act;
    a.weight_offset = n->weight_offset;
    a.eps = n->eps;
    a.n_groups = (unsigned)n->n_groups;
    a.n_items = (unsigned)n->n_tok * a.n_groups;
    a.dim = (unsigned)n->dim;
    a.gate_rows = (unsigned)(g->n_tok / n->n_tok);
    a.gate_dim = (unsigned)g->dim;
    const unsigned lanes = n->dim <= 16 * VECTOR ? 16 : 32;
    const unsigned block = THREADS / lanes * ITEMS, blocks = (a.n_items + block - 1) / block;
#define LAUNCH(T, LANES) norm_act<T, LANES><<<blocks, THREADS, 0, cu->stream>>>(a)
    if (n->dtype == CTW_BF16 && lanes == 16)
        LAUNCH(__nv_bfloat16, 16);
    else if (n->dtype == CTW_BF16)
        LAUNCH(__nv_bfloat16, 32);
    else if (lanes == 16)
        LAUNCH(__half, 16);
    else
        LAUNCH(__half, 32);
#undef LAUNCH
    return ctw_cuda_launched("norm and activation", err);
}
