/*
 * Products on sm_90a: y = x w^T, with an epilogue on the sums before they are stored.
 *
 * The grid is one block per SM, in clusters of two, and each cluster walks its share of the
 * product's tiles. A cluster's tile is 256 rows of x by 256 of w. Each block has 128 rows of x and
 * all 256 of w, of which it loads half for both blocks. In a block, two warpgroups multiply, 64
 * rows of x each, with all sums in registers. Three warps of a third warpgroup load: one loads w,
 * the other two each half of x, into separate rings. Thus one warpgroup may be ahead of the other:
 * while it stores its tile, the other still has products to run, and has the tensor cores to itself
 * (`lead` is the distance in steps of 64 of k).
 *
 * The sum of an element is one fp32 accumulator to which k is added in order, 16 at a time. Tile
 * and order are the same for every m; rows beyond m are read as zeros and not stored.
 */
#include "kernels/cuda/gemm/gemm_hopper_launch.h"

/* ---- launching ---------------------------------------------------------------------------- */

#define KERNEL(f16, epilogue) product_kernel<f16, epilogue>
#define KERNELS(f16)                                                                               \
    {                                                                                              \
        KERNEL(f16, EPI_STORE16), KERNEL(f16, EPI_STORE32), KERNEL(f16, EPI_ADD16),                \
            KERNEL(f16, EPI_ADD32), KERNEL(f16, EPI_SILU), KERNEL(f16, EPI_GELU),                  \
            KERNEL(f16, EPI_GELU_TANH), KERNEL(f16, EPI_HEAD), KERNEL(f16, EPI_HEAD_STORE),        \
            KERNEL(f16, EPI_QKV_64), KERNEL(f16, EPI_QKV_128), KERNEL(f16, EPI_QKV_256)            \
    }
static kernel_fn *const kernels[2][N_EPI] = {KERNELS(false), KERNELS(true)};

int ctw_hopper_group = 8, ctw_hopper_lead = 2;

static enum ctw_status launch(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                              const struct product *p, int epilogue, struct ctw_err *err)
{
    return ctw_hopper_launch(cu, g, p, kernels[g->dtype == CTW_F16][epilogue], err);
}

enum ctw_status ctw_cuda_gemm_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g, bool *done,
                                     struct ctw_err *err)
{
    *done = fits(cu, g) && fits_y(g) && (g->y_dtype == CTW_F32 || g->y_dtype == g->dtype);
    if (!*done)
        return CTW_OK;
    bool wide = g->y_dtype == CTW_F32;
    struct product p = product_of(g);
    int epilogue = g->add ? EPI_ADD16 : EPI_STORE16;
    if (wide)
        epilogue = g->add ? EPI_ADD32 : EPI_STORE32;
    return launch(cu, g, &p, epilogue, err);
}

bool ctw_cuda_gate_hopper_can(const struct ctw_cuda *cu, enum ctw_dtype dtype, int64_t n, int64_t k)
{
    return cu->hopper && (dtype == CTW_BF16 || dtype == CTW_F16) &&
           n % (2 * CTW_CUDA_GATE_BLOCK) == 0 && k % 8 == 0;
}

enum ctw_status ctw_cuda_gate_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                     enum ctw_activation act, bool *done, struct ctw_err *err)
{
    *done = fits(cu, g) && fits_y(g) && ctw_cuda_gate_hopper_can(cu, g->dtype, g->n, g->k) && !g->add &&
            g->y_dtype == g->dtype && act <= CTW_ACT_GELU_TANH;
    if (!*done)
        return CTW_OK;
    struct product p = product_of(g);
    return launch(cu, g, &p,
                  act == CTW_ACT_SILU   ? EPI_SILU
                  : act == CTW_ACT_GELU ? EPI_GELU
                                        : EPI_GELU_TANH,
                  err);
}

/* ---- queries, keys and values -------------------------------------------------------------- */

bool ctw_cuda_qkv_hopper_can(const struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                             const struct ctw_op_qkv *op)
{
    bool turns = op->rot_dim > 0, norm = op->q_norm != NULL || op->k_norm != NULL;
    return fits(cu, g) && (op->head == 64 || op->head == 128 || op->head == 256) &&
           g->n == (int64_t)(op->n_head + 2 * op->n_kv) * op->head &&
           (!turns || (op->rot_dim == op->head && op->pairing == CTW_ROPE_HALVES)) &&
           (!norm || op->norm_dtype == g->dtype) && aligned(op->q_norm, 0, 2) &&
           aligned(op->k_norm, 0, 2) && aligned(op->cos_sin, 0, 4) && aligned(op->q, 0, 2) &&
           aligned(op->k, 0, 2) && aligned(op->v, 0, 2);
}

enum ctw_status ctw_cuda_qkv_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                    const struct ctw_op_qkv *op, bool *done, struct ctw_err *err)
{
    *done = ctw_cuda_qkv_hopper_can(cu, g, op);
    if (!*done)
        return CTW_OK;
    struct product p = product_of(g);
    p.heads.q_cols = op->n_head * op->head;
    p.heads.kv_cols = op->n_kv * op->head;
    p.heads.q = (uint16_t *)op->q;
    p.heads.k = (uint16_t *)op->k;
    p.heads.v = (uint16_t *)op->v;
    p.heads.q_norm = (const uint16_t *)op->q_norm;
    p.heads.k_norm = (const uint16_t *)op->k_norm;
    p.heads.eps = op->norm_eps;
    p.heads.positions = op->positions;
    p.heads.cos_sin = op->rot_dim > 0 ? op->cos_sin : NULL;
    return launch(cu, g, &p, op->head == 64 ? EPI_QKV_64 : op->head == 128 ? EPI_QKV_128 : EPI_QKV_256,
                  err);
}

/* ---- the LM head -------------------------------------------------------------------------- */

enum { JOIN_ROWS = 32, JOIN_PARTS = 8 };

/*
 * 32 rows per block; part i of a row has tiles i, i + 8, ...; the parts are added in order. In
 * double, so only the tiles' own sums contribute to the error.
 */
static __global__ void __launch_bounds__(JOIN_ROWS *JOIN_PARTS)
    join_kernel(const struct ctw_cuda_head_state *states, int n_tiles, int64_t m,
                const int32_t *first_target, struct ctw_head_result *out,
                struct ctw_head_norm *norms)
{
    __shared__ float max[JOIN_PARTS][JOIN_ROWS];
    __shared__ int32_t greedy[JOIN_PARTS][JOIN_ROWS];
    __shared__ double sum[JOIN_PARTS][JOIN_ROWS];
    int part = threadIdx.y, lane = threadIdx.x;
    int64_t row = (int64_t)blockIdx.x * JOIN_ROWS + lane;
    float best = -INFINITY;
    int32_t first = 0;
    for (int t = part; row < m && t < n_tiles; t += JOIN_PARTS) {
        const struct ctw_cuda_head_state *s = &states[t * m + row];
        if (s->max > best) {
            best = s->max;
            first = s->greedy;
        }
    }
    max[part][lane] = best;
    greedy[part][lane] = first;
    __syncthreads();
    for (int i = 0; i < JOIN_PARTS; i++) {
        float b = max[i][lane];
        if (b > best || (b == best && greedy[i][lane] < first)) {
            best = b;
            first = greedy[i][lane];
        }
    }
    double total = 0;
    for (int t = part; row < m && t < n_tiles; t += JOIN_PARTS) {
        const struct ctw_cuda_head_state *s = &states[t * m + row];
        /* max -infinity: only -infinity, with sum 0, and NaN, with sum NaN */
        total += s->max == -INFINITY ? (double)s->sum : s->sum * exp((double)s->max - (double)best);
    }
    sum[part][lane] = total;
    __syncthreads();
    if (part != 0 || row >= m)
        return;
    for (int i = 1; i < JOIN_PARTS; i++)
        total += sum[i][lane];
    const int32_t end = ctw_head_target(first_target, row + 1);
    for (int32_t t = ctw_head_target(first_target, row); t < end; t++) {
        const double target = out[t].logprob;
        struct ctw_head_result r = {(float)(target - (double)best - log(total)), first};
        out[t] = r;
    }
    if (norms != NULL) {
        struct ctw_head_norm n = {(double)best, log(total)};
        norms[row] = n;
    }
}

enum ctw_status ctw_cuda_head_tile_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                          const struct ctw_op_head *op, int32_t id0,
                                          struct ctw_cuda_head_state *states, bool *done,
                                          struct ctw_err *err)
{
    *done = fits(cu, g) && id0 % CTW_CUDA_HEAD_TILE == 0 && aligned(g->y, g->ldy, 4);
    if (!*done)
        return CTW_OK;
    struct product p = product_of(g);
    p.y = states + id0 / CTW_CUDA_HEAD_TILE * g->m;
    p.first_target = op->first_target;
    p.targets = op->targets;
    p.results = op->out;
    p.id0 = id0;
    p.scale = op->scale;
    p.logits = (float *)g->y;
    p.ld_logits = g->ldy;
    return launch(cu, g, &p, g->y == NULL ? EPI_HEAD : EPI_HEAD_STORE, err);
}

enum ctw_status ctw_cuda_head_join_hopper(struct ctw_cuda *cu,
                                          const struct ctw_cuda_head_state *states,
                                          const struct ctw_op_head *op, struct ctw_err *err)
{
    int n_tiles = (int)((op->n_vocab + CTW_CUDA_HEAD_TILE - 1) / CTW_CUDA_HEAD_TILE);
    join_kernel<<<(unsigned)((op->n_rows + JOIN_ROWS - 1) / JOIN_ROWS),
                  dim3(JOIN_ROWS, JOIN_PARTS), 0, cu->stream>>>(
        states, n_tiles, op->n_rows, op->first_target, op->out, op->norms);
    return ctw_cuda_launched("head", err);
}
