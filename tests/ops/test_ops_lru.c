/* ctw_lru() against its definition in double, whole and cut into calls, in every place. */
#include "kernels/lru.h"
#include "places.h"

enum { LRU_MAX_SEQS = 40 };

struct lru_shape {
    int64_t n_head, head, n_seqs, longest;
};

/* x and gates of a token lie side by side. */
struct lru_problem {
    struct ctw_backend *be;
    struct ctw_op_lru op; /* of all rows */
    struct ctw_seq_part seqs[LRU_MAX_SEQS];
    struct buf in, decay;
    int64_t ld, ldy;
    void *device[4];
};

static struct lru_problem lru_open(struct ctw_backend *be, enum ctw_dtype dtype,
                                   const struct lru_shape *s)
{
    struct lru_problem p = {.be = be};
    const int64_t dim = s->n_head * s->head;
    const size_t es = ctw_dtype_bytes(dtype), state = (size_t)dim * sizeof(float);
    int64_t n_tok = 0;
    for (int64_t i = 0; i < s->n_seqs; i++) {
        p.seqs[i] = (struct ctw_seq_part){
            .q_row = n_tok, .n_q = 1 + rng_below(s->longest), .before = -1, .after = -1};
        n_tok += p.seqs[i].n_q;
    }
    p.ld = 3 * dim + rng_below(3);
    p.ldy = dim + rng_below(3);
    p.in = buf_random(dtype, n_tok * p.ld, 2, 0);
    p.decay = buf_random(CTW_F32, dim, 4, 0); /* some states stay, others go at once */
    p.device[0] = upload(be, p.in.p, (size_t)(n_tok * p.ld) * es);
    p.device[1] = upload(be, p.decay.p, (size_t)dim * sizeof(float));
    p.device[2] = upload(be, NULL, (size_t)(n_tok * p.ldy) * es);
    p.device[3] = upload(be, NULL, CUT_STATES * state);
    p.op = (struct ctw_op_lru){.dtype = dtype,
                               .n_tok = n_tok,
                               .n_head = s->n_head,
                               .head = s->head,
                               .ldx = p.ld,
                               .ldg = p.ld,
                               .decay = p.device[1],
                               .decay_dtype = CTW_F32,
                               .n_parts = s->n_seqs,
                               .states = {p.device[3], state},
                               .y = p.device[2],
                               .ldy = p.ldy};
    return p;
}

static void lru_close(struct lru_problem *p)
{
    buf_close(&p->in);
    buf_close(&p->decay);
    for (size_t i = 0; i < CTW_COUNT(p->device); i++)
        ctw_device_free(p->be, p->device[i]);
}

/* The operation on rows from `row` on. */
static void lru_place(const struct lru_problem *p, struct ctw_op_lru *op, int64_t row)
{
    const size_t es = ctw_dtype_bytes(p->op.dtype);
    const char *in = (const char *)p->device[0] + (size_t)(row * p->ld) * es;
    op->x = in;
    op->gates = in + (size_t)(op->n_head * op->head) * es;
    op->y = (char *)p->op.y + (size_t)(row * p->ldy) * es;
}

/* y, after the calls of a cut. */
static struct buf lru_run(struct lru_problem *p, int64_t most)
{
    size_t bytes = (size_t)(p->op.n_tok * p->ldy) * ctw_dtype_bytes(p->op.dtype);
    struct buf y = buf_open(bytes, 0);
    struct ctw_seq_part parts[LRU_MAX_SEQS];
    struct cut cut = {.seqs = p->seqs, .n_seqs = p->op.n_parts, .most = most};
    for (struct cut_call call = {.parts = parts}; cut_next(&cut, &call);) {
        struct ctw_op_lru op = p->op;
        op.n_tok = call.n_tok;
        op.parts = parts;
        op.n_parts = call.n_parts;
        lru_place(p, &op, call.row0);
        OK(ctw_lru(p->be, &op, &last_err));
    }
    OK(ctw_device_download(p->be, y.p, p->op.y, bytes, &last_err));
    return y;
}

static double lru_in(const struct lru_problem *p, int64_t row, int64_t col)
{
    return ctw_load_float(p->in.p, p->op.dtype, row * p->ld + col);
}

/* One channel through one sequence; fails if a y is off by more than its bound. */
static void lru_check(const struct lru_problem *p, const struct buf *y,
                      const struct ctw_seq_part *s, int64_t c)
{
    const struct ctw_op_lru *op = &p->op;
    const double rounding = op->dtype == CTW_F32   ? 0x1p-24
                            : op->dtype == CTW_F16 ? 0x1p-11
                                                   : 0x1p-8;
    const int64_t dim = op->n_head * op->head;
    const int64_t gate = dim + c / op->head * 2 * op->head + c % op->head;
    const double rate = 8 * log1p(exp(ctw_load_float(p->decay.p, CTW_F32, c)));
    double state = 0, size = 0;
    for (int64_t row = s->q_row; row < s->q_row + s->n_q; row++) {
        const double open = 1 / (1 + exp(-lru_in(p, row, gate)));
        const double fade = rate / (1 + exp(-lru_in(p, row, gate + op->head)));
        const double share = row == s->q_row ? 1 : sqrt(-expm1(-2 * fade));
        const double added = share * open * lru_in(p, row, c);
        state = exp(-fade) * state + added;
        size = exp(-fade) * size + fabs(added);
        double got = ctw_load_float(y->p, op->dtype, row * p->ldy + c);
        if (!(fabs(got - state) <= fabs(state) * rounding + 3e-6 * size + 1e-7))
            fail_msg("row %lld, channel %lld: %g, expected %g", (long long)row, (long long)c, got,
                     state);
    }
}

/* The elements of y's rows that the operation writes. */
static void lru_same(const struct lru_problem *p, const struct buf *a, const struct buf *b)
{
    const size_t es = ctw_dtype_bytes(p->op.dtype);
    for (int64_t row = 0; row < p->op.n_tok; row++)
        assert_memory_equal((char *)a->p + (size_t)(row * p->ldy) * es,
                            (char *)b->p + (size_t)(row * p->ldy) * es,
                            (size_t)(p->op.n_head * p->op.head) * es);
}

static void lru_agrees(struct ctw_backend *be)
{
    static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};
    static const struct lru_shape shapes[] = {
        {1, 1, 3, 5}, {4, 48, 5, 40}, {3, 45, 30, 7}, {2, 256, 2, 90}, {10, 64, 4, 200}};
    static const int64_t cuts[] = {CUT_IN_TWO, 1, 4, 13, 64, 129};
    for (size_t i = 0; i < CTW_COUNT(shapes) * CTW_COUNT(dtypes); i++) {
        struct lru_problem p =
            lru_open(be, dtypes[i % CTW_COUNT(dtypes)], &shapes[i / CTW_COUNT(dtypes)]);
        struct buf whole = lru_run(&p, p.op.n_tok);
        for (int64_t k = 0; k < p.op.n_parts; k++)
            for (int64_t c = 0; c < p.op.n_head * p.op.head; c += SPARSE)
                lru_check(&p, &whole, &p.seqs[k], c);
        for (size_t c = 0; c < CTW_COUNT(cuts); c++) {
            struct buf cut = lru_run(&p, cuts[c]);
            lru_same(&p, &whole, &cut);
            buf_close(&cut);
        }
        buf_close(&whole);
        lru_close(&p);
    }
}

/* y in the place of x, as a layer has it. */
static void lru_y_may_take_the_place_of_x(struct ctw_backend *be)
{
    struct lru_problem p = lru_open(be, CTW_BF16, &(struct lru_shape){4, 20, 3, 70});
    const size_t es = ctw_dtype_bytes(CTW_BF16), width = (size_t)(p.op.n_head * p.op.head) * es;
    struct buf apart = lru_run(&p, p.op.n_tok);
    struct ctw_op_lru op = p.op;
    op.parts = p.seqs;
    lru_place(&p, &op, 0);
    op.y = (void *)(uintptr_t)op.x;
    op.ldy = op.ldx;
    OK(ctw_lru(be, &op, &last_err));
    struct buf in = buf_open((size_t)(op.n_tok * p.ld) * es, 0);
    OK(ctw_device_download(be, in.p, p.device[0], (size_t)(op.n_tok * p.ld) * es, &last_err));
    for (int64_t row = 0; row < op.n_tok; row++)
        assert_memory_equal((char *)apart.p + (size_t)(row * p.ldy) * es,
                            (char *)in.p + (size_t)(row * p.ld) * es, width);
    op.ldy++;
    assert_int_equal(ctw_lru(be, &op, &last_err), CTW_EINTERNAL);
    buf_close(&in);
    buf_close(&apart);
    lru_close(&p);
}

/* A gate that is not a number spoils its channel from there on, and nothing else. */
static void lru_nan_stays_in_its_channel(struct ctw_backend *be)
{
    for (int64_t which = 0; which < 2; which++) {
        struct lru_problem p = lru_open(be, CTW_F32, &(struct lru_shape){2, 3, 2, 6});
        const int64_t dim = 6, row = p.seqs[0].n_q - 1, channel = 4;
        float *in = p.in.p;
        in[row * p.ld + dim + 6 + 3 * which + 1] = NAN;
        OK(ctw_device_upload(be, p.device[0], in, (size_t)(p.op.n_tok * p.ld) * 4, &last_err));
        struct buf y = lru_run(&p, p.op.n_tok);
        for (int64_t r = 0; r < p.op.n_tok; r++)
            for (int64_t c = 0; c < dim; c++)
                assert_int_equal(isnan(((float *)y.p)[r * p.ldy + c]) != 0,
                                 r == row && c == channel);
        buf_close(&y);
        lru_close(&p);
    }
}

static void results_agree_however_sequences_are_cut(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 1 + i % 3)) != NULL; i++) {
        lru_agrees(be);
        lru_y_may_take_the_place_of_x(be);
        lru_nan_stays_in_its_channel(be);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_agree_however_sequences_are_cut),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
