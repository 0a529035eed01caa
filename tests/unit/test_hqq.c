/* HQQ: decoding bit by bit as the library does; configurations and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "made_weight.h"
#include "parts_case.h"

#include "hqq_vectors.h"

#define expect_refusal expect_model_refusal
#include "native_checkpoint.h"
#undef expect_refusal

static void equals_hqq(void **state)
{
    (void)state;
    expect_parts(hqq_cases, CTW_COUNT(hqq_cases), "hqq");
}

static void parts_must_fit(void **state)
{
    (void)state;
    struct made m;
    const int64_t shape[] = {320, 8};
    make_parts(&m, &hqq_cases[0], "hqq");
    m.w.part[CTW_PART_SCALE].shape[0] = 20;
    expect_refusal(&m, NULL,
                   "scale: found BF16 [20, 1], expected BF16, F16 or F32 [40, 1] (axis 1");
    make_parts(&m, &hqq_cases[0], "hqq");
    m.w.part[CTW_PART_ZERO_POINT].dtype = CTW_F16;
    expect_refusal(&m, NULL, "zero: found F16 [40, 1], expected BF16 [40, 1], as scale");
    make_parts(&m, &hqq_cases[0], "hqq");
    m.w.part[CTW_PART_VALUES].shape[0] = 19;
    expect_refusal(&m, NULL, "W_q: found U8 [19, 64], expected codes of 1, 2, 3, 4 or 8 bits");
    make_parts(&m, &hqq_cases[0], "hqq");
    m.w.part[CTW_PART_VALUES].dtype = CTW_I32;
    expect_refusal(&m, NULL, "W_q: found I32 [20, 64], expected codes of 1, 2, 3, 4 or 8 bits");
    make_parts(&m, &hqq_cases[0], "hqq");
    expect_refusal(&m, shape, "shape: found (320, 8), expected (8, 320) according to config.json");
}

/* ---- checkpoints ---- */

#define WEIGHTS(more)                                                                              \
    "{\"weight_quant_params\": {\"nbits\": 4, \"group_size\": 32, \"axis\": 1" more                \
    "}, \"scale_quant_params\": null, \"zero_quant_params\": null, \"offload_meta\": false}"
#define HQQ(config, skip)                                                                          \
    QUANTISED("\"quant_method\": \"hqq\", \"quant_config\": " config ", \"skip_modules\": [" skip  \
              "]")

static void configurations(void **state)
{
    struct checkpoint *c = *state;
    static const int64_t shape[] = {32, 32};
    static const struct {
        const char *config, *words; /* NULL: it opens */
    } rows[] = {
        {HQQ(WEIGHTS(", \"view_as_float\": false"), "\"lm_head\""), NULL},
        {HQQ("{\"self_attn.q_proj\": " WEIGHTS("") "}", ""), NULL},
        {HQQ(WEIGHTS(""), "\"q_proj\""), "has no config group"},
        {HQQ(WEIGHTS(", \"view_as_float\": true"), ""), "stored as floats are not supported"},
        {HQQ("{\"self_attn.q_proj\": " WEIGHTS(", \"view_as_float\": true") "}", ""),
         "quant_config.self_attn.q_proj.weight_quant_params.view_as_float"},
        {HQQ("{\"weight_quant_params\": {}, \"scale_quant_params\": {\"nbits\": 8}}", ""),
         "quantised scales and zero points are not supported"},
        {HQQ("{\"self_attn.q_proj\": {}}", ""), "q_proj: \"weight_quant_params\" is missing"},
        {QUANTISED("\"quant_method\": \"hqq\""), "\"quant_config\" is missing"},
        {BF16_CONFIG, "W_q is a tensor of format \"HQQ\", but the configuration does not say"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        c->config = rows[i].config;
        set_parts(c, &(struct parts){{Q ".W_q", "U8", "16, 32", 512, NULL},
                                     {Q ".scale", "BF16", "32, 1", 64, NULL},
                                     {Q ".zero", "BF16", "32, 1", 64, NULL}});
        add(c, Q ".nbits", "I32", "", 4, NULL);
        add(c, Q ".shape", "I64", "2", 16, (const char *)shape);
        add(c, Q ".compute_dtype", "U8", "14", 14, NULL);
        if (rows[i].words != NULL) {
            expect_model_refusal(c, rows[i].words);
            continue;
        }
        struct ctw_weight w = q_weight(c, NULL);
        assert_int_equal(w.format->id, CTW_FORMAT_hqq);
        assert_int_equal(w.bits, 4);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_hqq),
        cmocka_unit_test(parts_must_fit),
        TEST(configurations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
