/*
 * Routers of mixtures of experts, and their choices sorted by expert. Next to a layer's products
 * both take next to no time.
 *
 * A warp chooses for a row. Scores are in double, as in the definition (kernels/cpu/c_route.c), so
 * that a near tie has the same winner; the largest number is found with the lowest index on a tie,
 * in whatever order lanes compare.
 *
 * The sort is a counting sort in three steps without atomics: each span of choices is counted by a
 * warp, counts become places, and each warp puts its span's choices to their places, in order.
 */
#include "kernels/cuda/elements.h"

enum {
    SPAN = CTW_GPU_SPAN, /* choices that a warp counts and places */
    MOST_WARPS = 8, /* of a block of route_rows */
    SHARED_BYTES = 48 << 10, /* that it may have without asking */
    WARP_SIZE = 32
};

static const unsigned ALL = 0xFFFFFFFFu;

/* ---- routers ------------------------------------------------------------------------------ */

static __device__ __forceinline__ double number(const void *p, enum ctw_dtype dtype, int i, double absent)
{
    if (p == NULL)
        return absent;
    return dtype == CTW_F32    ? (double)((const float *)p)[i]
           : dtype == CTW_BF16 ? (double)ctw_cuda_widen(((const __nv_bfloat16 *)p)[i])
                               : (double)ctw_cuda_widen(((const __half *)p)[i]);
}

/* The warp's largest of n numbers that are not NaN, the first on a tie; -1: there is none. */
static __device__ int largest(const double *x, int n, int lane)
{
    int at = -1;
    double best = 0;
    for (int i = lane; i < n; i += WARP_SIZE)
        if (at < 0 ? !isnan(x[i]) : x[i] > best) {
            at = i;
            best = x[i];
        }
#pragma unroll
    for (int bit = 1; bit < WARP_SIZE; bit *= 2) {
        int other = __shfl_xor_sync(ALL, at, bit);
        double value = __shfl_xor_sync(ALL, best, bit);
        bool better = at < 0 || value > best || (value == best && other < at);
        if (other >= 0 && better) {
            at = other;
            best = value;
        }
    }
    return at;
}

static __device__ double warp_sum(double v)
{
#pragma unroll
    for (int bit = WARP_SIZE / 2; bit >= 1; bit /= 2)
        v += __shfl_xor_sync(ALL, v, bit);
    return v;
}

/* False: a logit is NaN or +infinity, or none is finite. */
static __device__ bool load_logits(const struct ctw_op_route &op, const float *logits, double *l,
                                   int lane)
{
    const struct ctw_route_rule &r = op.rule;
    bool finite = false, bad = false;
    for (int e = lane; e < r.n_experts; e += WARP_SIZE) {
        double x = (double)logits[e] * (double)r.factor;
        l[e] = r.softcap != 0 ? r.softcap * tanh(x / r.softcap) : x;
        bad |= isnan(x) || x == INFINITY;
        finite |= isfinite(x);
    }
    bad = __any_sync(ALL, bad);
    finite = __any_sync(ALL, finite);
    __syncwarp();
    return finite && !bad;
}

/* Leaves the kept groups' choices, and makes the others NaN. group: room for n_groups numbers. */
static __device__ void keep_groups(const struct ctw_route_rule &r, double *choice, double *group,
                                   int lane)
{
    int n = r.n_experts / r.n_groups;
    for (int g = lane; g < r.n_groups; g += WARP_SIZE) {
        double best = -INFINITY, second = -INFINITY; /* choices are not NaN */
        for (int i = 0; i < n; i++) {
            double c = choice[g * n + i];
            second = c > best ? best : c > second ? c : second;
            best = c > best ? c : best;
        }
        group[g] = best + (r.group_best == 2 ? second : 0);
    }
    __syncwarp();
    for (int k = 0; k < r.kept_groups; k++) {
        int g = largest(group, r.n_groups, lane);
        if (lane == 0 && g >= 0)
            group[g] = NAN;
        __syncwarp();
    }
    for (int e = lane; e < r.n_experts; e += WARP_SIZE)
        if (!isnan(group[e / n]))
            choice[e] = NAN;
    __syncwarp();
}

/* l: the logits; afterwards they are lost. w, ids: the chosen experts and their scores. */
static __device__ void choose(const struct ctw_op_route &op, double *l, double *s, double *choice,
                              int32_t *ids, double *w, int lane)
{
    const struct ctw_route_rule &r = op.rule;
    const double m = l[largest(l, r.n_experts, lane)];
    const int n = r.n_experts - r.always, n_free = r.chosen - r.always;
    const bool by_score = !r.corrects_logits && (op.correction != NULL || r.n_groups > 0);
    double sum = 0;
    for (int e = lane; e < r.n_experts; e += WARP_SIZE) {
        s[e] = r.score == CTW_SCORE_SIGMOID ? 1 / (1 + exp(-l[e]))
               : r.score == CTW_SCORE_SQRT_SOFTPLUS
                   ? sqrt(fmax(l[e], 0.0) + log1p(exp(-fabs(l[e]))))
                   : exp(l[e] - m);
        sum += s[e];
    }
    sum = warp_sum(sum);
    for (int e = lane; e < r.n_experts; e += WARP_SIZE) {
        if (r.score == CTW_SCORE_SOFTMAX)
            s[e] /= sum;
        double c = e < n ? (by_score ? s[e] : l[e]) + number(op.correction, op.correction_dtype, e, 0)
                         : l[e];
        choice[e] = isnan(c) ? -INFINITY : c; /* a correction of NaN */
    }
    __syncwarp();
    if (r.n_groups > 0)
        keep_groups(r, choice, l, lane);
    for (int k = 0; k < r.chosen; k++) {
        int best = k < n_free ? largest(choice, n, lane) : n + k - n_free;
        if (lane == 0) {
            ids[k] = best;
            w[k] = s[best];
            choice[best] = NAN;
        }
        __syncwarp();
    }
}

/* The experts of the row's token: after choose(), whose scores it uses. */
static __device__ void look_up(const struct ctw_op_route &op, int64_t t, const double *s, int32_t *ids,
                               double *w, int lane)
{
    for (int k = lane; k < op.rule.chosen; k += WARP_SIZE) {
        int64_t at = op.tokens[t] * (int64_t)op.rule.chosen + k;
        ids[k] = ctw_route_entry(op.table, op.table_dtype, at);
        w[k] = s[ids[k]];
    }
    __syncwarp();
}

/* The expert with the largest logit, and its softmax among the experts whose logits are near. */
static __device__ void choose_near(const struct ctw_route_rule &r, double *l, int32_t *ids, double *w,
                                   int lane)
{
    for (int k = 0; k < r.chosen; k++) {
        int best = largest(l, r.n_experts, lane);
        double m = l[best], sum = 0;
        for (int e = lane; e < r.n_experts; e += WARP_SIZE)
            if (m - l[e] <= 2.0 * (double)r.jitter * fmax(fabs(l[e]), m))
                sum += exp(l[e] - m);
        sum = warp_sum(sum);
        if (lane == 0) {
            ids[k] = best;
            w[k] = 1 / sum;
            l[best] = NAN;
        }
        __syncwarp();
    }
}

/* Doubles of shared memory that a warp needs. */
static __host__ __device__ int warp_numbers(const struct ctw_route_rule &r)
{
    return 3 * r.n_experts + r.chosen;
}

/* By one thread, behind the row's choice. */
static __device__ void sum_identity(const struct ctw_op_route &op, int64_t t)
{
    const struct ctw_route_rule &r = op.rule;
    float sum = 0;
    for (int64_t k = t * r.chosen; k < (t + 1) * r.chosen; k++)
        sum += op.ids[k] >= r.n_experts - r.n_identity ? op.weights[k] : 0;
    op.identity[t] = sum;
}

static __global__ void route_rows(const __grid_constant__ struct ctw_op_route op)
{
    extern __shared__ double memory[];
    const struct ctw_route_rule &r = op.rule;
    const int lane = (int)threadIdx.x % WARP_SIZE, warp = (int)threadIdx.x / WARP_SIZE;
    int64_t t = (int64_t)blockIdx.x * (blockDim.x / WARP_SIZE) + warp;
    if (t >= op.n_tok)
        return; /* a whole warp */
    double *l = memory + warp * warp_numbers(r), *s = l + r.n_experts, *choice = s + r.n_experts;
    double *w = choice + r.n_experts;
    int32_t *ids = op.ids + t * r.chosen;
    float *out = op.weights + t * r.chosen;
    if (!load_logits(op, op.logits + t * r.n_experts, l, lane)) {
        for (int k = lane; k < r.chosen; k += WARP_SIZE) {
            ids[k] = k;
            out[k] = NAN;
        }
        __syncwarp();
        if (lane == 0 && op.identity != NULL)
            sum_identity(op, t);
        return;
    }
    if (r.score == CTW_SCORE_SPARSEMIXER)
        choose_near(r, l, ids, w, lane);
    else
        choose(op, l, s, choice, ids, w, lane);
    if (op.table != NULL)
        look_up(op, t, s, ids, w, lane);
    if (lane != 0)
        return;
    double sum = 0;
    for (int k = 0; k < r.chosen; k++)
        sum += w[k];
    if (r.normalised)
        sum = fmax(sum + (double)r.sum_add, (double)r.sum_least);
    else if (r.score != CTW_SCORE_SOFTMAX_CHOSEN)
        sum = 1;
    for (int k = 0; k < r.chosen; k++)
        out[k] = (float)(w[k] / sum * (double)r.scale *
                         number(op.expert_scale, op.expert_scale_dtype, ids[k], 1));
    if (op.identity != NULL)
        sum_identity(op, t);
}

enum ctw_status ctw_cuda_route(struct ctw_cuda *cu, const struct ctw_op_route *op, struct ctw_err *err)
{
    if (op->n_tok == 0)
        return CTW_OK;
    int bytes = warp_numbers(op->rule) * (int)sizeof(double), warps = SHARED_BYTES / bytes;
    warps = warps < 1 ? 1 : warps > MOST_WARPS ? (int)MOST_WARPS : warps;
    enum ctw_status st = ctw_cuda_check(
        cudaFuncSetAttribute(route_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, warps * bytes),
        "route", err);
    if (st != CTW_OK)
        return st;
    route_rows<<<(unsigned)((op->n_tok + warps - 1) / warps), (unsigned)(warps * WARP_SIZE),
                 (size_t)(warps * bytes), cu->stream>>>(*op);
    return ctw_cuda_launched("route", err);
}

/* ---- choices by expert -------------------------------------------------------------------- */

struct group {
    const int32_t *ids;
    const float *weights;
    int64_t n; /* choices */
    int chosen, n_experts, n_spans;
    int32_t *count; /* [n_experts, n_spans]; later the place of the span's first choice */
    int32_t *rows, *start;
    float *row_weights;
};

/* The expert of choice i; -1 past the end. */
static __device__ __forceinline__ int expert_of(const struct group &g, int64_t i)
{
    return i < g.n ? g.ids[i] : -1;
}

/* One warp: the choices of a span by expert. */
static __global__ void __launch_bounds__(WARP_SIZE) count_span(const __grid_constant__ struct group g)
{
    extern __shared__ int32_t next[];
    const int lane = (int)threadIdx.x;
    for (int e = lane; e < g.n_experts; e += WARP_SIZE)
        next[e] = 0;
    __syncwarp();
    for (int at = 0; at < SPAN; at += WARP_SIZE) {
        int e = expert_of(g, (int64_t)blockIdx.x * SPAN + at + lane);
        unsigned same = __match_any_sync(ALL, e);
        if (e >= 0 && lane == __ffs((int)same) - 1)
            next[e] += __popc(same);
        __syncwarp();
    }
    for (int e = lane; e < g.n_experts; e += WARP_SIZE)
        g.count[(int64_t)e * g.n_spans + blockIdx.x] = next[e];
}

/* One warp an expert: its counts become the number of its choices in earlier spans; the number of
 * all goes to start[e + 1]. */
static __global__ void __launch_bounds__(WARP_SIZE) add_spans(const __grid_constant__ struct group g)
{
    const int lane = (int)threadIdx.x;
    int32_t *count = g.count + (int64_t)blockIdx.x * g.n_spans, before = 0;
    for (int at = 0; at < g.n_spans; at += WARP_SIZE) {
        int32_t own = at + lane < g.n_spans ? count[at + lane] : 0, sum = own;
#pragma unroll
        for (int by = 1; by < WARP_SIZE; by *= 2) {
            int32_t left = __shfl_up_sync(ALL, sum, (unsigned)by);
            sum += lane >= by ? left : 0;
        }
        if (at + lane < g.n_spans)
            count[at + lane] = before + sum - own;
        before += __shfl_sync(ALL, sum, WARP_SIZE - 1);
    }
    if (lane == 0)
        g.start[blockIdx.x + 1] = before;
}

/* One warp: start[e + 1] becomes the sum of start[1 .. e + 1]. */
static __global__ void __launch_bounds__(WARP_SIZE) add_experts(const __grid_constant__ struct group g)
{
    const int lane = (int)threadIdx.x;
    int32_t before = 0;
    for (int at = 0; at < g.n_experts; at += WARP_SIZE) {
        int32_t sum = at + lane < g.n_experts ? g.start[at + lane + 1] : 0;
#pragma unroll
        for (int by = 1; by < WARP_SIZE; by *= 2) {
            int32_t left = __shfl_up_sync(ALL, sum, (unsigned)by);
            sum += lane >= by ? left : 0;
        }
        if (at + lane < g.n_experts)
            g.start[at + lane + 1] = before + sum;
        before += __shfl_sync(ALL, sum, WARP_SIZE - 1);
    }
    if (lane == 0)
        g.start[0] = 0;
}

/* One warp: puts the choices of a span to their places, in order. */
static __global__ void __launch_bounds__(WARP_SIZE) place_span(const __grid_constant__ struct group g)
{
    extern __shared__ int32_t next[];
    const int lane = (int)threadIdx.x;
    for (int e = lane; e < g.n_experts; e += WARP_SIZE)
        next[e] = g.start[e] + g.count[(int64_t)e * g.n_spans + blockIdx.x];
    __syncwarp();
    for (int at = 0; at < SPAN; at += WARP_SIZE) {
        int64_t i = (int64_t)blockIdx.x * SPAN + at + lane;
        int e = expert_of(g, i);
        unsigned same = __match_any_sync(ALL, e);
        int32_t to = e >= 0 ? next[e] + __popc(same & ((1u << lane) - 1)) : 0;
        __syncwarp();
        if (e >= 0) {
            if (lane == __ffs((int)same) - 1)
                next[e] += __popc(same);
            g.rows[to] = (int32_t)(i / g.chosen);
            g.row_weights[to] = g.weights[i];
        }
        __syncwarp();
    }
}

enum ctw_status ctw_cuda_group(struct ctw_cuda *cu, const struct ctw_op_group *op, struct ctw_err *err)
{
    struct group g = {};
    g.ids = op->ids;
    g.weights = op->weights;
    g.n = op->n_tok * op->chosen;
    g.chosen = op->chosen;
    g.n_experts = op->n_experts;
    g.n_spans = (int)ctw_gpu_spans(g.n);
    g.rows = op->rows;
    g.row_weights = op->row_weights;
    g.start = op->start;
    size_t shared = (size_t)g.n_experts * sizeof(int32_t);
    if (g.n == 0)
        return ctw_cuda_check(cudaMemsetAsync(g.start, 0, shared + sizeof(int32_t), cu->stream), "group",
                              err);
    struct ctw_cuda_buffer *scratch = &cu->scratch[CTW_CUDA_PRODUCT];
    enum ctw_status st =
        ctw_cuda_grow(cu, scratch, (size_t)g.n_spans * (size_t)g.n_experts * sizeof(int32_t), err);
    if (st != CTW_OK)
        return st;
    g.count = (int32_t *)scratch->p;
    count_span<<<(unsigned)g.n_spans, WARP_SIZE, shared, cu->stream>>>(g);
    add_spans<<<(unsigned)g.n_experts, WARP_SIZE, 0, cu->stream>>>(g);
    add_experts<<<1, WARP_SIZE, 0, cu->stream>>>(g);
    place_span<<<(unsigned)g.n_spans, WARP_SIZE, shared, cu->stream>>>(g);
    return ctw_cuda_launched("group", err);
}
