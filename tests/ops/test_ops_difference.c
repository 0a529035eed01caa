/* ctw_difference against its definition in long double, and its invariance. */
#include "difference_problem.h"

static struct buf problem_run(const struct problem *p, struct ctw_backend *be, const void *y)
{
    struct buf out = buf_open((size_t)p->n_seqs * sizeof(struct ctw_difference_result), 0);
    const struct ctw_op_difference op = {.n_seqs = p->n_seqs,
                                         .n_rows = p->n_rows,
                                         .dim = p->dim,
                                         .start = p->start.p,
                                         .x = p->x.p,
                                         .y = y,
                                         .rows = p->rows.p,
                                         .channels = p->channels.p,
                                         .out = out.p};
    OK(ctw_difference(be, &op, &last_err));
    buf_check(&out);
    buf_check(&p->rows);
    buf_check(&p->channels);
    return out;
}

/* ---- tests -------------------------------------------------------------------------------- */

static void results_agree_with_the_definition(void **state)
{
    (void)state;
    static const int64_t dims[] = {1, 3, 127, 128, 129, 576, 1000};
    struct ctw_backend *be = backend(NULL, 2);
    for (size_t i = 0; i < CTW_COUNT(dims); i++) {
        struct problem p = problem_open(5, 40, dims[i]);
        struct buf got = problem_run(&p, be, p.y.p);
        for (int64_t seq = 0; seq < p.n_seqs; seq++)
            compare(&p, (struct ctw_difference_result *)got.p + seq, seq);
        buf_close(&got);
        problem_close(&p);
    }
    ctw_backend_close(be);
}

static void equal_streams_do_not_differ(void **state)
{
    (void)state;
    struct ctw_backend *be = backend(NULL, 2);
    struct problem p = problem_open(30, 20, 331);
    const int64_t *start = p.start.p;
    memset((float *)p.x.p + start[3] * p.dim, 0, (size_t)p.dim * sizeof(float));
    struct buf got = problem_run(&p, be, p.x.p);
    for (int64_t i = 0; i < p.n_seqs; i++) {
        const struct ctw_difference_result *r = (struct ctw_difference_result *)got.p + i;
        assert_true(r->error == 0);
        assert_true(r->relative == 0);
        assert_true(r->channel_error == 0);
        assert_true(r->cosine == (double)(start[i + 1] - start[i]));
        assert_true(r->channel == 0);
    }
    buf_close(&got);
    problem_close(&p);
    ctw_backend_close(be);
}

/* Rows of zeros: of both, of the reference, of the model. */
static void zeros_have_a_cosine(void **state)
{
    (void)state;
    static const double want[3][2] = {{1, 0}, {0, 1}, {0, 1}}; /* cosine, relative */
    struct ctw_backend *be = backend(NULL, 1);
    struct problem p = problem_open(3, 1, 64);
    float *x = p.x.p, *y = p.y.p;
    for (int64_t i = 0; i < p.dim; i++)
        x[i] = y[i] = x[p.dim + i] = y[2 * p.dim + i] = 0;
    struct buf got = problem_run(&p, be, y);
    for (int i = 0; i < 3; i++) {
        const struct ctw_difference_result *r = (struct ctw_difference_result *)got.p + i;
        assert_true(r->cosine == want[i][0]);
        assert_true(r->relative == want[i][1]);
    }
    buf_close(&got);
    problem_close(&p);
    ctw_backend_close(be);
}

/* Alone, or between others, and on any number of threads; a NaN elsewhere changes nothing. */
static void a_sequence_does_not_depend_on_the_others(void **state)
{
    (void)state;
    struct ctw_backend *be = backend(NULL, 1);
    struct problem p = problem_open(9, 50, 300);
    const int64_t *start = p.start.p;
    struct buf want = problem_run(&p, be, p.y.p);
    for (int64_t i = 0; i < p.n_seqs; i++) {
        struct ctw_backend *more = backend(NULL, 1 + (int)i % 4);
        const struct ctw_difference_result *r = (struct ctw_difference_result *)want.p + i;
        int64_t alone[2] = {0, start[i + 1] - start[i]};
        struct ctw_difference_result got;
        const struct ctw_op_difference op = {.n_seqs = 1,
                                             .n_rows = alone[1],
                                             .dim = p.dim,
                                             .start = alone,
                                             .x = (float *)p.x.p + start[i] * p.dim,
                                             .y = (float *)p.y.p + start[i] * p.dim,
                                             .rows = p.rows.p,
                                             .channels = p.channels.p,
                                             .out = &got};
        OK(ctw_difference(more, &op, &last_err));
        assert_memory_equal(&got, r, sizeof(got));
        ctw_backend_close(more);
    }
    ((float *)p.y.p)[start[4] * p.dim + 7] = NAN;
    struct buf bad = problem_run(&p, be, p.y.p);
    for (int64_t i = 0; i < p.n_seqs; i++) {
        const struct ctw_difference_result *r = (struct ctw_difference_result *)bad.p + i;
        if (i == 4) {
            assert_true(isnan(r->error));
            assert_true(isnan(r->cosine));
            assert_true(isnan(r->relative));
        } else
            assert_memory_equal(r, (struct ctw_difference_result *)want.p + i, sizeof(*r));
    }
    buf_close(&bad);
    buf_close(&want);
    problem_close(&p);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_agree_with_the_definition),
        cmocka_unit_test(equal_streams_do_not_differ),
        cmocka_unit_test(zeros_have_a_cosine),
        cmocka_unit_test(a_sequence_does_not_depend_on_the_others),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
