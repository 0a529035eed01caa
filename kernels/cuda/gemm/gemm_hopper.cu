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
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm_hopper_qkv.h"
#include "kernels/cuda/tensor_map.h"

/* ---- loading and multiplying -------------------------------------------------------------- */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Addresses of barriers and rings in shared memory. */
struct place {
    uint32_t w, full_w, empty_w; /* [W_SLOTS] of W_BYTES; barriers */
    uint32_t x, full_x, empty_x; /* [2][X_SLOTS] of X_BYTES, for each warpgroup; barriers */
    uint32_t ahead;              /* a barrier: the first warpgroup is `lead` steps into the tile */
};

CTW_DEV struct place place_of(uint32_t base)
{
    struct place s;
    s.w = base;
    s.x = s.w + W_SLOTS * W_BYTES;
    s.full_w = s.x + 2 * X_SLOTS * X_BYTES;
    s.empty_w = s.full_w + W_SLOTS * 8;
    s.full_x = s.empty_w + W_SLOTS * 8;
    s.empty_x = s.full_x + 2 * X_SLOTS * 8;
    s.ahead = s.empty_x + 2 * X_SLOTS * 8;
    return s;
}

CTW_DEV void init_barriers(const struct place &s)
{
    for (int i = 0; i < W_SLOTS; i++) {
        barrier_init(s.full_w + 8 * i, 1);
        barrier_init(s.empty_w + 8 * i, 2 * 8); /* the multiplying warps of both blocks */
    }
    for (int i = 0; i < 2 * X_SLOTS; i++) {
        barrier_init(s.full_x + 8 * i, 1);
        barrier_init(s.empty_x + 8 * i, 4);
    }
    barrier_init(s.ahead, 1);
    barrier_init_fence();
}

struct turn {
    uint32_t slot, parity;
};

template <int SLOTS> CTW_DEV void next_slot(struct turn *t)
{
    if (++t->slot == SLOTS) {
        t->slot = 0;
        t->parity ^= 1;
    }
}

/* One warp: its block's half of each box of w, for both blocks. */
CTW_DEV void fetch_w(const struct product &p, const CUtensorMap *map, const struct place &s, int lane)
{
    uint32_t block = block_in_cluster();
    struct turn t = {0, 1};
    for (int i = blockIdx.x / 2; i < p.n_tiles; i += gridDim.x / 2) {
        struct tile tile = tile_at(p, i);
        for (int step = 0; step < p.n_steps; step++) {
            barrier_wait(s.empty_w + 8 * t.slot, t.parity);
            if (lane == 0) {
                barrier_expect(s.full_w + 8 * t.slot, W_BYTES);
                tensor_load_all(s.w + t.slot * W_BYTES + block * (W_BYTES / 2), map, step * STEP,
                                tile.col + (int)block * (TILE_N / 2), s.full_w + 8 * t.slot, 3);
            }
            next_slot<W_SLOTS>(&t);
        }
    }
}

/* One warp: the 64 rows of x of one warpgroup; also prefetches into L2 the y that will be added to. */
template <int EPI>
CTW_DEV void fetch_x(const struct product &p, const CUtensorMap *map, const struct place &s, int group,
                     int lane)
{
    int first_row = (int)block_in_cluster() * TILE_M + group * 64;
    uint32_t ring = s.x + group * X_SLOTS * X_BYTES;
    uint32_t full = s.full_x + group * X_SLOTS * 8, empty = s.empty_x + group * X_SLOTS * 8;
    struct turn t = {0, 1};
    for (int i = blockIdx.x / 2; i < p.n_tiles; i += gridDim.x / 2) {
        struct tile tile = tile_at(p, i);
        int row0 = tile.row + first_row;
        for (int step = 0; step < p.n_steps; step++) {
            barrier_wait(empty + 8 * t.slot, t.parity);
            if (lane == 0) {
                barrier_expect(full + 8 * t.slot, X_BYTES);
                tensor_load(ring + t.slot * X_BYTES, map, step * STEP, row0, full + 8 * t.slot);
            }
            next_slot<X_SLOTS>(&t);
            if (EPI == EPI_ADD32 && step == max(p.n_steps - 8, 0)) {
                const float *y = (const float *)p.y + tile.col;
                uint32_t bytes = (uint32_t)min(p.n - tile.col, TILE_N) * 4;
                for (int r = row0 + lane; r < min(row0 + 64, p.m); r += 32)
                    prefetch_l2(y + r * p.ldy, bytes);
            }
        }
    }
}

/* One warpgroup: products, then the epilogue on the sums. */
template <bool F16, int EPI>
CTW_DEV void multiply(const struct product &p, const struct place &s, int group, int thread)
{
    constexpr int HEAD = EPI >= EPI_QKV_64 ? 64 << (EPI - EPI_QKV_64) : 0;
    int lane = thread % 32, warp = thread / 32;
    struct turn tw = {0, 0}, tx = {0, 0};
    uint32_t tile_parity = 0;
    uint64_t w = matrix_descriptor(s.w), x = matrix_descriptor(s.x + group * X_SLOTS * X_BYTES);
    uint32_t full_x = s.full_x + group * X_SLOTS * 8, empty_x = s.empty_x + group * X_SLOTS * 8;
    uint32_t empty_w = address_in_block(s.empty_w, lane & 1);
    int first_row = (int)block_in_cluster() * TILE_M + group * 64 + warp * 16 + lane / 4;
    for (int i = blockIdx.x / 2; i < p.n_tiles; i += gridDim.x / 2, tile_parity ^= 1) {
        float d[128];
        uint32_t last_w = 0, last_x = 0;
        int32_t position[2] = {0, 0};
        if (HEAD > 0)
            load_positions(p, tile_at(p, i).row + first_row, position);
        if (group == 1 && p.lead > 0)
            barrier_wait(s.ahead, tile_parity);
#pragma unroll 1
        for (int step = 0; step < p.n_steps; step++) {
            barrier_wait(s.full_w + 8 * tw.slot, tw.parity);
            barrier_wait(full_x + 8 * tx.slot, tx.parity);
            uint64_t dw = w + tw.slot * (W_BYTES / 16), dx = x + tx.slot * (X_BYTES / 16);
            products_fence();
#pragma unroll
            for (int j = 0; j < STEP / 16; j++)
                product_64_256_16<F16>(d, dx + 2 * j, dw + 2 * j, step + j);
            products_commit();
            products_wait<1>(); /* the previous step */
            if (step > 0) {
                if (lane < 2)
                    barrier_arrive_far(empty_w + 8 * last_w);
                else if (lane == 2)
                    barrier_arrive(empty_x + 8 * last_x);
                if (group == 0 && step == p.lead && thread == 0)
                    barrier_arrive(s.ahead);
            }
            last_w = tw.slot;
            last_x = tx.slot;
            next_slot<W_SLOTS>(&tw);
            next_slot<X_SLOTS>(&tx);
        }
        struct tile tile = tile_at(p, i);
        int row = tile.row + first_row;
        float4 first[8]; /* angles */
        if constexpr (HEAD > 0)
            start_heads<HEAD>(p, first, position, tile.col, lane);
        products_wait<0>();
        accumulators_ready(d);
        if (lane < 2)
            barrier_arrive_far(empty_w + 8 * last_w);
        else if (lane == 2)
            barrier_arrive(empty_x + 8 * last_x);
        if constexpr (HEAD > 0)
            finish_heads<F16, HEAD>(p, d, first, position, row, tile.col, lane);
        else
            finish<F16, EPI>(p, d, row, tile.col, lane);
    }
}

#endif

template <bool F16, int EPI>
static __global__ void __launch_bounds__(THREADS, 1)
    product_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                   const __grid_constant__ struct product p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char memory[];
    struct place s = place_of((shared_address(memory) + 1023) & ~1023u);
    int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        tensor_prefetch_map(&x_map);
        tensor_prefetch_map(&w_map);
        init_barriers(s);
    }
    cluster_sync();
    if (warp >= 8) {
        registers_fewer<40>();
        if (warp == 8)
            fetch_w(p, &w_map, s, lane);
        else if (warp < 11)
            fetch_x<EPI>(p, &x_map, s, warp - 9, lane);
    } else {
        registers_more<232>();
        multiply<F16, EPI>(p, s, warp / 4, threadIdx.x % 128);
    }
    /* No block leaves while the other may still arrive at its barriers. */
    cluster_sync();
#endif
}

/* ---- launching ---------------------------------------------------------------------------- */

/* A matrix [rows, cols] of 16-bit elements, loaded in boxes of box_rows by STEP. */
static enum ctw_status make_map(CUtensorMap *map, enum ctw_dtype dtype, const void *p, int64_t rows,
                                int64_t cols, int64_t ld, int box_rows, struct ctw_err *err)
{
    const cuuint64_t size[2] = {(cuuint64_t)cols, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)ld * 2};
    const cuuint32_t box[2] = {STEP, (cuuint32_t)box_rows};
    return ctw_tensor_map(map, dtype, p, 2, size, stride, box, err);
}

typedef void kernel_fn(CUtensorMap, CUtensorMap, struct product);

#define KERNELS(f16)                                                                               \
    {                                                                                              \
        product_kernel<f16, EPI_STORE16>, product_kernel<f16, EPI_STORE32>,                        \
            product_kernel<f16, EPI_ADD16>, product_kernel<f16, EPI_ADD32>,                        \
            product_kernel<f16, EPI_SILU>, product_kernel<f16, EPI_GELU>,                          \
            product_kernel<f16, EPI_GELU_TANH>, product_kernel<f16, EPI_HEAD>,                     \
            product_kernel<f16, EPI_HEAD_STORE>, product_kernel<f16, EPI_QKV_64>,                  \
            product_kernel<f16, EPI_QKV_128>, product_kernel<f16, EPI_QKV_256>                     \
    }
static kernel_fn *const kernels[2][N_EPI] = {KERNELS(false), KERNELS(true)};

int ctw_hopper_group = 8, ctw_hopper_lead = 2;

static bool aligned(const void *p, int64_t ld, size_t bytes)
{
    return (uintptr_t)p % 16 == 0 && (size_t)ld * bytes % 16 == 0;
}

static bool fits(const struct ctw_cuda *cu, const struct ctw_cuda_gemm *g)
{
    const int64_t most = (int64_t)1 << 30;
    return cu->hopper && (g->dtype == CTW_BF16 || g->dtype == CTW_F16) && g->m > 0 && g->n > 0 &&
           g->k > 0 && g->m < most && g->n < most && g->k < most && g->k % 8 == 0 &&
           (g->m / 256 + 1) * (g->n / 256 + 1) < most && aligned(g->x, g->ldx, 2) &&
           aligned(g->w, g->ldw, 2) && aligned(g->bias, 0, 4);
}

static bool fits_y(const struct ctw_cuda_gemm *g)
{
    return g->n % 8 == 0 && aligned(g->y, g->ldy, ctw_dtype_bytes(g->y_dtype));
}

/* Common to every epilogue. */
static struct product product_of(const struct ctw_cuda_gemm *g)
{
    struct product p = {};
    p.m = (int)g->m;
    p.n = (int)g->n;
    p.n_steps = (int)((g->k + STEP - 1) / STEP);
    p.rows = (int)((g->m + 2 * TILE_M - 1) / (2 * TILE_M));
    p.cols = (int)((g->n + TILE_N - 1) / TILE_N);
    p.n_tiles = p.rows * p.cols;
    p.group = ctw_hopper_group;
    /* The first warpgroup must not run a whole tile ahead; it can be at most W_SLOTS steps ahead. */
    p.lead = p.n_steps > 2 * W_SLOTS ? ctw_hopper_lead : 0;
    p.y = g->y;
    p.ldy = g->ldy;
    p.bias = g->bias;
    return p;
}

static enum ctw_status launch(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                              const struct product *p, int epilogue, struct ctw_err *err)
{
    CUtensorMap x_map, w_map;
    enum ctw_status st = make_map(&x_map, g->dtype, g->x, g->m, g->k, g->ldx, 64, err);
    if (st == CTW_OK)
        st = make_map(&w_map, g->dtype, g->w, g->n, g->k, g->ldw, TILE_N / 2, err);
    if (st != CTW_OK)
        return st;
    kernel_fn *kernel = kernels[g->dtype == CTW_F16][epilogue];
    st = ctw_cuda_check(cudaFuncSetAttribute((const void *)kernel,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             SHARED_BYTES),
                        "a product's shared memory", err);
    if (st != CTW_OK)
        return st;
    int clusters = p->n_tiles < cu->n_sm / 2 ? p->n_tiles : cu->n_sm / 2;
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = 2;
    attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2 * (unsigned)clusters);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = SHARED_BYTES;
    config.stream = cu->stream;
    config.attrs = attribute;
    config.numAttrs = 1;
    return ctw_cuda_check(cudaLaunchKernelEx(&config, kernel, x_map, w_map, *p), "a product", err);
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
    join_kernel(const struct ctw_cuda_head_state *states, int n_tiles, int64_t m, const int32_t *targets,
                struct ctw_head_result *out, struct ctw_head_norm *norms)
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
    double target = states[targets[row] / CTW_CUDA_HEAD_TILE * m + row].target;
    struct ctw_head_result r = {(float)(target - (double)best - log(total)), first};
    out[row] = r;
    if (norms != NULL) {
        struct ctw_head_norm n = {(double)best, log(total)};
        norms[row] = n;
    }
}

enum ctw_status ctw_cuda_head_tile_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                          const int32_t *targets, int32_t id0, float scale,
                                          struct ctw_cuda_head_state *states, bool *done,
                                          struct ctw_err *err)
{
    *done = fits(cu, g) && id0 % CTW_CUDA_HEAD_TILE == 0 && aligned(g->y, g->ldy, 4);
    if (!*done)
        return CTW_OK;
    struct product p = product_of(g);
    p.y = states + id0 / CTW_CUDA_HEAD_TILE * g->m;
    p.targets = targets;
    p.id0 = id0;
    p.scale = scale;
    p.logits = (float *)g->y;
    p.ld_logits = g->ldy;
    return launch(cu, g, &p, g->y == NULL ? EPI_HEAD : EPI_HEAD_STORE, err);
}

enum ctw_status ctw_cuda_head_join_hopper(struct ctw_cuda *cu, const struct ctw_cuda_head_state *states,
                                          int64_t n_vocab, int64_t m, const int32_t *targets,
                                          struct ctw_head_result *out, struct ctw_head_norm *norms,
                                          struct ctw_err *err)
{
    int n_tiles = (int)((n_vocab + CTW_CUDA_HEAD_TILE - 1) / CTW_CUDA_HEAD_TILE);
    join_kernel<<<(unsigned)((m + JOIN_ROWS - 1) / JOIN_ROWS), dim3(JOIN_ROWS, JOIN_PARTS), 0,
                  cu->stream>>>(states, n_tiles, m, targets, out, norms);
    return ctw_cuda_launched("head", err);
}
