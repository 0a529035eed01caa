/* Part of test_elementwise.cu: RMSNorm, q/k/v and the head against double arithmetic, and with
 * other rows in the batch. */

/* Half the distance between neighbours of dtype at |x|, the error of one rounding. */
static double half_step(enum ctw_dtype dtype, double x)
{
    int bits = dtype == CTW_F32 ? 24 : dtype == CTW_BF16 ? 8 : 11;
    int least = dtype == CTW_F16 ? -24 : dtype == CTW_BF16 ? -133 : -149;
    double step = ldexp(1, -bits) * fabs(x);
    return step > ldexp(1, least - 1) ? step : ldexp(1, least - 1);
}

/* The largest |got - want| relative to the allowed error: `bound` before the rounding to dtype. */
static double part_of_bound(double got, double want, double bound, enum ctw_dtype dtype)
{
    double part = fabs(got - want) / (bound + 1.001 * half_step(dtype, fabs(want) + bound));
    return isnan(part) ? 1e9 : part;
}

/* ---- RMSNorm ------------------------------------------------------------------------------ */

enum { NORM_ROWS = 23 };

/* Rows alone, to an unaligned address; all in place. `got` are rows in order, `picked` by
 * number. */
static bool norm_is_alone(struct ctw_op_norm op, const int64_t *rows, const char *got,
                          const char *picked)
{
    size_t row_bytes = (size_t)op.dim * ctw_dtype_bytes(op.dtype);
    struct buf one = buf_open(row_bytes, 4);
    bool same = true;
    for (int64_t t = 0; t < NORM_ROWS; t += 6) {
        op.rows = rows + t;
        op.n_tok = 1;
        op.y = one.p;
        OK(ctw_norm(&cu->backend, &op, &last_err));
        void *alone = buf_read(&one);
        same = same && memcmp(alone, picked + t * row_bytes, row_bytes) == 0;
        free(alone);
    }
    buf_close(&one);
    if (op.x_dtype == op.dtype) {
        op.rows = NULL;
        op.n_tok = NORM_ROWS;
        op.y = (void *)(uintptr_t)op.x;
        OK(ctw_norm(&cu->backend, &op, &last_err));
        struct buf x;
        x.p = (char *)op.y;
        x.bytes = NORM_ROWS * row_bytes;
        void *in_place = buf_read(&x);
        same = same && memcmp(in_place, got, x.bytes) == 0;
        free(in_place);
    }
    return same;
}

/* The worst element of row t, relative to its bound; x and w on the host. */
static double norm_error(const struct ctw_op_norm *op, const void *x, const void *w,
                         const char *got, int64_t t)
{
    double sum = 0, worst = 0;
    for (int64_t i = 0; i < op->dim; i++)
        sum += pow(ctw_load_float(x, op->x_dtype, t * op->dim + i), 2);
    double r = 1 / sqrt(sum / (double)op->dim + op->eps);
    for (int64_t i = 0; i < op->dim && isfinite(sum); i++) {
        double want = ctw_load_float(x, op->x_dtype, t * op->dim + i) * r *
                      ((double)ctw_load_float(w, op->weight_dtype, i) + op->weight_offset);
        worst = fmax(worst, part_of_bound(ctw_load_float(got, op->dtype, t * op->dim + i), want,
                                          40 * 0x1p-24 * fabs(want), op->dtype));
    }
    return worst;
}

static void check_norm(int64_t dim, enum ctw_dtype x_dtype, enum ctw_dtype dtype,
                       enum ctw_dtype w_dtype)
{
    enum { N = NORM_ROWS };
    size_t xs = ctw_dtype_bytes(x_dtype), ys = ctw_dtype_bytes(dtype);
    void *x = host_random(x_dtype, N * dim, 3), *w = host_random(w_dtype, dim, 1);
    int64_t rows[N];
    int16_t bad[N];
    for (int i = 0; i < N; i++) {
        rows[i] = i == 0 ? N - 1 : rng() % N;
        bad[i] = i == 9 ? 3 : -1;
    }
    ctw_store_float(x, x_dtype, 4 * dim + dim - 1, NAN);
    ctw_store_float(x, x_dtype, 9 * dim, INFINITY);
    ctw_store_float(x, x_dtype, 17 * dim + dim / 2, -INFINITY);
    struct buf xd = buf_from(x, (size_t)(N * dim) * xs, 0),
               wd = buf_from(w, (size_t)dim * ctw_dtype_bytes(w_dtype), 0);
    struct buf rd = buf_from(rows, sizeof(rows), 0), bd = buf_from(bad, sizeof(bad), 0);
    struct buf y = buf_open((size_t)(N * dim) * ys, 0), z = buf_open(y.bytes, 0);
    struct ctw_op_norm op = {};
    op.dtype = dtype;
    op.n_tok = N;
    op.dim = dim;
    op.x = xd.p;
    op.x_dtype = x_dtype;
    op.weight = wd.p;
    op.weight_dtype = w_dtype;
    op.weight_offset = (float)(dim % 2);
    op.eps = 1e-5f;
    op.y = y.p;
    op.bad = (int16_t *)bd.p;
    op.stamp = 7;
    OK(ctw_norm(&cu->backend, &op, &last_err));
    op.rows = (int64_t *)rd.p;
    op.y = z.p;
    OK(ctw_norm(&cu->backend, &op, &last_err));
    char *got = (char *)buf_read(&y), *picked = (char *)buf_read(&z);
    int16_t *marks = (int16_t *)buf_read(&bd);
    bool same = guards_whole(&y) && guards_whole(&z), marked = true;
    double worst = 0;
    for (int t = 0; t < N; t++) {
        same = same && memcmp(picked + t * dim * ys, got + rows[t] * dim * ys, dim * ys) == 0;
        marked = marked && marks[t] == (t == 9 ? 3 : t == 4 || t == 17 ? 7 : -1);
        worst = fmax(worst, norm_error(&op, x, w, got, t));
        for (int64_t i = 0; i < dim && t == 4; i++)
            marked = marked && isnan(ctw_load_float(got, dtype, t * dim + i));
    }
    same = norm_is_alone(op, (int64_t *)rd.p, got, picked) && same;
    report(worst <= 1 && same && marked, "norm %d %s -> %s, weight %s: %.2f of the bound%s%s",
           (int)dim, ctw_dtype_name(x_dtype), ctw_dtype_name(dtype), ctw_dtype_name(w_dtype), worst,
           same ? "" : ", rows differ by company", marked ? "" : ", marks are wrong");
    struct buf *all[] = {&xd, &wd, &rd, &bd, &y, &z};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        buf_close(all[i]);
    free(x), free(w), free(got), free(picked), free(marks);
}

static void check_norms(void)
{
    static const int dims[] = {1,   7,    8,    9,    16,   31,   64,   255,   256,   257,
                               576, 1023, 1025, 2049, 4096, 5120, 8192, 16384, 16392, 20001};
    for (size_t i = 0; i < CTW_COUNT(dims); i++)
        for (int d = 0; d < 3; d++) {
            check_norm(dims[i], CTW_F32, dtypes[d], dtypes[(i + d) % 3]);
            if (i % 2 == 0 && d > 0)
                check_norm(dims[i], dtypes[d], dtypes[i % 3], dtypes[(i + d) % 3]);
        }
}

/* ---- q, k, v ------------------------------------------------------------------------------ */

struct split_shape {
    int n_head, n_kv, head, rot_dim;
};

/* One head in double; cos_sin NULL: no rotation. */
static void want_head(const struct ctw_op_qkv *op, const void *norm, const float *cos_sin,
                      const void *src, int64_t from, double *out)
{
    double r = 1, x[256];
    int half = op->rot_dim / 2;
    for (int i = 0; i < op->head; i++)
        x[i] = ctw_load_float(src, op->dtype, from + i);
    if (norm != NULL) {
        double sum = 0;
        for (int i = 0; i < op->head; i++)
            sum += x[i] * x[i];
        r = 1 / sqrt(sum / op->head + op->norm_eps);
    }
    for (int i = 0; i < op->head; i++)
        out[i] = x[i] * r * (norm != NULL ? ctw_load_float(norm, op->norm_dtype, i) : 1);
    for (int p = 0; p < half && cos_sin != NULL; p++) {
        int i = op->pairing == CTW_ROPE_HALVES ? p : 2 * p,
            j = op->pairing == CTW_ROPE_HALVES ? p + half : i + 1;
        double a = out[i], b = out[j];
        out[i] = a * cos_sin[p] - b * cos_sin[half + p];
        out[j] = b * cos_sin[p] + a * cos_sin[half + p];
    }
}

enum { SPLIT_ROWS = 21, POSITIONS = 300 };

/* One call's arrays on the host, and the addresses of its results on the device. */
struct split_test {
    void *x, *w[2]; /* norms' weights, or NULL */
    float *table;
    int32_t positions[SPLIT_ROWS];
    struct buf out[3];
    int64_t sizes[3]; /* elements of a row of q, k, v */
    char *got[3];
};

/* The worst element relative to its bound. */
static double split_error(const struct ctw_op_qkv *op, const struct split_test *s)
{
    int n_all = op->n_head + 2 * op->n_kv;
    double worst = 0, want[256];
    for (int t = 0; t < SPLIT_ROWS; t++)
        for (int n = 0; n < n_all; n++) {
            int kind = n < op->n_head ? 0 : n < op->n_head + op->n_kv ? 1 : 2;
            int at = n - (kind == 0 ? 0 : kind == 1 ? op->n_head : op->n_head + op->n_kv);
            want_head(op, kind == 2 ? NULL : s->w[kind],
                      kind == 2 ? NULL : s->table + s->positions[t] * op->rot_dim, s->x,
                      ((int64_t)t * n_all + n) * op->head, want);
            double most = 0; /* the bound is of the larger of a pair; here of the head */
            for (int i = 0; i < op->head; i++)
                most = fmax(most, fabs(want[i]));
            for (int i = 0; i < op->head; i++) {
                int64_t e = t * s->sizes[kind] + at * op->head + i;
                worst =
                    fmax(worst, part_of_bound(ctw_load_float(s->got[kind], op->dtype, e), want[i],
                                              kind == 2 ? 0 : 24 * 0x1p-24 * most, op->dtype));
            }
        }
    return worst;
}

static bool split_is_alone(struct ctw_op_qkv op, const struct split_test *s)
{
    size_t es = ctw_dtype_bytes(op.dtype);
    const char *x = (const char *)op.qkv;
    const int32_t *positions = op.positions;
    bool same = true;
    struct buf one[3];
    for (int i = 0; i < 3; i++)
        one[i] = buf_open((size_t)s->sizes[i] * es, 0);
    for (int t = 0; t < SPLIT_ROWS; t += 5) {
        op.n_tok = 1;
        op.qkv = x + (size_t)(t * (s->sizes[0] + 2 * s->sizes[1])) * es;
        op.positions = positions + t;
        op.q = one[0].p, op.k = one[1].p, op.v = one[2].p;
        OK(ctw_qkv(&cu->backend, &op, &last_err));
        for (int i = 0; i < 3; i++) {
            void *alone = buf_read(&one[i]);
            same = same &&
                   memcmp(alone, s->got[i] + (size_t)(t * s->sizes[i]) * es, one[i].bytes) == 0;
            free(alone);
        }
    }
    for (int i = 0; i < 3; i++)
        buf_close(&one[i]);
    return same;
}

static void check_split(const struct split_shape *h, enum ctw_dtype dtype,
                        enum ctw_rope_pairing pairing, int norms)
{
    enum { N = SPLIT_ROWS };
    size_t es = ctw_dtype_bytes(dtype),
           table_bytes = sizeof(float) * POSITIONS * (size_t)(h->rot_dim + 1);
    int64_t row = (int64_t)(h->n_head + 2 * h->n_kv) * h->head;
    enum ctw_dtype norm_dtype = dtypes[rng() % 3];
    size_t norm_bytes = 256 * ctw_dtype_bytes(norm_dtype);
    char *w = (char *)host_random(norm_dtype, 2 * 256, 1);
    struct split_test s = {};
    s.x = host_random(dtype, N * row, 2);
    s.table = (float *)malloc(table_bytes);
    for (int i = 0; i < POSITIONS * h->rot_dim; i++)
        s.table[i] = sinf((float)i * 0.7f);
    for (int i = 0; i < N; i++)
        s.positions[i] = i == 0 ? POSITIONS - 1 : (int32_t)(rng() % POSITIONS);
    struct buf xd = buf_from(s.x, (size_t)(N * row) * es, 0), wd = buf_from(w, 2 * norm_bytes, 0);
    struct buf td = buf_from(s.table, table_bytes, 0),
               pd = buf_from(s.positions, sizeof(s.positions), 0);
    for (int i = 0; i < 3; i++) {
        s.sizes[i] = (int64_t)(i == 0 ? h->n_head : h->n_kv) * h->head;
        s.out[i] = buf_open((size_t)(N * s.sizes[i]) * es, 0);
    }
    s.w[0] = norms & 1 ? w : NULL;
    s.w[1] = norms & 2 ? w + norm_bytes : NULL;
    struct ctw_op_qkv op = {};
    op.dtype = dtype;
    op.n_tok = N;
    op.n_head = h->n_head;
    op.n_kv = h->n_kv;
    op.head = h->head;
    op.qkv = xd.p;
    op.q_norm = norms & 1 ? wd.p : NULL;
    op.k_norm = norms & 2 ? wd.p + norm_bytes : NULL;
    op.norm_dtype = norm_dtype;
    op.norm_eps = 1e-6f;
    op.pairing = pairing;
    op.rot_dim = h->rot_dim;
    op.positions = (int32_t *)pd.p;
    op.cos_sin = (float *)td.p;
    op.q = s.out[0].p, op.k = s.out[1].p, op.v = s.out[2].p;
    OK(ctw_qkv(&cu->backend, &op, &last_err));
    bool same = true;
    for (int i = 0; i < 3; i++) {
        s.got[i] = (char *)buf_read(&s.out[i]);
        same = same && guards_whole(&s.out[i]);
    }
    double worst = split_error(&op, &s);
    same = split_is_alone(op, &s) && same;
    report(worst <= 1 && same,
           "qkv %d/%d heads of %d, rot %d %s, norms %d, %s: %.2f of the bound%s", h->n_head,
           h->n_kv, h->head, h->rot_dim, pairing == CTW_ROPE_HALVES ? "halves" : "neighbours",
           norms, ctw_dtype_name(dtype), worst, same ? "" : ", rows differ by company");
    for (int i = 0; i < 3; i++) {
        free(s.got[i]);
        buf_close(&s.out[i]);
    }
    buf_close(&xd), buf_close(&wd), buf_close(&td), buf_close(&pd);
    free(s.x), free(w), free(s.table);
}

static void check_splits(void)
{
    static const struct split_shape shapes[] = {
        {9, 3, 64, 64}, {32, 8, 128, 128}, {2, 2, 16, 16},  {4, 1, 128, 32},
        {3, 3, 40, 20}, {1, 1, 6, 2},      {2, 1, 33, 30},  {5, 5, 256, 64},
        {8, 2, 80, 0},  {4, 4, 80, 80},    {3, 1, 96, 48},  {6, 2, 256, 256},
        {7, 1, 64, 32}, {4, 2, 96, 96},    {2, 1, 128, 24}, {1, 1, 1, 0},
    };
    for (size_t s = 0; s < CTW_COUNT(shapes); s++)
        for (int i = 0; i < 6; i++)
            check_split(&shapes[s], dtypes[(s + i) % 3],
                        i % 2 ? CTW_ROPE_HALVES : CTW_ROPE_INTERLEAVED, (int)(s + i / 2) % 4);
}

/* ---- the head ----------------------------------------------------------------------------- */

struct head_case {
    struct kind kind;
    enum ctw_dtype dtype;
    int64_t n_vocab, n_rows;
    float scale, softcap;
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

static void check_head(const struct head_case *c)
{
    struct made m;
    weight_open(&m, &c->kind);
    int64_t k = c->kind.k, n = c->n_rows;
    bool exact = c->kind.format == DENSE && k <= 64;
    void *x = host_random(c->dtype, n * k, 3.0f / sqrtf((float)k));
    if (exact)
        make_exact(&m, x, c->dtype, n * k);
    float *w = (float *)weight_decoded(&m, CTW_F32),
          *row = (float *)malloc((size_t)k * sizeof(float));
    for (int64_t i = 0; i < m.w.n * k; i++)
        w[i] = ctw_round_float(w[i], c->dtype);
    int32_t *targets = (int32_t *)malloc((size_t)n * sizeof(*targets));
    for (int64_t t = 0; t < n; t++)
        targets[t] = (int32_t)(t == 0 ? c->n_vocab - 1 : rng() % c->n_vocab);
    struct buf xd = buf_from(x, (size_t)(n * k) * ctw_dtype_bytes(c->dtype), 0);
    struct buf td = buf_from(targets, (size_t)n * sizeof(*targets), 0);
    struct buf out = buf_open((size_t)n * sizeof(struct ctw_head_result), 0);
    struct ctw_op_head op = {&m.shard, c->dtype, c->scale,        c->softcap, c->n_vocab,
                             n,        xd.p,     (int32_t *)td.p, NULL};
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
    report(e.worst <= 1 && same && e.greedy,
           "head %s %s, %d rows, vocabulary %d of %d, k %d: %.2f of the bound, mean error %.1e%s%s",
           c->kind.name, ctw_dtype_name(c->dtype), (int)n, (int)c->n_vocab, (int)c->kind.n, (int)k,
           e.worst, e.sum / (double)n, same ? "" : ", rows differ by company",
           e.greedy ? "" : ", greedy is wrong");
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
    check_head_specials();
}
