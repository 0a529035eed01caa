/* ctw_delta() and ctw_norm_act() on the GPU, as on the CPU. Run it like test_linear.c. */
#include "delta_problem.h"
#include "gpu_device.h"
#include "norm_act.h"

static void results_agree_however_sequences_are_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(variants); i++) {
        struct ctw_backend *be = gpu(variants[i]);
        if (be == NULL)
            continue;
        delta_agrees(be, strcmp(variants[i], "hopper") == 0);
        ctw_backend_close(be);
    }
}

static void gated_norms_have_the_bits_of_both(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(variants); i++) {
        struct ctw_backend *be = gpu(variants[i]);
        if (be == NULL)
            continue;
        norm_act_agrees(be);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_agree_however_sequences_are_cut),
        cmocka_unit_test(gated_norms_have_the_bits_of_both),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
