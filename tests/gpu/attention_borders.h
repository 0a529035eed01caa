/* Part of test_attention.cu: runs of keys that end at every position, against one run. */

/* A sequence of n keys in runs: the first ends at `border`, some short ones follow; or, for borders past
 * the end, up to MAX_RUNS of random lengths. Returns their number. */
static int cut_into_runs(struct ctw_kv_run *runs, int64_t n, int64_t border)
{
    const int64_t first[] = {border, border % 3 == 0 ? 0 : 1 + border % 7,
                             border % 3 == 1 ? 0 : border % 37};
    int most = border < n ? 4 : 2 + (int)(border % (MAX_RUNS - 1)), n_runs = 0;
    for (int64_t left = n; left > 0;) {
        int64_t len = border < n ? first[n_runs % 3] : 1 + rng_below(2 * n / most);
        len = n_runs + 1 == most || len > left ? left : len;
        runs[n_runs++].n_tok = len;
        left -= len;
    }
    return n_runs;
}

/* Rows of `row` bytes: the runs from one after another to their own places. */
static void move_runs(char *to, const char *from, size_t row, const struct ctw_kv_run *runs, int n_runs)
{
    for (int r = 0; r < n_runs; from += runs[r++].n_tok * row)
        CU(cudaMemcpyAsync(to + runs[r].row * row, from, runs[r].n_tok * row, cudaMemcpyDeviceToDevice));
}

static void check_borders_of(struct ctw_cuda *cu, const char *variant, const struct shape *s,
                          enum ctw_dtype dtype)
{
    enum { N = 300, MORE = 60, GAP = 2 };
    const int64_t length = N, rows = N + GAP * (MAX_RUNS + 1);
    struct problem p;
    problem_open(&p, s, dtype, &length, 1, 1);
    poison(&p);
    char *want = results(cu, &p, &p.op);
    size_t k_row = p.k.bytes / p.kv_rows, v_row = p.v.bytes / p.kv_rows;
    int64_t first = p.runs[0][0].row;
    struct array k = array_new(rows * k_row), v = array_new(rows * v_row);
    struct ctw_op_attention op = p.op;
    op.k = k.device;
    op.v = v.device;
    int n_differ = 0;
    for (int64_t border = 1; border < N + MORE; border++) {
        struct ctw_kv_run *runs = p.runs[0];
        p.seqs[0].n_runs = cut_into_runs(runs, N, border);
        int64_t at = 0;
        for (int r = p.seqs[0].n_runs - 1; r >= 0; at += runs[r--].n_tok)
            runs[r].row = at += GAP;
        CU(cudaMemset(k.device, 0xFF, k.bytes)); /* NaN in every dtype */
        CU(cudaMemset(v.device, 0xFF, v.bytes));
        move_runs(k.device, p.k.device + first * k_row, k_row, runs, p.seqs[0].n_runs);
        move_runs(v.device, p.v.device + first * v_row, v_row, runs, p.seqs[0].n_runs);
        poison(&p);
        char *got = results(cu, &p, &op);
        n_differ += memcmp(got, want, p.out.bytes) != 0;
        ctw_free(got);
    }
    char more[96];
    snprintf(more, sizeof(more), "%d of %d differ from one run", n_differ, N + MORE - 1);
    told(n_differ == 0, "borders", variant, &p, more);
    array_close(&k);
    array_close(&v);
    ctw_free(want);
    problem_close(&p);
}

static void check_borders(struct ctw_cuda *cu, const char *variant)
{
    static const struct shape some[] = {
        {4, 1, 128, 0, 0},  {2, 2, 256, 0, 0}, {8, 1, 64, 0, 0},           {4, 4, 192, 0, 0, 128},
        {2, 1, 96, 100, 0}, {2, 1, 512, 0, 0}, {4, 2, 64, 0, 0, 0, 100}, {3, 1, 33, 0, 0},
    };
    for (size_t i = 0; i < CTW_COUNT(some); i++)
        for (int d = 0; d < 3; d++) {
            static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};
            check_borders_of(cu, variant, &some[i], dtypes[d]);
        }
}
