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
 * loaded while scores are computed, the next K during softmax and P V.
 */
#include "kernels/cuda/attention/attention.cuh"

enum { THREADS = 128 };

/* Of heads padded to HD elements. */
template <int HD> constexpr int SPLIT = HD > 256 ? 2 : 1;
template <int HD> constexpr int KEYS = HD > 256 ? 32 : 64;              /* of a key tile */
template <int HD, int MT> constexpr int ROWS = 4 / SPLIT<HD> * 16 * MT; /* of a tile */

ATTN_DEV uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* The offset in bytes of a row's chunk from the tile's start. */
template <int HD> ATTN_DEV uint32_t chunk_at(int row, int chunk)
{
    int mask = HD % 64 == 0 ? row & 7 : row >> 1 & 3;
    return (uint32_t)(row * HD * 2 + ((chunk ^ mask) << 4));
}

ATTN_DEV void load_4(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

ATTN_DEV void load_4_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

#define PRODUCT(type)                                                                                \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                               \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                            \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                             \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

/* d [16, 8] += a [16, 16] b [16, 8] */
template <typename T> ATTN_DEV void product(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (attn_type<T>::half)
        PRODUCT("f16");
    else
        PRODUCT("bf16");
}

/* ---- loading ------------------------------------------------------------------------------ */

ATTN_DEV void copy_16(uint32_t to, const void *from, int bytes) /* 16, or 0 for zeros */
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

ATTN_DEV void copies_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

ATTN_DEV void copies_wait(void)
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* Elements d .. d+7 of the n elements at `from`, zeros past the end; finite: also zeros for
 * elements that are not finite. */
template <typename T> ATTN_DEV void load_slowly(uint32_t to, const T *from, int d, int n, bool finite)
{
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float lo = d + 2 * i < n ? (float)from[d + 2 * i] : 0.0f;
        float hi = d + 2 * i + 1 < n ? (float)from[d + 2 * i + 1] : 0.0f;
        w[i] = attn_pair<T>(lo, hi); /* exact */
        if (finite)
            w[i] = attn_pair_finite<T>(w[i]);
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]),
                 "r"(w[3])
                 : "memory");
}

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
            n = attn_head_v<OWN>(a);
            from += (int64_t)attn_walk_row(walk, a.runs, key0 + r) * (a.n_kv * attn_head_v<OWN>(a));
        }
        if (a.aligned && !finite)
            copy_16(to + chunk_at<HD>(r, d / 8), d < n ? from + d : x, d < n ? 16 : 0);
        else
            load_slowly<T>(to + chunk_at<HD>(r, d / 8), from, d, n, finite);
    }
}

/* Loads the same tile; uses the fastest copy if the tile is contiguous. */
template <typename T, int HD, int N, bool OWN>
ATTN_DEV void load_keys(uint32_t to, const void *x, struct attn_walk &walk, const struct ctw_attn &a,
                        int kv, int key0, int key_end, bool finite)
{
    const int chunks = HD / 8, stride = a.n_kv * attn_head_v<OWN>(a);
    const T *rows = (const T *)x + kv * attn_head_v<OWN>(a);
    attn_walk_to(walk, a.runs, key0);
    if (key0 + N > walk.end || !a.aligned || finite) {
        load_rows<T, HD, N, OWN>(to, rows, walk, a, key0, key_end, finite);
        return;
    }
    rows += (int64_t)(key0 + walk.shift) * stride;
#pragma unroll
    for (int k = 0; k < N * chunks / THREADS; k++) {
        int i = threadIdx.x + k * THREADS, r = i / chunks, d = i % chunks * 8;
        bool has = d < attn_head_v<OWN>(a);
        copy_16(to + chunk_at<HD>(r, d / 8), has ? rows + (int64_t)r * stride + d : rows,
                has ? 16 : 0);
    }
}

/* ---- the two products --------------------------------------------------------------------- */

/* s [16 * MT rows, KEYS] = q k^T */
template <typename T, int HD, int MT>
ATTN_DEV void scores(float (&s)[MT][KEYS<HD> / 2], uint32_t q, uint32_t k)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < KEYS<HD> / 2; i++)
            s[m][i] = 0;
#pragma unroll
    for (int c = 0; c < HD / 8; c += 2) { /* 16 elements of the head */
        uint32_t qf[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            load_4(qf[m], q + chunk_at<HD>(16 * m + (lane & 15), c + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < KEYS<HD> / 16; n++) { /* 16 keys */
            uint32_t kf[4];
            load_4(kf, k + chunk_at<HD>(16 * n + (lane & 7) + (lane >> 4) * 8, c + (lane >> 3 & 1)));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                product<T>(&s[m][8 * n], qf[m], kf[0], kf[1]);
                product<T>(&s[m][8 * n + 4], qf[m], kf[2], kf[3]);
            }
        }
    }
}

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

template <typename T, int HD, int HV, int MT, bool ALIBI, bool OWN>
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

    load_queries<T, HD, MT>(sq, a, t, kv, sub);
    load_keys<T, HD, KEYS<HD>, false>(sk, a.k, walk, a, kv, tile * keys, t.key_end, false);
    copies_commit();
    for (; tile < end; tile++) {
        const int key0 = tile * keys;
        const bool sees = key0 <= last_pos && key0 + keys - 1 > first_pos - a.window;
        copies_wait();
        __syncthreads(); /* K has arrived, and no thread still reads the last V */
        load_keys<T, HV, KEYS<HD>, OWN>(sv, a.v, walk, a, kv, key0, t.key_end, finite);
        copies_commit();
        if (sees)
            scores<T, HD, MT>(s, sq + row0 * HD * 2, sk);
        copies_wait();
        __syncthreads(); /* V has arrived, and no thread still reads this K */
        if (tile + 1 < end)
            load_keys<T, HD, KEYS<HD>, false>(sk, a.k, walk, a, kv, key0 + keys, t.key_end, false);
        copies_commit();
        if (!sees)
            continue;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            if (a.cap > 0)
                attn_cap(s[m], a.cap, a.cap_in);
            if (ALIBI)
                add_slopes(s[m], a, t, kv, sub, row0 + 16 * m + lane / 4, key0);
            if (key0 + keys - 1 > first_pos || key0 <= last_pos - a.window) {
                int row = row0 + 16 * m + lane / 4;
                int pos[2] = {t.pos + row / a.pack, t.pos + (row + 8) / a.pack};
                attn_mask(s[m], pos, key0, a.window);
            }
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

template <typename T, int HD, int HV, int MT, bool ALIBI, bool OWN>
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
        bool good = one_tile<T, HD, HV, MT, ALIBI, OWN>(a, t, kv, sub, finite, shared_at(memory));
        if (__syncthreads_and(good) || finite)
            break;
        finite = true;
    }
    if (finite)
        attn_spoil<T, OWN>(a, t, kv, sub, 0, ROWS<HD, MT>, threadIdx.x, THREADS);
}

/* ---- launching ---------------------------------------------------------------------------- */

template <typename T, int HD, int HV, int MT, bool ALIBI, bool OWN>
static enum ctw_status launch(const struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    const int bytes = (ROWS<HD, MT> * HD + KEYS<HD> * (HD + HV)) * 2;
    enum ctw_status st = ctw_cuda_check(
        cudaFuncSetAttribute(attention_general<T, HD, HV, MT, ALIBI, OWN>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "attention", err);
    if (st != CTW_OK)
        return st;
    unsigned blocks = (unsigned)a->n_tiles * (unsigned)(a->n_kv * a->n_sub);
    attention_general<T, HD, HV, MT, ALIBI, OWN><<<blocks, THREADS, bytes, cu->stream>>>(*a);
    return ctw_cuda_launched("attention", err);
}

/*
 * The instances: heads padded to these widths. Wide heads take 16 rows per warp, to save registers.
 * With ALiBi, there are fewer widths; the widest supports both. Values of their own size: 192 and
 * 128, or the widest.
 */
#define LAUNCH(HD, HV, MT, ALIBI, OWN) launch<T, HD, HV, MT, ALIBI, OWN>(cu, a, err)
template <typename T>
static enum ctw_status launch_head(const struct ctw_cuda *cu, const struct ctw_attn *a,
                                   struct ctw_err *err)
{
    bool alibi = a->alibi != NULL;
    if (a->head <= 64)
        return alibi ? LAUNCH(64, 64, 2, true, false) : LAUNCH(64, 64, 2, false, false);
    if (a->head <= 96 && !alibi)
        return LAUNCH(96, 96, 2, false, false);
    if (a->head <= 128)
        return alibi ? LAUNCH(128, 128, 2, true, false) : LAUNCH(128, 128, 2, false, false);
    if (a->head <= 256 && !alibi)
        return LAUNCH(256, 256, 1, false, false);
    return LAUNCH(512, 512, 1, true, false);
}

static bool is_192_128(const struct ctw_op_attention *op)
{
    return op->head <= 192 && op->head_v <= 128 && op->alibi == NULL;
}

template <typename T>
static enum ctw_status launch_own(const struct ctw_cuda *cu, const struct ctw_attn *a,
                                  struct ctw_err *err)
{
    return LAUNCH(512, 512, 1, true, true);
}

template <typename T>
static enum ctw_status launch_192_128(const struct ctw_cuda *cu, const struct ctw_attn *a,
                                      struct ctw_err *err)
{
    return LAUNCH(192, 128, 2, false, true);
}
#undef LAUNCH

#define BY_DTYPE(name, by_head)                                                                    \
    static enum ctw_status name(struct ctw_cuda *cu, const struct ctw_attn *a,                     \
                                struct ctw_err *err)                                               \
    {                                                                                              \
        return a->dtype == CTW_BF16 ? by_head<__nv_bfloat16>(cu, a, err)                           \
                                    : by_head<__half>(cu, a, err);                                 \
    }
BY_DTYPE(launch_dtype, launch_head)
BY_DTYPE(launch_dtype_own, launch_own)
BY_DTYPE(launch_dtype_192_128, launch_192_128)
#undef BY_DTYPE

enum ctw_status ctw_cuda_attention_general(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                                           struct ctw_err *err)
{
    if (ctw_attn_own(op) && is_192_128(op))
        return ctw_attn_each(cu, op, ROWS<192, 2>, KEYS<192>, launch_dtype_192_128, err);
    if (ctw_attn_own(op))
        return ctw_attn_each(cu, op, ROWS<512, 1>, KEYS<512>, launch_dtype_own, err);
    if (op->head <= 128)
        return ctw_attn_each(cu, op, ROWS<128, 2>, KEYS<128>, launch_dtype, err);
    if (op->head <= 256 && op->alibi == NULL)
        return ctw_attn_each(cu, op, ROWS<256, 1>, KEYS<256>, launch_dtype, err);
    return ctw_attn_each(cu, op, ROWS<512, 1>, KEYS<512>, launch_dtype, err);
}
