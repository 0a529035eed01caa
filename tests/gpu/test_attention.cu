/*
 * Attention on the GPU: against a plain kernel in double, bit for bit regardless of the other
 * sequences, and its speed. Needs a GPU; links the code under test, without the rest of the
 * backend. From the repository's root:
 *
 *   nvcc -std=c++17 -O3 --expt-relaxed-constexpr -diag-suppress=177 \
 *     -gencode arch=compute_90a,code=sm_90a -I. -o /tmp/test_attention tests/gpu/test_attention.cu \
 *     kernels/cuda/attention/*.cu base/mem.c base/status.c kernels/dtype.c && /tmp/test_attention
 *
 * (Other GPUs: another -gencode.) test_attention time: only its speed.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/mem.h"
}
#include "kernels/cuda/cuda.h"

enum { MAX_SEQS = 12, MAX_RUNS = 40 };

static int n_passed, n_failed;
static struct ctw_err last_err;

#define CU(call)                                                                                   \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_));           \
            _Exit(1);                                                                              \
        }                                                                                          \
    } while (0)

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != CTW_OK) {                                                                    \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, last_err.msg);                     \
            _Exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* ---- what attention needs of the backend -------------------------------------------------- */

enum ctw_status ctw_cuda_check(cudaError_t e, const char *what, struct ctw_err *err)
{
    return e == cudaSuccess ? CTW_OK
                            : ctw_fail(err, CTW_EDEVICE, "%s: %s", what, cudaGetErrorString(e));
}

enum ctw_status ctw_cuda_launched(const char *what, struct ctw_err *err)
{
    return ctw_cuda_check(cudaGetLastError(), what, err);
}

enum ctw_status ctw_cuda_grow(struct ctw_cuda *cu, struct ctw_cuda_buffer *b, size_t bytes,
                              struct ctw_err *err)
{
    (void)cu;
    if (bytes <= b->bytes)
        return CTW_OK;
    CU(cudaDeviceSynchronize());
    CU(cudaFree(b->p));
    b->bytes = bytes;
    return ctw_cuda_check(cudaMalloc(&b->p, bytes), "memory", err);
}

/* Like the backend's own function, but waits when the ring wraps around. */
enum ctw_status ctw_cuda_table(struct ctw_cuda *cu, const void *host, size_t bytes, void **device,
                               struct ctw_err *err)
{
    struct ctw_cuda_ring *r = &cu->ring;
    size_t need = (bytes + 255) & ~(size_t)255;
    if (need > r->bytes / 4)
        return ctw_fail(err, CTW_EINTERNAL, "a table of %zu bytes", bytes);
    if (r->at + need > r->bytes) {
        CU(cudaStreamSynchronize(cu->stream));
        r->at = 0;
    }
    memcpy(r->host + r->at, host, bytes);
    *device = r->device + r->at;
    r->at += need;
    return ctw_cuda_check(
        cudaMemcpyAsync(*device, r->host + (r->at - need), bytes, cudaMemcpyHostToDevice, cu->stream),
        "table", err);
}

#include "attention_problem.h"

/* ---- the definition ----------------------------------------------------------------------- */

/*
 * One block per query and head, 128 threads. key_row [n_keys]: the rows of the keys. [n_q, n_head,
 * head_v]: `want`, the results; `size`, the sums of weight * |value|; `moved`, by how much a result
 * moves at most if its scores are sums in fp32. Element after element, a rounding is off by 2^-24 of what
 * is summed so far, so that a score is off by at most 2^-24 of the sum of these in size, and once more
 * when ALiBi is added, or by tanhf; a score that is off by e moves a result by weight * e * (value -
 * result).
 */
__global__ void reference(struct ctw_op_attention op, int64_t q_row, int64_t pos0, int64_t n_keys,
                          const int32_t *key_row, double *want, double *size, double *moved)
{
    extern __shared__ double score[];
    double *off = score + n_keys;
    __shared__ double reduced;
    int64_t i = blockIdx.x / op.n_head, h = blockIdx.x % op.n_head, kv = h / (op.n_head / op.n_kv);
    int64_t pos = pos0 + i, first = op.window > 0 && pos + 1 > op.window ? pos + 1 - op.window : 0;
    first = op.chunk > 0 ? pos / op.chunk * op.chunk : first;
    for (int64_t j = first + threadIdx.x; j <= pos; j += blockDim.x) {
        double s = 0, sums = 0;
        for (int d = 0; d < op.head; d++) {
            s += load(op.q, op.dtype, ((q_row + i) * op.n_head + h) * op.head + d) *
                 load(op.k, op.dtype, (key_row[j] * (int64_t)op.n_kv + kv) * op.head + d);
            sums += fabs(s);
        }
        s = s * op.scale + (op.alibi != NULL ? op.alibi[h] * (double)(j - pos) : 0);
        score[j] = op.softcap > 0 ? op.softcap * tanh(s / op.softcap) : s;
        off[j] = 0x1p-24 * (sums * op.scale + (op.softcap > 0 ? 4 : 1) * fabs(score[j]));
        if (!is_seen(&op, op.seen, q_row + i, j))
            score[j] = -INFINITY;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double sink = op.sinks != NULL ? load(op.sinks, op.sinks_dtype, h) : -INFINITY, m = sink;
        for (int64_t j = first; j <= pos; j++)
            m = fmax(m, score[j]);
        double total = exp(sink - m);
        for (int64_t j = first; j <= pos; j++) {
            score[j] = exp(score[j] - m);
            total += score[j];
        }
        reduced = total;
    }
    __syncthreads();
    for (int d = threadIdx.x; d < op.head_v; d += blockDim.x) {
        double sum = 0, abs = 0, move = 0;
        for (int64_t j = first; j <= pos; j++) {
            double v = load(op.v, op.dtype, (key_row[j] * (int64_t)op.n_kv + kv) * op.head_v + d);
            sum += score[j] * v;
            abs += score[j] * fabs(v);
        }
        for (int64_t j = first; j <= pos; j++) {
            double v = load(op.v, op.dtype, (key_row[j] * (int64_t)op.n_kv + kv) * op.head_v + d);
            move += score[j] * off[j] * fabs(v - sum / reduced);
        }
        moved[((i * op.n_head) + h) * op.head_v + d] = move / reduced * fabs((double)op.v_factor);
        want[((i * op.n_head) + h) * op.head_v + d] = sum / reduced * op.v_factor;
        size[((i * op.n_head) + h) * op.head_v + d] = abs / reduced * fabs((double)op.v_factor);
    }
}

/*
 * fp32: the scores, and what follows them: weights that are off by a few 2^-24, in a sum of up to 1000
 * terms, whose roundings, 2^-24 each, add up to their square root. 16 bits: rounding P and the result,
 * half a step each; scores and sums in fp32, fp16's smallest P: the rest. ALiBi adds up to about 40 to a
 * score that matters.
 */
static double bound(const struct ctw_op_attention *op, double want, double size, double moved)
{
    double score = op->head <= 128 ? 4e-6 : op->head <= 256 ? 1e-5 : 2e-5;
    double factor = fmax(fabs((double)op->v_factor), 1);
    if (op->dtype == CTW_F32)
        return moved + 2e-6 * size + 1e-6 * factor;
    if (op->alibi != NULL)
        score += 1e-5;
    double half_step = op->dtype == CTW_BF16 ? 0x1p-8 : 0x1p-11;
    score = score < 1e-5 ? 1e-5 : score;
    return half_step * 1.02 * (size + fabs(want)) + score * size +
           (op->dtype == CTW_F16 ? 3e-5 : 1e-6) * factor;
}

static void check_values(struct ctw_cuda *cu, struct problem *p, const char *variant)
{
    poison(p);
    char *got = results(cu, p, &p->op);
    int64_t n_bad = 0, row_len = (int64_t)p->op.n_head * p->op.head_v, n_owned = 0, n_nan = 0;
    double worst = 0;
    for (int s = 0; s < p->op.n_seqs; s++) {
        const struct ctw_attn_seq *q = &p->seqs[s];
        int64_t n_keys = q->pos0 + q->n_q, n = q->n_q * row_len, pos = 0;
        int32_t *rows = (int32_t *)ctw_calloc(n_keys, 4), *rows_dev;
        for (int r = 0; r < q->n_runs; r++)
            for (int64_t j = 0; j < q->runs[r].n_tok && pos < n_keys; j++)
                rows[pos++] = (int32_t)(q->runs[r].row + j);
        struct array want = array_new(n * 8), size = array_new(n * 8), moved = array_new(n * 8);
        CU(cudaMalloc((void **)&rows_dev, n_keys * 4));
        CU(cudaMemcpy(rows_dev, rows, n_keys * 4, cudaMemcpyHostToDevice));
        reference<<<(unsigned)(q->n_q * p->op.n_head), 128, n_keys * 16>>>(
            p->op, q->q_row, q->pos0, n_keys, rows_dev, (double *)want.device, (double *)size.device,
            (double *)moved.device);
        CU(cudaGetLastError());
        CU(cudaMemcpy(want.host, want.device, n * 8, cudaMemcpyDeviceToHost));
        CU(cudaMemcpy(size.host, size.device, n * 8, cudaMemcpyDeviceToHost));
        CU(cudaMemcpy(moved.host, moved.device, n * 8, cudaMemcpyDeviceToHost));
        for (int64_t i = 0; i < n; i++) {
            double w = ((double *)want.host)[i];
            double b = bound(&p->op, w, ((double *)size.host)[i], ((double *)moved.host)[i]);
            double g = load(got, p->op.dtype, q->q_row * row_len + i), e = fabs(g - w) / b;
            n_bad += !(e <= 1);
            worst = e > worst ? e : worst;
        }
        n_owned += n;
        array_close(&want);
        array_close(&size);
        array_close(&moved);
        CU(cudaFree(rows_dev));
        ctw_free(rows);
    }
    size_t b = ctw_dtype_bytes(p->op.dtype), poisoned = 0;
    for (size_t i = 0; i < p->out.bytes / b; i++) {
        uint32_t x = 0, all = 0xFFFFFFFFu;
        memcpy(&x, got + i * b, b);
        poisoned += memcmp(&x, &all, b) == 0;
        n_nan += isnan(load(got, p->op.dtype, (int64_t)i));
    }
    bool stray = (int64_t)poisoned != (int64_t)(p->out.bytes / b) - n_owned || (int64_t)poisoned != n_nan;
    char more[96];
    snprintf(more, sizeof(more), "worst %.3f of the bound, %lld beyond%s", worst, (long long)n_bad,
             stray ? ", stray or missing results" : "");
    told(n_bad == 0 && !stray, "values", variant, p, more);
    ctw_free(got);
}

/* ---- the same bits ------------------------------------------------------------------------ */

static bool same_rows(const struct problem *p, const char *a, int64_t row_a, const char *b, int64_t row_b,
                      int64_t n)
{
    size_t row = (size_t)p->op.n_head * p->op.head_v * ctw_dtype_bytes(p->op.dtype);
    return memcmp(a + row_a * row, b + row_b * row, n * row) == 0;
}

/* Each sequence alone; and each split into three calls, in a batch with others that are split
 * elsewhere. */
static void check_company(struct ctw_cuda *cu, struct problem *p, const char *variant)
{
    poison(p);
    char *all = results(cu, p, &p->op);
    int n_alone = 0, n_cut = 0;
    for (int s = 0; s < p->op.n_seqs; s++) {
        struct ctw_op_attention one = p->op;
        one.seqs = &p->seqs[s];
        one.n_seqs = 1;
        poison(p);
        char *got = results(cu, p, &one);
        n_alone += !same_rows(p, got, p->seqs[s].q_row, all, p->seqs[s].q_row, p->seqs[s].n_q);
        ctw_free(got);
    }
    struct ctw_attn_seq part[MAX_SEQS];
    poison(p);
    char *got = NULL;
    int64_t cut[MAX_SEQS][4];
    for (int s = 0; s < p->op.n_seqs; s++) {
        int64_t n = p->seqs[s].n_q;
        cut[s][0] = 0;
        cut[s][1] = n > 2 ? rng_below(n) : 0;
        cut[s][2] = n > 2 ? cut[s][1] + rng_below(n - cut[s][1]) : 0;
        cut[s][3] = n;
    }
    for (int c = 0; c < 3; c++) {
        for (int s = 0; s < p->op.n_seqs; s++) {
            part[s] = p->seqs[s];
            part[s].q_row += cut[s][c];
            part[s].pos0 += cut[s][c];
            part[s].n_q = cut[s][c + 1] - cut[s][c];
        }
        struct ctw_op_attention op = p->op;
        op.seqs = part;
        ctw_free(got);
        got = results(cu, p, &op);
    }
    for (int s = 0; s < p->op.n_seqs; s++)
        n_cut += !same_rows(p, got, p->seqs[s].q_row, all, p->seqs[s].q_row, p->seqs[s].n_q);
    char more[96];
    snprintf(more, sizeof(more), "%d differ alone, %d split into calls", n_alone, n_cut);
    told(n_alone == 0 && n_cut == 0, "company", variant, p, more);
    ctw_free(all);
    ctw_free(got);
}

/* The same keys in one run instead of several. */
static void check_runs(struct ctw_cuda *cu, struct problem *p, const char *variant)
{
    poison(p);
    char *several = results(cu, p, &p->op);
    struct problem one = *p;
    size_t row = (size_t)p->op.n_kv * p->op.head * ctw_dtype_bytes(p->op.dtype);
    size_t v_row = (size_t)p->op.n_kv * p->op.head_v * ctw_dtype_bytes(p->op.dtype);
    int n_differ = 0;
    one.k = array_new(p->k.bytes);
    one.v = array_new(p->v.bytes);
    memset(one.k.host, 0xFF, one.k.bytes);
    memset(one.v.host, 0xFF, one.v.bytes);
    int64_t at = 0;
    for (int s = 0; s < p->op.n_seqs; s++) {
        one.runs[s][0].row = at;
        for (int r = 0; r < p->seqs[s].n_runs; r++) {
            size_t n = (size_t)p->runs[s][r].n_tok;
            memcpy(one.k.host + at * row, p->k.host + p->runs[s][r].row * row, n * row);
            memcpy(one.v.host + at * v_row, p->v.host + p->runs[s][r].row * v_row, n * v_row);
            at += p->runs[s][r].n_tok;
        }
        one.runs[s][0].n_tok = at - one.runs[s][0].row;
        one.seqs[s].runs = one.runs[s];
        one.seqs[s].n_runs = 1;
    }
    array_upload(&one.k);
    array_upload(&one.v);
    one.op.k = one.k.device;
    one.op.v = one.v.device;
    one.op.seqs = one.seqs;
    poison(p);
    char *got = results(cu, p, &one.op);
    for (int s = 0; s < p->op.n_seqs; s++)
        n_differ += !same_rows(p, got, p->seqs[s].q_row, several, p->seqs[s].q_row, p->seqs[s].n_q);
    char more[96];
    snprintf(more, sizeof(more), "%d differ in one run", n_differ);
    told(n_differ == 0, "runs", variant, p, more);
    array_close(&one.k);
    array_close(&one.v);
    ctw_free(several);
    ctw_free(got);
}

/* A key or value that is not finite affects every query that sees it, and changes no others. */
static void check_not_finite(struct ctw_cuda *cu, struct problem *p, const char *variant, int seq)
{
    int n_hidden = 0, n_spoilt = 0;
    size_t b = ctw_dtype_bytes(p->op.dtype);
    poison(p);
    char *clean = results(cu, p, &p->op);
    const struct ctw_attn_seq *q = &p->seqs[seq];
    for (int round = 0; round < 4; round++) {
        struct array *a = round < 2 ? &p->v : &p->k;
        int64_t bad = rng_below(q->pos0 + q->n_q), left = bad, kv = rng_below(p->op.n_kv);
        int64_t size = a == &p->v ? p->op.head_v : p->op.head, el = rng_below(size);
        int r = 0;
        while (left >= q->runs[r].n_tok)
            left -= q->runs[r++].n_tok;
        int64_t at = ((q->runs[r].row + left) * p->op.n_kv + kv) * size + el;
        char was[4];
        memcpy(was, a->host + at * b, b);
        store(a->host, p->op.dtype, at, round % 2 == 0 ? NAN : INFINITY);
        array_upload(a);
        poison(p);
        char *got = results(cu, p, &p->op);
        for (int64_t i = 0; i < (int64_t)(p->out.bytes / b); i++) {
            int64_t row = i / ((int64_t)p->op.n_head * p->op.head_v);
            int64_t h = i / p->op.head_v % p->op.n_head;
            int64_t pos = row - q->q_row + q->pos0;
            bool sees = row >= q->q_row && row < q->q_row + q->n_q && pos >= bad &&
                        bad >= ctw_attn_first(&p->op, pos) &&
                        is_seen(&p->op, (const uint32_t *)p->seen.host, row, bad) &&
                        h / (p->op.n_head / p->op.n_kv) == kv;
            if (!sees)
                n_spoilt += memcmp(got + i * b, clean + i * b, b) != 0;
            else if (round < 2 && i % p->op.head_v == el)
                n_hidden += isfinite(load(got, p->op.dtype, i));
            else if (round == 2)
                n_hidden += !isnan(load(got, p->op.dtype, i));
        }
        ctw_free(got);
        memcpy(a->host + at * b, was, b);
        array_upload(a);
    }
    char more[96];
    snprintf(more, sizeof(more), "%d hidden, %d spoilt that do not see it", n_hidden, n_spoilt);
    told(n_hidden == 0 && n_spoilt == 0, "nan", variant, p, more);
    ctw_free(clean);
}

/* One head's sink at its limits; the other heads' sinks are -infinity, which has no effect. */
static void check_limits(struct ctw_cuda *cu, struct problem *p, const char *variant)
{
    static const float limits[] = {-INFINITY, 60000, NAN, INFINITY, -60000};
    struct ctw_op_attention none = p->op;
    int n_wrong = 0;
    size_t b = ctw_dtype_bytes(p->op.dtype);
    none.sinks = NULL;
    poison(p);
    char *without = results(cu, p, &none);
    for (size_t limit = 0; limit < CTW_COUNT(limits); limit++) {
        int64_t head = rng_below(p->op.n_head);
        for (int64_t h = 0; h < p->op.n_head; h++)
            store(p->sinks.host, p->op.sinks_dtype, h, h == head ? limits[limit] : -INFINITY);
        array_upload(&p->sinks);
        poison(p);
        char *got = results(cu, p, &p->op);
        for (int s = 0; s < p->op.n_seqs; s++) {
            int64_t row_len = (int64_t)p->op.n_head * p->op.head_v, first = p->seqs[s].q_row * row_len;
            for (int64_t i = first; i < first + p->seqs[s].n_q * row_len; i++) {
                double g = load(got, p->op.dtype, i);
                if (i / p->op.head_v % p->op.n_head != head || limits[limit] < 0)
                    n_wrong += memcmp(got + i * b, without + i * b, b) != 0;
                else
                    n_wrong += isfinite(limits[limit]) ? g != 0 : !isnan(g);
            }
        }
        ctw_free(got);
    }
    char more[96];
    snprintf(more, sizeof(more), "%d results are wrong", n_wrong);
    told(n_wrong == 0, "limits", variant, p, more);
    ctw_free(without);
}

#include "attention_borders.h"
#include "attention_chosen.h"
#include "attention_rates.h"

/* ---- all ---------------------------------------------------------------------------------- */

static void check_shape(struct ctw_cuda *cu, const char *variant, const struct shape *s,
                        enum ctw_dtype dtype)
{
    static const int64_t lengths[] = {1, 129, 2, 65, 1000, 63, 64, 127, 128, 200};
    struct problem p;
    rng = 88172645463325252u + (uint64_t)s->head * 977 + (uint64_t)s->n_head * 31 + (uint64_t)dtype;
    for (int more = 0; more < (s->softcap > 0 ? 2 : 3); more++) {
        bool sinks = more == 1;
        problem_open(&p, s, dtype, lengths, CTW_COUNT(lengths), 6);
        if (sinks)
            give_sinks(&p, (enum ctw_dtype)rng_below(3));
        if (more == 2)
            give_slopes(&p);
        check_values(cu, &p, variant);
        check_company(cu, &p, variant);
        check_runs(cu, &p, variant);
        check_not_finite(cu, &p, variant, 4);
        if (sinks)
            check_limits(cu, &p, variant);
        problem_close(&p);
    }
    if (dtype != CTW_BF16)
        return;
    problem_open(&p, s, dtype, lengths, CTW_COUNT(lengths), 1);
    check_values(cu, &p, variant);
    check_company(cu, &p, variant);
    check_not_finite(cu, &p, variant, 1);
    problem_close(&p);
}

static const struct shape shapes[] = {
    {4, 1, 128, 0, 0},  {8, 1, 64, 0, 0},    {2, 2, 128, 0, 0},   {7, 1, 64, 0, 0},    {4, 2, 80, 0, 0},
    {2, 1, 96, 0, 0},   {4, 4, 112, 0, 0},   {2, 1, 192, 0, 0},   {2, 2, 256, 0, 0},   {7, 1, 40, 0, 0},
    {2, 1, 7, 0, 0},     {4, 2, 128, 1, 0},  {8, 2, 64, 5, 0},    {4, 1, 128, 64, 0},
    {4, 4, 256, 100, 0}, {4, 2, 128, 0, 30}, {8, 4, 64, 100, 50}, {71, 1, 32, 0, 0},
    {7, 1, 128, 100, 0}, {3, 1, 33, 200, 0}, {2, 1, 512, 0, 0},   {4, 4, 512, 100, 0}, {8, 1, 320, 0, 0},
    {3, 1, 300, 0, 30},  {2, 2, 257, 64, 0},
    /* Values of their own size: the instances for 192 and 128, and for any; a factor; chunks. */
    {4, 4, 192, 0, 0, 128},           {6, 3, 24, 0, 0, 16},      {4, 2, 96, 37, 0, 64, 0, 0.707f},
    {4, 1, 192, 100, 0, 128, 0, -2},  {3, 3, 64, 0, 30, 128},    {2, 1, 80, 0, 0, 256},
    {2, 2, 256, 0, 0, 64},            {3, 1, 33, 0, 0, 17, 0, 3}, {8, 2, 64, 0, 0, 0, 0, 0.5f},
    {4, 2, 128, 0, 0, 0, 64},         {7, 1, 64, 0, 0, 0, 100},  {4, 4, 192, 0, 0, 128, 130},
    {2, 1, 40, 0, 20, 0, 1},
};

static void check_all(struct ctw_cuda *cu, bool hopper)
{
    for (size_t i = 0; i < CTW_COUNT(shapes); i++) {
        cu->hopper = false;
        check_shape(cu, "general", &shapes[i], CTW_F32);
        check_shape(cu, "general", &shapes[i], CTW_BF16);
        check_shape(cu, "general", &shapes[i], CTW_F16);
        cu->hopper = hopper;
        if (!hopper)
            continue;
        check_shape(cu, "hopper", &shapes[i], CTW_BF16);
        check_shape(cu, "hopper", &shapes[i], CTW_F16);
    }
    for (int i = 0; i < (hopper ? 2 : 1); i++) {
        cu->hopper = i == 1;
        check_borders(cu, i == 1 ? "hopper" : "general");
        check_chosen(cu, i == 1 ? "hopper" : "general");
    }
}

int main(int argc, char **argv)
{
    bool speed = argc > 1 && strcmp(argv[1], "time") == 0;
    static struct ctw_cuda cu;
    cudaDeviceProp prop;
    CU(cudaGetDeviceProperties(&prop, 0));
    cu.n_sm = prop.multiProcessorCount;
    cu.major = prop.major;
    cu.minor = prop.minor;
    bool hopper = prop.major == 9 && prop.minor == 0;
    CU(cudaStreamCreateWithFlags(&cu.stream, cudaStreamNonBlocking));
    cu.ring.bytes = 8 << 20;
    CU(cudaMallocHost((void **)&cu.ring.host, cu.ring.bytes));
    CU(cudaMalloc((void **)&cu.ring.device, cu.ring.bytes));
    if (!speed) {
        check_all(&cu, hopper);
        printf("%d passed, %d failed\n", n_passed, n_failed);
    }
    for (int i = 0; speed && i < (hopper ? 2 : 1); i++) {
        cu.hopper = i == 1;
        time_all(&cu, i == 1 ? "hopper" : "general");
    }
    fflush(stdout);
    return n_failed > 0;
}
