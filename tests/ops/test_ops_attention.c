/* ctw_attention() in every place: against its definition in double; the same bits however sequences
 * are cut, and whatever lies beside them. */
#include "attention_problem.h"

/* ---- one problem in one place ------------------------------------------------------------- */

static void check_values(const struct problem *p, const struct buf *got)
{
    const size_t es = ctw_dtype_bytes(p->op.dtype);
    char what[200];
    snprintf(what, sizeof(what), "%s, %s", p->place, p->name);
    for (int64_t i = 0; i < p->q_rows * p->row; i++) {
        if (!isnan(p->want[i]))
            near(ctw_load_float(got->p, p->op.dtype, i), p->want[i], p->bound[i], what, i);
        else if (memcmp(element(got->p, p->op.dtype, i), &(uint32_t){UINT32_MAX}, es) != 0)
            fail_msg("%s: element %" PRId64 " is no result, and was written", what, i);
    }
}

/* Part c of three of each sequence's queries, cut at random. */
static void cut_queries(const struct problem *p, struct ctw_attn_seq (*part)[MAX_SEQS])
{
    for (int64_t s = 0; s < p->op.n_seqs; s++) {
        const int64_t n = p->seqs[s].n_q, first = rng_below(n), second = rng_below(n - first);
        const int64_t cut[] = {0, first, first + second, n};
        for (int c = 0; c < 3; c++) {
            part[c][s] = p->seqs[s];
            part[c][s].q_row += cut[c];
            part[c][s].pos0 += cut[c];
            part[c][s].n_q = cut[c + 1] - cut[c];
        }
    }
}

/* Each sequence alone; and each split into three calls, together with others that are split
 * elsewhere. */
static void check_company(struct problem *p, const struct buf *want)
{
    struct ctw_attn_seq part[3][MAX_SEQS];
    struct ctw_op_attention op = p->op;
    cut_queries(p, part);
    for (int cut = 0; cut < 2; cut++) {
        poison(p);
        op.n_seqs = cut ? p->op.n_seqs : 1;
        for (int64_t i = cut ? 3 : p->op.n_seqs; i-- > 0;) {
            op.seqs = cut ? part[i] : &p->seqs[i];
            OK(ctw_attention(p->out.be, &op, &last_err));
        }
        struct buf got = buf_open(p->out.bytes, 0);
        dev_read(&p->out, got.p);
        for (int64_t s = 0; s < p->op.n_seqs; s++)
            same_rows(p, want, &got, &p->seqs[s], cut ? "in three calls" : "alone");
        buf_close(&got);
    }
}

static int64_t key_row(const struct ctw_attn_seq *s, int64_t pos)
{
    const struct ctw_kv_run *run = s->runs;
    while (pos >= run->n_tok)
        pos -= run++->n_tok;
    return run->row + pos;
}

/* A key (of_v false) or value of q whose element `el` of key head kv is not finite. */
struct spoilt {
    const struct ctw_attn_seq *q;
    int64_t pos, kv, el;
    bool of_v, nan;
};

static void check_spoilt_head(const struct problem *p, const struct spoilt *x,
                              const struct buf *got, const struct buf *clean, int64_t row,
                              int64_t h)
{
    const struct ctw_attn_seq *q = x->q;
    const int64_t head_v = p->op.head_v, pos = row - q->q_row + q->pos0,
                  at = row * p->row + h * head_v;
    const bool sees = row >= q->q_row && row < q->q_row + q->n_q && pos >= x->pos &&
                      x->pos >= ctw_attn_first(&p->op, pos) && is_seen(p, row, x->pos) &&
                      h / (p->op.n_head / p->op.n_kv) == x->kv;
    if (!sees && memcmp(element(got->p, p->op.dtype, at), element(clean->p, p->op.dtype, at),
                        (size_t)head_v * ctw_dtype_bytes(p->op.dtype)) != 0)
        fail_msg("%s, %s: row %" PRId64 " does not see the element", p->place, p->name, row);
    for (int64_t e = 0; sees && e < head_v; e++) {
        const float g = ctw_load_float(got->p, p->op.dtype, at + e);
        if (x->of_v ? e == x->el && isfinite(g) : x->nan && !isnan(g))
            fail_msg("%s, %s: row %" PRId64 " hides the element", p->place, p->name, row);
    }
}

/* A key or value that is not finite affects every query that sees it, and changes no others. */
static void check_not_finite(struct problem *p, const struct buf *clean,
                             const struct ctw_attn_seq *q)
{
    const size_t es = ctw_dtype_bytes(p->op.dtype);
    for (int round = 0; round < 4; round++) {
        struct spoilt x = {.q = q, .of_v = round < 2, .nan = round % 2 == 0};
        const enum operand of = x.of_v ? V : K;
        const int64_t size = x.of_v ? p->op.head_v : p->op.head;
        x.pos = rng_below(q->pos0 + q->n_q);
        x.kv = rng_below(p->op.n_kv);
        x.el = rng_below(size);
        const int64_t at = (key_row(q, x.pos) * p->op.n_kv + x.kv) * size + x.el;
        uint32_t bad;
        ctw_store_float(&bad, p->op.dtype, 0, x.nan ? NAN : INFINITY);
        OK(ctw_device_upload(p->out.be, p->dev[of].p + (size_t)at * es, &bad, es, &last_err));
        struct buf got = all_results(p);
        OK(ctw_device_upload(p->out.be, p->dev[of].p + (size_t)at * es,
                             element(p->in[of].p, p->op.dtype, at), es, &last_err));
        for (int64_t i = 0; i < p->q_rows * p->op.n_head; i++)
            check_spoilt_head(p, &x, &got, clean, i / p->op.n_head, i % p->op.n_head);
        buf_close(&got);
    }
}

/* One head's sink at its limits; the other heads' are -infinity, which has no effect. */
static void check_limits(struct problem *p)
{
    static const float limits[] = {-INFINITY, 60000, NAN, INFINITY, -60000};
    const struct buf *sinks = &p->in[SINK];
    struct ctw_op_attention none = p->op;
    none.sinks = NULL;
    poison(p);
    struct buf without = results(p, &none), limited = buf_copy(sinks, 0);
    for (size_t limit = 0; limit < CTW_COUNT(limits); limit++) {
        const int64_t head = rng_below(p->op.n_head), head_v = p->op.head_v;
        for (int64_t h = 0; h < p->op.n_head; h++)
            ctw_store_float(limited.p, p->op.sinks_dtype, h, h == head ? limits[limit] : -INFINITY);
        OK(ctw_device_upload(p->out.be, p->dev[SINK].p, limited.p, limited.bytes, &last_err));
        struct buf got = all_results(p);
        for (int64_t i = 0; i < p->q_rows * p->row; i++) {
            const double g = ctw_load_float(got.p, p->op.dtype, i);
            const bool same =
                memcmp(element(got.p, p->op.dtype, i), element(without.p, p->op.dtype, i),
                       ctw_dtype_bytes(p->op.dtype)) == 0;
            const bool own =
                !isnan(p->want[i]) && i / head_v % p->op.n_head == head && !(limits[limit] < 0);
            if (own ? isfinite(limits[limit]) ? g != 0 : !isnan(g) : !same)
                fail_msg("%s, %s: a sink of %g, element %" PRId64 ": %g", p->place, p->name,
                         (double)limits[limit], i, g);
        }
        buf_close(&got);
    }
    OK(ctw_device_upload(p->out.be, p->dev[SINK].p, sinks->p, sinks->bytes, &last_err));
    buf_close(&limited);
    buf_close(&without);
}

/* Attention to a choice of all keys gives the bits of attention without a choice. */
static void check_all_seen(struct problem *p)
{
    struct ctw_op_attention op = p->op;
    struct buf all = buf_copy(&p->in[WORDS], 0);
    memset(all.p, 0xFF, all.bytes);
    OK(ctw_device_upload(p->out.be, p->dev[WORDS].p, all.p, all.bytes, &last_err));
    op.seen_from = 0;
    poison(p);
    struct buf got = results(p, &op);
    op.seen = NULL;
    poison(p);
    struct buf want = results(p, &op);
    assert_memory_equal(got.p, want.p, got.bytes);
    buf_close(&want);
    buf_close(&got);
    buf_close(&all);
}

static void check_in_place(struct problem *p, int place)
{
    const struct ctw_attn_seq *longest = p->seqs;
    for (int64_t s = 1; s < p->op.n_seqs; s++)
        if (p->seqs[s].pos0 + p->seqs[s].n_q > longest->pos0 + longest->n_q)
            longest = &p->seqs[s];
    problem_enter(p, place);
    struct buf got = all_results(p);
    check_values(p, &got);
    if (!is_plain(place)) {
        check_company(p, &got);
        check_not_finite(p, &got, longest);
        if (p->op.sinks != NULL)
            check_limits(p);
        if (p->op.seen != NULL && p->same_as_unseen)
            check_all_seen(p);
    }
    buf_close(&got);
    problem_leave(p);
}

/* ---- shapes ------------------------------------------------------------------------------- */

/*
 * Heads around vectors of 8 and 16, tiles of 16, 32 and 64, and the widths of the GPU's instances;
 * groups that divide tiles of rows and that do not; windows and chunks around tiles of 64 and 96;
 * value heads of their own size, factors.
 */
static const struct shape shapes[] = {
    {4, 1, .head = 128},
    {9, 3, .head = 64},
    {2, 2, .head = 128},
    {7, 1, .head = 40},
    {4, 2, .head = 80},
    {2, 1, .head = 96, .window = 96},
    {12, 4, .head = 112},
    {2, 1, .head = 192},
    {2, 2, .head = 256},
    {14, 2, .head = 64},
    {2, 1, .head = 7},
    {4, 4, .head = 16},
    {1, 1, .head = 1},
    {4, 2, .head = 128, .window = 1},
    {6, 2, .head = 80, .window = 5},
    {4, 1, .head = 128, .window = 64},
    {2, 2, .head = 256, .window = 95},
    {5, 5, .head = 24, .window = 97},
    {4, 2, .head = 128, .softcap = 30},
    {8, 4, .head = 64, .window = 100, .softcap = 50},
    {71, 1, .head = 32},
    {500, 1, .head = 8},
    {7, 1, .head = 128, .window = 100},
    {3, 1, .head = 33, .window = 200},
    {2, 1, .head = 512},
    {4, 4, .head = 512, .window = 100},
    {3, 1, .head = 320, .window = 90},
    {3, 1, .head = 300, .softcap = 30},
    {2, 2, .head = 257, .window = 64},
    {4, 4, .head = 192, .head_v = 128},
    {6, 3, .head = 24, .head_v = 16},
    {4, 2, .head = 96, .window = 37, .head_v = 64, .v_factor = 0.707f},
    {4, 1, .head = 192, .window = 100, .head_v = 128, .v_factor = -2},
    {3, 3, .head = 64, .softcap = 30, .head_v = 128},
    {2, 1, .head = 80, .head_v = 256},
    {3, 3, .head = 8, .head_v = 512},
    {2, 2, .head = 256, .head_v = 64},
    {3, 1, .head = 33, .head_v = 17, .v_factor = 3},
    {8, 2, .head = 64, .v_factor = 0.5f},
    {8, 2, .head = 24, .window = 37, .head_v = 40},
    {4, 2, .head = 128, .chunk = 64},
    {7, 1, .head = 64, .chunk = 100},
    {4, 4, .head = 192, .head_v = 128, .chunk = 130},
    {4, 4, .head = 40, .chunk = 7, .v_factor = -2},
    {10, 2, .head = 32, .softcap = 5, .head_v = 48, .chunk = 100},
    {2, 1, .head = 40, .softcap = 20, .chunk = 1},
};

static void results_are_as_defined_whatever_is_beside_them(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 129, 2, 65, 200, 63, 64, 300, 127, 128};
    static struct problem p;
    enum { N_KINDS = CTW_COUNT(kinds) };
    for (size_t i = 0; i < CTW_COUNT(shapes) * N_KINDS; i += SPARSE) {
        const struct shape *s = &shapes[i / N_KINDS];
        const enum extra extra = (i / N_KINDS + i % N_KINDS) % N_EXTRAS;
        const bool few = !CTW_ON_GPU && s->n_head * s->head > 1000;
        problem_open(&p, s, kinds[i % N_KINDS], extra, lengths,
                     CTW_ON_GPU ? CTW_COUNT(lengths)
                     : few      ? 2
                                : 5,
                     i % 7 == 0 ? 1 : 6);
        p.misalign = i % 5 == 4 ? 4 * (size_t)(1 + rng_below(8)) : 0;
        define(&p);
        for (int place = 0; places[place] != NULL; place++)
            check_in_place(&p, place);
        problem_close(&p);
    }
}

/* ---- borders ------------------------------------------------------------------------------ */

enum { N = 300, PAST = 60, GAP = 2 };

/* The runs of a sequence of N keys: the first ends at `border`, some short ones follow; or, for
 * borders past the end, up to MAX_RUNS of random lengths. Returns their number. */
static int cut_keys(struct ctw_kv_run *runs, int64_t border)
{
    const int64_t first[] = {border, border % 3 == 0 ? 0 : 1 + border % 7,
                             border % 3 == 1 ? 0 : border % 37};
    const int most = border < N ? 4 : 2 + (int)(border % (MAX_RUNS - 1));
    int n_runs = 0;
    for (int64_t left = N; left > 0;) {
        int64_t len = border < N ? first[n_runs % 3] : 1 + rng_below(2 * N / most);
        len = n_runs + 1 == most || len > left ? left : len;
        runs[n_runs++].n_tok = len;
        left -= len;
    }
    int64_t at = 0; /* the last lies first */
    for (int r = n_runs - 1; r >= 0; at += runs[r--].n_tok)
        runs[r].row = at += GAP;
    return n_runs;
}

/* Moves the rows of an operand, of which `from` has those of all keys, to those of the runs; others
 * are NaN. */
static void move_rows(struct problem *p, enum operand of, int64_t from)
{
    struct buf moved = buf_open(p->in[of].bytes, 0);
    const size_t row = moved.bytes / (size_t)p->kv_rows;
    const char *next = (const char *)p->in[of].p + (size_t)from * row;
    memset(moved.p, 0xFF, moved.bytes);
    for (const struct ctw_kv_run *r = p->runs[0]; r < p->runs[0] + p->seqs[0].n_runs; r++) {
        memcpy((char *)moved.p + (size_t)r->row * row, next, (size_t)r->n_tok * row);
        next += (size_t)r->n_tok * row;
    }
    OK(ctw_device_upload(p->out.be, p->dev[of].p, moved.p, moved.bytes, &last_err));
    buf_close(&moved);
}

/* Keys in runs, queries in two calls. */
static void check_border(struct problem *p, int64_t from, int64_t border, const struct buf *want)
{
    struct ctw_attn_seq part = p->seqs[0];
    struct ctw_op_attention op = p->op;
    part.n_runs = p->seqs[0].n_runs = cut_keys(p->runs[0], border);
    move_rows(p, K, from);
    move_rows(p, V, from);
    op.seqs = &part;
    part.n_q = 7 * border % N;
    poison(p);
    OK(ctw_attention(p->out.be, &op, &last_err));
    part.q_row += part.n_q;
    part.pos0 += part.n_q;
    part.n_q = N - part.n_q;
    struct buf got = results(p, &op);
    char what[40];
    snprintf(what, sizeof(what), "with a border at %" PRId64, border);
    same_rows(p, want, &got, &p->seqs[0], what);
    buf_close(&got);
}

static void borders_change_no_bit(void **state)
{
    (void)state;
    static const struct shape some[] = {{4, 1, .head = 128},
                                        {2, 2, .head = 256},
                                        {8, 1, .head = 64},
                                        {9, 3, .head = 64, .window = 70},
                                        {4, 4, .head = 192, .head_v = 128},
                                        {2, 1, .head = 96, .window = 100, .softcap = 20},
                                        {2, 1, .head = 512},
                                        {4, 2, .head = 64, .chunk = 100},
                                        {3, 1, .head = 33},
                                        {7, 1, .head = 128, .window = 96, .softcap = 20},
                                        {3, 3, .head = 40, .head_v = 24, .v_factor = 0.7f}};
    static const int64_t lengths[] = {N, GAP * (MAX_RUNS + 1)}; /* the second: room for gaps */
    static struct problem p;
    for (size_t i = 0; i < CTW_COUNT(some) * CTW_COUNT(kinds); i += COARSE) {
        const size_t kind = i % CTW_COUNT(kinds), s = i / CTW_COUNT(kinds);
        problem_open(&p, &some[s], kinds[kind], (s + kind) % N_EXTRAS, lengths, 2, 1);
        p.op.n_seqs = 1;
        const int64_t from = p.runs[0][0].row;
        for (int place = 0; places[place] != NULL; place++) {
            if (is_plain(place))
                continue;
            p.runs[0][0] = (struct ctw_kv_run){from, N};
            p.seqs[0].n_runs = 1;
            problem_enter(&p, place);
            struct buf want = all_results(&p);
            for (int64_t border = 1 + (int64_t)kind; border < N + PAST;
                 border += CTW_ON_GPU ? 7 : 23 * SPARSE)
                check_border(&p, from, border, &want);
            buf_close(&want);
            problem_leave(&p);
        }
        problem_close(&p);
    }
}

/* ---- what is the CPU's alone, and single cases -------------------------------------------- */

static void threads_change_no_bit(void **state)
{
    (void)state;
    static const int64_t lengths[] = {211, 30, 64};
    static struct problem p;
    for (size_t i = 0; !CTW_ON_GPU && i < CTW_COUNT(shapes); i += 5 * COARSE) {
        problem_open(&p, &shapes[i], kinds[i % CTW_COUNT(kinds)], i % N_EXTRAS, lengths, 3, 6);
        for (int v = 0; fast_variant_or_c(v) != NULL; v++) {
            problem_enter(&p, v);
            struct buf want = all_results(&p);
            for (int threads = 1; threads <= 7; threads += 3) {
                struct ctw_backend *be = backend(fast_variant_or_c(v), threads);
                poison(&p);
                OK(ctw_attention(be, &p.op, &last_err));
                struct buf got = buf_open(p.out.bytes, 0);
                dev_read(&p.out, got.p);
                assert_memory_equal(got.p, want.p, want.bytes);
                buf_close(&got);
                ctw_backend_close(be);
            }
            buf_close(&want);
            problem_leave(&p);
        }
        problem_close(&p);
    }
}

/* If all of a query's scores are -infinity, only its sink has weight. */
static void a_sink_alone(void **state)
{
    (void)state;
    static struct problem p;
    for (int place = 0; places[place] != NULL; place++) {
        problem_open(&p, &(struct shape){2, 1, .head = 16}, CTW_F32, SINKS, &(int64_t){3}, 1, 1);
        const int64_t q = p.seqs[0].q_row, k = p.runs[0][0].row;
        for (int64_t e = 0; e < 16; e++) { /* the first key, and row 0's first head */
            ctw_store_float(p.in[Q].p, CTW_F32, q * 32 + e, 1);
            ctw_store_float(p.in[K].p, CTW_F32, k * 16 + e, e == 5 ? -INFINITY : 0);
        }
        problem_enter(&p, place);
        for (int without = 0; without < 2; without++) {
            struct buf got = all_results(&p);
            for (int64_t e = 0; e < 16; e++) {
                const float g = ctw_load_float(got.p, CTW_F32, q * 32 + e);
                assert_true(without ? isnan(g) : g == 0);
            }
            buf_close(&got);
            p.op.sinks = NULL;
        }
        problem_leave(&p);
        problem_close(&p);
    }
}

static void sinks_are_floats(void **state)
{
    (void)state;
    static struct problem p;
    problem_open(&p, &shapes[0], CTW_F32, SINKS, &(int64_t){3}, 1, 1);
    problem_enter(&p, 0);
    p.op.sinks_dtype = CTW_I8;
    assert_int_equal(ctw_attention(places[0], &p.op, &last_err), CTW_EINTERNAL);
    assert_non_null(strstr(last_err.msg, "sinks_dtype"));
    problem_leave(&p);
    problem_close(&p);
}

#if CTW_ON_GPU
#include "attention_rates.h"
#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_as_defined_whatever_is_beside_them),
        cmocka_unit_test(borders_change_no_bit),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(a_sink_alone),
        cmocka_unit_test(sinks_are_floats),
    };
#if CTW_ON_GPU
    const struct CMUnitTest measured[] = {cmocka_unit_test(rates)};
    if (rates_wanted(argc, argv))
        return cmocka_run_group_tests(measured, suite_setup, suite_teardown);
#else
    (void)argc;
    (void)argv;
#endif
    return cmocka_run_group_tests(tests, suite_setup, suite_teardown);
}
