/*
 * Attention over pooled keys and a window, for heads that pool_attention_mma.cu does not take, and
 * in fp32. A warp computes one head of one query: its lanes share
 * the head's elements, keys are taken one after another, and the sums so far are scaled whenever
 * the largest score grows. A result depends on the query and its keys alone.
 */
#include "kernels/cuda/attention/pool_attention.cuh"

enum { THREADS = 256, WARP = 32, HEADS = THREADS / WARP };
enum { EACH = CTW_MAX_HEAD / WARP /* elements of a lane, at most */ };

static const unsigned ALL = 0xFFFFFFFFu;

/* One query head: a lane's elements lane, lane + 32, .. of the query, and of its sums so far. */
struct sums {
    float q[EACH], v[EACH], total, most;
};

/* Adds the key k, which is its value. */
template <typename T>
ATTN_DEV void add_key(struct sums &s, const struct ctw_op_pool_attention &op, const T *k)
{
    const int lane = (int)threadIdx.x % WARP;
    float x[EACH], score = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        x[i] = i * WARP + lane < op.head ? ctw_cuda_widen(k[i * WARP + lane]) : 0.0f;
        score = fmaf(s.q[i], x[i], score);
    }
#pragma unroll
    for (int bit = WARP / 2; bit >= 1; bit /= 2)
        score += __shfl_xor_sync(ALL, score, bit);
    score *= op.scale;
    if (score > s.most) { /* in all lanes */
        const float scale = expf(s.most - score);
        s.total *= scale;
        s.most = score;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            s.v[i] *= scale;
    }
    const float e = expf(score - s.most);
    s.total += e;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        s.v[i] = fmaf(e, x[i], s.v[i]);
}

ATTN_DEV bool sees(const struct ctw_op_pool_attention &op, int64_t row, int n, int block)
{
    return op.seen == NULL || n <= op.seen_from ||
           (op.seen[row * op.ld_seen + block / 32] >> block % 32 & 1) != 0;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    attend(const __grid_constant__ struct ctw_attn a,
           const __grid_constant__ struct ctw_op_pool_attention op)
{
    const struct ctw_attn_tile t = a.tiles[blockIdx.x];
    const int h = (int)blockIdx.z * HEADS + (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    if ((int)blockIdx.y >= t.n_q || h >= op.n_head)
        return; /* a whole warp */
    const int pos = t.pos + (int)blockIdx.y, block = (int)op.block, n_blocks = (pos + 1) / block;
    const int64_t row = t.q_row + (int)blockIdx.y, at = (row * op.n_head + h) * op.head;
    struct sums s;
    s.most = op.sinks != NULL ? ctw_cuda_number(op.sinks, op.sinks_dtype, h) : -INFINITY;
    s.total = s.most == -INFINITY ? 0.0f : expf(s.most - s.most);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        s.q[i] = i * WARP + lane < op.head ? ctw_cuda_widen(((const T *)op.q)[at + i * WARP + lane])
                                           : 0.0f;
        s.v[i] = 0;
    }
    struct attn_walk walk = attn_walk_begin(t);
    for (int b = 0; b < n_blocks; b++) {
        if (!sees(op, row, n_blocks, b))
            continue;
        const int last = (b + 1) * block - 1;
        attn_walk_to(walk, a.runs, last);
        add_key(s, op, (const T *)op.pooled + (int64_t)(last + walk.shift) * op.ld_pooled);
    }
    walk = attn_walk_begin(t);
    for (int p = pos < op.window ? 0 : pos + 1 - (int)op.window; p <= pos; p++) {
        attn_walk_to(walk, a.runs, p);
        add_key(s, op, (const T *)op.k + (int64_t)(p + walk.shift) * op.head);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i * WARP + lane < op.head)
            ctw_cuda_narrow(s.v[i] / s.total, (T *)op.out + at + i * WARP + lane);
}

static enum ctw_status launch(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    const struct ctw_op_pool_attention op = *(const struct ctw_op_pool_attention *)a->of;
    const dim3 grid((unsigned)a->n_tiles, CTW_POOL_QUERIES,
                    (unsigned)((op.n_head + HEADS - 1) / HEADS));
#define ATTEND(T) attend<T><<<grid, THREADS, 0, cu->stream>>>(*a, op)
    CTW_CUDA_FLOAT_SWITCH(op.dtype, ATTEND);
#undef ATTEND
    return ctw_cuda_launched("attention over pooled keys", err);
}

enum ctw_status ctw_cuda_pool_attention(struct ctw_cuda *cu, const struct ctw_op_pool_attention *op,
                                        struct ctw_err *err)
{
    const struct ctw_op_attention tiles =
        ctw_attn_tokens(op->dtype, op->head, op->q, op->k, op->seqs, op->n_seqs);
    int shared_bytes = 0;
    enum ctw_status st = ctw_cuda_check(
        cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, cu->device),
        "attention over pooled keys", err);
    if (st != CTW_OK)
        return st;
    ctw_attn_launch_fn *by_tiles =
        cu->hopper ? ctw_pool_attention_hopper(op) : ctw_pool_attention_tiles(op, shared_bytes);
    return ctw_attn_each_of(cu, &tiles, op, CTW_POOL_QUERIES, CTW_POOL_QUERIES,
                            by_tiles != NULL ? by_tiles : launch, err);
}
