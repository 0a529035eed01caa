/*
 * Products of experts on sm_90a: gemm_hopper.cu's kernel with rows of x that it gathers, with clamps
 * in act(gate) * up, and with rows that are scattered. The sums are the same bits as without.
 */
#include "kernels/cuda/gemm/gemm_hopper_launch.h"

#include <math.h>

/* ---- gathered rows, and clamps ------------------------------------------------------------ */

enum { STORE, SILU, GELU_TANH, GLU, N_GATHER };

#define GATHER(f16)                                                                                \
    {                                                                                              \
        product_kernel<f16, EPI_STORE16, true>, product_kernel<f16, EPI_SILU, true>,               \
            product_kernel<f16, EPI_GELU_TANH, true>, product_kernel<f16, EPI_GLU, true>           \
    }
static kernel_fn *const gather_kernels[2][N_GATHER] = {GATHER(false), GATHER(true)};
static kernel_fn *const glu_kernels[2] = {product_kernel<false, EPI_GLU, false>,
                                          product_kernel<true, EPI_GLU, false>};
static kernel_fn *const scatter_kernels[2] = {product_kernel<false, EPI_SCATTER, false>,
                                              product_kernel<true, EPI_SCATTER, false>};

/* The kernel for this end of a product; -1: none. Depends on the model alone. */
static int kernel_of(bool gate, enum ctw_activation act, const struct ctw_glu *glu)
{
    if (!gate)
        return STORE;
    if (glu->kind == CTW_GLU_OFFSET || (glu->kind != CTW_GLU_PLAIN && act == CTW_ACT_SILU))
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
    if (glu->kind == CTW_GLU_OFFSET) {
        a.alpha = glu->alpha;
        a.offset = 1;
    }
    return a;
}

/* Without rows to gather, only what gemm_hopper.cu does not have. */
bool ctw_cuda_gather_hopper_can(const struct ctw_cuda *cu, const struct ctw_cuda_gemm *g, bool gate,
                                enum ctw_activation act, const struct ctw_glu *glu)
{
    int which = kernel_of(gate, act, glu);
    return fits(cu, g) && fits_y(g) && !g->add && g->y_dtype == g->dtype && which >= 0 &&
           (g->x_rows != NULL || which == GLU) &&
           (!gate || ctw_cuda_gate_hopper_can(cu, g->dtype, g->n, g->k));
}

enum ctw_status ctw_cuda_gather_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g, bool gate,
                                       enum ctw_activation act, const struct ctw_glu *glu, bool *done,
                                       struct ctw_err *err)
{
    *done = ctw_cuda_gather_hopper_can(cu, g, gate, act, glu);
    if (!*done)
        return CTW_OK;
    struct product p = product_of(g);
    int f16 = g->dtype == CTW_F16, which = kernel_of(gate, act, glu);
    if (which == GLU)
        p.glu = glu_of(glu);
    if (g->x_rows == NULL)
        return ctw_hopper_launch(cu, g, &p, glu_kernels[f16], SHARED_BYTES, err);
    return ctw_hopper_launch(cu, g, &p, gather_kernels[f16][which], SHARED_BYTES, err);
}

/* ---- scattered rows ----------------------------------------------------------------------- */

enum ctw_status ctw_cuda_scatter_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g, bool *done,
                                        struct ctw_err *err)
{
    *done = fits(cu, g) && fits_y(g) && g->y_dtype == CTW_F32 && g->x_rows == NULL;
    if (!*done)
        return CTW_OK;
    struct product p = product_of(g);
    return ctw_hopper_launch(cu, g, &p, scatter_kernels[g->dtype == CTW_F16], SHARED_BYTES, err);
}
