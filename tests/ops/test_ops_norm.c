/* ctw_norm of every variant against the reference, and its invariance. */
#include "ops.h"

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

/* Group lengths around vectors and around the spans of 1024 in which rows are processed. */
static const int64_t dims[] = {1, 7, 8, 9, 16, 31, 64, 255, 256, 257, 576, 1023, 1025, 2049};

struct norm {
    struct ctw_op_norm op;
    struct buf x, weight, bias, y; /* y: the content before */
};

static struct buf some_weights(enum ctw_dtype *dtype, int64_t n)
{
    *dtype = dtypes[rng_below(3)];
    return buf_random(*dtype, n, 1, (size_t)rng_below(9));
}

/* A plain RMSNorm, or a norm of any kind and with any of the operation's options. */
static void norm_open(struct norm *p, int64_t n_tok, int64_t dim, enum ctw_dtype dtype, bool plain)
{
    enum ctw_dtype x_dtype = rng_below(2) == 0 ? dtype : CTW_F32;
    struct ctw_op_norm op = {.dtype = dtype,
                             .n_tok = n_tok,
                             .dim = dim,
                             .n_groups = 1,
                             .x_dtype = x_dtype,
                             .weight_offset = (float)rng_below(2),
                             .eps = 1e-5f,
                             .factor = 1};
    if (!plain) {
        op.kind = (enum ctw_norm_kind)rng_below(3);
        op.n_groups = 1 + rng_below(3) / 2 * rng_below(5);
        op.own_weights = rng_below(2) == 0;
        op.factor = rng_below(2) == 0 ? 1 : 0.22f;
        op.add = rng_below(3) == 0;
    }
    op.ldx = op.n_groups * dim + (plain ? 0 : rng_below(3));
    op.ldy = op.n_groups * dim + (plain ? 0 : rng_below(3));
    p->x = buf_random(x_dtype, n_tok * op.ldx, 3, 4 * (size_t)rng_below(5));
    p->y = buf_random(dtype, n_tok * op.ldy, 2, 4 * (size_t)rng_below(5));
    int64_t n_weights = op.own_weights ? op.n_groups * dim : dim;
    p->weight = some_weights(&op.weight_dtype, n_weights);
    p->bias = some_weights(&op.bias_dtype, n_weights);
    op.x = p->x.p;
    op.weight = plain || rng_below(3) > 0 ? p->weight.p : NULL;
    op.bias = !plain && rng_below(2) == 0 ? p->bias.p : NULL;
    float mean = plain ? 0 : rng_below(2) == 0 ? 0 : rng_below(2) == 0 ? 7 : 1000;
    for (int64_t i = 0; i < n_tok * op.ldx; i++)
        ctw_store_float(p->x.p, x_dtype, i, ctw_load_float(p->x.p, x_dtype, i) + mean);
    p->op = op;
}

static void norm_close(struct norm *p)
{
    buf_close(&p->x);
    buf_close(&p->y);
    buf_close(&p->weight);
    buf_close(&p->bias);
}

static struct buf norm_run(const struct norm *p, struct ctw_backend *be)
{
    struct buf y = buf_copy(&p->y, 4 * (size_t)rng_below(5));
    struct ctw_op_norm op = p->op;
    op.y = y.p;
    OK(ctw_norm(be, &op, &last_err));
    buf_check(&y);
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
    if (op->kind != CTW_NORM_LAYER)
        m.mean = 0;
    for (int64_t i = 0; i < op->dim; i++)
        squares += pow(ctw_load_float(op->x, op->x_dtype, from + i) - m.mean, 2);
    if (op->kind != CTW_NORM_NONE)
        m.scale = 1 / sqrt(squares / (double)op->dim + op->eps);
    return m;
}

/*
 * The error of element i of group g of row t: half of dim / lanes + a few roundings of the sum of
 * squares, under the root. A LayerNorm's mean adds as much of the deviation, and what the two
 * floats that hold the mean lose. The other options round once each.
 */
static double bound(const struct ctw_op_norm *op, const struct moments *m, int64_t t, int64_t g,
                    int64_t i, const struct buf *before)
{
    const double u = 0x1p-24, terms = ((double)op->dim / 8 + 12) * u;
    int64_t at = g * op->dim + i, own = op->own_weights ? at : i;
    double v = (ctw_load_float(op->x, op->x_dtype, t * op->ldx + at) - m->mean) * m->scale;
    double e = terms * fabs(v), w = 1, b = 0;
    if (op->kind == CTW_NORM_LAYER)
        e += terms * (1 + terms * m->size * m->scale);
    if (op->weight != NULL)
        w = ctw_load_float(op->weight, op->weight_dtype, own) + op->weight_offset;
    if (op->bias != NULL)
        b = ctw_load_float(op->bias, op->bias_dtype, own);
    e *= fabs(w);
    v *= w;
    if (op->bias == NULL && op->factor == 1 && !op->add)
        return e;
    double old = op->add ? ctw_load_float(before->p, op->dtype, t * op->ldy + at) : 0;
    return (e + 2 * u * (fabs(v) + fabs(b))) * op->factor + u * fabs(old);
}

static void compare(const struct norm *p, const struct buf *got, const struct buf *want,
                    const char *variant)
{
    const struct ctw_op_norm *op = &p->op;
    char what[160];
    snprintf(what, sizeof(what), "%s %s kind %d dim %d groups %d own %d%s%s%s factor %g", variant,
             ctw_dtype_name(op->dtype), (int)op->kind, (int)op->dim, (int)op->n_groups,
             op->own_weights, op->weight != NULL ? " weight" : "", op->bias != NULL ? " bias" : "",
             op->add ? " add" : "", (double)op->factor);
    for (int64_t t = 0; t < op->n_tok; t++) {
        for (int64_t g = 0; g < op->n_groups; g++) {
            struct moments m = moments_of(op, t * op->ldx + g * op->dim);
            for (int64_t i = 0; i < op->dim; i++) {
                int64_t at = t * op->ldy + g * op->dim + i;
                double w = ctw_load_float(want->p, op->dtype, at);
                double e = bound(op, &m, t, g, i, &p->y);
                near(ctw_load_float(got->p, op->dtype, at), w,
                     e + 2 * half_step(op->dtype, fabs(w) + e), what, at);
            }
        }
        int64_t used = op->n_groups * op->dim; /* between rows: untouched */
        assert_memory_equal(element(got->p, op->dtype, t * op->ldy + used),
                            element(p->y.p, op->dtype, t * op->ldy + used),
                            (size_t)(op->ldy - used) * ctw_dtype_bytes(op->dtype));
    }
}

/* Every few rows alone, by their number, and in place. */
static void check_alone(const struct norm *p, struct ctw_backend *be, const struct buf *all)
{
    for (int64_t t = 0; t < p->op.n_tok; t += 4) {
        struct buf row = buf_open(all->bytes / (size_t)p->op.n_tok, 4);
        struct ctw_op_norm op = p->op;
        memcpy(row.p, element(p->y.p, op.dtype, t * op.ldy), row.bytes);
        op.rows = &t;
        op.y = row.p;
        op.n_tok = 1;
        OK(ctw_norm(be, &op, &last_err));
        assert_memory_equal(row.p, element(all->p, op.dtype, t * op.ldy), row.bytes);
        if (op.x_dtype == op.dtype && op.ldx == op.ldy && !op.add) {
            size_t used = (size_t)(op.n_groups * op.dim) * ctw_dtype_bytes(op.dtype);
            memcpy(row.p, element(p->op.x, op.dtype, t * op.ldx), row.bytes);
            op.x = row.p;
            op.rows = NULL;
            OK(ctw_norm(be, &op, &last_err));
            assert_memory_equal(row.p, element(all->p, op.dtype, t * op.ldy), used);
        }
        buf_close(&row);
    }
}

static void variants_agree_and_rows_are_alone(void **state)
{
    (void)state;
    enum { N = 35, ROUNDS = 5 };
    struct ctw_backend *c = backend("c", 2);
    for (size_t s = 0; s < 3 * ROUNDS * CTW_COUNT(dims); s += THIN) {
        struct norm p;
        norm_open(&p, N, dims[s / 3 / ROUNDS], dtypes[s % 3], s / 3 % ROUNDS == 0);
        struct buf want = norm_run(&p, c);
        const char *v;
        for (int i = 0; (v = fast_variant(i)) != NULL; i++) {
            struct ctw_backend *be = backend(v, 3);
            struct buf got = norm_run(&p, be);
            compare(&p, &got, &want, v);
            check_alone(&p, be, &got);
            buf_close(&got);
            ctw_backend_close(be);
        }
        check_alone(&p, c, &want);
        buf_close(&want);
        norm_close(&p);
    }
    ctw_backend_close(c);
}

/* A LayerNorm of equal values is near 0, however large they are. */
static void equal_values_have_no_deviation(void **state)
{
    (void)state;
    enum { DIM = 1000 };
    static const float values[] = {0, 1, -3, 1000.1f, 7e5f};
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 1);
        for (size_t j = 0; j < CTW_COUNT(values); j++) {
            float x[DIM], y[DIM];
            for (int e = 0; e < DIM; e++)
                x[e] = values[j];
            struct ctw_op_norm op = {
                .kind = CTW_NORM_LAYER, .n_tok = 1, .dim = DIM, .x = x, .eps = 1e-5f, .y = y};
            OK(ctw_norm(be, &op, &last_err));
            double terms = (DIM / 8 + 12) * 0x1p-24, size = fabs((double)values[j]) / sqrt(1e-5);
            for (int e = 0; e < DIM; e++)
                near(y[e], 0, terms * (1 + terms * size), v, e);
        }
        ctw_backend_close(be);
    }
}

/* Rows that are not finite get the stamp, unless they already have one; other rows keep their
 * value. */
static void bad_rows_are_marked(void **state)
{
    (void)state;
    enum { N = 40 };
    for (int v = 0; ctw_cpu_variants[v / 3] != NULL; v++) { /* and kinds */
        if (!ctw_cpu_variants[v / 3]->runs_here())
            continue;
        struct ctw_backend *be = backend(ctw_cpu_variants[v / 3]->name, 2);
        struct norm p;
        int16_t bad[N];
        norm_open(&p, N, 100, CTW_F32, true);
        p.op.kind = (enum ctw_norm_kind)(v % 3);
        for (int i = 0; i < N; i++)
            bad[i] = -1;
        bad[9] = 3;
        ctw_store_float(p.x.p, CTW_F32, 4 * 100 + 99, NAN);
        ctw_store_float(p.x.p, CTW_F32, 9 * 100, INFINITY);
        ctw_store_float(p.x.p, CTW_F32, 17 * 100 + 50, -INFINITY);
        ctw_store_float(p.x.p, CTW_F32, 30 * 100 + 50, 1e20f); /* whose square is not finite */
        p.op.bad = bad;
        p.op.stamp = 7;
        struct buf y = norm_run(&p, be);
        for (int i = 0; i < N; i++)
            assert_int_equal(bad[i], i == 9 ? 3 : i == 4 || i == 17 || i == 30 ? 7 : -1);
        buf_close(&y);
        const int64_t rows[] = {3, 17, 30}; /* marks go by x's rows */
        bad[17] = -1;
        p.op.rows = rows;
        p.op.n_tok = 3;
        p.op.stamp = 8;
        y = norm_run(&p, be);
        assert_int_equal(bad[3], -1);
        assert_int_equal(bad[17], 8);
        assert_int_equal(bad[30], 7);
        buf_close(&y);
        norm_close(&p);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variants_agree_and_rows_are_alone),
        cmocka_unit_test(equal_values_have_no_deviation),
        cmocka_unit_test(bad_rows_are_marked),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
