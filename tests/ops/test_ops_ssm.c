/* ctw_ssm() against its definition in double, whole and cut into calls, in every place. */
#include "kernels/ssm.h"
#include "places.h"

enum { SSM_MAX_SEQS = 40 };

struct ssm_shape {
    int64_t n_head, head, n_groups, n_state, n_seqs, longest;
    bool own_decays, gate;
    float dt_min, dt_max;
    bool as_rates; /* a_log has -exp(a_log) */
};

/* x | b | c | dt | z of a token lie side by side, as a product gives them. */
struct ssm_problem {
    struct ctw_backend *be;
    struct ctw_op_ssm op; /* of all rows */
    struct ctw_seq_part seqs[SSM_MAX_SEQS];
    struct buf in, a_log, dt_bias, d;
    int64_t ld, ldy;
    int64_t at[5]; /* columns of x, b, c, dt and z */
    void *device[6];
};

static struct ssm_problem ssm_open(struct ctw_backend *be, enum ctw_dtype dtype,
                                   const struct ssm_shape *s)
{
    struct ssm_problem p = {.be = be};
    const int64_t inner = s->n_head * s->head, selection = s->n_groups * s->n_state;
    const int64_t n_decays = s->n_head * (s->own_decays ? s->n_state : 1);
    const size_t es = ctw_dtype_bytes(dtype);
    int64_t n_tok = 0;
    for (int64_t i = 0; i < s->n_seqs; i++) {
        p.seqs[i] = (struct ctw_seq_part){
            .q_row = n_tok, .n_q = 1 + rng_below(s->longest), .before = -1, .after = -1};
        n_tok += p.seqs[i].n_q;
    }
    const int64_t widths[] = {inner, selection, selection, s->n_head, inner};
    for (int i = 0; i < 5; i++) {
        p.at[i] = p.ld;
        p.ld += widths[i];
    }
    p.ld += rng_below(3);
    p.ldy = inner + rng_below(3);
    p.in = buf_random(dtype, n_tok * p.ld, 1, 0);
    p.a_log = buf_random(CTW_F32, n_decays, 1, 0);
    for (int64_t i = 0; i < n_decays && s->as_rates; i++)
        ((float *)p.a_log.p)[i] = -expf(((float *)p.a_log.p)[i]);
    p.dt_bias = buf_random(CTW_F32, s->n_head, 1, 0);
    p.d = buf_random(dtype, s->n_head, 1, 0);
    p.device[0] = upload(be, p.in.p, (size_t)(n_tok * p.ld) * es);
    p.device[1] = upload(be, p.a_log.p, (size_t)n_decays * sizeof(float));
    p.device[2] = upload(be, p.dt_bias.p, (size_t)s->n_head * sizeof(float));
    p.device[3] = upload(be, p.d.p, (size_t)s->n_head * es);
    p.device[4] = upload(be, NULL, (size_t)(n_tok * p.ldy) * es);
    p.op = (struct ctw_op_ssm){.dtype = dtype,
                               .n_tok = n_tok,
                               .n_head = s->n_head,
                               .head = s->head,
                               .n_groups = s->n_groups,
                               .n_state = s->n_state,
                               .own_decays = s->own_decays,
                               .ldx = p.ld,
                               .ldbc = p.ld,
                               .lddt = p.ld,
                               .z = s->gate ? p.device[0] : NULL,
                               .ldz = p.ld,
                               .a_log = {p.device[1], CTW_F32},
                               .as_rates = s->as_rates,
                               .dt_bias = {p.device[2], CTW_F32},
                               .d = {p.device[3], dtype},
                               .dt_min = s->dt_min,
                               .dt_max = s->dt_max,
                               .n_parts = s->n_seqs,
                               .y = p.device[4],
                               .ldy = p.ldy};
    const size_t state = ctw_ssm_bytes(&p.op);
    p.device[5] = upload(be, NULL, CUT_STATES * state);
    p.op.states = (struct ctw_states){p.device[5], state};
    return p;
}

static void ssm_close(struct ssm_problem *p)
{
    buf_close(&p->in);
    buf_close(&p->a_log);
    buf_close(&p->dt_bias);
    buf_close(&p->d);
    for (size_t i = 0; i < CTW_COUNT(p->device); i++)
        ctw_device_free(p->be, p->device[i]);
}

/* The operation on rows from `row` on. */
static void ssm_place(const struct ssm_problem *p, struct ctw_op_ssm *op, int64_t row)
{
    const size_t es = ctw_dtype_bytes(p->op.dtype);
    const char *in = (const char *)p->device[0] + (size_t)(row * p->ld) * es;
    op->x = in + (size_t)p->at[0] * es;
    op->b = in + (size_t)p->at[1] * es;
    op->c = in + (size_t)p->at[2] * es;
    op->dt = in + (size_t)p->at[3] * es;
    op->z = p->op.z == NULL ? NULL : in + (size_t)p->at[4] * es;
    op->y = (char *)p->op.y + (size_t)(row * p->ldy) * es;
}

/* y, after the calls of a cut. */
static struct buf ssm_run(struct ssm_problem *p, int64_t most)
{
    size_t bytes = (size_t)(p->op.n_tok * p->ldy) * ctw_dtype_bytes(p->op.dtype);
    struct buf y = buf_open(bytes, 0);
    struct ctw_seq_part parts[SSM_MAX_SEQS];
    struct cut cut = {.seqs = p->seqs, .n_seqs = p->op.n_parts, .most = most};
    for (struct cut_call call = {.parts = parts}; cut_next(&cut, &call);) {
        struct ctw_op_ssm op = p->op;
        op.n_tok = call.n_tok;
        op.parts = parts;
        op.n_parts = call.n_parts;
        ssm_place(p, &op, call.row0);
        OK(ctw_ssm(p->be, &op, &last_err));
    }
    OK(ctw_device_download(p->be, y.p, p->op.y, bytes, &last_err));
    return y;
}

static double ssm_in(const struct ssm_problem *p, int64_t row, int part, int64_t col)
{
    return ctw_load_float(p->in.p, p->op.dtype, row * p->ld + p->at[part] + col);
}

/* One row of a head's states through one sequence; fails if a y is off by more than its bound. */
static void ssm_check_row(const struct ssm_problem *p, const struct buf *y,
                          const struct ctw_seq_part *s, int64_t channel)
{
    const struct ctw_op_ssm *op = &p->op;
    const double rounding = op->dtype == CTW_F32   ? 0x1p-24
                            : op->dtype == CTW_F16 ? 0x1p-11
                                                   : 0x1p-8;
    const int64_t h = channel / op->head, group = h / (op->n_head / op->n_groups);
    double state[CTW_MAX_STATE] = {0}, decay = 0;
    for (int64_t row = s->q_row; row < s->q_row + s->n_q; row++) {
        double x = ssm_in(p, row, 0, channel), sum = 0, size = 0;
        double dt = ssm_in(p, row, 3, h) + ctw_load_float(p->dt_bias.p, CTW_F32, h);
        double step = fmin(fmax(log1p(exp(dt)), op->dt_min), op->dt_max);
        for (int64_t n = 0; n < op->n_state; n++) {
            int64_t at = op->own_decays ? h * op->n_state + n : h;
            double a = ctw_load_float(p->a_log.p, CTW_F32, at);
            a = op->as_rates ? -a : exp(a);
            if (n == 0 || op->own_decays)
                decay = exp(-a * step);
            state[n] = decay * state[n] + step * x * ssm_in(p, row, 1, group * op->n_state + n);
            double term = state[n] * ssm_in(p, row, 2, group * op->n_state + n);
            sum += term;
            size += fabs(term);
        }
        sum += ctw_load_float(p->d.p, op->dtype, h) * x;
        if (op->z != NULL) {
            double z = ssm_in(p, row, 4, channel), gate = z / (1 + exp(-z));
            sum *= gate;
            size *= fabs(gate);
        }
        double got = ctw_load_float(y->p, op->dtype, row * p->ldy + channel);
        if (!(fabs(got - sum) <= fabs(sum) * rounding + 3e-6 * (1 + size)))
            fail_msg("row %lld, channel %lld: %g, expected %g", (long long)row, (long long)channel,
                     got, sum);
    }
}

/* The elements of y's rows that the operation writes. */
static void ssm_same(const struct ssm_problem *p, const struct buf *a, const struct buf *b)
{
    const size_t es = ctw_dtype_bytes(p->op.dtype);
    for (int64_t row = 0; row < p->op.n_tok; row++)
        assert_memory_equal((char *)a->p + (size_t)(row * p->ldy) * es,
                            (char *)b->p + (size_t)(row * p->ldy) * es,
                            (size_t)(p->op.n_head * p->op.head) * es);
}

/* With a sanitizer, a place has one dtype a shape, which takes turns with places. */
static void ssm_agrees(struct ctw_backend *be, size_t place)
{
    static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};
    static const struct ssm_shape shapes[] = {
        {1, 1, 1, 1, 3, 5, false, false, 0, INFINITY, false},
        {4, 64, 2, 128, 3, 40, false, true, 0, INFINITY, true},
        {6, 16, 1, 24, 30, 7, false, true, 0.1f, 0.9f, false},
        {2, 80, 2, 256, 2, 20, false, false, 0.001f, INFINITY, false},
        {12, 5, 3, 33, 4, 30, false, true, 0, 1, true},
        {300, 1, 1, 16, 5, 20, true, true, 0, INFINITY, true},
        {70, 1, 1, 8, 9, 9, true, false, 0, INFINITY, false},
        {3, 2, 1, 256, 2, 9, true, true, 0, INFINITY, false},
        {4, 64, 1, 128, 4, 200, false, true, 0, INFINITY, false},
        {8, 64, 2, 64, 3, 150, false, false, 0, INFINITY, true},
        {3, 100, 3, 72, 3, 150, false, true, 0.001f, 2, false},
    };
    for (size_t i = 0; i < CTW_COUNT(shapes) * CTW_COUNT(dtypes); i++) {
        if (SPARSE > 1 && (i / CTW_COUNT(dtypes) + i + place) % CTW_COUNT(dtypes) != 0)
            continue;
        struct ssm_problem p =
            ssm_open(be, dtypes[i % CTW_COUNT(dtypes)], &shapes[i / CTW_COUNT(dtypes)]);
        struct buf whole = ssm_run(&p, p.op.n_tok);
        for (int64_t k = 0; k < p.op.n_parts; k++)
            for (int64_t channel = 0; channel < p.op.n_head * p.op.head; channel += SPARSE)
                ssm_check_row(&p, &whole, &p.seqs[k], channel);
        static const int64_t cuts[] = {CUT_IN_TWO, 1, 4, 13, 40, 63, 64, 65, 129};
        for (size_t c = 0; c < CTW_COUNT(cuts) && (c < 4 || cuts[c] < p.op.n_tok); c++) {
            if (SPARSE > 1 && (c + i) % 4 != 0)
                continue;
            struct buf cut = ssm_run(&p, cuts[c]);
            ssm_same(&p, &whole, &cut);
            buf_close(&cut);
        }
        buf_close(&whole);
        ssm_close(&p);
    }
}

/*
 * An x that is not finite: the tokens before keep their bits, as does the next sequence; from there
 * on, none of the channel's y is finite.
 */
static void ssm_spoils_what_follows(struct ctw_backend *be)
{
    for (int64_t bad = 0; bad < 100; bad += 9) {
        struct ssm_problem p =
            ssm_open(be, CTW_BF16,
                     &(struct ssm_shape){2, 64, 1, 64, 2, 150, false, true, 0, INFINITY, false});
        struct buf good = ssm_run(&p, p.op.n_tok);
        const int64_t n = p.seqs[0].n_q, row = bad % n, channel = bad;
        ctw_store_float(p.in.p, CTW_BF16, row * p.ld + p.at[0] + channel, INFINITY);
        OK(ctw_device_upload(be, p.device[0], p.in.p, (size_t)(p.op.n_tok * p.ld) * 2, &last_err));
        struct buf y = ssm_run(&p, p.op.n_tok);
        for (int64_t r = 0; r < p.op.n_tok; r++) {
            const int64_t at = r * p.ldy + channel;
            if (r < row || r >= n)
                assert_memory_equal((uint16_t *)good.p + r * p.ldy, (uint16_t *)y.p + r * p.ldy,
                                    256);
            else
                assert_false(isfinite(ctw_load_float(y.p, CTW_BF16, at)));
        }
        buf_close(&good);
        buf_close(&y);
        ssm_close(&p);
    }
}

/* y in the place of x, as a layer has it. */
static void ssm_y_may_take_the_place_of_x(struct ctw_backend *be)
{
    struct ssm_problem p = ssm_open(
        be, CTW_BF16, &(struct ssm_shape){4, 20, 2, 24, 3, 150, false, true, 0, INFINITY, false});
    const size_t es = ctw_dtype_bytes(CTW_BF16), width = (size_t)(p.op.n_head * p.op.head) * es;
    struct buf apart = ssm_run(&p, p.op.n_tok);
    struct ctw_op_ssm op = p.op;
    op.parts = p.seqs;
    ssm_place(&p, &op, 0);
    op.y = (void *)(uintptr_t)op.x;
    op.ldy = op.ldx;
    OK(ctw_ssm(be, &op, &last_err));
    struct buf in = buf_open((size_t)(op.n_tok * p.ld) * es, 0);
    OK(ctw_device_download(be, in.p, p.device[0], (size_t)(op.n_tok * p.ld) * es, &last_err));
    for (int64_t row = 0; row < op.n_tok; row++)
        assert_memory_equal((char *)apart.p + (size_t)(row * p.ldy) * es,
                            (char *)in.p + (size_t)(row * p.ld + p.at[0]) * es, width);
    op.ldy++;
    assert_int_equal(ctw_ssm(be, &op, &last_err), CTW_EINTERNAL);
    buf_close(&in);
    buf_close(&apart);
    ssm_close(&p);
}

static void results_agree_however_sequences_are_cut(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 1 + i % 3)) != NULL; i++) {
        ssm_agrees(be, (size_t)i);
        ssm_spoils_what_follows(be);
        ssm_y_may_take_the_place_of_x(be);
        ctw_backend_close(be);
    }
}

/* A step that is not a number, and what follows in its sequence; the next sequence is well. */
static void nan_stays_in_its_sequence(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 1)) != NULL; i++) {
        struct ssm_problem p =
            ssm_open(be, CTW_F32,
                     &(struct ssm_shape){2, 3, 1, 5, 2, 4, false, true, 0.001f, INFINITY, false});
        ((float *)p.in.p)[p.at[3]] = NAN;
        OK(ctw_device_upload(be, p.device[0], p.in.p, (size_t)(p.op.n_tok * p.ld) * sizeof(float),
                             &last_err));
        struct buf y = ssm_run(&p, p.op.n_tok);
        for (int64_t row = 0; row < p.op.n_tok; row++)
            for (int64_t col = 0; col < 6; col++)
                assert_int_equal(isnan(((float *)y.p)[row * p.ldy + col]) != 0,
                                 row < p.seqs[0].n_q && col < 3);
        buf_close(&y);
        ssm_close(&p);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_agree_however_sequences_are_cut),
        cmocka_unit_test(nan_stays_in_its_sequence),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
