/* ctw_attention of every variant against the reference, and its invariance. */
#include "ops.h"

enum { MAX_SEQS = 5, MAX_RUNS = 64 };

struct problem {
    struct ctw_op_attention op;
    struct ctw_attn_seq seqs[MAX_SEQS];
    struct ctw_kv_run runs[MAX_SEQS][MAX_RUNS];
    struct buf q, k, v, out, sinks, alibi; /* sinks and slopes: absent unless given */
    int64_t n_rows;                        /* of q and out */
    int64_t kv_rows;                       /* of k and v */
};

struct shape {
    int n_head, n_kv, head;
    int64_t window;
    float softcap;
    int head_v; /* 0: head */
    int64_t chunk;
    float v_factor;
};

/* Heads around vectors of 8 and 16 and tiles of 16 and 32; groups that divide 48 and 64 and that
 * do not; windows and chunks around tiles of 96; value heads of other sizes than key heads. */
static const struct shape shapes[] = {
    {1, 1, 8, 0, .softcap = 0},
    {9, 3, 64, 0, .softcap = 0},
    {4, 4, 16, 0, .softcap = 0},
    {7, 1, 40, 0, .softcap = 0},
    {4, 2, 128, 0, .softcap = 0},
    {6, 2, 80, 5, .softcap = 0},
    {2, 1, 96, 96, .softcap = 0},
    {5, 5, 24, 97, .softcap = 0},
    {8, 1, 64, 1, .softcap = 0},
    {2, 2, 256, 95, .softcap = 0},
    {3, 3, 20, 0, .softcap = 30},
    {4, 2, 64, 100, .softcap = 50},
    {14, 2, 64, 0, .softcap = 0},
    {71, 1, 32, 0, .softcap = 0},
    {500, 1, 8, 0, .softcap = 0},
    {3, 1, 33, 200, .softcap = 0},
    {12, 4, 112, 0, .softcap = 0},
    {1, 1, 1, 0, .softcap = 0},
    {4, 2, 512, 0, .softcap = 0},
    {3, 1, 320, 90, .softcap = 0},
    {5, 5, 192, 0, 0, .head_v = 128},
    {8, 2, 24, 37, 0, .head_v = 40, .v_factor = 0.707f},
    {4, 1, 16, 0, 30, .head_v = 9},
    {3, 3, 8, 0, 0, .head_v = 512},
    {6, 2, 64, 0, 0, .chunk = 96},
    {4, 4, 40, 0, 0, .chunk = 7, .v_factor = -2},
    {10, 2, 32, 0, 5, .chunk = 100, .head_v = 48},
    {2, 1, 64, 0, 0, .chunk = 1},
};

static int64_t head_v_of(const struct ctw_op_attention *op)
{
    return op->head_v != 0 ? op->head_v : op->head;
}

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

/* Sequences of up to `longest` keys; their keys are in runs of random length and order, between
 * rows that belong to no sequence. */
static void problem_open(struct problem *p, const struct shape *s, enum ctw_dtype dtype,
                         int64_t longest)
{
    memset(p, 0, sizeof(*p));
    p->op = (struct ctw_op_attention){.dtype = dtype,
                                      .n_head = s->n_head,
                                      .n_kv = s->n_kv,
                                      .head = s->head,
                                      .window = s->window,
                                      .softcap = s->softcap,
                                      .head_v = s->head_v,
                                      .chunk = s->chunk,
                                      .v_factor = s->v_factor,
                                      .scale = 1.0f / sqrtf((float)s->head),
                                      .seqs = p->seqs};
    p->op.n_seqs = 1 + rng_below(MAX_SEQS);
    for (int64_t i = 0; i < p->op.n_seqs; i++) {
        int64_t n = 1 + rng_below(longest), at = 0;
        struct ctw_attn_seq *seq = &p->seqs[i];
        seq->pos0 = rng_below(3) == 0 ? 0 : rng_below(n);
        seq->n_q = n - seq->pos0;
        seq->q_row = p->n_rows + rng_below(3);
        p->n_rows = seq->q_row + seq->n_q;
        seq->runs = p->runs[i];
        while (at < n) {
            int64_t len = 1 + rng_below(rng_below(2) == 0 ? 3 : n);
            if (len > n - at || seq->n_runs == MAX_RUNS - 1)
                len = n - at;
            p->runs[i][seq->n_runs++] = (struct ctw_kv_run){p->kv_rows + rng_below(4), len};
            p->kv_rows = p->runs[i][seq->n_runs - 1].row + len;
            at += len;
        }
        for (int r = 0; r + 1 < seq->n_runs; r++) { /* swap places with one of equal length */
            int64_t other = rng_below(seq->n_runs), row = p->runs[i][r].row;
            if (p->runs[i][other].n_tok == p->runs[i][r].n_tok) {
                p->runs[i][r].row = p->runs[i][other].row;
                p->runs[i][other].row = row;
            }
        }
    }
    p->q = buf_random(dtype, p->n_rows * s->n_head * s->head, 2, 2 * (size_t)rng_below(9));
    p->k = buf_random(dtype, p->kv_rows * s->n_kv * s->head, 1.5f, 2 * (size_t)rng_below(9));
    int64_t head_v = head_v_of(&p->op);
    p->v = buf_random(dtype, p->kv_rows * s->n_kv * head_v, 1, 2 * (size_t)rng_below(9));
    p->out = buf_random(dtype, p->n_rows * s->n_head * head_v, 1, 2 * (size_t)rng_below(9));
    p->op.q = p->q.p;
    p->op.k = p->k.p;
    p->op.v = p->v.p;
}

/* A random sink for each query head, about as large as scores are. */
static void give_sinks(struct problem *p)
{
    p->op.sinks_dtype = dtypes[rng_below(3)];
    p->sinks = buf_random(p->op.sinks_dtype, p->op.n_head, 3, (size_t)rng_below(9));
    p->op.sinks = p->sinks.p;
}

/* Slopes from 1 down, as ALiBi has them. Not with a cap. */
static void give_alibi(struct problem *p)
{
    if (p->op.softcap > 0)
        return;
    p->alibi = buf_open((size_t)p->op.n_head * sizeof(float), 0);
    for (int h = 0; h < p->op.n_head; h++)
        ctw_store_float(p->alibi.p, CTW_F32, h, exp2f(-8 * (float)h / (float)p->op.n_head));
    p->op.alibi = p->alibi.p;
}

static void problem_close(struct problem *p)
{
    if (p->alibi.base != NULL)
        buf_close(&p->alibi);
    p->op.alibi = NULL;
    if (p->sinks.base != NULL)
        buf_close(&p->sinks);
    p->op.sinks = NULL;
    buf_close(&p->q);
    buf_close(&p->k);
    buf_close(&p->v);
    buf_close(&p->out);
}

static void run_into(const struct ctw_op_attention *op, struct ctw_backend *be, struct buf *out)
{
    struct ctw_op_attention copy = *op;
    copy.out = out->p;
    OK(ctw_attention(be, &copy, &last_err));
    buf_check(out);
}

static struct buf problem_run(const struct problem *p, struct ctw_backend *be)
{
    struct buf out = buf_copy(&p->out, 2 * (size_t)rng_below(9));
    run_into(&p->op, be, &out);
    return out;
}

/*
 * A score is a sum of `head` products, at most 2 * head + 4 roundings of 2^-24 of sum |q k|; the
 * weights are off by that factor, by exp's and the sums' roundings, and in pair mode by 2^-8 (each
 * is rounded to bf16, their sum is not). ALiBi's slope times a distance, here below 300, is added
 * with one rounding of the sum. out is a mean of values, here below 6.5 in size.
 */
static double bound(const struct problem *p, double want)
{
    const double head = p->op.head, most = 6.5;
    double size = p->op.scale * head * 3 * 1.6 + 30; /* of sum |q k|, generously */
    double e = 2 * ((2 * head + 6) * 0x1p-24 * size + 256 * 0x1p-24);
    if (p->op.alibi != NULL)
        e += 2 * 300 * 0x1p-24;
    if (p->op.dtype == CTW_BF16)
        e += 0x1p-8;
    if (p->op.v_factor != 0)
        e *= fabs((double)p->op.v_factor);
    return e * most + 2 * half_step(p->op.dtype, want);
}

static void compare(const struct problem *p, const struct buf *got, const struct buf *want,
                    const char *variant)
{
    char what[160];
    snprintf(what, sizeof(what),
             "%s %s heads %d / %d of %d and %" PRId64 " window %" PRId64 " chunk %" PRId64
             " cap %g factor %g%s%s",
             variant, ctw_dtype_name(p->op.dtype), p->op.n_head, p->op.n_kv, p->op.head,
             head_v_of(&p->op), p->op.window, p->op.chunk, (double)p->op.softcap,
             (double)p->op.v_factor, p->op.sinks != NULL ? ", sinks" : "",
             p->op.alibi != NULL ? ", ALiBi" : "");
    int64_t row_len = p->op.n_head * head_v_of(&p->op);
    for (int64_t i = 0; i < p->n_rows * row_len; i++) {
        bool asked = false;
        for (int64_t s = 0; s < p->op.n_seqs; s++)
            asked |=
                i / row_len >= p->seqs[s].q_row && i / row_len < p->seqs[s].q_row + p->seqs[s].n_q;
        if (!asked) {
            assert_memory_equal(element(got->p, p->op.dtype, i), element(p->out.p, p->op.dtype, i),
                                ctw_dtype_bytes(p->op.dtype));
            continue;
        }
        double w = ctw_load_float(want->p, p->op.dtype, i);
        near(ctw_load_float(got->p, p->op.dtype, i), w, bound(p, w), what, i);
    }
}

static void variants_agree_with_the_definition(void **state)
{
    (void)state;
    struct ctw_backend *c = backend("c", 2);
    for (size_t s = 0; s < 12 * CTW_COUNT(shapes); s += SPARSE) {
        struct problem p;
        const struct shape *shape = &shapes[s / 12];
        problem_open(&p, shape, dtypes[s % 3],
                     shape->n_head * shape->head > 2000 ? 60 : 40 + rng_below(250));
        if (s % 6 >= 3)
            give_sinks(&p);
        if (s % 12 >= 6)
            give_alibi(&p);
        struct buf want = problem_run(&p, c);
        const char *v;
        for (int i = 0; (v = fast_variant(i)) != NULL; i++) {
            struct ctw_backend *be = backend(v, 1 + (int)rng_below(3));
            struct buf got = problem_run(&p, be);
            compare(&p, &got, &want, v);
            buf_close(&got);
            ctw_backend_close(be);
        }
        buf_close(&want);
        problem_close(&p);
    }
    ctw_backend_close(c);
}

/* One sequence of n queries from position 0, keys in one run. */
static void one_sequence(struct problem *p, const struct shape *s, enum ctw_dtype dtype, int64_t n)
{
    problem_open(p, s, dtype, 2);
    problem_close(p);
    p->op.n_seqs = 1;
    p->n_rows = p->kv_rows = n;
    p->seqs[0] = (struct ctw_attn_seq){.n_q = n, .runs = p->runs[0], .n_runs = 1};
    p->runs[0][0] = (struct ctw_kv_run){0, n};
    p->q = buf_random(dtype, n * s->n_head * s->head, 2, 0);
    p->k = buf_random(dtype, n * s->n_kv * s->head, 1, 0);
    p->v = buf_random(dtype, n * s->n_kv * head_v_of(&p->op), 1, 0);
    p->out = buf_random(dtype, n * s->n_head * head_v_of(&p->op), 1, 0);
    p->op.q = p->q.p;
    p->op.k = p->k.p;
    p->op.v = p->v.p;
}

/* Queries and keys split anywhere, any number of threads: the same bits. */
static void cuts_change_no_bit(void **state)
{
    (void)state;
    static const struct shape some[] = {{9, 3, 64, 0, .softcap = 0},
                                        {2, 1, 40, 70, .softcap = 0},
                                        {5, 5, 16, 0, .softcap = 20},
                                        {7, 1, 128, 96, .softcap = 0},
                                        {3, 3, 40, 0, 0, .head_v = 24, .v_factor = 0.7f},
                                        {4, 2, 64, 0, 0, .chunk = 50}};
    enum { N = 211 };
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        for (size_t s = 0; s < 6 * CTW_COUNT(some); s += COARSE) {
            struct problem p;
            one_sequence(&p, &some[s / 6], dtypes[s % 3], N);
            if (s % 2 == 1)
                give_sinks(&p);
            if (s % 6 >= 3)
                give_alibi(&p);
            struct buf want = problem_run(&p, be);
            for (int threads = 1; threads <= 7; threads += threads == 3 ? 4 : 1) {
                struct ctw_backend *more = backend(v, threads);
                struct buf got = problem_run(&p, more);
                assert_memory_equal(got.p, want.p, want.bytes);
                buf_close(&got);
                ctw_backend_close(more);
            }
            for (int64_t cut = 1; cut < N; cut += SPARSE * (strcmp(v, "c") == 0 ? 50 : 3)) {
                struct problem a = p;
                struct buf got = buf_copy(&p.out, 0);
                a.op.seqs = a.seqs;
                a.seqs[0].runs = a.runs[0]; /* keys in two runs, queries in two calls */
                a.seqs[0].n_runs = 2;
                a.runs[0][0] = (struct ctw_kv_run){0, N - cut};
                a.runs[0][1] = (struct ctw_kv_run){N - cut, cut};
                a.seqs[0].n_q = cut;
                run_into(&a.op, be, &got);
                a.seqs[0].q_row = a.seqs[0].pos0 = cut;
                a.seqs[0].n_q = N - cut;
                run_into(&a.op, be, &got);
                assert_memory_equal(got.p, want.p, want.bytes);
                buf_close(&got);
            }
            buf_close(&want);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* The keys of p in n_runs runs, of unequal lengths, the last one first in memory; n_runs 1: in one
 * run. Runs end within tiles, and tiles span several. */
static struct problem in_runs(const struct problem *p, int n_runs)
{
    struct problem a = *p;
    int64_t n = p->n_rows, k_row = p->op.n_kv * p->op.head, v_row = p->op.n_kv * head_v_of(&p->op);
    size_t es = ctw_dtype_bytes(p->op.dtype);
    int64_t key = 0, end = n;
    a.k = buf_copy(&p->k, 0);
    a.v = buf_copy(&p->v, 0);
    for (int r = 0; r < n_runs; r++) {
        int64_t next = r + 1 == n_runs ? n : n * (r + 1) / n_runs - r % 3 % (n / n_runs);
        int64_t len = next - key;
        end -= len;
        a.runs[0][r] = (struct ctw_kv_run){end, len};
        memcpy((char *)a.k.p + (size_t)(end * k_row) * es,
               (char *)p->k.p + (size_t)(key * k_row) * es, (size_t)(len * k_row) * es);
        memcpy((char *)a.v.p + (size_t)(end * v_row) * es,
               (char *)p->v.p + (size_t)(key * v_row) * es, (size_t)(len * v_row) * es);
        key = next;
    }
    a.op.k = a.k.p;
    a.op.v = a.v.p;
    return a;
}

/* As prefixes leave them: 1 to 40 runs of a sequence. */
static void many_runs_change_no_bit(void **state)
{
    (void)state;
    static const struct shape some[] = {{9, 3, 64, 0, .softcap = 0},
                                        {2, 1, 40, 70, .softcap = 0},
                                        {7, 1, 128, 96, .softcap = 20},
                                        {3, 3, 40, 0, 0, .head_v = 24, .v_factor = 0.7f},
                                        {4, 2, 64, 0, 0, .chunk = 50}};
    enum { N = 301 };
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        for (size_t s = 0; s < CTW_COUNT(some) * CTW_COUNT(dtypes); s += COARSE) {
            struct problem p;
            one_sequence(&p, &some[s / CTW_COUNT(dtypes)], dtypes[s % CTW_COUNT(dtypes)], N);
            struct buf want = problem_run(&p, be);
            for (int n_runs = 1; n_runs <= 40; n_runs += SPARSE) {
                struct problem a = in_runs(&p, n_runs);
                struct buf got = buf_copy(&p.out, 0);
                a.op.seqs = a.seqs;
                a.seqs[0].runs = a.runs[0];
                a.seqs[0].n_runs = n_runs;
                run_into(&a.op, be, &got);
                assert_memory_equal(got.p, want.p, want.bytes);
                buf_close(&got);
                buf_close(&a.k);
                buf_close(&a.v);
            }
            buf_close(&want);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* Sequences together and one by one. */
static void company_changes_no_bit(void **state)
{
    (void)state;
    const char *v;
    for (int i = 0; (v = fast_variant(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 3);
        for (size_t s = 0; s < CTW_COUNT(shapes); s += COARSE) {
            struct problem p;
            problem_open(&p, &shapes[s], dtypes[s % 3], 130);
            if (s % 2 == 1)
                give_sinks(&p);
            if (s % 4 >= 2)
                give_alibi(&p);
            struct buf want = problem_run(&p, be), got = buf_copy(&p.out, 0);
            for (int64_t q = p.op.n_seqs - 1; q >= 0; q--) {
                struct ctw_op_attention one = p.op;
                one.seqs = &p.seqs[q];
                one.n_seqs = 1;
                run_into(&one, be, &got);
            }
            assert_memory_equal(got.p, want.p, want.bytes);
            buf_close(&got);
            buf_close(&want);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* A key or value that is not finite makes the queries that see it not finite, and changes no
 * others. */
static void what_is_not_finite_spoils_only_who_sees_it(void **state)
{
    (void)state;
    static const struct shape some[] = {{6, 2, 64, 0, .softcap = 0},
                                        {3, 3, 40, 37, .softcap = 0},
                                        {4, 2, 40, 0, 0, .chunk = 60, .head_v = 48}};
    enum { N = 205 };
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        for (int round = 0; round < 72; round += SPARSE) {
            const struct shape *s = &some[round % 3];
            struct problem p;
            one_sequence(&p, s, dtypes[round % 3], N);
            if (round >= 36)
                give_sinks(&p);
            if (round % 24 >= 12)
                give_alibi(&p);
            struct buf want = problem_run(&p, be);
            int64_t head_v = head_v_of(&p.op), bad = rng_below(N), row_len = s->n_head * head_v;
            struct buf *where = round % 4 < 2 ? &p.v : &p.k;
            int64_t size = where == &p.v ? head_v : s->head;
            int64_t kv = rng_below(s->n_kv), el = rng_below(size);
            ctw_store_float(where->p, p.op.dtype, (bad * s->n_kv + kv) * size + el,
                            round % 8 < 4 ? NAN : INFINITY);
            struct buf got = problem_run(&p, be);
            for (int64_t at = 0; at < N * row_len; at++) {
                int64_t pos = at / row_len, head = at % row_len / head_v;
                bool sees = pos >= bad && (s->window == 0 || pos - bad < s->window) &&
                            (s->chunk == 0 || pos / s->chunk == bad / s->chunk) &&
                            head / (s->n_head / s->n_kv) == kv;
                float g = ctw_load_float(got.p, p.op.dtype, at);
                if (!sees)
                    assert_memory_equal(element(got.p, p.op.dtype, at),
                                        element(want.p, p.op.dtype, at),
                                        ctw_dtype_bytes(p.op.dtype));
                else if (where == &p.v && at % head_v == el)
                    assert_false(isfinite(g));
                else if (where == &p.k && round % 8 < 4)
                    assert_true(isnan(g));
            }
            buf_close(&got);
            buf_close(&want);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* Queries of zeros score 0 with every key; values are 1: the result of n keys is n / (n +
 * e^sink), for any scale and cap. */
static void a_sink_is_one_more_logit(void **state)
{
    (void)state;
    static const struct shape some[] = {
        {6, 2, 40, 0, .softcap = 0}, {2, 2, 64, 5, .softcap = 0.5f}, {3, 1, 8, 100, .softcap = 0}};
    enum { N = 113 };
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        for (size_t s = 0; s < 3 * CTW_COUNT(some); s++) {
            struct problem p;
            one_sequence(&p, &some[s / 3], dtypes[s % 3], N);
            give_sinks(&p);
            for (int64_t at = 0; at < N * p.op.n_head * p.op.head; at++)
                ctw_store_float(p.q.p, p.op.dtype, at, 0);
            for (int64_t at = 0; at < N * p.op.n_kv * p.op.head; at++)
                ctw_store_float(p.v.p, p.op.dtype, at, 1);
            struct buf got = problem_run(&p, be);
            for (int64_t at = 0; at < N * p.op.n_head * p.op.head; at++) {
                int64_t row = at / p.op.head / p.op.n_head, h = at / p.op.head % p.op.n_head;
                double n = (double)(p.op.window > 0 && row >= p.op.window ? p.op.window : row + 1);
                double want = n / (n + exp(ctw_load_float(p.sinks.p, p.op.sinks_dtype, h)));
                double more = p.op.dtype == CTW_BF16 ? 0x1p-8 * want : 0; /* weights in pair mode */
                near(ctw_load_float(got.p, p.op.dtype, at), want,
                     1e-6 + more + half_step(p.op.dtype, want), v, at);
            }
            buf_close(&got);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* One head's sink at its limits; the other heads' stay -infinity. */
static void sinks_at_their_limits(void **state)
{
    (void)state;
    static const struct shape some[] = {{6, 2, 64, 0, .softcap = 0},
                                        {3, 3, 40, 37, .softcap = 0},
                                        {4, 1, 24, 0, .softcap = 20},
                                        {2, 1, 128, 100, .softcap = 5}};
    static const float limits[] = {-INFINITY, 60000, NAN, INFINITY, -60000};
    enum { N = 205 };
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        for (size_t s = 0; s < 3 * CTW_COUNT(some); s += COARSE) {
            struct problem p;
            one_sequence(&p, &some[s / 3], dtypes[s % 3], N);
            struct buf none = problem_run(&p, be);
            give_sinks(&p);
            for (size_t limit = 0; limit < CTW_COUNT(limits); limit++) {
                int64_t bad = rng_below(p.op.n_head);
                for (int64_t h = 0; h < p.op.n_head; h++)
                    ctw_store_float(p.sinks.p, p.op.sinks_dtype, h,
                                    h == bad ? limits[limit] : -INFINITY);
                struct buf got = problem_run(&p, be);
                for (int64_t at = 0; at < N * p.op.n_head * p.op.head; at++) {
                    float g = ctw_load_float(got.p, p.op.dtype, at);
                    if (at / p.op.head % p.op.n_head != bad || limits[limit] < 0)
                        assert_memory_equal(element(got.p, p.op.dtype, at),
                                            element(none.p, p.op.dtype, at),
                                            ctw_dtype_bytes(p.op.dtype));
                    else
                        assert_true(isfinite(limits[limit]) ? g == 0 : isnan(g));
                }
                buf_close(&got);
            }
            buf_close(&none);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* If all of a query's scores are -infinity, only its sink has weight. */
static void a_sink_alone(void **state)
{
    (void)state;
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 1);
        struct problem p;
        one_sequence(&p, &(struct shape){2, 1, 16, 0, .softcap = 0}, CTW_F32, 3);
        give_sinks(&p);
        for (int64_t at = 0; at < 16; at++) { /* the first key, and row 0's first head */
            ctw_store_float(p.q.p, CTW_F32, at, 1);
            ctw_store_float(p.k.p, CTW_F32, at, at == 5 ? -INFINITY : 0);
        }
        struct buf got = problem_run(&p, be);
        for (int64_t at = 0; at < 16; at++)
            assert_true(ctw_load_float(got.p, CTW_F32, at) == 0);
        buf_close(&p.sinks);
        p.sinks.base = NULL;
        p.op.sinks = NULL;
        run_into(&p.op, be, &got);
        for (int64_t at = 0; at < 16; at++)
            assert_true(isnan(ctw_load_float(got.p, CTW_F32, at)));
        buf_close(&got);
        problem_close(&p);
        ctw_backend_close(be);
    }
}

static void sinks_are_floats(void **state)
{
    (void)state;
    struct ctw_backend *be = backend("c", 1);
    struct problem p;
    one_sequence(&p, &shapes[0], CTW_F32, 3);
    give_sinks(&p);
    p.op.out = p.out.p;
    p.op.sinks_dtype = CTW_I8;
    assert_int_equal(ctw_attention(be, &p.op, &last_err), CTW_EINTERNAL);
    assert_non_null(strstr(last_err.msg, "sinks_dtype"));
    problem_close(&p);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variants_agree_with_the_definition),
        cmocka_unit_test(cuts_change_no_bit),
        cmocka_unit_test(many_runs_change_no_bit),
        cmocka_unit_test(company_changes_no_bit),
        cmocka_unit_test(what_is_not_finite_spoils_only_who_sees_it),
        cmocka_unit_test(a_sink_is_one_more_logit),
        cmocka_unit_test(sinks_at_their_limits),
        cmocka_unit_test(a_sink_alone),
        cmocka_unit_test(sinks_are_floats),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
