/* Part of test_elementwise.cu: RMSNorm and q/k/v against double arithmetic, and with other rows in
 * the batch. */

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
