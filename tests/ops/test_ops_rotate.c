/* rotate against sums in double, element by element; and products whose shards rotate their input
 * or their output against the operations that they consist of. */
#include "ops.h"

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

/* The matrix as kernels/rotation.h defines it. */
static double element_of(const struct ctw_rotation *r, int64_t i, int64_t o)
{
    int bits = 0;
    if (r->matrix != NULL)
        return (double)r->matrix[i * r->size + o] * (double)r->factor;
    for (int64_t both = i & o; both > 0; both /= 2)
        bits += (int)(both % 2);
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

static void rows_are_multiplied(void **state)
{
    (void)state;
    enum { N = 11, MORE = 20 };
    static const int64_t shapes[][2] = {
        /* dim, size */ {1, 1}, {6, 2},   {64, 64}, {96, 32}, {384, 128},
        {1024, 1024},           {60, 12}, {35, 7}};
    const char *v;
    for (size_t s = 0; s < 3 * N_KINDS * CTW_COUNT(shapes); s++) {
        enum ctw_dtype dtype = dtypes[s % 3];
        enum kind kind = (enum kind)(s / 3 % N_KINDS);
        int64_t dim = shapes[s / 3 / N_KINDS][0], size = shapes[s / 3 / N_KINDS][1];
        if (kind != MATRIX && (size & (size - 1)) != 0)
            continue;
        struct turn t;
        int32_t rows[N];
        turn_open(&t, kind, size);
        for (int i = 0; i < N; i++)
            rows[i] = (int32_t)rng_below(MORE);
        struct ctw_op_rotate op = {.how = &t.r,
                                   .dtype = dtype,
                                   .n_tok = N,
                                   .dim = dim,
                                   .ldx = dim + rng_below(3),
                                   .rows = rng_below(2) == 0 ? rows : NULL,
                                   .ldy = dim + rng_below(3)};
        struct buf x = buf_random(dtype, MORE * op.ldx, 1, 2 * (size_t)rng_below(9));
        op.x = x.p;
        for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
            struct ctw_backend *be = backend(v, 1 + (int)rng_below(3));
            struct buf y = buf_random(dtype, N * op.ldy, 1, 2 * (size_t)rng_below(9));
            op.y = y.p;
            OK(ctw_rotate(be, &op, &last_err));
            buf_check(&y);
            for (int64_t e = 0; e < N * dim; e++) {
                int64_t row = e / dim, at = e % dim / size * size, o = e % size;
                double sum = 0, all = 0;
                for (int64_t k = 0; k < size; k++) {
                    int64_t from = (op.rows != NULL ? rows[row] : row) * op.ldx + at + k;
                    double term = (double)ctw_load_float(x.p, dtype, from) * element_of(&t.r, k, o);
                    sum += term;
                    all += fabs(term);
                }
                near((double)ctw_load_float(y.p, dtype, row * op.ldy + at + o), sum,
                     half_step(dtype, sum) + 0x1p-23 * all, v, e);
            }
            buf_close(&y);
            ctw_backend_close(be);
        }
        buf_close(&x);
        buf_close(&t.values);
    }
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

/* A product with any epilogue is its steps, also in pieces, which the memory that is reserved
 * makes. */
static void products_are_their_steps(void **state)
{
    (void)state;
    enum { TOKENS = 600, K = 64, N = 48 };
    static const enum ctw_epilogue epilogues[] = {CTW_EPI_STORE, CTW_EPI_ADD, CTW_EPI_GATE};
    for (int round = 0; round < 24; round++) {
        enum ctw_dtype dtype = dtypes[round % 3];
        enum ctw_epilogue epilogue = epilogues[round / 3 % 3];
        bool in = round % 4 != 1, out = round % 4 != 2, adds = epilogue == CTW_EPI_ADD;
        struct ctw_backend *be = backend(fast_variant_or_c(round % 2), 2);
        struct test_weight w[2];
        struct turn before, after;
        size_t es = ctw_dtype_bytes(dtype);
        turn_open(&before, (enum kind)(round % N_KINDS), 32);
        turn_open(&after, MATRIX, 12);
        struct buf x = buf_random(dtype, TOKENS * K, 0.3f, 0), inner = buf_open(TOKENS * K * es, 0);
        struct buf plain[2], turned = buf_open(TOKENS * N * es, 0);
        enum ctw_dtype y_dtype = adds ? CTW_F32 : dtype;
        struct buf want = buf_random(y_dtype, TOKENS * 2 * N, 1, 0), got = buf_copy(&want, 0);
        struct ctw_shard shards[2];
        turn(be, &before.r, dtype, TOKENS, K, x.p, K, inner.p, K);
        struct ctw_op_linear op = {.shards = shards,
                                   .n_shards = adds ? 1 : 2,
                                   .dtype = dtype,
                                   .epilogue = epilogue,
                                   .residual_dtype = CTW_F32,
                                   .n_tok = TOKENS,
                                   .x = x.p,
                                   .ldx = K,
                                   .y = got.p,
                                   .ldy = 2 * N};
        for (int i = 0; i < 2; i++) {
            weight_open(&w[i], W_BF16, N, K, 1);
            plain[i] = buf_open(TOKENS * N * es, 0);
            shards[i] = w[i].shard;
            struct ctw_op_linear one = op;
            one.shards = &w[i].shard;
            one.n_shards = 1;
            one.epilogue = CTW_EPI_STORE;
            one.x = in ? inner.p : x.p;
            one.y = plain[i].p;
            one.ldy = N;
            OK(ctw_linear(be, &one, &last_err));
            shards[i].rotate_in = in ? &before.r : NULL;
            if (!out)
                continue;
            shards[i].rotate_out = &after.r;
            turn(be, &after.r, dtype, TOKENS, N, plain[i].p, N, turned.p, N);
            memcpy(plain[i].p, turned.p, turned.bytes);
        }
        /* With rotated outputs only: otherwise a backend joins and rounds in one step. */
        for (int64_t e = 0; e < TOKENS * N && out; e++) {
            int64_t to = e / N * 2 * N + e % N;
            double a = (double)ctw_load_float(plain[0].p, dtype, e);
            if (epilogue == CTW_EPI_GATE)
                continue;
            if (adds)
                ctw_store_float(want.p, CTW_F32, to,
                                ctw_load_float(want.p, CTW_F32, to) + (float)a);
            else
                for (int i = 0; i < 2; i++)
                    ctw_store_float(want.p, dtype, to + i * N,
                                    ctw_load_float(plain[i].p, dtype, e));
        }
        if (epilogue == CTW_EPI_GATE && out)
            OK(ctw_act(be,
                       &(struct ctw_op_act){.dtype = dtype,
                                            .n_tok = TOKENS,
                                            .dim = N,
                                            .x = plain[0].p,
                                            .ldx = N,
                                            .up = plain[1].p,
                                            .ldup = N,
                                            .y = want.p,
                                            .ldy = 2 * N},
                       &last_err));
        if (!out) {
            struct ctw_op_linear whole = op;
            struct ctw_shard both[2] = {w[0].shard, w[1].shard};
            whole.shards = both;
            whole.x = inner.p;
            whole.y = want.p;
            OK(ctw_linear(be, &whole, &last_err));
        }
        struct buf again = buf_copy(&got, 0);
        OK(ctw_linear(be, &op, &last_err));
        assert_memory_equal(got.p, want.p, want.bytes);
        /* In pieces of 256 rows, and fewer at last. */
        ctw_backend_trim(be);
        struct ctw_reserve few = {
            .dtype = dtype, .n_tok = 300, .input_elems = ctw_input_elems(&op)};
        few.n_rows = few.max_k = few.max_n = K;
        OK(ctw_backend_reserve(be, &few, &last_err));
        op.y = again.p;
        OK(ctw_linear(be, &op, &last_err));
        assert_memory_equal(again.p, want.p, want.bytes);
        struct buf *all[] = {&x,     &inner,    &turned,   &want,          &got,
                             &again, &plain[0], &plain[1], &before.values, &after.values};
        for (size_t i = 0; i < CTW_COUNT(all); i++)
            buf_close(all[i]);
        weight_close(&w[0]);
        weight_close(&w[1]);
        ctw_backend_close(be);
    }
}

/* An expert's products, which gather and scatter their rows, in pieces of 256 rows. */
static void rows_of_experts_come_in_pieces(void **state)
{
    (void)state;
    enum { TOKENS = 700, MORE = 900, K = 64, N = 48 };
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
            rows[i] = (int32_t)((i * 7 + round) % MORE); /* no row twice */
            weights[i] = rng_normal();
        }
        for (int i = 0; i < 2; i++) {
            weight_open(&w[i], W_BF16, N, K, 1);
            shards[i] = w[i].shard;
            shards[i].rotate_in = round % 4 < 2 ? &t.r : NULL;
            shards[i].input = &int8;
        }
        struct buf x = buf_random(dtype, MORE * K, 0.3f, 0);
        struct buf want = buf_random(scatters ? CTW_F32 : dtype, MORE * N, 1, 0);
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
        ctw_backend_trim(be);
        struct ctw_reserve few = {
            .dtype = dtype, .n_tok = 300, .input_elems = ctw_input_elems(&op)};
        few.n_rows = few.max_k = few.max_n = K;
        OK(ctw_backend_reserve(be, &few, &last_err));
        op.y = got.p;
        OK(ctw_linear(be, &op, &last_err));
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
