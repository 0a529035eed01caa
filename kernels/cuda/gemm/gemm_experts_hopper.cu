/*
 * Products of experts on sm_90a: with rows of x that are gathered, with clamps in act(gate) * up, and
 * with rows of y that are scattered. The sums are the same bits as without.
 */
#include "kernels/cuda/gemm/gemm_hopper_launch.h"
#include "kernels/cuda/gemm/gemm_hopper_pair.h"

#include <math.h>

enum { STORE, SILU, GELU_TANH, GLU, N_GATHER };

typedef void pair_fn(CUtensorMap, CUtensorMap, CUtensorMap, struct pair);

#define PAIR(f16)                                                                                  \
    {                                                                                              \
        pair_kernel<f16, EPI_STORE16>, pair_kernel<f16, EPI_SILU>,                                 \
            pair_kernel<f16, EPI_GELU_TANH>, pair_kernel<f16, EPI_GLU>                             \
    }
static pair_fn *const pair_kernels[2][N_GATHER] = {PAIR(false), PAIR(true)};
static kernel_fn *const glu_kernels[2] = {product_kernel<false, EPI_GLU>,
                                          product_kernel<true, EPI_GLU>};

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

bool ctw_cuda_scatter_hopper_can(const struct ctw_cuda *cu, const struct ctw_cuda_gemm *g)
{
    return fits(cu, g) && fits_y(g) && g->y_dtype == CTW_F32 && g->x_rows == NULL;
}

enum ctw_status ctw_cuda_glu_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                    const struct ctw_glu *glu, struct ctw_err *err)
{
    struct product p = product_of(g);
    p.glu = glu_of(glu);
    return ctw_hopper_launch(cu, g, &p, glu_kernels[g->dtype == CTW_F16], err);
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

/* Of a tile, in steps: its products, and about what its end takes longer than to begin another. */
static int steps_of(const struct product *p, bool gathered)
{
    return p->n_steps + (gathered ? 3 : 6);
}

/* With `few` scattered tiles for the clusters that have one more of the others. *last: when the
 * last cluster ends. */
static struct shares share_out(const struct product *g, const struct product *s, int clusters, int few,
                               int *last)
{
    int g_steps = steps_of(g, true), s_steps = steps_of(s, false);
    struct shares a = {false, g->n_tiles / clusters, g->n_tiles % clusters, few, 0, 0};
    int left = s->n_tiles - a.longer * few, others = clusters - a.longer;
    a.many = left / others;
    a.plus = left % others;
    int long_end = a.longer > 0 ? (a.gathered + 1) * g_steps + few * s_steps : 0;
    *last = larger(long_end, a.gathered * g_steps + (a.many + (a.plus > 0)) * s_steps);
    return a;
}

/* When the last cluster ends if tiles are in turn. */
static int end_in_turn(const struct product *g, const struct product *s, int clusters)
{
    int last = 0, at;
    for (int c = 0; c < clusters; c++) {
        int end = 0;
        for (int i = c; i < g->n_tiles + s->n_tiles; i += clusters) {
            bool gathered = in_turn(i, g->n_tiles, s->n_tiles, clusters, &at);
            end += steps_of(gathered ? g : s, gathered);
        }
        last = larger(last, end);
    }
    return last;
}

static struct shares shares_of(const struct product *g, const struct product *s, int clusters)
{
    int longer = g->n_tiles % clusters, most = longer > 0 ? s->n_tiles / longer : 0, last, end;
    struct shares best = share_out(g, s, clusters, 0, &last);
    for (int few = 1; few <= most; few++) {
        struct shares a = share_out(g, s, clusters, few, &end);
        if (end > last)
            break; /* the longer ones now end last */
        if (end < last)
            best = a;
        last = end;
    }
    best.even = end_in_turn(g, s, clusters) <= last + last / 32;
    return best;
}

enum ctw_status ctw_cuda_pair_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *gathered,
                                     bool gate, enum ctw_activation act, const struct ctw_glu *glu,
                                     const struct ctw_cuda_gemm *scattered, struct ctw_err *err)
{
    const struct ctw_cuda_gemm *g = gathered != NULL ? gathered : scattered;
    const struct ctw_cuda_gemm *s = scattered != NULL ? scattered : gathered;
    int which = gathered != NULL ? kernel_of(gate, act, glu) : STORE;
    CUtensorMap gathered_w, x, w;
    struct pair p = {product_of(g), product_of(s), {}};
    if (which == GLU)
        p.gathered.glu = glu_of(glu);
    p.gathered.n_tiles = gathered != NULL ? p.gathered.n_tiles : 0;
    p.scattered.n_tiles = scattered != NULL ? p.scattered.n_tiles : 0;
    int n_tiles = p.gathered.n_tiles + p.scattered.n_tiles;
    p.shares = shares_of(&p.gathered, &p.scattered, clusters_for(cu, n_tiles));
    enum ctw_status st = w_map_of(&gathered_w, g, err);
    if (st == CTW_OK)
        st = x_map_of(&x, s, err);
    if (st == CTW_OK)
        st = w_map_of(&w, s, err);
    pair_fn *kernel = pair_kernels[g->dtype == CTW_F16][which];
    return st == CTW_OK ? start(cu, n_tiles, kernel, err, gathered_w, x, w, p) : st;
}
