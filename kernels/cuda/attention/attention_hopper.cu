/*
 * Attention in bf16 and fp16 on sm_90a, for heads of a multiple of 8 elements. One block per
 * multiprocessor takes tiles from the list until the list is empty. The first of its warpgroups
 * (the producer) loads Q, K and V into shared memory. Each other warpgroup computes 64 rows: scores
 * with Q and K from shared memory, then sums of V with the weights P, rounded to 16 bits, in
 * registers.
 *
 * A warpgroup has the scores of the next key tile and the sums of the current one in flight at the
 * same time, and computes the next weights while the sums run. The warpgroups alternate in starting
 * their products, so that the softmax of one overlaps the products of another.
 *
 * Heads are padded with zeros (tensor copies return zeros past an array's end) to HD = 64, 128 or
 * 256; if values have their own size, keys to 192 and values to HV = 128.
 */
#include "kernels/cuda/attention/attention_boxes.cuh"

enum { STAGES = 2, SLOTS = 4, AGAIN_NEXT = 2 /* of ctw_attn.state */ };

/* The sizes of an instance: key heads of HD and value heads of HV elements, key tiles of N, WGS
 * computing warpgroups. HV is HD, or the values are of their own size (ctw_attn_own()). */
template <int HD, int HV, int N, int WGS> struct sizes {
    static constexpr int rows = 64 * WGS;
    static constexpr int threads = 128 * (WGS + 1);
    static constexpr int q_stages = HD > 128 ? 1 : 2;
    static constexpr int q_bytes = rows * HD * 2;
    static constexpr int k_bytes = N * HD * 2, v_bytes = N * HV * 2;
    static constexpr int all_bytes = q_stages * q_bytes + STAGES * (k_bytes + v_bytes);
    /* 1024: tiles start at a multiple of 1024; 512: struct control. */
    static constexpr int shared_bytes = 1024 + all_bytes + 512;
};

/* The i-th item of the block is in slot i % SLOTS: while its results are stored, Q of the item
 * after next may arrive, so two slots are not enough. */
struct control {
    uint64_t q_full[STAGES], q_empty[STAGES];
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
    struct ctw_attn_tile tile[SLOTS];
    int item[SLOTS]; /* tile * heads + head; -1: no more items */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

enum { MEET_PRODUCER = 1, MEET_TURN = 2, MEET_GROUP = 5 }; /* barriers; the last two are per warpgroup */

/* Addresses in shared memory, and values common to all threads of a block. */
struct place {
    uint32_t q, k, v; /* tiles: chunks of 64 elements by rows of 128 bytes, swizzled */
    struct control *control;
    int heads; /* items per tile */
};

CTW_DEV uint32_t at(const uint64_t &barrier)
{
    return shared_address(&barrier);
}

/* ---- the producer ------------------------------------------------------------------------- */

/* Loads without tensor copies: values that become 0 if they are not finite. (Or rows that are not
 * contiguous, which instances with SPANS load as boxes.) All 128 threads. */
template <typename T, int HD, int N, bool OWN>
static __device__ __noinline__ void gather(const struct ctw_attn &a, const void *x, int kv, uint32_t to,
                                           struct attn_walk walk, int key0, int key_end, bool finite)
{
    const T *rows = (const T *)x + kv * attn_head_v<OWN>(a);
#pragma unroll 1
    for (int i = threadIdx.x; i < N * HD / 8; i += 128) {
        int r = i / (HD / 8), c = i % (HD / 8), bytes = 0;
        uint32_t dst = to + c / 8 * (N * 128) + r * 128 + ((c % 8 ^ (r & 7)) << 4);
        const T *from = rows;
        if (key0 + r < key_end && 8 * c < attn_head_v<OWN>(a)) {
            from += (int64_t)attn_walk_row(walk, a.runs, key0 + r) * (a.n_kv * attn_head_v<OWN>(a)) +
                    8 * c;
            bytes = 16;
        }
        if (!finite) {
            copy_16(dst, from, bytes);
            continue;
        }
        uint4 w = bytes > 0 ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
        w.x = attn_pair_finite<T>(w.x);
        w.y = attn_pair_finite<T>(w.y);
        w.z = attn_pair_finite<T>(w.z);
        w.w = attn_pair_finite<T>(w.w);
        store_16(dst, w);
    }
    copies_wait();
    shared_fence();
}

/* One tile of keys or values, the n-th of this block. OWN: of values of their own size; part: the calling
 * warp's number among those that load the array's tiles. */
template <typename T, int HD, int N, bool OWN, bool SPANS>
CTW_DEV void produce(const struct ctw_attn &a, const struct boxes<N, SPANS> &maps, const void *x,
                     uint32_t tiles, uint64_t *full, uint64_t *empty, int n, int kv,
                     const struct attn_walk &walk, int key0, int key_end, bool finite, int part)
{
    const int stage = n % STAGES, parity = n / STAGES & 1;
    const uint32_t to = tiles + stage * (N * HD * 2), bar = at(full[stage]);
    if constexpr (SPANS)
        if (!finite) {
            if (part >= 0 && part < LOADERS)
                load_boxes<HD>(maps, to, bar, at(empty[stage]), parity ^ 1, kv, walk, a.runs, key0,
                               key_end, part);
            return;
        }
    const bool one_piece = min(key0 + N, key_end) <= walk.end && !finite;
    if (threadIdx.x == 0)
        barrier_wait(at(empty[stage]), parity ^ 1);
    if (one_piece) {
        if (threadIdx.x == 0) {
            barrier_expect(bar, N * HD * 2);
            for (int c = 0; c < HD / 64; c++)
                box_load(to + c * (N * 128), &maps.of[0], 64 * c, kv, key0 + walk.shift, bar);
        }
        return;
    }
    meet(MEET_PRODUCER, 128);
    gather<T, HD, N, OWN>(a, x, kv, to, walk, key0, key_end, finite);
    meet(MEET_PRODUCER, 128);
    if (SPANS ? threadIdx.x < LOADERS : threadIdx.x == 0)
        barrier_arrive(bar);
}

/* The number of an item, from the counter; when tiles are computed again, of a marked item. */
CTW_DEV int item_at(const struct ctw_attn &a, int heads, int item, bool again)
{
    const int n = a.n_tiles * heads;
    while (again && item < n && !a.tiles[item / heads].bad)
        item = atomicAdd(&a.state[AGAIN_NEXT], 1);
    return item < n ? item : -1;
}

template <typename T, int HD, int HV, int N, int WGS, bool SPANS>
CTW_DEV void producer(const struct ctw_attn &a, const struct place &s, const CUtensorMap *q_map,
                      const struct boxes<N, SPANS> &k_maps, const struct boxes<N, SPANS> &v_maps,
                      bool again)
{
    using S = sizes<HD, HV, N, WGS>;
    struct control &c = *s.control;
    int32_t *counter = &a.state[again ? AGAIN_NEXT : CTW_ATTN_NEXT];
    const int warp = (int)threadIdx.x / 32; /* with SPANS, the first load keys, the next values */
    int n = 0, next = threadIdx.x == 0 ? atomicAdd(counter, 1) : 0;
    for (int i = 0;; i++) {
        const int slot = i % SLOTS, stage = i % S::q_stages;
        const uint32_t full = at(c.q_full[stage]);
        if (threadIdx.x == 0) {
            next = item_at(a, s.heads, next, again);
            if (next >= 0)
                c.tile[slot] = a.tiles[next / s.heads];
            c.item[slot] = next;
            barrier_wait(at(c.q_empty[stage]), (i / S::q_stages & 1) ^ 1);
        }
        meet(MEET_PRODUCER, 128);
        const int item = c.item[slot];
        if (item < 0) {
            if (threadIdx.x == 0)
                barrier_arrive(full);
            return;
        }
        const struct ctw_attn_tile &t = c.tile[slot];
        const int kv = item % s.heads / a.n_sub, sub = item % s.heads % a.n_sub, key_end = t.key_end;
        if (threadIdx.x == 0) {
            barrier_expect(full, S::rows / a.pack * a.pack * HD * 2);
            for (int d = 0; d < HD / 64; d++)
                box_load(s.q + stage * S::q_bytes + d * (S::rows * 128), q_map, 64 * d,
                         kv * a.group + sub * a.pack, t.q_row, full);
            next = atomicAdd(counter, 1); /* read after the tiles have been requested */
        }
        struct attn_walk walk = attn_walk_begin(t);
        const int end = attn_end_key_tile(t, N);
        for (int tile = attn_first_key_tile(a, t, N); tile < end; tile++, n++) {
            attn_walk_to(walk, a.runs, tile * N);
            produce<T, HD, N, false, SPANS>(a, k_maps, a.k, s.k, c.k_full, c.k_empty, n, kv, walk,
                                            tile * N, key_end, false, warp);
            produce<T, HV, N, HV != HD, SPANS>(a, v_maps, a.v, s.v, c.v_full, c.v_empty, n, kv, walk,
                                               tile * N, key_end, again, warp - LOADERS);
        }
    }
}

/* ---- the computing warpgroups ------------------------------------------------------------- */

/* A warp has finished with what the barrier guards. */
CTW_DEV void release(const uint64_t &barrier)
{
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(at(barrier));
}

template <typename T, int HD, int N, int WGS>
CTW_DEV void start_scores(float (&s)[N / 2], uint32_t q, uint32_t k)
{
    products_fence();
#pragma unroll
    for (int c = 0; c < HD / 64; c++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            score_product<T>(s, matrix_descriptor(q + c * (64 * WGS * 128) + 32 * e),
                             matrix_descriptor(k + c * (N * 128) + 32 * e), c + e > 0);
    products_commit();
}

template <typename T, int HD, int N>
CTW_DEV void start_values(float (&o)[HD / 2], const uint32_t (&p)[N / 4], uint32_t v)
{
    products_fence();
#pragma unroll
    for (int i = 0; i < N / 16; i++)
        value_product<T>(o, p + 4 * i, value_descriptor(v + 2048 * i, N * 128));
    products_commit();
}

/* Turns the scores of the tile from key0 on into weights. first, last: positions of the warp's rows. */
template <int N>
CTW_DEV void weigh(float (&s)[N / 2], struct attn_rows &r, float (&alpha)[2], const struct ctw_attn &a,
                   const int (&pos)[2], int first, int last, int key0)
{
    if (a.cap > 0)
        attn_cap(s, a.cap, a.cap_in);
    if (key0 + N - 1 > first || key0 <= last - a.window)
        attn_mask(s, pos, key0, a.window);
    attn_softmax(s, r, alpha, a.factor);
}

template <typename T, int N> CTW_DEV void round_weights(uint32_t (&p)[N / 4], const float (&s)[N / 2])
{
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        p[i] = attn_pair<T>(s[2 * i], s[2 * i + 1]);
}

/* Values of rows `from` .. N-1 become 0. The other warpgroups write the same zeros, which is
 * harmless. */
template <int HD, int N> CTW_DEV void clear_rows(uint32_t v, int from, int group)
{
    for (int i = from * 8 + (threadIdx.x & 127); i < N * 8; i += 128)
        for (int c = 0; c < HD / 64; c++)
            store_16(v + c * (N * 128) + 16 * i, make_uint4(0, 0, 0, 0));
    shared_fence();
    meet(MEET_GROUP + group, 128);
}

/* The sums o and r of one item; its K and V are the n-th and following tiles of this block. */
template <typename T, int HD, int HV, int N, int WGS>
CTW_DEV void compute(float (&o)[HV / 2], struct attn_rows &r, const struct ctw_attn &a,
                     const struct ctw_attn_tile &t, const struct place &s, int group, int stage_q, int n)
{
    struct control &c = *s.control;
    const uint32_t k_bytes = N * HD * 2, v_bytes = N * HV * 2;
    const uint32_t q = s.q + stage_q * sizes<HD, HV, N, WGS>::q_bytes + group * (64 * 128);
    const int row = 64 * group + (threadIdx.x & 127) / 32 * 16, mine = row + (threadIdx.x & 31) / 4;
    const int pos[2] = {t.pos + mine / a.pack, t.pos + (mine + 8) / a.pack};
    const int first = t.pos + row / a.pack, last = t.pos + (row + 15) / a.pack;
    const int tiles = attn_end_key_tile(t, N) - attn_first_key_tile(a, t, N);
    const int behind = t.key_end - (attn_end_key_tile(t, N) - 1) * N; /* of the last tile's rows */
    int key0 = attn_first_key_tile(a, t, N) * N;
    float w[N / 2], alpha[2];
    uint32_t p[N / 4];

    barrier_wait(at(c.k_full[n % STAGES]), n / STAGES & 1);
    start_scores<T, HD, N, WGS>(w, q, s.k + n % STAGES * k_bytes);
    products_wait<0>();
    sums_ready(w);
    release(c.k_empty[n % STAGES]);
    if (tiles == 1)
        release(c.q_empty[stage_q]);
    weigh<N>(w, r, alpha, a, pos, first, last, key0);
    /* A pass ends with the sums of the previous tile still in flight: the compiler hoists waits,
     * and this keeps the wait after the softmax. */
    for (int i = 1; i < tiles; i++, n++) {
        const int stage = (n + 1) % STAGES, before = n % STAGES, done = (n + STAGES - 1) % STAGES;
        products_wait<0>();
        sums_ready(o);
        if (i > 1)
            release(c.v_empty[done]);
        attn_rescale(o, alpha);
        round_weights<T, N>(p, w);
        barrier_wait(at(c.k_full[stage]), (n + 1) / STAGES & 1);
        meet(MEET_TURN + group, 256); /* my turn */
        start_scores<T, HD, N, WGS>(w, q, s.k + stage * k_bytes);
        barrier_wait(at(c.v_full[before]), n / STAGES & 1);
        start_values<T, HV, N>(o, p, s.v + before * v_bytes);
        meet_later(MEET_TURN + (group + 1) % WGS, 256);
        products_wait<1>();
        sums_ready(w);
        release(c.k_empty[stage]);
        if (i == tiles - 1)
            release(c.q_empty[stage_q]);
        key0 += N;
        weigh<N>(w, r, alpha, a, pos, first, last, key0);
    }
    products_wait<0>();
    sums_ready(o);
    if (tiles > 1)
        release(c.v_empty[(n + STAGES - 1) % STAGES]);
    attn_rescale(o, alpha);
    round_weights<T, N>(p, w);
    barrier_wait(at(c.v_full[n % STAGES]), n / STAGES & 1);
    if (behind < N)
        clear_rows<HV, N>(s.v + n % STAGES * v_bytes, behind, group);
    start_values<T, HV, N>(o, p, s.v + n % STAGES * v_bytes);
    products_wait<0>();
    sums_ready(o);
    release(c.v_empty[n % STAGES]);
}

template <typename T, int HD, int HV, int N, int WGS, bool SINKS>
CTW_DEV void consumer(const struct ctw_attn &a, const struct place &s, bool again)
{
    using S = sizes<HD, HV, N, WGS>;
    constexpr bool OWN = HV != HD;
    struct control &c = *s.control;
    const int group = threadIdx.x / 128 - 1, thread = threadIdx.x & 127;
    int n = 0;
    if (group == WGS - 1) /* the first may start */
        meet_later(MEET_TURN, 256);
    for (int i = 0;; i++) {
        const int stage = i % S::q_stages;
        barrier_wait(at(c.q_full[stage]), i / S::q_stages & 1);
        const int item = c.item[i % SLOTS];
        if (item < 0)
            return;
        const struct ctw_attn_tile &t = c.tile[i % SLOTS];
        const int kv = item % s.heads / a.n_sub, sub = item % s.heads % a.n_sub;
        struct attn_rows r = {{-INFINITY, -INFINITY}, {0, 0}};
        float o[HV / 2];
#pragma unroll
        for (int j = 0; j < HV / 2; j++)
            o[j] = 0;
        compute<T, HD, HV, N, WGS>(o, r, a, t, s, group, stage, n);
        n += attn_end_key_tile(t, N) - attn_first_key_tile(a, t, N);
        bool good = true;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = 64 * group + thread / 32 * 16 + 8 * h + (thread & 31) / 4, p = row / a.pack;
            int head = row - p * a.pack + sub * a.pack;
            float inverse = attn_inverse(a, SINKS, r, h, kv * a.group + head);
            if (OWN)
                inverse *= a.v_factor;
            T *to = NULL;
            if (p < t.n_q && head < a.group)
                to = (T *)a.out +
                     ((int64_t)(t.q_row + p) * a.n_head + kv * a.group + head) * attn_head_v<OWN>(a);
            good &= attn_store<T>(to, o, h, inverse, attn_head_v<OWN>(a), true);
        }
        if (again) {
            meet(MEET_GROUP + group, 128);
            attn_spoil<T, OWN>(a, t, kv, sub, 64 * group, 64 * group + 64, thread, 128);
        } else if (!good) { /* several threads may write the same value */
            a.tiles[item / s.heads].bad = 1;
            a.state[CTW_ATTN_BAD] = 1;
        }
    }
}
#endif

/* again: computes again only tiles with a result that was not finite, see attention.cuh. SINKS:
 * a separate instance, so that the compiler's instruction order of the loop without sinks stays
 * the fastest. SPANS: for key tiles of several runs, a separate instance for the same reason. */
template <typename T, int HD, int HV, int N, int WGS, bool SINKS, bool SPANS>
__global__ void __launch_bounds__(128 * (WGS + 1), 1)
    attention_hopper(const __grid_constant__ CUtensorMap q_map,
                     const __grid_constant__ struct boxes<N, SPANS> k_maps,
                     const __grid_constant__ struct boxes<N, SPANS> v_maps,
                     const __grid_constant__ struct ctw_attn a, bool again)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char memory[];
    if (again && a.state[CTW_ATTN_BAD] == 0)
        return;
    using S = sizes<HD, HV, N, WGS>;
    unsigned char *start = memory + (-shared_address(memory) & 1023);
    const uint32_t q = shared_address(start), k = q + S::q_stages * S::q_bytes;
    const struct place s = {q, k, k + STAGES * S::k_bytes, (struct control *)(start + S::all_bytes),
                            a.n_kv * a.n_sub};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(at(s.control->q_full[i]), 1);
            barrier_init(at(s.control->q_empty[i]), 4 * WGS);
            barrier_init(at(s.control->k_full[i]), SPANS ? LOADERS : 1);
            barrier_init(at(s.control->k_empty[i]), 4 * WGS);
            barrier_init(at(s.control->v_full[i]), SPANS ? LOADERS : 1);
            barrier_init(at(s.control->v_empty[i]), 4 * WGS);
        }
        barrier_init_fence();
        tensor_prefetch_map(&q_map);
        tensor_prefetch_map(&k_maps.of[0]);
        tensor_prefetch_map(&v_maps.of[0]);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_fewer<WGS == 2 ? (SPANS ? 40 : 24) : 32>();
        producer<T, HD, HV, N, WGS, SPANS>(a, s, &q_map, k_maps, v_maps, again);
    } else {
        registers_more<WGS == 2 ? (SPANS ? 232 : 240) : 160>();
        consumer<T, HD, HV, N, WGS, SINKS>(a, s, again);
    }
#endif
}

/* ---- launching ---------------------------------------------------------------------------- */

template <typename T, int HD, int HV, int N, int WGS, bool SINKS, bool SPANS>
static enum ctw_status launch(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    using S = sizes<HD, HV, N, WGS>;
    CUtensorMap q;
    struct boxes<N, SPANS> k, v;
    enum ctw_status st = make_map(&q, a->dtype, a->q, a->q_rows, a->n_head, a->head, S::rows / a->pack,
                                  a->pack, err);
    if (st == CTW_OK)
        st = make_boxes(&k, a, a->k, a->head, err);
    if (st == CTW_OK)
        st = make_boxes(&v, a, a->v, a->head_v, err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaFuncSetAttribute(attention_hopper<T, HD, HV, N, WGS, SINKS, SPANS>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 S::shared_bytes),
                            "attention", err);
    int64_t items = (int64_t)a->n_tiles * a->n_kv * a->n_sub;
    unsigned blocks = (unsigned)(items < cu->n_sm ? items : cu->n_sm);
    for (int again = 0; st == CTW_OK && again < 2; again++) {
        attention_hopper<T, HD, HV, N, WGS, SINKS, SPANS>
            <<<blocks, S::threads, S::shared_bytes, cu->stream>>>(q, k, v, *a, again == 1);
        st = ctw_cuda_launched("attention", err);
    }
    return st;
}

/* The instances: tiles of 192 or 128 rows by 128 or 64 keys. */
#define BY_RUNS(T, HD, HV, N, WGS, SINKS)                                                          \
    (a->spans ? launch<T, HD, HV, N, WGS, SINKS, true>(cu, a, err)                                 \
              : launch<T, HD, HV, N, WGS, SINKS, false>(cu, a, err))
#define BY_SINKS(T, HD, HV, N, WGS)                                                                \
    (a->sinks != NULL ? BY_RUNS(T, HD, HV, N, WGS, true) : BY_RUNS(T, HD, HV, N, WGS, false))
#define BY_DTYPE(HD, HV, N, WGS)                                                                   \
    (a->dtype == CTW_BF16 ? BY_SINKS(__nv_bfloat16, HD, HV, N, WGS)                                \
                          : BY_SINKS(__half, HD, HV, N, WGS))

static enum ctw_status launch_64(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    return BY_DTYPE(64, 64, 128, 3);
}

static enum ctw_status launch_128(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    return BY_DTYPE(128, 128, 128, 2);
}

static enum ctw_status launch_256(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    return BY_DTYPE(256, 256, 64, 2);
}

static enum ctw_status launch_192_128(struct ctw_cuda *cu, const struct ctw_attn *a,
                                      struct ctw_err *err)
{
    return BY_DTYPE(192, 128, 128, 2);
}

enum ctw_status ctw_cuda_attention_hopper(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                                          bool *done, struct ctw_err *err)
{
    uintptr_t bits = (uintptr_t)op->q | (uintptr_t)op->k | (uintptr_t)op->v | (uintptr_t)op->out;
    bool own = ctw_attn_own(op);
    *done = op->head % 8 == 0 && op->head <= 256 && op->alibi == NULL &&
            op->relative.rank == 0 && (bits & 15) == 0;
    if (own)
        *done = *done && op->head <= 192 && op->head_v % 8 == 0 && op->head_v <= 128;
    if (!*done)
        return CTW_OK;
    if (own)
        return ctw_attn_each(cu, op, 128, 128, launch_192_128, err);
    if (op->head <= 64)
        return ctw_attn_each(cu, op, 192, 128, launch_64, err);
    if (op->head <= 128)
        return ctw_attn_each(cu, op, 128, 128, launch_128, err);
    return ctw_attn_each(cu, op, 128, 64, launch_256, err);
}
