/* ctw_head() in every place: against its definition in double, with and without stored logits, in
 * pieces of its rows and of its vocabulary. */
#include "placed_weight.h"

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

struct shape {
    int64_t rows, n, vocab, k; /* n: rows of the matrix */
};

static const struct shape shapes[] = {
    {1, 1, 1, 1},           {2, 40, 33, 31},      {3, 128, 128, 64},        {7, 1100, 1025, 32},
    {13, 2500, 2500, 48},   {97, 300, 129, 96},   {12, 131, 130, 1153},     {130, 1024, 1023, 64},
    {5, 66000, 65537, 16},  {5, 8, 1, 64},        {17, 100, 97, 128},
#if CTW_ON_GPU
    {300, 8193, 8193, 64},  {2300, 300, 300, 64}, {40, 128256, 128256, 64}, {70, 9001, 9000, 256},
    {257, 4100, 4100, 576}, {5, 8192, 8192, 64},  {40, 16390, 16390, 128},  {70, 5000, 5000, 72},
#endif
};

static const int64_t pieces[] = {1, 7, 64, 128, 256, 1000};

/* On the host. */
struct problem {
    struct ctw_op_head op;
    struct test_weight w;
    struct buf x, targets;
    int64_t ld;
    bool exact; /* logits are sums of few small multiples of 2^-7: the same in any order */
};

struct placed {
    struct placed_weight w;
    struct dev x, targets;
};

/* logits, norms: of no bytes if they are not stored */
struct results {
    struct buf out, logits, norms;
};

static struct buf some_targets(int64_t n, int64_t vocab)
{
    struct buf b = buf_open((size_t)n * sizeof(int32_t), 0);
    for (int64_t t = 0; t < n; t++)
        ((int32_t *)b.p)[t] = (int32_t)(t == 0 ? vocab - 1 : rng_below(vocab));
    return b;
}

static void fill_exact(void *p, enum ctw_dtype dtype, int64_t n, float step)
{
    for (int64_t i = 0; i < n; i++)
        ctw_store_float(p, dtype, i, (float)(rng_below(17) - 8) * step);
}

static void problem_open(struct problem *p, const struct shape *s, enum ctw_dtype dtype, bool exact)
{
    enum weight_kind kind;
    do
        kind = (enum weight_kind)rng_below(exact ? W_BF16_TRANSPOSED : N_WEIGHT_KINDS);
    while (!weight_possible(kind, s->k) || (kind == W_AWQ && s->n % 8 != 0)); /* whole words */
    *p = (struct problem){.ld = (s->vocab + 31) / 16 * 16, .exact = exact};
    weight_open(&p->w, kind, s->n, s->k, exact ? 0 : (int)rng_below(2));
    p->x = buf_random(dtype, s->rows * s->k, 3.0f / sqrtf((float)s->k), 0);
    p->targets = some_targets(s->rows, s->vocab);
    if (exact) {
        fill_exact(p->w.part[CTW_PART_VALUES].p, p->w.w.dtype, s->n * s->k, 1.0f / 16);
        fill_exact(p->x.p, dtype, s->rows * s->k, 1.0f / 8);
    }
    p->op = (struct ctw_op_head){.weight = &p->w.shard,
                                 .dtype = dtype,
                                 .scale = rng_below(3) == 0 ? 0.5f : 1,
                                 .softcap = rng_below(4) == 0 ? 15 : 0,
                                 .n_vocab = s->vocab,
                                 .n_rows = s->rows,
                                 .x = p->x.p,
                                 .targets = p->targets.p,
                                 .unit_rows = !exact && rng_below(4) == 0};
}

static void problem_close(struct problem *p)
{
    weight_close(&p->w);
    buf_close(&p->x);
    buf_close(&p->targets);
}

static void place(struct placed *d, const struct problem *p, struct ctw_backend *be)
{
    const size_t shift = CTW_ON_GPU ? 0 : ctw_dtype_bytes(p->op.dtype) * (size_t)rng_below(9);
    weight_place(&d->w, &p->w, be, rng_below(2) == 0);
    d->x = dev_open(be, p->x.p, p->x.bytes, shift);
    d->targets = dev_open(be, p->targets.p, p->targets.bytes, 4 * (size_t)rng_below(3));
}

static void unplace(struct placed *d)
{
    weight_unplace(&d->w);
    dev_close(&d->x);
    dev_close(&d->targets);
}

static void results_close(struct results *r)
{
    buf_close(&r->out);
    buf_close(&r->logits);
    buf_close(&r->norms);
}

/* Ids in parts: the shard's rows come in pieces of some multiples of what the backend asks for. */
static void run_ids(struct ctw_backend *be, struct ctw_op_head op, bool in_parts)
{
    const struct ctw_shard *whole = op.weight;
    const bool plain = op.softcap == 0 && whole->bias == NULL;
    int64_t n = whole->n, step = ctw_backend_head_rows(be, op.dtype, whole->weight->k, plain);
    if (!in_parts) {
        OK(ctw_head(be, &op, &last_err));
        return;
    }
    for (; op.id0 < op.n_vocab; op.id0 += n) {
        struct rows_part part;
        n = step * (1 + rng_below(1 + whole->n / step));
        n = n < whole->n - op.id0 ? n : whole->n - op.id0;
        rows_part_open(&part, whole, op.id0, n);
        part.shard.rotate_in = whole->rotate_in;
        part.shard.input = whole->input;
        op.weight = &part.shard;
        OK(ctw_head(be, &op, &last_err));
    }
    op.weight = whole;
    op.id0 = 1;
    assert_int_equal(ctw_head(be, &op, &last_err), CTW_EINTERNAL);
}

/* `piece` rows at a time; store: with logits. */
static struct results run(const struct problem *p, const struct placed *d, struct ctw_backend *be,
                          bool store, int64_t piece, bool in_parts)
{
    const int64_t n = p->op.n_rows;
    const size_t logits_bytes = store ? (size_t)(n * p->ld) * sizeof(float) : 0;
    struct results r = {buf_open((size_t)n * sizeof(struct ctw_head_result), 0),
                        buf_open(logits_bytes, 0),
                        buf_open(store ? (size_t)n * sizeof(struct ctw_head_norm) : 0, 0)};
    struct dev out = dev_of(be, &r.out), logits = dev_of(be, &r.logits),
               norms = dev_of(be, &r.norms);
    for (int64_t t = 0; t < n; t += piece) {
        struct ctw_op_head op = p->op;
        op.weight = &d->w.shard;
        op.n_rows = n - t < piece ? n - t : piece;
        op.x = element(d->x.p, op.dtype, t * p->w.w.k);
        op.targets = (const int32_t *)(const void *)d->targets.p + t;
        op.out = (struct ctw_head_result *)(void *)out.p + t;
        if (store) {
            op.ld_logits = p->ld;
            op.logits = (float *)(void *)logits.p + t * p->ld;
            op.norms = (struct ctw_head_norm *)(void *)norms.p + t;
        }
        run_ids(be, op, in_parts);
    }
    dev_read(&out, r.out.p);
    dev_read(&logits, r.logits.p);
    dev_read(&norms, r.norms.p);
    dev_close(&out);
    dev_close(&logits);
    dev_close(&norms);
    return r;
}

/* ---- the definition ----------------------------------------------------------------------- */

/* What a place's logit may be off by: sums of k products in fp32 (test_ops_linear.c), and the
 * softcap; all: the sum of their sizes. */
static double logit_error(const struct problem *p, double all, double value)
{
    const double k = (double)p->w.w.k, u = 0x1p-24;
    double sums = CTW_ON_GPU ? 4 * k : 2 * fmin(k, 320) + k / 192 + 8;
    return u * (p->exact ? 0 : sums * all * (double)p->op.scale) +
           u * (4 * (double)p->op.softcap + 4 * fabs(value));
}

/* The rows of all ids as products see them. */
static float *decoded(const struct problem *p)
{
    const int64_t k = p->w.w.k;
    float *w = calloc((size_t)(p->op.n_vocab * k), sizeof(*w));
    assert_non_null(w);
    for (int64_t id = 0; id < p->op.n_vocab; id++) {
        float *row = w + id * k;
        double squares = 0;
        weight_row(&p->w, id, p->op.dtype, row);
        for (int64_t i = 0; i < k; i++)
            squares += (double)row[i] * row[i];
        for (int64_t i = 0; i < k && p->op.unit_rows; i++)
            row[i] = ctw_round_float(row[i] / ctw_unit_length(squares), p->op.dtype);
    }
    return w;
}

struct logit {
    double value, error;
};

static struct logit logit_of(const struct problem *p, const float *w, int64_t t, int64_t id)
{
    const int64_t k = p->w.w.k;
    const struct ctw_shard *s = p->op.weight;
    double sum = s->bias != NULL ? ctw_load_float(s->bias, s->bias_dtype, id) : 0, all = fabs(sum);
    for (int64_t i = 0; i < k; i++) {
        double v = (double)ctw_load_float(p->op.x, p->op.dtype, t * k + i) * w[id * k + i];
        sum += v;
        all += fabs(v);
    }
    sum *= p->op.scale;
    sum = p->op.softcap > 0 ? p->op.softcap * tanh(sum / p->op.softcap) : sum;
    return (struct logit){sum, logit_error(p, all, sum)};
}

/* Every how many rows are defined: many logits are slow to define. */
static int64_t row_step(const struct problem *p)
{
    return 1 + p->op.n_rows * p->op.n_vocab * p->w.w.k / 5000000;
}

/* The logits of these rows, [.., n_vocab]. */
static struct logit *define(const struct problem *p)
{
    const int64_t n = p->op.n_vocab, step = row_step(p), rows = (p->op.n_rows + step - 1) / step;
    float *w = decoded(p);
    struct logit *logits = calloc((size_t)(rows * n), sizeof(*logits));
    assert_non_null(logits);
    for (int64_t i = 0; i < rows * n; i++)
        logits[i] = logit_of(p, w, i / n * step, i % n);
    free(w);
    return logits;
}

/* Results of a place, with logits. */
static void compare(const struct problem *p, const struct logit *logits, const struct results *r,
                    const char *what)
{
    const int64_t n = p->op.n_vocab, step = row_step(p);
    for (int64_t t = 0; t < p->op.n_rows; t += step, logits += n) {
        const struct ctw_head_result *got = (struct ctw_head_result *)r->out.p + t;
        const float *stored = (float *)r->logits.p + t * p->ld;
        double error = 0, sum = 0;
        int64_t first = 0;
        for (int64_t id = 0; id < n; id++) {
            near((double)stored[id], logits[id].value, logits[id].error, what, id);
            error = fmax(error, logits[id].error);
            first = logits[id].value > logits[first].value ? id : first;
        }
        const double most = logits[first].value;
        for (int64_t id = 0; id < n; id++)
            sum += exp(logits[id].value - most);
        double want = logits[p->op.targets[t]].value - most - log(sum);
        /* Twice a logit's error, and the reduction's own. */
        near((double)got->logprob, want, 2 * error + 1e-6 + half_step(CTW_F32, want), what, t);
        assert_in_range(got->greedy, 0, n - 1);
        near(logits[got->greedy].value, most, 2 * error, what, t);
        if (p->exact && p->op.softcap == 0)
            assert_int_equal(got->greedy, first);
    }
}

/* The results follow from the stored logits and the norms. */
static void follow(const struct problem *p, const struct results *r, const char *what)
{
    for (int64_t t = 0; t < p->op.n_rows; t++) {
        const struct ctw_head_result *out = (struct ctw_head_result *)r->out.p + t;
        const struct ctw_head_norm *norm = (struct ctw_head_norm *)r->norms.p + t;
        const float *x = (float *)r->logits.p + t * p->ld;
        int32_t first = 0;
        for (int32_t id = 0; id < (int32_t)p->op.n_vocab; id++)
            first = x[id] > x[first] ? id : first;
        if (out->greedy != first || norm->largest != (double)x[first])
            fail_msg("%s, row %" PRId64 ": greedy %d of %.9g, but logit %d is %.9g", what, t,
                     out->greedy, norm->largest, first, (double)x[first]);
        double target = x[p->op.targets[t]];
        if (out->logprob != (float)(target - norm->largest - norm->ln_sum))
            fail_msg("%s, row %" PRId64 ": logprob %.9g does not follow from its logit", what, t,
                     (double)out->logprob);
    }
}

/* The same results, and, if both stored them, the same logits and norms. */
static void same(const struct problem *p, struct results got, const struct results *want,
                 const char *what, const char *how)
{
    bool equal = memcmp(got.out.p, want->out.p, got.out.bytes) == 0 &&
                 memcmp(got.norms.p, want->norms.p, got.norms.bytes) == 0;
    for (int64_t t = 0; t < p->op.n_rows && got.logits.bytes > 0; t++)
        equal =
            equal && memcmp((float *)got.logits.p + t * p->ld, (float *)want->logits.p + t * p->ld,
                            (size_t)p->op.n_vocab * sizeof(float)) == 0;
    if (!equal)
        fail_msg("%s: other bits %s", what, how);
    results_close(&got);
}

/* ---- tests -------------------------------------------------------------------------------- */

static void check(const struct problem *p, const struct logit *logits, struct ctw_backend *be,
                  const char *name, int64_t piece)
{
    char what[160];
    snprintf(what, sizeof(what),
             "%s %s rows %" PRId64 " vocabulary %" PRId64 " k %" PRId64 "%s%s%s", name,
             ctw_dtype_name(p->op.dtype), p->op.n_rows, p->op.n_vocab, p->w.w.k,
             p->exact ? " exact" : "", p->op.unit_rows ? " unit rows" : "",
             p->op.softcap > 0 ? " softcap" : "");
    struct placed d;
    place(&d, p, be);
    struct results want = run(p, &d, be, true, p->op.n_rows, false);
    compare(p, logits, &want, what);
    follow(p, &want, what);
    same(p, run(p, &d, be, false, p->op.n_rows, false), &want, what, "without logits");
    same(p, run(p, &d, be, true, piece, false), &want, what, "in pieces");
    for (int threads = 2; threads <= 7 && !CTW_ON_GPU; threads += threads == 3 ? 4 : 1) {
        struct ctw_backend *more = backend(name, threads);
        same(p, run(p, &d, more, false, p->op.n_rows, false), &want, what, "with more threads");
        ctw_backend_close(more);
    }
    results_close(&want);
    unplace(&d);
}

static void places_agree_with_the_definition(void **state)
{
    (void)state;
    struct ctw_backend *be[MAX_PLACES];
    const int n = open_places(be);
    for (size_t s = 0; s < 3 * CTW_COUNT(shapes); s++) {
        struct problem p;
        problem_open(&p, &shapes[s / 3], dtypes[s % 3], shapes[s / 3].k <= 64 && s % 2 == 0);
        struct logit *logits = define(&p);
        for (int i = 0; i < n; i++)
            check(&p, logits, be[i], place_name(i), pieces[s % CTW_COUNT(pieces)]);
        free(logits);
        problem_close(&p);
    }
    close_places(be, n);
}

/* A head in parts has the bits of the whole one, wherever they begin; also if only some ids count.
 */
static void parts_give_the_same_bits(void **state)
{
    (void)state;
    static const struct shape cases[] = {{1, 129, 129, 8},      {3, 400, 257, 24},
                                         {98, 4500, 4500, 16},  {130, 2050, 2050, 40},
                                         {33, 66001, 65990, 8}, {5, 70000, 66001, 16}};
    static const struct ctw_quantise int8 = {
        .codes = CTW_CODES_INT, .bits = 8, .scale_kind = CTW_SCALE_DYNAMIC};
    static const struct ctw_rotation rotation = {.size = 8, .factor = 0.5f};
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        for (size_t s = 0; s < CTW_COUNT(cases); s++) {
            struct problem p;
            struct placed d;
            problem_open(&p, &cases[s], dtypes[(s + (size_t)i) % 3], true);
            weight_close(&p.w);
            weight_open(&p.w, (enum weight_kind)rng_below(3), cases[s].n, cases[s].k, s % 2 == 0);
            p.w.shard.rotate_in = s % 3 != 2 ? &rotation : NULL;
            p.w.shard.input = s % 3 == 1 ? &int8 : NULL;
            place(&d, &p, be);
            struct results want = run(&p, &d, be, s % 2 == 0, p.op.n_rows, false);
            same(&p, run(&p, &d, be, s % 2 == 0, p.op.n_rows, true), &want, place_name(i),
                 "in parts");
            results_close(&want);
            unplace(&d);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* One row, whose logits are values[0 .. n-1]. */
static struct ctw_head_result result_of(struct ctw_backend *be, const float *values, int64_t n,
                                        int32_t target)
{
    enum { K = 8 };
    struct problem p;
    struct placed d;
    problem_open(&p, &(struct shape){1, n, n, K}, CTW_F32, true);
    weight_close(&p.w);
    weight_open(&p.w, W_F32, n, K, 0);
    p.op.scale = 1;
    p.op.softcap = 0;
    for (int64_t i = 0; i < n * K; i++)
        ctw_store_float(p.w.part[CTW_PART_VALUES].p, CTW_F32, i, i % K == 0 ? values[i / K] : 0);
    for (int i = 0; i < K; i++)
        ctw_store_float(p.x.p, CTW_F32, i, i == 0 ? 1 : 0);
    memcpy(p.targets.p, &target, sizeof(target));
    place(&d, &p, be);
    struct results r = run(&p, &d, be, false, 1, false);
    struct ctw_head_result got;
    memcpy(&got, r.out.p, sizeof(got));
    assert_in_range(got.greedy, 0, n - 1);
    results_close(&r);
    unplace(&d);
    problem_close(&p);
    return got;
}

/* Of equal logits the first id is greedy, regardless of their positions; and its logprob is
 * right. */
static void the_first_of_equals_is_greedy(void **state)
{
    (void)state;
    enum { VOCAB = 5000 };
    static float values[VOCAB];
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        for (int round = 0; round < 8; round++) {
            int64_t first = rng_below(VOCAB), second = first + rng_below(VOCAB - first);
            for (int64_t n = 0; n < VOCAB; n++)
                values[n] = n == first || n == second ? 20 : -1;
            struct ctw_head_result out = result_of(be, values, VOCAB, (int32_t)second);
            assert_int_equal(out.greedy, first);
            near((double)out.logprob, first == second ? 0 : -log(2), 1e-5, "equals", round);
        }
        ctw_backend_close(be);
    }
}

/* The logit of id n in case c. */
static float special(int c, int n)
{
    switch (c) {
    case 0:
        return n < 9000 ? -INFINITY : 1;
    case 1:
        return n < 18000 ? -INFINITY : 0;
    case 2:
        return n == 8500 ? NAN : 0;
    case 3:
        return n == 13000 ? INFINITY : 0;
    case 4:
        return -INFINITY;
    default:
        return n < 8192 ? NAN : 0; /* tiles of nothing else */
    }
}

/* NaN and +infinity make the row's logprob NaN, -infinity has probability 0. */
static void logits_that_are_not_finite_are_seen(void **state)
{
    (void)state;
    enum { VOCAB = 20000, CASES = 6 };
    static const int32_t targets[CASES] = {3, 19000, 12000, 7, 3, 15000};
    static float values[VOCAB];
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        for (int c = 0; c < CASES; c++) {
            for (int n = 0; n < VOCAB; n++)
                values[n] = special(c, n);
            struct ctw_head_result out = result_of(be, values, VOCAB, targets[c]);
            if (c == 0) {
                assert_int_equal(out.greedy, 9000);
                assert_true(out.logprob == -INFINITY);
            } else if (c == 1) {
                assert_int_equal(out.greedy, 18000);
                near((double)out.logprob, -log(2000), 1e-6, "among -infinity", c);
            } else {
                assert_true(isnan(out.logprob));
            }
        }
        ctw_backend_close(be);
    }
}

/* An input that is not finite makes its row's logprob NaN; other rows are unchanged. */
static void what_is_not_finite_stays_in_its_row(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    static const struct shape shape = {2, 2100, 2100, 16};
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        for (size_t v = 0; v < CTW_COUNT(values); v++) {
            struct problem p;
            struct placed d;
            problem_open(&p, &shape, CTW_F32, false);
            p.op.softcap = 0;
            place(&d, &p, be);
            struct results before = run(&p, &d, be, false, 2, false);
            unplace(&d);
            ctw_store_float(p.x.p, CTW_F32, 0, values[v]);
            place(&d, &p, be);
            struct results after = run(&p, &d, be, false, 2, false);
            const struct ctw_head_result *old = before.out.p, *new = after.out.p;
            assert_true(isfinite(old[0].logprob));
            assert_true(isnan(new[0].logprob));
            assert_in_range(new[0].greedy, 0, shape.vocab - 1);
            assert_memory_equal(&new[1], &old[1], sizeof(*new));
            results_close(&before);
            results_close(&after);
            unplace(&d);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_agree_with_the_definition),
        cmocka_unit_test(parts_give_the_same_bits),
        cmocka_unit_test(the_first_of_equals_is_greedy),
        cmocka_unit_test(logits_that_are_not_finite_are_seen),
        cmocka_unit_test(what_is_not_finite_stays_in_its_row),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
