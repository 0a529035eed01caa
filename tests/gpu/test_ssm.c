/* ctw_ssm() on the GPU, as on the CPU. Run it like test_linear.c. */
#include "ssm_problem.h"
#include "gpu_device.h"

static void results_agree_however_sequences_are_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(variants); i++) {
        struct ctw_backend *be = gpu(variants[i]);
        if (be == NULL)
            continue;
        ssm_agrees(be);
        ssm_spoils_what_follows(be);
        ssm_y_may_take_the_place_of_x(be);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_agree_however_sequences_are_cut),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
