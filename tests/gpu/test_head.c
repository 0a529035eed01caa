/*
 * ctw_head() with its logits stored, on the GPU: the same bits as without logits, the definition in
 * double; test_head rates: only the rates of a comparison's operations. Run it like
 * test_products.c.
 */
#include "gpu_device.h"

/* ---- the head ----------------------------------------------------------------------------- */

struct head {
    struct ctw_op_head op; /* of host memory; weight, x and targets */
    struct test_weight w;
    struct buf x, targets;
    int64_t ld;
};

static const struct head_case {
    int64_t rows, n, k;
    int kind; /* -1: any */
    int bias;
    float scale, softcap;
} head_cases[] = {
    {1, 1, 8, W_BF16, 0, 1, 0},           {3, 33, 31, -1, 1, 1, 0},
    {130, 2049, 64, W_BF16, 0, 1, 0},     {257, 4100, 576, W_BF16, 0, 0.3f, 0},
    {300, 8193, 72, W_BF16, 0, 1, 30},    {70, 9000, 96, W_F16, 0, 1, 0},
    {129, 5000, 64, W_BF16, 1, 2, 0},     {40, 16390, 128, W_INT4, 0, 1, 0},
    {31, 2300, 256, W_NVFP4, 0, 0.5f, 0}, {2100, 300, 64, W_BF16, 0, 1, 0},
    {64, 32003, 320, W_F32, 0, 1, 15},    {5, 70000, 32, W_INT8_ZERO, 0, 1, 0},
};

static void head_open(struct head *h, const struct head_case *c, enum ctw_dtype dtype)
{
    memset(h, 0, sizeof(*h));
    int kind = c->kind;
    while (kind < 0 || !weight_possible((enum weight_kind)kind, c->k))
        kind = (int)rng_below(N_WEIGHT_KINDS);
    weight_open(&h->w, (enum weight_kind)kind, c->n, c->k, c->bias);
    h->x = buf_random(dtype, c->rows * c->k, 3.0f / sqrtf((float)c->k), 0);
    h->targets = buf_open((size_t)c->rows * sizeof(int32_t), 0);
    for (int64_t t = 0; t < c->rows; t++)
        ((int32_t *)h->targets.p)[t] = (int32_t)(t == 0 ? c->n - 1 : rng_below(c->n));
    h->ld = (c->n + 31) / 16 * 16;
    h->op = (struct ctw_op_head){.weight = &h->w.shard,
                                 .dtype = dtype,
                                 .scale = c->scale,
                                 .softcap = c->softcap,
                                 .n_vocab = c->n,
                                 .n_rows = c->rows};
}

static void head_close(struct head *h)
{
    weight_close(&h->w);
    buf_close(&h->x);
    buf_close(&h->targets);
}

/* The head on a GPU. */
struct placed_head {
    struct ctw_weight_data data;
    struct ctw_shard shard;
    struct dev part[CTW_N_PARTS], bias, x, targets;
};

static void head_place(struct placed_head *d, const struct head *h, struct ctw_backend *be)
{
    memset(d, 0, sizeof(*d));
    d->shard = h->w.shard;
    d->shard.data = &d->data;
    for (int k = 0; k < CTW_N_PARTS; k++) {
        if (h->w.data.part[k] == NULL)
            continue;
        d->part[k] = dev_open(be, h->w.data.part[k], h->w.part[k].bytes, 0);
        d->data.part[k] = d->part[k].p;
    }
    if (h->w.bias.base != NULL) {
        d->bias = dev_open(be, h->w.bias.p, h->w.bias.bytes, 0);
        d->shard.bias = d->bias.p;
    }
    d->x = dev_open(be, h->x.p, h->x.bytes, 0);
    d->targets = dev_open(be, h->targets.p, h->targets.bytes, 0);
}

static void head_unplace(struct placed_head *d)
{
    for (int k = 0; k < CTW_N_PARTS; k++)
        dev_close(&d->part[k]);
    dev_close(&d->bias);
    dev_close(&d->x);
    dev_close(&d->targets);
}

struct head_results {
    struct buf out, logits, norms; /* the latter two: if they were stored */
};

/* `piece` rows at a time. */
static struct head_results head_run(const struct head *h, const struct placed_head *d,
                                    struct ctw_backend *be, bool store, int64_t piece)
{
    int64_t n = h->op.n_rows, row_bytes = h->op.weight->weight->k;
    row_bytes *= (int64_t)ctw_dtype_bytes(h->op.dtype);
    struct head_results r = {.out = buf_open((size_t)n * sizeof(struct ctw_head_result), 0),
                             .logits = buf_open(store ? (size_t)(n * h->ld) * sizeof(float) : 0, 0),
                             .norms =
                                 buf_open(store ? (size_t)n * sizeof(struct ctw_head_norm) : 0, 0)};
    struct dev out = dev_open(be, r.out.p, r.out.bytes, 0);
    struct dev logits = dev_open(be, r.logits.p, r.logits.bytes, 0);
    struct dev norms = dev_open(be, r.norms.p, r.norms.bytes, 0);
    for (int64_t t = 0; t < n; t += piece) {
        struct ctw_op_head op = h->op;
        op.weight = &d->shard;
        op.n_rows = n - t < piece ? n - t : piece;
        op.x = d->x.p + t * row_bytes;
        op.targets = (const int32_t *)(void *)d->targets.p + t;
        op.out = (struct ctw_head_result *)(void *)out.p + t;
        if (store) {
            op.ld_logits = h->ld;
            op.logits = (float *)(void *)logits.p + t * h->ld;
            op.norms = (struct ctw_head_norm *)(void *)norms.p + t;
        }
        OK(ctw_head(be, &op, &last_err));
    }
    dev_read(&out, r.out.p);
    dev_read(&logits, r.logits.p);
    dev_read(&norms, r.norms.p);
    dev_close(&out);
    dev_close(&logits);
    dev_close(&norms);
    return r;
}

static void results_close(struct head_results *r)
{
    buf_close(&r->out);
    buf_close(&r->logits);
    buf_close(&r->norms);
}

/* A stored logit is that of the definition, within what sums in fp32 may lose. */
static void check_logit(const struct head *h, int64_t t, int32_t id, float got, const char *what)
{
    int64_t k = h->w.w.k;
    float *row = malloc((size_t)k * sizeof(*row));
    assert_non_null(row);
    weight_row(&h->w, id, h->op.dtype, row);
    const struct ctw_shard *s = &h->w.shard;
    double sum = s->bias != NULL ? ctw_load_float(s->bias, s->bias_dtype, id) : 0, all = fabs(sum);
    for (int64_t i = 0; i < k; i++) {
        double v = (double)ctw_load_float(h->x.p, h->op.dtype, t * k + i) * row[i];
        sum += v;
        all += fabs(v);
    }
    free(row);
    sum *= h->op.scale;
    double error = ((double)k / 16 + 8) * 0x1p-23 * all * h->op.scale + 3e-7 * fabs(sum) +
                   4e-7 * h->op.softcap;
    near((double)got, h->op.softcap > 0 ? h->op.softcap * tanh(sum / h->op.softcap) : sum, error,
         what, t);
}

/* The results follow from the logits and the norms. */
static void check_results(const struct head *h, const struct head_results *r, const char *what)
{
    for (int64_t t = 0; t < h->op.n_rows; t++) {
        const struct ctw_head_result *out = (struct ctw_head_result *)r->out.p + t;
        const struct ctw_head_norm *norm = (struct ctw_head_norm *)r->norms.p + t;
        const float *x = (float *)r->logits.p + t * h->ld;
        int32_t target = ((int32_t *)h->targets.p)[t], first = 0;
        for (int32_t id = 0; id < (int32_t)h->op.n_vocab; id++)
            first = x[id] > x[first] ? id : first;
        if (out->greedy != first || norm->largest != (double)x[first])
            fail_msg("%s, row %" PRId64 ": greedy %d of %.9g, but logit %d is %.9g", what, t,
                     out->greedy, norm->largest, first, (double)x[first]);
        if (out->logprob != (float)((double)x[target] - norm->largest - norm->ln_sum))
            fail_msg("%s, row %" PRId64 ": logprob %.9g does not follow from its logit", what, t,
                     (double)out->logprob);
        check_logit(h, t, target, x[target], what);
        for (int i = 0; i < 3; i++) {
            int32_t id = (int32_t)rng_below(h->op.n_vocab);
            check_logit(h, t, id, x[id], what);
        }
    }
}

static void storing_logits_changes_no_bit(void **state)
{
    (void)state;
    static const int64_t pieces[] = {1, 7, 128, 256, 1000};
    for (size_t v = 0; v < CTW_COUNT(variants); v++) {
        struct ctw_backend *be = gpu(variants[v]);
        for (size_t c = 0; be != NULL && c < 3 * CTW_COUNT(head_cases); c++) {
            char what[128];
            struct head h;
            struct placed_head d;
            const struct head_case *hc = &head_cases[c / 3];
            head_open(&h, hc, dtypes[c % 3]);
            head_place(&d, &h, be);
            snprintf(what, sizeof(what), "%s %s rows %" PRId64 " vocabulary %" PRId64 " k %" PRId64,
                     variants[v], ctw_dtype_name(h.op.dtype), hc->rows, hc->n, hc->k);
            struct head_results plain = head_run(&h, &d, be, false, hc->rows);
            struct head_results whole = head_run(&h, &d, be, true, hc->rows);
            if (memcmp(plain.out.p, whole.out.p, plain.out.bytes) != 0)
                fail_msg("%s: storing the logits changes results", what);
            check_results(&h, &whole, what);
            int64_t piece = pieces[c % CTW_COUNT(pieces)];
            struct head_results parts = head_run(&h, &d, be, true, piece);
            for (int64_t t = 0; t < hc->rows; t++)
                if (memcmp((float *)parts.logits.p + t * h.ld, (float *)whole.logits.p + t * h.ld,
                           (size_t)hc->n * sizeof(float)) != 0)
                    fail_msg("%s, row %" PRId64 ": other logits in pieces of %d", what, t,
                             (int)piece);
            assert_memory_equal(parts.out.p, whole.out.p, whole.out.bytes);
            assert_memory_equal(parts.norms.p, whole.norms.p, whole.norms.bytes);
            results_close(&plain);
            results_close(&whole);
            results_close(&parts);
            head_unplace(&d);
            head_close(&h);
        }
        if (be != NULL)
            printf("ok: %s: %zu heads with and without logits\n", variants[v],
                   3 * CTW_COUNT(head_cases));
        ctw_backend_close(be);
    }
}

/* ---- rates -------------------------------------------------------------------------------- */

enum { ROWS = 512, VOCAB = 128256, K = 4096 }; /* of an 8B model */

/* One model's logits on the GPU, and the head that makes them. */
struct rated {
    struct test_weight like;
    struct ctw_weight weight;
    struct ctw_weight_data data;
    struct ctw_shard shard;
    struct dev w, x, targets, out, logits, norms;
    struct ctw_op_head op;
};

static void rated_open(struct rated *r, struct ctw_backend *be)
{
    static int32_t targets[ROWS];
    memset(r, 0, sizeof(*r));
    weight_open(&r->like, W_BF16, 1, 8, 0);
    r->weight = r->like.w;
    r->weight.n = VOCAB;
    r->weight.k = K;
    r->weight.row_bytes = (size_t)K * 2;
    r->w = dev_random(be, CTW_BF16, (int64_t)VOCAB * K);
    r->x = dev_random(be, CTW_BF16, (int64_t)ROWS * K);
    r->targets = dev_open(be, targets, sizeof(targets), 0);
    r->out = dev_random(be, CTW_F32, 2 * ROWS);
    r->logits = dev_random(be, CTW_F32, (int64_t)ROWS * VOCAB);
    r->norms = dev_random(be, CTW_F32, 4 * ROWS);
    r->data.part[CTW_PART_VALUES] = r->w.p;
    r->shard = ctw_shard_of(&r->weight, &r->data);
    r->op = (struct ctw_op_head){.weight = &r->shard,
                                 .dtype = CTW_BF16,
                                 .scale = 0.05f,
                                 .n_vocab = VOCAB,
                                 .n_rows = ROWS,
                                 .x = r->x.p,
                                 .targets = (const void *)r->targets.p,
                                 .out = (void *)r->out.p};
}

static void rated_close(struct rated *r)
{
    struct dev *const all[] = {&r->w, &r->x, &r->targets, &r->out, &r->logits, &r->norms};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        dev_close(all[i]);
    weight_close(&r->like);
}

/* What one step of a comparison runs: heads without or with logits, divergences. */
enum work { HEADS, HEADS_STORED, DIVERGENCE };

/* Microseconds for ROWS rows. */
static double time_of(struct ctw_backend *be, const struct rated r[2], enum work work)
{
    int n = 0;
    double from = 0, s = 0;
    for (int warm = -3; s < 0.3; warm++) {
        if (warm == 0) {
            OK(ctw_backend_sync(be, &last_err));
            from = now_s();
        }
        struct ctw_op_divergence d = {.n_rows = ROWS};
        struct ctw_logits *const sides[2] = {&d.model, &d.reference};
        for (int i = 0; i < 2; i++) {
            struct ctw_op_head op = r[i].op;
            *sides[i] = (struct ctw_logits){VOCAB, (const void *)r[i].logits.p, VOCAB,
                                            (const void *)r[i].norms.p};
            if (work == HEADS_STORED) {
                op.logits = (void *)r[i].logits.p;
                op.ld_logits = VOCAB;
                op.norms = (void *)r[i].norms.p;
            }
            if (work != DIVERGENCE)
                OK(ctw_head(be, &op, &last_err));
        }
        d.out = (void *)r[0].x.p;
        if (work == DIVERGENCE)
            OK(ctw_divergence(be, &d, &last_err));
        if (warm < 0)
            continue;
        n++;
        if (n % 8 == 0) {
            OK(ctw_backend_sync(be, &last_err));
            s = now_s() - from;
        }
    }
    return 1e6 * s / n;
}

static void rates(void **state)
{
    (void)state;
    for (size_t v = 0; v < CTW_COUNT(variants); v++) {
        struct ctw_backend *be = gpu(variants[v]);
        struct rated r[2];
        if (be == NULL)
            continue;
        rated_open(&r[0], be);
        rated_open(&r[1], be);
        double heads = time_of(be, r, HEADS), stored = time_of(be, r, HEADS_STORED);
        double divergence = time_of(be, r, DIVERGENCE);
        double bytes = 2.0 * ROWS * VOCAB * sizeof(float);
        printf(
            "%s, %d rows of %d logits: two heads %.0f us, with logits %.0f us, divergence %.0f us "
            "(%.2f us a row; two sweeps at %.0f GB/s)\n",
            variants[v], ROWS, VOCAB, heads, stored, divergence, divergence / ROWS,
            2 * bytes / divergence * 1e-3);
        rated_close(&r[0]);
        rated_close(&r[1]);
        ctw_backend_close(be);
    }
}

/* Of four windows of an 8B model. */
static void rate_of_differences(void **state)
{
    (void)state;
    enum { SEQS = 4, TOKENS = 2047, DIM = 4096, TIMES = 200 };
    struct ctw_backend *be = gpu("general");
    int64_t start[SEQS + 1], n_rows = SEQS * TOKENS;
    for (int64_t i = 0; i <= SEQS; i++)
        start[i] = i * TOKENS;
    struct dev starts = dev_open(be, start, sizeof(start), 0);
    struct dev x = dev_random(be, CTW_F32, n_rows * DIM), y = dev_random(be, CTW_F32, n_rows * DIM);
    struct dev rows = dev_random(be, CTW_F32, n_rows * 8), out = dev_random(be, CTW_F32, SEQS * 12);
    struct dev channels = dev_random(be, CTW_F32, SEQS * ctw_difference_blocks(DIM) * 4);
    const struct ctw_op_difference op = {.n_seqs = SEQS,
                                         .n_rows = n_rows,
                                         .dim = DIM,
                                         .start = (const void *)starts.p,
                                         .x = (const void *)x.p,
                                         .y = (const void *)y.p,
                                         .rows = (void *)rows.p,
                                         .channels = (void *)channels.p,
                                         .out = (void *)out.p};
    double from = 0;
    for (int i = -3; i < TIMES; i++) {
        if (i == 0) {
            OK(ctw_backend_sync(be, &last_err));
            from = now_s();
        }
        OK(ctw_difference(be, &op, &last_err));
    }
    OK(ctw_backend_sync(be, &last_err));
    double s = (now_s() - from) / TIMES;
    printf("difference of [%d, %d]: %.1f us, %.0f GB/s\n", (int)n_rows, DIM, 1e6 * s,
           4e-9 * (double)(n_rows * DIM * sizeof(float)) / s);
    struct dev *const all[] = {&starts, &x, &y, &rows, &channels, &out};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        dev_close(all[i]);
    ctw_backend_close(be);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(storing_logits_changes_no_bit)};
    const struct CMUnitTest measured[] = {
        cmocka_unit_test(rates),
        cmocka_unit_test(rate_of_differences),
    };
    return rates_wanted(argc, argv) ? cmocka_run_group_tests(measured, ops_setup, NULL)
                                    : cmocka_run_group_tests(tests, ops_setup, NULL);
}
