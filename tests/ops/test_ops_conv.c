/* ctw_conv on the CPU. */
#include "conv_problem.h"

static void results_agree_however_sequences_are_cut(void **state)
{
    (void)state;
    for (int i = 0; any_variant(i) != NULL; i++)
        for (int threads = 1; threads <= 3; threads++) {
            struct ctw_backend *be = backend(any_variant(i), threads);
            conv_agrees(be);
            ctw_backend_close(be);
        }
}

static void sequences_out_of_order_are_refused(void **state)
{
    (void)state;
    struct ctw_backend *be = backend(NULL, 1);
    struct conv_problem p = conv_open(be, CTW_CONV_GATED, CTW_F32, 4, 3, false, 3, 4, false);
    struct ctw_op_conv op = p.op;
    op.seqs = p.seqs;
    p.seqs[1].q_row++;
    assert_int_equal(ctw_conv(be, &op, &last_err), CTW_EINTERNAL);
    p.seqs[1].q_row--;
    p.seqs[1].pos0 = 1; /* only the first may have begun before */
    assert_int_equal(ctw_conv(be, &op, &last_err), CTW_EINTERNAL);
    p.seqs[1].pos0 = 0;
    p.seqs[0].pos0 = 1; /* without what it left */
    assert_int_equal(ctw_conv(be, &op, &last_err), CTW_EINTERNAL);
    conv_close(&p);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_agree_however_sequences_are_cut),
        cmocka_unit_test(sequences_out_of_order_are_refused),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
