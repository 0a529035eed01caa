/* ctw_qkv() against its definition in double, and each row alone, in every place. */
#include "places.h"

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

struct shape {
    int n_head, n_kv, head, rot_dim;
};

static const struct shape shapes[] = {
    {9, 3, 64, 64}, {2, 2, 16, 16},  {4, 1, 128, 128}, {3, 3, 40, 20},   {1, 1, 6, 2},
    {2, 1, 33, 30}, {5, 5, 256, 64}, {8, 2, 80, 0},    {2, 1, 512, 128}, {32, 8, 128, 128},
    {4, 4, 80, 80}, {3, 1, 96, 48},  {6, 2, 256, 256}, {7, 1, 64, 32},   {2, 1, 128, 24},
    {1, 1, 1, 0},   {2, 1, 320, 160}};

enum { N_TOK = 13, POSITIONS = 300, N_FORMS = 16 };

/* On the host. */
struct problem {
    struct ctw_op_qkv op;
    struct buf qkv, norms, cos_sin, q_factor, positions;
    int64_t ld, sizes[3]; /* elements of a row of qkv; of q, k and v, or 0: not wanted */
    size_t shift;         /* elements past a multiple of 256 */
};

/* Each key head's query heads, its key and its value together, as in GPT-NeoX and Falcon; or the
 * sections in another order and apart; or queries alone. */
static struct ctw_qkv_columns some_columns(const struct shape *h, bool aligned, int64_t *n_kv)
{
    const int64_t r = h->n_head / h->n_kv, head = h->head, order = rng_below(3);
    const int64_t gap = aligned ? 16 * rng_below(2) : 1 + rng_below(5), apart = head + gap;
    if (order == 0)
        return (struct ctw_qkv_columns){.ld = h->n_kv * (r + 2) * head + 2 * gap,
                                        .q = gap,
                                        .k = gap + r * head,
                                        .v = gap + (r + 1) * head,
                                        .q_step = (r + 2) * head,
                                        .kv_step = (r + 2) * head};
    if (order == 1)
        return (struct ctw_qkv_columns){.ld = h->n_kv * (2 * apart + r * head + gap),
                                        .k = h->n_kv * apart,
                                        .q = 2 * h->n_kv * apart,
                                        .q_step = r * head + gap,
                                        .kv_step = apart};
    *n_kv = 0;
    return (struct ctw_qkv_columns){.ld = h->n_head * head + gap, .q_step = r * head};
}

/* form: bit 0: the pairing; 1, 2: norms of queries and keys; 3: columns in any order. */
static void problem_open(struct problem *p, const struct shape *h, enum ctw_dtype dtype,
                         size_t form)
{
    const bool aligned = rng_below(2) == 0;
    int64_t n_q = h->n_head * h->head, n_kv = h->n_kv * h->head;
    p->op = (struct ctw_op_qkv){.dtype = dtype,
                                .n_tok = N_TOK,
                                .n_head = h->n_head,
                                .n_kv = h->n_kv,
                                .head = h->head,
                                .norm_dtype = dtypes[rng_below(3)],
                                .norm_offset = (float)rng_below(2),
                                .norm_eps = 1e-6f,
                                .pairing = form % 2 == 0 ? CTW_ROPE_HALVES : CTW_ROPE_INTERLEAVED,
                                .rot_dim = h->rot_dim};
    p->ld = n_q + 2 * n_kv;
    if (form / 8 == 1) {
        p->op.columns = some_columns(h, aligned, &n_kv);
        p->ld = p->op.columns.ld;
    }
    p->shift = aligned ? 0 : (size_t)rng_below(9);
    p->qkv = buf_random(dtype, N_TOK * p->ld, 2, 0);
    p->norms = buf_random(p->op.norm_dtype, 2 * h->head, 1, 0);
    p->cos_sin = buf_random(CTW_F32, POSITIONS * (h->rot_dim + 1), 1, 0);
    p->q_factor = buf_random(CTW_F32, POSITIONS, 1, 0);
    p->positions = buf_open(N_TOK * sizeof(int32_t), 0);
    for (int i = 0; i < N_TOK; i++)
        ((int32_t *)p->positions.p)[i] = (int32_t)(i == 0 ? POSITIONS - 1 : rng_below(POSITIONS));
    p->op.qkv = p->qkv.p;
    p->op.cos_sin = p->cos_sin.p;
    p->op.positions = p->positions.p;
    p->op.q_norm = form / 2 % 2 == 0 ? p->norms.p : NULL;
    p->op.k_norm = form / 4 % 2 == 0 ? element(p->norms.p, p->op.norm_dtype, h->head) : NULL;
    p->op.q_factor = rng_below(2) == 0 ? p->q_factor.p : NULL;
    p->sizes[0] = n_q;
    p->sizes[1] = n_kv;
    p->sizes[2] = rng_below(4) == 0 ? 0 : n_kv;
}

static void problem_close(struct problem *p)
{
    struct buf *all[] = {&p->qkv, &p->norms, &p->cos_sin, &p->q_factor, &p->positions};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        buf_close(all[i]);
}

/* ---- the definition ----------------------------------------------------------------------- */

/* The first element of head h of queries (part 0), keys (1) or values (2) in row t of qkv. */
static int64_t place_of(const struct problem *p, int part, int64_t t, int64_t h)
{
    const struct ctw_op_qkv *op = &p->op;
    const struct ctw_qkv_columns *c = &op->columns;
    const int64_t r = op->n_head / op->n_kv, before[] = {0, op->n_head, op->n_head + op->n_kv};
    if (c->ld == 0)
        return t * p->ld + (before[part] + h) * op->head;
    int64_t at = part == 0   ? c->q + h / r * c->q_step + h % r * op->head
                 : part == 1 ? c->k + h * c->kv_step
                             : c->v + h * c->kv_step;
    return t * p->ld + at;
}

/* A query (part 0) or a key head of a token at `position`, whose first element is x's `from`. */
static void define_head(const struct ctw_op_qkv *op, int part, int32_t position, int64_t from,
                        double *out)
{
    const void *norm = part == 0 ? op->q_norm : op->k_norm;
    const float *cos_sin = op->cos_sin + (int64_t)position * op->rot_dim;
    const int half = op->rot_dim / 2;
    double sum = 0, factor = part == 0 && op->q_factor != NULL ? op->q_factor[position] : 1;
    for (int i = 0; i < op->head; i++) {
        out[i] = ctw_load_float(op->qkv, op->dtype, from + i);
        sum += out[i] * out[i];
    }
    for (int i = 0; i < op->head && norm != NULL; i++)
        out[i] *= ((double)ctw_load_float(norm, op->norm_dtype, i) + op->norm_offset) /
                  sqrt(sum / op->head + op->norm_eps);
    for (int i = 0; i < half; i++) {
        const int a = op->pairing == CTW_ROPE_HALVES ? i : 2 * i;
        const int b = op->pairing == CTW_ROPE_HALVES ? i + half : 2 * i + 1;
        const double x = out[a], y = out[b];
        out[a] = x * cos_sin[i] - y * cos_sin[half + i];
        out[b] = y * cos_sin[i] + x * cos_sin[half + i];
    }
    for (int i = 0; i < op->head; i++)
        out[i] *= factor;
}

/* A few roundings of a pair, which may cancel, and on a CPU those of the sum of squares: of the
 * largest element of the head before it turned. */
static double error_of(const struct ctw_op_qkv *op, double largest)
{
    return (CTW_ON_GPU ? 32 : op->head / 8 + 12) * 0x1p-24 * largest;
}

static void compare(const struct problem *p, const struct buf out[3], const char *name)
{
    const struct ctw_op_qkv *op = &p->op;
    double want[CTW_MAX_HEAD], still[CTW_MAX_HEAD];
    struct ctw_op_qkv plain = *op;
    plain.rot_dim = 0;
    for (int64_t e = 0; e < N_TOK * (op->n_head + op->n_kv); e++) { /* heads */
        const int part = e < N_TOK * op->n_head ? 0 : 1;
        const int64_t h = part == 0 ? e : e - N_TOK * op->n_head;
        const int64_t n = part == 0 ? op->n_head : op->n_kv, t = h / n;
        if (p->sizes[part] == 0)
            continue;
        const int64_t from = place_of(p, part, t, h % n);
        double largest = 0;
        define_head(op, part, op->positions[t], from, want);
        define_head(&plain, part, op->positions[t], from, still);
        for (int i = 0; i < op->head; i++)
            largest = fmax(largest, fmax(fabs(still[i]), fabs(want[i])));
        for (int i = 0; i < op->head; i++) {
            double error = error_of(op, largest);
            near(ctw_load_float(out[part].p, op->dtype, h * op->head + i), want[i],
                 error + half_step(op->dtype, fabs(want[i]) + error), name, h);
        }
    }
    for (int64_t h = 0; h < N_TOK * op->n_kv && p->sizes[2] != 0; h++)
        assert_memory_equal(element(out[2].p, op->dtype, h * op->head),
                            element(op->qkv, op->dtype, place_of(p, 2, h / op->n_kv, h % op->n_kv)),
                            (size_t)op->head * ctw_dtype_bytes(op->dtype));
}

/* ---- in a place --------------------------------------------------------------------------- */

/* Of all rows, or of each row by itself. */
static void run(const struct problem *p, struct ctw_backend *be, const struct ctw_op_qkv *on,
                int64_t rows, struct buf out[3])
{
    const size_t es = ctw_dtype_bytes(on->dtype);
    struct ctw_op_qkv op = *on;
    struct dev d[3];
    for (int i = 0; i < 3; i++) {
        out[i] = buf_open((size_t)(N_TOK * p->sizes[i]) * es, 0);
        d[i] = dev_open(be, out[i].p, out[i].bytes, p->shift * es);
    }
    op.n_tok = rows;
    for (int64_t t = 0; t < N_TOK; t += rows) {
        op.qkv = element(on->qkv, on->dtype, t * p->ld);
        op.positions = on->positions + t;
        op.q = element(d[0].p, on->dtype, t * p->sizes[0]);
        op.k = p->sizes[1] != 0 ? element(d[1].p, on->dtype, t * p->sizes[1]) : NULL;
        op.v = p->sizes[2] != 0 ? element(d[2].p, on->dtype, t * p->sizes[2]) : NULL;
        OK(ctw_qkv(be, &op, &last_err));
    }
    for (int i = 0; i < 3; i++) {
        dev_read(&d[i], out[i].p);
        dev_close(&d[i]);
    }
}

static void check(const struct problem *p, struct ctw_backend *be, const char *name)
{
    const struct buf *from[] = {&p->qkv, &p->norms, &p->cos_sin, &p->q_factor, &p->positions};
    struct dev d[CTW_COUNT(from)];
    struct buf got[3], alone[3];
    for (size_t i = 0; i < CTW_COUNT(from); i++)
        d[i] = dev_open(be, from[i]->p, from[i]->bytes,
                        i == 0 ? p->shift * ctw_dtype_bytes(p->op.dtype) : 0);
    struct ctw_op_qkv op = p->op;
    op.qkv = d[0].p;
    op.q_norm = p->op.q_norm != NULL ? d[1].p : NULL;
    op.k_norm = p->op.k_norm != NULL ? element(d[1].p, op.norm_dtype, op.head) : NULL;
    op.cos_sin = (const void *)d[2].p;
    op.q_factor = p->op.q_factor != NULL ? (const void *)d[3].p : NULL;
    op.positions = (const void *)d[4].p;
    run(p, be, &op, N_TOK, got);
    run(p, be, &op, 1, alone);
    char what[160];
    snprintf(what, sizeof(what), "%s %s %d/%d heads of %d, turned %d %s%s%s%s%s", name,
             ctw_dtype_name(op.dtype), op.n_head, op.n_kv, op.head, op.rot_dim,
             op.pairing == CTW_ROPE_HALVES ? "halves" : "neighbours",
             op.q_norm != NULL ? ", q norm" : "", op.k_norm != NULL ? ", k norm" : "",
             op.q_factor != NULL ? ", factors" : "", op.columns.ld != 0 ? ", columns" : "");
    compare(p, got, what);
    for (int i = 0; i < 3; i++) {
        assert_memory_equal(alone[i].p, got[i].p, got[i].bytes);
        buf_close(&got[i]);
        buf_close(&alone[i]);
    }
    for (size_t i = 0; i < CTW_COUNT(d); i++)
        dev_close(&d[i]);
}

static void places_agree_and_rows_are_alone(void **state)
{
    (void)state;
    struct ctw_backend *be[MAX_PLACES];
    const int n = open_places(be);
    for (size_t s = 0; s < N_FORMS * CTW_COUNT(shapes); s += THIN) {
        struct problem p;
        problem_open(&p, &shapes[s / N_FORMS], dtypes[s % 3], s % N_FORMS);
        for (int i = 0; i < n; i++)
            check(&p, be[i], place_name(i));
        problem_close(&p);
    }
    close_places(be, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_agree_and_rows_are_alone),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
