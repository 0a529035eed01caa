/*
 * Attention in fp32: exactness before speed. A block of 256 threads takes one tile of 32 rows; key
 * tiles of 32. Thread (ty, tx) = (thread / 16, thread % 16) computes the scores of rows ty and
 * ty + 16 with keys tx and tx + 16, each as one chain of fused multiply-adds in the order of the
 * head's elements. For the same rows it computes results 4 * tx .. 4 * tx + 3 of every 64, each as
 * a chain in key order.
 */
#include "kernels/cuda/attention/attention.cuh"

enum { THREADS = 256, ROWS = 32, KEYS = 32, P_STRIDE = KEYS + 4 };

/* Shared memory. Rows of Q and K are 4 floats longer than the head, so that neighbouring rows'
 * vectors lie in different banks. P replaces K once the scores are computed. */
template <int HD> struct shared_f32 {
    static constexpr int stride = HD + 4;
    float q[ROWS * stride];
    float k[KEYS * stride];
    float v[KEYS * HD];
};

/* Copies `rows` rows to shared memory: row r from row(r) of x, or zeros if row(r) is NULL. */
template <int HD, typename Row>
ATTN_DEV void load_f32(float *to, int stride, int rows, int head, bool aligned, bool finite, Row row)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < rows * (HD / 4); i += THREADS) {
        int r = i / (HD / 4), d = i % (HD / 4) * 4;
        const float *from = row(r);
        float x[4] = {0, 0, 0, 0};
        if (from != NULL && aligned && d < head) {
            float4 y = *(const float4 *)(from + d);
            x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
        } else if (from != NULL) {
            for (int e = 0; e < 4; e++)
                x[e] = d + e < head ? from[d + e] : 0;
        }
        for (int e = 0; e < 4; e++)
            to[r * stride + d + e] = finite && !attn_finite(x[e]) ? 0 : x[e];
    }
}

ATTN_DEV float dot_4(float4 a, float4 b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

/* Turns the scores of a row (two per thread, 16 threads) into weights; returns the factor for
 * earlier sums. */
ATTN_DEV float softmax_f32(float (&s)[2], float &max, float &sum, const struct ctw_attn &a, int pos,
                           int key0)
{
    float most = max, more = 0;
    for (int i = 0; i < 2; i++) {
        int key = key0 + (threadIdx.x & 15) + 16 * i;
        if (a.cap > 0) /* cap_in is 2 log2(e) scale / cap */
            s[i] = a.cap * tanhf(s[i] * (a.cap_in * 0.34657359f));
        if (key > pos || key <= pos - a.window)
            s[i] = -INFINITY;
        most = fmaxf(most, s[i]);
    }
    for (int m = 1; m < 16; m *= 2)
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, m));
    float base = most == -INFINITY ? 0 : most, alpha = exp2f((max - base) * a.factor);
    for (int i = 0; i < 2; i++) {
        s[i] = exp2f((s[i] - base) * a.factor);
        more += s[i];
    }
    for (int m = 1; m < 16; m *= 2)
        more += __shfl_xor_sync(0xFFFFFFFFu, more, m);
    max = most;
    sum = fmaf(sum, alpha, more);
    return alpha;
}

/* o += p v; p [2] are the weights of the thread's rows. */
template <int HD>
ATTN_DEV void add_values_f32(float (&o)[2][HD / 16], const float *p0, const float *p1, const float *v)
{
    const int tx = threadIdx.x & 15;
#pragma unroll 2
    for (int j = 0; j < KEYS; j++) {
        float w0 = p0[j], w1 = p1[j];
#pragma unroll
        for (int i = 0; i < HD / 64; i++) {
            float4 x = *(const float4 *)(v + j * HD + 64 * i + 4 * tx);
            o[0][4 * i] = fmaf(w0, x.x, o[0][4 * i]);
            o[0][4 * i + 1] = fmaf(w0, x.y, o[0][4 * i + 1]);
            o[0][4 * i + 2] = fmaf(w0, x.z, o[0][4 * i + 2]);
            o[0][4 * i + 3] = fmaf(w0, x.w, o[0][4 * i + 3]);
            o[1][4 * i] = fmaf(w1, x.x, o[1][4 * i]);
            o[1][4 * i + 1] = fmaf(w1, x.y, o[1][4 * i + 1]);
            o[1][4 * i + 2] = fmaf(w1, x.z, o[1][4 * i + 2]);
            o[1][4 * i + 3] = fmaf(w1, x.w, o[1][4 * i + 3]);
        }
    }
}

/* The scores, softmax and sums of one key tile; Q, K and V have been loaded. */
template <int HD>
ATTN_DEV void one_key_tile(struct shared_f32<HD> &sh, float (&o)[2][HD / 16], float (&max)[2],
                           float (&sum)[2], const struct ctw_attn &a, const int (&pos)[2], int key0)
{
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16, stride = HD + 4;
    float s[2][2] = {{0, 0}, {0, 0}};
#pragma unroll 4
    for (int d = 0; d < HD; d += 4) {
        float4 q0 = *(const float4 *)(sh.q + ty * stride + d);
        float4 q1 = *(const float4 *)(sh.q + (ty + 16) * stride + d);
        float4 k0 = *(const float4 *)(sh.k + tx * stride + d);
        float4 k1 = *(const float4 *)(sh.k + (tx + 16) * stride + d);
        s[0][0] = dot_4(q0, k0, s[0][0]);
        s[0][1] = dot_4(q0, k1, s[0][1]);
        s[1][0] = dot_4(q1, k0, s[1][0]);
        s[1][1] = dot_4(q1, k1, s[1][1]);
    }
    __syncthreads(); /* no thread reads K any more */
    for (int h = 0; h < 2; h++) {
        float alpha = softmax_f32(s[h], max[h], sum[h], a, pos[h], key0);
        for (int i = 0; i < 2; i++)
            sh.k[(ty + 16 * h) * P_STRIDE + tx + 16 * i] = s[h][i];
#pragma unroll
        for (int i = 0; i < HD / 16; i++)
            o[h][i] *= alpha;
    }
    __syncwarp(); /* a row of P is written and read by the same half warp */
    add_values_f32<HD>(o, sh.k + ty * P_STRIDE, sh.k + (ty + 16) * P_STRIDE, sh.v);
}

template <int HD>
ATTN_DEV bool one_tile_f32(struct shared_f32<HD> &sh, const struct ctw_attn &a,
                           const struct ctw_attn_tile &t, int kv, int sub, bool finite)
{
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16, stride = HD + 4;
    const float *q = (const float *)a.q;
    struct attn_walk walk = attn_walk_begin(t);
    float o[2][HD / 16] = {{0}, {0}}, max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    int pos[2] = {t.pos + ty / a.pack, t.pos + (ty + 16) / a.pack};

    load_f32<HD>(sh.q, stride, ROWS, a.head, a.aligned, false, [&](int r) {
        int p = r / a.pack, h = r - p * a.pack + sub * a.pack;
        return p < t.n_q && h < a.group
                   ? q + ((int64_t)(t.q_row + p) * a.n_head + kv * a.group + h) * a.head
                   : (const float *)NULL;
    });
    int tile = attn_first_key_tile(a, t, KEYS), end = attn_end_key_tile(t, KEYS);
    for (; tile < end; tile++) {
        int key0 = tile * KEYS;
        attn_walk_to(walk, a.runs, key0);
        __syncthreads(); /* no thread reads P and V any more */
        for (int which = 0; which < 2; which++) {
            const float *x = (const float *)(which == 0 ? a.k : a.v) + kv * a.head;
            load_f32<HD>(which == 0 ? sh.k : sh.v, which == 0 ? stride : HD, KEYS, a.head, a.aligned,
                         which == 1 && finite, [&](int r) {
                             return key0 + r < t.key_end
                                        ? x + (int64_t)attn_walk_row(walk, a.runs, key0 + r) * a.n_kv *
                                                  a.head
                                        : (const float *)NULL;
                         });
        }
        __syncthreads();
        one_key_tile<HD>(sh, o, max, sum, a, pos, key0);
    }

    bool good = true;
    for (int h = 0; h < 2; h++) {
        int row = ty + 16 * h, p = row / a.pack, head = row - p * a.pack + sub * a.pack;
        if (p >= t.n_q || head >= a.group)
            continue;
        float *to = (float *)a.out +
                    ((int64_t)(t.q_row + p) * a.n_head + kv * a.group + head) * a.head;
        if (a.sinks != NULL)
            sum[h] += attn_sink(a, kv * a.group + head, max[h]);
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            int d = i / 4 * 64 + 4 * tx + i % 4;
            float x = o[h][i] / sum[h] + 0.0f; /* no -0, see attn_store() */
            good &= attn_finite(x);
            if (d < a.head)
                to[d] = x;
        }
    }
    return good;
}

template <int HD>
__global__ void __launch_bounds__(THREADS) attention_f32(const __grid_constant__ struct ctw_attn a)
{
    extern __shared__ __align__(128) unsigned char memory[];
    struct shared_f32<HD> &sh = *(struct shared_f32<HD> *)memory;
    const int heads = a.n_kv * a.n_sub, which = blockIdx.x % heads;
    const struct ctw_attn_tile t = a.tiles[blockIdx.x / heads];
    const int kv = which / a.n_sub, sub = which % a.n_sub;
    bool finite = false;
    for (;;) {
        bool good = one_tile_f32<HD>(sh, a, t, kv, sub, finite);
        if (__syncthreads_and(good) || finite)
            break;
        finite = true;
    }
    if (finite)
        attn_spoil<float>(a, t, kv, sub, 0, ROWS, threadIdx.x, THREADS);
}

template <int HD>
static enum ctw_status launch(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    const int bytes = (int)sizeof(struct shared_f32<HD>);
    enum ctw_status st = ctw_cuda_check(
        cudaFuncSetAttribute(attention_f32<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "attention", err);
    if (st != CTW_OK)
        return st;
    unsigned blocks = (unsigned)a->n_tiles * (unsigned)(a->n_kv * a->n_sub);
    attention_f32<HD><<<blocks, THREADS, bytes, cu->stream>>>(*a);
    return ctw_cuda_launched("attention", err);
}

static enum ctw_status launch_head(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    return a->head <= 64    ? launch<64>(cu, a, err)
           : a->head <= 128 ? launch<128>(cu, a, err)
                            : launch<256>(cu, a, err);
}

enum ctw_status ctw_cuda_attention_f32(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                                       struct ctw_err *err)
{
    return ctw_attn_each(cu, op, ROWS, KEYS, launch_head, err);
}
