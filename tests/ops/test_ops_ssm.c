/* ctw_ssm on the CPU. */
#include "ssm_problem.h"

static void results_agree_however_sequences_are_cut(void **state)
{
    (void)state;
    for (int i = 0; ctw_cpu_variants[i] != NULL; i++) {
        if (!ctw_cpu_variants[i]->runs_here())
            continue;
        struct ctw_backend *be = backend(ctw_cpu_variants[i]->name, 1 + i % 3);
        ssm_agrees(be);
        ssm_spoils_what_follows(be);
        ssm_y_may_take_the_place_of_x(be);
        ctw_backend_close(be);
    }
}

/* A step that is not a number, and what follows in its sequence; the next sequence is well. */
static void nan_stays_in_its_sequence(void **state)
{
    (void)state;
    for (int i = 0; ctw_cpu_variants[i] != NULL; i++) {
        if (!ctw_cpu_variants[i]->runs_here())
            continue;
        struct ctw_backend *be = backend(ctw_cpu_variants[i]->name, 1);
        struct ssm_problem p = ssm_open(
            be, CTW_F32, &(struct ssm_shape){2, 3, 1, 5, 2, 4, false, true, 0.001f, INFINITY});
        ((float *)p.device[0])[p.at[3]] = NAN;
        struct buf y = ssm_run(&p, p.op.n_tok);
        for (int64_t row = 0; row < p.op.n_tok; row++)
            for (int64_t col = 0; col < 6; col++)
                assert_int_equal(isnan(((float *)y.p)[row * p.ldy + col]) != 0,
                                 row < p.seqs[0].n_q && col < 3);
        buf_close(&y);
        ssm_close(&p);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_agree_however_sequences_are_cut),
        cmocka_unit_test(nan_stays_in_its_sequence),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
