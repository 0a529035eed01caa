/*
 * Shared by the attention kernels.
 *
 * Work is divided into tiles: some neighbouring query positions of one sequence, times `pack` query
 * heads of one key head, interleaved as the rows of a matrix: row r is position r / pack and head r
 * % pack of them. Thus a short sequence fills a tile, and keys are read once for several heads.
 *
 * Bits. Keys are taken in tiles of a fixed size, counted from position 0 of the sequence, in order.
 * A row's result depends only on its own query and the keys it sees: a masked key's weight is
 * exactly 0, and a key tile of which a row sees nothing multiplies its sums by exactly 1 and adds
 * exactly 0. The result therefore does not depend on which rows share a tile, where tiles begin, or
 * whether such a key tile is skipped. A row's sink joins its sums after the last key tile.
 *
 * Non-finite values. 0 times infinity is NaN, so a value that is not finite would spoil rows of the
 * tile that do not see it. A tile with a result that is not finite is therefore computed once more
 * with such values taken as 0, which gives the other rows their bits. Then NaN is written to each
 * row that sees such a value. Values past the end of a sequence may belong to anything: instead of
 * them, kernels take 0 or the last value, whose weight is 0 there.
 */
#ifndef CTW_KERNELS_CUDA_ATTENTION_CUH
#define CTW_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/elements.h"

/*
 * Rows of q from q_row on hold positions pos .. pos+n_q-1. Keys are needed up to key_end (of the
 * whole sequence in this call, not only of the tile). The first run that the tile needs is run
 * number `run`, of which this struct holds a copy.
 */
struct __align__(16) ctw_attn_tile {
    int32_t q_row, n_q, pos, key_end, run, shift, end;
    int32_t bad; /* set by a kernel: the tile must be computed again */
};

/* Keys at positions below `end` (and not in the previous run) are in row position + shift. The list of
 * runs is at a multiple of 8 bytes. */
struct ctw_attn_run {
    int32_t shift, end;
};

enum { CTW_ATTN_ALL = 1 << 30 }; /* greater than any position */
enum { CTW_ATTN_AHEAD = 16 };    /* runs past the last that a kernel may read */
enum { CTW_ATTN_NEXT, CTW_ATTN_BAD, CTW_ATTN_STATES = 64 }; /* of `state`, initially all 0 */

struct ctw_attn {
    const void *q, *k, *v; /* [.., n_head * head], [.., n_kv * head], [.., n_kv * head_v] */
    void *out;             /* [.., n_head * head_v] */
    struct ctw_attn_tile *tiles;
    const struct ctw_attn_run *runs;
    int32_t *state;
    int64_t q_rows, kv_rows; /* lower bounds on the arrays' rows */
    int32_t n_tiles;
    int32_t head, n_head, n_kv;
    int32_t group, pack, n_sub; /* query heads per key head and per tile; tiles per key head */
    int32_t window;             /* CTW_ATTN_ALL: all keys are seen */
    float factor;               /* exp(scale * s) = 2^(factor * s); s capped if there is a cap */
    float cap, cap_in;          /* s becomes cap * tanh(s * scale / cap); tanh by 2^(cap_in * s) */
    enum ctw_dtype dtype;
    bool aligned;      /* vectors of 16 bytes may be loaded and stored */
    const void *sinks; /* [n_head], or NULL */
    enum ctw_dtype sinks_dtype;
    float v_factor;     /* of results */
    const float *alibi; /* [n_head], or NULL */
    float per_scale;    /* 1 / scale: a score becomes s + alibi * per_scale * (key - query) */
    int32_t head_v;     /* elements of a value head */
    struct ctw_relative relative; /* rank 0: none. Its scores become s + bias * per_scale */
    const uint32_t *seen; /* [.., ld_seen], or NULL: see struct ctw_op_attention */
    int64_t ld_seen, seen_head;
    const void *of; /* host memory: the operation that the tiles are for, if not attention */
    bool spans;                       /* false: no key tile has keys of two runs */
};

/* Calls launch() for the op's tiles, in as many parts as their table needs. rows: per tile;
 * keys: per key tile. */
typedef enum ctw_status ctw_attn_launch_fn(struct ctw_cuda *cu, const struct ctw_attn *a,
                                           struct ctw_err *err);
enum ctw_status ctw_attn_each(struct ctw_cuda *cu, const struct ctw_op_attention *op, int rows, int keys,
                              ctw_attn_launch_fn *launch, struct ctw_err *err);
/* Tiles of one head whose rows are those of q and k, for operations that are not attention. */
static inline struct ctw_op_attention ctw_attn_tokens(enum ctw_dtype dtype, int head, const void *q,
                                                      const void *k, const struct ctw_attn_seq *seqs,
                                                      int64_t n_seqs)
{
    struct ctw_op_attention tiles = {};
    tiles.dtype = dtype;
    tiles.n_head = tiles.n_kv = 1;
    tiles.head = tiles.head_v = head;
    tiles.scale = tiles.v_factor = 1;
    tiles.q = tiles.out = (void *)q;
    tiles.k = tiles.v = k;
    tiles.seqs = seqs;
    tiles.n_seqs = n_seqs;
    return tiles;
}
/* Likewise, for another operation, which launch() finds in a->of. */
enum ctw_status ctw_attn_each_of(struct ctw_cuda *cu, const struct ctw_op_attention *op, const void *of,
                                 int rows, int keys, ctw_attn_launch_fn *launch, struct ctw_err *err);

/* fp32; bf16 and fp16 on any GPU. */
enum ctw_status ctw_cuda_attention_f32(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                                       struct ctw_err *err);
enum ctw_status ctw_cuda_attention_general(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                                           struct ctw_err *err);
/* On sm_90a. *done false: it does not support these head sizes, this alignment, or ALiBi. */
enum ctw_status ctw_cuda_attention_hopper(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                                          bool *done, struct ctw_err *err);

#ifdef __CUDACC__

#define ATTN_DEV static __device__ __forceinline__

/*
 * Instances with OWN are for value heads of their own size and for a factor of values; without it,
 * values are as wide as keys, and the factor is 1. Depends on the model alone.
 */
static inline bool ctw_attn_own(const struct ctw_op_attention *op)
{
    return op->head_v != op->head || op->v_factor != 1;
}

/* Elements of a value head, and of a head of results. */
template <bool OWN> ATTN_DEV int attn_head_v(const struct ctw_attn &a)
{
    return OWN ? a.head_v : a.head;
}

/* 2^x; relative error below 2^-22, 2^0 is 1, results below 2^-126 are 0. */
ATTN_DEV float attn_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

ATTN_DEV float attn_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

ATTN_DEV bool attn_finite(float x)
{
    return (__float_as_uint(x) & 0x7F800000u) != 0x7F800000u;
}

template <typename T> struct attn_type;
template <> struct attn_type<__nv_bfloat16> {
    static constexpr bool half = false;
    static constexpr uint32_t exponent = 0x7F80;
};
template <> struct attn_type<__half> {
    static constexpr bool half = true;
    static constexpr uint32_t exponent = 0x7C00;
};

/* Two numbers rounded to T, in one word. */
template <typename T> ATTN_DEV uint32_t attn_pair(float lo, float hi)
{
    uint32_t r;
    if constexpr (attn_type<T>::half)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

/* The two 16-bit floats of a word, each replaced by 0 if it is not finite. */
template <typename T> ATTN_DEV uint32_t attn_pair_finite(uint32_t w)
{
    const uint32_t exponent = attn_type<T>::exponent;
    uint32_t lo = (w & exponent) == exponent ? 0 : w & 0xFFFF;
    uint32_t hi = (w >> 16 & exponent) == exponent ? 0 : w & 0xFFFF0000u;
    return lo | hi;
}

/* ---- rows of keys ------------------------------------------------------------------------- */

/* The state of a walk through a sequence's keys: the run that has the last requested position. */
struct attn_walk {
    int run, shift, end;
};

ATTN_DEV struct attn_walk attn_walk_begin(const struct ctw_attn_tile &t)
{
    struct attn_walk w = {t.run, t.shift, t.end};
    return w;
}

/* pos is below the end of all keys, and not before the walk's current run. */
ATTN_DEV void attn_walk_to(struct attn_walk &w, const struct ctw_attn_run *runs, int pos)
{
    while (pos >= w.end) {
        w.run++;
        w.shift = runs[w.run].shift;
        w.end = runs[w.run].end;
    }
}

/* The row of the key at a position, searched from the walk's current run; the walk does not move. */
ATTN_DEV int attn_walk_row(const struct attn_walk &w, const struct ctw_attn_run *runs, int pos)
{
    if (pos < w.end)
        return pos + w.shift;
    struct attn_walk far = w;
    attn_walk_to(far, runs, pos);
    return pos + far.shift;
}

/* The first key tile (of `keys` keys) that a row of the work tile sees, and the number of such
 * tiles. */
ATTN_DEV int attn_first_key_tile(const struct ctw_attn &a, const struct ctw_attn_tile &t, int keys)
{
    return t.pos >= a.window ? (t.pos - a.window + 1) / keys : 0;
}

ATTN_DEV int attn_end_key_tile(const struct ctw_attn_tile &t, int keys)
{
    return (t.pos + t.n_q - 1) / keys + 1;
}

/* ---- the online softmax of fragments ------------------------------------------------------ */

/*
 * A thread holds two rows of a tile of scores, in the layout of the matrix instructions:
 * s[4 * j + 2 * h + e] is column 8 * j + 2 * (lane % 4) + e of row h. The four lanes that share a
 * row hold all of the row. `max` covers all columns of a row so far, `sum` only the thread's own
 * columns.
 */
struct attn_rows {
    float max[2], sum[2];
};

/* -infinity for keys that are not seen; pos: position of the rows' queries, key0: the tile's
 * first key. */
template <int N> ATTN_DEV void attn_mask(float (&s)[N], const int (&pos)[2], int key0, int window)
{
    int first = key0 + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int last_seen = pos[h] - first, last_unseen = last_seen - window;
#pragma unroll
        for (int j = 0; j < N / 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (8 * j + e > last_seen || 8 * j + e <= last_unseen)
                    s[4 * j + 2 * h + e] = -INFINITY;
    }
}

/* The word of a query's row of `seen` that has the bit of key key0, a multiple of 32, for key head kv;
 * p: the query's number in the tile. Words past the query's own key are not written, and not read. */
ATTN_DEV uint32_t attn_seen_word(const struct ctw_attn &a, const struct ctw_attn_tile &t, int kv, int p,
                                 int key0)
{
    p = min(p, t.n_q - 1);
    const uint32_t *seen = a.seen + (int64_t)(t.q_row + p) * a.ld_seen + kv * a.seen_head;
    return key0 <= t.pos + p ? seen[key0 / 32] : 0;
}

/* The words of a key tile (of 32 * WORDS keys) for a thread's rows row + 16 m and row + 16 m + 8.
 * Returns whether the warp's rows see any of its keys. */
template <int MT, int WORDS>
ATTN_DEV bool attn_load_seen(uint32_t (&bits)[MT][2][WORDS], const struct ctw_attn &a,
                             const struct ctw_attn_tile &t, int kv, int row, int key0)
{
    uint32_t any = 0;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < WORDS; i++) {
                int p = (row + 16 * m + 8 * h) / a.pack;
                any |= bits[m][h][i] = attn_seen_word(a, t, kv, p, key0 + 32 * i);
            }
    return __any_sync(0xFFFFFFFFu, any != 0);
}

/* -infinity for keys whose bit is not set. */
template <int N> ATTN_DEV void attn_hide(float (&s)[N], const uint32_t (&bits)[2][N / 16])
{
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < N / 4; j++) {
            uint32_t own = bits[h][j / 4] >> 2 * (threadIdx.x & 3);
#pragma unroll
            for (int e = 0; e < 2; e++)
                if ((own >> (j % 4 * 8 + e) & 1) == 0)
                    s[4 * j + 2 * h + e] = -INFINITY;
        }
}

/* The slope of a query head, in units of scores before scaling. */
ATTN_DEV float attn_slope(const struct ctw_attn &a, int head)
{
    return a.alibi == NULL ? 0.0f : a.alibi[min(head, a.n_head - 1)] * a.per_scale;
}

/* Adds ALiBi to the scores; slope, pos: of the rows' heads and queries. */
template <int N>
ATTN_DEV void attn_add_slopes(float (&s)[N], const float (&slope)[2], const int (&pos)[2], int key0)
{
    int first = key0 + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < N / 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                s[4 * j + 2 * h + e] = fmaf(slope[h], (float)(first + 8 * j + e - pos[h]),
                                            s[4 * j + 2 * h + e]);
}

/* tanh(x) = 1 - 2 / (e^(2 x) + 1): the capped score is off by less than cap * 2^-21. */
template <int N> ATTN_DEV void attn_cap(float (&s)[N], float cap, float cap_in)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = fmaf(-2 * cap, attn_reciprocal(attn_exp2(s[i] * cap_in) + 1), cap);
}

/* s becomes 2^(factor * (s - max)). alpha: the factor for the rows' earlier sums, which must be
 * exactly 1 if the maximum did not change. A row that has seen no key yet has maximum -infinity
 * and sums 0. fmaxf() ignores NaN; then s - max is NaN. */
template <int N>
ATTN_DEV void attn_softmax(float (&s)[N], struct attn_rows &r, float (&alpha)[2], float factor)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m0 = r.max[h], m1 = s[2 * h + 1], t0 = 0, t1 = 0;
#pragma unroll
        for (int j = 0; j < N / 4; j++) {
            m0 = fmaxf(m0, s[4 * j + 2 * h]);
            m1 = fmaxf(m1, s[4 * j + 2 * h + 1]);
        }
        m0 = fmaxf(m0, m1);
        m0 = fmaxf(m0, __shfl_xor_sync(0xFFFFFFFFu, m0, 1));
        m0 = fmaxf(m0, __shfl_xor_sync(0xFFFFFFFFu, m0, 2));
        float base = m0 == -INFINITY ? 0 : m0, offset = base * factor;
        alpha[h] = attn_exp2((r.max[h] - base) * factor);
        r.max[h] = m0;
#pragma unroll
        for (int j = 0; j < N / 4; j++) {
            float p0 = attn_exp2(fmaf(s[4 * j + 2 * h], factor, -offset));
            float p1 = attn_exp2(fmaf(s[4 * j + 2 * h + 1], factor, -offset));
            s[4 * j + 2 * h] = p0;
            s[4 * j + 2 * h + 1] = p1;
            t0 += p0;
            t1 += p1;
        }
        r.sum[h] = fmaf(r.sum[h], alpha[h], t0 + t1);
    }
}

template <int N> ATTN_DEV void attn_rescale(float (&o)[N], const float (&alpha)[2])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        o[i] *= alpha[i / 2 % 2];
}

/* ---- results ------------------------------------------------------------------------------ */

/*
 * Stores row h of a thread's fragment o, times `inverse`, to `to` (NULL: nowhere); all lanes of a
 * warp call it together. Returns false if a value is not finite. Zeros become +0: a masked value
 * may have changed their sign. With vectors, the four lanes of a row exchange words so that each
 * lane has 8 consecutive columns.
 */
template <typename T, int N>
ATTN_DEV bool attn_store(T *to, const float (&o)[N], int h, float inverse, int head, bool aligned)
{
    const int q = threadIdx.x & 3;
    float check = 0;
#pragma unroll
    for (int b = 0; b < N / 16; b++) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float lo = fmaf(o[16 * b + 4 * i + 2 * h], inverse, 0.0f);
            float hi = fmaf(o[16 * b + 4 * i + 2 * h + 1], inverse, 0.0f);
            check = fmaf(lo, 0.0f, fmaf(hi, 0.0f, check));
            x[i] = attn_pair<T>(lo, hi);
            if (!aligned && to != NULL) {
                int d = 32 * b + 8 * i + 2 * q;
                if (d < head)
                    to[d] = (T)lo;
                if (d + 1 < head)
                    to[d + 1] = (T)hi;
            }
        }
        if (!aligned)
            continue;
#pragma unroll
        for (int i = 0; i < 4; i += 2) { /* words (i, i + 1) between lanes q and q ^ 1 */
            uint32_t give = q & 1 ? x[i] : x[i + 1];
            give = __shfl_xor_sync(0xFFFFFFFFu, give, 1);
            x[i] = q & 1 ? give : x[i];
            x[i + 1] = q & 1 ? x[i + 1] : give;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) { /* words (i, i + 2) between lanes q and q ^ 2 */
            uint32_t give = q & 2 ? x[i] : x[i + 2];
            give = __shfl_xor_sync(0xFFFFFFFFu, give, 2);
            x[i] = q & 2 ? give : x[i];
            x[i + 2] = q & 2 ? x[i + 2] : give;
        }
        int d = 32 * b + 8 * q;
        if (to != NULL && d < head)
            *(uint4 *)(to + d) = make_uint4(x[0], x[1], x[2], x[3]);
    }
    return to == NULL || check == 0;
}

/*
 * What a query head's sink adds to the sum of a row's weights, which are relative to max, the
 * largest score that the row sees. -infinity adds exactly 0, +infinity NaN; a sink far above the
 * scores may add infinity, which makes the row 0.
 */
ATTN_DEV float attn_sink(const struct ctw_attn &a, int head, float max)
{
    float sink = a.sinks_dtype == CTW_F32 ? ((const float *)a.sinks)[head]
                 : a.sinks_dtype == CTW_BF16
                     ? ctw_cuda_widen(((const __nv_bfloat16 *)a.sinks)[head])
                     : ctw_cuda_widen(((const __half *)a.sinks)[head]);
    return sink < INFINITY ? exp2f(fmaf(max, -a.factor, sink * 1.44269504f)) : NAN;
}

/*
 * 1 over the sum of a row, over its four lanes and, with sinks, the sink; head: the row's query
 * head (any head for rows past the last row; their results are not stored). A sum is 0 only if all
 * of the row's scores and its sink are -infinity; the result is then NaN, 0 times infinity.
 */
ATTN_DEV float attn_inverse(const struct ctw_attn &a, bool sinks, const struct attn_rows &r, int h,
                            int head)
{
    float sum = r.sum[h];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (sinks)
        sum += attn_sink(a, min(head, a.n_head - 1), r.max[h]);
    return 1.0f / sum;
}

/* Does query p of the tile see the key at position `pos`, which is not after its own? With `seen`
 * only. */
ATTN_DEV bool attn_sees(const struct ctw_attn &a, const struct ctw_attn_tile &t, int kv, int p, int pos)
{
    return t.pos + p - pos < a.window && (attn_seen_word(a, t, kv, p, pos & ~31) >> (pos & 31) & 1) != 0;
}

/*
 * Writes NaN to the results of rows row0 .. row1-1 of a tile that see a value that is not finite.
 * sub: which of the tiles that share kv's heads. Called by n threads with their number in `thread`,
 * after all of them have stored their results. (With `seen`, each value that is not finite asks all
 * rows after it.)
 */
template <typename T, bool OWN>
static __device__ __noinline__ void attn_spoil(const struct ctw_attn &a, const struct ctw_attn_tile &t,
                                               int kv, int sub, int row0, int row1, int thread, int n)
{
    const T *v = (const T *)a.v;
    T *out = (T *)a.out;
    int begin = t.pos >= a.window ? t.pos - a.window + 1 : 0;
    int heads = min(a.pack, a.group - sub * a.pack);
    for (int d = thread; d < attn_head_v<OWN>(a); d += n) {
        struct attn_walk w = attn_walk_begin(t);
        int bad = -1;
        for (int pos = begin; pos < t.pos + t.n_q; pos++) {
            attn_walk_to(w, a.runs, pos);
            int64_t at = ((int64_t)(pos + w.shift) * a.n_kv + kv) * attn_head_v<OWN>(a) + d;
            bool spoils = !attn_finite((float)v[at]);
            if (spoils)
                bad = pos;
            int first = max(pos - t.pos, 0), last = pos - t.pos;
            if (a.seen != NULL)
                last = spoils ? t.n_q - 1 : -1;
            for (int p = first; p <= last; p++) {
                if (a.seen != NULL ? !attn_sees(a, t, kv, p, pos) : bad < 0 || pos - bad >= a.window)
                    continue;
                for (int h = 0; h < heads; h++)
                    if (p * a.pack + h >= row0 && p * a.pack + h < row1)
                        out[((int64_t)(t.q_row + p) * a.n_head + kv * a.group + sub * a.pack + h) *
                                attn_head_v<OWN>(a) +
                            d] = (T)NAN;
            }
        }
    }
}

#endif
#endif
