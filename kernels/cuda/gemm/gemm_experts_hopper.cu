/*
 * Products of experts on sm_90a: with rows of x that are gathered, with clamps in act(gate) * up,
 * with an activation of the rounded sums, and with rows of y that are scattered. The sums are the
 * same bits as without.
 */
#include "kernels/cuda/gemm/gemm_hopper_launch.h"
#include "kernels/cuda/gemm/gemm_hopper_pair.h"

#include <math.h>

enum { STORE, SILU, GELU_TANH, GLU, RELU2, N_GATHER };

typedef void pair_fn(CUtensorMap, CUtensorMap, CUtensorMap, struct pair);

#define PAIR(f16)                                                                                  \
    {                                                                                              \
        pair_kernel<f16, EPI_STORE16>, pair_kernel<f16, EPI_SILU>,                                 \
            pair_kernel<f16, EPI_GELU_TANH>, pair_kernel<f16, EPI_GLU>,                            \
            pair_kernel<f16, EPI_RELU2>                                                            \
    }
static pair_fn *const pair_kernels[2][N_GATHER] = {PAIR(false), PAIR(true)};
static kernel_fn *const glu_kernels[2] = {product_kernel<false, EPI_GLU>,
                                          product_kernel<true, EPI_GLU>};
static kernel_fn *const relu2_kernels[2] = {product_kernel<false, EPI_RELU2>,
                                            product_kernel<true, EPI_RELU2>};

/* The kernel for this end of a product; -1: none. Depends on the model alone. */
static int kernel_of(const struct ctw_cuda_ending *end)
{
    const struct ctw_glu *glu = &end->glu;
    const enum ctw_activation act = end->act;
    if (end->kind == ctw_cuda_ending::CTW_CUDA_STORED)
        return STORE;
    if (end->kind == ctw_cuda_ending::CTW_CUDA_ACTIVATED)
        return act == CTW_ACT_RELU2 ? (int)RELU2 : -1;
    if (glu->kind == CTW_GLU_BOUNDED)
        return -1;
    if (glu->kind == CTW_GLU_OFFSET || glu->kind == CTW_GLU_SLOPED ||
        (glu->kind != CTW_GLU_PLAIN && act == CTW_ACT_SILU))
        return GLU;
    if (glu->kind != CTW_GLU_PLAIN)
        return -1;
    return act == CTW_ACT_SILU ? (int)SILU : act == CTW_ACT_GELU_TANH ? (int)GELU_TANH : -1;
}

static struct glu glu_of(const struct ctw_glu *glu)
{
    struct glu a = {1, INFINITY, INFINITY, glu->limit, 0};
    if (glu->kind == CTW_GLU_CLAMPED_ACT)
        a.above = glu->limit;
    else
        a.below = glu->limit;
    if (glu->kind == CTW_GLU_OFFSET || glu->kind == CTW_GLU_SLOPED)
        a.alpha = glu->alpha;
    if (glu->kind == CTW_GLU_OFFSET)
        a.offset = 1;
    return a;
}

/* Without rows to gather, only products that gemm_hopper.cu does not have. */
bool ctw_cuda_gather_hopper_can(const struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                const struct ctw_cuda_ending *end)
{
    int which = kernel_of(end);
    return fits(cu, g) && fits_y(g) && !g->add && g->y_dtype == g->dtype && which >= 0 &&
           (g->x_rows != NULL || which == GLU || which == RELU2) &&
           (end->kind != ctw_cuda_ending::CTW_CUDA_GATED ||
            ctw_cuda_gate_hopper_can(cu, g->dtype, g->n, g->k));
}

bool ctw_cuda_scatter_hopper_can(const struct ctw_cuda *cu, const struct ctw_cuda_gemm *g)
{
    return fits(cu, g) && fits_y(g) && g->y_dtype == CTW_F32 && g->x_rows == NULL;
}

enum ctw_status ctw_cuda_gather_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                       const struct ctw_cuda_ending *end, struct ctw_err *err)
{
    const bool f16 = g->dtype == CTW_F16, glu = kernel_of(end) == GLU;
    if (g->x_rows != NULL)
        return ctw_cuda_pair_hopper(cu, g, end, NULL, err);
    struct product p = product_of(g);
    if (glu)
        p.glu = glu_of(&end->glu);
    return ctw_hopper_launch(cu, g, &p, glu ? glu_kernels[f16] : relu2_kernels[f16], err);
}

/* Steps of a tile: its products, and the approximate extra time of its end over the start of
 * another tile. */
static struct ctw_pair_side side_of(const struct product *p, bool gathered)
{
    struct ctw_pair_side side = {p->n_tiles, p->n_steps + (gathered ? 3 : 6)};
    return side;
}

enum ctw_status ctw_cuda_pair_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *gathered,
                                     const struct ctw_cuda_ending *end,
                                     const struct ctw_cuda_gemm *scattered, struct ctw_err *err)
{
    const struct ctw_cuda_gemm *g = gathered != NULL ? gathered : scattered;
    const struct ctw_cuda_gemm *s = scattered != NULL ? scattered : gathered;
    int which = gathered != NULL ? kernel_of(end) : STORE;
    CUtensorMap gathered_w, x, w;
    struct pair p = {product_of(g), product_of(s), {}};
    if (which == GLU)
        p.gathered.glu = glu_of(&end->glu);
    p.gathered.n_tiles = gathered != NULL ? p.gathered.n_tiles : 0;
    p.scattered.n_tiles = scattered != NULL ? p.scattered.n_tiles : 0;
    int n_tiles = p.gathered.n_tiles + p.scattered.n_tiles;
    struct ctw_pair_side sides[2] = {side_of(&p.gathered, true), side_of(&p.scattered, false)};
    p.shares = ctw_pair_shares_of(&sides[0], &sides[1], clusters_for(cu, n_tiles));
    enum ctw_status st = w_map_of(&gathered_w, g, err);
    if (st == CTW_OK)
        st = x_map_of(&x, s, err);
    if (st == CTW_OK)
        st = w_map_of(&w, s, err);
    pair_fn *kernel = pair_kernels[g->dtype == CTW_F16][which];
    return st == CTW_OK ? start(cu, n_tiles, kernel, err, gathered_w, x, w, p) : st;
}
