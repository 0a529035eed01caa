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
        ctw_backend_close(be);
    }
}

/* y in the place of x, as a layer has it. */
static void y_may_take_the_place_of_x(void **state)
{
    (void)state;
    for (int i = 0; ctw_cpu_variants[i] != NULL; i++) {
        if (!ctw_cpu_variants[i]->runs_here())
            continue;
        struct ctw_backend *be = backend(ctw_cpu_variants[i]->name, 2);
        struct ssm_problem p = ssm_open(
            be, CTW_BF16, &(struct ssm_shape){4, 20, 2, 24, 3, 9, false, true, 0, INFINITY});
        const size_t es = ctw_dtype_bytes(CTW_BF16), width = (size_t)(p.op.n_head * p.op.head) * es;
        struct buf apart = ssm_run(&p, p.op.n_tok);
        struct ctw_op_ssm op = p.op;
        op.seqs = p.seqs;
        ssm_place(&p, &op, 0);
        op.y = (void *)(uintptr_t)op.x;
        op.ldy = op.ldx;
        OK(ctw_ssm(be, &op, &last_err));
        for (int64_t row = 0; row < op.n_tok; row++)
            assert_memory_equal((char *)apart.p + (size_t)(row * p.ldy) * es,
                                (char *)op.y + (size_t)(row * op.ldy) * es, width);
        op.ldy++;
        assert_int_equal(ctw_ssm(be, &op, &last_err), CTW_EINTERNAL);
        buf_close(&apart);
        ssm_close(&p);
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
        cmocka_unit_test(y_may_take_the_place_of_x),
        cmocka_unit_test(nan_stays_in_its_sequence),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
