/*
 * Part of test_elementwise.cu: the operations of layers that are not Llama's (norms of every kind,
 * activations, sums of embeddings, heads in any order, a head with a bias), with random shapes,
 * against the CPU's definition; and a row alone, which must have the same bits.
 */

static struct ctw_backend *definition; /* the CPU's variant "c" */

enum { KIND_ROWS = 9 };

/* The same array on both sides. */
struct both {
    void *host;
    struct buf dev;
};

static struct both both_open(enum ctw_dtype dtype, int64_t n, float scale, size_t misalign)
{
    struct both b;
    b.host = host_random(dtype, n, scale);
    b.dev = buf_from(b.host, (size_t)n * ctw_dtype_bytes(dtype), misalign);
    return b;
}

static void both_upload(struct both *b)
{
    must(cudaMemcpy(b->dev.p, b->host, b->dev.bytes, cudaMemcpyHostToDevice), "upload");
    must(cudaDeviceSynchronize(), "upload");
}

static void both_close(struct both *b)
{
    free(b->host);
    buf_close(&b->dev);
}

static bool chance(int one_in)
{
    return rng() % (unsigned)one_in == 0;
}

static int64_t pick(const int64_t *list, size_t n)
{
    return list[rng() % n];
}

/* A leading dimension of at least n: n itself, or more, a multiple of 8 or not. */
static int64_t some_ld(int64_t n)
{
    return chance(2) ? n : n + (chance(2) ? 8 : 3);
}

/* Of a result that both sides round to dtype; bound: before rounding (of a row that is not finite:
 * NaN). */
static double kind_part(double got, double want, double bound, enum ctw_dtype dtype)
{
    if (isnan(want) || isinf(want))
        return (isnan(want) ? isnan(got) : got == want) ? 0 : 1e9;
    bound = isnan(bound) ? 1e-5 * (fabs(want) + 1) : bound;
    return part_of_bound(got, want, bound + 1.001 * half_step(dtype, fabs(want) + bound), dtype);
}

/* Results [KIND_ROWS, ld]: the worst of the first n of each row, by bounds [KIND_ROWS, n]; elements
 * between the rows must be as before. */
static double rows_part(const void *got, const void *want, enum ctw_dtype dtype, int64_t n, int64_t ld,
                        const double *bounds)
{
    double worst = 0;
    for (int64_t i = 0; i < KIND_ROWS * ld; i++) {
        double g = ctw_load_float(got, dtype, i), w = ctw_load_float(want, dtype, i);
        if (i % ld < n)
            worst = fmax(worst, kind_part(g, w, bounds[i / ld * n + i % ld], dtype));
        else if (g != w)
            worst = 1e9;
    }
    return worst;
}

/* ---- norms -------------------------------------------------------------------------------- */

struct norm_test {
    struct ctw_op_norm op; /* on the host */
    int64_t x_rows;
    struct both x, y, weight, bias, rows, bad;
    bool in_place;
};

static void norm_test_open(struct norm_test *n, int round)
{
    static const int64_t dims[] = {1,   7,    48,   64,   80,   128,  257,   512,
                                   513, 1024, 2056, 4096, 8200, 9001, 16384, 20001};
    struct ctw_op_norm *op = &n->op;
    memset(n, 0, sizeof(*n));
    op->kind = (enum ctw_norm_kind)(round % 3);
    op->dtype = dtypes[rng() % 3];
    op->x_dtype = chance(3) ? op->dtype : dtypes[rng() % 3];
    op->n_tok = KIND_ROWS;
    op->dim = pick(dims, CTW_COUNT(dims));
    op->n_groups = op->dim <= 1024 ? (int64_t)(rng() % 6) : 1;
    int64_t groups = op->n_groups > 0 ? op->n_groups : 1, width = groups * op->dim;
    op->ldx = some_ld(width);
    op->ldy = some_ld(width);
    op->own_weights = chance(2);
    op->weight_dtype = dtypes[rng() % 3];
    op->bias_dtype = dtypes[rng() % 3];
    op->weight_offset = chance(2) ? 1.0f : 0.0f;
    op->eps = 1e-5f;
    op->factor = chance(2) ? 0.0f : -0.375f;
    op->add = chance(2);
    n->in_place = !op->add && op->x_dtype == op->dtype && chance(2);
    bool picked = !n->in_place && chance(2);
    if (n->in_place)
        op->ldy = op->ldx;
    n->x_rows = picked ? 2 * KIND_ROWS : KIND_ROWS;
    n->x = both_open(op->x_dtype, n->x_rows * op->ldx, 2, 0);
    for (int64_t i = 0; i < n->x_rows * op->ldx; i++) /* a mean that is not 0 */
        ctw_store_float(n->x.host, op->x_dtype, i, ctw_load_float(n->x.host, op->x_dtype, i) + 0.5f);
    ctw_store_float(n->x.host, op->x_dtype, 4 * op->ldx + op->dim - 1, NAN);
    ctw_store_float(n->x.host, op->x_dtype, 7 * op->ldx, INFINITY);
    both_upload(&n->x);
    n->y = both_open(op->dtype, KIND_ROWS * op->ldy, 1, 0);
    n->weight = both_open(op->weight_dtype, width, 1, 0);
    n->bias = both_open(op->bias_dtype, width, 1, 0);
    n->rows = both_open(CTW_F32, 2 * KIND_ROWS, 0, 0);
    n->bad = both_open(CTW_BF16, n->x_rows, 0, 0);
    for (int i = 0; i < KIND_ROWS; i++)
        ((int64_t *)n->rows.host)[i] = (int64_t)(rng() % (unsigned)n->x_rows);
    for (int64_t i = 0; i < n->x_rows; i++)
        ((int16_t *)n->bad.host)[i] = i == 7 && chance(2) ? 3 : -1;
    both_upload(&n->rows);
    both_upload(&n->bad);
    op->x = n->x.host;
    op->y = n->in_place ? n->x.host : n->y.host;
    op->weight = chance(4) ? NULL : n->weight.host;
    op->bias = chance(2) ? NULL : n->bias.host;
    op->rows = picked ? (const int64_t *)n->rows.host : NULL;
    op->bad = groups == 1 && chance(2) ? (int16_t *)n->bad.host : NULL;
    op->stamp = 7;
}

static struct ctw_op_norm norm_on_device(const struct norm_test *n)
{
    struct ctw_op_norm op = n->op;
    op.x = n->x.dev.p;
    op.y = n->in_place ? n->x.dev.p : n->y.dev.p;
    op.weight = op.weight == NULL ? NULL : n->weight.dev.p;
    op.bias = op.bias == NULL ? NULL : n->bias.dev.p;
    op.rows = op.rows == NULL ? NULL : (const int64_t *)n->rows.dev.p;
    op.bad = op.bad == NULL ? NULL : (int16_t *)n->bad.dev.p;
    return op;
}

/* Sums of dim numbers: a chain of up to 24 per thread, then trees; the mean's error counts for every
 * element. */
static void norm_bounds(const struct norm_test *n, double *bounds)
{
    const struct ctw_op_norm *op = &n->op;
    int64_t groups = op->n_groups > 0 ? op->n_groups : 1, width = groups * op->dim;
    double factor = op->factor == 0 ? 1 : fabs((double)op->factor);
    for (int64_t t = 0; t < KIND_ROWS; t++)
        for (int64_t g = 0; g < groups; g++) {
            int64_t row = op->rows != NULL ? op->rows[t] : t, from = row * op->ldx + g * op->dim;
            double size = 0, mean = 0, squares = 0;
            for (int64_t i = 0; i < op->dim; i++) {
                double v = ctw_load_float(op->x, op->x_dtype, from + i);
                size += fabs(v) / (double)op->dim;
                mean += op->kind == CTW_NORM_LAYER ? v / (double)op->dim : 0;
            }
            for (int64_t i = 0; i < op->dim; i++)
                squares += pow(ctw_load_float(op->x, op->x_dtype, from + i) - mean, 2);
            double r = op->kind == CTW_NORM_NONE ? 1 : 1 / sqrt(squares / (double)op->dim + op->eps);
            for (int64_t i = 0; i < op->dim; i++) {
                int64_t at = op->own_weights ? g * op->dim + i : i;
                double x = fabs((double)ctw_load_float(op->x, op->x_dtype, from + i)), w = 1, b = 0;
                if (op->weight != NULL)
                    w = fabs((double)ctw_load_float(op->weight, op->weight_dtype, at) +
                             op->weight_offset);
                if (op->bias != NULL)
                    b = fabs((double)ctw_load_float(op->bias, op->bias_dtype, at));
                double v = factor * ((x + size) * r * w + b);
                if (op->add)
                    v += fabs((double)ctw_load_float(op->y, op->dtype, t * op->ldy + g * op->dim + i));
                bounds[t * width + g * op->dim + i] = 40 * 0x1p-24 * v;
            }
        }
}

/* Row t alone, from the same content of x and y. */
static bool norm_alone(const struct norm_test *n, const void *y_before, int64_t t, const char *got)
{
    struct ctw_op_norm op = norm_on_device(n);
    size_t row = (size_t)op.ldy * ctw_dtype_bytes(op.dtype);
    struct buf y = buf_from((const char *)y_before + (size_t)t * row, row, 0);
    op.n_tok = 1;
    op.bad = NULL;
    if (op.rows != NULL)
        op.rows += t;
    else
        op.x = (const char *)op.x + (size_t)(t * op.ldx) * ctw_dtype_bytes(op.x_dtype);
    op.y = y.p;
    OK(ctw_norm(&cu->backend, &op, &last_err));
    void *alone = buf_read(&y);
    bool same = memcmp(alone, got + (size_t)t * row, row) == 0 && guards_whole(&y);
    free(alone);
    buf_close(&y);
    return same;
}

static void check_norm_kind(int round)
{
    static const char *const names[] = {"RMSNorm", "LayerNorm", "no norm"};
    struct norm_test n;
    norm_test_open(&n, round);
    int64_t groups = n.op.n_groups > 0 ? n.op.n_groups : 1, width = groups * n.op.dim;
    double *bounds = (double *)malloc((size_t)(KIND_ROWS * width) * sizeof(*bounds));
    norm_bounds(&n, bounds);
    struct buf *y = n.in_place ? &n.x.dev : &n.y.dev;
    void *before = buf_read(y);
    struct ctw_op_norm op = norm_on_device(&n);
    OK(ctw_norm(&cu->backend, &op, &last_err));
    char *got = (char *)buf_read(y);
    int16_t *marks = (int16_t *)buf_read(&n.bad.dev);
    both_upload(&n.x);
    bool same = guards_whole(y);
    for (int64_t t = 0; t < KIND_ROWS; t += 4)
        same = norm_alone(&n, before, t, got) && same;
    OK(ctw_norm(definition, &n.op, &last_err));
    double worst = rows_part(got, n.op.y, n.op.dtype, width, n.op.ldy, bounds);
    bool marked = memcmp(marks, n.bad.host, n.bad.dev.bytes) == 0;
    report(worst <= 1 && same && marked,
           "%s, %d of %d, %s -> %s, ld %d %d%s%s%s%s%s%s%s: %.2f of the bound%s%s", names[n.op.kind],
           (int)groups, (int)n.op.dim, ctw_dtype_name(n.op.x_dtype), ctw_dtype_name(n.op.dtype),
           (int)n.op.ldx, (int)n.op.ldy, n.op.weight != NULL ? ", weight" : "",
           n.op.bias != NULL ? ", bias" : "", n.op.own_weights ? ", own" : "",
           n.op.factor != 0 ? ", factor" : "", n.op.add ? ", add" : "", n.in_place ? ", in place" : "",
           n.op.rows != NULL ? ", rows" : "", worst, same ? "" : ", rows differ by company",
           marked ? "" : ", marks are wrong");
    struct both *all[] = {&n.x, &n.y, &n.weight, &n.bias, &n.rows, &n.bad};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        both_close(all[i]);
    free(bounds), free(before), free(got), free(marks);
}

/* ---- activations -------------------------------------------------------------------------- */

/* Errors of act(g), before up and rounding. The definition of gelu_tanh has 1 + tanh() in double. */
static double act_bound(const struct ctw_op_act *op, double g)
{
    double inner = 0.7978845608028654 * (g + 0.044715 * g * g * g), u = 0x1p-24;
    const float *p = op->param;
    switch (op->act) {
    case CTW_ACT_SILU:
        return 8 * u * fabs(g / (1 + exp(-g)));
    case CTW_ACT_GELU:
        return (12 + 2 * g * g) * u * fabs(0.5 * g * erfc(-g * M_SQRT1_2));
    case CTW_ACT_GELU_TANH:
        return (12 + 16 * fabs(inner)) * u * fabs(g / (1 + exp(-2 * inner))) + 0x1p-51 * fabs(g);
    case CTW_ACT_RELU2:
        return 2 * u * g * g;
    case CTW_ACT_XIELU:
        if (g > 0)
            return 4 * u * fabs(p[0] * g * g + p[2] * g);
        return 24 * u * (fabs(p[1] * (expm1(fmin(g, p[3])) - g)) + fabs(p[2] * g));
    default:
        return 0;
    }
}

static void check_act_kind(int round)
{
    static const char *const names[] = {"silu",  "gelu",  "gelu_tanh", "relu",
                                        "relu2", "xielu", "clip"};
    static const int64_t dims[] = {1, 8, 77, 640, 2048, 4104};
    struct ctw_op_act op = {}; /* on the host */
    op.act = (enum ctw_activation)(round % 7);
    static const float xielu[] = {0.8f, 1.3f, 0.5f, -1e-6f}, clip[] = {1.25f};
    memcpy(op.param, op.act == CTW_ACT_XIELU ? xielu : clip,
           op.act == CTW_ACT_XIELU ? sizeof(xielu) : sizeof(clip));
    op.dtype = dtypes[rng() % 3];
    op.n_tok = KIND_ROWS;
    op.dim = pick(dims, CTW_COUNT(dims));
    op.ldx = some_ld(op.dim);
    op.ldup = some_ld(op.dim);
    op.ldy = some_ld(op.dim);
    bool in_place = chance(3);
    if (in_place)
        op.ldy = op.ldx;
    struct both x = both_open(op.dtype, KIND_ROWS * op.ldx, 3, 0);
    struct both up = both_open(op.dtype, KIND_ROWS * op.ldup, 1, 0);
    struct both y = both_open(op.dtype, KIND_ROWS * op.ldy, 1, 0);
    for (int64_t i = 0; i < KIND_ROWS * op.ldx; i += 3) /* small ones */
        ctw_store_float(x.host, op.dtype, i, rng_normal() * ldexpf(1, -(int)(rng() % 30)));
    ctw_store_float(x.host, op.dtype, 2 * op.ldx, NAN);
    ctw_store_float(x.host, op.dtype, 3 * op.ldx, INFINITY);
    ctw_store_float(x.host, op.dtype, 5 * op.ldx, -INFINITY);
    both_upload(&x);
    op.x = x.host;
    op.up = chance(2) ? up.host : NULL;
    op.y = in_place ? x.host : y.host;
    double *bounds = (double *)malloc((size_t)(KIND_ROWS * op.dim) * sizeof(*bounds));
    for (int64_t i = 0; i < KIND_ROWS * op.dim; i++) {
        int64_t t = i / op.dim, c = i % op.dim;
        double u = op.up == NULL ? 1 : fabs((double)ctw_load_float(up.host, op.dtype, t * op.ldup + c));
        bounds[i] = act_bound(&op, ctw_load_float(x.host, op.dtype, t * op.ldx + c)) * u + 0x1p-120;
    }
    struct ctw_op_act on = op;
    struct buf *out = in_place ? &x.dev : &y.dev;
    on.x = x.dev.p;
    on.up = op.up == NULL ? NULL : up.dev.p;
    on.y = out->p;
    OK(ctw_act(&cu->backend, &on, &last_err));
    void *got = buf_read(out);
    OK(ctw_act(definition, &op, &last_err));
    double worst = rows_part(got, op.y, op.dtype, op.dim, op.ldy, bounds);
    bool whole = guards_whole(out);
    report(worst <= 1 && whole, "%s, %d %s, ld %d %d %d%s%s: %.2f of the bound%s", names[op.act],
           (int)op.dim, ctw_dtype_name(op.dtype), (int)op.ldx, (int)op.ldup, (int)op.ldy,
           op.up != NULL ? ", up" : "", in_place ? ", in place" : "", worst,
           whole ? "" : ", writes elsewhere");
    both_close(&x), both_close(&up), both_close(&y);
    free(got), free(bounds);
}

/* ---- sums of embeddings ------------------------------------------------------------------- */

/* Do two parts of the table, the second one first, have the bits of all of it? */
static bool embed_in_parts(struct ctw_op_embed op, const struct buf *y)
{
    const struct ctw_shard *whole = op.table;
    int64_t cut = whole->n / 3;
    op.add = false;
    OK(ctw_embed(&cu->backend, &op, &last_err));
    void *want = buf_read(y);
    must(cudaMemset(y->p, 0xff, y->bytes), "memset");
    must(cudaDeviceSynchronize(), "memset");
    for (int i = 1; i >= 0; i--) {
        struct rows_part part;
        rows_part_open(&part, whole, i * cut, i == 0 ? cut : whole->n - cut);
        op.table = &part.shard;
        op.id0 = (int32_t)(i * cut);
        op.in_part = true;
        OK(ctw_embed(&cu->backend, &op, &last_err));
    }
    void *got = buf_read(y);
    bool same = memcmp(got, want, y->bytes) == 0;
    free(got), free(want);
    return same;
}

/* The bits of the definition; rows of a shard that begins later than its matrix. */
static void check_embed_kind(const struct kind *c, enum ctw_dtype dtype)
{
    struct made m;
    weight_open(&m, c);
    struct ctw_shard on = m.shard, host = m.shard;
    on.row0 = host.row0 = c->n / 3;
    on.n = host.n = c->n - c->n / 3;
    host.data = &m.host;
    int32_t tokens[KIND_ROWS];
    for (int i = 0; i < KIND_ROWS; i++)
        tokens[i] = i == 0 ? (int32_t)on.n - 1 : (int32_t)(rng() % (unsigned)on.n);
    struct buf tokens_d = buf_from(tokens, sizeof(tokens), 0);
    struct both y = both_open(dtype, KIND_ROWS * c->k, 1, chance(2) ? 0 : ctw_dtype_bytes(dtype));
    struct ctw_op_embed op = {&host,  dtype, chance(2) ? 1.0f : 0.7f, !chance(4), KIND_ROWS,
                              tokens, y.host};
    struct ctw_op_embed dev = op;
    dev.table = &on;
    dev.tokens = (int32_t *)tokens_d.p;
    dev.y = y.dev.p;
    OK(ctw_embed(&cu->backend, &dev, &last_err));
    OK(ctw_embed(definition, &op, &last_err));
    void *got = buf_read(&y.dev);
    bool ok = memcmp(got, y.host, y.dev.bytes) == 0 && guards_whole(&y.dev);
    ok = (c->format != DENSE || embed_in_parts(dev, &y.dev)) && ok;
    report(ok, "embed %s %s, rows of a shard, scale %g%s", c->name, ctw_dtype_name(dtype),
           (double)op.scale, op.add ? ", added" : "");
    free(got);
    buf_close(&tokens_d);
    both_close(&y);
    weight_close(&m);
}

/* ---- heads in any order ------------------------------------------------------------------- */

enum { SIDE_BY_SIDE, BY_GROUP, QUERIES_ALONE, ANYWHERE, N_ORDERS };

static struct ctw_qkv_columns some_columns(int order, int64_t n_head, int64_t n_kv, int64_t head)
{
    int64_t r = n_head / n_kv;
    struct ctw_qkv_columns c = {};
    if (order == BY_GROUP) { /* each group's queries, then its key and its value */
        c.ld = (n_head + 2 * n_kv) * head;
        c.k = r * head;
        c.v = c.k + head;
        c.q_step = c.kv_step = (r + 2) * head;
    } else if (order == QUERIES_ALONE) {
        c.ld = some_ld(n_head * head);
        c.q_step = r * head;
    } else if (order == ANYWHERE) { /* values, queries, keys, with gaps */
        int64_t gap = chance(2) ? 16 : 5;
        c.kv_step = head + gap;
        c.q = n_kv * c.kv_step;
        c.q_step = r * head + gap;
        c.k = c.q + n_kv * c.q_step;
        c.ld = some_ld(c.k + n_kv * c.kv_step);
    }
    return c;
}

/* The worst element of [rows, head], relative to the largest of its head; norm and rotation are
 * relative to that. */
static double heads_part(const void *got, const void *want, enum ctw_dtype dtype, int64_t rows, int head)
{
    double worst = 0;
    for (int64_t r = 0; r < rows; r++) {
        double most = 0;
        for (int i = 0; i < head; i++)
            most = fmax(most, fabs((double)ctw_load_float(want, dtype, r * head + i)));
        for (int i = 0; i < head; i++)
            worst = fmax(worst, kind_part(ctw_load_float(got, dtype, r * head + i),
                                          ctw_load_float(want, dtype, r * head + i),
                                          32 * 0x1p-24 * most, dtype));
    }
    return worst;
}

static void check_split_kind(int round)
{
    static const int64_t heads[] = {16, 33, 40, 64, 80, 96, 128, 256, 320, 512};
    struct ctw_op_qkv op = {}; /* on the host */
    int order = round % N_ORDERS;
    op.dtype = dtypes[rng() % 3];
    op.n_tok = KIND_ROWS;
    op.n_kv = 1 + (int)(rng() % 3);
    op.n_head = op.n_kv * (1 + (int)(rng() % 4));
    op.head = (int)pick(heads, CTW_COUNT(heads));
    op.columns = some_columns(order, op.n_head, op.n_kv, op.head);
    op.norm_dtype = dtypes[rng() % 3];
    op.norm_offset = chance(2) ? 1.0f : 0.0f;
    op.norm_eps = 1e-6f;
    op.pairing = chance(2) ? CTW_ROPE_HALVES : CTW_ROPE_INTERLEAVED;
    op.rot_dim = chance(4) ? 0 : chance(2) ? op.head / 2 * 2 : op.head / 4 * 2;
    int64_t ld = order == SIDE_BY_SIDE ? (int64_t)(op.n_head + 2 * op.n_kv) * op.head : op.columns.ld;
    struct both x = both_open(op.dtype, KIND_ROWS * ld, 2, 0);
    struct both norms = both_open(op.norm_dtype, 2 * CTW_MAX_HEAD, 1, 0);
    struct both table = both_open(CTW_F32, POSITIONS * (op.rot_dim + 1), 1, 0);
    struct both factors = both_open(CTW_F32, POSITIONS, 1, 0);
    struct both positions = both_open(CTW_F32, KIND_ROWS, 0, 0);
    for (int i = 0; i < KIND_ROWS; i++)
        ((int32_t *)positions.host)[i] = (int32_t)(rng() % POSITIONS);
    both_upload(&positions);
    int64_t sizes[3] = {op.n_head * op.head, op.n_kv * op.head, op.n_kv * op.head};
    struct both out[3];
    for (int i = 0; i < 3; i++)
        out[i] = both_open(op.dtype, KIND_ROWS * sizes[i], 1, 0);
    size_t second = (size_t)CTW_MAX_HEAD * ctw_dtype_bytes(op.norm_dtype);
    bool q_norm = chance(2), k_norm = chance(2), factor = chance(2);
    struct ctw_op_qkv dev = op;
    op.qkv = x.host, dev.qkv = x.dev.p;
    op.q_norm = q_norm ? norms.host : NULL, dev.q_norm = q_norm ? norms.dev.p : NULL;
    op.k_norm = k_norm ? (char *)norms.host + second : NULL;
    dev.k_norm = k_norm ? norms.dev.p + second : NULL;
    op.positions = (int32_t *)positions.host, dev.positions = (int32_t *)positions.dev.p;
    op.cos_sin = (float *)table.host, dev.cos_sin = (float *)table.dev.p;
    op.q_factor = factor ? (float *)factors.host : NULL;
    dev.q_factor = factor ? (float *)factors.dev.p : NULL;
    op.q = out[0].host, dev.q = out[0].dev.p;
    if (order != QUERIES_ALONE) {
        op.k = out[1].host, dev.k = out[1].dev.p;
        op.v = out[2].host, dev.v = out[2].dev.p;
    }
    OK(ctw_qkv(&cu->backend, &dev, &last_err));
    OK(ctw_qkv(definition, &op, &last_err));
    double worst = 0;
    bool whole = true;
    for (int i = 0; i < 3; i++) {
        void *got = buf_read(&out[i].dev);
        worst = fmax(worst, heads_part(got, out[i].host, op.dtype, KIND_ROWS * sizes[i] / op.head,
                                       op.head));
        whole = whole && guards_whole(&out[i].dev);
        free(got);
    }
    report(worst <= 1 && whole,
           "qkv in order %d, %d/%d heads of %d, rot %d %s, %s%s%s%s: %.2f of the bound%s",
           order, op.n_head, op.n_kv, op.head, op.rot_dim,
           op.pairing == CTW_ROPE_HALVES ? "halves" : "neighbours", ctw_dtype_name(op.dtype),
           q_norm ? ", q norm" : "", k_norm ? ", k norm" : "", factor ? ", factors" : "", worst,
           whole ? "" : ", writes elsewhere");
    struct both *all[] = {&x, &norms, &table, &factors, &positions, &out[0], &out[1], &out[2]};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        both_close(all[i]);
}

/* ---- a head with a bias ------------------------------------------------------------------- */

static void check_head_kind(const struct kind *c, enum ctw_dtype dtype, enum ctw_dtype bias_dtype,
                            float softcap)
{
    struct made m;
    weight_open(&m, c);
    struct ctw_head_result want[KIND_ROWS];
    struct ctw_shard on = m.shard, host = m.shard;
    struct both x = both_open(dtype, KIND_ROWS * c->k, 2.0f / sqrtf((float)c->k), 0);
    struct both bias = both_open(bias_dtype, c->n, 2, 3);
    struct buf out = buf_open(sizeof(want), 0);
    int32_t targets[KIND_ROWS];
    for (int i = 0; i < KIND_ROWS; i++)
        targets[i] = i == 0 ? (int32_t)c->n - 1 : (int32_t)(rng() % (unsigned)c->n);
    struct buf targets_d = buf_from(targets, sizeof(targets), 0);
    host.data = &m.host;
    host.bias = bias.host, on.bias = bias.dev.p;
    host.bias_dtype = on.bias_dtype = bias_dtype;
    struct ctw_op_head op = {&host,     dtype,  0.5f,    softcap, c->n,
                             KIND_ROWS, x.host, targets, want};
    struct ctw_op_head dev = op;
    dev.weight = &on;
    dev.x = x.dev.p;
    dev.targets = (int32_t *)targets_d.p;
    dev.out = (struct ctw_head_result *)out.p;
    OK(ctw_head(definition, &op, &last_err));
    OK(ctw_head(&cu->backend, &dev, &last_err));
    struct ctw_head_result *got = (struct ctw_head_result *)buf_read(&out);
    double worst = 0;
    bool greedy = true, in_parts = c->format != DENSE || head_in_parts(dev, got);
    for (int t = 0; t < KIND_ROWS; t++) { /* logits are below 100 */
        worst = fmax(worst, fabs((double)got[t].logprob - (double)want[t].logprob) /
                                (1e-6 + 100 * 0x1p-23 + 4 * (double)c->k * 0x1p-24));
        greedy = greedy && got[t].greedy == want[t].greedy;
    }
    report(worst <= 1 && greedy && in_parts && guards_whole(&out),
           "head with a bias (%s), %s %s, softcap %g: %.2f of the bound%s%s", ctw_dtype_name(bias_dtype),
           c->name, ctw_dtype_name(dtype), (double)softcap, worst, greedy ? "" : ", greedy is wrong",
           in_parts ? "" : ", parts differ");
    free(got);
    both_close(&x), both_close(&bias);
    buf_close(&out), buf_close(&targets_d);
    weight_close(&m);
}

static void check_head_kinds(void)
{
    static const struct kind weights[] = {
        {"bf16", DENSE, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 9001, 72},
        {"bf16, odd k", DENSE, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 700, 37},
        {"int4", PACK, 4, CTW_BF16, 32, NO_ZEROS, false, false, 0, 5000, 256},
    };
    for (size_t i = 0; i < CTW_COUNT(weights); i++)
        for (int d = 0; d < 3; d++)
            check_head_kind(&weights[i], dtypes[d], dtypes[(d + i) % 3], d == 1 ? 3.0f : 0.0f);
}

static void check_kinds(void)
{
    struct ctw_backend_options opt = {};
    opt.variant = "c";
    OK(ctw_backend_open(&definition, "cpu", &opt, &last_err));
    for (int i = 0; i < 150; i++)
        check_norm_kind(i);
    for (int i = 0; i < 84; i++)
        check_act_kind(i);
    for (size_t i = 0; i < CTW_COUNT(kinds); i += 5)
        check_embed_kind(&kinds[i], dtypes[i % 3]);
    for (int i = 0; i < 120; i++)
        check_split_kind(i);
    check_head_kinds();
    ctw_backend_close(definition);
}
