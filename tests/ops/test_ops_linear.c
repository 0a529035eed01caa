/* ctw_linear of every variant against the reference, and its invariance. */
#include "ops.h"

struct shape {
    int64_t m, n, k;
};

/* Rows around the tiles' 6 and 12 and blocks' 96, columns around 16, 32 and 128, k around vectors,
 * decoded spans of 256 and sweeps of 192 and 320 words. */
static const struct shape shapes[] = {
    {1, 1, 1},     {1, 16, 8},    {2, 17, 16},   {3, 15, 31},    {5, 31, 32},   {6, 32, 33},
    {7, 33, 64},   {11, 48, 96},  {12, 64, 191}, {13, 65, 192},  {63, 127, 64}, {64, 128, 257},
    {65, 129, 64}, {95, 130, 32}, {96, 16, 256}, {97, 255, 320}, {129, 80, 96}, {13, 300, 321},
    {4, 640, 576}, {1, 70, 4097}, {12, 33, 640}, {7, 257, 1536}, {300, 40, 48}, {600, 20, 16},
};

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

struct problem {
    struct ctw_op_linear op;
    struct test_weight w[3];
    struct ctw_shard shards[3];
    int from[3];     /* the weight that a shard's rows belong to */
    struct buf x, y; /* y's previous content */
    int64_t n_columns;
};

static enum ctw_dtype y_dtype(const struct problem *p)
{
    return p->op.epilogue == CTW_EPI_ADD ? p->op.residual_dtype : p->op.dtype;
}

/* The shape's n is the total of all shards, or of each shard if two are gated. */
static void problem_open(struct problem *p, const struct shape *s, enum ctw_dtype dtype,
                         enum ctw_epilogue epilogue)
{
    memset(p, 0, sizeof(*p));
    p->op = (struct ctw_op_linear){
        .shards = p->shards, .n_shards = 1, .dtype = dtype, .epilogue = epilogue, .n_tok = s->m};
    p->op.act = (enum ctw_activation)rng_below(CTW_ACT_XIELU);
    p->op.residual_dtype = rng_below(2) == 0 ? dtype : CTW_F32;
    int64_t left = p->n_columns = s->n;
    if (epilogue == CTW_EPI_GATE) {
        p->op.n_shards = 2;
    } else if (s->n >= 3 && rng_below(2) == 0) {
        p->op.n_shards = 3;
    }
    for (int i = 0; i < p->op.n_shards; i++) {
        enum weight_kind kind;
        do
            kind = (enum weight_kind)rng_below(N_WEIGHT_KINDS);
        while (!weight_possible(kind, s->k));
        int64_t n = s->n;
        if (epilogue != CTW_EPI_GATE) {
            n = i + 1 == p->op.n_shards ? left : 1 + rng_below(left - (p->op.n_shards - 1 - i));
            left -= n;
        }
        weight_open_rows(&p->w[i], kind, n, s->k, (int)rng_below(2));
        p->shards[i] = p->w[i].shard;
        p->from[i] = i;
    }
    if (p->op.n_shards > 1 && rng_below(3) == 0) {
        weights_fuse(p->w, p->shards, p->op.n_shards, s->k);
        memset(p->from, 0, sizeof(p->from));
    }
    p->op.ldx = s->k + rng_below(5);
    p->op.ldy = s->n + rng_below(5);
    p->x = buf_random(dtype, s->m * p->op.ldx, 1, (size_t)(2 * rng_below(9)));
    p->y = buf_random(y_dtype(p), s->m * p->op.ldy, 1, (size_t)(4 * rng_below(5)));
    p->op.x = p->x.p;
}

static void problem_close(struct problem *p)
{
    for (int i = 0; i < p->op.n_shards; i++)
        weight_close(&p->w[i]);
    buf_close(&p->x);
    buf_close(&p->y);
}

/* Runs it on a copy of y. */
static struct buf problem_run(const struct problem *p, struct ctw_backend *be)
{
    struct buf y = buf_copy(&p->y, 4 * (size_t)rng_below(5));
    struct ctw_op_linear op = p->op;
    op.y = y.p;
    OK(ctw_linear(be, &op, &last_err));
    buf_check(&y);
    return y;
}

/* sum of |x w| + |bias| for column o of token t, and the sum itself */
static double sums(const struct problem *p, int64_t t, int64_t o, double *sum)
{
    int i = 0;
    while (o >= p->shards[i].n)
        o -= p->shards[i++].n;
    const struct ctw_shard *s = &p->shards[i];
    int64_t k = s->weight->k;
    float *row = ctw_calloc((size_t)k, sizeof(*row));
    weight_row(&p->w[p->from[i]], s->row0 + o, p->op.dtype, row);
    *sum = s->bias == NULL ? 0 : ctw_load_float(s->bias, s->bias_dtype, o);
    double all = fabs(*sum);
    for (int64_t c = 0; c < k; c++) {
        double v = (double)ctw_load_float(p->op.x, p->op.dtype, t * p->op.ldx + c) * row[c];
        *sum += v;
        all += fabs(v);
    }
    ctw_free(row);
    return all;
}

/*
 * A sum in fp32 of k products in sweeps of at most s words (two products each in pair mode) has at
 * most 2 * min(k, s) + k / s + 3 roundings of 2^-24 of sum |x w|. Activations have a slope of at
 * most 1.13 (relu2: twice its argument) and add a few roundings of their own. One rounding to dtype
 * in each of the two results compared.
 */
static double bound(const struct problem *p, int64_t t, int64_t o, double want)
{
    double k = (double)p->w[0].w.k, sum, up;
    double u = (2 * fmin(k, 320) + k / 192 + 3) * 0x1p-24;
    double e = u * sums(p, t, o, &sum), tiny = 0x1p-120;
    if (p->op.epilogue == CTW_EPI_ADD)
        e += 0x1p-24 *
             (fabs(sum) + fabs((double)ctw_load_float(p->y.p, y_dtype(p), t * p->op.ldy + o)));
    if (p->op.epilogue == CTW_EPI_GATE) {
        double e_up = u * sums(p, t, o + p->n_columns, &up);
        bool square = p->op.act == CTW_ACT_RELU2;
        double slope = square ? 2 * fabs(sum) + e : 1.13, act = square ? sum * sum : fabs(sum);
        e = slope * e * (fabs(up) + e_up) + act * e_up + 16 * 0x1p-24 * fabs(act * up);
    }
    return e + 2 * half_step(y_dtype(p), fabs(want) + e) + tiny;
}

static void compare(const struct problem *p, const struct buf *got, const struct buf *want,
                    const char *variant)
{
    char what[200];
    snprintf(what, sizeof(what), "%s %s epilogue %d act %d m %" PRId64 " n %" PRId64 " k %" PRId64,
             variant, ctw_dtype_name(p->op.dtype), (int)p->op.epilogue, (int)p->op.act, p->op.n_tok,
             p->n_columns, p->w[0].w.k);
    int64_t some = 1 + p->op.n_tok * p->n_columns * p->w[0].w.k / 1000000;
    for (int64_t t = 0; t < p->op.n_tok; t++) {
        for (int64_t o = 0; o < p->op.ldy; o++) {
            int64_t at = t * p->op.ldy + o;
            double g = ctw_load_float(got->p, y_dtype(p), at);
            double w = ctw_load_float(want->p, y_dtype(p), at);
            if (o >= p->n_columns) { /* between rows: untouched */
                assert_memory_equal(element(got->p, y_dtype(p), at),
                                    element(p->y.p, y_dtype(p), at), ctw_dtype_bytes(y_dtype(p)));
                continue;
            }
            /* The exact bound is slow to compute: always for results that differ, else for some. */
            if (fabs(g - w) > half_step(y_dtype(p), w) || rng_below(some) == 0)
                near(g, w, bound(p, t, o, w), what, at);
        }
    }
}

static void variants_agree_with_the_definition(void **state)
{
    (void)state;
    struct ctw_backend *c = backend("c", 2);
    for (size_t s = 0; s < 3 * CTW_COUNT(shapes); s += THIN) {
        struct problem p;
        problem_open(&p, &shapes[s / 3], dtypes[s % 3], (enum ctw_epilogue)((s / 3 + s) % 3));
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

/* One row at a time, in pieces, and with other numbers of threads: the same bits. */
static void a_row_does_not_depend_on_the_other_rows(void **state)
{
    (void)state;
    static const struct shape some[] = {
        {131, 200, 96}, {13, 33, 700}, {98, 130, 576}, {600, 48, 33}};
    static const int64_t pieces[] = {1, 2, 5, 6, 7, 12, 13, 95, 96, 97};
    const char *v;
    for (int i = 0; (v = fast_variant(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 1);
        for (size_t s = 0; s < 3 * CTW_COUNT(some); s++) {
            struct problem p;
            problem_open(&p, &some[s / 3], dtypes[s % 3], (enum ctw_epilogue)rng_below(3));
            struct buf want = problem_run(&p, be);
            for (int threads = 2; threads <= 7; threads += threads == 3 ? 4 : 1) {
                struct ctw_backend *more = backend(v, threads);
                struct buf got = problem_run(&p, more);
                assert_memory_equal(got.p, want.p, want.bytes);
                buf_close(&got);
                ctw_backend_close(more);
            }
            for (size_t q = 0; q < CTW_COUNT(pieces); q++) {
                struct buf got = buf_copy(&p.y, 0);
                for (int64_t t = 0; t < p.op.n_tok; t += pieces[q]) {
                    struct ctw_op_linear op = p.op;
                    op.x = element(p.op.x, op.dtype, t * op.ldx);
                    op.y = element(got.p, y_dtype(&p), t * op.ldy);
                    op.n_tok = pieces[q] < p.op.n_tok - t ? pieces[q] : p.op.n_tok - t;
                    OK(ctw_linear(be, &op, &last_err));
                }
                assert_memory_equal(got.p, want.p, want.bytes);
                buf_close(&got);
            }
            buf_close(&want);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* NaN and infinity reach all columns of their own row, and no other row. */
static void what_is_not_finite_stays_in_its_row(void **state)
{
    (void)state;
    static const struct shape shape = {14, 40, 64};
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        for (size_t d = 0; d < CTW_COUNT(dtypes); d++) {
            struct problem p;
            problem_open(&p, &shape, dtypes[d], CTW_EPI_STORE);
            struct buf want = problem_run(&p, be);
            ctw_store_float(p.x.p, p.op.dtype, 5 * p.op.ldx + 9, NAN);
            ctw_store_float(p.x.p, p.op.dtype, 6 * p.op.ldx + 3, INFINITY);
            struct buf got = problem_run(&p, be);
            for (int64_t t = 0; t < shape.m; t++) {
                for (int64_t o = 0; o < shape.n; o++) {
                    float g = ctw_load_float(got.p, p.op.dtype, t * p.op.ldy + o);
                    float w = ctw_load_float(want.p, p.op.dtype, t * p.op.ldy + o);
                    if (t == 5)
                        assert_true(isnan(g));
                    else if (t == 6)
                        assert_false(isfinite(g));
                    else
                        assert_true(g == w);
                }
            }
            buf_close(&want);
            buf_close(&got);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* act(x) of single numbers, through a layer of one weight: the functions themselves, over their
 * whole range and with subnormal results. */
static void activations_are_accurate(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct test_weight one[2];
    struct ctw_shard shards[2];
    for (int i = 0; i < 2; i++) {
        weight_open(&one[i], W_F32, 1, 1, 0);
        ctw_store_float(one[i].part[CTW_PART_VALUES].p, CTW_F32, 0, i == 0 ? 1 : 0);
        shards[i] = one[i].shard;
    }
    static const float unit = 1; /* up = 0 * x + 1 */
    shards[1].bias = &unit;
    shards[1].bias_dtype = CTW_F32;
    struct buf x = buf_open(N * sizeof(float), 0), y = buf_open(N * sizeof(float), 0);
    for (int i = 0; i < N; i++)
        ((float *)x.p)[i] =
            i < 200 ? (float)(i - 100) : rng_normal() * ldexpf(1, -(int)(i % 30) + 5);
    struct ctw_op_linear op = {.shards = shards,
                               .n_shards = 2,
                               .dtype = CTW_F32,
                               .epilogue = CTW_EPI_GATE,
                               .n_tok = N,
                               .x = x.p,
                               .ldx = 1,
                               .y = y.p,
                               .ldy = 1};
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        for (int a = 0; a < CTW_ACT_XIELU; a++) {
            op.act = (enum ctw_activation)a;
            OK(ctw_linear(be, &op, &last_err));
            for (int t = 0; t < N; t++) {
                double g = ((float *)x.p)[t], want;
                double inner = 0.7978845608028654 * (g + 0.044715 * g * g * g);
                if (a == CTW_ACT_SILU)
                    want = g / (1 + exp(-g));
                else if (a == CTW_ACT_GELU)
                    want = 0.5 * g * erfc(-g * M_SQRT1_2);
                else if (a == CTW_ACT_GELU_TANH)
                    want = 0.5 * g * (1 + tanh(inner));
                else
                    want = (g > 0 ? g : 0) * (a == CTW_ACT_RELU2 ? g : 1);
                /* gelu_tanh cancels below 0, as tanh nears -1: its error is one of g there, times
                 * the argument's size. */
                double e = a == CTW_ACT_SILU   ? 4 * 0x1p-24 * fabs(want)
                           : a == CTW_ACT_GELU ? (8 + fmin(4, 2 * g * g)) * 0x1p-24 * fabs(want)
                           : a == CTW_ACT_RELU || a == CTW_ACT_RELU2
                               ? 0x1p-24 * fabs(want)
                               : 8 * 0x1p-24 * fmax(fabs(want), fabs(g) * (g < -0.5));
                near(((float *)y.p)[t], want, e + 0x1p-120, ctw_dtype_name(CTW_F32), t);
            }
        }
        ctw_backend_close(be);
    }
    buf_close(&x);
    buf_close(&y);
    weight_close(&one[0]);
    weight_close(&one[1]);
}

#include "linear_qkv.h"

static void heads_are_the_same_in_one_step(void **state)
{
    (void)state;
    const char *v = "c";
    for (int i = 0; v != NULL; v = fast_variant(i++)) {
        struct ctw_backend *be = backend(v, 2);
        split_check(be, v);
        ctw_backend_close(be);
    }
}

static void refused(struct ctw_backend *be, struct ctw_op_linear op, struct ctw_op_qkv qkv,
                    const char *why)
{
    struct ctw_err err;
    assert_int_equal(ctw_linear_qkv(be, &op, &qkv, &err), CTW_EINTERNAL);
    assert_non_null(strstr(err.msg, why));
}

static void steps_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct ctw_backend *be = backend("c", 1);
    struct split_problem p, q;
    split_open(&p, be, &split_shapes[0], CTW_BF16, 0);
    q = p;
    q.op.epilogue = CTW_EPI_ADD;
    refused(be, q.op, p.qkv, "CTW_EPI_STORE");
    q = p;
    q.qkv.n_tok--;
    refused(be, p.op, q.qkv, "n_tok");
    q.qkv = p.qkv;
    q.qkv.dtype = CTW_F16;
    refused(be, p.op, q.qkv, "op->dtype == qkv->dtype");
    q.qkv = p.qkv;
    q.qkv.qkv = p.op.x;
    refused(be, p.op, q.qkv, "op->y");
    q.qkv = p.qkv;
    q.qkv.n_head += q.qkv.n_kv;
    refused(be, p.op, q.qkv, "columns");
    q.op = p.op;
    q.op.ldy += 8;
    refused(be, q.op, p.qkv, "columns");
    split_close(&p, be);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variants_agree_with_the_definition),
        cmocka_unit_test(a_row_does_not_depend_on_the_other_rows),
        cmocka_unit_test(what_is_not_finite_stays_in_its_row),
        cmocka_unit_test(activations_are_accurate),
        cmocka_unit_test(heads_are_the_same_in_one_step),
        cmocka_unit_test(steps_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
