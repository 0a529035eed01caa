/* torchao: decoding bit by bit as the library does; configurations and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "made_weight.h"
#include "parts_case.h"

#include "torchao_vectors.h"

#define expect_refusal expect_model_refusal
#include "native_checkpoint.h"
#undef expect_refusal

static void equals_torchao(void **state)
{
    (void)state;
    expect_parts(torchao_cases, CTW_COUNT(torchao_cases), "torchao");
}

#define TYPE(name) "{\"_type\": \"" name "\", \"_version\": 2, \"_data\": {}}"
#define TORCHAO(type) QUANTISED("\"quant_method\": \"torchao\", \"quant_type\": " type)
#define DEFAULT(name) TORCHAO("{\"default\": " TYPE(name) "}")
#define EACH(names)                                                                                \
    TORCHAO("{\"default\": {\"_type\": \"FqnToConfig\", \"_data\": {\"fqn_to_config\": {" names    \
            "}}}}")
#define FLOAT8 "Float8DynamicActivationFloat8WeightConfig"

static const struct parts float8 = {{Q "._weight_qdata", "F8_E4M3", "32, 32", 1024, NULL},
                                    {Q "._weight_scale", "F32", "32, 1", 128, NULL},
                                    {NULL, NULL, NULL, 0, NULL}};

static void configurations(void **state)
{
    struct checkpoint *c = *state;
    static const struct {
        const char *config, *words; /* NULL: it opens */
    } rows[] = {
        {DEFAULT("Float8WeightOnlyConfig"), NULL},
        {EACH("\"_default\": " TYPE("Int8WeightOnlyConfig") ", \"re:.*q_proj\": " TYPE(
             "Float8WeightOnlyConfig") ", \"lm_head\": null"),
         NULL},
        {DEFAULT("Int4WeightOnlyConfig"),
         "_type: format \"torchao Int4WeightOnlyConfig\" is not supported; expected one of Float8"},
        {EACH("\"_default\": " TYPE("Int4WeightOnlyConfig")), "\"torchao Int4WeightOnlyConfig\""},
        {TORCHAO("\"int8_weight_only\""), "format \"torchao int8_weight_only\" is not supported"},
        {TORCHAO("{}"), "\"default\" is missing"},
        {QUANTISED("\"quant_method\": \"torchao\""), "\"quant_type\" is missing"},
        {QUANTISED("\"quant_method\": \"torchao\", \"modules_to_not_convert\": [\"q_proj\"], "
                   "\"quant_type\": {\"default\": " TYPE("Float8WeightOnlyConfig") "}"),
         "has no config group"},
        {BF16_CONFIG, "is a tensor of format \"torchao\", but the configuration does not say"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        c->config = rows[i].config;
        set_parts(c, &float8);
        if (rows[i].words != NULL) {
            expect_model_refusal(c, rows[i].words);
            continue;
        }
        struct ctw_weight w = q_weight(c, NULL);
        assert_int_equal(w.format->id, CTW_FORMAT_float_quantized);
        assert_int_equal(w.scale_stride, 1);
    }
}

/* Shapes alone say which values share a scale. */
static void shapes(void **state)
{
    struct checkpoint *c = *state;
    c->config = DEFAULT("Int8WeightOnlyConfig");
    static const struct {
        const char *shape;
        size_t bytes;
        int64_t group_rows, group_size, scale_stride;
    } rows[] = {
        {"32, 1", 64, 1, 32, 1},  {"32", 64, 1, 32, 1},   {"1, 1", 2, 1, 32, 0},
        {"32, 2", 128, 1, 16, 2}, {"2, 4", 16, 16, 8, 4},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        set_parts(c,
                  &(struct parts){{Q "._weight_qdata", "I8", "32, 32", 1024, NULL},
                                  {Q "._weight_scale", "BF16", rows[i].shape, rows[i].bytes, NULL},
                                  {NULL, NULL, NULL, 0, NULL}});
        struct ctw_weight w = q_weight(c, NULL);
        assert_int_equal(w.format->id, CTW_FORMAT_int_quantized);
        assert_int_equal(w.group_rows, rows[i].group_rows);
        assert_int_equal(w.group_size, rows[i].group_size);
        assert_int_equal(w.scale_stride, rows[i].scale_stride);
    }
    set_parts(c, &(struct parts){{Q "._weight_qdata", "I8", "32, 32", 1024, NULL},
                                 {Q "._weight_scale", "BF16", "32, 3", 192, NULL},
                                 {NULL, NULL, NULL, 0, NULL}});
    expect_model_refusal(c, "_weight_scale BF16 [32, 3] does not show which values share a scale");
    set_parts(c, &(struct parts){{Q "._weight_qdata", "I8", "32, 32", 1024, NULL},
                                 {Q "._weight_scale", "BF16", "32", 64, NULL},
                                 {Q "._weight_act_pre_scale", "BF16", "32", 64, NULL}});
    expect_model_refusal(c, "_weight_act_pre_scale: found BF16 [32], which a int-quantized weight");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_torchao),
        TEST(configurations),
        TEST(shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
