/* Comparing the reference with itself with one matrix exchanged, once on the CPU, and once on the
 * fake GPU (tests/service/fake_device.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "compared_set.h"
#include "pass_watch.h"

enum { DECODERS = 3, N_MATRICES = 5 };

/* The tensors' numbers: k_proj and down_proj of layer 0, none of layer 1, q_proj, o_proj and
 * up_proj of layer 2; and their names. */
static const int tensors[N_MATRICES] = {2, 7, 19, 22, 24};
static const char *const names[N_MATRICES] = {
    "model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj",
    "model.layers.2.self_attn.q_proj", "model.layers.2.self_attn.o_proj",
    "model.layers.2.mlp.up_proj"};

static char base[] = "/tmp/ctw_test_exchange_XXXXXX", quantised[] = "/tmp/ctw_test_exchange_XXXXXX";
static char mixed[] = "/tmp/ctw_test_exchange_XXXXXX";

static uint64_t bits; /* of `tensors`, set by main() */

/* set_make() with matrices instead of layers. */
static struct set *make(struct set *s)
{
    set_make(s);
    for (int i = 0; i < N_SEQS; i++) {
        s->divergence[i].layers = NULL;
        s->divergence[i].matrices = s->matrices[i];
    }
    return s;
}

/* ---- tests -------------------------------------------------------------------------------- */

/* The same bits as a checkpoint that has the matrix in the reference's place. */
static void a_matrix_is_that_of_a_checkpoint_with_it(void **state)
{
    (void)state;
    struct ctw_err err;
    struct set s, one;
    int64_t n;
    struct ctw_engine *e = open_with(quantised, 2, 0, 1), *reference = open_with(base, 3, 0, 1);
    assert_int_equal(ctw_engines_exchangeable(e, reference, &n, &err), CTW_OK);
    assert_int_equal(n, N_MATRICES);
    compare(e, reference, make(&s));
    for (int m = 0; m < N_MATRICES; m++) {
        assert_string_equal(ctw_engine_matrix_name(e, m), names[m]);
        tiny_write_quantised(mixed, DECODERS, (uint64_t)1 << tensors[m]);
        struct ctw_engine *other = open_with(mixed, 2, 0, 1);
        compare(other, reference, set_make(&one));
        for (int i = 0; i < N_SEQS; i++) {
            double kl = 0;
            for (int64_t t = 0; t < one.seqs[i].n_tok - one.seqs[i].first; t++)
                kl += (double)one.kl[i][t];
            assert_true(kl > 0);
            assert_true(s.matrices[i][m] == kl);
        }
        ctw_engine_close(other);
    }
    ctw_engine_close(e);
    ctw_engine_close(reference);
}

/* Chunks, passes and threads; with layers or without; of some sequences only. */
static void results_do_not_depend_on_settings(void **state)
{
    (void)state;
    static const int64_t settings[][4] = {{1, 0, 3, 0}, {64, 6, 2, 0}, {5, 11, 4, 1}, {3, 1, 3, 1}};
    struct set want, got;
    struct ctw_engine *e = open_with(quantised, 2, 0, 1), *reference = open_with(base, 2, 0, 1);
    compare(e, reference, make(&want));
    ctw_engine_close(e);
    ctw_engine_close(reference);
    for (size_t i = 0; i < CTW_COUNT(settings); i++) {
        e = open_with(quantised, settings[i][0], settings[i][1], 1 + (int)i);
        reference = open_with(base, settings[i][2], settings[i][3], 1 + (int)i);
        for (int round = 0; round < 2; round++) {
            make(&got);
            if (round == 1) {
                got.divergence[1].matrices = NULL;
                got.divergence[2].layers = got.layers[2];
            }
            compare(e, reference, &got);
            for (int k = 0; k < N_SEQS; k++)
                if (round == 0 || k != 1)
                    assert_memory_equal(got.matrices[k], want.matrices[k],
                                        sizeof(want.matrices[k]));
            assert_memory_equal(got.kl, want.kl, sizeof(want.kl));
        }
        assert_true(got.layers[2][DECODERS].error > 0);
        ctw_engine_close(e);
        ctw_engine_close(reference);
    }
}

static void what_cannot_be_exchanged_is_refused(void **state)
{
    (void)state;
    struct ctw_err err;
    struct set s;
    struct ctw_engine *e = open_with(quantised, 2, 0, 1), *reference = open_with(base, 2, 0, 1);
    assert_int_equal(ctw_engine_compare(reference, e, make(&s)->seqs, N_SEQS, NULL, NULL, &err),
                     CTW_EINVAL);
    assert_non_null(strstr(err.msg, "no quantised matrix"));
    ctw_engine_close(reference);
    const struct ctw_engine_options opt = {.model_dir = base,
                                           .backend = backend,
                                           .n_threads = 1,
                                           .devices = &devices,
                                           .dtype = "bfloat16"};
    assert_int_equal(ctw_engine_open(&reference, &opt, &err), CTW_OK);
    assert_int_equal(ctw_engine_compare(e, reference, s.seqs, N_SEQS, NULL, NULL, &err),
                     CTW_EINVAL);
    assert_non_null(strstr(err.msg, "load both in one dtype"));
    ctw_engine_close(reference);
    tiny_write(mixed, DECODERS - 1, -1);
    reference = open_with(mixed, 2, 0, 1);
    assert_int_equal(ctw_engine_compare(e, reference, s.seqs, N_SEQS, NULL, NULL, &err),
                     CTW_EINVAL);
    assert_non_null(strstr(err.msg, "their layers cannot be compared"));
    ctw_engine_close(reference);
    ctw_engine_close(e);
}

/* Cancelled at every moment in turn, both engines are as before. */
static void cancelling_leaves_no_trace(void **state)
{
    (void)state;
    struct ctw_err err;
    struct ctw_engine *e = open_with(quantised, 8, 11, 1), *reference = open_with(base, 8, 0, 1);
    struct set want, got, alone;
    float logprob[N];
    compare(e, reference, make(&want));
    assert_int_equal(ctw_engine_score(e, make(&alone)->seqs, 1, NULL, &err), CTW_OK);
    memcpy(logprob, alone.logprob, sizeof(logprob));
    enum ctw_status st = CTW_ECANCELED;
    for (int64_t at = 1; st == CTW_ECANCELED; at++) {
        struct watch w = {.cancel_at = at};
        const struct ctw_hooks hooks = {
            .arg = &w, .cancelled = cancel_late, .done = count_done, .progress = grows};
        st = ctw_engine_compare(e, reference, make(&got)->seqs, N_SEQS, &hooks, NULL, &err);
        assert_true(st == CTW_OK ? w.n_done == N_SEQS : w.n_done < N_SEQS);
        if (at % 5 == 0) {
            compare(e, reference, make(&got));
            assert_memory_equal(got.matrices, want.matrices, sizeof(want.matrices));
            assert_memory_equal(got.kl, want.kl, sizeof(want.kl));
        }
        assert_int_equal(ctw_engine_score(e, make(&alone)->seqs, 1, NULL, &err), CTW_OK);
        assert_memory_equal(logprob, alone.logprob, sizeof(logprob));
        assert_true(at < 2000);
    }
    assert_int_equal(st, CTW_OK);
    ctw_engine_close(e);
    ctw_engine_close(reference);
}

/* The reference's file is written to during the runs, and holds the same bytes. */
static void a_repeated_pass_counts_once(void **state)
{
    (void)state;
    struct ctw_err err;
    struct set want, got;
    struct ctw_engine *e = open_with(quantised, 8, 0, 1), *reference = open_with(base, 8, 0, 1);
    compare(e, reference, make(&want));
    struct watch w = {.touch_at = 30, .dir = base};
    const struct ctw_hooks hooks = {.arg = &w, .progress = grows, .done = count_done};
    assert_int_equal(ctw_engine_compare(e, reference, make(&got)->seqs, N_SEQS, &hooks, NULL, &err),
                     CTW_OK);
    assert_true(w.calls > w.touch_at);
    assert_true(w.n_done == N_SEQS);
    assert_memory_equal(got.matrices, want.matrices, sizeof(want.matrices));
    ctw_engine_close(e);
    ctw_engine_close(reference);
}

/* The model's own pass is finite, because its o_proj reads zeros; the reference's does not. */
static void a_matrix_that_makes_no_numbers_is_named(void **state)
{
    (void)state;
    static struct tiny_writer w;
    struct set s;
    w = (struct tiny_writer){.quantised = 1 << 4, .extreme = 1 << 4 | 1 << 8};
    tiny_write_with(&w, mixed, DECODERS, -1);
    struct ctw_engine *e = open_with(mixed, 2, 0, 1), *reference = open_with(base, 3, 0, 1);
    compare(e, reference, make(&s));
    for (int i = 0; i < N_SEQS; i++) {
        assert_int_equal(s.seqs[i].bad_layer, 0);
        assert_false(s.divergence[i].bad_reference);
    }
    compare(e, reference, set_make(&s));
    for (int i = 0; i < N_SEQS; i++)
        assert_int_equal(s.seqs[i].bad_layer, -1);
    ctw_engine_close(e);
    ctw_engine_close(reference);
}

struct spoiling {
    const char *dir;
    int64_t calls, at; /* the call of progress that changes the file */
};

static void spoil(void *arg, const struct ctw_progress *p)
{
    struct spoiling *s = arg;
    (void)p;
    if (s->calls++ == s->at)
        tiny_spoil(s->dir);
}

static struct ctw_engine *open_streamed(const char *dir)
{
    struct ctw_engine *e;
    struct ctw_err err;
    const struct ctw_engine_options opt = {.model_dir = dir,
                                           .backend = backend,
                                           .n_threads = 1,
                                           .devices = &devices,
                                           .place = "streamed"};
    assert_int_equal(ctw_engine_open(&e, &opt, &err), CTW_OK);
    assert_int_equal(ctw_engine_wait_identity(e, &err), CTW_OK);
    return e;
}

/* Both models are streamed; one file changes at every moment in turn. */
static void a_failure_is_of_the_model_that_was_read(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        enum ctw_status st = CTW_EIO;
        int64_t at = 0;
        for (; st == CTW_EIO; at++) {
            struct spoiling w = {.dir = i == 0 ? mixed : base, .at = at};
            bool in_reference;
            struct ctw_err err;
            struct set s;
            tiny_write(base, DECODERS, -1);
            tiny_write_quantised(mixed, DECODERS, bits);
            struct ctw_engine *e = open_streamed(mixed), *reference = open_streamed(base);
            const struct ctw_hooks hooks = {.arg = &w, .progress = spoil};
            st = ctw_engine_compare(e, reference, make(&s)->seqs, N_SEQS, &hooks, &in_reference,
                                    &err);
            assert_true(st == CTW_OK || in_reference == (i == 1));
            ctw_engine_close(e);
            ctw_engine_close(reference);
        }
        assert_int_equal(st, CTW_OK); /* the call was after the last */
        assert_true(at > 4 * DECODERS);
    }
    tiny_write(base, DECODERS, -1);
}

static void failed_allocations_are_reported(void **state)
{
    (void)state;
    struct set want;
    struct ctw_engine *e = open_with(quantised, 8, 0, 1), *reference = open_with(base, 8, 0, 1);
    compare(e, reference, make(&want));
    enum ctw_status st = CTW_ENOMEM;
    for (int64_t n = 1; st == CTW_ENOMEM; n++) {
        struct ctw_err err;
        struct set s;
        make(&s);
        ctw_engine_trim(e);
        ctw_engine_trim(reference);
        ctw_mem_fail_at(n);
        st = ctw_engine_compare(e, reference, s.seqs, N_SEQS, NULL, NULL, &err);
        ctw_mem_fail_at(0);
        if (st != CTW_OK)
            compare(e, reference, make(&s));
        assert_memory_equal(s.matrices, want.matrices, sizeof(want.matrices));
        assert_true(n < 5000);
    }
    assert_int_equal(st, CTW_OK);
    ctw_engine_close(e);
    ctw_engine_close(reference);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_matrix_is_that_of_a_checkpoint_with_it),
        cmocka_unit_test(results_do_not_depend_on_settings),
        cmocka_unit_test(what_cannot_be_exchanged_is_refused),
        cmocka_unit_test(cancelling_leaves_no_trace),
        cmocka_unit_test(a_repeated_pass_counts_once),
        cmocka_unit_test(a_matrix_that_makes_no_numbers_is_named),
        cmocka_unit_test(a_failure_is_of_the_model_that_was_read),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    for (int i = 0; i < N_MATRICES; i++)
        bits |= (uint64_t)1 << tensors[i];
    setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1);
    if (mkdtemp(base) == NULL || mkdtemp(quantised) == NULL || mkdtemp(mixed) == NULL)
        return 1;
    tiny_write(base, DECODERS, -1);
    tiny_write_quantised(quantised, DECODERS, bits);
    backend = "cpu";
    int failed = cmocka_run_group_tests_name("exchanging on the CPU", tests, NULL, NULL);
    backend = "cuda";
    failed += cmocka_run_group_tests_name("exchanging on a GPU", tests, NULL, NULL);
    tiny_remove(base);
    tiny_remove(quantised);
    tiny_remove(mixed);
    return failed;
}
