/* ctw_norm() against its definition in double, and its invariance, in every place. */
#include "places.h"

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

/* Group lengths around vectors and around the spans of 1024 in which a CPU processes rows; and the
 * lengths that a GPU's block holds in registers. */
static const int64_t dims[] = {1,   7,    8,    9,    16,   31,   64,    255,   256,  257,
                               576, 1023, 1025, 2049,
#if CTW_ON_GPU
                               513, 4096, 5120, 8192, 8200, 9001, 16384, 16392, 20001
#endif
};

struct norm {
    struct ctw_op_norm op;
    struct buf x, weight, bias, y;                     /* y: the content before */
    size_t x_shift, y_shift, weight_shift, bias_shift; /* bytes past a multiple of 64 */
};

/* The same in a place. */
struct placed {
    struct ctw_op_norm op;
    struct dev x, weight, bias, y;
};

/* On a GPU, arrays lie at multiples of their elements. */
static size_t some_shift(bool aligned, enum ctw_dtype dtype)
{
    return aligned ? 0 : (size_t)rng_below(5) * ctw_dtype_bytes(dtype);
}

/* A plain RMSNorm, or a norm of any kind and with any of the operation's options. */
static void norm_open(struct norm *p, int64_t n_tok, int64_t dim, enum ctw_dtype dtype, bool plain)
{
    bool aligned = rng_below(2) == 0;
    struct ctw_op_norm op = {.dtype = dtype,
                             .n_tok = n_tok,
                             .dim = dim,
                             .n_groups = 1,
                             .x_dtype = rng_below(2) == 0 ? dtype : CTW_F32,
                             .weight_offset = (float)rng_below(2),
                             .eps = 1e-5f,
                             .factor = 1};
    if (!plain) {
        op.kind = (enum ctw_norm_kind)rng_below(4);
        if (op.kind == CTW_NORM_CUTOFF)
            op.eps = (float)rng_below(4) / 2 - 0.5f; /* deviations */
        op.n_groups = dim < 4000 ? 1 + rng_below(3) / 2 * rng_below(5) : 1;
        op.own_weights = rng_below(2) == 0;
        op.factor = rng_below(2) == 0 ? 1 : -0.22f;
        op.add = rng_below(3) == 0;
    }
    op.ldx = op.n_groups * dim + (plain ? 0 : aligned ? 8 * rng_below(2) : rng_below(3));
    op.ldy = op.n_groups * dim + (plain ? 0 : aligned ? 8 * rng_below(2) : rng_below(3));
    int64_t n_weights = op.own_weights ? op.n_groups * dim : dim;
    op.weight_dtype = dtypes[rng_below(3)];
    op.bias_dtype = dtypes[rng_below(3)];
    p->x = buf_random(op.x_dtype, n_tok * op.ldx, 3, 0);
    p->y = buf_random(dtype, n_tok * op.ldy, 2, 0);
    p->weight = buf_random(op.weight_dtype, n_weights, 1, 0);
    p->bias = buf_random(op.bias_dtype, n_weights, 1, 0);
    p->x_shift = some_shift(aligned, op.x_dtype);
    p->y_shift = some_shift(aligned, dtype);
    p->weight_shift = CTW_ON_GPU ? some_shift(aligned, op.weight_dtype) : (size_t)rng_below(9);
    p->bias_shift = CTW_ON_GPU ? some_shift(aligned, op.bias_dtype) : (size_t)rng_below(9);
    op.x = p->x.p;
    op.weight = plain || rng_below(3) > 0 ? p->weight.p : NULL;
    op.bias = !plain && rng_below(2) == 0 ? p->bias.p : NULL;
    float mean = plain ? 0 : rng_below(2) == 0 ? 0 : rng_below(2) == 0 ? 7 : 1000;
    for (int64_t i = 0; i < n_tok * op.ldx; i++)
        ctw_store_float(p->x.p, op.x_dtype, i, ctw_load_float(p->x.p, op.x_dtype, i) + mean);
    p->op = op;
}

static void norm_close(struct norm *p)
{
    buf_close(&p->x);
    buf_close(&p->y);
    buf_close(&p->weight);
    buf_close(&p->bias);
}

static void place(struct placed *d, const struct norm *p, struct ctw_backend *be)
{
    d->op = p->op;
    d->x = dev_open(be, p->x.p, p->x.bytes, p->x_shift);
    d->weight = dev_open(be, p->weight.p, p->weight.bytes, p->weight_shift);
    d->bias = dev_open(be, p->bias.p, p->bias.bytes, p->bias_shift);
    d->y = dev_open(be, p->y.p, p->y.bytes, p->y_shift);
    d->op.x = d->x.p;
    d->op.weight = p->op.weight != NULL ? d->weight.p : NULL;
    d->op.bias = p->op.bias != NULL ? d->bias.p : NULL;
    d->op.y = d->y.p;
}

static void unplace(struct placed *d)
{
    dev_close(&d->x);
    dev_close(&d->weight);
    dev_close(&d->bias);
    dev_close(&d->y);
}

static struct buf run(const struct placed *d, struct ctw_backend *be)
{
    struct buf y = buf_open(d->y.bytes, 0);
    OK(ctw_norm(be, &d->op, &last_err));
    dev_read(&d->y, y.p);
    return y;
}

/* What a group's values are normalised by, and the mean of their sizes. */
struct moments {
    double mean, scale, size;
};

static struct moments moments_of(const struct ctw_op_norm *op, int64_t from)
{
    struct moments m = {0, 1, 0};
    double squares = 0;
    for (int64_t i = 0; i < op->dim; i++) {
        double x = ctw_load_float(op->x, op->x_dtype, from + i);
        m.mean += x / (double)op->dim;
        m.size += fabs(x) / (double)op->dim;
    }
    const bool cutoff = op->kind == CTW_NORM_CUTOFF;
    if (op->kind != CTW_NORM_LAYER && !cutoff)
        m.mean = 0;
    for (int64_t i = 0; i < op->dim; i++)
        squares += pow(ctw_load_float(op->x, op->x_dtype, from + i) - m.mean, 2);
    if (cutoff)
        m.mean += op->eps * sqrt(squares / (double)op->dim);
    else if (op->kind != CTW_NORM_NONE)
        m.scale = 1 / sqrt(squares / (double)op->dim + op->eps);
    return m;
}

/*
 * The error of element i of a group before rounding. On a CPU, half of dim / lanes + a few
 * roundings of the sum of squares, under the root. A LayerNorm's mean adds as much of the
 * deviation, and what the two floats that hold the mean lose. The other options round once each. On
 * a GPU, sums are a chain of up to 24 a thread, then trees.
 */
static double error_of(const struct ctw_op_norm *op, const struct moments *m, double x, double w,
                       double b, double old)
{
    const double u = 0x1p-24, terms = ((double)op->dim / 8 + 12) * u;
    double v = (x - m->mean) * m->scale * w, factor = fabs((double)op->factor);
    if (CTW_ON_GPU) {
        bool centred = op->kind == CTW_NORM_LAYER || op->kind == CTW_NORM_CUTOFF;
        double size = fabs(x) + (centred ? m->size + fabs(m->mean) : 0);
        return 40 * u * (factor * (size * m->scale * fabs(w) + fabs(b)) + fabs(old));
    }
    double e = terms * fabs(v);
    if (op->kind == CTW_NORM_LAYER)
        e += terms * (1 + terms * m->size * m->scale) * fabs(w);
    if (op->kind == CTW_NORM_CUTOFF) /* the mean and its deviations are subtracted */
        e += terms * (m->size + fabs(m->mean) + fabs(x)) * fabs(w);
    if (op->bias == NULL && op->factor == 1 && !op->add)
        return e;
    return (e + 2 * u * (fabs(v) + fabs(b))) * factor + u * fabs(old);
}

static void compare_group(const struct norm *p, const struct buf *got, int64_t t, int64_t g,
                          const char *what)
{
    const struct ctw_op_norm *op = &p->op;
    struct moments m = moments_of(op, t * op->ldx + g * op->dim);
    for (int64_t i = 0; i < op->dim; i++) {
        int64_t at = g * op->dim + i, own = op->own_weights ? at : i, to = t * op->ldy + at;
        double x = ctw_load_float(op->x, op->x_dtype, t * op->ldx + at), w = 1, b = 0, old = 0;
        if (op->weight != NULL)
            w = (double)ctw_load_float(op->weight, op->weight_dtype, own) + op->weight_offset;
        if (op->bias != NULL)
            b = ctw_load_float(op->bias, op->bias_dtype, own);
        if (op->add)
            old = ctw_load_float(p->y.p, op->dtype, to);
        double v = (x - m.mean) * m.scale;
        if (op->kind == CTW_NORM_CUTOFF && v < 0)
            v = 0;
        double want = (v * w + b) * op->factor + old;
        double e = error_of(op, &m, x, w, b, old);
        near(ctw_load_float(got->p, op->dtype, to), want, e + half_step(op->dtype, fabs(want) + e),
             what, to);
    }
}

static void compare(const struct norm *p, const struct buf *got, const char *name)
{
    const struct ctw_op_norm *op = &p->op;
    char what[160];
    snprintf(what, sizeof(what), "%s %s kind %d dim %d groups %d own %d%s%s%s factor %g", name,
             ctw_dtype_name(op->dtype), (int)op->kind, (int)op->dim, (int)op->n_groups,
             op->own_weights, op->weight != NULL ? " weight" : "", op->bias != NULL ? " bias" : "",
             op->add ? " add" : "", (double)op->factor);
    for (int64_t t = 0; t < op->n_tok; t++) {
        int64_t used = op->n_groups * op->dim; /* between rows: untouched */
        for (int64_t g = 0; g < op->n_groups; g++)
            compare_group(p, got, t, g, what);
        assert_memory_equal(element(got->p, op->dtype, t * op->ldy + used),
                            element(p->y.p, op->dtype, t * op->ldy + used),
                            (size_t)(op->ldy - used) * ctw_dtype_bytes(op->dtype));
    }
}

/* Every few rows alone, by their number, and in place. */
static void check_alone(const struct norm *p, const struct placed *d, struct ctw_backend *be,
                        const struct buf *all)
{
    for (int64_t t = 0; t < p->op.n_tok; t += 4) {
        const enum ctw_dtype dtype = p->op.dtype;
        const size_t used = (size_t)(p->op.n_groups * p->op.dim) * ctw_dtype_bytes(dtype);
        const char *want = element(all->p, dtype, t * p->op.ldy);
        struct dev number = dev_open(be, &t, sizeof(t), 0);
        struct placed one = *d;
        one.y = dev_open(be, element(p->y.p, dtype, t * p->op.ldy),
                         all->bytes / (size_t)p->op.n_tok, some_shift(t % 8 != 0, dtype));
        one.op.rows = (const void *)number.p;
        one.op.y = one.y.p;
        one.op.n_tok = 1;
        struct buf row = run(&one, be);
        assert_memory_equal(row.p, want, row.bytes);
        dev_close(&one.y);
        dev_close(&number);
        buf_close(&row);
        if (p->op.x_dtype != dtype || p->op.ldx != p->op.ldy || p->op.add)
            continue;
        one.y = dev_open(be, element(p->op.x, dtype, t * p->op.ldx), used, 0);
        one.op.x = one.op.y = one.y.p;
        one.op.rows = NULL;
        row = run(&one, be);
        assert_memory_equal(row.p, want, used);
        dev_close(&one.y);
        buf_close(&row);
    }
}

static void places_agree_and_rows_are_alone(void **state)
{
    (void)state;
    enum { N = 19, ROUNDS = 5 };
    struct ctw_backend *be[MAX_PLACES];
    const int n = open_places(be);
    for (size_t s = 0; s < 3 * ROUNDS * CTW_COUNT(dims); s += THIN) {
        struct norm p;
        norm_open(&p, N, dims[s / 3 / ROUNDS], dtypes[s % 3], s / 3 % ROUNDS == 0);
        for (int i = 0; i < n; i++) {
            struct placed d;
            place(&d, &p, be[i]);
            struct buf got = run(&d, be[i]);
            compare(&p, &got, place_name(i));
            check_alone(&p, &d, be[i], &got);
            buf_close(&got);
            unplace(&d);
        }
        norm_close(&p);
    }
    close_places(be, n);
}

/* A LayerNorm of equal values is near 0, however large they are. A GPU's mean is a single float:
 * only values whose sums are exact. */
static void equal_values_have_no_deviation(void **state)
{
    (void)state;
    enum { DIM = 1000 };
    static const float values[] = {0, 1, -3, 1000.1f, 7e5f};
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 1)) != NULL; i++) {
        for (size_t j = 0; j < (CTW_ON_GPU ? 3 : CTW_COUNT(values)); j++) {
            float x[DIM];
            for (int e = 0; e < DIM; e++)
                x[e] = values[j];
            struct dev d = dev_open(be, x, sizeof(x), 0);
            struct ctw_op_norm op = {
                .kind = CTW_NORM_LAYER, .n_tok = 1, .dim = DIM, .x = d.p, .eps = 1e-5f, .y = d.p};
            OK(ctw_norm(be, &op, &last_err));
            dev_read(&d, x);
            dev_close(&d);
            double terms = (DIM / 8 + 12) * 0x1p-24, size = fabs((double)values[j]) / sqrt(1e-5);
            for (int e = 0; e < DIM; e++)
                near(x[e], 0, terms * (1 + terms * size), place_name(i), e);
        }
        ctw_backend_close(be);
    }
}

/* Rows that are not finite get the stamp, unless they already have one; other rows keep their
 * value. A row with NaN becomes NaN. */
static void bad_rows_are_marked(void **state)
{
    (void)state;
    enum { N = 40, DIM = 100 };
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        for (int kind = 0; kind < 4; kind++) {
            struct norm p;
            struct placed d;
            int16_t bad[N];
            norm_open(&p, N, DIM, CTW_F32, true);
            p.op.kind = (enum ctw_norm_kind)kind;
            for (int t = 0; t < N; t++)
                bad[t] = -1;
            bad[9] = 3;
            ctw_store_float(p.x.p, CTW_F32, 4 * DIM + 99, NAN);
            ctw_store_float(p.x.p, CTW_F32, 9 * DIM, INFINITY);
            ctw_store_float(p.x.p, CTW_F32, 17 * DIM + 50, -INFINITY);
            ctw_store_float(p.x.p, CTW_F32, 30 * DIM + 50, 1e20f); /* whose square is not finite */
            struct dev marks = dev_open(be, bad, sizeof(bad), 0);
            place(&d, &p, be);
            d.op.bad = (void *)marks.p;
            d.op.stamp = 7;
            struct buf y = run(&d, be);
            dev_read(&marks, bad);
            for (int t = 0; t < N; t++)
                assert_int_equal(bad[t], t == 9 ? 3 : t == 4 || t == 17 || t == 30 ? 7 : -1);
            for (int e = 0; e < DIM && kind != CTW_NORM_NONE; e++)
                assert_true(isnan(ctw_load_float(y.p, CTW_F32, 4 * DIM + e)));
            buf_close(&y);
            dev_close(&marks);
            const int64_t rows[] = {3, 17, 30}; /* marks go by x's rows */
            bad[17] = -1;
            struct dev numbers = dev_open(be, rows, sizeof(rows), 0);
            marks = dev_open(be, bad, sizeof(bad), 0);
            d.op.bad = (void *)marks.p;
            d.op.rows = (const void *)numbers.p;
            d.op.n_tok = 3;
            d.op.stamp = 8;
            OK(ctw_norm(be, &d.op, &last_err));
            dev_read(&marks, bad);
            assert_int_equal(bad[3], -1);
            assert_int_equal(bad[17], 8);
            assert_int_equal(bad[30], 7);
            dev_close(&marks);
            dev_close(&numbers);
            unplace(&d);
            norm_close(&p);
        }
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_agree_and_rows_are_alone),
        cmocka_unit_test(equal_values_have_no_deviation),
        cmocka_unit_test(bad_rows_are_marked),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
