/* ctw_conv() against its definition in double, whole and cut into calls, in every place. */
#include "kernels/conv.h"
#include "places.h"

enum { CONV_MAX_SEQS = 300 };

struct conv_problem {
    struct ctw_backend *be;
    struct ctw_op_conv op; /* of all rows */
    struct ctw_seq_part seqs[CONV_MAX_SEQS];
    struct buf x, weight, bias;
    void *device[5];
};

/* Sequences of 1 to `longest` tokens. packed: rows without gaps; without gates, two runs of
 * columns. */
static struct conv_problem conv_open(struct ctw_backend *be, enum ctw_conv_form form,
                                     enum ctw_dtype dtype, int64_t dim, int taps, bool bias,
                                     int64_t n_seqs, int64_t longest, bool packed, int64_t dilation)
{
    struct conv_problem p = {.be = be};
    int64_t n_tok = 0;
    for (int64_t i = 0; i < n_seqs; i++) {
        p.seqs[i] = (struct ctw_seq_part){
            .q_row = n_tok, .n_q = 1 + rng_below(longest), .before = -1, .after = -1};
        n_tok += p.seqs[i].n_q;
    }
    const enum ctw_dtype weight_dtype = rng_below(2) == 0 ? dtype : CTW_F32;
    const int64_t gaps = packed ? 1 : 3;
    int64_t ldx = (form == CTW_CONV_GATED ? 3 : 1) * dim + rng_below(gaps);
    int64_t ldy = dim + rng_below(gaps);
    const int64_t run = packed && form != CTW_CONV_GATED ? dim / 2 : 0, step = run + 8;
    ldx += run > 0 ? 2 * step - dim : 0;
    size_t es = ctw_dtype_bytes(dtype),
           state = (size_t)((taps - 1) * dilation * dim + 1) * sizeof(float);
    p.x = buf_random(dtype, n_tok * ldx, 1, 0);
    p.weight = buf_random(weight_dtype, dim * taps, 1, 0);
    p.bias = buf_random(CTW_F32, dim, 1, 0);
    p.device[0] = upload(be, p.x.p, (size_t)(n_tok * ldx) * es);
    p.device[1] = upload(be, p.weight.p, (size_t)(dim * taps) * ctw_dtype_bytes(weight_dtype));
    p.device[2] = upload(be, p.bias.p, (size_t)dim * sizeof(float));
    p.device[3] = upload(be, NULL, (size_t)(n_tok * ldy) * es);
    p.device[4] = upload(be, NULL, CUT_STATES * state);
    p.op = (struct ctw_op_conv){.form = form,
                                .dtype = dtype,
                                .n_tok = n_tok,
                                .dim = dim,
                                .taps = taps,
                                .dilation = dilation,
                                .x = p.device[0],
                                .ldx = ldx,
                                .run = run,
                                .step = run > 0 ? step : 0,
                                .weight = p.device[1],
                                .bias = bias ? p.device[2] : NULL,
                                .weight_dtype = weight_dtype,
                                .bias_dtype = CTW_F32,
                                .n_parts = n_seqs,
                                .states = {p.device[4], state},
                                .y = p.device[3],
                                .ldy = ldy};
    return p;
}

static void conv_close(struct conv_problem *p)
{
    buf_close(&p->x);
    buf_close(&p->weight);
    buf_close(&p->bias);
    for (size_t i = 0; i < CTW_COUNT(p->device); i++)
        ctw_device_free(p->be, p->device[i]);
}

/* y, after the calls of a cut. */
static struct buf conv_run(struct conv_problem *p, int64_t most)
{
    size_t es = ctw_dtype_bytes(p->op.dtype), bytes = (size_t)(p->op.n_tok * p->op.ldy) * es;
    struct buf y = buf_open(bytes, 0);
    struct ctw_seq_part parts[CONV_MAX_SEQS];
    struct cut cut = {.seqs = p->seqs, .n_seqs = p->op.n_parts, .most = most};
    for (struct cut_call call = {.parts = parts}; cut_next(&cut, &call);) {
        struct ctw_op_conv op = p->op;
        op.n_tok = call.n_tok;
        op.parts = parts;
        op.n_parts = call.n_parts;
        op.x = (const char *)p->op.x + (size_t)(call.row0 * op.ldx) * es;
        op.y = (char *)p->op.y + (size_t)(call.row0 * op.ldy) * es;
        OK(ctw_conv(p->be, &op, &last_err));
    }
    OK(ctw_device_download(p->be, y.p, p->op.y, bytes, &last_err));
    return y;
}

static double conv_at(const struct conv_problem *p, const struct ctw_seq_part *s, int64_t row,
                      int64_t col)
{
    const struct ctw_op_conv *op = &p->op;
    double sum = op->bias == NULL ? 0 : ctw_load_float(p->bias.p, CTW_F32, col);
    for (int j = 0; j < op->taps; j++) {
        int64_t from = row - (op->taps - 1 - j) * op->dilation;
        if (from < s->q_row)
            continue;
        double input = ctw_load_float(p->x.p, op->dtype, from * op->ldx + ctw_conv_column(op, col));
        if (op->form == CTW_CONV_GATED)
            input *= ctw_load_float(p->x.p, op->dtype, from * op->ldx + 2 * op->dim + col);
        sum += ctw_load_float(p->weight.p, op->weight_dtype, col * op->taps + j) * input;
    }
    if (op->form == CTW_CONV_ADD)
        return sum + ctw_load_float(p->x.p, op->dtype, row * op->ldx + ctw_conv_column(op, col));
    if (op->form == CTW_CONV_SILU)
        return sum / (1 + exp(-sum));
    if (op->form == CTW_CONV_PLAIN)
        return sum;
    return sum * ctw_load_float(p->x.p, op->dtype, row * op->ldx + op->dim + col);
}

static void conv_check(const struct conv_problem *p, const struct buf *y)
{
    const double rounding = p->op.dtype == CTW_F32   ? 0x1p-24
                            : p->op.dtype == CTW_F16 ? 0x1p-11
                                                     : 0x1p-8;
    for (int64_t i = 0; i < p->op.n_parts; i++)
        for (int64_t row = p->seqs[i].q_row; row < p->seqs[i].q_row + p->seqs[i].n_q; row++)
            for (int64_t col = 0; col < p->op.dim; col++) {
                double want = conv_at(p, &p->seqs[i], row, col);
                double got = ctw_load_float(y->p, p->op.dtype, row * p->op.ldy + col);
                if (!(fabs(got - want) <= fabs(want) * rounding + 2e-5))
                    fail_msg("row %lld, column %lld: %g, expected %g", (long long)row,
                             (long long)col, got, want);
            }
}

/* The elements of y's rows that the operation writes. */
static void conv_same(const struct conv_problem *p, const struct buf *a, const struct buf *b)
{
    size_t es = ctw_dtype_bytes(p->op.dtype);
    for (int64_t row = 0; row < p->op.n_tok; row++)
        assert_memory_equal((char *)a->p + (size_t)(row * p->op.ldy) * es,
                            (char *)b->p + (size_t)(row * p->op.ldy) * es, (size_t)p->op.dim * es);
}

static void conv_agrees(struct ctw_backend *be)
{
    static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};
    static const struct {
        int64_t dim, n_seqs, longest;
        int taps;
        bool packed;
        int64_t dilation;
    } shapes[] = {{1, 3, 5, 1, false, 1},    {130, 40, 9, 3, false, 1}, {257, 5, 70, 4, false, 1},
                  {64, 300, 3, 3, false, 1}, {33, 9, 20, 8, false, 1},  {144, 5, 70, 4, true, 1},
                  {64, 9, 40, 3, true, 1},   {64, 9, 40, 4, true, 3},   {33, 9, 20, 3, false, 2}};
    const size_t n = CTW_COUNT(shapes) * CTW_COUNT(dtypes);
    for (size_t i = 0; i < (CTW_CONV_PLAIN + 1) * n; i++) {
        enum ctw_dtype dtype = dtypes[i % CTW_COUNT(dtypes)];
        size_t at = i % n / CTW_COUNT(dtypes);
        struct conv_problem p = conv_open(
            be, (enum ctw_conv_form)(i / n), dtype, shapes[at].dim, shapes[at].taps, i % 2 == 0,
            shapes[at].n_seqs, shapes[at].longest, shapes[at].packed, shapes[at].dilation);
        struct buf whole = conv_run(&p, p.op.n_tok);
        conv_check(&p, &whole);
        for (int64_t most = CUT_IN_TWO; most < 40; most = 2 * most + 1) {
            struct buf cut = conv_run(&p, most);
            conv_same(&p, &whole, &cut);
            buf_close(&cut);
        }
        buf_close(&whole);
        conv_close(&p);
    }
}

static void results_agree_however_sequences_are_cut(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 1 + i % 3)) != NULL; i++) {
        conv_agrees(be);
        ctw_backend_close(be);
    }
}

static void parts_out_of_order_are_refused(void **state)
{
    (void)state;
    struct ctw_backend *be = open_place(0, 1);
    struct conv_problem p = conv_open(be, CTW_CONV_GATED, CTW_F32, 4, 3, false, 3, 4, false, 1);
    struct ctw_op_conv op = p.op;
    op.parts = p.seqs;
    p.seqs[1].q_row--; /* overlaps */
    assert_int_equal(ctw_conv(be, &op, &last_err), CTW_EINTERNAL);
    p.seqs[1].q_row++;
    p.seqs[1].pos0 = 1; /* without what it left */
    assert_int_equal(ctw_conv(be, &op, &last_err), CTW_EINTERNAL);
    p.seqs[1].before = p.seqs[1].after = 0; /* that is where it leaves the next */
    assert_int_equal(ctw_conv(be, &op, &last_err), CTW_EINTERNAL);
    p.seqs[1].after = 1;
    OK(ctw_conv(be, &op, &last_err));
    op.states.data = NULL;
    assert_int_equal(ctw_conv(be, &op, &last_err), CTW_EINTERNAL);
    conv_close(&p);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_agree_however_sequences_are_cut),
        cmocka_unit_test(parts_out_of_order_are_refused),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
