/* Passes that share a beginning, the trunk, on a small checkpoint: what is computed, and that
 * nothing that happens to a trunk changes a score. On the CPU and on the fake GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pass_watch.h"
#include "small_checkpoint.h"
#include "worker/engine/engine.h"
#include "worker/engine/open/devices.h"

enum { N_SEQS = 12, TRUNK = 60, LEN = TRUNK + 20, NAN_TOKEN = 15, MOST_BYTES = 4096 };

static const char *backend;
static uint16_t values[sizeof(dense) / sizeof(*dense)][MOST_BYTES / 2];

struct set {
    struct ctw_seq seqs[N_SEQS];
    int32_t tokens[N_SEQS][LEN], greedy[N_SEQS][LEN];
    float logprob[N_SEQS][LEN];
};

/* Values in bf16, of about 2^-3 and either sign. */
static int set_up_values(void **state)
{
    int st = set_up(state);
    struct checkpoint *c = *state;
    uint32_t rng = 7;
    for (int i = 0; st == 0 && i < c->n; i++) {
        for (size_t k = 0; k < c->tensors[i].bytes / 2; k++) {
            rng = rng * 1664525u + 1013904223u;
            values[i][k] = (uint16_t)(0x3d00 | (rng >> 8 & 0x80ff));
        }
        c->tensors[i].data = (const char *)values[i];
    }
    return st;
}

/* Sequences of a trunk by `kind`, and further tokens of their own; the last one is scored. */
static void fill(struct set *s, const int *kind)
{
    memset(s, 0, sizeof(*s));
    for (int i = 0; i < N_SEQS; i++) {
        int n_tok = TRUNK + 10 + i % 5;
        for (int t = 0; t < n_tok; t++)
            s->tokens[i][t] = t < TRUNK ? (t * t + kind[i] * (t + 1)) % NAN_TOKEN
                                        : (t * (i + 3) + i * i) % NAN_TOKEN;
        s->tokens[i][TRUNK] = i % NAN_TOKEN; /* parts from the others */
        s->seqs[i] = (struct ctw_seq){.tokens = s->tokens[i],
                                      .n_tok = n_tok,
                                      .first = n_tok - 1,
                                      .logprob = s->logprob[i],
                                      .greedy = s->greedy[i]};
    }
}

static const int alike[N_SEQS];

static struct ctw_engine *engine_of(const struct checkpoint *c, bool no_share, const char *dtype,
                                    struct ctw_devices *devices)
{
    struct ctw_engine *e;
    struct ctw_err err;
    const struct ctw_engine_options opt = {.model_dir = c->dir,
                                           .backend = backend,
                                           .dtype = dtype,
                                           .devices = devices,
                                           .n_threads = 1,
                                           .chunk_tokens = 4, /* of fewer blocks than a pass */
                                           .pass_tokens = 120,
                                           .no_share = no_share};
    if (ctw_engine_open(&e, &opt, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return e;
}

static struct ctw_engine *engine(const struct checkpoint *c, bool no_share)
{
    return engine_of(c, no_share, NULL, NULL);
}

static void keep_progress(void *arg, const struct ctw_progress *p)
{
    *(struct ctw_progress *)arg = *p;
}

/* Scores sequences first .. end-1 in one call; returns the tokens that are computed. */
static int64_t score(struct ctw_engine *e, struct set *s, int first, int end,
                     const struct ctw_seq *next)
{
    struct ctw_err err;
    struct ctw_progress last;
    const struct ctw_hooks hooks = {.arg = &last, .progress = keep_progress, .next = next};
    if (ctw_engine_score(e, s->seqs + first, end - first, &hooks, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(last.tok_done, last.tok_total);
    return last.tok_computed;
}

static int64_t own_tokens(const struct set *s, int first, int end)
{
    int64_t n = 0;
    for (int i = first; i < end; i++)
        n += s->seqs[i].n_tok - 1 - TRUNK;
    return n;
}

static void assert_same(const struct set *a, const struct set *b)
{
    assert_memory_equal(a->logprob, b->logprob, sizeof(a->logprob));
    assert_memory_equal(a->greedy, b->greedy, sizeof(a->greedy));
    for (int i = 0; i < N_SEQS; i++)
        assert_int_equal(a->seqs[i].bad_layer, b->seqs[i].bad_layer);
}

static void score_whole(const struct checkpoint *c, struct set *s)
{
    struct ctw_engine *e = engine(c, true);
    (void)score(e, s, 0, N_SEQS, NULL);
    ctw_engine_close(e);
}

static void passes_share_a_trunk(void **state)
{
    const struct checkpoint *c = *state;
    static struct set want, got;
    write_it(c);
    fill(&want, alike);
    score_whole(c, &want);
    assert_memory_not_equal(want.logprob[0], want.logprob[1], sizeof(float));
    struct ctw_engine *e = engine(c, false);
    fill(&got, alike);
    assert_int_equal(score(e, &got, 0, N_SEQS, NULL), TRUNK + own_tokens(&got, 0, N_SEQS));
    assert_same(&want, &got);
    ctw_engine_close(e);
}

/* A call leaves a trunk if told what comes next; it stays while nothing better takes its place. */
static void calls_share_a_trunk(void **state)
{
    const struct checkpoint *c = *state;
    static const int kinds[N_SEQS] = {0, 0, 0, 1, 0, 1, 1, 0};
    static struct set want, got;
    write_it(c);
    fill(&want, kinds);
    score_whole(c, &want);
    struct ctw_engine *e = engine(c, false);
    fill(&got, kinds);
    const struct {
        int first, end, next; /* -1: not known */
        bool computes_trunk;
        const char *what;
    } calls[] = {
        {0, 1, -1, true, "nothing is known"},
        {0, 1, 1, true, "so nothing was left"},
        {1, 2, -1, false, "a trunk is left"},
        {2, 3, 3, false, "and stays"},
        {3, 4, 4, true, "another trunk, which the next sequence does not have"},
        {4, 5, 5, false, "so that the first stays"},
        {5, 6, 6, true, "the other is left"},
        {6, 7, 7, false, "and read"},
        {7, 8, -1, true, "the first is gone"},
        {8, N_SEQS, -1, true, "and is not left"},
    };
    for (size_t i = 0; i < CTW_COUNT(calls); i++) {
        int64_t n = score(e, &got, calls[i].first, calls[i].end,
                          calls[i].next >= 0 ? &got.seqs[calls[i].next] : NULL);
        n -= own_tokens(&got, calls[i].first, calls[i].end);
        if (n != (calls[i].computes_trunk ? TRUNK : 0))
            fail_msg("%s: %d more tokens", calls[i].what, (int)n);
    }
    assert_same(&want, &got);
    (void)score(e, &got, 8, 9, &got.seqs[9]);
    ctw_engine_trim(e); /* no memory, no trunk */
    assert_int_equal(score(e, &got, 9, 10, NULL), TRUNK + own_tokens(&got, 9, 10));
    assert_same(&want, &got);
    ctw_engine_close(e);
}

/* Each sequence learns the layer of numbers that are not finite, so they are never a trunk. */
static void a_trunk_is_finite(void **state)
{
    const struct checkpoint *c = *state;
    static struct set want, got;
    for (size_t i = 0; i < 32; i++) /* of the embedding */
        values[0][NAN_TOKEN * 32 + i] = 0x7fc0;
    write_it(c);
    fill(&want, alike);
    fill(&got, alike);
    for (int i = 0; i < N_SEQS; i++)
        want.tokens[i][TRUNK / 2] = got.tokens[i][TRUNK / 2] = NAN_TOKEN;
    score_whole(c, &want);
    struct ctw_engine *e = engine(c, false);
    assert_true(score(e, &got, 0, N_SEQS, NULL) >= 2 * TRUNK + own_tokens(&got, 0, N_SEQS));
    for (int i = 0; i < N_SEQS; i++) {
        assert_int_equal(got.seqs[i].bad_layer, want.seqs[i].bad_layer);
        assert_int_equal(got.seqs[i].bad_layer, 0);
    }
    ctw_engine_close(e);
}

/* The targets of a sequence may be tokens of the trunk, whose hidden states are gone. */
static void targets_in_a_trunk_are_computed(void **state)
{
    const struct checkpoint *c = *state;
    static struct set want, got;
    write_it(c);
    for (int k = 0; k < 2; k++) {
        struct set *s = k == 0 ? &want : &got;
        fill(s, alike);
        for (int i = 3; i < N_SEQS; i += 2)
            s->seqs[i].first = i % 3 == 0 ? 1 : TRUNK - 2 * i;
    }
    score_whole(c, &want);
    struct ctw_engine *e = engine(c, false);
    assert_true(score(e, &got, 0, N_SEQS, NULL) < 8 * TRUNK);
    assert_same(&want, &got);
    ctw_engine_close(e);
}

/* A pass that ends early has overwritten the trunk in part. */
static void a_cancelled_pass_leaves_none(void **state)
{
    const struct checkpoint *c = *state;
    static struct set want, got;
    static const int kinds[N_SEQS] = {0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0};
    struct ctw_err err;
    write_it(c);
    fill(&want, kinds);
    score_whole(c, &want);
    struct ctw_engine *e = engine(c, false);
    fill(&got, kinds);
    for (int64_t at = 1; at < 12; at++) {
        struct watch w = {.cancel_at = at};
        const struct ctw_hooks hooks = {.arg = &w, .cancelled = cancel_late, .next = &got.seqs[7]};
        (void)score(e, &got, 0, 1, &got.seqs[1]);
        enum ctw_status st = ctw_engine_score(e, got.seqs + 2, 5, &hooks, &err);
        assert_true(st == CTW_OK || st == CTW_ECANCELED);
        (void)score(e, &got, 7, N_SEQS, NULL);
        (void)score(e, &got, 0, 7, NULL);
        assert_same(&want, &got);
    }
    ctw_engine_close(e);
}

/* What a pass read from files that were written to meanwhile is in doubt: the pass is repeated, and
 * computes what it would have read of the trunk. */
static void a_repeated_pass_computes_its_trunk(void **state)
{
    const struct checkpoint *c = *state;
    static struct set want, got;
    struct ctw_err err;
    write_it(c);
    fill(&want, alike);
    score_whole(c, &want);
    struct ctw_engine *e = engine(c, false);
    fill(&got, alike);
    struct watch w = {.touch_at = 45, .dir = c->dir}; /* in the second pass */
    const struct ctw_hooks hooks = {.arg = &w, .progress = grows, .done = count_done};
    assert_int_equal(ctw_engine_score(e, got.seqs, N_SEQS, &hooks, &err), CTW_OK);
    assert_int_equal(w.n_done, N_SEQS);
    bool repeats = strcmp(backend, "cpu") == 0; /* a GPU has a copy of the files */
    assert_int_equal(w.last.tok_computed, (repeats ? 2 : 1) * TRUNK + own_tokens(&got, 0, N_SEQS));
    assert_same(&want, &got);
    ctw_engine_close(e);
}

struct compared {
    struct set s;
    struct ctw_seq_divergence divergence[N_SEQS];
    float columns[5][N_SEQS][LEN];
    int32_t ref_greedy[N_SEQS][LEN];
    uint8_t overlap5[N_SEQS][LEN];
};

/* Compares with the same checkpoint in float32; returns the tokens that are computed. */
static int64_t compare(const struct checkpoint *c, bool no_share, struct compared *p)
{
    struct ctw_devices devices = {0};
    struct ctw_err err;
    struct ctw_progress last;
    const struct ctw_hooks hooks = {.arg = &last, .progress = keep_progress};
    struct ctw_engine *e = engine_of(c, no_share, NULL, &devices),
                      *reference = engine_of(c, no_share, "float32", &devices);
    memset(p, 0, sizeof(*p));
    fill(&p->s, alike);
    for (int i = 0; i < N_SEQS; i++) {
        p->divergence[i] = (struct ctw_seq_divergence){.ref_logprob = p->columns[0][i],
                                                       .ref_greedy = p->ref_greedy[i],
                                                       .ref_top = p->columns[1][i],
                                                       .kl = p->columns[2][i],
                                                       .kl_reverse = p->columns[3][i],
                                                       .tv = p->columns[4][i],
                                                       .overlap5 = p->overlap5[i]};
        p->s.seqs[i].divergence = &p->divergence[i];
        p->s.seqs[i].first -= i % 4 == 3 ? 20 : i % 5; /* targets in the trunk, too */
    }
    if (ctw_engine_compare(e, reference, p->s.seqs, N_SEQS, &hooks, NULL, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    ctw_engine_close(e);
    ctw_engine_close(reference);
    return last.tok_computed;
}

static void models_that_are_compared_share(void **state)
{
    const struct checkpoint *c = *state;
    static struct compared want, got;
    write_it(c);
    assert_true(compare(c, true, &want) > N_SEQS * TRUNK);
    int64_t n = compare(c, false, &got);
    assert_in_range(n, TRUNK + own_tokens(&got.s, 0, N_SEQS),
                    N_SEQS * TRUNK / 2 + own_tokens(&got.s, 0, N_SEQS));
    assert_same(&want.s, &got.s);
    assert_memory_equal(want.columns, got.columns, sizeof(want.columns));
    assert_memory_equal(want.ref_greedy, got.ref_greedy, sizeof(want.ref_greedy));
    assert_memory_equal(want.overlap5, got.overlap5, sizeof(want.overlap5));
    assert_true(got.columns[2][0][0] > 0);
}

#define TRUNK_TEST(f) cmocka_unit_test_setup_teardown(f, set_up_values, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TRUNK_TEST(passes_share_a_trunk),
        TRUNK_TEST(calls_share_a_trunk),
        TRUNK_TEST(a_trunk_is_finite),
        TRUNK_TEST(targets_in_a_trunk_are_computed),
        TRUNK_TEST(a_cancelled_pass_leaves_none),
        TRUNK_TEST(a_repeated_pass_computes_its_trunk),
        TRUNK_TEST(models_that_are_compared_share),
    };
    setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1);
    backend = "cpu";
    int failed = cmocka_run_group_tests_name("trunks on the CPU", tests, NULL, NULL);
    backend = "cuda";
    return failed + cmocka_run_group_tests_name("trunks on a GPU", tests, NULL, NULL);
}
