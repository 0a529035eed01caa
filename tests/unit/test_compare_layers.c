/* Comparing two models after each layer, once on the CPU, and once on the fake GPU
 * (tests/service/fake_device.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "compared_set.h"

enum { DECODERS = 3 };

/* Bits of tensors: the embedding, and the matrices of decoder layer 1 (of 0 .. 2). */
static const uint64_t embedding = 1, of_layer_1 = (uint64_t)0x7f << 10;

static char base[] = "/tmp/ctw_test_layers_XXXXXX", other[] = "/tmp/ctw_test_layers_XXXXXX";
static char shorter[] = "/tmp/ctw_test_layers_XXXXXX";
/* ---- tests -------------------------------------------------------------------------------- */

/* The layers before a change are equal, to the last bit, and those after it are not. */
static void differences_begin_where_the_models_differ(void **state)
{
    (void)state;
    const uint64_t changes[] = {0, embedding, of_layer_1};
    const int first[] = {DECODERS + 1, 0, 2};
    for (size_t c = 0; c < CTW_COUNT(changes); c++) {
        struct set s;
        tiny_write_changed(other, DECODERS, -1, changes[c]);
        struct ctw_engine *e = open_with(other, 2, 0, 1), *reference = open_with(base, 3, 0, 1);
        compare(e, reference, set_make(&s));
        for (int i = 0; i < N_SEQS; i++) {
            double n = (double)(s.seqs[i].n_tok - 1);
            for (int l = 0; l <= DECODERS; l++) {
                const struct ctw_difference_result *r = &s.layers[i][l];
                bool same = l < first[c];
                assert_true(r->reference > 0);
                assert_true(same ? r->error == 0 && r->relative == 0 : r->error > 0);
                assert_true(same ? r->cosine == n : r->cosine < n && r->cosine > 0);
                assert_true(r->channel >= 0);
                assert_true(r->channel < HIDDEN);
                assert_true(r->channel_error <= r->error);
                assert_true(r->channel_error >= r->error / HIDDEN);
            }
            assert_true((s.kl[i][0] > 0) == (changes[c] != 0));
        }
        ctw_engine_close(e);
        ctw_engine_close(reference);
    }
}

static void results_do_not_depend_on_settings(void **state)
{
    (void)state;
    static const int64_t settings[][4] = {{1, 0, 3, 0}, {64, 6, 2, 0}, {5, 11, 4, 1}, {3, 1, 3, 1}};
    struct set want, got;
    tiny_write_changed(other, DECODERS, -1, of_layer_1);
    struct ctw_engine *e = open_with(other, 2, 0, 1), *reference = open_with(base, 2, 0, 1);
    compare(e, reference, set_make(&want));
    ctw_engine_close(e);
    ctw_engine_close(reference);
    for (size_t i = 0; i < CTW_COUNT(settings); i++) {
        e = open_with(other, settings[i][0], settings[i][1], 1 + (int)i);
        reference = open_with(base, settings[i][2], settings[i][3], 1 + (int)i);
        compare(e, reference, set_make(&got));
        assert_memory_equal(got.layers, want.layers, sizeof(want.layers));
        /* of some sequences only */
        set_make(&got)->divergence[i].layers = NULL;
        compare(e, reference, &got);
        memset(want.layers[i], 0, sizeof(want.layers[i]));
        assert_memory_equal(got.layers, want.layers, sizeof(want.layers));
        assert_memory_equal(got.kl, want.kl, sizeof(want.kl));
        set_make(&want);
        compare(e, reference, &want);
        ctw_engine_close(e);
        ctw_engine_close(reference);
    }
}

static void models_of_other_layers_are_refused(void **state)
{
    (void)state;
    struct ctw_err err;
    struct set s;
    struct ctw_engine *e = open_with(shorter, 2, 0, 1), *reference = open_with(base, 2, 0, 1);
    assert_int_equal(ctw_engine_compare(e, reference, set_make(&s)->seqs, N_SEQS, NULL, NULL, &err),
                     CTW_EINVAL);
    assert_non_null(strstr(err.msg, "2 layers of width 16 and the reference 3 of width 16"));
    for (int i = 0; i < N_SEQS; i++)
        s.divergence[i].layers = NULL;
    compare(e, reference, &s);
    ctw_engine_close(e);
    ctw_engine_close(reference);
}

static void failed_allocations_are_reported(void **state)
{
    (void)state;
    enum ctw_status st = CTW_ENOMEM;
    for (int64_t n = 1; st == CTW_ENOMEM; n++) {
        struct ctw_engine *e = open_with(other, 2, 0, 1), *reference = open_with(base, 2, 0, 1);
        struct ctw_err err;
        struct set s;
        set_make(&s);
        ctw_mem_fail_at(n);
        st = ctw_engine_compare(e, reference, s.seqs, N_SEQS, NULL, NULL, &err);
        ctw_mem_fail_at(0);
        if (st != CTW_OK)
            compare(e, reference, set_make(&s));
        ctw_engine_close(e);
        ctw_engine_close(reference);
        assert_true(n < 5000);
    }
    assert_int_equal(st, CTW_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differences_begin_where_the_models_differ),
        cmocka_unit_test(results_do_not_depend_on_settings),
        cmocka_unit_test(models_of_other_layers_are_refused),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1);
    if (mkdtemp(base) == NULL || mkdtemp(other) == NULL || mkdtemp(shorter) == NULL)
        return 1;
    tiny_write(base, DECODERS, -1);
    tiny_write(shorter, DECODERS - 1, -1);
    backend = "cpu";
    int failed = cmocka_run_group_tests_name("layers on the CPU", tests, NULL, NULL);
    backend = "cuda";
    failed += cmocka_run_group_tests_name("layers on a GPU", tests, NULL, NULL);
    tiny_remove(base);
    tiny_remove(other);
    tiny_remove(shorter);
    return failed;
}
