/* ctw_head of every variant against the reference, and its invariance. */
#include "ops.h"

struct problem {
    struct ctw_op_head op;
    struct test_weight w;
    struct buf x, targets;
};

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

static void problem_open(struct problem *p, int64_t n_rows, int64_t n, int64_t n_vocab, int64_t k,
                         enum ctw_dtype dtype)
{
    memset(p, 0, sizeof(*p));
    enum weight_kind kind;
    do
        kind = (enum weight_kind)rng_below(N_WEIGHT_KINDS);
    while (!weight_possible(kind, k) || (kind == W_AWQ && n % 8 != 0)); /* whole words */
    weight_open(&p->w, kind, n, k, (int)rng_below(2));
    p->x = buf_random(dtype, n_rows * k, 3.0f / sqrtf((float)k), 2 * (size_t)rng_below(9));
    p->targets = buf_open((size_t)n_rows * sizeof(int32_t), 0);
    for (int64_t t = 0; t < n_rows; t++)
        ((int32_t *)p->targets.p)[t] = (int32_t)(t == 0 ? n_vocab - 1 : rng_below(n_vocab));
    p->op = (struct ctw_op_head){.weight = &p->w.shard,
                                 .dtype = dtype,
                                 .scale = 1,
                                 .n_vocab = n_vocab,
                                 .n_rows = n_rows,
                                 .x = p->x.p,
                                 .targets = p->targets.p};
}

static void problem_close(struct problem *p)
{
    weight_close(&p->w);
    buf_close(&p->x);
    buf_close(&p->targets);
}

static struct buf problem_run(const struct problem *p, struct ctw_backend *be)
{
    struct buf out = buf_open((size_t)p->op.n_rows * sizeof(struct ctw_head_result), 0);
    struct ctw_op_head op = p->op;
    op.out = out.p;
    OK(ctw_head(be, &op, &last_err));
    buf_check(&out);
    return out;
}

static void to_unit_length(float *row, int64_t k, enum ctw_dtype dtype)
{
    long double squares = 0;
    for (int64_t i = 0; i < k; i++)
        squares += (long double)row[i] * (long double)row[i];
    double length = fmax((double)sqrtl(squares), 1e-12);
    for (int64_t i = 0; i < k; i++)
        row[i] = ctw_round_float((float)((double)row[i] / length), dtype);
}

/* The logit of id for row t, and the error that fp32 sums may have in it. */
static double logit(const struct problem *p, int64_t t, int32_t id, double *error)
{
    int64_t k = p->w.w.k;
    float *row = ctw_calloc((size_t)k, sizeof(*row));
    weight_row(&p->w, id, p->op.dtype, row);
    if (p->op.unit_rows)
        to_unit_length(row, k, p->op.dtype);
    const struct ctw_shard *shard = p->op.weight;
    double sum = shard->bias != NULL ? ctw_load_float(shard->bias, shard->bias_dtype, id) : 0;
    double all = fabs(sum);
    for (int64_t i = 0; i < k; i++) {
        double v = (double)ctw_load_float(p->op.x, p->op.dtype, t * k + i) * row[i];
        sum += v;
        all += fabs(v);
    }
    ctw_free(row);
    sum *= p->op.scale;
    *error = ((2 * fmin((double)k, 320) + (double)k / 192 + 8) * all * fabs((double)p->op.scale) +
              4 * fabs((double)p->op.softcap)) *
             0x1p-24;
    return p->op.softcap > 0 ? p->op.softcap * tanh(sum / p->op.softcap) : sum;
}

static void compare(const struct problem *p, const struct ctw_head_result *got,
                    const struct ctw_head_result *want, const char *variant)
{
    char what[160];
    snprintf(what, sizeof(what), "%s %s rows %" PRId64 " vocab %" PRId64 " k %" PRId64, variant,
             ctw_dtype_name(p->op.dtype), p->op.n_rows, p->op.n_vocab, p->w.w.k);
    for (int64_t t = 0; t < p->op.n_rows; t++) {
        double error, other;
        logit(p, t, p->op.targets[t], &error);
        /* Twice a logit's error, and the reduction's own: 1e-6. */
        near((double)got[t].logprob, (double)want[t].logprob,
             2 * error + 1e-6 + 2 * half_step(CTW_F32, (double)want[t].logprob), what, t);
        assert_in_range(got[t].greedy, 0, p->op.n_vocab - 1);
        if (got[t].greedy != want[t].greedy) { /* only by rounding */
            double a = logit(p, t, got[t].greedy, &error), b = logit(p, t, want[t].greedy, &other);
            near(a, b, error + other, what, t);
        }
    }
}

static void variants_agree_with_the_definition(void **state)
{
    (void)state;
    static const int64_t cases[][4] = {
        /* rows, weight rows, vocabulary, k */
        {1, 1, 1, 1},          {2, 40, 33, 31},      {3, 128, 128, 64},
        {7, 1100, 1025, 32},   {13, 2500, 2500, 48}, {97, 300, 129, 96},
        {5, 66000, 65537, 16}, {12, 131, 130, 1153}, {130, 1024, 1023, 64}};
    struct ctw_backend *c = backend("c", 2);
    for (size_t s = 0; s < 3 * CTW_COUNT(cases); s++) {
        const int64_t *shape = cases[s / 3];
        struct problem p;
        problem_open(&p, shape[0], shape[1], shape[2], shape[3], dtypes[s % 3]);
        p.op.scale = s % 4 == 1 ? 0.3f : 1;
        p.op.softcap = s % 4 == 2 ? 15 : 0;
        p.op.unit_rows = s % 5 == 2;
        struct buf want = problem_run(&p, c);
        const char *v;
        for (int i = 0; (v = fast_variant(i)) != NULL; i++) {
            struct ctw_backend *be = backend(v, 1 + (int)rng_below(3));
            struct buf got = problem_run(&p, be);
            compare(&p, got.p, want.p, v);
            buf_close(&got);
            ctw_backend_close(be);
        }
        buf_close(&want);
        problem_close(&p);
    }
    ctw_backend_close(c);
}

static void a_row_does_not_depend_on_the_other_rows(void **state)
{
    (void)state;
    enum { N = 101 };
    const char *v;
    for (int i = 0; (v = fast_variant(i)) != NULL; i++) {
        for (size_t d = 0; d < 3; d++) {
            struct problem p;
            problem_open(&p, N, 3000, 2999, 72, dtypes[d]);
            p.op.unit_rows = i % 2 == 1;
            struct ctw_backend *be = backend(v, 1);
            struct buf want = problem_run(&p, be);
            for (int threads = 2; threads <= 7; threads += threads == 3 ? 4 : 1) {
                struct ctw_backend *more = backend(v, threads);
                struct buf got = problem_run(&p, more);
                assert_memory_equal(got.p, want.p, want.bytes);
                buf_close(&got);
                ctw_backend_close(more);
            }
            for (int64_t t = 0, n; t < N; t += n) {
                struct problem part = p;
                n = 1 + t / 2 < N - t ? 1 + t / 2 : N - t;
                part.op.x = element(p.op.x, p.op.dtype, t * p.w.w.k);
                part.op.targets += t;
                part.op.n_rows = n;
                struct buf got = problem_run(&part, be);
                assert_memory_equal(got.p, (struct ctw_head_result *)want.p + t, got.bytes);
                buf_close(&got);
            }
            buf_close(&want);
            ctw_backend_close(be);
            problem_close(&p);
        }
    }
}

/* Storing the logits changes no result; the stored logits and norms give the log-probabilities, and
 * nothing outside them is written. */
static void logits_are_stored_beside_the_results(void **state)
{
    (void)state;
    static const int64_t cases[][3] = {
        /* rows, vocabulary, k */ {1, 1, 8}, {3, 130, 24}, {98, 2050, 16}, {5, 66001, 16}};
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        for (size_t s = 0; s < CTW_COUNT(cases); s++) {
            int64_t rows = cases[s][0], vocab = cases[s][1], ld = (vocab + 31) / 16 * 16;
            struct problem p;
            problem_open(&p, rows, vocab, vocab, cases[s][2], dtypes[(s + (size_t)i) % 3]);
            p.op.softcap = s % 2 == 1 ? 20 : 0;
            p.op.scale = s % 3 == 1 ? 0.5f : 1;
            struct buf want = problem_run(&p, be);
            struct buf logits = buf_open((size_t)(rows * ld) * sizeof(float), 0);
            struct buf norms = buf_open((size_t)rows * sizeof(struct ctw_head_norm), 0);
            p.op.logits = logits.p;
            p.op.ld_logits = ld;
            p.op.norms = norms.p;
            struct buf got = problem_run(&p, be);
            assert_memory_equal(got.p, want.p, want.bytes);
            for (int64_t t = 0; t < rows; t++) {
                const struct ctw_head_result *r = (struct ctw_head_result *)got.p + t;
                const struct ctw_head_norm *n = (struct ctw_head_norm *)norms.p + t;
                const float *x = (float *)logits.p + t * ld;
                double logprob = (double)x[p.op.targets[t]] - n->largest - n->ln_sum;
                assert_true((float)logprob == r->logprob);
                assert_true(x[r->greedy] == (float)n->largest);
                for (int64_t id = 0; id < vocab; id++)
                    assert_true(x[id] < x[r->greedy] || (x[id] == x[r->greedy] && id >= r->greedy));
            }
            buf_close(&logits);
            buf_close(&norms);
            buf_close(&want);
            buf_close(&got);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* A head in parts has the bits of the whole one, wherever they begin; also if only some ids count.
 */
static void parts_give_the_same_bits(void **state)
{
    (void)state;
    static const int64_t cases[][4] = {/* rows, rows of the matrix, vocabulary, k */
                                       {1, 129, 129, 8},      {3, 400, 257, 24},
                                       {98, 4500, 4500, 16},  {130, 2050, 2050, 40},
                                       {33, 66001, 65990, 8}, {5, 70000, 66001, 16}};
    static const struct ctw_quantise int8 = {
        .codes = CTW_CODES_INT, .bits = 8, .scale_kind = CTW_SCALE_DYNAMIC};
    static const struct ctw_rotation rotation = {.size = 8, .factor = 0.5f};
    const char *v;
    for (int i = 0; (v = any_variant(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        for (size_t s = 0; s < CTW_COUNT(cases); s++) {
            const int64_t *c = cases[s], ld = (c[2] + 31) / 16 * 16;
            struct problem p;
            problem_open(&p, c[0], 1, 1, c[3], dtypes[(s + (size_t)i) % 3]);
            weight_close(&p.w);
            weight_open(&p.w, (enum weight_kind)(W_BF16 + rng_below(3)), c[1], c[3], s % 2 == 0);
            p.w.shard.rotate_in = s % 3 != 2 ? &rotation : NULL;
            p.w.shard.input = s % 3 == 1 ? &int8 : NULL;
            for (int64_t t = 0; t < c[0]; t++)
                ((int32_t *)p.targets.p)[t] = (int32_t)(t == 0 ? c[2] - 1 : rng_below(c[2]));
            struct buf logits = buf_open((size_t)(c[0] * ld) * sizeof(float), 0);
            struct buf norms = buf_open((size_t)c[0] * sizeof(struct ctw_head_norm), 0);
            p.op.n_vocab = c[2];
            p.op.softcap = s % 3 == 1 ? 20 : 0;
            p.op.logits = s % 2 == 0 ? logits.p : NULL;
            p.op.norms = s % 2 == 0 ? norms.p : NULL;
            p.op.ld_logits = ld;
            struct buf want = problem_run(&p, be), want_logits = buf_copy(&logits, 0);
            struct buf want_norms = buf_copy(&norms, 0);
            memset(logits.p, 0xff, logits.bytes);
            memset(norms.p, 0xff, norms.bytes);
            struct buf out = buf_open((size_t)c[0] * sizeof(struct ctw_head_result), 0);
            struct ctw_op_head op = p.op;
            op.out = out.p;
            for (int64_t n; op.id0 < c[2]; op.id0 += n) {
                struct rows_part part;
                int64_t step = ctw_backend_head_rows(be, op.dtype, c[3], op.softcap == 0);
                n = step * (1 + rng_below(1 + c[1] / step));
                n = n < c[1] - op.id0 ? n : c[1] - op.id0;
                rows_part_open(&part, &p.w, op.id0, n);
                part.shard.rotate_in = p.w.shard.rotate_in;
                part.shard.input = p.w.shard.input;
                op.weight = &part.shard;
                OK(ctw_head(be, &op, &last_err));
            }
            assert_memory_equal(out.p, want.p, want.bytes);
            if (op.norms != NULL)
                assert_memory_equal(norms.p, want_norms.p, norms.bytes);
            for (int64_t t = 0; op.logits != NULL && t < c[0]; t++)
                assert_memory_equal((float *)logits.p + t * ld, (float *)want_logits.p + t * ld,
                                    (size_t)c[2] * sizeof(float));
            op.weight = p.op.weight;
            op.id0 = 1;
            assert_int_equal(ctw_head(be, &op, &last_err), CTW_EINTERNAL);
            struct buf *all[] = {&logits, &norms, &want, &want_logits, &want_norms, &out};
            for (size_t b = 0; b < CTW_COUNT(all); b++)
                buf_close(all[b]);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* Of equal logits the first id is greedy, regardless of their positions; and its logprob is
 * right. */
static void the_first_of_equals_is_greedy(void **state)
{
    (void)state;
    enum { VOCAB = 5000, K = 8 };
    struct test_weight w;
    weight_open(&w, W_F32, VOCAB, K, 0);
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        for (int round = 0; round < 30; round++) {
            int64_t first = rng_below(VOCAB), second = first + rng_below(VOCAB - first);
            float x[K] = {1}, *values = w.part[CTW_PART_VALUES].p;
            int32_t target = (int32_t)second;
            struct ctw_head_result out;
            for (int64_t n = 0; n < VOCAB; n++)
                ctw_store_float(values, CTW_F32, n * K, n == first || n == second ? 20 : -1);
            struct ctw_op_head op = {.weight = &w.shard,
                                     .scale = 1,
                                     .n_vocab = VOCAB,
                                     .n_rows = 1,
                                     .x = x,
                                     .targets = &target,
                                     .out = &out};
            OK(ctw_head(be, &op, &last_err));
            assert_int_equal(out.greedy, first);
            near((double)out.logprob, first == second ? 0 : -log(2), 1e-5, "equals", round);
        }
        ctw_backend_close(be);
    }
    weight_close(&w);
}

/* NaN and +infinity make the row's logprob NaN, -infinity has probability 0; other rows are
 * unchanged. */
static void what_is_not_finite_is_seen(void **state)
{
    (void)state;
    enum { VOCAB = 2100, K = 4 };
    struct test_weight w;
    weight_open(&w, W_F32, VOCAB, K, 0);
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        for (int round = 0; round < 12; round++) {
            float x[2 * K] = {1, 0, 0, 0, 0, 1};
            int32_t targets[2] = {3, 3};
            struct ctw_head_result before[2], after[2];
            struct ctw_op_head op = {.weight = &w.shard,
                                     .scale = 1,
                                     .n_vocab = VOCAB,
                                     .n_rows = 2,
                                     .x = x,
                                     .targets = targets,
                                     .out = before};
            OK(ctw_head(be, &op, &last_err));
            x[0] = round % 3 == 0 ? NAN : round % 3 == 1 ? INFINITY : -INFINITY;
            op.out = after;
            OK(ctw_head(be, &op, &last_err));
            assert_true(isfinite(before[0].logprob));
            assert_true(isnan(after[0].logprob));
            assert_in_range(after[0].greedy, 0, VOCAB - 1);
            assert_memory_equal(&after[1], &before[1], sizeof(after[1]));
        }
        float x[K] = {1}, *values = w.part[CTW_PART_VALUES].p; /* logits are column 0 */
        for (int64_t n = 0; n < VOCAB; n++)
            ctw_store_float(values, CTW_F32, n * K, n < 2000 ? -INFINITY : 1);
        struct ctw_head_result out;
        int32_t target = 2050;
        struct ctw_op_head op = {.weight = &w.shard,
                                 .scale = 1,
                                 .n_vocab = VOCAB,
                                 .n_rows = 1,
                                 .x = x,
                                 .targets = &target,
                                 .out = &out};
        OK(ctw_head(be, &op, &last_err));
        near((double)out.logprob, -log(100), 1e-5, "among -infinity", 0);
        assert_int_equal(out.greedy, 2000);
        target = 7;
        OK(ctw_head(be, &op, &last_err));
        assert_true(isinf(out.logprob));
        assert_true(out.logprob < 0);
        for (int64_t n = 0; n < VOCAB; n++)
            ctw_store_float(values, CTW_F32, n * K, rng_normal());
        ctw_backend_close(be);
    }
    weight_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variants_agree_with_the_definition),
        cmocka_unit_test(a_row_does_not_depend_on_the_other_rows),
        cmocka_unit_test(logits_are_stored_beside_the_results),
        cmocka_unit_test(parts_give_the_same_bits),
        cmocka_unit_test(the_first_of_equals_is_greedy),
        cmocka_unit_test(what_is_not_finite_is_seen),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
