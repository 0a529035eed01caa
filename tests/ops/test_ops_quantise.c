/* ctw_quantise() in every place against the reference, bit by bit, and against digests of what
 * compressed-tensors itself computes (quantise_vectors.h); on a CPU, products whose shards quantise
 * their input, and the calls that are refused. */
#include "kernels/backend_internal.h"
#include "places.h"
#include "quantise_vectors.h"

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

/* Every kind of scheme. */
static const struct ctw_quantise schemes[] = {
    {.codes = CTW_CODES_INT, .bits = 8, .scale_kind = CTW_SCALE_DYNAMIC},
    {.codes = CTW_CODES_INT, .bits = 4, .scale_kind = CTW_SCALE_DYNAMIC},
    {.codes = CTW_CODES_INT, .bits = 8, .scale_kind = CTW_SCALE_DYNAMIC, .asymmetric = true},
    {.codes = CTW_CODES_INT,
     .bits = 5,
     .scale_kind = CTW_SCALE_DYNAMIC,
     .asymmetric = true,
     .group = 48},
    {.codes = CTW_CODES_INT, .bits = 8, .scale_kind = CTW_SCALE_STATIC, .scale = 0.02f},
    {.codes = CTW_CODES_INT,
     .bits = 8,
     .scale_kind = CTW_SCALE_STATIC,
     .asymmetric = true,
     .scale = 0.013f,
     .zero = -37},
    {.codes = CTW_CODES_E4M3, .bits = 8, .scale_kind = CTW_SCALE_DYNAMIC},
    {.codes = CTW_CODES_E4M3, .bits = 8, .scale_kind = CTW_SCALE_STATIC, .scale = 0.005f},
    {.codes = CTW_CODES_E4M3, .bits = 8, .scale_kind = CTW_SCALE_DYNAMIC, .group = 128},
    {.codes = CTW_CODES_E4M3, .bits = 8, .scale_kind = CTW_SCALE_E8M0, .group = 32},
    {.codes = CTW_CODES_E2M1, .bits = 4, .scale_kind = CTW_SCALE_E8M0, .group = 32},
    {.codes = CTW_CODES_E2M1,
     .bits = 4,
     .scale_kind = CTW_SCALE_E4M3,
     .group = 16,
     .global = 713.5f},
    {.codes = CTW_CODES_E2M1, .bits = 4, .scale_kind = CTW_SCALE_DYNAMIC, .group = 8},
};

/* Multiples of every group's size, or of none: rows in which a whole row shares a scale. */
static const int64_t dims[] = {1,    7,    8,     17,   255, 384, 576, 1023, 1025, 1152, 2304, 3000,
#if CTW_ON_GPU
                               4101, 4224, 12288, 16512
#endif
};

enum { N = 19, MORE = 25 }; /* rows of y and of x */

/* Rows of all sizes of numbers, with zeros and, in some, NaN or infinity. */
static void fill(struct buf *b, enum ctw_dtype dtype, int64_t n_rows, int64_t ld)
{
    for (int64_t t = 0; t < n_rows; t++) {
        float size =
            ldexpf(1, (int)rng_below(dtype == CTW_F16 ? 24 : 200) - (dtype == CTW_F16 ? 16 : 130));
        for (int64_t i = 0; i < ld; i++) {
            float v = t % 7 == 6 || rng_below(9) == 0 ? 0 : rng_normal() * (t % 3 == 0 ? 1 : size);
            ctw_store_float(b->p, dtype, t * ld + i, v);
        }
        if (t % 11 == 5)
            ctw_store_float(b->p, dtype, t * ld + rng_below(ld), t % 2 == 0 ? NAN : -INFINITY);
    }
}

static void same_values(const struct ctw_op_quantise *op, const struct buf *got,
                        const struct buf *want, const char *name)
{
    char what[120]; /* a zero may have another sign, and a NaN another payload */
    snprintf(what, sizeof(what), "%s %s codes %d bits %d scale %d group %d, dim %d%s", name,
             ctw_dtype_name(op->dtype), (int)op->how->codes, op->how->bits,
             (int)op->how->scale_kind, (int)op->how->group, (int)op->dim,
             op->rows != NULL ? ", gathered" : "");
    for (int64_t e = 0; e < N * op->ldy; e++)
        near(ctw_load_float(got->p, op->dtype, e), ctw_load_float(want->p, op->dtype, e), 0, what,
             e);
}

/* op: on the host. A row alone and in place has the same bits. */
static void check(struct ctw_backend *be, struct ctw_op_quantise op, const struct buf *x,
                  const struct buf *before, const struct buf *want, bool aligned, const char *name)
{
    const size_t es = ctw_dtype_bytes(op.dtype), row = (size_t)op.dim * es;
    const char *third = element(x->p, op.dtype, (op.rows != NULL ? op.rows[3] : 3) * op.ldx);
    struct dev xd = dev_open(be, x->p, x->bytes, aligned ? 0 : es * (size_t)rng_below(9));
    struct dev y = dev_open(be, before->p, before->bytes, aligned ? 0 : es * (size_t)rng_below(9));
    struct dev one = dev_open(be, third, row, aligned ? 0 : es), rows = {0};
    struct buf got = buf_open(before->bytes, 0), alone = buf_open(row, 0);
    if (op.rows != NULL)
        rows = dev_open(be, op.rows, N * sizeof(*op.rows), 0);
    op.x = xd.p;
    op.rows = (const void *)rows.p;
    op.y = y.p;
    OK(ctw_quantise(be, &op, &last_err));
    dev_read(&y, got.p);
    same_values(&op, &got, want, name);
    const int64_t ldy = op.ldy;
    op.n_tok = 1;
    op.rows = NULL;
    op.x = op.y = one.p;
    op.ldx = op.ldy = op.dim;
    OK(ctw_quantise(be, &op, &last_err));
    dev_read(&one, alone.p);
    assert_memory_equal(alone.p, element(got.p, op.dtype, 3 * ldy), row);
    buf_close(&got);
    buf_close(&alone);
    struct dev *all[] = {&xd, &y, &one, &rows};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        dev_close(all[i]);
}

static void places_agree(void **state)
{
    (void)state;
    struct ctw_backend *c = backend("c", 1), *be[MAX_PLACES];
    const int n = open_places(be);
    for (size_t s = 0; s < 3 * CTW_COUNT(schemes) * CTW_COUNT(dims); s += THIN) {
        const enum ctw_dtype dtype = dtypes[s % 3];
        const struct ctw_quantise *how = &schemes[s / 3 % CTW_COUNT(schemes)];
        const int64_t dim = dims[s / 3 / CTW_COUNT(schemes)];
        const bool aligned = rng_below(2) == 0;
        if (how->group > 0 && dim % how->group != 0)
            continue;
        int32_t rows[N];
        for (int i = 0; i < N; i++)
            rows[i] = (int32_t)rng_below(MORE);
        struct ctw_op_quantise op = {.how = how,
                                     .dtype = dtype,
                                     .n_tok = N,
                                     .dim = dim,
                                     .ldx = dim + (aligned ? 8 * rng_below(2) : rng_below(3)),
                                     .rows = rng_below(2) == 0 ? rows : NULL,
                                     .ldy = dim + (aligned ? 8 * rng_below(2) : rng_below(3))};
        struct buf x = buf_open((size_t)(MORE * op.ldx) * ctw_dtype_bytes(dtype), 0);
        fill(&x, dtype, MORE, op.ldx);
        struct buf before = buf_random(dtype, N * op.ldy, 1, 0), want = buf_copy(&before, 0);
        op.x = x.p;
        op.y = want.p;
        OK(ctw_quantise(c, &op, &last_err));
        buf_check(&want);
        for (int i = 0; i < n; i++)
            check(be[i], op, &x, &before, &want, aligned, place_name(i));
        buf_close(&before);
        buf_close(&want);
        buf_close(&x);
    }
    close_places(be, n);
    ctw_backend_close(c);
}

/* The inputs of tests/tools/quantise_vectors.py. */
static void fill_vector(void *x, enum ctw_dtype dtype)
{
    const int64_t step = 1 << 20;
    uint64_t state = 1;
    for (int64_t e = 0; e < (int64_t)VECTOR_ROWS * VECTOR_COLUMNS; e++) {
        int64_t t = e / VECTOR_COLUMNS;
        state = state * 6364136223846793005u + 1442695040888963407u;
        int64_t n = (int64_t)(state >> 40) - (1 << 23);
        if (t % 8 == 7) /* rounded down */
            n -= (n % step + step) % step;
        ctw_store_float(x, dtype, e, t % 16 == 5 ? 0 : ldexpf((float)n, (int)(t % 11) - 26));
    }
}

/* FNV-1a over the values as fp32, without the sign of zeros. */
static uint64_t digest_of(const void *y, enum ctw_dtype dtype)
{
    uint64_t value = 0xcbf29ce484222325u;
    for (int64_t e = 0; e < (int64_t)VECTOR_ROWS * VECTOR_COLUMNS; e++)
        value = (value ^ ctw_f32_to_bits(ctw_load_float(y, dtype, e) + 0)) * 0x100000001b3u;
    return value;
}

static void bits_are_those_of_compressed_tensors(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 1)) != NULL; i++) {
        for (size_t s = 0; s < 3 * CTW_COUNT(vectors); s++) {
            enum ctw_dtype dtype = dtypes[s % 3];
            size_t n = (size_t)VECTOR_ROWS * VECTOR_COLUMNS;
            struct buf x = buf_open(n * ctw_dtype_bytes(dtype), 0);
            fill_vector(x.p, dtype);
            struct dev d = dev_of(be, &x);
            const struct ctw_op_quantise op = {.how = &vectors[s / 3].how,
                                               .dtype = dtype,
                                               .n_tok = VECTOR_ROWS,
                                               .dim = VECTOR_COLUMNS,
                                               .x = d.p,
                                               .ldx = VECTOR_COLUMNS,
                                               .y = d.p,
                                               .ldy = VECTOR_COLUMNS};
            OK(ctw_quantise(be, &op, &last_err));
            dev_read(&d, x.p);
            dev_close(&d);
            if (digest_of(x.p, dtype) != vectors[s / 3].digest[s % 3])
                fail_msg("%s, case %zu in %s", place_name(i), s / 3, ctw_dtype_name(dtype));
            buf_close(&x);
        }
        ctw_backend_close(be);
    }
}

/* A result is the nearest code: no other code is nearer to x / scale. */
static void codes_are_nearest(void **state)
{
    (void)state;
    static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int fold = 0; fold < 200000; fold += THIN) {
        float t = (float)(fold - 100000) * 7e-5f, by_table = 0, least = INFINITY;
        float got = ctw_code_nearest(ctw_code_clamp(t, -6, 6), 1, 0);
        for (int i = 0; i < 16; i++) {
            float code = i < 8 ? e2m1[i] : -e2m1[i - 8], away = fabsf(t - code);
            if (away < least || (away == least && i % 2 == 0)) {
                by_table = code;
                least = away;
            }
        }
        assert_true(got == by_table);
    }
    for (int code = 0; code < 256; code++) {
        float v = ctw_e4m3_to_f32((uint8_t)code);
        if (v == v)
            assert_true(ctw_code_nearest(v, 3, -6) == v);
    }
    for (int code = 0; code < 126; code++) { /* ties go to the even code */
        float a = ctw_e4m3_to_f32((uint8_t)code), b = ctw_e4m3_to_f32((uint8_t)(code + 1));
        float middle = (a + b) / 2, got = ctw_code_nearest(middle, 3, -6);
        assert_true(got == (code % 2 == 0 ? a : b));
        assert_true(ctw_code_nearest(nextafterf(middle, a), 3, -6) == a);
        assert_true(ctw_code_nearest(nextafterf(middle, b), 3, -6) == b);
    }
}

/* ---- products, on a CPU ------------------------------------------------------------------- */

enum { N_TOK = 21, K = 96, ROWS = 40 };

/* y of op, with its shards' inputs quantised by hand, shard by shard. */
static void by_hand(struct ctw_backend *be, const struct ctw_op_linear *op, struct buf *y)
{
    struct buf x = buf_open((size_t)(N_TOK * K) * ctw_dtype_bytes(op->dtype), 0);
    size_t at = 0;
    for (int i = 0; i < op->n_shards; i++) {
        struct ctw_op_linear one = *op;
        struct ctw_shard shard = op->shards[i];
        struct ctw_op_quantise input = {.how = shard.input,
                                        .dtype = op->dtype,
                                        .n_tok = N_TOK,
                                        .dim = K,
                                        .x = op->x,
                                        .ldx = op->ldx,
                                        .y = x.p,
                                        .ldy = K};
        if (shard.input != NULL) {
            OK(ctw_quantise(be, &input, &last_err));
            one.x = x.p;
            one.ldx = K;
        }
        shard.input = NULL;
        one.shards = &shard;
        one.n_shards = 1;
        one.y = (char *)y->p + at;
        OK(ctw_linear(be, &one, &last_err));
        at += (size_t)shard.n *
              ctw_dtype_bytes(op->epilogue == CTW_EPI_ADD ? op->residual_dtype : op->dtype);
    }
    buf_close(&x);
}

static void products_read_quantised_inputs(void **state)
{
    (void)state;
    /* Inputs of three shards: all alike, the last one's other, none for the middle one. */
    static const int inputs[][3] = {{0, 0, 0}, {6, 6, 7}, {2, -1, 11}, {-1, -1, 9}};
    const char *v;
    for (size_t s = 0; s < CTW_COUNT(inputs) * 3 * 2; s++) {
        enum ctw_dtype dtype = dtypes[s % 3];
        enum ctw_epilogue epilogue = s / 3 % 2 == 0 ? CTW_EPI_STORE : CTW_EPI_ADD;
        struct test_weight w[3];
        struct ctw_shard shards[3];
        for (int i = 0; i < 3; i++) {
            weight_open(&w[i], W_BF16, ROWS, K, 0);
            int input = inputs[s / 6][i];
            shards[i] = w[i].shard;
            shards[i].input = input >= 0 ? &schemes[input] : NULL;
        }
        struct buf x = buf_random(dtype, N_TOK * (K + 5), 1, 0);
        enum ctw_dtype y_dtype = epilogue == CTW_EPI_ADD ? CTW_F32 : dtype;
        struct ctw_op_linear op = {.shards = shards,
                                   .n_shards = 3,
                                   .slot = CTW_SLOT_FIRST,
                                   .dtype = dtype,
                                   .epilogue = epilogue,
                                   .residual_dtype = CTW_F32,
                                   .n_tok = N_TOK,
                                   .x = x.p,
                                   .ldx = K + 5,
                                   .ldy = 3 * ROWS};
        struct buf before = buf_random(y_dtype, N_TOK * op.ldy, 1, 0);
        for (int i = 0; (v = i == 0 ? "c" : fast_variant(i - 1)) != NULL; i++) {
            struct ctw_backend *be = backend(v, 2);
            struct buf want = buf_copy(&before, 0), got = buf_copy(&before, 0);
            by_hand(be, &op, &want);
            op.y = got.p;
            OK(ctw_prepare(be, &op, &last_err));
            OK(ctw_linear(be, &op, &last_err));
            assert_memory_equal(got.p, want.p, want.bytes);
            buf_close(&want);
            buf_close(&got);
            ctw_backend_close(be);
        }
        buf_close(&before);
        buf_close(&x);
        for (int i = 0; i < 3; i++)
            weight_close(&w[i]);
    }
}

/* Gate and up with unequal inputs: each is stored, then both become one. */
static void gates_read_quantised_inputs(void **state)
{
    (void)state;
    const char *v;
    for (size_t s = 0; s < 6; s++) {
        enum ctw_dtype dtype = dtypes[s % 3];
        struct test_weight gate, up;
        weight_open(&gate, W_BF16, ROWS, K, 0);
        weight_open(&up, W_BF16, ROWS, K, 0);
        struct ctw_shard shards[] = {gate.shard, up.shard};
        shards[0].input = &schemes[0];
        shards[1].input = &schemes[s < 3 ? 0 : 6];
        struct buf x = buf_random(dtype, N_TOK * K, 1, 0);
        struct ctw_op_linear op = {.shards = shards,
                                   .n_shards = 2,
                                   .slot = (enum ctw_slot)2,
                                   .dtype = dtype,
                                   .epilogue = CTW_EPI_GATE,
                                   .n_tok = N_TOK,
                                   .x = x.p,
                                   .ldx = K,
                                   .ldy = ROWS};
        for (int i = 0; (v = i == 0 ? "c" : fast_variant(i - 1)) != NULL; i++) {
            struct ctw_backend *be = backend(v, 2);
            size_t row = (size_t)ROWS * ctw_dtype_bytes(dtype);
            struct buf parts = buf_open(N_TOK * 2 * row, 0), want = buf_open(N_TOK * row, 0);
            struct buf got = buf_open(N_TOK * row, 0);
            struct ctw_op_linear both = op;
            both.epilogue = CTW_EPI_STORE;
            both.ldy = 2 * ROWS;
            by_hand(be, &both, &parts);
            const struct ctw_op_act act = {.dtype = dtype,
                                           .n_tok = N_TOK,
                                           .dim = ROWS,
                                           .x = parts.p,
                                           .ldx = 2 * ROWS,
                                           .up = (char *)parts.p + row,
                                           .ldup = 2 * ROWS,
                                           .y = want.p,
                                           .ldy = ROWS};
            OK(ctw_act(be, &act, &last_err));
            op.y = got.p;
            OK(ctw_linear(be, &op, &last_err));
            for (int64_t e = 0; e < N_TOK * ROWS; e++) { /* in one step, gates are not rounded */
                double w = ctw_load_float(want.p, dtype, e);
                near(ctw_load_float(got.p, dtype, e), w, s < 3 ? 0.02 * (1 + fabs(w)) : 0, v, e);
            }
            buf_close(&parts);
            buf_close(&want);
            buf_close(&got);
            ctw_backend_close(be);
        }
        buf_close(&x);
        weight_close(&gate);
        weight_close(&up);
    }
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    struct ctw_backend *be = backend("c", 1);
    float x[32] = {0}, y[32];
    struct ctw_quantise how = schemes[0];
    struct ctw_op_quantise op = {
        .how = &how, .dtype = CTW_F32, .n_tok = 1, .dim = 32, .x = x, .ldx = 32, .y = y, .ldy = 32};
    OK(ctw_quantise(be, &op, &last_err));
    how.group = 7;
    assert_int_equal(ctw_quantise(be, &op, &last_err), CTW_EINTERNAL);
    how = schemes[4];
    how.scale = 0;
    assert_int_equal(ctw_quantise(be, &op, &last_err), CTW_EINTERNAL);
    how = schemes[11];
    how.global = 0;
    assert_int_equal(ctw_quantise(be, &op, &last_err), CTW_EINTERNAL);
    how = schemes[10];
    how.codes = CTW_CODES_INT;
    assert_int_equal(ctw_quantise(be, &op, &last_err), CTW_EINTERNAL);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_agree),
        cmocka_unit_test(bits_are_those_of_compressed_tensors),
        cmocka_unit_test(codes_are_nearest),
        cmocka_unit_test(products_read_quantised_inputs),
        cmocka_unit_test(gates_read_quantised_inputs),
        cmocka_unit_test(bad_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
