/* ctw_linear() against its definition, and its invariance, in every place; two products of experts
 * at once, and products that finish heads. */
#include "linear_problem.h"
#include "linear_qkv.h"

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

#if CTW_ON_GPU
/* Odd sizes, around tiles of 128 and steps of 16. Those whose k is whole vectors may go to
 * cuBLASLt, which tries its algorithms on each. */
static const struct shape shapes[] = {
    {1, 1, 1},       {1, 16, 8},      {2, 17, 16},     {3, 15, 31},   {33, 127, 64},
    {64, 128, 257},  {65, 129, 64},   {128, 16, 256},  {129, 80, 96}, {257, 255, 17},
    {13, 300, 321},  {4, 640, 576},   {1, 70, 4097},   {600, 20, 16}, {129, 256, 384},
    {31, 1152, 320}, {17, 576, 1536}, {255, 192, 512}, {100, 264, 72}};
/* Also around the numbers of rows at which algorithms change; the last one unaligned. */
static const struct shape cut_shapes[] = {
    {300, 256, 512}, {1030, 384, 96}, {2100, 128, 64}, {260, 33, 64}};
enum { OF_SHAPE = 6, CUT_PROBLEMS = 30, PAIRS = 16 }; /* each shape aligned and not */
static const int64_t pair_rows[] = {3, 130, 700, 2100, 4500}, pair_cols[] = {64, 520, 1536};
static const int64_t pair_k[] = {64, 768};
#else
/* Rows around the tiles' 6 and 12 and blocks' 96, columns around 16, 32 and 128, k around vectors,
 * decoded spans of 256 and sweeps of 192 and 320 words. */
static const struct shape shapes[] = {
    {1, 1, 1},     {1, 16, 8},    {2, 17, 16},   {3, 15, 31},    {5, 31, 32},   {6, 32, 33},
    {7, 33, 64},   {11, 48, 96},  {12, 64, 191}, {13, 65, 192},  {63, 127, 64}, {64, 128, 257},
    {65, 129, 64}, {95, 130, 32}, {96, 16, 256}, {97, 255, 320}, {129, 80, 96}, {13, 300, 321},
    {4, 640, 576}, {1, 70, 4097}, {12, 33, 640}, {7, 257, 1536}, {300, 40, 48}, {600, 20, 16}};
static const struct shape cut_shapes[] = {
    {131, 200, 96}, {13, 33, 700}, {98, 130, 576}, {600, 48, 33}};
enum { OF_SHAPE = 3, CUT_PROBLEMS = 15, PAIRS = 9 };
static const int64_t pair_rows[] = {3, 61, 130}, pair_cols[] = {17, 70}, pair_k[] = {33, 96};
#endif

static const int64_t pieces[] = {1,  2,   5,   6,   7,   12,  13,   64,   95,  96,
                                 97, 127, 128, 129, 256, 257, 1000, 1024, 1025};
enum { MOST_PIECES = 150 };

static void places_agree_with_the_definition(void **state)
{
    (void)state;
    struct ctw_backend *be[MAX_PLACES];
    const int n = open_places(be);
    for (size_t s = 0; s < OF_SHAPE * CTW_COUNT(shapes); s += THIN) {
        struct problem p;
        problem_open(&p, &shapes[s / OF_SHAPE], dtypes[s % 3],
                     (enum ctw_epilogue)((s / OF_SHAPE + s) % N_EPI), s % OF_SHAPE >= 3, false);
        problem_define(&p);
        for (int i = 0; i < n; i++) {
            struct placed on;
            place(&on, &p, be[i]);
            struct buf got = run(&p, &on, be[i], p.op.n_tok, rng_below(2) == 0);
            compare(&p, &got, place_name(i));
            buf_close(&got);
            unplace(&on);
        }
        problem_close(&p);
    }
    close_places(be, n);
}

/* ---- the same regardless of the other rows ------------------------------------------------ */

static void same_bits(const struct problem *p, struct buf got, const struct buf *want,
                      const char *place, const char *how, int64_t n)
{
    if (memcmp(got.p, want->p, want->bytes) != 0)
        fail_msg("%s %s epilogue %d m %" PRId64 " n %" PRId64 " k %" PRId64
                 ": other bits %s %" PRId64,
                 place, ctw_dtype_name(p->op.dtype), (int)p->op.epilogue, p->op.n_tok, p->n_columns,
                 p->w[0].w.k, how, n);
    buf_close(&got);
}

static void same_with_threads(const struct problem *p, const struct placed *on,
                              const struct buf *want, const char *place)
{
    for (int threads = 2; threads <= 7; threads += threads == 3 ? 4 : 1) {
        struct ctw_backend *more = backend(place, threads);
        same_bits(p, run(p, on, more, p->op.n_tok, false), want, place, "with threads:", threads);
        ctw_backend_close(more);
    }
}

/* Gathered rows have the bits of rows that are copied together first. */
static void same_if_copied(const struct problem *p, const struct placed *on, struct ctw_backend *be,
                           const struct buf *want, const char *place)
{
    const struct ctw_op_linear *op = &p->op;
    struct problem plain = *p;
    struct placed copied = *on;
    struct buf x = buf_random(op->dtype, op->n_tok * op->ldx, 1, 0);
    for (int64_t e = 0; e < op->n_tok * op->ldx; e++) {
        int64_t t = e / op->ldx, from = op->x_rows[t] * op->ldx + e % op->ldx;
        float v = ctw_load_float(op->x, op->dtype, from);
        ctw_store_float(x.p, op->dtype, e, op->x_weight != NULL ? v * op->x_weight[t] : v);
    }
    copied.x = dev_of(be, &x);
    copied.more[X_ROWS].p = copied.more[X_WEIGHT].p = NULL;
    same_bits(p, run(&plain, &copied, be, op->n_tok, false), want, place, "copied:", op->n_tok);
    buf_close(&x);
    dev_close(&copied.x);
}

static void a_row_does_not_depend_on_the_other_rows(void **state)
{
    (void)state;
    struct ctw_backend *be[MAX_PLACES];
    const int n = open_places(be);
    for (size_t s = 0; s < CUT_PROBLEMS; s++) {
        struct problem p;
        const size_t which = s % CTW_COUNT(cut_shapes);
        problem_open(&p, &cut_shapes[which], dtypes[s % 3], (enum ctw_epilogue)(s / 3 % N_EPI),
                     CTW_ON_GPU && which + 1 < CTW_COUNT(cut_shapes), false);
        for (int i = 0; i < n && strcmp(place_name(i), "c") != 0; i++) {
            struct placed on;
            place(&on, &p, be[i]);
            struct buf want = run(&p, &on, be[i], p.op.n_tok, true);
            for (size_t q = 0; q < CTW_COUNT(pieces) && pieces[q] < p.op.n_tok; q++)
                if (p.op.n_tok / pieces[q] <= MOST_PIECES)
                    same_bits(&p, run(&p, &on, be[i], pieces[q], true), &want, place_name(i),
                              "in pieces of", pieces[q]);
            if (!CTW_ON_GPU)
                same_with_threads(&p, &on, &want, place_name(i));
            if (!CTW_ON_GPU && p.op.x_rows != NULL)
                same_if_copied(&p, &on, be[i], &want, place_name(i));
            buf_close(&want);
            unplace(&on);
        }
        problem_close(&p);
    }
    close_places(be, n);
}

/* ---- two products of experts at once ------------------------------------------------------ */

static void open_expert(struct problem *p, const struct shape *s, enum ctw_dtype dtype,
                        enum ctw_epilogue epilogue)
{
    const bool down = epilogue == CTW_EPI_SCATTER;
    for (;;) {
        problem_open(p, s, dtype, epilogue, CTW_ON_GPU, false);
        p->op.slot = ctw_expert_slot(down, down);
        if ((down ? p->op.y_rows : p->op.x_rows) != NULL && p->op.x_weight == NULL)
            return;
        problem_close(p);
    }
}

/* The square of the ReLU of a product that is stored. */
static struct ctw_op_act relu2_of(const struct ctw_op_linear *op, int64_t n)
{
    return (struct ctw_op_act){.act = CTW_ACT_RELU2,
                               .dtype = op->dtype,
                               .n_tok = op->n_tok,
                               .dim = n,
                               .x = op->y,
                               .ldx = op->ldy,
                               .y = op->y,
                               .ldy = op->ldy};
}

/* Replaces a product by its activation, which is an operation of its own. */
static void activate(struct ctw_backend *be, const struct problem *p, struct ctw_op_act act,
                     struct buf *y)
{
    struct dev stored = dev_open(be, y->p, y->bytes, p->y_shift);
    act.x = act.y = stored.p;
    OK(ctw_act(be, &act, &last_err));
    dev_read(&stored, y->p);
    dev_close(&stored);
}

/* A gathered product, with an activation if it is stored, and a scattered one; or, if `alone` is 1
 * or 2, only one of them. */
static void check_pair(struct ctw_backend *be, struct problem p[2], const char *name, int alone,
                       bool acts)
{
    struct placed on[2];
    struct buf want[2];
    struct dev y[2];
    struct ctw_op_linear op[2];
    for (int i = 0; i < 2; i++) {
        place(&on[i], &p[i], be);
        want[i] = run(&p[i], &on[i], be, p[i].op.n_tok, true);
        y[i] = dev_open(be, p[i].y.p, p[i].y.bytes, p[i].y_shift);
        op[i] = on_device(&p[i], &on[i], &y[i]);
        OK(ctw_prepare(be, &op[i], &last_err));
    }
    const struct ctw_op_act act = relu2_of(&op[0], p[0].n_columns);
    acts = acts && op[0].epilogue == CTW_EPI_STORE;
    if (acts)
        activate(be, &p[0], act, &want[0]);
    OK(ctw_linear_pair(be, alone == 2 ? NULL : &op[0], acts ? &act : NULL,
                       alone == 1 ? NULL : &op[1], &last_err));
    for (int i = 0; i < 2; i++) {
        struct buf got = buf_open(p[i].y.bytes, 0);
        dev_read(&y[i], got.p);
        same_bits(&p[i], got, alone == 2 - i ? &p[i].y : &want[i], name,
                  i == 0 ? "gathered, beside" : "scattered, beside", p[1 - i].op.n_tok);
        buf_close(&want[i]);
        dev_close(&y[i]);
        unplace(&on[i]);
    }
}

/* Few and many tiles of either, so that a GPU deals them to its clusters in every way. */
static void pairs_have_the_bits_of_each_alone(void **state)
{
    (void)state;
    struct ctw_backend *be[MAX_PLACES];
    const int n = open_places(be);
    for (int round = 0; round < PAIRS; round++) {
        struct problem p[2];
        for (int i = 0; i < 2; i++) {
            const struct shape s = {pair_rows[rng_below(CTW_COUNT(pair_rows))],
                                    pair_cols[rng_below(CTW_COUNT(pair_cols))],
                                    pair_k[rng_below(CTW_COUNT(pair_k))]};
            open_expert(&p[i], &s, dtypes[round % 3],
                        i == 1           ? CTW_EPI_SCATTER
                        : round % 2 == 1 ? CTW_EPI_STORE
                                         : CTW_EPI_GATE);
        }
        for (int i = 0; i < n; i++) /* a general GPU does one after the other */
            if (!CTW_ON_GPU || i > 0 || round < 3)
                check_pair(be[i], p, place_name(i),
                           round % 8 == 3   ? 1
                           : round % 8 == 7 ? 2
                                            : 0,
                           round % 4 != 1);
        problem_close(&p[0]);
        problem_close(&p[1]);
    }
    close_places(be, n);
}

/* ---- NaN and infinity --------------------------------------------------------------------- */

/* NaN and infinity reach all columns of their own row, and no other row. */
static void what_is_not_finite_stays_in_its_row(void **state)
{
    (void)state;
    enum { GLUS = CTW_GLU_BOUNDED + 1 };
    static const struct shape shape = {140, 40, 64};
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        for (size_t s = 0; s < 3 * (GLUS + 1); s++) { /* stored, and joined in every way */
            struct problem p;
            struct placed on;
            const bool gated = s / 3 < GLUS;
            problem_open(&p, &shape, dtypes[s % 3], gated ? CTW_EPI_GATE : CTW_EPI_STORE,
                         s % 2 == 0, true);
            p.op.glu = (struct ctw_glu){(enum ctw_glu_kind)(s / 3 % GLUS), 1.5f, 1.702f};
            place(&on, &p, be);
            struct buf want = run(&p, &on, be, p.op.n_tok, true);
            unplace(&on);
            ctw_store_float(p.x.p, p.op.dtype, 5 * p.op.ldx + 9, NAN);
            ctw_store_float(p.x.p, p.op.dtype, 6 * p.op.ldx + 3, INFINITY);
            place(&on, &p, be);
            struct buf got = run(&p, &on, be, p.op.n_tok, true);
            for (int64_t e = 0; e < shape.m * shape.n; e++) {
                int64_t t = e / shape.n, at = t * p.op.ldy + e % shape.n;
                float g = ctw_load_float(got.p, p.op.dtype, at);
                float w = ctw_load_float(want.p, p.op.dtype, at);
                if (t == 5 ? !isnan(g) : t == 6 ? !gated && isfinite(g) : g != w)
                    fail_msg("%s, glu %d, row %d: %g, before %g", place_name(i), (int)p.op.glu.kind,
                             (int)t, (double)g, (double)w);
            }
            buf_close(&want);
            buf_close(&got);
            unplace(&on);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* ---- activations -------------------------------------------------------------------------- */

/* act(x) of single numbers, through a layer of one weight: the functions themselves, over their
 * whole range and with subnormal results. */
static void activations_are_accurate(void **state)
{
    (void)state;
    enum { N = 20000 };
    static const struct shape shape = {N, 1, 1};
    struct ctw_backend *be;
    struct problem p;
    problem_open(&p, &shape, CTW_F32, CTW_EPI_GATE, false, true);
    for (int i = 0; i < 2; i++) { /* gate = 1 * x, up = 0 * x + 1 */
        ctw_store_float(p.w[i].part[CTW_PART_VALUES].p, CTW_BF16, 0, i == 0 ? 1 : 0);
        if (p.w[i].bias.base != NULL)
            buf_close(&p.w[i].bias);
        p.w[i].bias = buf_open(sizeof(float), 0);
        ctw_store_float(p.w[i].bias.p, CTW_F32, 0, i == 0 ? 0 : 1);
        p.shards[i].bias = p.w[i].bias.p;
        p.shards[i].bias_dtype = CTW_F32;
    }
    for (int i = 0; i < N; i++)
        ctw_store_float(p.x.p, CTW_F32, i * p.op.ldx,
                        i < 200 ? (float)(i - 100) : rng_normal() * ldexpf(1, -(int)(i % 30) + 5));
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        struct placed on;
        place(&on, &p, be);
        for (int a = 0; a < CTW_ACT_XIELU; a++) {
            p.op.act = (enum ctw_activation)a;
            struct buf y = run(&p, &on, be, N, false);
            for (int t = 0; t < N; t++) {
                double g = ctw_load_float(p.x.p, CTW_F32, t * p.op.ldx);
                double want = activation(p.op.act, NULL, g);
                near(ctw_load_float(y.p, CTW_F32, t * p.op.ldy), want,
                     activation_error(p.op.act, NULL, g) + half_step(CTW_F32, want) + 0x1p-120,
                     place_name(i), t);
            }
            buf_close(&y);
        }
        unplace(&on);
        ctw_backend_close(be);
    }
    problem_close(&p);
}

/* ---- products that finish heads ----------------------------------------------------------- */

/* In one step if the product can finish heads itself, else in two: the results are the same. */
static void heads_are_the_same_in_one_step(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 2)) != NULL; i++) {
        split_check(be, place_name(i));
        ctw_backend_close(be);
    }
}

static void refused(struct ctw_backend *be, struct ctw_op_linear op, struct ctw_op_qkv qkv,
                    const char *why)
{
    struct ctw_err err;
    assert_int_equal(ctw_linear_qkv(be, &op, &qkv, &err), CTW_EINTERNAL);
    assert_non_null(strstr(err.msg, why));
}

static void steps_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct ctw_backend *be = backend("c", 1);
    struct split_problem p, q;
    split_open(&p, be, &split_shapes[0], CTW_BF16, 0);
    q = p;
    q.op.epilogue = CTW_EPI_ADD;
    refused(be, q.op, p.qkv, "CTW_EPI_STORE");
    q = p;
    q.qkv.n_tok--;
    refused(be, p.op, q.qkv, "n_tok");
    q.qkv = p.qkv;
    q.qkv.dtype = CTW_F16;
    refused(be, p.op, q.qkv, "op->dtype == qkv->dtype");
    q.qkv = p.qkv;
    q.qkv.qkv = p.op.x;
    refused(be, p.op, q.qkv, "op->y");
    q.qkv = p.qkv;
    q.qkv.n_head += q.qkv.n_kv;
    refused(be, p.op, q.qkv, "columns");
    q.op = p.op;
    q.op.ldy += 8;
    refused(be, q.op, p.qkv, "columns");
    split_close(&p, be);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_agree_with_the_definition),
        cmocka_unit_test(a_row_does_not_depend_on_the_other_rows),
        cmocka_unit_test(pairs_have_the_bits_of_each_alone),
        cmocka_unit_test(what_is_not_finite_stays_in_its_row),
        cmocka_unit_test(activations_are_accurate),
        cmocka_unit_test(heads_are_the_same_in_one_step),
        cmocka_unit_test(steps_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
