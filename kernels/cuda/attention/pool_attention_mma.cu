/*
 * Attention over pooled keys and a window in bf16 and fp16 with mma.sync m16n8k16, for heads of
 * HEAD elements. All heads of a query see the same keys, so a block takes one query and ROWS of its
 * heads. A tile has KEYS keys that the query sees, without gaps and in order: first the pooled keys
 * of each SPAN of blocks, then the window's keys. A result depends on the query and its keys alone.
 *
 * Two warps have the same 16 heads. Each computes the scores of half of a tile's keys; they
 * exchange the largest ones and the weights, rounded to 16 bits as for P V in other attention,
 * through shared memory; and each adds the values of half of the elements. Sums of weights are not
 * rounded.
 *
 * Shared memory: Q, two tiles of keys, the weights of a tile. The next tile is loaded while one is
 * used.
 */
#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/attention/pool_attention.cuh"

enum {
    THREADS = 256,
    HEAD = CTW_POOL_HEAD,
    ROWS = CTW_POOL_ROWS,
    KEYS = CTW_POOL_KEYS,
    HALF = KEYS / 2
};
enum { COLUMNS = HEAD / 2 /* of a warp */, Q_BYTES = ROWS * HEAD * 2, K_BYTES = KEYS * HEAD * 2 };

struct shared {
    unsigned char q[Q_BYTES], k[2][K_BYTES], p[ROWS * KEYS * 2];
    float most[2][ROWS], sum[2][ROWS];
    struct pool_places at;
};

template <typename T> ATTN_DEV void load_keys(struct shared &s, int to, const void *some)
{
    const uint32_t k = shared_at(s.k[to]);
#pragma unroll 4
    for (int i = threadIdx.x; i < KEYS * (HEAD / 8); i += THREADS) {
        const int r = i / (HEAD / 8), c = i % (HEAD / 8);
        const T *from = (const T *)s.at.row[to][r];
        copy_16(k + chunk_at<HEAD>(r, c), from != NULL ? from + 8 * c : some,
                from != NULL ? 16 : 0);
    }
    copies_commit();
}

/* Of the heads from h0 on; zeros past the last. */
template <typename T>
ATTN_DEV void load_heads(struct shared &s, const struct ctw_op_pool_attention &op, int64_t row,
                         int h0)
{
    const T *q = (const T *)op.q + (row * op.n_head + h0) * HEAD;
    for (int i = threadIdx.x; i < ROWS * (HEAD / 8); i += THREADS) {
        const int r = i / (HEAD / 8), c = i % (HEAD / 8);
        const bool there = h0 + r < op.n_head;
        copy_16(shared_at(s.q) + chunk_at<HEAD>(r, c), there ? q + (int64_t)r * HEAD + 8 * c : q,
                there ? 16 : 0);
    }
}

/* Of the two warps that have the same heads. */
ATTN_DEV void meet_other(int rows)
{
    asm volatile("bar.sync %0, 64;" ::"r"(1 + rows) : "memory");
}

/*
 * The weights of the warp's half of a tile whose scores are in p, relative to the rows' largest
 * score so far, with that of the other half: to shared memory. alpha: as of attn_softmax().
 */
template <typename T>
ATTN_DEV void weigh(struct shared &s, float (&p)[HALF / 2], struct attn_rows &r, float (&alpha)[2],
                    float factor, int rows, int half)
{
    const int lane = threadIdx.x & 31, row0 = 16 * rows + lane / 4;
    const float before[2] = {r.max[0], r.max[1]};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = r.max[h];
#pragma unroll
        for (int j = 0; j < HALF / 4; j++)
            most = fmaxf(most, p[2 * (j & ~1) + 2 * h + (j & 1)]);
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
        s.most[half][row0 + 8 * h] = most;
    }
    meet_other(rows);
#pragma unroll
    for (int h = 0; h < 2; h++)
        r.max[h] = fmaxf(s.most[0][row0 + 8 * h], s.most[1][row0 + 8 * h]);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float base = r.max[h] == -INFINITY ? 0 : r.max[h], offset = base * factor;
        float total = 0;
        alpha[h] = attn_exp2((before[h] - base) * factor);
#pragma unroll
        for (int j = 0; j < HALF / 8; j++) {
            const float lo = attn_exp2(fmaf(p[4 * j + 2 * h], factor, -offset));
            const float hi = attn_exp2(fmaf(p[4 * j + 2 * h + 1], factor, -offset));
            const uint32_t both = attn_pair<T>(lo, hi);
            const int chunk = half * (HALF / 8) + j;
            total += lo + hi;
            *(uint32_t *)(s.p + chunk_at<KEYS>(row0 + 8 * h, chunk) + 4 * (lane & 3)) = both;
        }
        r.sum[h] = fmaf(r.sum[h], alpha[h], total);
    }
    meet_other(rows);
}

/* o += the weights of the warp's heads times its half of the tile's elements */
template <typename T>
ATTN_DEV void add_values(float (&o)[COLUMNS / 2], uint32_t p, uint32_t v, int rows, int half)
{
    const int lane = threadIdx.x & 31, chunk0 = half * (COLUMNS / 8);
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
        uint32_t pf[4];
        load_4(pf, p + chunk_at<KEYS>(16 * rows + (lane & 15), 2 * n + (lane >> 4)));
#pragma unroll
        for (int c = 0; c < COLUMNS / 8; c += 2) {
            uint32_t vf[4];
            load_4_transposed(vf,
                              v + chunk_at<HEAD>(16 * n + (lane & 15), chunk0 + c + (lane >> 4)));
            product<T>(&o[4 * c], pf, vf[0], vf[1]);
            product<T>(&o[4 * c + 4], pf, vf[2], vf[3]);
        }
    }
}

/* 1 over the sum of a row's weights, with its sink. */
ATTN_DEV float inverse_sum(const struct shared &s, const struct ctw_op_pool_attention &op, int row,
                           int head, float most, float factor)
{
    return 1.0f / (s.sum[0][row] + s.sum[1][row] + pool_sink(op, head, most, factor));
}

template <typename T>
ATTN_DEV void store(struct shared &s, const struct ctw_op_pool_attention &op, int64_t at, int h0,
                    const float (&o)[COLUMNS / 2], const struct attn_rows &r, float factor)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, half = warp % 2;
    const int row0 = 16 * (warp / 2) + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = r.sum[h];
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
        s.sum[half][row0 + 8 * h] = sum;
    }
    meet_other(warp / 2);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = row0 + 8 * h, head = min(h0 + row, op.n_head - 1);
        const float inverse = inverse_sum(s, op, row, head, r.max[h], factor);
        T *to = (T *)op.out + (at * op.n_head + head) * HEAD + half * COLUMNS;
        (void)attn_store<T>(h0 + row < op.n_head ? to : (T *)NULL, o, h, inverse, COLUMNS, true);
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    attend_tiles(const __grid_constant__ struct ctw_attn a,
                 const __grid_constant__ struct ctw_op_pool_attention op)
{
    extern __shared__ __align__(128) unsigned char memory[];
    struct shared &s = *(struct shared *)memory;
    const struct ctw_attn_tile t = a.tiles[blockIdx.x];
    const int warp = threadIdx.x / 32, rows = warp / 2, half = warp % 2, lane = threadIdx.x & 31;
    if ((int)blockIdx.y >= t.n_q)
        return; /* the whole block */
    const int pos = t.pos + (int)blockIdx.y, h0 = (int)blockIdx.z * ROWS;
    const int64_t row = t.q_row + (int)blockIdx.y;
    const float factor = op.scale * 1.44269504f;
    struct pool_walk x = pool_walk_begin(op, pos);
    struct attn_rows r = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[COLUMNS / 2] = {}, alpha[2];
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
        __syncthreads(); /* the tile has arrived, and no thread still reads the one before */
        if (more)
            load_keys<T>(s, i ^ 1, op.k);
        float p[1][HALF / 2];
        const uint32_t k = shared_at(s.k[i]);
        scores<T, HEAD, 1, HALF>(p, shared_at(s.q) + rows * 16 * HEAD * 2,
                                 k + half * HALF * HEAD * 2);
#pragma unroll
        for (int j = 0; j < HALF / 2; j++)
            if (half * HALF + j / 4 * 8 + 2 * (lane & 3) + (j & 1) >= n)
                p[0][j] = -INFINITY;
        weigh<T>(s, p[0], r, alpha, factor, rows, half);
        attn_rescale(o, alpha);
        add_values<T>(o, shared_at(s.p), k, rows, half);
    }
    store<T>(s, op, row, h0, o, r, factor);
}

static enum ctw_status launch(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    const struct ctw_op_pool_attention op = *(const struct ctw_op_pool_attention *)a->of;
    const void *kernel = op.dtype == CTW_BF16 ? (const void *)attend_tiles<__nv_bfloat16>
                                              : (const void *)attend_tiles<__half>;
    const dim3 grid((unsigned)a->n_tiles, CTW_POOL_QUERIES,
                    (unsigned)((op.n_head + ROWS - 1) / ROWS));
    const int bytes = (int)sizeof(struct shared);
    enum ctw_status st = ctw_cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "attention over pooled keys", err);
    if (st != CTW_OK)
        return st;
    if (op.dtype == CTW_BF16)
        attend_tiles<__nv_bfloat16><<<grid, THREADS, bytes, cu->stream>>>(*a, op);
    else
        attend_tiles<__half><<<grid, THREADS, bytes, cu->stream>>>(*a, op);
    return ctw_cuda_launched("attention over pooled keys", err);
}

ctw_attn_launch_fn *ctw_pool_attention_tiles(const struct ctw_op_pool_attention *op,
                                             int shared_bytes)
{
    const bool fits = ctw_pool_fits_tiles(op) && shared_bytes >= (int)sizeof(struct shared);
    return fits ? launch : NULL;
}
