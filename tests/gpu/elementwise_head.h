/* Part of test_elementwise.cu: the head against double arithmetic, and with other rows in the
 * batch.
 */

struct head_case {
    struct kind kind;
    enum ctw_dtype dtype;
    int64_t n_vocab, n_rows;
    float scale, softcap;
    bool unit_rows;
};

/* Logits that are sums of few small multiples of 2^-7, so exact in any order. */
static void make_exact(struct made *m, void *x, enum ctw_dtype dtype, int64_t n_x)
{
    uint8_t *values = (uint8_t *)(uintptr_t)m->host.part[CTW_PART_VALUES];
    for (int64_t i = 0; i < m->w.n * m->w.k; i++)
        ctw_store_float(values, m->w.dtype, i, (float)((int)(rng() % 17) - 8) / 16);
    must(cudaMemcpy(m->part[CTW_PART_VALUES].p, values, m->part[CTW_PART_VALUES].bytes,
                    cudaMemcpyHostToDevice),
         "upload");
    for (int64_t i = 0; i < n_x; i++)
        ctw_store_float(x, dtype, i, (float)((int)(rng() % 17) - 8) / 8);
}

static struct ctw_head_result *run_head(struct ctw_op_head *op, struct buf *out)
{
    op->out = (struct ctw_head_result *)out->p;
    OK(ctw_head(&cu->backend, op, &last_err));
    return (struct ctw_head_result *)buf_read(out);
}

/* A row's logits in double; the sum of magnitudes of the target's products. */
static double want_logits(const struct head_case *c, const float *row, const float *w, bool exact,
                          int32_t target, double *logits)
{
    double magnitude = 0;
    int64_t k = c->kind.k;
    for (int64_t v = 0; v < c->n_vocab; v++) {
        double s = 0;
        if (exact) { /* in fp32, which is as good */
            float f[8] = {};
            for (int64_t i = 0; i < k; i += 8)
                for (int j = 0; j < 8; j++)
                    f[j] += row[i + j] * w[v * k + i + j];
            for (int j = 0; j < 8; j++)
                s += f[j];
        } else {
            for (int64_t i = 0; i < k; i++)
                s += (double)row[i] * w[v * k + i];
        }
        s *= c->scale;
        logits[v] = c->softcap > 0 ? c->softcap * tanh(s / c->softcap) : s;
    }
    for (int64_t i = 0; i < k; i++)
        magnitude += fabs((double)row[i] * w[target * k + i]);
    return magnitude;
}

struct head_errors {
    double worst, sum; /* the worst relative to its bound; the sum of errors */
    bool greedy;       /* all are right */
};

static void head_error(const struct head_case *c, const double *logits, bool exact,
                       double magnitude, int32_t target, const struct ctw_head_result *got,
                       struct head_errors *e)
{
    double most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < c->n_vocab; v++)
        most = fmax(most, logits[v]);
    for (int64_t v = 0; v < c->n_vocab; v++)
        sum += exp(logits[v] - most);
    double want = logits[target] - most - log(sum), error = got->logprob - want;
    double bound =
        1e-6 + half_step(CTW_F32, want) + 4 * half_step(CTW_F32, most) + 4 * 0x1p-24 * c->softcap;
    if (!exact)
        bound += 4 * (double)c->kind.k * 0x1p-24 * magnitude * fabs((double)c->scale);
    bool first = exact && c->softcap == 0; /* the logits are the GPU's own */
    e->worst = fmax(e->worst, isnan(error) ? 1e9 : fabs(error) / bound);
    e->sum += error;
    e->greedy = e->greedy && got->greedy >= 0 && got->greedy < c->n_vocab &&
                logits[got->greedy] >= most - (first ? 0 : 2 * bound);
    for (int64_t v = 0; e->greedy && first && v < got->greedy; v++)
        e->greedy = logits[v] < most;
}

static bool head_is_alone(struct ctw_op_head op, int64_t k, const struct ctw_head_result *got)
{
    const char *x = (const char *)op.x;
    const int32_t *targets = op.targets;
    int64_t n = op.n_rows;
    bool same = true;
    for (int64_t t = 0, part; t < n; t += part) {
        part = t + 1 + t / 3 < n ? 1 + t / 3 : n - t;
        op.n_rows = part;
        op.x = x + (size_t)(t * k) * ctw_dtype_bytes(op.dtype);
        op.targets = targets + t;
        struct buf few = buf_open((size_t)part * sizeof(struct ctw_head_result), 0);
        struct ctw_head_result *alone = run_head(&op, &few);
        same = same && memcmp(alone, got + t, few.bytes) == 0;
        free(alone);
        buf_close(&few);
    }
    return same;
}

/* As operations.h defines it: a quotient of another precision may round to another number. */
static void to_unit_length(float *row, int64_t k, enum ctw_dtype dtype)
{
    double squares = 0;
    for (int64_t i = 0; i < k; i++)
        squares += (double)row[i] * row[i];
    float length = ctw_unit_length(squares);
    for (int64_t i = 0; i < k; i++)
        row[i] = ctw_round_float(row[i] / length, dtype);
}

/* Does a head in parts have the bits of the whole one? */
static bool head_in_parts(struct ctw_op_head op, const struct ctw_head_result *got)
{
    const struct ctw_shard *whole = op.weight;
    bool plain = op.softcap == 0 && whole->bias == NULL;
    int64_t step = ctw_backend_head_rows(&cu->backend, op.dtype, whole->weight->k, plain), n;
    struct buf out = buf_open((size_t)op.n_rows * sizeof(struct ctw_head_result), 0);
    op.out = (struct ctw_head_result *)out.p;
    for (op.id0 = 0; op.id0 < op.n_vocab; op.id0 += n) {
        struct rows_part part;
        n = step * (1 + (int64_t)(rng() % 40));
        n = n < whole->n - op.id0 ? n : whole->n - op.id0;
        rows_part_open(&part, whole, op.id0, n);
        op.weight = &part.shard;
        OK(ctw_head(&cu->backend, &op, &last_err));
    }
    void *results = buf_read(&out);
    bool same = memcmp(results, got, out.bytes) == 0;
    free(results);
    buf_close(&out);
    return same;
}

static void check_head(const struct head_case *c)
{
    struct made m;
    weight_open(&m, &c->kind);
    int64_t k = c->kind.k, n = c->n_rows;
    bool exact = c->kind.format == DENSE && k <= 64 && !c->unit_rows;
    void *x = host_random(c->dtype, n * k, 3.0f / sqrtf((float)k));
    if (exact)
        make_exact(&m, x, c->dtype, n * k);
    float *w = (float *)weight_decoded(&m, CTW_F32),
          *row = (float *)malloc((size_t)k * sizeof(float));
    for (int64_t i = 0; i < m.w.n * k; i++)
        w[i] = ctw_round_float(w[i], c->dtype);
    for (int64_t v = 0; c->unit_rows && v < m.w.n; v++)
        to_unit_length(w + v * k, k, c->dtype);
    int32_t *targets = (int32_t *)malloc((size_t)n * sizeof(*targets));
    for (int64_t t = 0; t < n; t++)
        targets[t] = (int32_t)(t == 0 ? c->n_vocab - 1 : rng() % c->n_vocab);
    struct buf xd = buf_from(x, (size_t)(n * k) * ctw_dtype_bytes(c->dtype), 0);
    struct buf td = buf_from(targets, (size_t)n * sizeof(*targets), 0);
    struct buf out = buf_open((size_t)n * sizeof(struct ctw_head_result), 0);
    struct ctw_op_head op = {&m.shard, c->dtype, c->scale,        c->softcap, c->n_vocab,
                             n,        xd.p,     (int32_t *)td.p, NULL};
    op.unit_rows = c->unit_rows;
    struct ctw_head_result *got = run_head(&op, &out);
    bool same = guards_whole(&out);
    double *logits = (double *)malloc(sizeof(double) * (size_t)c->n_vocab);
    struct head_errors e = {0, 0, true};
    for (int64_t t = 0; t < n; t++) {
        for (int64_t i = 0; i < k; i++)
            row[i] = ctw_load_float(x, c->dtype, t * k + i);
        double magnitude = want_logits(c, row, w, exact, targets[t], logits);
        head_error(c, logits, exact, magnitude, targets[t], &got[t], &e);
    }
    same = head_is_alone(op, k, got) && same;
    bool in_parts = c->kind.format != DENSE || head_in_parts(op, got);
    report(e.worst <= 1 && same && e.greedy && in_parts,
           "head %s %s, %d rows, vocabulary %d of %d, k %d: %.2f of the bound, mean error %.1e%s%s%s",
           c->kind.name, ctw_dtype_name(c->dtype), (int)n, (int)c->n_vocab, (int)c->kind.n, (int)k,
           e.worst, e.sum / (double)n, same ? "" : ", rows differ by company",
           e.greedy ? "" : ", greedy is wrong", in_parts ? "" : ", parts differ");
    free(logits), free(row), free(got), free(targets), free(w), free(x);
    buf_close(&xd), buf_close(&td), buf_close(&out);
    weight_close(&m);
}

/* Non-finite and equal logits. The logits are a column of the weight. */
static void check_head_specials(void)
{
    enum { VOCAB = 20000, K = 8, N = 8 };
    static const struct kind kind = {"",    DENSE, 32, CTW_F32, 0, NO_ZEROS,
                                     false, false, 0,  VOCAB,   K};
    struct made m;
    weight_open(&m, &kind);
    float *w = (float *)(uintptr_t)m.host.part[CTW_PART_VALUES];
    int32_t targets[N] = {3, 3, 19000, 12000, 12000, 7, 3, 15000};
    for (int v = 0; v < VOCAB; v++) {
        w[v * K + 1] = v < 9000 ? -INFINITY : 1;              /* target 3: -infinity */
        w[v * K + 2] = v < 18000 ? -INFINITY : 0;             /* target among 2000 */
        w[v * K + 3] = v == 12000 || v == 19999 ? 30.0f : -1; /* the first of equals */
        w[v * K + 4] = v == 8500 ? NAN : 0;
        w[v * K + 5] = v == 13000 ? INFINITY : 0;
        w[v * K + 6] = -INFINITY;
        w[v * K + 7] = v < 8192 ? NAN : 0; /* a tile of nothing else */
    }
    /* Zero times infinity must not reach other rows: each is run with its own column alone. */
    struct buf td = buf_from(targets, sizeof(targets), 0),
               out = buf_open(sizeof(struct ctw_head_result), 0);
    for (int t = 0; t < N; t++) {
        float *column = (float *)malloc(sizeof(float) * VOCAB * K), one[K] = {1};
        for (int i = 0; i < VOCAB * K; i++)
            column[i] = i % K == 0 ? w[i + t] : 0;
        must(cudaMemcpy(m.part[CTW_PART_VALUES].p, column, sizeof(float) * VOCAB * K,
                        cudaMemcpyHostToDevice),
             "upload");
        struct buf xd = buf_from(one, sizeof(one), 0);
        struct ctw_op_head op = {&m.shard, CTW_F32, 1, 0, VOCAB, 1, xd.p, (int32_t *)td.p + t,
                                 NULL};
        struct ctw_head_result *got = run_head(&op, &out);
        double p = got->logprob;
        bool in = got->greedy >= 0 && got->greedy < VOCAB;
        bool ok = t == 0   ? isfinite(p)
                  : t == 1 ? isinf(p) && p < 0 && got->greedy == 9000
                  : t == 2 ? fabs(p + log(2000)) < 1e-6 && got->greedy == 18000
                  : t == 3 ? fabs(p + log(2)) < 1e-6 && got->greedy == 12000
                           : isnan(p);
        report(ok && in, "head, what is not finite and equals, %d: logprob %g, greedy %d", t, p,
               got->greedy);
        free(got);
        free(column);
        buf_close(&xd);
    }
    buf_close(&td), buf_close(&out);
    weight_close(&m);
}

static const struct head_case unit_heads[] = {
    {{"bf16, unit rows", DENSE, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 9001, 256},
     CTW_BF16,
     9001,
     130,
     1,
     0,
     true},
    {{"int4, unit rows", PACK, 4, CTW_F16, 32, NO_ZEROS, false, false, 0, 9001, 96},
     CTW_F16,
     9000,
     70,
     0.5f,
     5,
     true},
    {{"fp32, unit rows", DENSE, 32, CTW_F32, 0, NO_ZEROS, false, false, 0, 300, 72},
     CTW_F32,
     300,
     17,
     1,
     0,
     true},
};

static void check_heads(void)
{
    static const struct head_case cases[] = {
        {{"bf16 exact", DENSE, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 128256, 64},
         CTW_BF16,
         128256,
         300,
         1,
         0},
        {{"fp16 exact", DENSE, 16, CTW_F16, 0, NO_ZEROS, false, false, 0, 8193, 64},
         CTW_F16,
         8193,
         2300,
         1,
         0},
        {{"fp32 exact", DENSE, 32, CTW_F32, 0, NO_ZEROS, false, false, 0, 3000, 8},
         CTW_F32,
         2999,
         70,
         1,
         0},
        {{"bf16 exact, softcap", DENSE, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 9000, 64},
         CTW_BF16,
         8999,
         70,
         0.5f,
         5},
        {{"fp32", DENSE, 32, CTW_F32, 0, NO_ZEROS, false, false, 0, 5000, 72},
         CTW_BF16,
         5000,
         70,
         1,
         0},
        {{"int4", PACK, 4, CTW_BF16, 32, NO_ZEROS, false, false, 0, 9001, 256},
         CTW_BF16,
         9001,
         130,
         1,
         0},
        {{"int8", PACK, 8, CTW_F16, 0, PACKED_ZEROS, false, false, 0, 100, 128},
         CTW_F16,
         97,
         17,
         2,
         0},
        {{"bf16 exact", DENSE, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 8, 64},
         CTW_BF16,
         1,
         5,
         1,
         0},
        {{"bf16 exact", DENSE, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 8192, 64},
         CTW_BF16,
         8192,
         5,
         1,
         0},
    };
    for (size_t i = 0; i < CTW_COUNT(cases); i++)
        check_head(&cases[i]);
    for (size_t i = 0; i < CTW_COUNT(unit_heads); i++)
        check_head(&unit_heads[i]);
    check_head_specials();
}
