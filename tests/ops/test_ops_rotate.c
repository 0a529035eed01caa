/* ctw_rotate() in every place against sums in double; on a CPU, products whose shards rotate their
 * input or their output against the operations that they consist of. */
#include "places.h"

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

/* The matrix as kernels/rotation.h defines it. */
static double element_of(const struct ctw_rotation *r, int64_t i, int64_t o)
{
    if (r->matrix != NULL)
        return (double)r->matrix[i * r->size + o] * (double)r->factor;
    int bits = __builtin_parityll((unsigned long long)(i & o));
    double sign = r->signs != NULL ? (double)r->signs[r->signs_last ? o : i] : 1;
    return (bits % 2 == 0 ? sign : -sign) * (double)r->factor;
}

struct turn {
    struct ctw_rotation r;
    struct buf values; /* signs or a matrix */
};

enum kind { PLAIN, ROW_SIGNS, COLUMN_SIGNS, MATRIX, N_KINDS };

static void turn_open(struct turn *t, enum kind kind, int64_t size)
{
    int64_t n = kind == MATRIX ? size * size : size;
    t->r = (struct ctw_rotation){.size = size,
                                 .signs_last = kind == COLUMN_SIGNS,
                                 .factor = (float)(1 / sqrt((double)size))};
    t->values = buf_open((size_t)n * sizeof(float), 0);
    for (int64_t i = 0; i < n; i++)
        ctw_store_float(t->values.p, CTW_F32, i,
                        kind == MATRIX      ? rng_normal()
                        : rng_below(2) == 0 ? 1
                                            : -1);
    if (kind == MATRIX)
        t->r.matrix = t->values.p;
    else if (kind != PLAIN)
        t->r.signs = t->values.p;
}

enum { ROWS = 11, MORE = 20 };

/* A GPU sums `size` products in fp32, or halves in log2(size) steps; `all`: the sum of their sizes,
 * largest: of x and of the matrix. */
static double error_of(const struct ctw_rotation *r, double all, double largest)
{
    double sums = r->matrix != NULL ? (double)r->size : 1 + log2((double)r->size);
    return CTW_ON_GPU ? (sums + 4) * 0x1p-24 * sqrt((double)r->size) * largest : 0x1p-23 * all;
}

/* y [ROWS, ldy] against sums in double; of large matrices, some of the elements. */
static void compare(const struct ctw_op_rotate *op, const void *y, const char *name)
{
    const int64_t size = op->how->size, some = 1 + ROWS * op->dim * size / 2000000;
    double largest = 0;
    for (int64_t e = 0; e < (op->rows != NULL ? MORE : ROWS) * op->ldx; e++)
        largest = fmax(largest, fabs((double)ctw_load_float(op->x, op->dtype, e)));
    largest *= op->how->matrix != NULL ? 5 : 1;
    for (int64_t e = 0; e < ROWS * op->dim; e += some) {
        int64_t row = e / op->dim, at = e % op->dim / size * size, o = e % op->dim % size;
        int64_t from = (op->rows != NULL ? op->rows[row] : row) * op->ldx + at;
        double sum = 0, all = 0;
        for (int64_t k = 0; k < size; k++) {
            double term =
                (double)ctw_load_float(op->x, op->dtype, from + k) * element_of(op->how, k, o);
            sum += term;
            all += fabs(term);
        }
        near((double)ctw_load_float(y, op->dtype, row * op->ldy + e % op->dim), sum,
             half_step(op->dtype, sum) + error_of(op->how, all, largest), name, e);
    }
}

/* op: on the host. Row 3 alone has the same bits; elements between the rows stay. */
static void check(struct ctw_backend *be, const struct ctw_op_rotate *op, const struct buf *x,
                  const struct buf *values, const char *name)
{
    const size_t es = ctw_dtype_bytes(op->dtype);
    struct buf before = buf_random(op->dtype, ROWS * op->ldy, 1, 0), y = buf_copy(&before, 0);
    struct dev xd = dev_open(be, x->p, x->bytes, es * (size_t)rng_below(9));
    struct dev yd = dev_open(be, before.p, before.bytes, es * (size_t)rng_below(9));
    struct dev signs = dev_of(be, values), rows = {0};
    struct ctw_rotation how = *op->how;
    struct ctw_op_rotate on = *op;
    if (op->rows != NULL)
        rows = dev_open(be, op->rows, ROWS * sizeof(*op->rows), 0);
    how.matrix = how.matrix != NULL ? (const void *)signs.p : NULL;
    how.signs = how.signs != NULL ? (const void *)signs.p : NULL;
    on.how = &how;
    on.x = xd.p;
    on.rows = (const void *)rows.p;
    on.y = yd.p;
    ctw_backend_trim(be);
    OK(ctw_rotate(be, &on, &last_err));
    dev_read(&yd, y.p);
    compare(op, y.p, name);
    for (int64_t t = 0; t < ROWS; t++)
        assert_memory_equal(element(y.p, op->dtype, t * op->ldy + op->dim),
                            element(before.p, op->dtype, t * op->ldy + op->dim),
                            (size_t)(op->ldy - op->dim) * es);
    on.n_tok = 1;
    on.rows = on.rows != NULL ? on.rows + 3 : NULL;
    on.x = element(on.x, op->dtype, on.rows != NULL ? 0 : 3 * op->ldx);
    OK(ctw_rotate(be, &on, &last_err));
    dev_read(&yd, before.p);
    assert_memory_equal(before.p, element(y.p, op->dtype, 3 * op->ldy), (size_t)op->dim * es);
    if (!CTW_ON_GPU) {
        const struct ctw_reserve r = {.dtype = op->dtype, .rotation = how.size};
        assert_true(((struct ctw_cpu *)be)->scratch_bytes <= ctw_backend_scratch_bytes(be, &r));
    }
    buf_close(&before);
    buf_close(&y);
    struct dev *all[] = {&xd, &yd, &signs, &rows};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        dev_close(all[i]);
}

static void rows_are_multiplied(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {
        /* dim, size */ {1, 1},
        {6, 2},
        {64, 64},
        {96, 32},
        {384, 128},
        {1024, 1024},
        {60, 12},
        {35, 7},
#if CTW_ON_GPU
        {4096, 64},
        {1024, 256},
        {3072, 1024},
        {960, 96},
        {160, 160},
        {1200, 300},
        {8192, 4096},
        {16384, 16384}
#endif
    };
    struct ctw_backend *be[MAX_PLACES];
    const int n = open_places(be);
    for (size_t s = 0; s < 3 * N_KINDS * CTW_COUNT(shapes); s++) {
        const enum ctw_dtype dtype = dtypes[s % 3];
        const enum kind kind = (enum kind)(s / 3 % N_KINDS);
        const int64_t dim = shapes[s / 3 / N_KINDS][0], size = shapes[s / 3 / N_KINDS][1];
        if (kind == MATRIX ? size > 1024 : (size & (size - 1)) != 0)
            continue;
        struct turn t;
        int32_t rows[ROWS];
        turn_open(&t, kind, size);
        for (int i = 0; i < ROWS; i++)
            rows[i] = (int32_t)rng_below(MORE);
        struct ctw_op_rotate op = {.how = &t.r,
                                   .dtype = dtype,
                                   .n_tok = ROWS,
                                   .dim = dim,
                                   .ldx = dim + 4 * rng_below(3),
                                   .rows = rng_below(2) == 0 ? rows : NULL,
                                   .ldy = dim + rng_below(3)};
        struct buf x = buf_random(dtype, MORE * op.ldx, 1, 0);
        op.x = x.p;
        for (int i = 0; i < n; i++)
            check(be[i], &op, &x, &t.values, place_name(i));
        buf_close(&x);
        buf_close(&t.values);
    }
    close_places(be, n);
}

/* x rotated, or the shard's columns of y */
static void turn(struct ctw_backend *be, const struct ctw_rotation *how, enum ctw_dtype dtype,
                 int64_t n_tok, int64_t dim, const void *x, int64_t ldx, void *y, int64_t ldy)
{
    OK(ctw_rotate(be,
                  &(struct ctw_op_rotate){.how = how,
                                          .dtype = dtype,
                                          .n_tok = n_tok,
                                          .dim = dim,
                                          .x = x,
                                          .ldx = ldx,
                                          .y = y,
                                          .ldy = ldy},
                  &last_err));
}

/* op again, in pieces of 256 rows, and fewer at last, because less memory is reserved; into y. */
static void in_pieces(struct ctw_backend *be, const struct ctw_op_linear *op, void *y)
{
    struct ctw_op_linear again = *op;
    struct ctw_reserve few = {.dtype = op->dtype, .n_tok = 300, .input_elems = ctw_input_elems(op)};
    few.n_rows = few.max_k = few.max_n = op->shards[0].weight->k;
    ctw_backend_trim(be);
    OK(ctw_backend_reserve(be, &few, &last_err));
    again.y = y;
    OK(ctw_linear(be, &again, &last_err));
}

/* ---- products whose shards rotate, on a CPU ----------------------------------------------- */

enum { TOKENS = 600, K = 64, N = 48, LDY = 2 * N };

struct steps {
    struct ctw_backend *be;
    struct ctw_op_linear op; /* with rotations; y is `got` */
    struct ctw_shard shards[2];
    struct test_weight w[2];
    struct turn before, after;
    bool in, out;                  /* what is rotated */
    struct buf x, inner, plain[2]; /* inner: x rotated; plain: each shard's product, rotated */
    struct buf first, want, got;   /* y: its first content; [TOKENS, LDY] */
};

static void steps_open(struct steps *s, int round)
{
    static const enum ctw_epilogue epilogues[] = {CTW_EPI_STORE, CTW_EPI_ADD, CTW_EPI_GATE};
    enum ctw_dtype dtype = dtypes[round % 3];
    bool adds = epilogues[round / 3 % 3] == CTW_EPI_ADD;
    size_t es = ctw_dtype_bytes(dtype);
    *s = (struct steps){.be = backend(fast_variant_or_c(round % 2), 2),
                        .in = round % 4 != 1,
                        .out = round % 4 != 2};
    turn_open(&s->before, (enum kind)(round % N_KINDS), 32);
    turn_open(&s->after, MATRIX, 12);
    s->x = buf_random(dtype, TOKENS * K, 0.3f, 0);
    s->inner = buf_open(TOKENS * K * es, 0);
    s->want = buf_random(adds ? CTW_F32 : dtype, TOKENS * LDY, 1, 0);
    s->first = buf_copy(&s->want, 0);
    s->got = buf_copy(&s->want, 0);
    for (int i = 0; i < 2; i++) {
        weight_open(&s->w[i], W_BF16, N, K, 1);
        s->plain[i] = buf_open(TOKENS * N * es, 0);
        s->shards[i] = s->w[i].shard;
        s->shards[i].rotate_in = s->in ? &s->before.r : NULL;
        s->shards[i].rotate_out = s->out ? &s->after.r : NULL;
    }
    s->op = (struct ctw_op_linear){.shards = s->shards,
                                   .n_shards = adds ? 1 : 2,
                                   .dtype = dtype,
                                   .epilogue = epilogues[round / 3 % 3],
                                   .residual_dtype = CTW_F32,
                                   .n_tok = TOKENS,
                                   .x = s->x.p,
                                   .ldx = K,
                                   .y = s->got.p,
                                   .ldy = LDY};
}

static void steps_close(struct steps *s)
{
    struct buf *all[] = {&s->x,    &s->inner, &s->plain[0],      &s->plain[1],    &s->first,
                         &s->want, &s->got,   &s->before.values, &s->after.values};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        buf_close(all[i]);
    weight_close(&s->w[0]);
    weight_close(&s->w[1]);
    ctw_backend_close(s->be);
}

/* Each shard's product, whose result is rotated. */
static void run_shards(struct steps *s)
{
    struct buf product = buf_open(s->plain[0].bytes, 0);
    for (int i = 0; i < 2; i++) {
        struct ctw_op_linear one = s->op;
        one.shards = &s->w[i].shard;
        one.n_shards = 1;
        one.epilogue = CTW_EPI_STORE;
        one.x = s->in ? s->inner.p : s->x.p;
        one.y = product.p;
        one.ldy = N;
        OK(ctw_linear(s->be, &one, &last_err));
        turn(s->be, &s->after.r, one.dtype, TOKENS, N, product.p, N, s->plain[i].p, N);
    }
    buf_close(&product);
}

/* want = what the epilogue makes of the shards' results. */
static void join_shards(struct steps *s)
{
    enum ctw_dtype dtype = s->op.dtype;
    const struct ctw_op_act gate = {.dtype = dtype,
                                    .n_tok = TOKENS,
                                    .dim = N,
                                    .x = s->plain[0].p,
                                    .ldx = N,
                                    .up = s->plain[1].p,
                                    .ldup = N,
                                    .y = s->want.p,
                                    .ldy = LDY};
    if (s->op.epilogue == CTW_EPI_GATE)
        OK(ctw_act(s->be, &gate, &last_err));
    for (int64_t e = 0; e < TOKENS * N && s->op.epilogue != CTW_EPI_GATE; e++) {
        int64_t to = e / N * LDY + e % N;
        float a = ctw_load_float(s->plain[0].p, dtype, e);
        if (s->op.epilogue == CTW_EPI_ADD) {
            ctw_store_float(s->want.p, CTW_F32, to, ctw_load_float(s->want.p, CTW_F32, to) + a);
        } else {
            ctw_store_float(s->want.p, dtype, to, a);
            ctw_store_float(s->want.p, dtype, to + N, ctw_load_float(s->plain[1].p, dtype, e));
        }
    }
}

/* Of a product whose outputs are not rotated, a backend joins and rounds in one step. */
static void run_whole(struct steps *s)
{
    const struct ctw_shard both[2] = {s->w[0].shard, s->w[1].shard};
    struct ctw_op_linear whole = s->op;
    whole.shards = both;
    whole.x = s->inner.p;
    whole.y = s->want.p;
    OK(ctw_linear(s->be, &whole, &last_err));
}

/* A product with any epilogue is its steps, also in pieces. */
static void products_are_their_steps(void **state)
{
    (void)state;
    for (int round = 0; round < 24; round++) {
        struct steps s;
        steps_open(&s, round);
        turn(s.be, &s.before.r, s.op.dtype, TOKENS, K, s.x.p, K, s.inner.p, K);
        if (s.out) {
            run_shards(&s);
            join_shards(&s);
        } else {
            run_whole(&s);
        }
        OK(ctw_linear(s.be, &s.op, &last_err));
        assert_memory_equal(s.got.p, s.want.p, s.want.bytes);
        in_pieces(s.be, &s.op, s.first.p);
        assert_memory_equal(s.first.p, s.want.p, s.want.bytes);
        steps_close(&s);
    }
}

/* An expert's products, which gather and scatter their rows, in pieces of 256 rows. */
static void rows_of_experts_come_in_pieces(void **state)
{
    (void)state;
    enum { ALL = 900 };
    static const struct ctw_quantise int8 = {
        .codes = CTW_CODES_INT, .bits = 8, .scale_kind = CTW_SCALE_DYNAMIC};
    int32_t rows[TOKENS];
    float weights[TOKENS];
    for (int round = 0; round < 12; round++) {
        enum ctw_dtype dtype = dtypes[round % 3];
        bool scatters = round % 2 == 1;
        struct ctw_backend *be = backend(fast_variant_or_c(round / 6), 2);
        struct test_weight w[2];
        struct ctw_shard shards[2];
        struct turn t;
        turn_open(&t, ROW_SIGNS, 32);
        for (int i = 0; i < TOKENS; i++) {
            rows[i] = (int32_t)((i * 7 + round) % ALL); /* no row twice */
            weights[i] = rng_normal();
        }
        for (int i = 0; i < 2; i++) {
            weight_open(&w[i], W_BF16, N, K, 1);
            shards[i] = w[i].shard;
            shards[i].rotate_in = round % 4 < 2 ? &t.r : NULL;
            shards[i].input = &int8;
        }
        struct buf x = buf_random(dtype, ALL * K, 0.3f, 0);
        struct buf want = buf_random(scatters ? CTW_F32 : dtype, ALL * N, 1, 0);
        struct buf got = buf_copy(&want, 0);
        struct ctw_op_linear op = {.shards = shards,
                                   .n_shards = scatters ? 1 : 2,
                                   .dtype = dtype,
                                   .epilogue = scatters ? CTW_EPI_SCATTER : CTW_EPI_GATE,
                                   .n_tok = TOKENS,
                                   .x = x.p,
                                   .ldx = K,
                                   .x_rows = scatters ? NULL : rows,
                                   .y = want.p,
                                   .ldy = N,
                                   .y_rows = scatters ? rows : NULL,
                                   .y_weight = scatters ? weights : NULL};
        OK(ctw_linear(be, &op, &last_err));
        in_pieces(be, &op, got.p);
        assert_memory_equal(got.p, want.p, want.bytes);
        buf_close(&x);
        buf_close(&want);
        buf_close(&got);
        buf_close(&t.values);
        weight_close(&w[0]);
        weight_close(&w[1]);
        ctw_backend_close(be);
    }
}

static void what_is_wrong_is_refused(void **state)
{
    (void)state;
    struct ctw_backend *be = backend("c", 1);
    float x[12] = {0}, y[12];
    const struct ctw_rotation rotations[] = {
        {.size = 5, .matrix = x}, {.size = 6}, {.size = 0}, {.size = 2 * CTW_MAX_HADAMARD}};
    for (size_t i = 0; i < CTW_COUNT(rotations); i++) {
        const struct ctw_op_rotate op = {
            .how = &rotations[i], .n_tok = 1, .dim = 12, .x = x, .ldx = 12, .y = y, .ldy = 12};
        assert_int_equal(ctw_rotate(be, &op, &last_err), CTW_EINTERNAL);
    }
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_multiplied),
        cmocka_unit_test(products_are_their_steps),
        cmocka_unit_test(rows_of_experts_come_in_pieces),
        cmocka_unit_test(what_is_wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
