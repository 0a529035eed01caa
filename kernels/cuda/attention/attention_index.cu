/*
 * The choice of keys by an indexer. Some tiles of queries at a time: first their scores go to scratch
 * memory, a row for each query; then a block for each query finds the least score that is chosen, by
 * digits of the numbers as ordered integers, and writes the bits.
 *
 * Scores. 16-bit heads of up to 128 elements, of tokens: mma.sync, a head's sum of products and the
 * sum over heads in fp32. All others: without tensor cores, in double and in the order of the definition
 * (kernels/cpu/c_index.c), so that the choice is the definition's. A score depends on its own query and
 * key alone, and a query's choice on its own scores.
 */
#include "kernels/cuda/attention/attention_mma.cuh"

enum {
    THREADS = 256,
    /* With tensor cores: 128 queries by 128 keys, 32 by 64 for each of 8 warps. */
    HEAD = 128,
    QUERIES = CTW_GPU_INDEX_KEYS,
    KEYS = CTW_GPU_INDEX_KEYS,
    WARP_QUERIES = 32,
    WARP_KEYS = 64,
    /* In double: 32 by 32, 2 by 2 for each thread; PART elements of a head at a time. */
    SIDE = CTW_GPU_INDEX_WIDE,
    PART = 128,
    PART_STRIDE = PART + 1,
    LANES = 8, /* partial sums of a product */
    DIGITS = 256
};

static const unsigned ALL = 0xFFFFFFFFu;

struct choice {
    struct ctw_op_index op;
    void *scores; /* [tiles, rows of a tile, ld], float or double */
    int64_t ld;
    int first; /* of the launch's tiles */
};

/* The first key of a block's tile of `keys` keys; -1: no query of the tile t chooses among them. */
ATTN_DEV int first_key(const struct ctw_attn_tile &t, const struct choice &x, int keys)
{
    const int key0 = (int)blockIdx.x * keys, n = (t.pos + t.n_q) / (int)x.op.block;
    return key0 < n && n > x.op.chosen ? key0 : -1;
}

/* ---- scores with tensor cores ------------------------------------------------------------- */

/* 128 rows of heads, from row(r) on; NULL: zeros. */
template <typename T, typename Row>
ATTN_DEV void load_heads(uint32_t to, const struct ctw_attn &a, Row row)
{
    const int chunks = HEAD / 8;
#pragma unroll
    for (int i = threadIdx.x; i < QUERIES * chunks; i += THREADS) {
        int r = i / chunks, d = i % chunks * 8;
        const T *from = row(r);
        bool has = from != NULL && d < a.head;
        if (a.aligned)
            copy_16(to + chunk_at<HEAD>(r, d / 8), has ? (const void *)(from + d) : a.q, has ? 16 : 0);
        else
            load_slowly<T>(to + chunk_at<HEAD>(r, d / 8), from, d, from != NULL ? a.head : 0, false);
    }
}

/* sum += weight * max(0, s); weights of a thread's rows, which are 8 apart. */
ATTN_DEV void add_head(float (&sum)[2][WARP_KEYS / 2], const float (&s)[2][WARP_KEYS / 2],
                       const float (&weight)[2][2])
{
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int i = 0; i < WARP_KEYS / 2; i++) /* NaN stays */
            sum[m][i] = fmaf(weight[m][i / 2 % 2], s[m][i] < 0 ? 0.0f : s[m][i], sum[m][i]);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) index_scores(const __grid_constant__ struct ctw_attn a,
                                                        const __grid_constant__ struct choice x)
{
    extern __shared__ __align__(128) unsigned char memory[];
    static_assert(QUERIES == KEYS, "load_heads()");
    const struct ctw_attn_tile t = a.tiles[x.first + blockIdx.y];
    const int key0 = first_key(t, x, KEYS);
    if (key0 < 0)
        return;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const int row0 = warp % 4 * WARP_QUERIES, col0 = warp / 4 * WARP_KEYS;
    const uint32_t tile_bytes = QUERIES * HEAD * 2, sk = shared_at(memory), sq = sk + tile_bytes;
    const T *q = (const T *)x.op.q, *k = (const T *)x.op.k, *weights = (const T *)x.op.weights;
    const auto queries = [&](int h) {
        load_heads<T>(sq + (h & 1) * tile_bytes, a, [&](int r) {
            return r < t.n_q ? q + ((int64_t)(t.q_row + r) * x.op.n_head + h) * a.head : (const T *)NULL;
        });
        copies_commit();
    };
    struct attn_walk walk = attn_walk_begin(t);
    attn_walk_to(walk, a.runs, key0);
    load_heads<T>(sk, a, [&](int r) {
        return key0 + r < t.key_end
                   ? k + (int64_t)attn_walk_row(walk, a.runs, key0 + r) * a.head
                   : (const T *)NULL;
    });
    queries(0);

    float s[2][WARP_KEYS / 2], sum[2][WARP_KEYS / 2] = {};
    for (int h = 0; h < x.op.n_head; h++) {
        float weight[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = min(row0 + lane / 4 + 8 * i, t.n_q - 1);
            const int64_t at = (int64_t)(t.q_row + r) * x.op.ld_weights + h;
            weight[i / 2][i % 2] = weights == NULL ? 1.0f : ctw_cuda_widen(weights[at]);
        }
        copies_wait();
        __syncthreads(); /* these queries have arrived, and no thread reads the last ones any more */
        if (h + 1 < x.op.n_head)
            queries(h + 1);
        scores<T, HEAD, 2, WARP_KEYS>(s, sq + (h & 1) * tile_bytes + row0 * HEAD * 2,
                                      sk + col0 * HEAD * 2);
        add_head(sum, s, weight);
    }
    float *out = (float *)x.scores + (int64_t)blockIdx.y * QUERIES * x.ld + key0 + col0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float *to = out + (row0 + lane / 4 + 8 * i) * x.ld + 2 * (lane & 3);
#pragma unroll
        for (int j = 0; j < WARP_KEYS / 8; j++) {
            const float *from = sum[i / 2] + 4 * j + 2 * (i % 2);
            *(float2 *)(to + 8 * j) = make_float2(from[0], from[1]);
        }
    }
}

/* ---- scores in double --------------------------------------------------------------------- */

/* Elements from .. from + PART - 1 of SIDE heads, from row(r) on, widened; zeros past the end. */
template <typename T, typename Row> ATTN_DEV void load_wide(double *to, int from, int head, Row row)
{
    for (int i = threadIdx.x; i < SIDE * PART; i += THREADS) {
        int r = i / PART, d = i % PART;
        const T *x = row(r);
        to[r * PART_STRIDE + d] =
            x != NULL && from + d < head ? (double)ctw_cuda_widen(x[from + d]) : 0.0;
    }
}

/* The products of 8 elements of 2 by 2 heads, which are exact. */
ATTN_DEV void add_products(double (&sum)[2][2][LANES], const double *q, const double *k)
{
    const int other = SIDE / 2 * PART_STRIDE;
#pragma unroll
    for (int l = 0; l < LANES; l++) {
        const double q0 = q[l], q1 = q[other + l], k0 = k[l], k1 = k[other + l];
        sum[0][0][l] = fma(q0, k0, sum[0][0][l]);
        sum[0][1][l] = fma(q0, k1, sum[0][1][l]);
        sum[1][0][l] = fma(q1, k0, sum[1][0][l]);
        sum[1][1][l] = fma(q1, k1, sum[1][1][l]);
    }
}

ATTN_DEV double add_lanes(const double (&s)[LANES])
{
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

/* The product of 2 by 2 heads of q and k. q_row, k_row: where a head begins, or NULL. */
template <typename T, typename Query, typename Key>
ATTN_DEV void products(double (&s)[2][2], double *sq, double *sk, int head, bool k_there, Query q_row,
                       Key k_row)
{
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    double lanes[2][2][LANES] = {};
    for (int from = 0; from < head; from += PART) {
        __syncthreads(); /* no thread reads the last parts any more */
        load_wide<T>(sq, from, head, q_row);
        if (!k_there)
            load_wide<T>(sk, from, head, k_row);
        __syncthreads();
        for (int d = 0; d < min(PART, head - from); d += LANES)
            add_products(lanes, sq + ty * PART_STRIDE + d, sk + tx * PART_STRIDE + d);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i / 2][i % 2] = add_lanes(lanes[i / 2][i % 2]);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) index_scores_wide(const __grid_constant__ struct ctw_attn a,
                                                             const __grid_constant__ struct choice x)
{
    extern __shared__ __align__(128) unsigned char memory[];
    double *sq = (double *)memory, *sk = sq + SIDE * PART_STRIDE;
    const struct ctw_attn_tile t = a.tiles[x.first + blockIdx.y];
    const int key0 = first_key(t, x, SIDE), ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    if (key0 < 0)
        return;
    const T *q = (const T *)x.op.q, *k = (const T *)x.op.k, *weights = (const T *)x.op.weights;
    const int block = (int)x.op.block, n_keys = t.key_end / block;
    struct attn_walk walk = attn_walk_begin(t);
    attn_walk_to(walk, a.runs, (key0 + 1) * block - 1);
    double s[2][2], sum[2][2] = {};
    for (int h = 0; h < x.op.n_head; h++) {
        products<T>(
            s, sq, sk, a.head, h > 0 && a.head <= PART,
            [&](int r) {
                return r < t.n_q ? q + ((int64_t)(t.q_row + r) * x.op.n_head + h) * a.head
                                 : (const T *)NULL;
            },
            [&](int r) {
                const int pos = (key0 + r + 1) * block - 1; /* of the key's last token */
                return key0 + r < n_keys
                           ? k + (int64_t)attn_walk_row(walk, a.runs, pos) * x.op.ld_k
                           : (const T *)NULL;
            });
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int r = min(ty + 16 * i, t.n_q - 1);
            const int64_t at = (int64_t)(t.q_row + r) * x.op.ld_weights + h;
            double w = weights == NULL ? 1.0 : (double)ctw_cuda_widen(weights[at]);
#pragma unroll
            for (int j = 0; j < 2; j++) /* NaN stays */
                sum[i][j] = __dadd_rn(sum[i][j], __dmul_rn(w, s[i][j] < 0 ? 0.0 : s[i][j]));
        }
    }
    double *out = (double *)x.scores + (int64_t)blockIdx.y * SIDE * x.ld + key0;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            out[(ty + 16 * i) * x.ld + tx + 16 * j] = sum[i][j];
}

/* ---- the choice --------------------------------------------------------------------------- */

/*
 * The first warp: the digit at which `left` numbers are reached, counted from the largest digit down.
 * left becomes how many of these are still wanted of that digit.
 */
ATTN_DEV void find_digit(const int *count, int *digit, int *left)
{
    const int lane = threadIdx.x, each = DIGITS / 32, top = DIGITS - 1 - lane * each;
    int own = 0, wanted = *left;
    for (int i = 0; i < each; i++)
        own += count[top - i];
    int before = own;
    for (int by = 1; by < 32; by *= 2) {
        int larger = __shfl_up_sync(ALL, before, (unsigned)by);
        before += lane >= by ? larger : 0;
    }
    before -= own;
    if (before < wanted && before + own >= wanted) { /* one lane */
        int d = top;
        for (; before + count[d] < wanted; d--)
            before += count[d];
        *digit = d;
        *left = wanted - before;
    }
}

/* Returns the smallest score that is chosen: the chosen-th largest of n. *left is the number of scores
 * equal to it that are chosen. */
template <typename U, typename S>
ATTN_DEV U least_chosen(const S *scores, int n, int chosen, int *count, int *digit, int *left)
{
    const int bits = 8 * (int)sizeof(U);
    U least = 0;
    if (threadIdx.x == 0)
        *left = chosen;
    for (int shift = bits - 8; shift >= 0; shift -= 8) {
        count[threadIdx.x] = 0;
        __syncthreads();
        for (int j = threadIdx.x; j < n; j += THREADS) {
            U u = ctw_cuda_ordered(scores[j]);
            if (shift == bits - 8 || u >> (shift + 8) == least >> (shift + 8))
                atomicAdd(&count[(int)(u >> shift) & (DIGITS - 1)], 1);
        }
        __syncthreads();
        if (threadIdx.x < 32)
            find_digit(count, digit, left);
        __syncthreads();
        least |= (U)*digit << shift;
    }
    return least;
}

/* A block: the bits of one query's row. A warp has neighbouring words, so that of equal scores the
 * first are found in order. */
template <typename U, typename S>
__global__ void __launch_bounds__(THREADS) choose_keys(const __grid_constant__ struct ctw_attn a,
                                                       const __grid_constant__ struct choice x)
{
    __shared__ int count[DIGITS], digit, left;
    static_assert(DIGITS == THREADS, "least_chosen()");
    const struct ctw_attn_tile t = a.tiles[x.first + blockIdx.y];
    const int row = blockIdx.x, n = (t.pos + row + 1) / (int)x.op.block, words = (n + 31) / 32;
    if (row >= t.n_q)
        return;
    const S *scores = (const S *)x.scores + ((int64_t)blockIdx.y * gridDim.x + row) * x.ld;
    uint32_t *seen = x.op.seen + (int64_t)(t.q_row + row) * x.op.ld_seen;
    if (n <= x.op.chosen) {
        for (int w = threadIdx.x; w < words; w += THREADS)
            seen[w] = w < n / 32 ? ALL : (1u << n % 32) - 1;
        return;
    }
    const U least = least_chosen<U>(scores, n, (int)x.op.chosen, count, &digit, &left);
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = THREADS / 32;
    const int each = (words + warps - 1) / warps, from = warp * each, to = min(words, from + each);
    int equal = 0, wanted = left;
    for (int w = from; w < to; w++) {
        int j = 32 * w + lane;
        equal += __popc(__ballot_sync(ALL, j < n && ctw_cuda_ordered(scores[j]) == least));
    }
    if (lane == 0)
        count[warp] = equal;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        wanted -= count[i];
    for (int w = from; w < to; w++) {
        int j = 32 * w + lane;
        U u = j < n ? ctw_cuda_ordered(scores[j]) : (U)0;
        unsigned same = __ballot_sync(ALL, u == least);
        bool first = u == least && __popc(same & ((1u << lane) - 1)) < wanted;
        unsigned word = __ballot_sync(ALL, u > least || first);
        if (lane == 0)
            seen[w] = word;
        wanted -= __popc(same);
    }
}

/*
 * A thread block spreads one query's row in place: bits of chosen blocks of keys become bits of tokens.
 * A word of the result depends on itself and on earlier words, so the last words are written first.
 */
static __global__ void __launch_bounds__(THREADS)
    spread_bits(const __grid_constant__ struct ctw_attn a, const __grid_constant__ struct choice x)
{
    const struct ctw_attn_tile t = a.tiles[x.first + blockIdx.y];
    const int row = blockIdx.x, n_tok = t.pos + row + 1, block = (int)x.op.block;
    if (row >= t.n_q)
        return;
    uint32_t *seen = x.op.seen + (int64_t)(t.q_row + row) * x.op.ld_seen;
    for (int w0 = (n_tok - 1) / 32 / THREADS * THREADS; w0 >= 0; w0 -= THREADS) {
        const int w = w0 + threadIdx.x;
        uint32_t word = 0;
        for (int p = 32 * w; p < min(32 * w + 32, n_tok); p++) {
            const int b = p / block;
            word |= (b >= n_tok / block ? 1u : seen[b / 32] >> b % 32 & 1u) << p % 32;
        }
        __syncthreads();
        if (32 * w < n_tok)
            seen[w] = word;
        __syncthreads();
    }
}

/* ---- launching ---------------------------------------------------------------------------- */

/* Depends on the model alone. */
static bool has_tensor_cores(const struct ctw_op_index *op)
{
    return op->dtype != CTW_F32 && op->head <= HEAD && op->block == 1 && op->ld_k == op->head;
}

typedef void kernel_fn(const struct ctw_attn a, const struct choice x);

static enum ctw_status launch_group(struct ctw_cuda *cu, const struct ctw_attn *a,
                                    const struct choice *x, unsigned n_tiles, struct ctw_err *err)
{
    const bool fast = has_tensor_cores(&x->op);
    kernel_fn *score = x->op.dtype == CTW_F32    ? index_scores_wide<float>
                       : x->op.dtype == CTW_BF16 ? fast ? index_scores<__nv_bfloat16>
                                                        : index_scores_wide<__nv_bfloat16>
                       : fast                    ? index_scores<__half>
                                                 : index_scores_wide<__half>;
    const int bytes = fast ? 3 * QUERIES * HEAD * 2 : 2 * SIDE * PART_STRIDE * (int)sizeof(double);
    enum ctw_status st = ctw_cuda_check(
        cudaFuncSetAttribute((const void *)score, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "the choice of keys", err);
    if (st != CTW_OK)
        return st;
    const dim3 key_tiles((unsigned)(x->ld / (fast ? KEYS : SIDE)), n_tiles);
    const dim3 rows(fast ? QUERIES : SIDE, n_tiles);
    score<<<key_tiles, THREADS, bytes, cu->stream>>>(*a, *x);
    if (fast)
        choose_keys<uint32_t, float><<<rows, THREADS, 0, cu->stream>>>(*a, *x);
    else
        choose_keys<uint64_t, double><<<rows, THREADS, 0, cu->stream>>>(*a, *x);
    if (x->op.by_token)
        spread_bits<<<rows, THREADS, 0, cu->stream>>>(*a, *x);
    return ctw_cuda_launched("the choice of keys", err);
}

static enum ctw_status launch(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    enum { MOST = 65535 }; /* of a grid's second dimension */
    struct choice x = {*(const struct ctw_op_index *)a->of, NULL, 0, 0};
    int64_t most = 1; /* blocks of keys; 1 if no sequence has a whole block: a grid is not empty */
    for (int64_t i = 0; i < x.op.n_seqs; i++) {
        int64_t n = (x.op.seqs[i].pos0 + x.op.seqs[i].n_q) / x.op.block;
        most = n > most ? n : most;
    }
    x.ld = ctw_gpu_round_up(most, KEYS);
    const size_t bytes = ctw_gpu_index_tile_bytes(has_tensor_cores(&x.op), most);
    int64_t each = bytes < CTW_GPU_SCORES ? (int64_t)(CTW_GPU_SCORES / bytes) : 1;
    each = each < MOST ? each : (int64_t)MOST;
    each = each < a->n_tiles ? each : a->n_tiles;
    struct ctw_cuda_buffer *scratch = &cu->scratch[CTW_CUDA_PRODUCT];
    enum ctw_status st = ctw_cuda_grow(cu, scratch, (size_t)each * bytes, err);
    x.scores = scratch->p;
    for (; st == CTW_OK && x.first < a->n_tiles; x.first += (int)each) {
        int64_t left = a->n_tiles - x.first;
        st = launch_group(cu, a, &x, (unsigned)(left < each ? left : each), err);
    }
    return st;
}

enum ctw_status ctw_cuda_index(struct ctw_cuda *cu, const struct ctw_op_index *op, struct ctw_err *err)
{
    const struct ctw_op_attention tiles =
        ctw_attn_tokens(op->dtype, op->head, op->q, op->k, op->seqs, op->n_seqs);
    const bool fast = has_tensor_cores(op);
    return ctw_attn_each_of(cu, &tiles, op, fast ? QUERIES : SIDE, fast ? KEYS : SIDE, launch, err);
}
