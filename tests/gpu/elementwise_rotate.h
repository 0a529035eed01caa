/*
 * Part of test_elementwise.cu: rotations by Hadamard's matrix of every size and by other matrices,
 * with gathered rows and rows apart, against the definition; and each row alone.
 */
#ifndef CTW_TESTS_GPU_ELEMENTWISE_ROTATE_H
#define CTW_TESTS_GPU_ELEMENTWISE_ROTATE_H

struct turn_case {
    int64_t size, dim;
    bool matrix, signs, signs_last;
};

static const struct turn_case turn_cases[] = {
    {1, 5, false, true, false},       {2, 64, false, false, false},
    {64, 4096, false, true, false},   {128, 128, false, true, true},
    {256, 1024, false, false, false}, {1024, 3072, false, true, false},
    {4096, 8192, false, true, true},  {16384, 16384, false, true, false},
    {7, 91, true, false, false},      {96, 960, true, false, false},
    {160, 160, true, false, false},   {300, 1200, true, false, false},
};

/* How far fp32 may be from `want`: steps of dtype, and of fp32 for each of log2(size) or size sums.
 */
static double turn_bound(const struct turn_case *c, enum ctw_dtype dtype, double want,
                         double largest)
{
    double sums = c->matrix ? (double)c->size : 1 + log2((double)c->size);
    return 2 * half_step(dtype, want) + (sums + 4) * 0x1p-24 * sqrt((double)c->size) * largest;
}

static void check_turn(const struct turn_case *c, enum ctw_dtype dtype)
{
    int64_t n = c->matrix ? c->size * c->size : c->size;
    struct both values = both_open(CTW_F32, n, 1, 0), rows = both_open(CTW_F32, KIND_ROWS, 1, 0);
    for (int64_t i = 0; i < n && !c->matrix; i++)
        ctw_store_float(values.host, CTW_F32, i, chance(2) ? 1 : -1);
    for (int i = 0; i < KIND_ROWS; i++)
        ((int32_t *)rows.host)[i] = (int32_t)(rng() % KIND_ROWS);
    both_upload(&values), both_upload(&rows);
    struct ctw_rotation how = {}; /* on the host */
    how.size = c->size;
    how.matrix = c->matrix ? (const float *)values.host : NULL;
    how.signs = c->signs ? (const float *)values.host : NULL;
    how.signs_last = c->signs_last;
    how.factor = (float)(1 / sqrt((double)c->size));
    struct ctw_rotation how_on = how;
    how_on.matrix = c->matrix ? (const float *)values.dev.p : NULL;
    how_on.signs = c->signs ? (const float *)values.dev.p : NULL;
    struct ctw_op_rotate op = {};
    op.how = &how;
    op.dtype = dtype;
    op.n_tok = KIND_ROWS;
    op.dim = c->dim;
    op.ldx = some_ld(op.dim);
    op.ldy = some_ld(op.dim);
    bool gathers = chance(2);
    struct both x = both_open(dtype, KIND_ROWS * op.ldx, 1, 0);
    struct both y = both_open(dtype, KIND_ROWS * op.ldy, 1, 0);
    op.x = x.host;
    op.rows = gathers ? (const int32_t *)rows.host : NULL;
    op.y = y.host;
    struct ctw_op_rotate on = op;
    on.how = &how_on;
    on.x = x.dev.p;
    on.rows = gathers ? (const int32_t *)rows.dev.p : NULL;
    on.y = y.dev.p;
    OK(ctw_rotate(&cu->backend, &on, &last_err));
    char *got = (char *)buf_read(&y.dev);
    bool whole = guards_whole(&y.dev);
    OK(ctw_rotate(definition, &op, &last_err));
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < KIND_ROWS * op.ldx; i++)
        largest = fmax(largest, fabs((double)ctw_load_float(x.host, dtype, i)));
    if (c->matrix)
        largest *= 5; /* of the matrix's elements */
    for (int64_t i = 0; i < KIND_ROWS * op.ldy; i++) {
        double a = ctw_load_float(got, dtype, i), b = ctw_load_float(y.host, dtype, i);
        bool own = i % op.ldy < op.dim; /* the rest must stay as it is */
        double bound = own ? turn_bound(c, dtype, b, largest) : 0;
        worst = fmax(worst, a == b ? 0 : bound > 0 ? fabs(a - b) / bound : 1e9);
    }
    on.n_tok = 1;
    on.rows = gathers ? on.rows + 3 : NULL;
    on.x = gathers ? on.x : (const char *)on.x + (size_t)(3 * op.ldx) * ctw_dtype_bytes(dtype);
    OK(ctw_rotate(&cu->backend, &on, &last_err));
    char *alone = (char *)buf_read(&y.dev);
    size_t row = (size_t)op.dim * ctw_dtype_bytes(dtype),
           pitch = (size_t)op.ldy * ctw_dtype_bytes(dtype);
    bool same = memcmp(alone, got + 3 * pitch, row) == 0;
    report(worst <= 1 && whole && same, "rotate %s of %d, %d %s%s%s: %.2f of the bound%s%s",
           c->matrix ? "by a matrix" : "by Hadamard's", (int)c->size, (int)c->dim,
           ctw_dtype_name(dtype), c->signs ? ", signs" : "", gathers ? ", gathered" : "", worst,
           whole ? "" : ", writes elsewhere", same ? "" : ", rows differ by company");
    free(alone), free(got);
    both_close(&x), both_close(&y), both_close(&rows), both_close(&values);
}

static void check_rotate(void)
{
    struct ctw_backend_options opt = {};
    opt.variant = "c";
    OK(ctw_backend_open(&definition, "cpu", &opt, &last_err));
    for (size_t i = 0; i < 3 * CTW_COUNT(turn_cases); i++)
        check_turn(&turn_cases[i / 3], dtypes[i % 3]);
    ctw_backend_close(definition);
}

#endif
