/*
 * The divergence of two rows of logits. A block takes one row and sweeps it twice. The first sweep
 * finds each thread's largest logit. The five largest logits of a row are among the columns of the
 * five threads with the largest of these, and only those threads search in the second sweep. Terms
 * are in fp32, four columns added, then in double: by thread, by lane, by warp. The order depends
 * only on the vocabulary.
 */
#include "kernels/cuda/elements.h"

enum { THREADS = 512, WARPS = THREADS / 32, TOP = 5, SIDES = 2 };

struct side {
    const float *logits; /* [rows, ld] */
    int64_t ld;
    const struct ctw_head_norm *norms; /* [rows]; NULL: of more columns than n, so not used */
    const struct ctw_head_norm *all;   /* [rows], of all its columns */
};

struct args {
    struct side side[SIDES]; /* the reference, p; the model, q */
    int n;                   /* columns of both */
    struct ctw_divergence_result *out;
};

/* A logit and its id. The larger logit comes first, the lower id on a tie. */
struct entry {
    float x;
    int32_t id;
};

static __device__ __forceinline__ bool before(const struct entry &a, const struct entry &b)
{
    return a.x > b.x || (a.x == b.x && a.id < b.id);
}

/* The entry of a thread without columns, or of a thread whose largest logit was already taken. */
static __device__ __forceinline__ struct entry no_entry(void)
{
    struct entry e = {-INFINITY, INT32_MAX};
    return e;
}

struct shared {
    struct entry first[SIDES][WARPS];
    double sum[3][WARPS];
    struct entry top[SIDES][TOP][TOP]; /* of each of the five threads */
    int32_t top_id[SIDES][TOP];        /* of the row; -1: none */
};

/* Columns at .. at+3 of a row of n. Those beyond n are so small that their probability is 0, but
 * finite. */
static __device__ __forceinline__ void load_four(const float *x, int at, int n, float (&v)[4])
{
    if (at + 4 <= n) {
        ctw_cuda_load<false>(x + at, v);
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = at + j < n ? x[at + j] : -1e30f;
    }
}

/* The thread's first entry. NaN is ignored. */
static __device__ struct entry find_first(const float *x, int n)
{
    struct entry e = no_entry();
    for (int at = (int)threadIdx.x * 4; at < n; at += THREADS * 4) {
        float v[4];
        load_four(x, at, n, v);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            struct entry o = {v[j], at + j};
            if (at + j < n && before(o, e))
                e = o;
        }
    }
    return e;
}

/* The first entry of all threads. */
static __device__ struct entry first_of_all(struct shared *s, int side, struct entry e)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        struct entry o = {__shfl_xor_sync(0xffffffffu, e.x, i),
                          __shfl_xor_sync(0xffffffffu, e.id, i)};
        if (before(o, e))
            e = o;
    }
    __syncthreads(); /* the last use of s->first */
    if (threadIdx.x % 32 == 0)
        s->first[side][threadIdx.x / 32] = e;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        if (before(s->first[side][w], e))
            e = s->first[side][w];
    return e;
}

/* Is this thread one of the five whose first entries come first? Its rank, or TOP. *largest: the
 * row's largest logit. */
static __device__ int rank_of(struct shared *s, int side, struct entry mine, float *largest)
{
    int rank = TOP;
    for (int i = 0; i < TOP; i++) {
        struct entry e = first_of_all(s, side, rank < TOP ? no_entry() : mine);
        if (i == 0)
            *largest = e.x;
        if (rank == TOP && e.id == mine.id && e.id != INT32_MAX)
            rank = i;
    }
    return rank;
}

/* Inserts e into a sorted list, before nothing that precedes it. */
static __device__ void top_add(struct entry *top, struct entry e)
{
    int at = TOP;
    while (at > 0 && before(e, top[at - 1]))
        at--;
    for (int i = TOP - 1; i > at; i--)
        top[i] = top[i - 1];
    if (at < TOP)
        top[at] = e;
}

static __device__ __forceinline__ double lanes_sum(double v)
{
    for (int i = 16; i > 0; i /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

/* Every thread gets the sums over all threads. */
template <int N> static __device__ void block_sums(struct shared *s, double (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] = lanes_sum(v[i]);
        if (threadIdx.x % 32 == 0)
            s->sum[i][threadIdx.x / 32] = v[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] = 0;
        for (int w = 0; w < WARPS; w++)
            v[i] += s->sum[i][w];
    }
    __syncthreads();
}

/* The norm of the first n columns. */
static __device__ struct ctw_head_norm find_norm(struct shared *s, const struct side &side,
                                                 int64_t row, int n, float largest)
{
    if (side.norms != NULL)
        return side.norms[row];
    const float *x = side.logits + row * side.ld;
    double sum[1] = {0};
    for (int at = (int)threadIdx.x * 4; at < n; at += THREADS * 4) {
        float v[4];
        load_four(x, at, n, v);
        sum[0] += (double)((expf(v[0] - largest) + expf(v[1] - largest)) +
                           (expf(v[2] - largest) + expf(v[3] - largest)));
    }
    block_sums(s, sum);
    struct ctw_head_norm norm = {(double)largest, log(sum[0])};
    return norm;
}

/* ln p = (x - largest[0]) - ln_sum[0], likewise q; ln(p / q) = (x - y) - shift - shift_rest. */
struct norms {
    float largest[SIDES], ln_sum[SIDES], shift, shift_rest;
};

static __device__ struct norms norms_of(const struct ctw_head_norm &p,
                                        const struct ctw_head_norm &q)
{
    double shift = (p.largest - q.largest) + (p.ln_sum - q.ln_sum);
    struct norms n = {{(float)p.largest, (float)q.largest},
                      {(float)p.ln_sum, (float)q.ln_sum},
                      (float)shift,
                      (float)(shift - (double)(float)shift)};
    return n;
}

/* (e^d - 1 - d) / d^2 for |d| <= 0.347, as on the CPU (kernels/cpu/fast_math.h). */
static __device__ __forceinline__ float exp_rest(float d)
{
    float r = fmaf(0.001381459878757596f, d, 0.008368716575205326f);
    r = fmaf(r, d, 0.04166838899254799f);
    r = fmaf(r, d, 0.1666652113199234f);
    return fmaf(r, d, 0.4999999403953552f);
}

/*
 * Adds an id's terms: p ln(p / q) - p + q, q ln(q / p) - q + p and |p - q|. With d = ln(p / q) and,
 * for |d| <= 0.34, rest(d) = (e^d - 1 - d) / d^2, these are p d^2 rest(-d), q d^2 rest(d) and
 * p |d - d^2 rest(-d)|: nothing cancels.
 */
static __device__ __forceinline__ void add_terms(const struct norms &n, float x, float y,
                                                 float (&sum)[3])
{
    float d = ((x - y) - n.shift) - n.shift_rest;
    float p = expf((x - n.largest[0]) - n.ln_sum[0]), q = expf((y - n.largest[1]) - n.ln_sum[1]);
    if (fabsf(d) <= 0.34f) {
        float square = d * d, a = square * exp_rest(-d), b = square * exp_rest(d);
        sum[0] += p * a;
        sum[1] += q * b;
        sum[2] += p * fabsf(d - a);
    } else { /* also if d is NaN */
        float difference = p - q;
        sum[0] += p <= 0 ? q : p * d - difference;
        sum[1] += q <= 0 ? p : difference - q * d;
        sum[2] += fabsf(difference);
    }
}

/* The ids of the row's five largest: threads 0 .. 24 of a warp each rank one entry. */
static __device__ void join_top(struct shared *s, int side)
{
    int lane = threadIdx.x % 32, rank = 0;
    const struct entry *all = &s->top[side][0][0];
    if (lane >= TOP * TOP || all[lane].id == INT32_MAX)
        return;
    for (int i = 0; i < TOP * TOP; i++)
        rank += before(all[i], all[lane]);
    if (rank < TOP)
        s->top_id[side][rank] = all[lane].id;
}

static __device__ int count_common(const struct shared *s)
{
    int n = 0;
    for (int i = 0; i < TOP; i++)
        for (int j = 0; j < TOP; j++)
            n += s->top_id[0][i] >= 0 && s->top_id[0][i] == s->top_id[1][j];
    return n;
}

/* The second sweep. */
static __device__ void sweep(struct shared *s, const struct args &a, const float *const x[SIDES],
                             const struct norms &norms, const int rank[SIDES], double (&sum)[3])
{
    for (int at = (int)threadIdx.x * 4; at < a.n; at += THREADS * 4) {
        float v[SIDES][4], part[3] = {0, 0, 0};
        load_four(x[0], at, a.n, v[0]);
        load_four(x[1], at, a.n, v[1]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            add_terms(norms, v[0][j], v[1][j], part);
#pragma unroll
        for (int i = 0; i < 3; i++)
            sum[i] += (double)part[i];
#pragma unroll
        for (int side = 0; side < SIDES; side++)
            if (rank[side] < TOP)
                for (int j = 0; j < 4 && at + j < a.n; j++) {
                    struct entry e = {x[side][at + j], at + j};
                    top_add(s->top[side][rank[side]], e);
                }
    }
}

__global__ void __launch_bounds__(THREADS, 2)
    divergence_kernel(const __grid_constant__ struct args a)
{
    __shared__ struct shared s;
    int64_t row = blockIdx.x;
    const float *x[SIDES];
    float largest[SIDES];
    int rank[SIDES];
    double sum[3] = {0, 0, 0};
    for (int i = (int)threadIdx.x; i < SIDES * TOP * TOP; i += THREADS)
        (&s.top[0][0][0])[i] = no_entry();
    if (threadIdx.x < SIDES * TOP)
        (&s.top_id[0][0])[threadIdx.x] = -1;
#pragma unroll
    for (int side = 0; side < SIDES; side++) {
        x[side] = a.side[side].logits + row * a.side[side].ld;
        rank[side] = rank_of(&s, side, find_first(x[side], a.n), &largest[side]);
    }
    struct norms norms = norms_of(find_norm(&s, a.side[0], row, a.n, largest[0]),
                                  find_norm(&s, a.side[1], row, a.n, largest[1]));
    sweep(&s, a, x, norms, rank, sum);
    block_sums(&s, sum); /* every thread is past the sweep */
    if (threadIdx.x < SIDES * 32)
        join_top(&s, (int)threadIdx.x / 32);
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    struct ctw_divergence_result r = {(float)sum[0], (float)sum[1], (float)(sum[2] / 2),
                                      (float)-a.side[0].all[row].ln_sum, count_common(&s)};
    a.out[row] = r;
}

static struct side side_of(const struct ctw_logits *l, int64_t n)
{
    struct side s = {l->logits, l->ld, l->n_vocab == n ? l->norms : NULL, l->norms};
    return s;
}

enum ctw_status ctw_cuda_divergence(struct ctw_cuda *cu, const struct ctw_op_divergence *op,
                                    struct ctw_err *err)
{
    int64_t n = op->model.n_vocab;
    struct args a = {};
    if (op->reference.n_vocab < n)
        n = op->reference.n_vocab;
    a.side[0] = side_of(&op->reference, n);
    a.side[1] = side_of(&op->model, n);
    a.n = (int)n;
    a.out = op->out;
    divergence_kernel<<<(unsigned)op->n_rows, THREADS, 0, cu->stream>>>(a);
    return ctw_cuda_launched("divergence", err);
}
