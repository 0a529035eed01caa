/* Quark: decoding bit by bit as the library does; configurations and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "made_weight.h"
#include "parts_case.h"

#include "quark_vectors.h"

#define expect_refusal expect_model_refusal
#include "native_checkpoint.h"
#undef expect_refusal

static void equals_quark(void **state)
{
    (void)state;
    expect_parts(quark_cases, CTW_COUNT(quark_cases), "quark");
}

/* The first case of the name. */
static void make(struct made *m, const char *name)
{
    size_t i = 0;
    while (strcmp(quark_cases[i].name, name) != 0)
        i++;
    make_parts(m, &quark_cases[i], "quark");
}

static void parts_must_fit(void **state)
{
    (void)state;
    struct made m;
    make(&m, "int4");
    m.w.part[CTW_PART_SCALE].shape[0]++;
    expect_refusal(&m, NULL, "weight_scale: found F16 [6, 40], expected [groups, outputs] (quan");
    make(&m, "int4");
    m.w.part[CTW_PART_ZERO_POINT].shape[1]--;
    expect_refusal(&m, NULL, "weight_zero_point: found I32 [5, 4], expected codes as those of");
    make(&m, "int4");
    m.args.num_bits = 8;
    expect_refusal(&m, NULL, "weight: found I32 [320, 5], expected I8 [320, 40] for a [40, 320]");
    make(&m, "int4");
    m.args.strategy = CTW_STRATEGY_CHANNEL;
    expect_refusal(&m, NULL, "weight: found I32 [320, 5], expected I32 [40, 40]");
    make(&m, "int4");
    m.args.group_size = 48;
    expect_refusal(&m, NULL, "320 columns are not a multiple of group_size 48");
    make(&m, "uint4 of rows");
    m.w.k = 36;
    expect_refusal(&m, NULL, "36 codes of 4 bits do not fill whole words");
    make(&m, "uint4 of rows");
    m.args.is_float = true;
    expect_refusal(&m, NULL, "quantization_config says 4-bit float");
    make(&m, "uint8");
    m.args.present = false;
    expect_refusal(&m, NULL, "its tensors are quark-int, but quantization_config has no config");
    make(&m, "int4");
    free((char *)(uintptr_t)m.data.part[CTW_PART_ZERO_POINT] - 1);
    m.data.part[CTW_PART_ZERO_POINT] = NULL;
    m.w.part[CTW_PART_ZERO_POINT].n_dims = -1; /* symmetric */
    check_ok(&m);
    assert_true(m.w.symmetric);
    finish(&m);
}

/* ---- checkpoints ---- */

#define SPEC(dtype, scheme, more)                                                                  \
    "{\"dtype\": \"" dtype "\", \"qscheme\": \"" scheme "\", \"is_dynamic\": false" more "}"
#define QUARK(weight, more)                                                                        \
    QUANTISED("\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": " weight         \
              ", \"input_tensors\": null}, \"exclude\": [\"lm_head\"]" more)
#define GROUP ", \"group_size\": 32, \"ch_axis\": -1"
#define INT4 SPEC("int4", "per_group", GROUP)
#define MX(dtype) SPEC(dtype, "per_group", GROUP ", \"scale_format\": \"e8m0\"")
#define EXPORT(order)                                                                              \
    ", \"export\": {\"weight_format\": \"real_quantized\", \"pack_method\": \"" order "\"}"

static const struct parts int4 = {{Q ".weight", "I32", "32, 4", 512, NULL},
                                  {Q ".weight_scale", "BF16", "1, 32", 64, NULL},
                                  {Q ".weight_zero_point", "I32", "1, 4", 16, NULL}};

static void configurations(void **state)
{
    struct checkpoint *c = *state;
    static const struct {
        const char *config, *words; /* NULL: it opens */
    } rows[] = {
        {QUARK(INT4, ""), NULL},
        {QUARK(INT4, EXPORT("order")), NULL},
        {QUARK("null", ", \"layer_quant_config\": {\"*self_attn.q_proj\": {\"weight\": " INT4 "}}"),
         NULL},
        {QUARK(INT4, ", \"layer_quant_config\": {\"*.q_proj\": {\"weight\": null}}"),
         "has no config group"},
        {QUANTISED("\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": " INT4
                   "}, \"exclude\": [\"*q_proj\"]"),
         "has no config group"},
        {QUARK(INT4, EXPORT("tiled")), "\"tiled\" is not supported; expected reorder or order"},
        {QUARK(INT4, ", \"export\": {\"weight_format\": \"fake_quantized\"}"),
         "\"fake_quantized\" is not supported; expected real_quantized"},
        {QUARK(SPEC("int3", "per_group", GROUP), ""),
         "format \"Quark int3\" is not supported; expected one of fp8_e4m3, fp4, fp6_e2m3"},
        {QUARK(SPEC("mx", "per_group", GROUP), ""), "format \"Quark mx\" is not supported"},
        {QUARK(SPEC("int4", "per_group", ", \"group_size\": 32, \"ch_axis\": 0"), ""),
         "ch_axis: scales along axis 0 of weights are not supported"},
        {QUARK(SPEC("int8", "per_block", ", \"block_size\": [16, 16]"), ""),
         "int8 with this scheme is not supported"},
        {QUARK(SPEC("fp8_e4m3", "per_group", GROUP), ""), "fp8_e4m3 with this scheme is not"},
        {QUARK(SPEC("fp4", "per_group", GROUP), ""), "fp4 without scale_format \"e8m0\" is not"},
        {QUARK(SPEC("fp4", "per_group", GROUP ", \"scale_format\": \"e5m3\""), ""),
         "\"e5m3\" is not supported; expected e8m0"},
        {QUARK("[" INT4 ", " INT4 "]", ""), "quantised in several steps are not supported"},
        {QUARK("[]", ""), "quantised in several steps are not supported"},
        {QUARK(INT4, ", \"algo_config\": [{\"name\": \"rotation\", \"r1\": true, \"r4\": true}]"),
         "r4: rotations of activations at run time are not supported"},
        {QUARK(INT4, ", \"layer_type_quant_config\": {\"Linear\": {}}"),
         "schemes of classes of modules are not supported"},
        {QUANTISED("\"quant_method\": \"quark\""), "\"global_quant_config\" is missing"},
        {BF16_CONFIG, "its tensors are pack-quantized, but quantization_config has no config"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        c->config = rows[i].config;
        set_parts(c, &int4);
        if (rows[i].words != NULL) {
            expect_model_refusal(c, rows[i].words);
            continue;
        }
        struct ctw_weight w = q_weight(c, NULL);
        assert_int_equal(w.format->id, CTW_FORMAT_quark_int);
        assert_true(w.is_signed);
        assert_int_equal(w.interleaved, i != 1);
    }
}

static void other_types(void **state)
{
    struct checkpoint *c = *state;
    static const struct {
        const char *config;
        enum ctw_format_id format;
        struct parts parts;
    } rows[] = {
        {QUARK(SPEC("uint4", "per_group", GROUP), ""),
         CTW_FORMAT_awq,
         {{Q ".weight", "I32", "32, 4", 512, NULL},
          {Q ".weight_scale", "BF16", "1, 32", 64, NULL},
          {Q ".weight_zero_point", "I32", "1, 4", 16, NULL}}},
        {QUARK(SPEC("fp8_e4m3", "per_tensor", ""), ", \"version\": \"0.10\""),
         CTW_FORMAT_float_quantized,
         {{Q ".weight", "F8_E4M3", "32, 32", 1024, NULL},
          {Q ".weight_scale", "F32", "", 4, NULL},
          {Q ".input_scale", "F32", "", 4, NULL}}},
        {QUARK(SPEC("fp8_e4m3", "per_block", ", \"block_size\": [16, 16]"), ""),
         CTW_FORMAT_float_quantized,
         {{Q ".weight", "F8_E4M3", "32, 32", 1024, NULL},
          {Q ".weight_scale", "BF16", "2, 2", 8, NULL},
          {NULL, NULL, NULL, 0, NULL}}},
        {QUARK(MX("fp4"), ""),
         CTW_FORMAT_mxfp4,
         {{Q ".weight", "U8", "32, 16", 512, NULL},
          {Q ".weight_scale", "U8", "32, 1", 32, NULL},
          {NULL, NULL, NULL, 0, NULL}}},
        {QUARK(MX("fp6_e3m2"), ""),
         CTW_FORMAT_mxfp6,
         {{Q ".weight", "U8", "32, 24", 768, NULL},
          {Q ".weight_scale", "U8", "32, 1", 32, NULL},
          {NULL, NULL, NULL, 0, NULL}}},
        {QUARK(SPEC("int8", "per_channel", ", \"ch_axis\": 0"), ""),
         CTW_FORMAT_int_quantized,
         {{Q ".weight", "I8", "32, 32", 1024, NULL},
          {Q ".weight_scale", "BF16", "32", 64, NULL},
          {Q ".weight_zero_point", "I8", "32", 32, NULL}}},
        {QUARK("[" SPEC("fp4", "per_group", ", \"group_size\": 16, \"ch_axis\": -1") ", " SPEC(
                   "fp8_e4m3", "per_tensor", ", \"is_scale_quant\": true") "]",
               ""),
         CTW_FORMAT_nvfp4_modelopt,
         {{Q ".weight", "U8", "32, 16", 512, NULL},
          {Q ".weight_scale", "F8_E4M3", "32, 2", 64, NULL},
          {Q ".weight_scale_2", "F32", "", 4, NULL}}},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        c->config = rows[i].config;
        set_parts(c, &rows[i].parts);
        assert_int_equal(q_weight(c, NULL).format->id, rows[i].format);
    }
    c->config = QUARK(MX("fp6_e2m3"), "");
    set_parts(c, &rows[3].parts);
    expect_model_refusal(c, "its tensors are mxfp4-pack-quantized, but quantization_config says 6");
    /* A rotation that belongs to the module */
    c->config = rows[1].config;
    set_parts(c, &(struct parts){{Q ".weight", "F8_E4M3", "32, 32", 1024, NULL},
                                 {Q ".weight_scale", "F32", "", 4, NULL},
                                 {Q ".input_rotation", "I8", "32, 32", 1024, NULL}});
    expect_model_refusal(c, "input_rotation: found I8 [32, 32], which a float-quantized weight");
}

/* Quark's export as AWQ. */
static void exported_as_awq(void **state)
{
    struct checkpoint *c = *state;
#define AWQ(zero, order)                                                                           \
    QUANTISED(                                                                                     \
        "\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32, \"version\": \"gemm\", "      \
        "\"zero_point\": " zero ", \"pack_method\": \"" order "\"")
    static const struct parts awq = {{Q ".qweight", "I32", "32, 4", 512, NULL},
                                     {Q ".scales", "BF16", "1, 32", 64, NULL},
                                     {Q ".qzeros", "I32", "1, 4", 16, NULL}};
    set_parts(c, &awq);
    c->config = AWQ("true", "reorder");
    assert_int_equal(q_weight(c, NULL).format->id, CTW_FORMAT_awq);
    c->config = AWQ("true", "order");
    expect_model_refusal(c, "pack_method: \"order\" is not supported; expected reorder");
    c->config = AWQ("false", "reorder");
    expect_model_refusal(c, "pack_method: Quark's signed codes are not AWQ's");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_quark), cmocka_unit_test(parts_must_fit),
        TEST(configurations),           TEST(other_types),
        TEST(exported_as_awq),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
