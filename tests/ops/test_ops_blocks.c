/* ctw_blocks() in every place: against its definition in long double, ties, and cuts; attention
 * whose key heads see other keys. */
#include "kernels/blocks.h"
#include "places.h"

enum { N = 150, HEADS = 3, HEAD = 20, WORDS = (N + 31) / 32 + 1, ROW = HEADS * WORDS, SPLIT = 61 };

struct problem {
    struct ctw_op_blocks op;
    struct buf q, k;
    struct dev device[3];
};

/* The keys are in two runs: positions from SPLIT on are the first rows. */
static const struct ctw_kv_run runs[] = {{90, SPLIT}, {0, N - SPLIT}};

static struct problem problem_open(struct ctw_backend *be, enum ctw_dtype dtype, int64_t block,
                                   int64_t chosen, int64_t local)
{
    const size_t es = ctw_dtype_bytes(dtype);
    struct problem p = {.op = {.dtype = dtype,
                               .n_head = HEADS,
                               .head = HEAD,
                               .block = block,
                               .chosen = chosen,
                               .local = local,
                               .n_seqs = 1,
                               .ld_scores = N,
                               .ld_seen = ROW,
                               .seen_head = WORDS}};
    struct buf scores = buf_open((size_t)(N * HEADS * N) * sizeof(float), 0);
    p.q = buf_random(dtype, N * HEADS * HEAD, 1, 0);
    p.k = buf_random(dtype, (N + 1) * HEAD, 1, 0);
    p.device[0] = dev_open(be, p.q.p, (size_t)(N * HEADS * HEAD) * es, 0);
    p.device[1] = dev_open(be, p.k.p, (size_t)((N + 1) * HEAD) * es, 0);
    p.device[2] = dev_open(be, scores.p, scores.bytes, 0);
    buf_close(&scores);
    return p;
}

static void problem_close(struct problem *p)
{
    for (int i = 0; i < 3; i++)
        dev_close(&p->device[i]);
    buf_close(&p->q);
    buf_close(&p->k);
}

/* Queries first .. first+n-1 into seen [N, ROW]. */
static void run(struct problem *p, int64_t first, int64_t n, uint32_t *seen)
{
    struct ctw_op_blocks op = p->op;
    const struct ctw_attn_seq seq = {
        .q_row = first, .pos0 = first, .n_q = n, .runs = runs, .n_runs = 2};
    struct ctw_backend *be = p->device[0].be;
    struct dev out = dev_open(be, seen, (size_t)(N * ROW) * sizeof(*seen), 0);
    op.q = p->device[0].p;
    op.k = p->device[1].p;
    op.scores = (float *)(void *)p->device[2].p;
    op.seen = (uint32_t *)(void *)out.p;
    op.seqs = &seq;
    OK(ctw_blocks(be, &op, &last_err));
    dev_read(&out, seen);
    dev_close(&out);
}

static bool bit(const uint32_t *seen, int64_t query, int h, int64_t key)
{
    return (seen[query * ROW + h * WORDS + key / 32] >> key % 32 & 1) != 0;
}

/* Of block b, for head h of query i. */
static long double score(const struct problem *p, int64_t i, int h, int64_t b)
{
    const int64_t own = i / p->op.block, end = (b + 1) * p->op.block;
    long double best = own - b < p->op.local ? INFINITY : -INFINITY;
    for (int64_t j = b * p->op.block; j < end && j <= i; j++) {
        int64_t row = j < SPLIT ? runs[0].row + j : j - SPLIT;
        long double dot = 0;
        for (int d = 0; d < HEAD; d++)
            dot += (long double)ctw_load_float(p->q.p, p->op.dtype, (i * HEADS + h) * HEAD + d) *
                   ctw_load_float(p->k.p, p->op.dtype, row * HEAD + d);
        best = dot > best ? dot : best;
    }
    return best;
}

/* The query sees whole blocks, as many as the operation asks for, and no block that it does not see
 * has a higher score. */
static void check_query(const struct problem *p, const uint32_t *seen, int64_t i, int h)
{
    const int64_t n = i / p->op.block + 1;
    long double least = INFINITY, best = -INFINITY;
    int64_t n_chosen = 0;
    for (int64_t b = 0; b < n; b++) {
        const bool sees = bit(seen, i, h, b * p->op.block);
        const long double s = score(p, i, h, b);
        n_chosen += sees;
        least = sees && s < least ? s : least;
        best = !sees && s > best ? s : best;
        for (int64_t j = b * p->op.block; j < (b + 1) * p->op.block && j <= i; j++)
            assert_int_equal(bit(seen, i, h, j), sees);
    }
    assert_int_equal(n_chosen, n < p->op.chosen ? n : p->op.chosen);
    assert_true(least >= best - 1e-5L);
    for (int64_t j = i + 1; j < (i / 32 + 1) * 32; j++)
        assert_false(bit(seen, i, h, j));
}

static void the_best_blocks_are_chosen(void **state)
{
    (void)state;
    static const struct {
        enum ctw_dtype dtype;
        int64_t block, chosen, local;
    } cases[] = {{CTW_F32, 7, 1, 1}, {CTW_BF16, 32, 2, 1}, {CTW_F16, 16, 4, 2},
                 {CTW_F32, 1, 9, 3}, {CTW_BF16, 7, 5, 0},  {CTW_F32, 32, 9, 1}};
    static uint32_t seen[N * ROW];
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        for (size_t i = 0; i < CTW_COUNT(cases); i++) {
            struct problem p =
                problem_open(be, cases[i].dtype, cases[i].block, cases[i].chosen, cases[i].local);
            run(&p, 0, N, seen);
            for (int64_t q = 0; q < N * HEADS; q++)
                check_query(&p, seen, q / HEADS, (int)(q % HEADS));
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

/* Equal keys: the first blocks. A key that is not a number counts for nothing. */
static void ties_go_to_the_first(void **state)
{
    (void)state;
    static uint32_t seen[N * ROW];
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        struct problem p = problem_open(be, CTW_F32, 10, 3, 0);
        for (int64_t i = 0; i < (N + 1) * HEAD; i++) /* the first block's keys are at rows 90.. */
            ctw_store_float(p.k.p, CTW_F32, i, i / HEAD >= 90 && i / HEAD < 100 ? NAN : 1);
        OK(ctw_device_upload(be, p.device[1].p, p.k.p, p.k.bytes, &last_err));
        run(&p, 0, N, seen);
        for (int64_t i = 40; i < N; i++)
            for (int64_t j = 0; j <= i; j++)
                assert_int_equal(bit(seen, i, 1, j), j >= 10 && j < 40);
        problem_close(&p);
        ctw_backend_close(be);
    }
}

static void cuts_change_no_bit(void **state)
{
    (void)state;
    static uint32_t want[N * ROW], got[N * ROW];
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 3)) != NULL; place++) {
        struct problem p = problem_open(be, CTW_BF16, 7, 4, 1);
        memset(want, 0, sizeof(want));
        run(&p, 0, N, want);
        for (int64_t cut = 1; cut < N; cut += 37) {
            memset(got, 0, sizeof(got));
            run(&p, 0, cut, got);
            run(&p, cut, N - cut, got);
            assert_memory_equal(got, want, sizeof(want));
        }
        problem_close(&p);
        ctw_backend_close(be);
    }
}

/* One call for key heads that see other keys gives the bits of a call for each. */
static void key_heads_see_their_own_keys(void **state)
{
    (void)state;
    enum { GROUP = 2, ALL = HEADS * GROUP, Q = N * ALL * HEAD, KV = N * HEADS * HEAD };
    static uint32_t seen[N * ROW];
    static float q[Q], k[KV], want[Q], got[Q];
    const struct ctw_kv_run whole = {0, N};
    const struct ctw_attn_seq seq = {.n_q = N, .runs = &whole, .n_runs = 1};
    for (int64_t i = 0; i < N * ROW; i++)
        seen[i] = (uint32_t)(rng() & rng());
    for (int64_t i = 0; i < N * HEADS; i++)
        seen[i * WORDS + i / HEADS / 32] |= (uint32_t)1 << i / HEADS % 32;
    struct buf some = buf_random(CTW_F32, Q, 1, 0), keys = buf_random(CTW_F32, KV, 1, 0);
    memcpy(q, some.p, sizeof(q));
    memcpy(k, keys.p, sizeof(k));
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        struct dev d[] = {dev_open(be, q, sizeof(q), 0), dev_open(be, k, sizeof(k), 0),
                          dev_open(be, seen, sizeof(seen), 0), dev_open(be, got, sizeof(got), 0)};
        struct ctw_op_attention op = {.dtype = CTW_F32,
                                      .n_head = ALL,
                                      .n_kv = HEADS,
                                      .head = HEAD,
                                      .scale = 0.3f,
                                      .seen = (const uint32_t *)(const void *)d[2].p,
                                      .ld_seen = ROW,
                                      .seen_head = WORDS,
                                      .q = d[0].p,
                                      .k = d[1].p,
                                      .v = d[1].p,
                                      .out = d[3].p,
                                      .seqs = &seq,
                                      .n_seqs = 1};
        OK(ctw_attention(be, &op, &last_err));
        dev_read(&d[3], got);
        op.seen_head = 0;
        for (int h = 0; h < HEADS; h++) {
            op.seen = (const uint32_t *)(const void *)d[2].p + h * WORDS;
            OK(ctw_attention(be, &op, &last_err));
            dev_read(&d[3], want);
            for (int64_t i = 0; i < N; i++) {
                const int64_t at = (i * ALL + h * GROUP) * HEAD;
                assert_memory_equal(got + at, want + at, GROUP * HEAD * sizeof(float));
            }
        }
        for (size_t i = 0; i < CTW_COUNT(d); i++)
            dev_close(&d[i]);
        ctw_backend_close(be);
    }
    buf_close(&some);
    buf_close(&keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_blocks_are_chosen),
        cmocka_unit_test(ties_go_to_the_first),
        cmocka_unit_test(cuts_change_no_bit),
        cmocka_unit_test(key_heads_see_their_own_keys),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
