/* ctw_delta() on the CPU, in every variant. */
#include "delta_problem.h"

static void results_agree_however_sequences_are_cut(void **state)
{
    (void)state;
    for (int i = 0; any_variant(i) != NULL; i++) {
        struct ctw_backend *be = backend(any_variant(i), 1 + i % 3);
        delta_agrees(be, false);
        ctw_backend_close(be);
    }
}

static void shapes_out_of_range_are_refused(void **state)
{
    (void)state;
    struct ctw_backend *be = backend(NULL, 1);
    struct delta_problem p = delta_open(be, CTW_F32, &delta_shapes[1]);
    struct ctw_op_delta op = p.op;
    op.seqs = p.seqs;
    op.after = p.device[5];
    op.n_value = 3; /* no multiple of the key heads */
    assert_int_equal(ctw_delta(be, &op, &last_err), CTW_EINTERNAL);
    op.n_value = p.op.n_value;
    op.key = CTW_MAX_DELTA_HEAD + 1;
    assert_int_equal(ctw_delta(be, &op, &last_err), CTW_EINTERNAL);
    op.key = p.op.key;
    op.by_channel = true; /* with more value heads than key heads */
    assert_int_equal(ctw_delta(be, &op, &last_err), CTW_EINTERNAL);
    op.by_channel = false;
    op.least_log = 1;
    assert_int_equal(ctw_delta(be, &op, &last_err), CTW_EINTERNAL);
    op.least_log = 0;
    p.seqs[0].pos0 = 1; /* without what it left */
    assert_int_equal(ctw_delta(be, &op, &last_err), CTW_EINTERNAL);
    delta_close(&p);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_agree_however_sequences_are_cut),
        cmocka_unit_test(shapes_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
