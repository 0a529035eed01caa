/* ctw_divergence against its definition in long double, and its invariance, in every place. */
#include "divergence_problem.h"
#include "places.h"

/* Rows row0 .. row0+n-1. */
static struct buf problem_run(const struct problem *p, struct ctw_backend *be, int64_t row0,
                              int64_t n)
{
    const struct side *const sides[2] = {&p->model, &p->reference};
    struct buf got = buf_open((size_t)n * sizeof(struct ctw_divergence_result), 0);
    struct dev out = dev_open(be, got.p, got.bytes, 0), logits[2], norms[2];
    struct ctw_logits l[2];
    for (int i = 0; i < 2; i++) {
        logits[i] = dev_open(be, sides[i]->logits.p, sides[i]->logits.bytes, 0);
        norms[i] = dev_open(be, sides[i]->norms.p, sides[i]->norms.bytes, 0);
        l[i] = sides[i]->l;
        l[i].logits = (const float *)(void *)logits[i].p + row0 * l[i].ld;
        l[i].norms = (const struct ctw_head_norm *)(void *)norms[i].p + row0;
    }
    const struct ctw_op_divergence op = {n, l[0], l[1], (void *)out.p};
    OK(ctw_divergence(be, &op, &last_err));
    dev_read(&out, got.p);
    dev_close(&out);
    for (int i = 0; i < 2; i++) {
        dev_close(&logits[i]);
        dev_close(&norms[i]);
    }
    return got;
}

/* ---- tests -------------------------------------------------------------------------------- */

static void variants_agree_with_the_definition(void **state)
{
    (void)state;
    static const int64_t vocabularies[][2] = {{1, 1},       {2, 2},         {3, 5},
                                              {33, 33},     {257, 257},     {1000, 1024},
                                              {4099, 4096}, {16399, 16399}, {50257, 50304}};
    const size_t n_vocabularies = CTW_COUNT(vocabularies) - (CTW_ON_GPU ? 0 : 1); /* slow on CPUs */
    static const float noises[] = {1e-4f, 0.01f, 0.3f, 4};
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        for (size_t s = 0; s < n_vocabularies; s++) {
            for (size_t k = 0; k < CTW_COUNT(noises); k++) {
                char what[96];
                int64_t model = vocabularies[s][0], reference = vocabularies[s][1];
                struct problem p =
                    problem_open(3, model, reference, k % 2 == 0 ? 3 : 0.5f, noises[k]);
                struct buf got = problem_run(&p, be, 0, p.n_rows);
                snprintf(what, sizeof(what), "place %d, %" PRId64 " and %" PRId64 " ids, noise %g",
                         i, model, reference, (double)noises[k]);
                compare(&p, got.p, what);
                buf_close(&got);
                problem_close(&p);
            }
        }
        ctw_backend_close(be);
    }
}

static void equal_models_do_not_diverge(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        struct problem p = problem_open(4, 5003, 5003, 3, 1);
        struct problem same = {4, p.model, p.model};
        struct buf got = problem_run(&same, be, 0, 4);
        for (int t = 0; t < 4; t++) {
            const struct ctw_divergence_result *r = (struct ctw_divergence_result *)got.p + t;
            assert_true(r->kl == 0);
            assert_true(r->kl_reverse == 0);
            assert_true(r->tv == 0);
            assert_int_equal(r->overlap5, 5);
        }
        buf_close(&got);
        problem_close(&p);
        ctw_backend_close(be);
    }
}

static void a_row_does_not_depend_on_the_other_rows(void **state)
{
    (void)state;
    enum { N = 23 };
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        struct problem p = problem_open(N, 3001, 2999, 2, 0.2f);
        struct buf want = problem_run(&p, be, 0, N);
        for (int threads = 2; threads <= 5; threads += 3) {
            struct ctw_backend *more = open_place(i, threads);
            for (int64_t t = 0, n; t < N; t += n) {
                n = 1 + t / 2 < N - t ? 1 + t / 2 : N - t;
                struct buf got = problem_run(&p, more, t, n);
                assert_memory_equal(got.p, (struct ctw_divergence_result *)want.p + t, got.bytes);
                buf_close(&got);
            }
            ctw_backend_close(more);
        }
        buf_close(&want);
        problem_close(&p);
        ctw_backend_close(be);
    }
}

/* The five largest, of many equal ones the lowest ids, wherever they are. */
static void ties_go_to_the_lowest_ids(void **state)
{
    (void)state;
    enum { VOCAB = CTW_ON_GPU ? 9001 : 2000 };
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        for (int round = 0; round < 60; round++) {
            struct problem p = problem_open(1, VOCAB, VOCAB, 0, 0);
            float *x = p.reference.logits.p, *y = p.model.logits.p;
            for (int64_t n = 0; n < VOCAB; n++) {
                x[n] = (float)rng_below(1 + round % 3);
                y[n] = rng_below(4) == 0 ? (float)rng_below(3) : x[n];
            }
            /* the largest anywhere, or in the columns of one of a GPU's threads */
            for (int n = 0; n < round % 9; n++)
                y[round % 2 == 0 ? rng_below(VOCAB) : (40 + n % 4 + n / 4 * 2048) % VOCAB] = 5;
            set_norms(&p.model, 1);
            set_norms(&p.reference, 1);
            struct buf got = problem_run(&p, be, 0, 1);
            compare(&p, got.p, "ties");
            buf_close(&got);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* A probability of exactly 0 is allowed; NaN and +infinity make a row NaN, and no other row. */
static void what_is_not_finite_is_seen(void **state)
{
    (void)state;
    enum { VOCAB = CTW_ON_GPU ? 5000 : 700 };
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        struct problem p = problem_open(6, VOCAB, VOCAB, 2, 0.1f);
        struct buf before = problem_run(&p, be, 0, 6);
        float *x = p.reference.logits.p, *y = p.model.logits.p;
        const int64_t ld = p.model.l.ld;
        x[3] = y[3] = -INFINITY;
        y[ld + 300] = -INFINITY;
        x[2 * ld + VOCAB - 10] = -INFINITY;
        x[3 * ld + 5] = NAN;
        y[4 * ld + VOCAB - 1] = INFINITY;
        set_norms(&p.model, 5); /* row 5 stays as it is */
        set_norms(&p.reference, 5);
        struct buf got = problem_run(&p, be, 0, 6);
        const struct ctw_divergence_result *r = got.p;
        assert_true(isfinite(r[0].kl));
        assert_true(isfinite(r[0].kl_reverse));
        assert_true(isfinite(r[0].tv));
        assert_true(isinf(r[1].kl));
        assert_true(isfinite(r[1].kl_reverse));
        assert_true(isfinite(r[1].tv));
        assert_true(isfinite(r[2].kl));
        assert_true(isinf(r[2].kl_reverse));
        assert_true(isfinite(r[2].tv));
        for (int t = 3; t <= 4; t++) {
            assert_true(isnan(r[t].kl));
            assert_true(isnan(r[t].kl_reverse));
            assert_true(isnan(r[t].tv));
        }
        assert_memory_equal(&r[5], (struct ctw_divergence_result *)before.p + 5, sizeof(r[5]));
        buf_close(&before);
        buf_close(&got);
        problem_close(&p);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variants_agree_with_the_definition),
        cmocka_unit_test(equal_models_do_not_diverge),
        cmocka_unit_test(a_row_does_not_depend_on_the_other_rows),
        cmocka_unit_test(ties_go_to_the_lowest_ids),
        cmocka_unit_test(what_is_not_finite_is_seen),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
