/* Comparing two models: checkpoints of one and of two layers, once on the CPU, and once on the fake
 * GPU (tests/service/fake_device.c). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "pass_watch.h"
#include "tiny_model.h"
#include "worker/engine/engine.h"
#include "worker/engine/open/devices.h"

enum { N_TOK = 6, N = N_TOK - 1, N_SEQS = 4 };

static const char *backend;
static char one[] = "/tmp/ctw_test_compare_XXXXXX", two[] = "/tmp/ctw_test_compare_XXXXXX";
static struct ctw_devices devices;

static struct ctw_engine *open_with(const char *dir, int64_t chunk_tokens, int64_t pass_tokens)
{
    struct ctw_engine *e;
    struct ctw_err err;
    const struct ctw_engine_options opt = {.model_dir = dir,
                                           .backend = backend,
                                           .n_threads = 1,
                                           .devices = &devices,
                                           .chunk_tokens = chunk_tokens,
                                           .pass_tokens = pass_tokens};
    if (ctw_engine_open(&e, &opt, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return e;
}

static struct ctw_engine *open_engine(const char *dir)
{
    return open_with(dir, 2, 0);
}

/* ---- sequences and their results ---------------------------------------------------------- */

struct results {
    float logprob[N], ref_logprob[N], ref_top[N], kl[N], kl_reverse[N], tv[N];
    int32_t greedy[N], ref_greedy[N];
    uint8_t overlap5[N];
};

struct set {
    struct results r[N_SEQS];
    struct ctw_seq_divergence divergence[N_SEQS];
    struct ctw_seq seqs[N_SEQS];
};

static const int32_t tokens[N_SEQS][N_TOK] = {
    {1, 4, 2, 9, 3, 3}, {5, 5, 5, 0, 1, 2}, {7, 8, 9, 1, 0, 6}, {3, 1, 4, 1, 5, 9}};

/* Sequence i has N_TOK - i % 2 tokens and its first target at 1 + i / 2. */
static struct set *set_make(struct set *s)
{
    memset(s, 0, sizeof(*s));
    for (int i = 0; i < N_SEQS; i++) {
        struct results *r = &s->r[i];
        s->divergence[i] = (struct ctw_seq_divergence){.ref_logprob = r->ref_logprob,
                                                       .ref_greedy = r->ref_greedy,
                                                       .ref_top = r->ref_top,
                                                       .kl = r->kl,
                                                       .kl_reverse = r->kl_reverse,
                                                       .tv = r->tv,
                                                       .overlap5 = r->overlap5};
        s->seqs[i] = (struct ctw_seq){.tokens = tokens[i],
                                      .n_tok = N_TOK - i % 2,
                                      .first = 1 + i / 2,
                                      .logprob = r->logprob,
                                      .greedy = r->greedy,
                                      .divergence = &s->divergence[i]};
    }
    return s;
}

static void compare(struct ctw_engine *e, struct ctw_engine *reference, struct set *s)
{
    struct ctw_err err;
    if (ctw_engine_compare(e, reference, set_make(s)->seqs, N_SEQS, NULL, NULL, &err) != CTW_OK)
        fail_msg("%s", err.msg);
}

/* ---- tests -------------------------------------------------------------------------------- */

static void each_models_scores_keep_their_bits(void **state)
{
    (void)state;
    struct ctw_err err;
    struct ctw_engine *e = open_engine(one), *reference = open_engine(two);
    struct set both, alone[2];
    compare(e, reference, &both);
    assert_int_equal(ctw_engine_score(e, set_make(&alone[0])->seqs, N_SEQS, NULL, &err), CTW_OK);
    assert_int_equal(ctw_engine_score(reference, set_make(&alone[1])->seqs, N_SEQS, NULL, &err),
                     CTW_OK);
    for (int i = 0; i < N_SEQS; i++) {
        const struct results *r = &both.r[i], *m = &alone[0].r[i], *ref = &alone[1].r[i];
        assert_int_equal(both.seqs[i].bad_layer, -1);
        assert_memory_equal(r->logprob, m->logprob, sizeof(r->logprob));
        assert_memory_equal(r->greedy, m->greedy, sizeof(r->greedy));
        assert_memory_equal(r->ref_logprob, ref->logprob, sizeof(r->ref_logprob));
        assert_memory_equal(r->ref_greedy, ref->greedy, sizeof(r->ref_greedy));
        assert_memory_not_equal(r->logprob, r->ref_logprob, sizeof(r->logprob));
    }
    ctw_engine_close(e);
    ctw_engine_close(reference);
}

/* ln of the probabilities of all ids as token `at` of sequence i. */
static void distribution(struct ctw_engine *e, int i, int64_t at, double p[VOCAB])
{
    for (int32_t id = 0; id < VOCAB; id++) {
        struct ctw_err err;
        struct set s;
        int32_t ids[N_TOK];
        struct ctw_seq seq = set_make(&s)->seqs[i];
        memcpy(ids, tokens[i], sizeof(ids));
        ids[at] = id;
        seq.tokens = ids;
        seq.n_tok = at + 1;
        seq.first = at;
        assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_OK);
        p[id] = (double)seq.logprob[0];
    }
}

static int in_top5(const double p[VOCAB], int id)
{
    int before = 0;
    for (int i = 0; i < VOCAB; i++)
        before += p[i] > p[id] || (p[i] == p[id] && i < id);
    return before < 5;
}

static void divergences_are_of_the_distributions(void **state)
{
    (void)state;
    struct ctw_engine *e = open_engine(one), *reference = open_engine(two);
    struct set s;
    compare(e, reference, &s);
    for (int i = 0; i < N_SEQS; i++) {
        for (int64_t t = s.seqs[i].first; t < s.seqs[i].n_tok; t++) {
            const struct results *r = &s.r[i];
            int64_t at = t - s.seqs[i].first;
            double p[VOCAB], q[VOCAB], kl = 0, reverse = 0, tv = 0, top = -INFINITY;
            int overlap = 0;
            distribution(reference, i, t, p);
            distribution(e, i, t, q);
            for (int id = 0; id < VOCAB; id++) {
                kl += exp(p[id]) * (p[id] - q[id]);
                reverse += exp(q[id]) * (q[id] - p[id]);
                tv += fabs(exp(p[id]) - exp(q[id])) / 2;
                top = fmax(top, p[id]);
                overlap += in_top5(p, id) && in_top5(q, id);
            }
            assert_true(kl > 1e-4);
            assert_true(reverse > 1e-4);
            assert_true(fabs((double)r->kl[at] - kl) < 2e-6);
            assert_true(fabs((double)r->kl_reverse[at] - reverse) < 2e-6);
            assert_true(fabs((double)r->tv[at] - tv) < 1e-6);
            assert_true((double)r->ref_top[at] == top);
            assert_int_equal(r->overlap5[at], overlap);
        }
    }
    ctw_engine_close(e);
    ctw_engine_close(reference);
}

static void a_model_does_not_diverge_from_itself(void **state)
{
    (void)state;
    struct ctw_engine *e = open_engine(two), *reference = open_with(two, 3, 7);
    struct set s;
    compare(e, reference, &s);
    for (int i = 0; i < N_SEQS; i++)
        for (int64_t t = 0; t < s.seqs[i].n_tok - s.seqs[i].first; t++) {
            assert_true(s.r[i].kl[t] == 0);
            assert_true(s.r[i].kl_reverse[t] == 0);
            assert_true(s.r[i].tv[t] == 0);
            assert_int_equal(s.r[i].overlap5[t], 5);
        }
    ctw_engine_close(e);
    ctw_engine_close(reference);
}

/* Chunks and passes of both engines, and passes in between that use their buffers otherwise. */
static void results_do_not_depend_on_settings(void **state)
{
    (void)state;
    static const int64_t settings[][4] = {{1, 0, 3, 0}, {64, 6, 2, 0}, {5, 11, 4, 1}, {3, 1, 3, 1}};
    struct ctw_engine *e = open_engine(one), *reference = open_engine(two);
    struct set want;
    compare(e, reference, &want);
    ctw_engine_close(e);
    ctw_engine_close(reference);
    for (size_t i = 0; i < CTW_COUNT(settings); i++) {
        struct set got, other;
        struct ctw_err err;
        e = open_with(one, settings[i][0], settings[i][1]);
        reference = open_with(two, settings[i][2], settings[i][3]);
        for (int round = 0; round < 3; round++) {
            compare(e, reference, &got);
            assert_memory_equal(got.r, want.r, sizeof(want.r));
            if (round == 0)
                assert_int_equal(ctw_engine_score(e, set_make(&other)->seqs, 2, NULL, &err),
                                 CTW_OK);
            else
                ctw_engine_trim(reference);
        }
        ctw_engine_close(e);
        ctw_engine_close(reference);
    }
}

static void nan_names_its_model_and_layer(void **state)
{
    (void)state;
    static const struct {
        int tensor, layer;
    } cases[] = {{4, 0}, {7, 0}, {10, 1}}; /* o_proj; down_proj; the final norm is the head's */
    for (size_t i = 0; i < 2 * CTW_COUNT(cases); i++) {
        bool in_reference = i % 2 == 1;
        struct set s;
        tiny_write(one, 1, cases[i / 2].tensor);
        struct ctw_engine *bad = open_engine(one), *good = open_engine(two);
        compare(in_reference ? good : bad, in_reference ? bad : good, &s);
        for (int k = 0; k < N_SEQS; k++) {
            assert_int_equal(s.seqs[k].bad_layer, cases[i / 2].layer);
            assert_int_equal(s.divergence[k].bad_reference, in_reference);
        }
        ctw_engine_close(bad);
        ctw_engine_close(good);
    }
    tiny_write(one, 1, -1);
}

static void what_cannot_be_compared_is_refused(void **state)
{
    (void)state;
    struct ctw_err err;
    struct set s;
    struct ctw_engine *e = open_engine(one), *reference = open_engine(two);
    assert_int_equal(ctw_engine_compare(e, e, set_make(&s)->seqs, 1, NULL, NULL, &err), CTW_EINVAL);
    assert_non_null(strstr(err.msg, "under another name"));
    s.seqs[1].first = 0;
    assert_int_equal(ctw_engine_compare(e, reference, s.seqs, 2, NULL, NULL, &err), CTW_EINVAL);
    assert_non_null(strstr(err.msg, "sequence 1"));
    struct ctw_engine *apart;
    const struct ctw_engine_options opt = {.model_dir = two, .backend = backend, .n_threads = 1};
    assert_int_equal(ctw_engine_open(&apart, &opt, &err), CTW_OK);
    assert_int_equal(ctw_engine_compare(e, apart, set_make(&s)->seqs, 1, NULL, NULL, &err),
                     CTW_EINVAL);
    assert_non_null(strstr(err.msg, "different devices"));
    ctw_engine_close(apart);
    ctw_engine_close(reference);
    const struct ctw_engine_options shorter = {
        .model_dir = two, .backend = backend, .n_threads = 1, .devices = &devices, .max_length = 4};
    assert_int_equal(ctw_engine_open(&reference, &shorter, &err), CTW_OK);
    assert_int_equal(ctw_engine_compare(e, reference, s.seqs, 1, NULL, NULL, &err), CTW_EINVAL);
    assert_non_null(strstr(err.msg, "the reference: sequence 0"));
    ctw_engine_close(reference);
    ctw_engine_close(e);
}

/* Cancelled at every moment in turn, the next run gives the bits of the first. */
static void cancelling_leaves_no_trace(void **state)
{
    (void)state;
    struct ctw_err err;
    struct ctw_engine *e = open_with(one, 2, 6), *reference = open_with(two, 3, 0);
    struct set want, got;
    compare(e, reference, &want);
    enum ctw_status st = CTW_ECANCELED;
    for (int64_t at = 1; st == CTW_ECANCELED; at++) {
        struct watch w = {.cancel_at = at};
        const struct ctw_hooks hooks = {
            .arg = &w, .cancelled = cancel_late, .done = count_done, .progress = grows};
        st = ctw_engine_compare(e, reference, set_make(&got)->seqs, N_SEQS, &hooks, NULL, &err);
        assert_true(st == CTW_OK ? w.n_done == N_SEQS : w.n_done < N_SEQS);
        if (st == CTW_OK) {
            assert_int_equal(w.last.tok_done, w.last.tok_total);
            assert_int_equal(w.last.n_passes, N_SEQS);
        }
        compare(e, reference, &got);
        assert_memory_equal(got.r, want.r, sizeof(want.r));
        assert_true(at < 1000);
    }
    assert_int_equal(st, CTW_OK);
    ctw_engine_close(e);
    ctw_engine_close(reference);
}

/* Final hidden states that are kept, sequence by sequence, and handed back. */
struct kept {
    bool has[N_SEQS], offer;
    float rows[N_SEQS][N * HIDDEN];
    int n_kept, n_loaded;
};

static size_t rows_bytes(int64_t i)
{
    return (size_t)(N_TOK - i % 2 - (1 + i / 2)) * HIDDEN * sizeof(float);
}

static bool load_hidden(void *arg, int64_t first, int64_t n, void *rows)
{
    struct kept *k = arg;
    char *to = rows;
    for (int64_t i = first; i < first + n; i++) {
        if (!k->has[i] || !k->offer)
            return false;
        memcpy(to, k->rows[i], rows_bytes(i));
        to += rows_bytes(i);
    }
    k->n_loaded++;
    return true;
}

static void keep_hidden(void *arg, int64_t first, int64_t n, const void *rows)
{
    struct kept *k = arg;
    const char *from = rows;
    for (int64_t i = first; i < first + n; i++) {
        memcpy(k->rows[i], from, rows_bytes(i));
        from += rows_bytes(i);
        k->has[i] = true;
    }
    k->n_kept++;
}

/* With the reference's final hidden states kept, and then read instead of computed, in other passes
 * and for another model: the same bits. */
static void kept_hidden_states_give_the_same_bits(void **state)
{
    (void)state;
    static struct kept k;
    const struct ctw_hooks hooks = {
        .arg = &k, .load_hidden = load_hidden, .keep_hidden = keep_hidden};
    struct ctw_err err;
    struct set want, other, got;
    struct ctw_engine *e = open_with(one, 2, 6), *reference = open_engine(two);
    struct ctw_engine *third = open_with(two, 3, 12);
    memset(&k, 0, sizeof(k));
    compare(e, reference, &want);
    compare(third, reference, &other);
    for (int round = 0; round < 3; round++) {
        bool last = round == 2;
        k.offer = round > 0;
        assert_int_equal(ctw_engine_compare(last ? third : e, reference, set_make(&got)->seqs,
                                            N_SEQS, &hooks, NULL, &err),
                         CTW_OK);
        assert_memory_equal(got.r, last ? other.r : want.r, sizeof(want.r));
    }
    assert_int_equal(k.n_kept, N_SEQS); /* passes of one sequence each */
    assert_int_equal(k.n_loaded, N_SEQS + 2);
    ctw_engine_close(e);
    ctw_engine_close(third);
    ctw_engine_close(reference);
}

/* The reference's file is written to during the pass, and holds the same bytes. */
static void a_repeated_pass_counts_once(void **state)
{
    (void)state;
    struct ctw_err err;
    struct set want, got;
    struct ctw_engine *e = open_engine(one), *reference = open_engine(two);
    compare(e, reference, &want);
    struct watch w = {.touch_at = 3, .dir = two};
    const struct ctw_hooks hooks = {.arg = &w, .progress = grows, .done = count_done};
    assert_int_equal(
        ctw_engine_compare(e, reference, set_make(&got)->seqs, N_SEQS, &hooks, NULL, &err), CTW_OK);
    assert_int_equal(w.n_done, N_SEQS);
    assert_memory_equal(got.r, want.r, sizeof(want.r));
    ctw_engine_close(e);
    ctw_engine_close(reference);
}

static bool load_nothing(void *arg, int64_t first, int64_t n, void *rows)
{
    (void)arg, (void)first, (void)n, (void)rows;
    return false;
}

static void keep_nothing(void *arg, int64_t first, int64_t n, const void *rows)
{
    (void)arg, (void)first, (void)n, (void)rows;
}

static void spoil_once(void *arg, const struct ctw_progress *p)
{
    bool *spoilt = arg;
    (void)p;
    if (!*spoilt)
        tiny_spoil(one);
    *spoilt = true;
}

/* A model is streamed, and its file changes before its last layer is read. */
static void a_failure_is_of_the_model_that_was_read(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool as_reference = i % 2 == 1, spoilt = false, in_reference;
        struct ctw_hooks hooks = {.arg = &spoilt, .progress = spoil_once};
        struct ctw_engine *bad, *good = open_engine(two);
        struct ctw_err err;
        struct set s;
        const struct ctw_engine_options opt = {.model_dir = one,
                                               .backend = backend,
                                               .n_threads = 1,
                                               .devices = &devices,
                                               .place = "streamed"};
        tiny_write(one, 6, -1);
        assert_int_equal(ctw_engine_open(&bad, &opt, &err), CTW_OK);
        assert_int_equal(ctw_engine_wait_identity(bad, &err), CTW_OK);
        if (i >= 2) {
            hooks.load_hidden = load_nothing;
            hooks.keep_hidden = keep_nothing;
        }
        assert_int_equal(ctw_engine_compare(as_reference ? good : bad, as_reference ? bad : good,
                                            set_make(&s)->seqs, N_SEQS, &hooks, &in_reference,
                                            &err),
                         CTW_EIO);
        assert_non_null(strstr(err.msg, "reading the weights: "));
        assert_int_equal(in_reference, as_reference);
        ctw_engine_close(bad);
        ctw_engine_close(good);
    }
    tiny_write(one, 1, -1);
}

static void failed_allocations_are_reported(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    enum { STEP = 17 }; /* the address sanitizer sees every one */
#else
    enum { STEP = 1 };
#endif
    enum ctw_status st = CTW_ENOMEM;
    for (int64_t n = 1; st == CTW_ENOMEM; n += STEP) {
        struct ctw_engine *e = open_engine(one), *reference = open_engine(two);
        struct ctw_err err;
        struct set s;
        set_make(&s);
        ctw_mem_fail_at(n);
        st = ctw_engine_compare(e, reference, s.seqs, N_SEQS, NULL, NULL, &err);
        ctw_mem_fail_at(0);
        if (st != CTW_OK)
            compare(e, reference, &s);
        ctw_engine_close(e);
        ctw_engine_close(reference);
        assert_true(n < 5000);
    }
    assert_int_equal(st, CTW_OK);
}

/* Too little memory for both: what was taken is given back, and each alone still fits. */
static void what_did_not_fit_is_given_back(void **state)
{
    (void)state;
    struct ctw_backend *watch;
    struct ctw_err err;
    struct set s;
    setenv("CTW_FAKE_GPU_MEMORY", "140000", 1);
    assert_int_equal(ctw_backend_open(&watch, "cuda", NULL, &err), CTW_OK);
    struct ctw_engine *e = open_engine(one), *reference = open_engine(two);
    assert_int_equal(ctw_engine_wait_identity(e, &err), CTW_OK);
    assert_int_equal(ctw_engine_wait_identity(reference, &err), CTW_OK);
    uint64_t before = ctw_backend_memory_free(watch);
    assert_int_equal(ctw_engine_compare(e, reference, set_make(&s)->seqs, N_SEQS, NULL, NULL, &err),
                     CTW_ENOMEM);
    assert_non_null(strstr(err.msg, "two models"));
    assert_int_equal(ctw_backend_memory_free(watch), before);
    assert_int_equal(ctw_engine_score(e, s.seqs, N_SEQS, NULL, &err), CTW_OK);
    ctw_engine_close(e);
    ctw_engine_close(reference);
    ctw_backend_close(watch);
    unsetenv("CTW_FAKE_GPU_MEMORY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_models_scores_keep_their_bits),
        cmocka_unit_test(divergences_are_of_the_distributions),
        cmocka_unit_test(a_model_does_not_diverge_from_itself),
        cmocka_unit_test(results_do_not_depend_on_settings),
        cmocka_unit_test(nan_names_its_model_and_layer),
        cmocka_unit_test(what_cannot_be_compared_is_refused),
        cmocka_unit_test(cancelling_leaves_no_trace),
        cmocka_unit_test(a_repeated_pass_counts_once),
        cmocka_unit_test(kept_hidden_states_give_the_same_bits),
        cmocka_unit_test(a_failure_is_of_the_model_that_was_read),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    const struct CMUnitTest on_a_gpu[] = {cmocka_unit_test(what_did_not_fit_is_given_back)};
    setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1);
    if (mkdtemp(one) == NULL || mkdtemp(two) == NULL)
        return 1;
    tiny_write(one, 1, -1);
    tiny_write(two, 2, -1);
    backend = "cpu";
    int failed = cmocka_run_group_tests_name("comparing on the CPU", tests, NULL, NULL);
    backend = "cuda";
    failed += cmocka_run_group_tests_name("comparing on a GPU", tests, NULL, NULL);
    failed += cmocka_run_group_tests(on_a_gpu, NULL, NULL);
    tiny_remove(one);
    tiny_remove(two);
    return failed;
}
