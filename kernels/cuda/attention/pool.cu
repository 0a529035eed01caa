/*
 * Pooled keys. A block of threads computes one key: a thread has some elements, for which it reads
 * the block's tokens twice, first for the largest logit. Beside a layer's products this takes next
 * to no time.
 */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/pool.h"
#include "kernels/turn.h"

enum { THREADS = 256, WARP = 32, QUERIES = 64 /* of a tile */ };

/* Element i of the sum over n tokens, the first `before` of which are of the block before. */
template <typename T>
ATTN_DEV float pooled(const struct ctw_op_pool &op, const int *rows, int n, int before, int i)
{
    const int columns = op.overlaps ? 2 * op.dim : op.dim;
    float most = -INFINITY, sum = 0, total = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int j = 0; j < n; j++) {
            const int column = j < before || !op.overlaps ? i : op.dim + i;
            const int64_t in_block = j < before ? j : j - before;
            const int64_t at = (int64_t)rows[j] * op.ldx + column;
            float logit = op.gate == NULL ? 0.0f : ctw_cuda_widen(((const T *)op.gate)[at]) +
                          ctw_cuda_number(op.bias, op.bias_dtype, in_block * columns + column);
            if (pass == 0) {
                most = fmaxf(most, logit);
            } else {
                float e = expf(logit - most);
                total += e;
                sum = fmaf(e, ctw_cuda_widen(((const T *)op.x)[at]), sum);
            }
        }
    return sum / total;
}

/* The sum of all threads' numbers. */
static __device__ float block_sum(float v, float *shared)
{
#pragma unroll
    for (int bit = WARP / 2; bit >= 1; bit /= 2)
        v += __shfl_xor_sync(0xFFFFFFFFu, v, bit);
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = v;
    __syncthreads();
    float all = 0;
    for (int w = 0; w < THREADS / WARP; w++)
        all += shared[w];
    return all;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    pool_keys(const __grid_constant__ struct ctw_attn a,
              const __grid_constant__ struct ctw_op_pool op)
{
    __shared__ int rows[2 * CTW_MAX_POOL];
    __shared__ float v[CTW_MAX_HEAD], shared[THREADS / WARP];
    const struct ctw_attn_tile t = a.tiles[blockIdx.x];
    const int pos = t.pos + (int)blockIdx.y;
    if ((int)blockIdx.y >= t.n_q || (pos + 1) % op.block != 0)
        return;
    const int start = pos + 1 - op.block, before = op.overlaps && start > 0 ? op.block : 0;
    const int n = before + op.block;
    const struct attn_walk walk = attn_walk_begin(t);
    for (int j = (int)threadIdx.x; j < n; j += THREADS)
        rows[j] = attn_walk_row(walk, a.runs, start - before + j);
    __syncthreads();
    float squares = 0;
    for (int i = (int)threadIdx.x; i < op.dim; i += THREADS) {
        v[i] = pooled<T>(op, rows, n, before, i);
        squares = fmaf(v[i], v[i], squares);
    }
    squares = block_sum(squares, shared);
    const float factor = 1.0f / sqrtf(squares / (float)op.dim + op.norm_eps);
    for (int i = (int)threadIdx.x; op.norm != NULL && i < op.dim; i += THREADS)
        v[i] *= factor * (ctw_cuda_number(op.norm, op.norm_dtype, i) + op.norm_offset);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < op.turning / 2; i += THREADS) {
        int first, second;
        const float *cos_sin = op.cos_sin + (int64_t)start * op.turning;
        float *part = v + (op.turns_first ? 0 : op.dim - op.turning);
        ctw_turn_pair(op.pairing, op.turning, i, &first, &second);
        ctw_cuda_turn(&part[first], &part[second], cos_sin[i], cos_sin[op.turning / 2 + i]);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < op.dim; i += THREADS)
        ctw_cuda_narrow(v[i], (T *)op.y + (int64_t)rows[n - 1] * op.ldy + i);
}

static enum ctw_status launch(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    const struct ctw_op_pool op = *(const struct ctw_op_pool *)a->of;
    const dim3 grid((unsigned)a->n_tiles, QUERIES);
#define KEYS(T) pool_keys<T><<<grid, THREADS, 0, cu->stream>>>(*a, op)
    CTW_CUDA_FLOAT_SWITCH(op.dtype, KEYS);
#undef KEYS
    return ctw_cuda_launched("pooled keys", err);
}

enum ctw_status ctw_cuda_pool(struct ctw_cuda *cu, const struct ctw_op_pool *op,
                              struct ctw_err *err)
{
    const struct ctw_op_attention tiles =
        ctw_attn_tokens(op->dtype, op->dim, op->x, op->x, op->seqs, op->n_seqs);
    return ctw_attn_each_of(cu, &tiles, op, QUERIES, QUERIES, launch, err);
}
