/* Part of test_ops_attention.c on a GPU: rates of attention on long and short sequences of usual
 * shapes. */
#include "gpu_device.h"

/* n sequences of `length` and, if extra > 0, one more of `extra` tokens; the keys of each in n_runs
 * runs, of which the last lies first. */
struct rated {
    int64_t n, length, extra;
    int n_head, n_kv, head, head_v; /* head_v 0: head */
    int64_t window;
    int n_runs;
};

static const struct rated rated[] = {
    {8, 2048, 0, 32, 8, 128, 0, 0, 1},      {8, 2048, 0, 32, 8, 128, 0, 0, 16},
    {8, 2048, 0, 32, 8, 128, 0, 0, 1},      {8, 2048, 0, 32, 8, 128, 0, 0, 16},
    {8, 2048, 0, 32, 8, 128, 0, 0, 40},     {2, 8192, 0, 32, 8, 128, 0, 0, 1},
    {8, 2048, 0, 32, 8, 64, 0, 0, 1},       {8, 2048, 0, 32, 8, 64, 0, 0, 16},
    {2, 8192, 0, 32, 8, 64, 0, 0, 1},       {8, 2048, 0, 16, 8, 256, 0, 0, 1},
    {8, 2048, 0, 32, 32, 96, 0, 0, 1},      {2, 8192, 0, 32, 8, 128, 0, 1024, 1},
    {64, 300, 0, 32, 8, 128, 0, 0, 1},      {64, 300, 0, 32, 8, 128, 0, 0, 16},
    {160, 100, 0, 32, 8, 128, 0, 0, 1},     {2000, 8, 8192, 32, 8, 128, 0, 0, 1},
    {4, 2048, 0, 128, 128, 192, 128, 0, 1}, /* DeepSeek-V3 */
};

/* The sequences of r; returns the operation's floating-point operations. */
static double rated_seqs(const struct rated *r, struct ctw_attn_seq *seqs, struct ctw_kv_run *runs)
{
    const int64_t n_seqs = r->n + (r->extra > 0);
    double pairs = 0;
    for (int64_t i = 0, at = 0; i < n_seqs; i++) {
        const int64_t len = i < r->n ? r->length : r->extra, n = r->n_runs;
        const int64_t w = r->window > 0 && r->window < len ? r->window : len;
        struct ctw_kv_run *run = &runs[i * n];
        seqs[i] = (struct ctw_attn_seq){.q_row = at, .n_q = len, .runs = run, .n_runs = r->n_runs};
        for (int64_t k = 0; k < n; k++) { /* not of whole tiles */
            const int64_t from = k == 0 ? 0 : len * k / n - 5;
            const int64_t to = k + 1 == n ? len : len * (k + 1) / n - 5;
            run[k] = (struct ctw_kv_run){.row = at + len - to, .n_tok = to - from};
        }
        at += len;
        pairs += 0.5 * (double)w * (double)(w + 1) + (double)(len - w) * (double)w;
    }
    return 2.0 * (r->head + r->head_v) * r->n_head * pairs;
}

/* Seconds of one of n operations. */
static double time_ops(struct ctw_backend *be, const struct ctw_op_attention *op, int n)
{
    const double from = now_s();
    for (int i = 0; i < n; i++)
        OK(ctw_attention(be, op, &last_err));
    OK(ctw_backend_sync(be, &last_err));
    return (now_s() - from) / n;
}

static void rate(struct ctw_backend *be, const char *variant, struct rated r)
{
    r.head_v = r.head_v > 0 ? r.head_v : r.head;
    const int64_t rows = r.n * r.length + r.extra, n_seqs = r.n + (r.extra > 0);
    struct ctw_attn_seq *seqs = malloc((size_t)n_seqs * sizeof(*seqs));
    struct ctw_kv_run *runs = malloc((size_t)(n_seqs * r.n_runs) * sizeof(*runs));
    assert_non_null(seqs);
    assert_non_null(runs);
    const double flops = rated_seqs(&r, seqs, runs);
    struct dev d[] = {dev_random(be, CTW_BF16, rows * r.n_head * r.head),
                      dev_random(be, CTW_BF16, rows * r.n_kv * r.head),
                      dev_random(be, CTW_BF16, rows * r.n_kv * r.head_v),
                      dev_random(be, CTW_BF16, rows * r.n_head * r.head_v)};
    const struct ctw_op_attention op = {.dtype = CTW_BF16,
                                        .n_head = r.n_head,
                                        .n_kv = r.n_kv,
                                        .head = r.head,
                                        .head_v = r.head_v,
                                        .scale = 1.0f / sqrtf((float)r.head),
                                        .window = r.window,
                                        .q = d[0].p,
                                        .k = d[1].p,
                                        .v = d[2].p,
                                        .out = d[3].p,
                                        .seqs = seqs,
                                        .n_seqs = n_seqs};
    (void)time_ops(be, &op, 3);
    const double s = time_ops(be, &op, 1 + (int)(0.15 / time_ops(be, &op, 5)));
    printf("%-7s %4d x %4d + %4d  heads %3d / %3d of %3d and %3d window %4d runs %2d  %8.3f ms "
           "%6.1f TFLOP/s\n",
           variant, (int)r.n, (int)r.length, (int)r.extra, r.n_head, r.n_kv, r.head, r.head_v,
           (int)r.window, r.n_runs, s * 1e3, flops / s * 1e-12);
    for (size_t i = 0; i < CTW_COUNT(d); i++)
        dev_close(&d[i]);
    free(runs);
    free(seqs);
}

static void rates(void **state)
{
    (void)state;
    for (int place = 0; places[place] != NULL; place++)
        for (size_t i = 0; i < CTW_COUNT(rated); i++)
            rate(places[place], place_name(place), rated[i]);
}
