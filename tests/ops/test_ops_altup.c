/* ctw_altup() in every place: against its definition in long double, and rows by themselves. */
#include "kernels/altup.h"
#include "places.h"

enum { ROWS = 5, DIM = 75, MOST = 4 };

struct altup {
    int n, active;
    struct buf x, r, norm, router, coefs;
};

static long double load(const struct buf *b, enum ctw_dtype dtype, int64_t i)
{
    return ctw_load_float(b->p, dtype, i);
}

static void want_coefficients(const struct altup *a, const float *r, int rows, long double *c)
{
    long double squares = 0, m[MOST];
    for (int i = 0; i < DIM; i++)
        squares += (long double)r[i] * r[i];
    for (int j = 0; j < a->n; j++) {
        long double dot = 0;
        for (int i = 0; i < DIM; i++)
            dot += load(&a->router, CTW_BF16, j * DIM + i) * load(&a->norm, CTW_F32, i) * r[i];
        m[j] = tanhl(dot / (DIM * sqrtl(squares / DIM + 0.5L)));
    }
    for (int k = 0; k < rows; k++) {
        c[k] = 0;
        for (int j = 0; j < a->n; j++)
            c[k] += load(&a->coefs, CTW_BF16, k * a->n + j) * m[j];
    }
}

static void want_level(const struct altup *a, const float *x, double *want)
{
    long double squares[MOST] = {0};
    for (int s = 0; s < a->n; s++)
        for (int i = 0; i < DIM; i++)
            squares[s] += (long double)x[s * DIM + i] * x[s * DIM + i] / DIM;
    for (int s = 0; s < a->n; s++)
        for (int i = 0; i < DIM; i++) {
            long double own = squares[s] < 0.5L ? 0.5L : squares[s];
            want[s * DIM + i] = (double)(x[s * DIM + i] * (s == 0 ? 1 : sqrtl(squares[0] / own)));
        }
}

static void want_row(const struct altup *a, enum ctw_altup_form form, const float *x,
                     const float *r, double *want)
{
    long double c[MOST * MOST];
    const float *active = x + a->active * DIM;
    if (form == CTW_ALTUP_LEVEL) {
        want_level(a, x, want);
        return;
    }
    const bool predicts = form == CTW_ALTUP_PREDICT;
    want_coefficients(a, predicts ? active : r, predicts ? a->n * a->n : a->n, c);
    for (int s = 0; s < a->n; s++)
        for (int i = 0; i < DIM; i++) {
            long double sum = x[s * DIM + i];
            for (int j = 0; predicts && j < a->n; j++)
                sum += c[s * a->n + j] * x[j * DIM + i];
            if (!predicts)
                sum += (1 + c[s]) * ((long double)r[i] - active[i]);
            want[s * DIM + i] = (double)sum;
        }
}

static void check(const struct altup *a, enum ctw_altup_form form, struct ctw_backend *be)
{
    static float y[ROWS * MOST * DIM], one[MOST * DIM];
    const size_t row = (size_t)(a->n * DIM) * sizeof(float);
    struct dev d[] = {dev_open(be, a->x.p, ROWS * row, 0), dev_open(be, a->r.p, a->r.bytes, 0),
                      dev_open(be, a->norm.p, a->norm.bytes, 0),
                      dev_open(be, a->router.p, a->router.bytes, 0),
                      dev_open(be, a->coefs.p, a->coefs.bytes, 0)};
    struct ctw_op_altup op = {.form = form,
                              .n_tok = ROWS,
                              .dim = DIM,
                              .n = a->n,
                              .active = a->active,
                              .x = (float *)(void *)d[0].p,
                              .norm = {d[2].p, CTW_F32},
                              .router = {d[3].p, CTW_BF16},
                              .coefs = {d[4].p, CTW_BF16},
                              .eps = 0.5f};
    if (form == CTW_ALTUP_CORRECT)
        op.r = (const float *)(const void *)d[1].p;
    OK(ctw_altup(be, &op, &last_err));
    dev_read(&d[0], y);
    for (int t = 0; t < ROWS; t++) {
        const float *x = (const float *)a->x.p + t * a->n * DIM;
        const float *r = (const float *)a->r.p + t * DIM;
        double want[MOST * DIM];
        want_row(a, form, x, r, want);
        for (int i = 0; i < a->n * DIM; i++)
            near(y[t * a->n * DIM + i], want[i], 4e-6 * (1 + fabs(want[i])), "altup", t);
        struct dev alone = dev_open(be, x, row, 0), beside = dev_open(be, r, DIM * sizeof(*r), 0);
        op.n_tok = 1;
        op.x = (float *)(void *)alone.p;
        op.r = op.r != NULL ? (const float *)(const void *)beside.p : NULL;
        OK(ctw_altup(be, &op, &last_err));
        dev_read(&alone, one);
        assert_memory_equal(one, y + t * a->n * DIM, row);
        dev_close(&alone);
        dev_close(&beside);
    }
    for (size_t i = 0; i < CTW_COUNT(d); i++)
        dev_close(&d[i]);
}

static void streams_are_as_defined(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        for (int n = 1; n <= MOST; n++) {
            struct altup a = {.n = n,
                              .active = n / 2,
                              .x = buf_random(CTW_F32, ROWS * MOST * DIM, 1, 0),
                              .r = buf_random(CTW_F32, ROWS * DIM, 1, 0),
                              .norm = buf_random(CTW_F32, DIM, 1, 0),
                              .router = buf_random(CTW_BF16, MOST * DIM, 9, 0),
                              .coefs = buf_random(CTW_BF16, MOST * MOST * MOST, 1, 0)};
            for (int form = CTW_ALTUP_PREDICT; form <= CTW_ALTUP_LEVEL; form++)
                check(&a, (enum ctw_altup_form)form, be);
            buf_close(&a.x);
            buf_close(&a.r);
            buf_close(&a.norm);
            buf_close(&a.router);
            buf_close(&a.coefs);
        }
        ctw_backend_close(be);
    }
}

/* A number that is not finite is never hidden. */
static void nan_stays(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 1)) != NULL; place++) {
        float x[2 * DIM] = {1}, y[2 * DIM];
        x[DIM + 3] = NAN;
        struct dev d = dev_open(be, x, sizeof(x), 0);
        struct ctw_op_altup op = {.form = CTW_ALTUP_LEVEL,
                                  .n_tok = 1,
                                  .dim = DIM,
                                  .n = 2,
                                  .x = (float *)(void *)d.p,
                                  .eps = 1e-5f};
        OK(ctw_altup(be, &op, &last_err));
        dev_read(&d, y);
        assert_true(isnan(y[DIM]));
        assert_true(isnan(y[DIM + 3]));
        assert_true(y[0] == 1);
        dev_close(&d);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_are_as_defined),
        cmocka_unit_test(nan_stays),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
