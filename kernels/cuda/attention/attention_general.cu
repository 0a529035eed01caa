/*
 * Attention in bf16 and fp16 on any GPU from sm_80 on, with mma.sync m16n8k16. A block of 4 warps
 * takes one tile of rows, 16 * MT rows per warp; key tiles of 64, or 32. Scores, softmax and sums are
 * fp32; the weights P are rounded to 16 bits for P V, but not for their sum.
 *
 * A warp cannot keep the sums of a head of 512 elements in its registers. For these heads, SPLIT (2)
 * neighbouring warps have the same rows and compute the same weights; each adds the values of its
 * half of the head's elements.
 *
 * Shared memory: Q, one tile of K and one of V, rows of HD elements (the head padded with zeros) in
 * chunks of 16 bytes, swizzled so that 8 rows' chunks of one column lie in different banks. V is
 * loaded while scores are computed, the next K during softmax and P V. Each lane finds the row of one
 * key of a tile, so a tile of many runs takes as long as a tile of one.
 */
#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/attention/attention_relative.cuh"

enum { THREADS = 128 };

/* What is added to scores by distance. */
enum bias { NONE, ALIBI, RELATIVE };

/* Of heads padded to HD elements. */
template <int HD> constexpr int SPLIT = HD > 256 ? 2 : 1;
template <int HD> constexpr int KEYS = HD > 256 ? 32 : 64;              /* of a key tile */
template <int HD, int MT> constexpr int ROWS = 4 / SPLIT<HD> * 16 * MT; /* of a tile */

/* ---- loading ------------------------------------------------------------------------------ */

template <typename T, int HD, int MT>
ATTN_DEV void load_queries(uint32_t to, const struct ctw_attn &a, const struct ctw_attn_tile &t, int kv,
                           int sub)
{
    const int chunks = HD / 8;
    const T *q = (const T *)a.q;
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS<HD, MT> * chunks; i += THREADS) {
        int r = i / chunks, d = i % chunks * 8, p = r / a.pack, h = r - p * a.pack + sub * a.pack;
        int n = p < t.n_q && h < a.group ? a.head : 0;
        const T *from = q + ((int64_t)(t.q_row + p) * a.n_head + kv * a.group + h) * a.head;
        if (a.aligned)
            copy_16(to + chunk_at<HD>(r, d / 8), d < n ? from + d : q, d < n ? 16 : 0);
        else
            load_slowly<T>(to + chunk_at<HD>(r, d / 8), from, d, n, false);
    }
}

/* The tile of N keys or values from position key0 on, row by row; zeros past the sequence's end.
 * OWN: of values of their own size. */
template <typename T, int HD, int N, bool OWN>
static __device__ __noinline__ void load_rows(uint32_t to, const T *x, struct attn_walk walk,
                                              const struct ctw_attn &a, int key0, int key_end,
                                              bool finite)
{
    const int chunks = HD / 8;
#pragma unroll 1
    for (int i = threadIdx.x; i < N * chunks; i += THREADS) {
        int r = i / chunks, d = i % chunks * 8;
        const T *from = x;
        int n = 0;
        if (key0 + r < key_end) {
            attn_walk_to(walk, a.runs, key0 + r);
            n = attn_head_v<OWN>(a);
            from += (int64_t)(key0 + r + walk.shift) * (a.n_kv * n);
        }
        if (a.aligned && !finite)
            copy_16(to + chunk_at<HD>(r, d / 8), d < n ? from + d : x, d < n ? 16 : 0);
        else
            load_slowly<T>(to + chunk_at<HD>(r, d / 8), from, d, n, finite);
    }
}

/*
 * Copies of 16 bytes by which the block's threads load a tile of N rows of HD elements: each thread
 * has `n`. A warp needs the rows of LANES keys of the tile, one found by each of its lanes, which get
 * them from each other. IN_TURN: the threads take a row's chunks in turn; else (HD / 8 is no power of 2,
 * or K and V differ in HD) a warp takes rows that follow each other.
 */
template <int HD, int N, bool IN_TURN> struct copies {
    static constexpr int chunks = HD / 8, n = N * chunks / THREADS;
    static constexpr int rows = chunks < 32 ? 32 / chunks : 1; /* of a copy of a warp, in turn */
    static constexpr int lanes = IN_TURN ? n * rows : N / 4;

    /* The key of the tile whose row this lane finds. */
    static __device__ __forceinline__ int key(void)
    {
        const int lane = threadIdx.x & (lanes - 1), warp = threadIdx.x / 32;
        if (!IN_TURN)
            return warp * lanes + lane;
        return (lane / rows * THREADS + lane % rows * chunks + warp * 32) / chunks;
    }

    /* The thread's k-th copy: of a chunk `d` of row `r` of the tile, found by lane `by`. */
    static __device__ __forceinline__ void at(int k, int &r, int &d, int &by)
    {
        const int lane = threadIdx.x & 31, i = IN_TURN ? threadIdx.x + k * THREADS : lane + k * 32;
        r = i / chunks;
        d = i % chunks;
        by = IN_TURN ? k * rows + lane / chunks : r;
        r = IN_TURN ? r : threadIdx.x / 32 * lanes + r;
    }
};

/* The row of the key at a position, to which the lane's walk moves on. */
ATTN_DEV int find_row(struct attn_walk &walk, const struct ctw_attn_run *runs, int pos)
{
    while (pos >= walk.end) {
        const int2 next = __ldg((const int2 *)(runs + ++walk.run));
        walk.shift = next.x;
        walk.end = next.y;
    }
    return pos + walk.shift;
}

/*
 * The tile of N keys or values from position key0 on, whichever runs they lie in: `row` is where the
 * key of the lane lies. Past the sequence's end, the last key is loaded again, which no query sees
 * there. stride: between rows of x, of which `head` elements are loaded.
 */
template <typename T, int HD, int N, bool IN_TURN>
ATTN_DEV void load_found(uint32_t to, const T *x, int row, int head, int stride)
{
    using own = copies<HD, N, IN_TURN>;
#pragma unroll
    for (int k = 0; k < own::n; k++) {
        int r, d, by;
        own::at(k, r, d, by);
        const int64_t from = (int64_t)__shfl_sync(0xFFFFFFFFu, row, by) * stride + 8 * d;
        copy_16(to + chunk_at<HD>(r, d), x + from, 8 * d < head ? 16 : 0);
    }
}

/* Keys or values x, see load_found(). */
template <typename T, int HD, int N, bool OWN, bool IN_TURN>
ATTN_DEV void load_tile(uint32_t to, const void *x, int row, const struct ctw_attn &a,
                        const struct ctw_attn_tile &t, int kv, int key0, bool finite)
{
    const int head = attn_head_v<OWN>(a);
    const T *rows = (const T *)x + kv * head;
    if (!a.aligned || finite)
        load_rows<T, HD, N, OWN>(to, rows, attn_walk_begin(t), a, key0, t.key_end, finite);
    else
        load_found<T, HD, N, IN_TURN>(to, rows, row, head, a.n_kv * head);
}

/* ---- the two products --------------------------------------------------------------------- */

/* o [16 * MT rows, HV / SPLIT] += p [.., KEYS] v [KEYS, HV / SPLIT], from chunk `chunk0` of v's rows
 * on */
template <typename T, int HD, int HV, int MT>
ATTN_DEV void add_values(float (&o)[MT][HV / SPLIT<HD> / 2], const float (&p)[MT][KEYS<HD> / 2],
                         uint32_t v, int chunk0)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < KEYS<HD> / 16; n++) { /* 16 keys */
        uint32_t pf[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                pf[m][i] = attn_pair<T>(p[m][8 * n + 2 * i], p[m][8 * n + 2 * i + 1]);
#pragma unroll
        for (int c = 0; c < HV / SPLIT<HD> / 8; c += 2) { /* 16 elements of the head */
            uint32_t vf[4];
            load_4_transposed(vf, v + chunk_at<HV>(16 * n + (lane & 15), chunk0 + c + (lane >> 4)));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                product<T>(&o[m][4 * c], pf[m], vf[0], vf[1]);
                product<T>(&o[m][4 * c + 4], pf[m], vf[2], vf[3]);
            }
        }
    }
}

/* ---- the kernel --------------------------------------------------------------------------- */

/* ALiBi of a thread's rows `row` and row + 8 of the tile. */
template <int N>
ATTN_DEV void add_slopes(float (&s)[N], const struct ctw_attn &a, const struct ctw_attn_tile &t, int kv,
                         int sub, int row, int key0)
{
    float slope[2];
    int pos[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int p = (row + 8 * h) / a.pack, head = row + 8 * h - p * a.pack + sub * a.pack;
        slope[h] = attn_slope(a, kv * a.group + head);
        pos[h] = t.pos + p;
    }
    attn_add_slopes(s, slope, pos, key0);
}

/* The learned bias of a thread's rows `row` and row + 8 of the tile. */
template <typename T, int N>
ATTN_DEV void add_relative(float (&s)[N], const struct ctw_attn &a, const struct ctw_attn_tile &t, int kv,
                           int sub, int row, int key0)
{
    const int first = key0 + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int distance = t.pos + (row + 8 * h) / a.pack - first;
        attn_each_state<T>(a, t, kv, sub, row + 8 * h, [&](int i, float x) {
#pragma unroll
            for (int j = 0; j < N / 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &at = s[4 * j + 2 * h + e];
                    at = fmaf(x, attn_relative_at(a.relative, i, distance - 8 * j - e), at);
                }
        });
    }
}

template <typename T, int HD, int HV, int MT, enum bias BIAS, bool OWN, bool SEEN>
ATTN_DEV bool one_tile(const struct ctw_attn &a, const struct ctw_attn_tile &t, int kv, int sub,
                       bool finite, uint32_t shared)
{
    const int keys = KEYS<HD>, columns = HV / SPLIT<HD>; /* of the warp's sums */
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, row0 = warp / SPLIT<HD> * 16 * MT;
    const int column0 = warp % SPLIT<HD> * columns;
    const uint32_t sq = shared, sk = sq + ROWS<HD, MT> * HD * 2, sv = sk + keys * HD * 2;
    struct attn_walk walk = attn_walk_begin(t);
    struct attn_rows r[MT];
    float s[MT][keys / 2], o[MT][columns / 2], alpha[2];
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            r[m].max[h] = -INFINITY;
            r[m].sum[h] = 0;
        }
#pragma unroll
        for (int i = 0; i < columns / 2; i++)
            o[m][i] = 0;
    }
    /* Positions of the warp's rows; rows past the tile's last row see no more than the last row
     * does. */
    const int first_pos = t.pos + row0 / a.pack;
    const int last_pos = min(t.pos + t.n_q - 1, t.pos + (row0 + 16 * MT - 1) / a.pack);
    int tile = attn_first_key_tile(a, t, keys), end = attn_end_key_tile(t, keys);

    /* Each lane walks to its own key of every tile. */
    constexpr bool in_turn = HD == HV && (HD / 8 & (HD / 8 - 1)) == 0;
    const int own = copies<HD, KEYS<HD>, in_turn>::key();
    int row = find_row(walk, a.runs, min(tile * keys + own, t.key_end - 1));
    load_queries<T, HD, MT>(sq, a, t, kv, sub);
    load_tile<T, HD, KEYS<HD>, false, in_turn>(sk, a.k, row, a, t, kv, tile * keys, false);
    copies_commit();
    for (; tile < end; tile++) {
        const int key0 = tile * keys;
        bool sees = key0 <= last_pos && key0 + keys - 1 > first_pos - a.window;
        uint32_t bits[MT][2][keys / 32];
        if (SEEN)
            sees = attn_load_seen(bits, a, t, kv, row0 + lane / 4, key0) && sees;
        copies_wait();
        __syncthreads(); /* K has arrived, and no thread still reads the last V */
        load_tile<T, HV, KEYS<HD>, OWN, in_turn>(sv, a.v, row, a, t, kv, key0, finite);
        copies_commit();
        if (sees)
            scores<T, HD, MT, keys>(s, sq + row0 * HD * 2, sk);
        copies_wait();
        __syncthreads(); /* V has arrived, and no thread still reads this K */
        if (tile + 1 < end) {
            row = find_row(walk, a.runs, min(key0 + keys + own, t.key_end - 1));
            load_tile<T, HD, KEYS<HD>, false, in_turn>(sk, a.k, row, a, t, kv, key0 + keys, false);
        }
        copies_commit();
        if (!sees)
            continue;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            if (a.cap > 0)
                attn_cap(s[m], a.cap, a.cap_in);
            if (BIAS == RELATIVE)
                add_relative<T>(s[m], a, t, kv, sub, row0 + 16 * m + lane / 4, key0);
            if (BIAS == ALIBI)
                add_slopes(s[m], a, t, kv, sub, row0 + 16 * m + lane / 4, key0);
            if (key0 + keys - 1 > first_pos || key0 <= last_pos - a.window) {
                int row = row0 + 16 * m + lane / 4;
                int pos[2] = {t.pos + row / a.pack, t.pos + (row + 8) / a.pack};
                attn_mask(s[m], pos, key0, a.window);
            }
            if (SEEN)
                attn_hide(s[m], bits[m]);
            attn_softmax(s[m], r[m], alpha, a.factor);
            attn_rescale(o[m], alpha);
        }
        add_values<T, HD, HV, MT>(o, s, sv, column0 / 8);
    }

    bool good = true;
    T *out = (T *)a.out;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = row0 + 16 * m + 8 * h + lane / 4, p = row / a.pack;
            int head = row - p * a.pack + sub * a.pack;
            float inverse = attn_inverse(a, a.sinks != NULL, r[m], h, kv * a.group + head);
            if (OWN)
                inverse *= a.v_factor;
            T *to = NULL;
            if (p < t.n_q && head < a.group)
                to = out +
                     ((int64_t)(t.q_row + p) * a.n_head + kv * a.group + head) * attn_head_v<OWN>(a) +
                     column0;
            good &= attn_store<T>(to, o[m], h, inverse, attn_head_v<OWN>(a) - column0, a.aligned);
        }
    return good;
}

template <typename T, int HD, int HV, int MT, enum bias BIAS, bool OWN, bool SEEN>
__global__ void __launch_bounds__(THREADS) attention_general(const __grid_constant__ struct ctw_attn a)
{
    extern __shared__ __align__(128) unsigned char memory[];
    const int heads = a.n_kv * a.n_sub, which = blockIdx.x % heads;
    const int kv = which / a.n_sub, sub = which % a.n_sub;
    __shared__ struct ctw_attn_tile t; /* in shared memory, to save registers */
    if (threadIdx.x == 0)
        t = a.tiles[blockIdx.x / heads];
    __syncthreads();
    bool finite = false;
    for (;;) {
        bool good = one_tile<T, HD, HV, MT, BIAS, OWN, SEEN>(a, t, kv, sub, finite, shared_at(memory));
        if (__syncthreads_and(good) || finite)
            break;
        finite = true;
    }
    if (finite)
        attn_spoil<T, OWN>(a, t, kv, sub, 0, ROWS<HD, MT>, threadIdx.x, THREADS);
}

/* ---- launching ---------------------------------------------------------------------------- */

template <typename T, int HD, int HV, int MT, enum bias BIAS, bool OWN, bool SEEN>
static enum ctw_status launch(const struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    const int bytes = (ROWS<HD, MT> * HD + KEYS<HD> * (HD + HV)) * 2;
    enum ctw_status st = ctw_cuda_check(
        cudaFuncSetAttribute(attention_general<T, HD, HV, MT, BIAS, OWN, SEEN>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "attention", err);
    if (st != CTW_OK)
        return st;
    unsigned blocks = (unsigned)a->n_tiles * (unsigned)(a->n_kv * a->n_sub);
    attention_general<T, HD, HV, MT, BIAS, OWN, SEEN><<<blocks, THREADS, bytes, cu->stream>>>(*a);
    return ctw_cuda_launched("attention", err);
}

/*
 * The instances: heads padded to these widths. Wide heads take 16 rows per warp, to save registers.
 * With ALiBi, there are fewer widths; the widest supports both. With a learned bias: 128 and
 * 512. Values of their own size: 192 and 128, or the widest. Chosen keys: these, or 256 and 256.
 */
#define LAUNCH(HD, HV, MT, BIAS, OWN) launch<T, HD, HV, MT, BIAS, OWN, false>(cu, a, err)
#define LAUNCH_SEEN(HD, HV, MT) launch<T, HD, HV, MT, NONE, true, true>(cu, a, err)
template <typename T>
static enum ctw_status launch_head(const struct ctw_cuda *cu, const struct ctw_attn *a,
                                   struct ctw_err *err)
{
    bool alibi = a->alibi != NULL;
    if (a->head <= 64)
        return alibi ? LAUNCH(64, 64, 2, ALIBI, false) : LAUNCH(64, 64, 2, NONE, false);
    if (a->head <= 96 && !alibi)
        return LAUNCH(96, 96, 2, NONE, false);
    if (a->head <= 128)
        return alibi ? LAUNCH(128, 128, 2, ALIBI, false) : LAUNCH(128, 128, 2, NONE, false);
    if (a->head <= 256 && !alibi)
        return LAUNCH(256, 256, 1, NONE, false);
    return LAUNCH(512, 512, 1, ALIBI, false);
}

template <typename T>
static enum ctw_status launch_relative(const struct ctw_cuda *cu, const struct ctw_attn *a,
                                       struct ctw_err *err)
{
    return a->head <= 128 ? LAUNCH(128, 128, 2, RELATIVE, false) : LAUNCH(512, 512, 1, RELATIVE, false);
}

static bool is_192_128(const struct ctw_op_attention *op)
{
    return op->head <= 192 && op->head_v <= 128 && op->alibi == NULL;
}

template <typename T>
static enum ctw_status launch_own(const struct ctw_cuda *cu, const struct ctw_attn *a,
                                  struct ctw_err *err)
{
    return a->seen != NULL ? LAUNCH_SEEN(512, 512, 1) : LAUNCH(512, 512, 1, ALIBI, true);
}

template <typename T>
static enum ctw_status launch_256_seen(const struct ctw_cuda *cu, const struct ctw_attn *a,
                                       struct ctw_err *err)
{
    return LAUNCH_SEEN(256, 256, 1);
}

template <typename T>
static enum ctw_status launch_192_128(const struct ctw_cuda *cu, const struct ctw_attn *a,
                                      struct ctw_err *err)
{
    return a->seen != NULL ? LAUNCH_SEEN(192, 128, 2) : LAUNCH(192, 128, 2, NONE, true);
}
#undef LAUNCH
#undef LAUNCH_SEEN

#define BY_DTYPE(name, by_head)                                                                    \
    static enum ctw_status name(struct ctw_cuda *cu, const struct ctw_attn *a,                     \
                                struct ctw_err *err)                                               \
    {                                                                                              \
        return a->dtype == CTW_BF16 ? by_head<__nv_bfloat16>(cu, a, err)                           \
                                    : by_head<__half>(cu, a, err);                                 \
    }
BY_DTYPE(launch_dtype, launch_head)
BY_DTYPE(launch_dtype_relative, launch_relative)
BY_DTYPE(launch_dtype_own, launch_own)
BY_DTYPE(launch_dtype_192_128, launch_192_128)
BY_DTYPE(launch_dtype_256_seen, launch_256_seen)
#undef BY_DTYPE

enum ctw_status ctw_cuda_attention_general(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                                           struct ctw_err *err)
{
    const bool own = ctw_attn_own(op) || op->seen != NULL;
    if (op->relative.rank > 0)
        return op->head <= 128
                   ? ctw_attn_each(cu, op, ROWS<128, 2>, KEYS<128>, launch_dtype_relative, err)
                   : ctw_attn_each(cu, op, ROWS<512, 1>, KEYS<512>, launch_dtype_relative, err);
    if (own && is_192_128(op))
        return ctw_attn_each(cu, op, ROWS<192, 2>, KEYS<192>, launch_dtype_192_128, err);
    if (op->seen != NULL && op->head <= 256 && op->head_v <= 256)
        return ctw_attn_each(cu, op, ROWS<256, 1>, KEYS<256>, launch_dtype_256_seen, err);
    if (own)
        return ctw_attn_each(cu, op, ROWS<512, 1>, KEYS<512>, launch_dtype_own, err);
    if (op->head <= 128)
        return ctw_attn_each(cu, op, ROWS<128, 2>, KEYS<128>, launch_dtype, err);
    if (op->head <= 256 && op->alibi == NULL)
        return ctw_attn_each(cu, op, ROWS<256, 1>, KEYS<256>, launch_dtype, err);
    return ctw_attn_each(cu, op, ROWS<512, 1>, KEYS<512>, launch_dtype, err);
}
