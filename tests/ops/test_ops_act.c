/* ctw_act() against its definition in double in every place; each row alone, in place. */
#include "activation.h"

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

/* Around vectors and around the spans of 256 and 1024 in which a CPU processes rows. */
static const int64_t dims[] = {1, 7, 8, 9, 16, 31, 64, 255, 256, 257, 576, 1023, 1025, 2048, 2049};

enum { N_ACTS = CTW_ACT_SIGMOID + 1, N_TOK = 9 };

/* Parameters of a trained xIELU: ap, an = beta + a softplus, beta, eps. */
static void set_params(struct ctw_op_act *op)
{
    static const float xielu[CTW_ACT_PARAMS] = {0.8f, 1.3f, 0.5f, -1e-6f};
    if (op->act == CTW_ACT_XIELU)
        memcpy(op->param, xielu, sizeof(xielu));
    else
        op->param[0] = 0.75f;
}

/* On the host; before: y's content. */
struct problem {
    struct ctw_op_act op;
    struct buf x, up, before;
    size_t shift; /* elements past a multiple of 256 */
};

static void problem_open(struct problem *p, size_t s)
{
    const int64_t dim = dims[s / 3 / N_ACTS];
    const bool aligned = rng_below(2) == 0;
    struct ctw_op_act op = {.act = (enum ctw_activation)(s / 3 % N_ACTS),
                            .dtype = dtypes[s % 3],
                            .n_tok = N_TOK,
                            .dim = dim,
                            .ldx = dim + (aligned ? 8 * rng_below(2) : rng_below(3)),
                            .ldup = dim + (aligned ? 8 * rng_below(2) : rng_below(3)),
                            .ldy = dim + (aligned ? 8 * rng_below(2) : rng_below(3))};
    set_params(&op);
    p->shift = aligned ? 0 : (size_t)rng_below(9);
    p->x = buf_random(op.dtype, N_TOK * op.ldx, 2, 0);
    p->up = buf_random(op.dtype, N_TOK * op.ldup, 1, 0);
    p->before = buf_random(op.dtype, N_TOK * op.ldy, 1, 0);
    for (int64_t i = 0; i < N_TOK * op.ldx; i += 3) /* small ones */
        ctw_store_float(p->x.p, op.dtype, i, rng_normal() * ldexpf(1, -(int)rng_below(30)));
    op.x = p->x.p;
    op.up = rng_below(2) == 0 ? p->up.p : NULL;
    p->op = op;
}

static void compare(const struct problem *p, const struct buf *got, const char *name)
{
    const struct ctw_op_act *op = &p->op;
    for (int64_t e = 0; e < N_TOK * op->ldy; e++) {
        int64_t t = e / op->ldy, at = e % op->ldy;
        if (at >= op->dim) { /* between rows: untouched */
            assert_memory_equal(element(got->p, op->dtype, e), element(p->before.p, op->dtype, e),
                                ctw_dtype_bytes(op->dtype));
            continue;
        }
        double g = ctw_load_float(op->x, op->dtype, t * op->ldx + at);
        double by = op->up != NULL ? ctw_load_float(op->up, op->dtype, t * op->ldup + at) : 1;
        double want = activation(op->act, op->param, g) * by;
        double error = activation_error(op->act, op->param, g) * fabs(by) + 0x1p-24 * fabs(want);
        near(ctw_load_float(got->p, op->dtype, e), want,
             error + half_step(op->dtype, fabs(want) + error) + 0x1p-120, name, e);
    }
}

/* Each row alone, in place: the same bits. up: in be's memory. */
static void check_alone(const struct problem *p, struct ctw_backend *be, const void *up,
                        const struct buf *all)
{
    struct ctw_op_act one = p->op;
    const size_t bytes = (size_t)one.dim * ctw_dtype_bytes(one.dtype);
    struct buf row = buf_open(bytes, 0);
    for (int64_t t = 0; t < N_TOK; t++) {
        struct dev d = dev_open(be, element(p->x.p, one.dtype, t * p->op.ldx), bytes, 0);
        one.n_tok = 1;
        one.x = one.y = d.p;
        one.ldx = one.ldy = one.dim;
        one.up = up != NULL ? element(up, one.dtype, t * one.ldup) : NULL;
        OK(ctw_act(be, &one, &last_err));
        dev_read(&d, row.p);
        dev_close(&d);
        assert_memory_equal(row.p, element(all->p, one.dtype, t * p->op.ldy), bytes);
    }
    buf_close(&row);
}

static void places_agree_and_rows_are_alone(void **state)
{
    (void)state;
    struct ctw_backend *be[MAX_PLACES];
    const int n = open_places(be);
    for (size_t s = 0; s < 3 * N_ACTS * CTW_COUNT(dims); s += THIN) {
        struct problem p;
        problem_open(&p, s);
        const size_t shift = p.shift * ctw_dtype_bytes(p.op.dtype);
        for (int i = 0; i < n; i++) {
            struct dev x = dev_open(be[i], p.x.p, p.x.bytes, shift);
            struct dev up = dev_open(be[i], p.up.p, p.up.bytes, shift);
            struct dev y = dev_open(be[i], p.before.p, p.before.bytes, shift);
            struct buf got = buf_open(p.before.bytes, 0);
            struct ctw_op_act op = p.op;
            op.x = x.p;
            op.up = p.op.up != NULL ? up.p : NULL;
            op.y = y.p;
            OK(ctw_act(be[i], &op, &last_err));
            dev_read(&y, got.p);
            compare(&p, &got, place_name(i));
            check_alone(&p, be[i], op.up, &got);
            buf_close(&got);
            dev_close(&x);
            dev_close(&up);
            dev_close(&y);
        }
        buf_close(&p.x);
        buf_close(&p.up);
        buf_close(&p.before);
    }
    close_places(be, n);
}

/* Values across the whole range: subnormals, infinities and NaN included. */
static void acts_are_accurate(void **state)
{
    (void)state;
    enum { N = 20000 };
    static float g[N], got[N];
    for (int i = 0; i < N; i++)
        g[i] = i < 200 ? (float)(i - 100) : rng_normal() * ldexpf(1, -(int)(i % 140) + 5);
    g[0] = NAN, g[1] = INFINITY, g[2] = -0.0f, g[3] = -1e-6f, g[4] = -0.34f, g[5] = -INFINITY;
    struct ctw_op_act op = {.n_tok = 1, .dim = N, .ldx = N, .ldy = N};
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        struct dev x = dev_open(be, g, sizeof(g), 0), y = dev_open(be, got, sizeof(got), 0);
        op.x = x.p;
        op.y = y.p;
        for (int a = 0; a < N_ACTS; a++) {
            op.act = (enum ctw_activation)a;
            set_params(&op);
            OK(ctw_act(be, &op, &last_err));
            dev_read(&y, got);
            for (int t = 0; t < N; t++) {
                double want = activation(op.act, op.param, g[t]);
                double error = activation_error(op.act, op.param, g[t]);
                near(got[t], (float)want, error + half_step(CTW_F32, want) + 0x1p-120,
                     place_name(i), t);
            }
            assert_true(isnan(got[0]));
        }
        dev_close(&x);
        dev_close(&y);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_agree_and_rows_are_alone),
        cmocka_unit_test(acts_are_accurate),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
