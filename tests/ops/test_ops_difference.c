/* ctw_difference against its definition in long double, and its invariance, in every place. */
#include "difference_problem.h"
#include "places.h"

/* Sequences seq0 .. seq0+n-1, alone, at an address `misalign` bytes past a multiple of 256. */
static struct buf run(const struct problem *p, struct ctw_backend *be, const void *y, int64_t seq0,
                      int64_t n, size_t misalign)
{
    const int64_t *start = p->start.p;
    int64_t row0 = start[seq0], n_rows = start[seq0 + n] - row0, at[64];
    size_t bytes = (size_t)(n_rows * p->dim) * sizeof(float);
    size_t blocks = (size_t)(n * ctw_difference_blocks(p->dim));
    assert_true(n < 64);
    for (int64_t i = 0; i <= n; i++)
        at[i] = start[seq0 + i] - row0;
    struct buf out = buf_open((size_t)n * sizeof(struct ctw_difference_result), 0);
    struct dev starts = dev_open(be, at, (size_t)(n + 1) * sizeof(*at), 0);
    struct dev x = dev_open(be, (float *)p->x.p + row0 * p->dim, bytes, misalign);
    struct dev ys = dev_open(be, (const float *)y + row0 * p->dim, bytes, misalign);
    struct dev rows =
        dev_open(be, p->rows.p, (size_t)n_rows * sizeof(struct ctw_difference_row), 0);
    struct dev channels =
        dev_open(be, p->channels.p, blocks * sizeof(struct ctw_difference_channel), 0);
    struct dev results = dev_open(be, out.p, out.bytes, 0);
    const struct ctw_op_difference op = {.n_seqs = n,
                                         .n_rows = n_rows,
                                         .dim = p->dim,
                                         .start = (const void *)starts.p,
                                         .x = (const void *)x.p,
                                         .y = (const void *)ys.p,
                                         .rows = (void *)rows.p,
                                         .channels = (void *)channels.p,
                                         .out = (void *)results.p};
    OK(ctw_difference(be, &op, &last_err));
    dev_read(&results, out.p);
    dev_read(&rows, p->rows.p);
    dev_read(&channels, p->channels.p);
    struct dev *const all[] = {&starts, &x, &ys, &rows, &channels, &results};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        dev_close(all[i]);
    return out;
}

static void results_agree_with_the_definition(void **state)
{
    (void)state;
    static const int64_t dims[] = {1, 3, 127, 128, 129, 576, 1000, 4096, 5121};
    struct ctw_backend *be = open_place(0, 2);
    for (size_t i = 0; i < CTW_COUNT(dims); i++) {
        struct problem p = problem_open(6, 90, dims[i]);
        struct buf got = run(&p, be, p.y.p, 0, p.n_seqs, 0);
        struct buf same = run(&p, be, p.x.p, 0, p.n_seqs, 0);
        const int64_t *start = p.start.p;
        for (int64_t seq = 0; seq < p.n_seqs; seq++) {
            const struct ctw_difference_result *r = (struct ctw_difference_result *)same.p + seq;
            compare(&p, (struct ctw_difference_result *)got.p + seq, seq);
            assert_true(r->error == 0);
            assert_true(r->relative == 0);
            assert_true(r->channel_error == 0);
            assert_true(r->cosine == (double)(start[seq + 1] - start[seq]));
            assert_true(r->channel == 0);
        }
        buf_close(&got);
        buf_close(&same);
        problem_close(&p);
    }
    ctw_backend_close(be);
}

/* Alone, or between others, and on any number of threads. */
static void a_sequence_does_not_depend_on_the_others(void **state)
{
    (void)state;
    static const int64_t dims[] = {77, 300, 4096};
    struct ctw_backend *be = open_place(0, 2);
    for (size_t i = 0; i < CTW_COUNT(dims); i++) {
        struct problem p = problem_open(9, 130, dims[i]);
        struct buf want = run(&p, be, p.y.p, 0, p.n_seqs, 0);
        ((float *)p.y.p)[((int64_t *)p.start.p)[4] * p.dim + 7] = NAN;
        for (int64_t seq = 0; seq < p.n_seqs; seq++) {
            int64_t n = 1 + seq % 3 < p.n_seqs - seq ? 1 + seq % 3 : 1;
            struct ctw_backend *more = open_place(0, 1 + (int)seq % 4);
            struct buf got = run(&p, more, p.y.p, seq, n, seq % 2 == 0 ? 0 : 4);
            const struct ctw_difference_result *r = got.p;
            for (int64_t k = 0; k < n; k++) {
                if (seq + k == 4) {
                    assert_true(isnan(r[k].error));
                    assert_true(isnan(r[k].cosine));
                    assert_true(isnan(r[k].relative));
                } else
                    assert_memory_equal(&r[k], (struct ctw_difference_result *)want.p + seq + k,
                                        sizeof(*r));
            }
            buf_close(&got);
            ctw_backend_close(more);
        }
        buf_close(&want);
        problem_close(&p);
    }
    ctw_backend_close(be);
}

/* Rows of zeros: of both, of the reference, of the model. */
static void zeros_have_a_cosine(void **state)
{
    (void)state;
    static const double want[3][2] = {{1, 0}, {0, 1}, {0, 1}}; /* cosine, relative */
    struct problem p = problem_open(3, 1, 64);
    struct ctw_backend *be = open_place(0, 1);
    float *x = p.x.p, *y = p.y.p;
    for (int64_t i = 0; i < p.dim; i++)
        x[i] = y[i] = x[p.dim + i] = y[2 * p.dim + i] = 0;
    struct buf got = run(&p, be, y, 0, 3, 0);
    for (int i = 0; i < 3; i++) {
        const struct ctw_difference_result *r = (struct ctw_difference_result *)got.p + i;
        assert_true(r->cosine == want[i][0]);
        assert_true(r->relative == want[i][1]);
    }
    buf_close(&got);
    problem_close(&p);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_agree_with_the_definition),
        cmocka_unit_test(a_sequence_does_not_depend_on_the_others),
        cmocka_unit_test(zeros_have_a_cosine),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
