/* ctw_collapse and ctw_expand against their definitions in double; rows do not depend on others. */
#include "kernels/streams.h"
#include "places.h"

enum { TOKENS = 7, MOST_DIM = 1100, MOST = CTW_MAX_STREAMS, ROWS = 2 * MOST + MOST * MOST };

struct problem {
    struct ctw_backend *be;
    struct ctw_op_collapse op;
    struct buf x, fn, base, scale;
    struct dev d[7];
};

static struct problem problem_open(struct ctw_backend *be, int n, int64_t dim, enum ctw_dtype dtype,
                                   bool mixes, int n_sinkhorn)
{
    struct problem p = {.be = be};
    const int64_t rows = ctw_stream_rows(n, mixes, n_sinkhorn), width = n * dim;
    static const int64_t order[TOKENS] = {3, 0, 6, 5, 1, 2, 4};
    struct buf zeros = buf_open((size_t)(TOKENS * (dim + ctw_stream_mix(n))) * sizeof(float), 0);
    memset(zeros.p, 0, zeros.bytes);
    p.x = buf_random(CTW_F32, TOKENS * width, 30, 0);
    p.fn = buf_random(dtype, rows * width, (float)(1 / sqrt((double)width)), 0);
    p.base = buf_random(dtype, rows, 1, 0);
    p.scale = buf_random(dtype, 3, 1, 0);
    p.d[0] = dev_of(be, &p.x);
    p.d[1] = dev_of(be, &p.fn);
    p.d[2] = dev_of(be, &p.base);
    p.d[3] = dev_of(be, &p.scale);
    p.d[4] = dev_open(be, order, sizeof(order), 0);
    p.d[5] = dev_open(be, zeros.p, (size_t)(TOKENS * dim) * sizeof(float), 0);
    p.d[6] = dev_open(be, zeros.p, (size_t)(TOKENS * ctw_stream_mix(n)) * sizeof(float), 0);
    buf_close(&zeros);
    p.op = (struct ctw_op_collapse){.n_tok = TOKENS,
                                    .dim = dim,
                                    .n = n,
                                    .x = (const float *)(void *)p.d[0].p,
                                    .rows = mixes ? NULL : (const int64_t *)(void *)p.d[4].p,
                                    .fn = {p.d[1].p, dtype},
                                    .base = {p.d[2].p, dtype},
                                    .scale = {p.d[3].p, dtype},
                                    .norm_eps = 1e-5f,
                                    .eps = 1e-3f,
                                    .post_factor = n_sinkhorn > 0 ? 0 : 1.5f,
                                    .post_eps = n_sinkhorn > 0 ? 0 : 0.25f,
                                    .n_sinkhorn = n_sinkhorn,
                                    .mix = mixes ? (float *)(void *)p.d[6].p : NULL,
                                    .y = (float *)(void *)p.d[5].p};
    return p;
}

static void problem_close(struct problem *p)
{
    for (size_t i = 0; i < CTW_COUNT(p->d); i++)
        dev_close(&p->d[i]);
    buf_close(&p->x);
    buf_close(&p->fn);
    buf_close(&p->base);
    buf_close(&p->scale);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void divide(double *comb, int n, int step, int other, double eps)
{
    for (int i = 0; i < n; i++) {
        double sum = eps;
        for (int j = 0; j < n; j++)
            sum += comb[i * other + j * step];
        for (int j = 0; j < n; j++)
            comb[i * other + j * step] /= sum;
    }
}

/* pre, post and comb of a row of x, one behind another. */
static void factors(const struct problem *p, int64_t row, double m[ROWS])
{
    const struct ctw_op_collapse *op = &p->op;
    const int n = op->n, n_rows = (int)ctw_stream_rows(n, op->mix != NULL, op->n_sinkhorn);
    const int64_t k = n * op->dim;
    double squares = 0, *comb = m + 2 * n;
    for (int64_t i = 0; i < k; i++)
        squares += pow(ctw_load_float(p->x.p, CTW_F32, row * k + i), 2);
    for (int r = 0; r < n_rows; r++) {
        double sum = 0, scale;
        for (int64_t i = 0; i < k; i++)
            sum += (double)ctw_load_float(p->fn.p, op->fn.dtype, r * k + i) *
                   ctw_load_float(p->x.p, CTW_F32, row * k + i);
        scale = ctw_load_float(p->scale.p, op->scale.dtype, r < n ? 0 : r < 2 * n ? 1 : 2);
        m[r] = sum / sqrt(squares / (double)k + op->norm_eps) * scale +
               ctw_load_float(p->base.p, op->base.dtype, r);
    }
    for (int r = 0; r < n; r++)
        m[r] = sigmoid(m[r]) + op->eps;
    for (int r = n; r < n_rows && r < 2 * n; r++)
        m[r] = op->n_sinkhorn > 0 ? 2 * sigmoid(m[r]) : 1.5 * sigmoid(m[r]) + 0.25;
    for (int i = 0; op->n_sinkhorn == 0 && i < n * n; i++)
        comb[i] = i / n == i % n;
    if (op->mix == NULL || op->n_sinkhorn == 0)
        return;
    for (int i = 0; i < n * n; i++)
        comb[i] = exp(comb[i]);
    divide(comb, n, 1, n, 0);
    for (int i = 0; i < n * n; i++)
        comb[i] += op->eps;
    divide(comb, n, n, 1, op->eps);
    for (int i = 1; i < op->n_sinkhorn; i++) {
        divide(comb, n, 1, n, op->eps);
        divide(comb, n, n, 1, op->eps);
    }
}

static void check_collapsed(const struct problem *p, const float *y, const float *mix)
{
    static const int64_t order[TOKENS] = {3, 0, 6, 5, 1, 2, 4};
    const struct ctw_op_collapse *op = &p->op;
    for (int64_t t = 0; t < TOKENS; t++) {
        const int64_t row = op->rows != NULL ? order[t] : t;
        double m[ROWS];
        factors(p, row, m);
        for (int64_t i = 0; i < op->dim; i++) {
            double sum = 0;
            for (int s = 0; s < op->n; s++)
                sum += m[s] * ctw_load_float(p->x.p, CTW_F32, (row * op->n + s) * op->dim + i);
            near(y[t * op->dim + i], sum, 3e-4, "collapse", i);
        }
        for (int64_t i = 0; op->mix != NULL && i < ctw_stream_mix(op->n); i++)
            near(mix[t * ctw_stream_mix(op->n) + i], m[op->n + i], 1e-5, "mix", i);
    }
}

/* x after ctw_expand of `out` with the factors in `mix`. */
static void check_expanded(struct problem *p, const float *mix, enum ctw_dtype dtype, bool apart)
{
    const int n = p->op.n;
    const int64_t dim = p->op.dim;
    struct buf out = buf_random(dtype, TOKENS * dim, 10, 0), got = buf_copy(&p->x, 0);
    struct dev o = dev_of(p->be, &out), x = dev_of(p->be, &p->x);
    const int64_t ld = apart ? n : ctw_stream_mix(n); /* apart: other rows of the same numbers */
    const struct ctw_op_expand op = {.n_tok = TOKENS,
                                     .dim = dim,
                                     .n = n,
                                     .mix = p->op.mix,
                                     .apart = apart,
                                     .out = o.p,
                                     .dtype = dtype,
                                     .factor = 0.5f,
                                     .x = (float *)(void *)x.p};
    OK(ctw_expand(p->be, &op, &last_err));
    dev_read(&x, got.p);
    for (int64_t i = 0; i < TOKENS * n * dim; i++) {
        const int64_t row = i / (n * dim), t = i / dim % n, at = i % dim;
        const float *m = mix + row * ld;
        double sum = (double)m[t] * 0.5 * ctw_load_float(out.p, dtype, row * dim + at);
        for (int s = 0; s < n; s++)
            sum += (apart ? s == t : (double)m[n + s * n + t]) *
                   ctw_load_float(p->x.p, CTW_F32, (row * n + s) * dim + at);
        near(((float *)got.p)[i], sum, 1e-4, "expand", i);
    }
    dev_close(&o);
    dev_close(&x);
    buf_close(&out);
    buf_close(&got);
}

static void streams_follow_their_definitions(void **state)
{
    (void)state;
    static const struct {
        int n;
        int64_t dim;
        enum ctw_dtype dtype;
        bool mixes;
        int n_sinkhorn;
    } cases[] = {
        {4, 96, CTW_F32, true, 4},  {1, 5, CTW_F16, true, 4},     {3, MOST_DIM, CTW_BF16, true, 4},
        {8, 33, CTW_F32, true, 1},  {4, 300, CTW_F32, false, 4},  {2, 1, CTW_BF16, false, 4},
        {4, 48, CTW_F32, true, 0},  {8, 5, CTW_BF16, true, 0},    {4, 128, CTW_BF16, true, 20},
        {4, 128, CTW_F32, true, 0}, {4, 1088, CTW_F32, false, 4}, {4, 36, CTW_F32, true, 4}};
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        for (size_t i = 0; i < CTW_COUNT(cases); i++) {
            struct problem p = problem_open(be, cases[i].n, cases[i].dim, cases[i].dtype,
                                            cases[i].mixes, cases[i].n_sinkhorn);
            struct buf y = buf_open(p.d[5].bytes, 0), mix = buf_open(p.d[6].bytes, 0);
            OK(ctw_collapse(be, &p.op, &last_err));
            dev_read(&p.d[5], y.p);
            dev_read(&p.d[6], mix.p);
            check_collapsed(&p, y.p, mix.p);
            for (int apart = 0; apart < 2 && cases[i].mixes; apart++)
                check_expanded(&p, mix.p, cases[i].dtype, apart != 0);
            struct buf alone = buf_copy(&y, 0); /* the last token, by itself */
            struct ctw_op_collapse one = p.op;
            one.n_tok = 1;
            one.x += (TOKENS - 1) * p.op.n * p.op.dim;
            if (one.rows == NULL) {
                OK(ctw_collapse(be, &one, &last_err));
                dev_read(&p.d[5], alone.p);
                assert_memory_equal(alone.p, (float *)y.p + (TOKENS - 1) * p.op.dim,
                                    (size_t)p.op.dim * sizeof(float));
            }
            buf_close(&alone);
            buf_close(&y);
            buf_close(&mix);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* Without weights, streams collapse to their mean; rows that are not finite are marked. */
static void the_mean_needs_no_weights(void **state)
{
    (void)state;
    enum { DIM = 37, STREAMS = 3 };
    static const int64_t order[TOKENS] = {3, 0, 6, 5, 1, 2, 4};
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        int16_t bad[TOKENS] = {-1, -1, -1, -1, -1, -1, -1};
        const int16_t want[TOKENS] = {-1, -1, -1, -1, -1, 4, -1};
        struct problem p = problem_open(be, STREAMS, DIM, CTW_F32, false, 0);
        struct buf x = buf_copy(&p.x, 0), y = buf_open(p.d[5].bytes, 0);
        ((float *)x.p)[(5 * STREAMS + 2) * DIM] = NAN;
        struct dev d = dev_of(be, &x), marks = dev_open(be, bad, sizeof(bad), 0);
        p.op.x = (const float *)(void *)d.p;
        p.op.fn.at = p.op.base.at = p.op.scale.at = NULL;
        p.op.bad = (int16_t *)(void *)marks.p;
        p.op.stamp = 4;
        OK(ctw_collapse(be, &p.op, &last_err));
        dev_read(&p.d[5], y.p);
        dev_read(&marks, bad);
        assert_memory_equal(bad, want, sizeof(want));
        for (int64_t i = 0; i < TOKENS * DIM; i++) {
            const int64_t row = order[i / DIM];
            double sum = 0;
            for (int s = 0; s < STREAMS; s++)
                sum += (double)((float *)x.p)[(row * STREAMS + s) * DIM + i % DIM];
            if (row != 5)
                near(((float *)y.p)[i], sum / STREAMS, 1e-5, "mean", i);
        }
        dev_close(&d);
        dev_close(&marks);
        buf_close(&x);
        buf_close(&y);
        problem_close(&p);
        ctw_backend_close(be);
    }
}

/* Rows with numbers that are not finite are marked, but for those marked before. */
static void bad_rows_are_marked(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        int16_t bad[TOKENS] = {-1, -1, 2, -1, -1, -1, -1}, got[TOKENS];
        const int16_t want[TOKENS] = {-1, 9, 2, -1, 9, -1, -1};
        struct problem p = problem_open(be, 4, 20, CTW_F32, true, 4);
        struct buf x = buf_copy(&p.x, 0);
        ((float *)x.p)[1 * 80 + 79] = NAN;
        ((float *)x.p)[2 * 80] = INFINITY;
        ((float *)x.p)[4 * 80 + 3] = -INFINITY;
        struct dev d = dev_of(be, &x), marks = dev_open(be, bad, sizeof(bad), 0);
        p.op.x = (const float *)(void *)d.p;
        p.op.bad = (int16_t *)(void *)marks.p;
        p.op.stamp = 9;
        OK(ctw_collapse(be, &p.op, &last_err));
        dev_read(&marks, got);
        assert_memory_equal(got, want, sizeof(want));
        dev_close(&d);
        dev_close(&marks);
        buf_close(&x);
        problem_close(&p);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_follow_their_definitions),
        cmocka_unit_test(the_mean_needs_no_weights),
        cmocka_unit_test(bad_rows_are_marked),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
