/*
 * Attention in fp32: exactness before speed. A block of 256 threads takes one tile of 32 rows; key
 * tiles of 32. Thread (ty, tx) = (thread / 16, thread % 16) computes the scores of rows ty and
 * ty + 16 with keys tx and tx + 16, each as one chain of fused multiply-adds in the order of the
 * head's elements. For the same rows it computes results 4 * tx .. 4 * tx + 3 of every 64, each as
 * a chain in key order. Keys and values of wide heads pass through shared memory in parts of 128
 * elements.
 */
#include "kernels/cuda/attention/attention_relative.cuh"

enum { THREADS = 256, ROWS = 32, KEYS = 32, P_STRIDE = KEYS + 4 };

/* Elements of a head that are in shared memory at a time. */
template <int HD> constexpr int PART = HD > 256 ? 128 : HD;

/* Shared memory. Rows of Q and K are 4 floats longer than their part of the head, so that
 * neighbouring rows' vectors lie in different banks. P replaces K once the scores are computed. */
template <int HD> struct shared_f32 {
    static constexpr int q_stride = HD + 4, k_stride = PART<HD> + 4;
    float q[ROWS * q_stride];
    float k[KEYS * k_stride];
    float v[KEYS * PART<HD>];
};

/* Copies W elements of `rows` rows to shared memory: of row r from row(r) on, of which `head` exist;
 * or zeros if row(r) is NULL. */
template <int W, typename Row>
ATTN_DEV void load_f32(float *to, int stride, int rows, int head, bool aligned, bool finite, Row row)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < rows * (W / 4); i += THREADS) {
        int r = i / (W / 4), d = i % (W / 4) * 4;
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
 * earlier sums. slope: ALiBi's, or 0. seen: bits of the tile's keys. */
ATTN_DEV float softmax_f32(float (&s)[2], float &max, float &sum, const struct ctw_attn &a, int pos,
                           float slope, int key0, uint32_t seen)
{
    float most = max, more = 0;
    for (int i = 0; i < 2; i++) {
        int key = key0 + (threadIdx.x & 15) + 16 * i;
        if (a.cap > 0) /* cap_in is 2 log2(e) scale / cap */
            s[i] = a.cap * tanhf(s[i] * (a.cap_in * 0.34657359f));
        s[i] = fmaf(slope, (float)(key - pos), s[i]);
        if (key > pos || key <= pos - a.window || (seen >> (key - key0) & 1) == 0)
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

/* o += p v for the elements of the head of which V holds the values, the thread's o[..][first ..];
 * p0, p1: the weights of the thread's rows. */
template <int HD>
ATTN_DEV void add_values_f32(float (&o)[2][HD / 16], int first, const float *p0, const float *p1,
                             const float *v)
{
    constexpr int part = PART<HD>;
    const int tx = threadIdx.x & 15;
#pragma unroll 2
    for (int j = 0; j < KEYS; j++) {
        float w0 = p0[j], w1 = p1[j];
#pragma unroll
        for (int i = 0; i < part / 64; i++) {
            float4 x = *(const float4 *)(v + j * part + 64 * i + 4 * tx);
            float *o0 = o[0] + first + 4 * i, *o1 = o[1] + first + 4 * i;
            o0[0] = fmaf(w0, x.x, o0[0]);
            o0[1] = fmaf(w0, x.y, o0[1]);
            o0[2] = fmaf(w0, x.z, o0[2]);
            o0[3] = fmaf(w0, x.w, o0[3]);
            o1[0] = fmaf(w1, x.x, o1[0]);
            o1[1] = fmaf(w1, x.y, o1[1]);
            o1[2] = fmaf(w1, x.z, o1[2]);
            o1[3] = fmaf(w1, x.w, o1[3]);
        }
    }
}

/* s += q k^T for elements from .. from + PART - 1 of the head, of which K holds these. */
template <int HD>
ATTN_DEV void add_scores_f32(const struct shared_f32<HD> &sh, float (&s)[2][2], int from)
{
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    const int q_stride = sh.q_stride, k_stride = sh.k_stride;
#pragma unroll 4
    for (int d = 0; d < PART<HD>; d += 4) {
        float4 q0 = *(const float4 *)(sh.q + ty * q_stride + from + d);
        float4 q1 = *(const float4 *)(sh.q + (ty + 16) * q_stride + from + d);
        float4 k0 = *(const float4 *)(sh.k + tx * k_stride + d);
        float4 k1 = *(const float4 *)(sh.k + (tx + 16) * k_stride + d);
        s[0][0] = dot_4(q0, k0, s[0][0]);
        s[0][1] = dot_4(q0, k1, s[0][1]);
        s[1][0] = dot_4(q1, k0, s[1][0]);
        s[1][1] = dot_4(q1, k1, s[1][1]);
    }
}

/* A tile of keys or values: elements from .. from + PART - 1 of their heads, which have `head`
 * elements. */
template <int HD>
ATTN_DEV void load_keys_f32(float *to, int stride, const void *array, const struct attn_walk &walk,
                            const struct ctw_attn &a, const struct ctw_attn_tile &t, int kv, int key0,
                            int head, int from, bool finite)
{
    const float *x = (const float *)array + kv * head + from;
    load_f32<PART<HD>>(to, stride, KEYS, head - from, a.aligned, finite, [&](int r) {
        return key0 + r < t.key_end
                   ? x + (int64_t)attn_walk_row(walk, a.runs, key0 + r) * a.n_kv * head
                   : (const float *)NULL;
    });
}

template <int HD, bool OWN>
ATTN_DEV bool one_tile_f32(struct shared_f32<HD> &sh, const struct ctw_attn &a,
                           const struct ctw_attn_tile &t, int kv, int sub, bool finite)
{
    constexpr int part = PART<HD>, k_stride = shared_f32<HD>::k_stride;
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16, head_v = attn_head_v<OWN>(a);
    const float *q = (const float *)a.q;
    struct attn_walk walk = attn_walk_begin(t);
    float o[2][HD / 16] = {{0}, {0}}, max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    int pos[2] = {t.pos + ty / a.pack, t.pos + (ty + 16) / a.pack};
    const int head0 = kv * a.group + sub * a.pack;
    const float slope[2] = {attn_slope(a, head0 + ty % a.pack),
                            attn_slope(a, head0 + (ty + 16) % a.pack)};

    load_f32<HD>(sh.q, shared_f32<HD>::q_stride, ROWS, a.head, a.aligned, false, [&](int r) {
        int p = r / a.pack, h = r - p * a.pack + sub * a.pack;
        return p < t.n_q && h < a.group
                   ? q + ((int64_t)(t.q_row + p) * a.n_head + kv * a.group + h) * a.head
                   : (const float *)NULL;
    });
    int tile = attn_first_key_tile(a, t, KEYS), end = attn_end_key_tile(t, KEYS);
    for (; tile < end; tile++) {
        int key0 = tile * KEYS;
        float s[2][2] = {{0, 0}, {0, 0}};
        attn_walk_to(walk, a.runs, key0);
        for (int from = 0; from < HD; from += part) {
            __syncthreads(); /* no thread reads K, P and V any more */
            load_keys_f32<HD>(sh.k, k_stride, a.k, walk, a, t, kv, key0, a.head, from, false);
            if (part == HD)
                load_keys_f32<HD>(sh.v, part, a.v, walk, a, t, kv, key0, head_v, from, finite);
            __syncthreads();
            add_scores_f32<HD>(sh, s, from);
        }
        __syncthreads(); /* no thread reads K any more */
        for (int h = 0; h < 2; h++) {
            uint32_t seen = ~0u;
            if (a.seen != NULL)
                seen = attn_seen_word(a, t, kv, (ty + 16 * h) / a.pack, key0);
            if (a.relative.rank > 0)
                attn_each_state<float>(a, t, kv, sub, ty + 16 * h, [&](int j, float x) {
                    for (int i = 0; i < 2; i++)
                        s[h][i] = fmaf(x, attn_relative_at(a.relative, j, pos[h] - key0 - tx - 16 * i),
                                       s[h][i]);
                });
            float alpha = softmax_f32(s[h], max[h], sum[h], a, pos[h], slope[h], key0, seen);
            for (int i = 0; i < 2; i++)
                sh.k[(ty + 16 * h) * P_STRIDE + tx + 16 * i] = s[h][i];
#pragma unroll
            for (int i = 0; i < HD / 16; i++)
                o[h][i] *= alpha;
        }
        __syncwarp(); /* a row of P is written and read by the same half warp */
#pragma unroll
        for (int from = 0; from < HD; from += part) {
            if (part < HD) {
                __syncthreads(); /* no thread reads the previous part of V any more */
                load_keys_f32<HD>(sh.v, part, a.v, walk, a, t, kv, key0, head_v, from, finite);
                __syncthreads();
            }
            add_values_f32<HD>(o, from / 16, sh.k + ty * P_STRIDE, sh.k + (ty + 16) * P_STRIDE, sh.v);
        }
    }

    bool good = true;
    for (int h = 0; h < 2; h++) {
        int row = ty + 16 * h, p = row / a.pack, head = row - p * a.pack + sub * a.pack;
        if (p >= t.n_q || head >= a.group)
            continue;
        float *to = (float *)a.out +
                    ((int64_t)(t.q_row + p) * a.n_head + kv * a.group + head) * head_v;
        if (a.sinks != NULL)
            sum[h] += attn_sink(a, kv * a.group + head, max[h]);
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            int d = i / 4 * 64 + 4 * tx + i % 4;
            float x = o[h][i] / sum[h];
            x = (OWN ? x * a.v_factor : x) + 0.0f; /* no -0, see attn_store() */
            good &= attn_finite(x);
            if (d < head_v)
                to[d] = x;
        }
    }
    return good;
}

template <int HD, bool OWN>
__global__ void __launch_bounds__(THREADS) attention_f32(const __grid_constant__ struct ctw_attn a)
{
    extern __shared__ __align__(128) unsigned char memory[];
    struct shared_f32<HD> &sh = *(struct shared_f32<HD> *)memory;
    const int heads = a.n_kv * a.n_sub, which = blockIdx.x % heads;
    const struct ctw_attn_tile t = a.tiles[blockIdx.x / heads];
    const int kv = which / a.n_sub, sub = which % a.n_sub;
    bool finite = false;
    for (;;) {
        bool good = one_tile_f32<HD, OWN>(sh, a, t, kv, sub, finite);
        if (__syncthreads_and(good) || finite)
            break;
        finite = true;
    }
    if (finite)
        attn_spoil<float, OWN>(a, t, kv, sub, 0, ROWS, threadIdx.x, THREADS);
}

template <int HD, bool OWN>
static enum ctw_status launch(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    const int bytes = (int)sizeof(struct shared_f32<HD>);
    enum ctw_status st = ctw_cuda_check(
        cudaFuncSetAttribute(attention_f32<HD, OWN>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "attention", err);
    if (st != CTW_OK)
        return st;
    unsigned blocks = (unsigned)a->n_tiles * (unsigned)(a->n_kv * a->n_sub);
    attention_f32<HD, OWN><<<blocks, THREADS, bytes, cu->stream>>>(*a);
    return ctw_cuda_launched("attention", err);
}

static enum ctw_status launch_head(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    return a->head <= 64    ? launch<64, false>(cu, a, err)
           : a->head <= 128 ? launch<128, false>(cu, a, err)
           : a->head <= 256 ? launch<256, false>(cu, a, err)
                            : launch<512, false>(cu, a, err);
}

/* Both kinds of heads padded to one size. */
static enum ctw_status launch_own(struct ctw_cuda *cu, const struct ctw_attn *a, struct ctw_err *err)
{
    return a->head <= 256 && a->head_v <= 256 ? launch<256, true>(cu, a, err)
                                              : launch<512, true>(cu, a, err);
}

enum ctw_status ctw_cuda_attention_f32(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                                       struct ctw_err *err)
{
    return ctw_attn_each(cu, op, ROWS, KEYS, ctw_attn_own(op) ? launch_own : launch_head, err);
}
