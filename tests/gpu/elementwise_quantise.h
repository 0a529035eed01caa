/*
 * Part of test_elementwise.cu: quantised activations of every scheme, with random shapes, gathered
 * rows, in place, and rows with numbers that are not finite, tiny (a scale whose reciprocal
 * is not) or large: the bits of the definition.
 */
#ifndef CTW_TESTS_GPU_ELEMENTWISE_QUANTISE_H
#define CTW_TESTS_GPU_ELEMENTWISE_QUANTISE_H

/* codes, bits, scale, asymmetric, group, stored scale, zero point, global scale */
static const struct ctw_quantise quantise_kinds[] = {
    {CTW_CODES_INT, 8, CTW_SCALE_DYNAMIC, false, 0, 0, 0, 0},
    {CTW_CODES_INT, 4, CTW_SCALE_DYNAMIC, false, 0, 0, 0, 0},
    {CTW_CODES_INT, 8, CTW_SCALE_DYNAMIC, true, 0, 0, 0, 0},
    {CTW_CODES_INT, 6, CTW_SCALE_DYNAMIC, true, 24, 0, 0, 0},
    {CTW_CODES_INT, 8, CTW_SCALE_STATIC, false, 0, 0.02f, 0, 0},
    {CTW_CODES_INT, 8, CTW_SCALE_STATIC, true, 0, 0.013f, -37, 0},
    {CTW_CODES_E4M3, 8, CTW_SCALE_DYNAMIC, false, 0, 0, 0, 0},
    {CTW_CODES_E4M3, 8, CTW_SCALE_STATIC, false, 0, 0.005f, 0, 0},
    {CTW_CODES_E4M3, 8, CTW_SCALE_DYNAMIC, false, 128, 0, 0, 0},
    {CTW_CODES_E4M3, 8, CTW_SCALE_E8M0, false, 32, 0, 0, 0},
    {CTW_CODES_E2M1, 4, CTW_SCALE_E8M0, false, 32, 0, 0, 0},
    {CTW_CODES_E2M1, 4, CTW_SCALE_E4M3, false, 16, 0, 0, 713.5f},
    {CTW_CODES_E2M1, 4, CTW_SCALE_DYNAMIC, false, 8, 0, 0, 0},
};

static void fill_quantise(struct both *x, enum ctw_dtype dtype, int64_t ld)
{
    for (int64_t i = 0; i < KIND_ROWS * ld; i++) {
        int64_t t = i / ld;
        float size = ldexpf(1, t == 4 ? -120 : t == 5 ? 120 : (int)(t % 11) - 5);
        ctw_store_float(x->host, dtype, i, t % 7 == 6 || chance(9) ? 0 : rng_normal() * size);
    }
    ctw_store_float(x->host, dtype, 2 * ld, NAN);
    ctw_store_float(x->host, dtype, 3 * ld, -INFINITY);
    both_upload(x);
}

static void check_quantise_kind(int round)
{
    static const int64_t dims[] = {384, 1152, 2304, 4224, 12288, 16512}, odd[] = {1, 7, 77, 4101};
    const struct ctw_quantise *how = &quantise_kinds[(size_t)round % CTW_COUNT(quantise_kinds)];
    struct ctw_op_quantise op = {}; /* on the host */
    op.how = how;
    op.dtype = dtypes[rng() % 3];
    op.n_tok = KIND_ROWS;
    op.dim = how->group == 0 && chance(3) ? pick(odd, CTW_COUNT(odd)) : pick(dims, CTW_COUNT(dims));
    op.ldx = some_ld(op.dim);
    op.ldy = some_ld(op.dim);
    bool in_place = chance(3), gathers = !in_place && chance(2);
    op.ldy = in_place ? op.ldx : op.ldy;
    struct both x = both_open(op.dtype, KIND_ROWS * op.ldx, 1, 0);
    struct both y = both_open(op.dtype, KIND_ROWS * op.ldy, 1, 0);
    struct both rows = both_open(CTW_F32, KIND_ROWS, 1, 0);
    for (int i = 0; i < KIND_ROWS; i++)
        ((int32_t *)rows.host)[i] = (int32_t)(rng() % KIND_ROWS);
    both_upload(&rows);
    fill_quantise(&x, op.dtype, op.ldx);
    op.x = x.host;
    op.rows = gathers ? (const int32_t *)rows.host : NULL;
    op.y = in_place ? x.host : y.host;
    struct ctw_op_quantise on = op;
    struct buf *out = in_place ? &x.dev : &y.dev;
    on.x = x.dev.p;
    on.rows = gathers ? (const int32_t *)rows.dev.p : NULL;
    on.y = out->p;
    OK(ctw_quantise(&cu->backend, &on, &last_err));
    void *got = buf_read(out);
    OK(ctw_quantise(definition, &op, &last_err));
    int64_t wrong = 0; /* equal values: a zero may have another sign, and a NaN another payload */
    for (int64_t i = 0; i < KIND_ROWS * op.ldy; i++) {
        float a = ctw_load_float(got, op.dtype, i), b = ctw_load_float(op.y, op.dtype, i);
        wrong += !(a == b || (isnan(a) && isnan(b)));
    }
    bool whole = guards_whole(out);
    report(wrong == 0 && whole, "quantise %d, %d %s, ld %d %d%s%s: %lld values differ%s",
           (int)((size_t)round % CTW_COUNT(quantise_kinds)), (int)op.dim, ctw_dtype_name(op.dtype),
           (int)op.ldx, (int)op.ldy, gathers ? ", gathered" : "", in_place ? ", in place" : "",
           (long long)wrong, whole ? "" : ", writes elsewhere");
    both_close(&x), both_close(&y), both_close(&rows);
    free(got);
}

static void check_quantise(void)
{
    struct ctw_backend_options opt = {};
    opt.variant = "c";
    OK(ctw_backend_open(&definition, "cpu", &opt, &last_err));
    for (int i = 0; i < 15 * (int)CTW_COUNT(quantise_kinds); i++)
        check_quantise_kind(i);
    ctw_backend_close(definition);
}

#endif
