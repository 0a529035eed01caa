/*
 * Attention over pooled keys and a window in bf16 and fp16 on sm_90a, for heads of HEAD elements.
 * As pool_attention_mma.cu, but each of two warpgroups computes all scores and weights of the
 * block's heads, and adds half of the elements of the values; weights stay in its registers.
 *
 * Shared memory: Q and two tiles of keys, in chunks of 64 elements by rows of 128 bytes, swizzled.
 * The next tile is loaded while one is used.
 */
#include "kernels/cuda/attention/attention_wgmma.cuh"
#include "kernels/cuda/attention/pool_attention.cuh"

enum { THREADS = 256, HEAD = CTW_POOL_HEAD, ROWS = CTW_POOL_ROWS, KEYS = CTW_POOL_KEYS };
enum {
    COLUMNS = HEAD / 2 /* of a warpgroup */,
    Q_BYTES = ROWS * HEAD * 2,
    K_BYTES = KEYS * HEAD * 2
};

struct shared {
    unsigned char q[Q_BYTES], k[2][K_BYTES];
    struct pool_places at;
};

enum { SHARED_BYTES = 1024 + sizeof(struct shared) }; /* tiles start at a multiple of 1024 */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Where chunk c of 16 bytes of row r of a tile of `rows` rows lies. */
CTW_DEV uint32_t place_of(uint32_t tile, int rows, int r, int c)
{
    return tile + c / 8 * (rows * 128) + r * 128 + ((c % 8 ^ (r & 7)) << 4);
}

template <typename T> CTW_DEV void load_keys(struct shared &s, int to, const void *some)
{
    const uint32_t k = shared_address(s.k[to]);
#pragma unroll 4
    for (int i = threadIdx.x; i < KEYS * (HEAD / 8); i += THREADS) {
        const int r = i / (HEAD / 8), c = i % (HEAD / 8);
        const T *from = (const T *)s.at.row[to][r];
        copy_16(place_of(k, KEYS, r, c), from != NULL ? from + 8 * c : some, from != NULL ? 16 : 0);
    }
}

/* Of the heads from h0 on; zeros past the last. */
template <typename T>
CTW_DEV void load_heads(struct shared &s, const struct ctw_op_pool_attention &op, int64_t row,
                        int h0)
{
    const T *q = (const T *)op.q + (row * op.n_head + h0) * HEAD;
    for (int i = threadIdx.x; i < ROWS * (HEAD / 8); i += THREADS) {
        const int r = i / (HEAD / 8), c = i % (HEAD / 8);
        const bool there = h0 + r < op.n_head;
        copy_16(place_of(shared_address(s.q), ROWS, r, c),
                there ? q + (int64_t)r * HEAD + 8 * c : q, there ? 16 : 0);
    }
}

/* The scores of the tile's first n keys, -infinity of others. */
template <typename T> CTW_DEV void score(float (&p)[KEYS / 2], uint32_t q, uint32_t k, int n)
{
    products_fence();
#pragma unroll
    for (int c = 0; c < HEAD / 64; c++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            score_product<T>(p, matrix_descriptor(q + c * (ROWS * 128) + 32 * e),
                             matrix_descriptor(k + c * (KEYS * 128) + 32 * e), c + e > 0);
    products_commit();
    products_wait<0>();
    sums_ready(p);
#pragma unroll
    for (int j = 0; j < KEYS / 2; j++)
        if (j / 4 * 8 + 2 * (threadIdx.x & 3) + (j & 1) >= n)
            p[j] = -INFINITY;
}

/* o += the weights p, rounded, times half of the elements of the tile's keys */
template <typename T>
CTW_DEV void add_values(float (&o)[COLUMNS / 2], const float (&p)[KEYS / 2], uint32_t k, int half)
{
    uint32_t rounded[KEYS / 4];
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++)
        rounded[i] = attn_pair<T>(p[2 * i], p[2 * i + 1]);
    products_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        value_product<T>(
            o, rounded + 4 * i,
            value_descriptor(k + half * (COLUMNS / 64) * (KEYS * 128) + 2048 * i, KEYS * 128));
    products_commit();
    products_wait<0>();
    sums_ready(o);
}

template <typename T>
CTW_DEV void store(const struct ctw_op_pool_attention &op, int64_t at, int h0, int half,
                   const float (&o)[COLUMNS / 2], const struct attn_rows &r, float factor)
{
    const int lane = threadIdx.x & 31, row0 = 16 * (threadIdx.x % 128 / 32) + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = row0 + 8 * h, head = min(h0 + row, op.n_head - 1);
        float sum = r.sum[h];
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
        sum += pool_sink(op, head, r.max[h], factor);
        T *to = (T *)op.out + (at * op.n_head + head) * HEAD + half * COLUMNS;
        (void)attn_store<T>(h0 + row < op.n_head ? to : (T *)NULL, o, h, 1.0f / sum, COLUMNS, true);
    }
}

#endif

template <typename T>
static __global__ void __launch_bounds__(THREADS, 1)
    attend_hopper(const __grid_constant__ struct ctw_attn a,
                  const __grid_constant__ struct ctw_op_pool_attention op)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(128) unsigned char memory[];
    struct shared &s = *(struct shared *)(memory + (-shared_address(memory) & 1023));
    const struct ctw_attn_tile t = a.tiles[blockIdx.x];
    if ((int)blockIdx.y >= t.n_q)
        return; /* the whole block */
    const int half = threadIdx.x / 128, pos = t.pos + (int)blockIdx.y, h0 = (int)blockIdx.z * ROWS;
    const int64_t row = t.q_row + (int)blockIdx.y;
    const float factor = op.scale * 1.44269504f;
    struct pool_walk x = pool_walk_begin(op, pos);
    struct attn_rows r = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[COLUMNS / 2] = {}, p[KEYS / 2], alpha[2];
    int n = 0, n_next = 0;

    load_heads<T>(s, op, row, h0);
    begin_span(s.at, op, row, x);
    bool more = next_tile(s.at, op, row, x, &n);
    find_rows<T>(s.at, 0, op, a, t, x, n);
    x.at += n;
    __syncthreads();
    load_keys<T>(s, 0, op.k);
    for (int i = 0; more; i ^= 1, n = n_next) {
        more = next_tile(s.at, op, row, x, &n_next);
        if (more)
            find_rows<T>(s.at, i ^ 1, op, a, t, x, n_next);
        x.at += more ? n_next : 0;
        copies_wait();
        shared_fence();
        __syncthreads(); /* the tile has arrived, and no thread still reads the one before */
        if (more)
            load_keys<T>(s, i ^ 1, op.k);
        const uint32_t k = shared_address(s.k[i]);
        score<T>(p, shared_address(s.q), k, n);
        attn_softmax(p, r, alpha, factor);
        attn_rescale(o, alpha);
        add_values<T>(o, p, k, half);
    }
    store<T>(op, row, h0, half, o, r, factor);
#endif
}

static enum ctw_status launch(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    const struct ctw_op_pool_attention op = *(const struct ctw_op_pool_attention *)a->of;
    const void *kernel = op.dtype == CTW_BF16 ? (const void *)attend_hopper<__nv_bfloat16>
                                              : (const void *)attend_hopper<__half>;
    const dim3 grid((unsigned)a->n_tiles, CTW_POOL_QUERIES,
                    (unsigned)((op.n_head + ROWS - 1) / ROWS));
    enum ctw_status st = ctw_cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES),
        "attention over pooled keys", err);
    if (st != CTW_OK)
        return st;
    if (op.dtype == CTW_BF16)
        attend_hopper<__nv_bfloat16><<<grid, THREADS, SHARED_BYTES, cu->stream>>>(*a, op);
    else
        attend_hopper<__half><<<grid, THREADS, SHARED_BYTES, cu->stream>>>(*a, op);
    return ctw_cuda_launched("attention over pooled keys", err);
}

ctw_attn_launch_fn *ctw_pool_attention_hopper(const struct ctw_op_pool_attention *op)
{
    return ctw_pool_fits_tiles(op) ? launch : NULL;
}
