/*
 * The difference of two residual streams. A warp per row, a block per sequence and block of
 * channels, then a warp per sequence. Each sum is in double, and its order depends on the width and
 * on the sequence's own length alone. Memory-bound: each element is read twice.
 */
#include "kernels/cuda/elements.h"

enum {
    WARPS = 4,   /* of a block of rows_kernel and seqs_kernel */
    WALKERS = 8, /* threads of a block that walk down the rows of one channel */
    CHANNELS = CTW_DIFFERENCE_BLOCK
};

static __device__ __forceinline__ double warp_sum(double v)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

/* Elements at .. at+3 of a row; 0 past its end. */
static __device__ __forceinline__ void load_four(const float *x, int64_t at, int64_t dim,
                                                 bool vectors, float (&v)[4])
{
    if (vectors && at < dim) {
        ctw_cuda_load<false>(x + at, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = at + i < dim ? x[at + i] : 0.0f;
}

/* Lane l takes elements 4 (l + 32 i) .. + 3 for i = 0, 1, ..., with vectors or without. */
__global__ void __launch_bounds__(32 * WARPS)
    rows_kernel(const __grid_constant__ struct ctw_op_difference op, bool vectors)
{
    int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (t >= op.n_rows)
        return;
    const float *x = op.x + t * op.dim, *y = op.y + t * op.dim;
    double xx = 0, yy = 0, xy = 0, error = 0;
    for (int64_t at = 4 * (threadIdx.x % 32); at < op.dim; at += 4 * 32) {
        float a[4], b[4];
        load_four(x, at, op.dim, vectors, a);
        load_four(y, at, op.dim, vectors, b);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            double d = (double)b[i] - a[i];
            xx = fma((double)a[i], (double)a[i], xx);
            yy = fma((double)b[i], (double)b[i], yy);
            xy = fma((double)a[i], (double)b[i], xy);
            error = fma(d, d, error);
        }
    }
    xx = warp_sum(xx);
    yy = warp_sum(yy);
    xy = warp_sum(xy);
    error = warp_sum(error);
    if (threadIdx.x % 32 != 0)
        return;
    double both = sqrt(xx * yy); /* xx exactly, if y is x */
    struct ctw_difference_row r;
    r.reference = xx;
    r.error = error;
    r.cosine = both == 0 ? (double)(xx == yy) : xy / both;
    r.relative = xx == 0 ? (double)(error != 0) : sqrt(error / xx);
    op.rows[t] = r;
}

/* Walker w takes rows w, w + WALKERS, ... of the sequence; then walkers are added in order. */
__global__ void __launch_bounds__(CHANNELS *WALKERS)
    channels_kernel(const __grid_constant__ struct ctw_op_difference op, int64_t n_blocks)
{
    __shared__ double part[WALKERS][CHANNELS];
    int64_t seq = blockIdx.x / n_blocks, c0 = blockIdx.x % n_blocks * CHANNELS;
    int c = (int)threadIdx.x % CHANNELS, walker = (int)threadIdx.x / CHANNELS;
    int n = (int)(op.dim - c0 < CHANNELS ? op.dim - c0 : CHANNELS);
    double error = 0;
    if (c < n) {
        for (int64_t t = op.start[seq] + walker; t < op.start[seq + 1]; t += WALKERS) {
            double d = (double)op.y[t * op.dim + c0 + c] - op.x[t * op.dim + c0 + c];
            error = fma(d, d, error);
        }
    }
    part[walker][c] = error;
    __syncthreads();
    if (walker == 0) {
        for (int w = 1; w < WALKERS; w++)
            error += part[w][c];
        part[0][c] = error;
    }
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    int largest = 0;
    for (int i = 1; i < n; i++)
        largest = part[0][i] > part[0][largest] ? i : largest;
    struct ctw_difference_channel r = {part[0][largest], c0 + largest};
    op.channels[blockIdx.x] = r;
}

/* Lane l takes rows l, l + 32, ... of the sequence, and blocks of channels in the same way. */
__global__ void __launch_bounds__(32 * WARPS)
    seqs_kernel(const __grid_constant__ struct ctw_op_difference op, int64_t n_blocks)
{
    int64_t seq = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    if (seq >= op.n_seqs)
        return;
    struct ctw_difference_result r = {0, 0, 0, 0, -1, INT64_MAX};
    for (int64_t t = op.start[seq] + lane; t < op.start[seq + 1]; t += 32) {
        r.reference += op.rows[t].reference;
        r.error += op.rows[t].error;
        r.cosine += op.rows[t].cosine;
        r.relative += op.rows[t].relative;
    }
    r.reference = warp_sum(r.reference);
    r.error = warp_sum(r.error);
    r.cosine = warp_sum(r.cosine);
    r.relative = warp_sum(r.relative);
    const struct ctw_difference_channel *channels = op.channels + seq * n_blocks;
    for (int64_t b = lane; b < n_blocks; b += 32) {
        if (channels[b].error > r.channel_error) {
            r.channel_error = channels[b].error;
            r.channel = channels[b].channel;
        }
    }
    for (int i = 16; i > 0; i /= 2) {
        double error = __shfl_xor_sync(0xffffffffu, r.channel_error, i);
        int64_t channel = __shfl_xor_sync(0xffffffffu, (long long)r.channel, i);
        if (error > r.channel_error || (error == r.channel_error && channel < r.channel)) {
            r.channel_error = error;
            r.channel = channel;
        }
    }
    if (lane == 0) {
        r.channel = r.channel == INT64_MAX ? 0 : r.channel; /* all are NaN */
        op.out[seq] = r;
    }
}

enum ctw_status ctw_cuda_difference(struct ctw_cuda *cu, const struct ctw_op_difference *op,
                                    struct ctw_err *err)
{
    int64_t n_blocks = ctw_difference_blocks(op->dim);
    bool vectors = op->dim % 4 == 0 && ctw_cuda_aligned16(op->x) && ctw_cuda_aligned16(op->y);
    rows_kernel<<<(unsigned)((op->n_rows + WARPS - 1) / WARPS), 32 * WARPS, 0, cu->stream>>>(
        *op, vectors);
    channels_kernel<<<(unsigned)(op->n_seqs * n_blocks), CHANNELS * WALKERS, 0, cu->stream>>>(
        *op, n_blocks);
    seqs_kernel<<<(unsigned)((op->n_seqs + WARPS - 1) / WARPS), 32 * WARPS, 0, cu->stream>>>(
        *op, n_blocks);
    return ctw_cuda_launched("difference", err);
}
