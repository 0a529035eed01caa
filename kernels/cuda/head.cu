/*
 * The LM head: log softmax of a row's logits at its targets, and the first of the largest logits. On
 * Hopper the product reduces its own tiles, unless there is a softcap or a bias. Else logits are
 * computed in fp32 tiles, small enough to stay near the L2 cache, and immediately reduced to one
 * state per row; if the caller wants the logits, tiles are computed where they are to stay. The
 * split into tiles of columns depends only on the vocabulary, and a tile is reduced in one fixed
 * order, so results do not depend on which rows are computed together. If the weight comes in parts,
 * states wait in scratch memory for the next.
 */
#include "kernels/cuda/elements.h"
#include "kernels/head_targets.h"

enum {
    COLS = CTW_GPU_HEAD_COLS,
    ROWS = CTW_GPU_HEAD_ROWS,
    DECODED_COLS = CTW_GPU_DECODED_COLS,
    DECODED_ROWS = CTW_GPU_DECODED_ROWS
};
enum { THREADS = 256, VECTORS = COLS / (4 * THREADS), WARPS = THREADS / 32 };

/* Of the logits so far: the largest, its first token, and the sum of exp(logit - max). */
struct state {
    double sum;
    float max;
    int32_t greedy;
};

struct tile {
    const float *logits; /* [rows, ld] */
    int64_t ld;
    int n;       /* valid columns */
    int32_t id0; /* the first column's token */
    bool first, last;
    float scale, softcap;
    bool quantised;             /* logits are, */
    struct ctw_quantise output; /* so */
    const int32_t *first_target, *targets; /* see struct ctw_op_head */
    int64_t row0;                          /* the tile's first row; state and norms begin there */
    struct state *state;
    struct ctw_head_result *out;
    struct ctw_head_norm *norms; /* or NULL */
};

/* A logit as the model defines it: scaled and capped. */
static __device__ __forceinline__ float logit(const struct tile &a, float x)
{
    if (a.quantised)
        x = ctw_quantise_logit(&a.output, x);
    x *= a.scale;
    return a.softcap > 0 ? a.softcap * tanhf(x / a.softcap) : x;
}

/* The tile's largest logit and its first id, over all threads. NaN counts as -infinity here. */
static __device__ __forceinline__ void find_largest(float *best, int32_t *id)
{
    __shared__ float warp_best[WARPS];
    __shared__ int32_t warp_id[WARPS];
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        float b = __shfl_xor_sync(0xffffffffu, *best, i);
        int32_t o = __shfl_xor_sync(0xffffffffu, *id, i);
        if (b > *best || (b == *best && o < *id)) {
            *best = b;
            *id = o;
        }
    }
    if (threadIdx.x % 32 == 0) {
        warp_best[threadIdx.x / 32] = *best;
        warp_id[threadIdx.x / 32] = *id;
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (warp_best[w] > *best || (warp_best[w] == *best && warp_id[w] < *id)) {
            *best = warp_best[w];
            *id = warp_id[w];
        }
    }
}

/* s with the logits of a tile added to it. In double: one thread per row and tile. */
static __device__ void state_add(struct state *s, float max, double sum, int32_t greedy)
{
    float both = fmaxf(s->max, max);
    if (both == -INFINITY) { /* only -infinity so far, with sum 0, and NaN, with sum NaN */
        s->sum += sum;
    } else {
        /* max infinite: the sum is NaN already, of exp(inf - inf) */
        s->sum = s->sum * exp((double)s->max - both) + sum * exp((double)max - both);
    }
    if (max > s->max)
        s->greedy = greedy;
    s->max = both;
}

/*
 * A block is a row of the tile. Thread t has columns (i * THREADS + t) * 4 .. + 3 for
 * i = 0 .. VECTORS-1. The sum of exp(logit - largest) is a chain of VECTORS for each of the four
 * columns; these are added by halves, then the lanes by halves, all in fp32; then the warps in
 * order, in double. (Each rounding is to nearest, so the errors of the rows have no common sign;
 * the sum is within 2e-6, typically 1e-7.)
 */
__global__ void __launch_bounds__(THREADS) reduce_tile(const __grid_constant__ struct tile a)
{
    __shared__ float warp_sum[WARPS];
    int64_t row = blockIdx.x;
    const float *x = a.logits + row * a.ld;
    float v[VECTORS][4];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int at = (i * THREADS + (int)threadIdx.x) * 4;
        if (at + 4 <= a.n) {
            ctw_cuda_load<true>(x + at, v[i]);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[i][j] = at + j < a.n ? x[at + j] : 0.0f;
        }
    }
    float best = -INFINITY;
    int32_t id = a.id0 + (int32_t)threadIdx.x * 4;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = (i * THREADS + (int)threadIdx.x) * 4 + j;
            v[i][j] = at < a.n ? logit(a, v[i][j]) : -INFINITY;
            if (v[i][j] > best) {
                best = v[i][j];
                id = a.id0 + at;
            }
        }
    }
    find_largest(&best, &id);
    float from = best == -INFINITY ? 0.0f : best, s[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[j] += expf(v[i][j] - from); /* NaN stays NaN */
    float sum = ctw_cuda_lanes_sum((s[0] + s[1]) + (s[2] + s[3]), 32);
    if (threadIdx.x % 32 == 0)
        warp_sum[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    double total = 0;
    for (int w = 0; w < WARPS; w++)
        total += (double)warp_sum[w];
    struct state st = {0, -INFINITY, 0};
    if (!a.first)
        st = a.state[row];
    state_add(&st, best, total, id);
    const int32_t end = ctw_head_target(a.first_target, a.row0 + row + 1);
    for (int32_t t = ctw_head_target(a.first_target, a.row0 + row); t < end; t++) {
        int32_t target = a.targets[t] - a.id0;
        if (target >= 0 && target < a.n)
            a.out[t].logprob = logit(a, x[target]);
        if (a.last) {
            struct ctw_head_result out = {
                (float)((double)a.out[t].logprob - (double)st.max - log(st.sum)),
                st.greedy,
            };
            a.out[t] = out;
        }
    }
    if (a.last && a.norms != NULL) {
        struct ctw_head_norm norm = {(double)st.max, log(st.sum)};
        a.norms[row] = norm;
    }
    if (!a.last)
        a.state[row] = st;
}

/* x = the logits of sums that the product left there. A block is a row. */
__global__ void __launch_bounds__(THREADS)
    finish_logits(const __grid_constant__ struct tile a, float *logits)
{
    float *x = logits + (int64_t)blockIdx.x * a.ld;
    for (int i = (int)threadIdx.x; i < a.n; i += THREADS)
        x[i] = logit(a, x[i]);
}

/* Elements id0 .. id0+n-1 of a bias, whose address may be unaligned, in fp32. */
__global__ void __launch_bounds__(THREADS)
    widen_bias(const void *bias, enum ctw_dtype dtype, int64_t id0, int n, float *wide)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i < n)
        wide[i] = ctw_load_float(bias, dtype, id0 + i);
}

/*
 * Gives rows of w [.., k] unit length, see ctw_op_head. A block is a row. Each thread's squares are
 * a chain, then the lanes are added by halves, and the warps in order, all in double.
 */
template <typename T>
__global__ void __launch_bounds__(THREADS) to_unit_length(T *w, int k)
{
    __shared__ double warp_sum[WARPS];
    T *row = w + (int64_t)blockIdx.x * k;
    double squares = 0;
    for (int i = (int)threadIdx.x; i < k; i += THREADS) {
        double v = (double)ctw_cuda_widen(row[i]);
        squares += v * v;
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        squares += __shfl_xor_sync(0xffffffffu, squares, i);
    if (threadIdx.x % 32 == 0)
        warp_sum[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0;
    for (int i = 0; i < WARPS; i++)
        squares += warp_sum[i];
    float length = ctw_unit_length(squares);
    for (int i = (int)threadIdx.x; i < k; i += THREADS)
        ctw_cuda_narrow(__fdiv_rn(ctw_cuda_widen(row[i]), length), row + i);
}

/* ---- host --------------------------------------------------------------------------------- */

static_assert(sizeof(struct state) == CTW_GPU_HEAD_STATE, "as gpu_scratch.h plans");
static_assert(sizeof(struct ctw_cuda_head_state) == CTW_GPU_REDUCED_STATE, "as gpu_scratch.h plans");
static_assert((int)COLS % (int)DECODED_COLS == 0 && (int)DECODED_COLS % CTW_CUDA_HEAD_TILE == 0,
              "parts begin where tiles do");

/* The end of the ids that op's part of the weight has. */
static int64_t end_of(const struct ctw_op_head *op)
{
    int64_t end = op->id0 + op->weight->n;
    return end < op->n_vocab ? end : op->n_vocab;
}

/* The head's rows id .. id+n-1, decoded to w [n, k] as they are multiplied. */
static enum ctw_status decode_rows(struct ctw_cuda *cu, const struct ctw_op_head *op, int64_t id,
                                   int64_t n, void *w, struct ctw_err *err)
{
    enum ctw_status st =
        ctw_cuda_decode_range(cu, cu->stream, op->weight, id, n, op->dtype, w, 0, 0, err);
    if (st != CTW_OK || !op->unit_rows)
        return st;
#define UNIT(T)                                                                                          \
    to_unit_length<<<(unsigned)n, THREADS, 0, cu->stream>>>((T *)w, (int)op->weight->weight->k)
    CTW_CUDA_FLOAT_SWITCH(op->dtype, UNIT);
#undef UNIT
    return ctw_cuda_launched("head", err);
}

/* The head by products that reduce their own tiles. *done false: this weight is not supported. */
static enum ctw_status head_reducing(struct ctw_cuda *cu, const struct ctw_op_head *op,
                                     bool decoded, bool *done, struct ctw_err *err)
{
    const struct ctw_weight *weight = op->weight->weight;
    const char *values = (const char *)op->weight->data->part[CTW_PART_VALUES];
    struct ctw_gpu_head_parts parts =
        ctw_gpu_head_reducing(op->n_rows, op->n_vocab, weight->k, op->dtype, decoded);
    struct ctw_cuda_buffer *b = &cu->scratch[CTW_CUDA_PRODUCT];
    enum ctw_status st = ctw_cuda_grow(cu, b, parts.bytes, err);
    struct ctw_cuda_head_state *states = (struct ctw_cuda_head_state *)b->p;
    int64_t cols = decoded ? (int64_t)DECODED_COLS : op->n_vocab, end = end_of(op);
    *done = true;
    for (int64_t id = op->id0; st == CTW_OK && *done && id < end; id += cols) {
        struct ctw_cuda_gemm g = {};
        g.m = op->n_rows;
        g.n = end - id < cols ? end - id : cols;
        g.k = g.ldx = g.ldw = weight->k;
        g.dtype = op->dtype;
        g.y_dtype = CTW_F32;
        g.x = op->x;
        g.w = values;
        if (op->logits != NULL) {
            g.y = op->logits + id;
            g.ldy = op->ld_logits;
        }
        if (decoded) {
            g.w = (char *)b->p + parts.weight;
            st = decode_rows(cu, op, id - op->id0, g.n, (char *)b->p + parts.weight, err);
        }
        if (st == CTW_OK)
            st = ctw_cuda_head_tile_hopper(cu, &g, op, (int32_t)id, states, done, err);
    }
    if (st != CTW_OK || !*done || end < op->n_vocab)
        return st;
    return ctw_cuda_head_join_hopper(cu, states, op, err);
}

/* One tile of columns for all rows; w is the tile's first row of the weight, bias its first element
 * or NULL. */
static enum ctw_status head_tile(struct ctw_cuda *cu, const struct ctw_op_head *op, struct tile *a,
                                 const void *w, const float *bias, int64_t most_rows, float *logits,
                                 struct state *state, struct ctw_err *err)
{
    int64_t k = op->weight->weight->k;
    size_t row_bytes = (size_t)k * ctw_dtype_bytes(op->dtype);
    enum ctw_status st = CTW_OK;
    for (int64_t t = 0; st == CTW_OK && t < op->n_rows; t += most_rows) {
        int64_t n = op->n_rows - t < most_rows ? op->n_rows - t : most_rows;
        struct ctw_cuda_gemm g = {};
        g.m = n;
        g.n = a->n;
        g.k = g.ldx = g.ldw = k;
        g.dtype = op->dtype;
        g.y_dtype = CTW_F32;
        g.x = (const char *)op->x + (size_t)t * row_bytes;
        g.w = w;
        g.bias = bias;
        float *y = op->logits == NULL ? logits : logits + t * a->ld; /* all rows' stay */
        g.y = y;
        g.ldy = a->ld;
        st = ctw_cuda_gemm(cu, &g, err);
        if (st != CTW_OK)
            break;
        a->logits = y;
        a->row0 = t;
        a->state = state + t;
        a->norms = op->norms == NULL ? NULL : op->norms + t;
        reduce_tile<<<(unsigned)n, THREADS, 0, cu->stream>>>(*a);
        if (op->logits != NULL && (op->scale != 1.0f || op->softcap > 0 || a->quantised))
            finish_logits<<<(unsigned)n, THREADS, 0, cu->stream>>>(*a, y);
        st = ctw_cuda_launched("head", err);
    }
    return st;
}

/* Tiles of columns are the outer loop, so that each is decoded once. */
enum ctw_status ctw_cuda_head(struct ctw_cuda *cu, const struct ctw_op_head *op,
                              struct ctw_err *err)
{
    const struct ctw_weight *weight = op->weight->weight;
    const char *values = (const char *)op->weight->data->part[CTW_PART_VALUES];
    if (op->n_rows == 0)
        return CTW_OK;
    bool decoded = weight->format->id != CTW_FORMAT_dense || weight->dtype != op->dtype ||
                   op->unit_rows || !ctw_cuda_aligned16(values);
    if (ctw_gpu_head_reduces(cu->hopper, op->dtype, weight->k, ctw_head_is_plain(op))) {
        bool done;
        enum ctw_status reduced = head_reducing(cu, op, decoded, &done, err);
        if (reduced != CTW_OK || done)
            return reduced;
    }
    struct ctw_gpu_head_parts parts =
        ctw_gpu_head_tiled(op->n_rows, weight->k, op->dtype, decoded);
    struct ctw_cuda_buffer *b = &cu->scratch[CTW_CUDA_PRODUCT];
    enum ctw_status st = ctw_cuda_grow(cu, b, parts.bytes, err);
    int64_t cols = decoded ? DECODED_COLS : COLS, end = end_of(op);
    if (op->id0 % cols != 0)
        return ctw_fail(err, CTW_EINTERNAL, "cuda: a part of the head begins within a tile");
    for (int64_t id = op->id0; st == CTW_OK && id < end; id += cols) {
        struct tile a = {};
        const void *w = values + (size_t)(id - op->id0) * weight->row_bytes;
        float *bias = op->weight->bias == NULL ? NULL : (float *)((char *)b->p + parts.bias);
        float *logits = (float *)((char *)b->p + parts.logits);
        if (op->logits != NULL)
            logits = op->logits + id;
        a.ld = op->logits != NULL ? op->ld_logits : cols;
        a.n = (int)(end - id < cols ? end - id : cols);
        a.id0 = (int32_t)id;
        a.first = id == 0;
        a.last = id + cols >= op->n_vocab;
        a.scale = op->scale;
        a.softcap = op->softcap;
        a.quantised = op->weight->output != NULL;
        if (a.quantised)
            a.output = *op->weight->output;
        a.first_target = op->first_target;
        a.targets = op->targets;
        a.out = op->out;
        if (decoded) {
            w = (char *)b->p + parts.weight;
            st = decode_rows(cu, op, id - op->id0, a.n, (char *)b->p + parts.weight, err);
        }
        if (st == CTW_OK && bias != NULL)
            widen_bias<<<(unsigned)((a.n + THREADS - 1) / THREADS), THREADS, 0, cu->stream>>>(
                op->weight->bias, op->weight->bias_dtype, id - op->id0, a.n, bias);
        if (st == CTW_OK)
            st = head_tile(cu, op, &a, w, bias, decoded ? DECODED_ROWS : ROWS, logits,
                           (struct state *)b->p, err);
    }
    return st;
}
