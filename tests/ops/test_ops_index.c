/* ctw_index against its definition in long double, ties, and cuts; attention over chosen keys. */
#include "ops.h"

enum { N = 150, HEADS = 5, HEAD = 20, WORDS = (N + 31) / 32 + 1, DIM = 24 };

struct problem {
    struct ctw_op_index op;
    struct ctw_attn_seq seq;
    struct ctw_kv_run runs[2];
    struct buf q, k, weights;
};

static struct problem problem_open(enum ctw_dtype dtype, int64_t chosen)
{
    struct problem p = {.op = {.dtype = dtype,
                               .n_head = HEADS,
                               .head = HEAD,
                               .chosen = chosen,
                               .ld_weights = HEADS + 3,
                               .n_seqs = 1,
                               .ld_seen = WORDS},
                        .seq = {.n_q = N, .n_runs = 2},
                        .runs = {{90, 61}, {0, N - 61}}};
    p.q = buf_random(dtype, N * HEADS * HEAD, 1, 0);
    p.k = buf_random(dtype, (N + 1) * HEAD, 1, 0);
    p.weights = buf_random(dtype, N * p.op.ld_weights, 1, 0);
    p.op.q = p.q.p;
    p.op.k = p.k.p;
    p.op.weights = p.weights.p;
    return p;
}

static void problem_close(struct problem *p)
{
    buf_close(&p->q);
    buf_close(&p->k);
    buf_close(&p->weights);
}

/* Queries first .. first+n-1 into seen. */
static void run(struct problem *p, struct ctw_backend *be, int64_t first, int64_t n, uint32_t *seen)
{
    struct ctw_op_index op = p->op;
    p->seq.q_row = p->seq.pos0 = first;
    p->seq.n_q = n;
    p->seq.runs = p->runs;
    op.seqs = &p->seq;
    op.seen = seen;
    OK(ctw_index(be, &op, &last_err));
}

static bool bit(const uint32_t *seen, int64_t query, int64_t key)
{
    return (seen[query * WORDS + key / 32] >> key % 32 & 1) != 0;
}

static long double score(const struct problem *p, int64_t i, int64_t j)
{
    int64_t row = j < 61 ? 90 + j : j - 61;
    long double sum = 0;
    for (int h = 0; h < HEADS; h++) {
        long double dot = 0;
        for (int d = 0; d < HEAD; d++)
            dot += (long double)ctw_load_float(p->q.p, p->op.dtype, (i * HEADS + h) * HEAD + d) *
                   ctw_load_float(p->k.p, p->op.dtype, row * HEAD + d);
        if (dot > 0)
            sum += dot * ctw_load_float(p->weights.p, p->op.dtype, i * p->op.ld_weights + h);
    }
    return sum;
}

/* Every chosen key is better than every other one, and as many as asked for are chosen. */
static void the_best_keys_are_chosen(void **state)
{
    (void)state;
    static uint32_t seen[N * WORDS];
    static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};
    struct ctw_backend *be = backend(NULL, 2);
    for (int64_t chosen = 1; chosen < 2 * N; chosen = 2 * chosen + 3) {
        struct problem p = problem_open(dtypes[chosen % 3], chosen);
        run(&p, be, 0, N, seen);
        for (int64_t i = 0; i < N; i++) {
            long double least = INFINITY, best = -INFINITY;
            int64_t n = 0;
            for (int64_t j = 0; j <= i; j++) {
                long double s = score(&p, i, j);
                if (bit(seen, i, j))
                    n++, least = s < least ? s : least;
                else
                    best = s > best ? s : best;
            }
            assert_int_equal(n, i + 1 < chosen ? i + 1 : chosen);
            assert_true(least >= best - 1e-12L * fabsl(best));
            for (int64_t j = i + 1; j < (i / 32 + 1) * 32; j++)
                assert_false(bit(seen, i, j));
        }
        problem_close(&p);
    }
    ctw_backend_close(be);
}

/* Equal keys: the first ones. Keys that are not numbers: the last ones. */
static void ties_go_to_the_first(void **state)
{
    (void)state;
    static uint32_t seen[N * WORDS];
    struct ctw_backend *be = backend(NULL, 2);
    struct problem p = problem_open(CTW_F32, 7);
    for (int64_t i = 0; i < (N + 1) * HEAD; i++)
        ctw_store_float(p.k.p, CTW_F32, i, i / HEAD == 90 ? NAN : 1);
    run(&p, be, 0, N, seen);
    for (int64_t i = 8; i < N; i++)
        for (int64_t j = 0; j <= i; j++)
            assert_int_equal(bit(seen, i, j), j >= 1 && j <= 7);
    problem_close(&p);
    ctw_backend_close(be);
}

static void cuts_change_no_bit(void **state)
{
    (void)state;
    static uint32_t want[N * WORDS], got[N * WORDS];
    struct ctw_backend *one = backend(NULL, 1), *be = backend(NULL, 3);
    struct problem p = problem_open(CTW_BF16, 20);
    run(&p, one, 0, N, want);
    for (int64_t cut = 1; cut < N; cut += 7) {
        memset(got, 0, sizeof(got));
        run(&p, be, 0, cut, got);
        run(&p, be, cut, N - cut, got);
        assert_memory_equal(got, want, sizeof(want));
    }
    problem_close(&p);
    ctw_backend_close(be);
    ctw_backend_close(one);
}

/* Attention over chosen keys is attention over these keys alone; over all keys, that without a
 * choice, to the last bit. */
static void attention_sees_what_is_chosen(void **state)
{
    (void)state;
    static uint32_t some[N * WORDS], all[N * WORDS];
    const struct ctw_kv_run whole = {0, N};
    const struct ctw_attn_seq seq = {.n_q = N, .runs = &whole, .n_runs = 1};
    const char *v;
    for (int64_t i = 0; i < N * WORDS; i++) {
        some[i] = rng() & rng();
        all[i] = UINT32_MAX;
    }
    for (int64_t i = 0; i < N; i++)
        some[i * WORDS + i / 32] |= (uint32_t)1 << i % 32; /* at least itself */
    struct buf q = buf_random(CTW_F32, N * DIM, 1, 0), k = buf_random(CTW_F32, N * DIM, 1, 0);
    struct buf values = buf_random(CTW_F32, N * DIM, 1, 0);
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        struct buf out[3];
        for (int kind = 0; kind < 3; kind++) {
            out[kind] = buf_open((size_t)N * DIM * sizeof(float), 0);
            const struct ctw_op_attention op = {.dtype = CTW_F32,
                                                .n_head = 1,
                                                .n_kv = 1,
                                                .head = DIM,
                                                .scale = 0.3f,
                                                .seen = kind == 0   ? NULL
                                                        : kind == 1 ? all
                                                                    : some,
                                                .ld_seen = WORDS,
                                                .q = q.p,
                                                .k = k.p,
                                                .v = values.p,
                                                .out = out[kind].p,
                                                .seqs = &seq,
                                                .n_seqs = 1};
            OK(ctw_attention(be, &op, &last_err));
        }
        assert_memory_equal(out[0].p, out[1].p, out[0].bytes);
        for (int64_t at = 0; at < N * DIM; at++) {
            int64_t row = at / DIM;
            double total = 0, sum = 0;
            for (int64_t j = 0; j <= row; j++) {
                double s = 0;
                for (int d = 0; bit(some, row, j) && d < DIM; d++)
                    s += (double)((float *)q.p)[row * DIM + d] * ((float *)k.p)[j * DIM + d];
                double e = bit(some, row, j) ? exp(0.3 * s) : 0;
                total += e;
                sum += e * ((float *)values.p)[j * DIM + at % DIM];
            }
            near(((float *)out[2].p)[at], sum / total, 1e-5, v, at);
        }
        for (int kind = 0; kind < 3; kind++)
            buf_close(&out[kind]);
        ctw_backend_close(be);
    }
    buf_close(&q);
    buf_close(&k);
    buf_close(&values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_keys_are_chosen),
        cmocka_unit_test(ties_go_to_the_first),
        cmocka_unit_test(cuts_change_no_bit),
        cmocka_unit_test(attention_sees_what_is_chosen),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
