/*
 * Selective state spaces, token by token, with the states in registers: a thread has STATES
 * elements of each of ROWS rows, `lanes` threads have a row, and a block has rows of one group's
 * heads. What tokens share lies in shared memory, TOKENS at a time. So results do not depend on how
 * a sequence is cut, and what is carried is the state. Against the definition, the sum over n has
 * another order: it is that of a thread's elements, then of the threads in pairs.
 */
#include "kernels/cuda/recurrent/ssm.cuh"

enum {
    THREADS = 128,
    TOKENS = 8,      /* in shared memory */
    OWN_TOKENS = 16, /* with own decays */
    ROWS = 4,        /* of a thread */
    OWN_ROWS = 1,    /* of a thread, with own decays: exponentials keep it busy */
    STATES = 8,      /* of each of its rows */
};

struct ssm {
    struct ctw_op_ssm op;
    int lanes, rows; /* rows: of a block */
    int64_t group_rows, group_blocks;
    struct ctw_cuda_parts parts;
};

/* Shared memory: b and c [tokens, lanes * STATES]; steps times x, decays (own_decays: steps) and
 * sums [tokens, rows]. */
struct shared {
    float *b, *c, *u, *decay, *sum;
};

/* A block's row, and its head. */
struct row {
    int64_t channel;
    int head;
    bool here;
};

static __device__ __forceinline__ struct row row_of(const struct ssm &a, int64_t group,
                                                    int64_t row0, int r)
{
    struct row row;
    row.channel = group * a.group_rows + row0 + r;
    row.here = row0 + r < a.group_rows;
    row.head = (int)row.channel / (int)a.op.head; /* fewer than 2^31 channels */
    return row;
}

/* A thread's rows, first_row() + i * rows_across(), and tokens. */
static __device__ __forceinline__ int rows_across(const struct ssm &a)
{
    return a.rows < THREADS ? a.rows : (int)THREADS;
}

template <typename T>
static __device__ void load_tokens(const struct ssm &a, const struct shared &m, int64_t group,
                                   int64_t row0, int64_t t0, int n_tok)
{
    const struct ctw_op_ssm &op = a.op;
    const int width = a.lanes * STATES, across = rows_across(a), down = THREADS / across;
    for (int i = threadIdx.x; i < n_tok * width; i += THREADS) {
        int n = i % width;
        int64_t at = (t0 + i / width) * op.ldbc + group * op.n_state + n;
        m.b[i] = n < op.n_state ? ctw_cuda_widen(((const T *)op.b)[at]) : 0.0f;
        m.c[i] = n < op.n_state ? ctw_cuda_widen(((const T *)op.c)[at]) : 0.0f;
    }
    for (int r = threadIdx.x % across; r < a.rows; r += across) {
        const struct row row = row_of(a, group, row0, r);
        const float rate = op.own_decays || !row.here ? 0.0f : ctw_ssm_rate(op, row.head);
        for (int t = threadIdx.x / across; t < n_tok; t += down) {
            const T *dt = (const T *)op.dt + (t0 + t) * op.lddt + row.head;
            const T *x = (const T *)op.x + (t0 + t) * op.ldx + row.channel;
            float step = row.here ? ctw_ssm_step(op, ctw_cuda_widen(*dt), row.head) : 0.0f;
            m.u[t * a.rows + r] = row.here ? step * ctw_cuda_widen(*x) : 0.0f;
            m.decay[t * a.rows + r] = op.own_decays || !row.here ? step : expf(rate * step);
        }
    }
}

template <typename T>
static __device__ void store_tokens(const struct ssm &a, const struct shared &m, int64_t group,
                                    int64_t row0, int64_t t0, int n_tok)
{
    const struct ctw_op_ssm &op = a.op;
    const int across = rows_across(a), down = THREADS / across;
    for (int r = threadIdx.x % across; r < a.rows; r += across) {
        const struct row row = row_of(a, group, row0, r);
        if (!row.here)
            continue;
        const float d = ctw_ssm_number(op.d, row.head);
        for (int t = threadIdx.x / across; t < n_tok; t += down) {
            const int64_t at = t0 + t;
            float y = m.sum[t * a.rows + r] +
                      d * ctw_cuda_widen(((const T *)op.x)[at * op.ldx + row.channel]);
            if (op.z != NULL) {
                float z = ctw_cuda_widen(((const T *)op.z)[at * op.ldz + row.channel]);
                y *= z / (1 + expf(-z));
            }
            ctw_cuda_narrow(y, (T *)op.y + at * op.ldy + row.channel);
        }
    }
}

/* out[row] = a row's sum over its lanes, for each of a thread's rows. */
static __device__ __forceinline__ void store_sums(const float (&s)[OWN_ROWS], int lanes, int lane,
                                                  float *out)
{
    float v = s[0];
    for (int off = 1; off < lanes; off *= 2)
        v += __shfl_xor_sync(0xffffffffu, v, off);
    if (lane == 0)
        out[0] = v;
}

static __device__ __forceinline__ void store_sums(const float (&s)[ROWS], int lanes, int lane,
                                                  float *out)
{
    if (lanes < ROWS) { /* 2 */
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float v = s[r] + __shfl_xor_sync(0xffffffffu, s[r], 1);
            if (lane == 0)
                out[r] = v;
        }
        return;
    }
    const bool high = lane & 1, higher = lane & 2;
    float v0 = (high ? s[2] : s[0]) + __shfl_xor_sync(0xffffffffu, high ? s[0] : s[2], 1);
    float v1 = (high ? s[3] : s[1]) + __shfl_xor_sync(0xffffffffu, high ? s[1] : s[3], 1);
    float v = (higher ? v1 : v0) + __shfl_xor_sync(0xffffffffu, higher ? v0 : v1, 2);
    for (int off = 4; off < lanes; off *= 2)
        v += __shfl_xor_sync(0xffffffffu, v, off);
    if (lane < ROWS)
        out[2 * high + higher] = v;
}

/* exp(v); for 16-bit floats with a relative error of up to 2^-21. */
template <typename T> static __device__ __forceinline__ float decay_of(float v)
{
    if constexpr (ctw_cuda_same_type<T, float>)
        return expf(v);
    else
        return __expf(v);
}

/* The block's rows of one group, blockIdx.x, through the part blockIdx.y. */
template <typename T, bool OWN, int N_ROWS>
__global__ void __launch_bounds__(THREADS) ssm_rows(const __grid_constant__ struct ssm a)
{
    extern __shared__ __align__(16) float memory[];
    const struct ctw_op_ssm &op = a.op;
    constexpr int MOST = OWN ? OWN_TOKENS : TOKENS;
    const int width = a.lanes * STATES;
    struct shared m;
    m.b = memory;
    m.c = m.b + MOST * width;
    m.u = m.c + MOST * width;
    m.decay = m.u + MOST * a.rows;
    m.sum = m.decay + MOST * a.rows;
    const int64_t group = blockIdx.x / a.group_blocks;
    const int64_t row0 = (int64_t)(blockIdx.x % a.group_blocks) * a.rows;
    const int lane = threadIdx.x % a.lanes, first = threadIdx.x / a.lanes * N_ROWS;
    const struct ctw_cuda_part &part = a.parts.part[blockIdx.y];
    const int64_t begin = part.row, end = begin + part.n_tok;
    const float *before = (const float *)ctw_state_at(&op.states, part.before);
    float *after = (float *)ctw_state_at(&op.states, part.after);
    float state[N_ROWS][STATES], rate[OWN ? N_ROWS : 1][OWN ? STATES : 1];
#pragma unroll
    for (int r = 0; r < N_ROWS; r++)
#pragma unroll
        for (int j = 0; j < STATES; j++) {
            int64_t n = (j / 4 * a.lanes + lane) * 4 + j % 4, in_group = row0 + first + r;
            bool here = n < op.n_state && in_group < a.group_rows;
            int64_t channel = group * a.group_rows + in_group;
            state[r][j] = here && before != NULL ? before[channel * op.n_state + n] : 0.0f;
            if (OWN)
                rate[r][j] = here ? ctw_ssm_rate(op, channel / op.head * op.n_state + n) : 0.0f;
        }
    for (int64_t t0 = begin; t0 < end; t0 += MOST) {
        int n_tok = end - t0 < MOST ? (int)(end - t0) : MOST;
        __syncthreads();
        load_tokens<T>(a, m, group, row0, t0, n_tok);
        __syncthreads();
        for (int t = 0; t < n_tok; t++) {
            float sum[N_ROWS];
            float b[STATES], c[STATES];
#pragma unroll
            for (int j = 0; j < STATES; j += 4) {
                *(float4 *)(b + j) =
                    *(const float4 *)(m.b + t * width + (j / 4 * a.lanes + lane) * 4);
                *(float4 *)(c + j) =
                    *(const float4 *)(m.c + t * width + (j / 4 * a.lanes + lane) * 4);
            }
#pragma unroll
            for (int r = 0; r < N_ROWS; r++) {
                float u = m.u[t * a.rows + first + r], decay = m.decay[t * a.rows + first + r];
                sum[r] = 0;
#pragma unroll
                for (int j = 0; j < STATES; j++) {
                    float of = OWN ? decay_of<T>(rate[OWN ? r : 0][OWN ? j : 0] * decay) : decay;
                    state[r][j] = fmaf(of, state[r][j], u * b[j]);
                    sum[r] = fmaf(state[r][j], c[j], sum[r]);
                }
            }
            store_sums(sum, a.lanes, lane, m.sum + t * a.rows + first);
        }
        __syncthreads();
        store_tokens<T>(a, m, group, row0, t0, n_tok);
    }
    if (after == NULL)
        return;
#pragma unroll
    for (int r = 0; r < N_ROWS; r++)
#pragma unroll
        for (int j = 0; j < STATES; j++) {
            int64_t n = (j / 4 * a.lanes + lane) * 4 + j % 4, in_group = row0 + first + r;
            if (n < op.n_state && in_group < a.group_rows)
                after[(group * a.group_rows + in_group) * op.n_state + n] = state[r][j];
        }
}

enum ctw_status ctw_cuda_ssm(struct ctw_cuda *cu, const struct ctw_op_ssm *op, struct ctw_err *err)
{
    if (cu->hopper && ctw_ssm_has_chunks(op))
        return ctw_cuda_ssm_chunks(cu, op, err);
    struct ssm a = {};
    a.op = *op;
    a.lanes = 2;
    while (a.lanes * STATES < op->n_state)
        a.lanes *= 2;
    a.rows = THREADS / a.lanes * (op->own_decays ? OWN_ROWS : ROWS);
    a.group_rows = op->n_head / op->n_groups * op->head;
    a.group_blocks = (a.group_rows + a.rows - 1) / a.rows;
    const size_t bytes = (size_t)(op->own_decays ? OWN_TOKENS : TOKENS) *
                         (size_t)(2 * a.lanes * STATES + 3 * a.rows) * sizeof(float);
    for (int64_t i = 0; i < op->n_parts; i += a.parts.n) {
        ctw_cuda_take_parts(&a.parts, op->parts + i, op->n_parts - i);
        dim3 grid((unsigned)(op->n_groups * a.group_blocks), (unsigned)a.parts.n);
#define OWN(T) ssm_rows<T, true, OWN_ROWS><<<grid, THREADS, bytes, cu->stream>>>(a)
#define SHARED(T) ssm_rows<T, false, ROWS><<<grid, THREADS, bytes, cu->stream>>>(a)
        if (op->own_decays)
            CTW_CUDA_FLOAT_SWITCH(op->dtype, OWN);
        else
            CTW_CUDA_FLOAT_SWITCH(op->dtype, SHARED);
#undef OWN
#undef SHARED
    }
    return ctw_cuda_launched("state space", err);
}
