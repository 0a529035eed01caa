/* GPTQ, AWQ and AutoRound: their configurations, the tensors that must fit, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "capture.h"
#include "native_checkpoint.h"

#define GPTQ "\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 16"
#define SYM GPTQ ", \"sym\": true"

/* q_proj [32, 32] in groups of 16; zero points of `word`. */
static void set_gptq(struct checkpoint *c, const uint32_t zeros[8], const int32_t index[32])
{
    set_parts(c, &(struct parts){{Q ".qweight", "I32", "4, 32", 512, NULL},
                                 {Q ".scales", "F16", "2, 32", 128, NULL},
                                 {Q ".qzeros", "I32", "2, 4", 32, (const char *)zeros}});
    if (index != NULL)
        add(c, Q ".g_idx", "I32", "32", 128, (const char *)index);
}

static void gptq_of_either_version(void **state)
{
    struct checkpoint *c = *state;
    uint32_t zeros[8];
    int32_t index[32];
    for (int i = 0; i < 8; i++)
        zeros[i] = 0x77777777;
    for (int i = 0; i < 32; i++)
        index[i] = i / 16;
    c->config = QUANTISED(SYM ", \"desc_act\": false");
    set_gptq(c, zeros, NULL);
    struct ctw_weight w = q_weight(c, NULL);
    assert_true(w.format->id == CTW_FORMAT_gptq);
    assert_true(w.bits == 4);
    assert_true(w.dtype == CTW_F16);
    assert_true(w.group_size == 16);
    assert_true(w.n_groups == 2);
    assert_true(w.zero_less_one);
    assert_true(!w.indexed);
    /* The label is wrong in some files; symmetric zero points tell. */
    c->config = QUANTISED(SYM ", \"checkpoint_format\": \"gptq_v2\"");
    assert_true(q_weight(c, NULL).zero_less_one);
    for (int i = 0; i < 4; i++)
        zeros[i] = 0x88888888;
    c->config = QUANTISED(SYM);
    assert_false(q_weight(c, NULL).zero_less_one);
    zeros[3] = 0x78888888; /* they do not */
    assert_true(q_weight(c, NULL).zero_less_one);
    c->config = QUANTISED(GPTQ ", \"sym\": false, \"format\": \"gptq_v2\"");
    assert_false(q_weight(c, NULL).zero_less_one);
    /* Indices in order need no look-up. */
    set_gptq(c, zeros, index);
    assert_false(q_weight(c, NULL).indexed);
    index[3] = 1;
    assert_true(q_weight(c, NULL).indexed);
    index[3] = 2;
    expect_refusal(c, "g_idx: found 2 for column 3, expected 0 .. 1");
    index[3] = 0;
    /* A bias of zeros, as AutoGPTQ stores it */
    add(c, LAYER "mlp.up_proj.bias", "F16", "64", 128, NULL);
    (void)q_weight(c, NULL);
    find(c, LAYER "mlp.up_proj.bias")->data = (const char *)zeros;
    find(c, LAYER "mlp.up_proj.bias")->shape = "8";
    find(c, LAYER "mlp.up_proj.bias")->bytes = 16;
    expect_refusal(c, LAYER "mlp.up_proj.bias (F16 [8]) has no use");
    drop(c, LAYER "mlp.up_proj.bias");
    find(c, Q ".scales")->shape = "32, 2";
    expect_refusal(c, "scales: found F16 [32, 2], expected F16, BF16 or F32 [2, 32]");
    find(c, Q ".scales")->shape = "2, 32";
    find(c, Q ".qzeros")->shape = "4, 2";
    expect_refusal(c, "qzeros: found I32 [4, 2], expected I32 [2, 4]");
}

/* Files of AutoRound before 0.5 name the packing with its kernel, and as `backend`. */
static void check_auto_round(struct checkpoint *c)
{
    static const struct {
        const char *member;
        bool zero_less_one;
    } rows[] = {
        {"\"packing_format\": \"auto_round:auto_gptq\"", true},
        {"\"packing_format\": \"AUTO_ROUND:GPTQ\", \"backend\": \"auto\"", true},
        {"\"packing_format\": \"auto_round:gptqmodel\"", false},
        {"\"backend\": \"auto_round:gptq:exllamav2\"", true},
        {"\"backend\": \"auto_round:exllamav2\"", false},
    };
    static char config[512];
    c->config = config;
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        (void)snprintf(config, sizeof(config),
                       QUANTISED("\"quant_method\": \"intel/auto-round\", \"bits\": 4, "
                                 "\"sym\": false, \"group_size\": 16, %s"),
                       rows[i].member);
        assert_true(q_weight(c, NULL).zero_less_one == rows[i].zero_less_one);
    }
}

#define AUTO_ROUND(packing, type)                                                                  \
    QUANTISED("\"quant_method\": \"auto-round\", \"packing_format\": \"" packing                   \
              "\", \"data_type\": " type)

/* Floats of AutoRound are stored as compressed-tensors' or as FP8. */
static void auto_round_stores_floats(void **state)
{
    struct checkpoint *c = *state;
    set_parts(c, &(struct parts){{Q ".weight_packed", "U8", "32, 16", 512, NULL},
                                 {Q ".weight_scale", "U8", "32, 1", 32, NULL},
                                 {NULL, NULL, NULL, 0, NULL}});
    c->config = AUTO_ROUND("auto_round:llm_compressor",
                           "\"mx_fp\", \"bits\": 4, \"group_size\": 32, \"act_bits\": 4, "
                           "\"act_data_type\": \"mx_fp\", \"act_group_size\": 32");
    struct ctw_weight w = q_weight(c, "float4 group 32 dynamic");
    assert_true(w.format->id == CTW_FORMAT_mxfp4);
    c->config = AUTO_ROUND("auto_round:llm_compressor",
                           "\"mx_fp\", \"bits\": 8, \"group_size\": 32, \"extra_config\": {\"" Q
                           "\": {\"bits\": 4}}");
    (void)q_weight(c, NULL);
    c->config = AUTO_ROUND("auto_round:llm_compressor",
                           "\"mx_fp\", \"bits\": 4, \"group_size\": 32, \"extra_config\": {\"" Q
                           "\": {\"bits\": 16, \"data_type\": \"float\"}}");
    assert_int_equal(q_weight(c, NULL).format->id, CTW_FORMAT_mxfp4); /* the tensors decide */
    c->config = AUTO_ROUND("auto_round:llm_compressor", "\"int\", \"bits\": 4");
    expect_refusal(c, "data_type \"int\" is not supported in this packing_format");
    set_parts(c, &fp8_blocks);
    c->config = AUTO_ROUND("auto_round:fp8", "\"fp\", \"group_size\": [16, 24]");
    w = q_weight(c, NULL);
    assert_true(w.group_rows == 16);
    assert_true(w.group_size == 24);
    set_parts(c, &fp8_tensor);
    c->config = AUTO_ROUND("auto_round:fp8_static",
                           "\"fp\", \"group_size\": 0, \"act_bits\": 8, \"act_group_size\": 0, "
                           "\"act_dynamic\": false");
    assert_true(q_weight(c, "float8 tensor static").scale_stride == 0);
    c->config = QUANTISED("\"quant_method\": \"auto-round\", \"data_type\": \"fp\", \"bits\": 8, "
                          "\"group_size\": 0");
    (void)q_weight(c, NULL);
    c->config = QUANTISED("\"quant_method\": \"auto-round\", \"data_type\": \"fp\", "
                          "\"rotation_config\": {\"block_size\": 32}");
    expect_refusal(c, "rotation_config: inputs that are rotated at run time are not supported");
    c->config = AUTO_ROUND("auto_round", "\"mx_int\", \"bits\": 4");
    expect_refusal(c, "\"mx_int\" in packing_format \"auto_round\" is not supported");
    set_parts(c, &(struct parts){{Q ".weight", "BF16", "32, 32", 2048, NULL},
                                 {NULL, NULL, NULL, 0, NULL},
                                 {NULL, NULL, NULL, 0, NULL}});
    c->config = AUTO_ROUND("auto_round:fake", "\"int\", \"bits\": 8");
    w = q_weight(c, NULL);
    assert_true(w.format->id == CTW_FORMAT_dense);
}

/* AutoRound mixes packed integers with blocks of FP8, which one configuration cannot say. */
static void auto_round_mixes_formats(void **state)
{
    struct checkpoint *c = *state;
    struct capture log;
    uint32_t zeros[8];
    static const struct {
        const char *members;
        bool otherwise;
        int64_t columns; /* of a block */
    } rows[] = {
        {"", true, 16},
        {", \"extra_config\": {\"o_proj\": {\"bits\": 8, \"data_type\": \"fp\", \"group_size\": "
         "[16, 24]}}",
         false, 24},
        {", \"extra_config\": {\"o_proj\": {\"group_size\": [16, 24]}}", false, 24},
        {", \"extra_config\": {\"o_proj\": {\"bits\": 16}}", true, 16},
    };
    static char config[512];
    memset(zeros, 0x77, sizeof(zeros));
    set_gptq(c, zeros, NULL);
    drop(c, LAYER "self_attn.o_proj.weight");
    add(c, LAYER "self_attn.o_proj.weight", "F8_E4M3", "32, 32", 1024, NULL);
    add(c, LAYER "self_attn.o_proj.weight_scale_inv", "BF16", "2, 2", 8, NULL);
    c->config = config;
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        (void)snprintf(
            config, sizeof(config),
            QUANTISED("\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 16, "
                      "\"packing_format\": \"auto_round:auto_gptq\"%s"),
            rows[i].members);
        capture_start(&log, CTW_LOG_WARN);
        struct ctw_model *m = open_ok(c);
        capture_stop(&log);
        const struct ctw_weight *o = &m->layers[1].matrix[CTW_M_O].weight;
        assert_int_equal(m->layers[1].matrix[CTW_M_Q].weight.format->id, CTW_FORMAT_gptq);
        assert_true(o->format->id == CTW_FORMAT_float_quantized);
        assert_true(o->group_rows == 16);
        assert_int_equal(o->group_size, rows[i].columns);
        capture_expect(&log, "k_proj) are stored unquantised, although quantization_config");
        assert_true(rows[i].otherwise == (strstr(log.text, "o_proj) is stored quantised") != NULL));
        ctw_model_close(m);
    }
}

static void gptq_rules_by_module(void **state)
{
    struct checkpoint *c = *state;
    uint32_t zeros[8];
    static const struct {
        const char *members, *words; /* NULL: it opens */
    } rows[] = {
        {SYM ", \"dynamic\": {\"+:.*q_proj$\": {\"bits\": 8}}", "for a [32, 32] matrix of 8 bits"},
        {SYM ", \"dynamic\": {\".*k_proj$\": {\"bits\": 8}, \".*q_proj\": {\"group_size\": 16}}",
         NULL},
        {SYM ", \"dynamic\": {\"-:.*q_proj\": {}}", "has no config group"},
        {SYM ", \"dynamic\": {\"(?<x>)\": {}}", "dynamic.(?<x>): regular expression"},
        {SYM ", \"dynamic\": {\"x\": 1}", "dynamic.x: expected an object"},
        {"\"quant_method\": \"gptq\", \"bits\": 5", "GPTQ of 5 bits is not supported"},
        {"\"quant_method\": \"gptq\", \"group_size\": 0", "group_size: found 0, expected -1"},
        {SYM ", \"checkpoint_format\": \"marlin\"",
         "\"marlin\" is not supported; expected gptq or gptq_v2"},
        {SYM ", \"is_marlin_format\": true", "repacked for Marlin"},
        {SYM ", \"pack_dtype\": \"int64\"", "\"int64\" is not supported"},
        {SYM ", \"rotation\": \"hadamard\"", "rotation: \"hadamard\" requests that inputs are"},
        {SYM ", \"rotation\": \"\"", NULL},
        {"\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 16, \"packing_format\": "
         "\"auto_round:auto_gptq\"",
         NULL},
        {"\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 16, \"packing_format\": "
         "\"auto_round\", \"extra_config\": {\"" Q "\": {\"bits\": 16}}",
         NULL}, /* the tensors decide */
        {"\"quant_method\": \"auto-round\", \"bits\": 4", "AutoRound without packing_format"},
        {"\"quant_method\": \"auto-round\", \"packing_format\": \"auto_round:mlx\"",
         "\"auto_round:mlx\" is not supported; expected one of auto_round:auto_gptq, "},
        {"\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 16", "expected I32 [32, 4]"},
        {"\"quant_method\": \"awq\", \"bits\": 3", "AWQ of 3 bits"},
        {"\"quant_method\": \"awq\", \"version\": \"gemv\"",
         "\"gemv\" is not supported; expected gemm"},
        {"\"quant_method\": \"awq\", \"checkpoint_format\": \"gemv_fast\", \"format\": \"gemm\"",
         "checkpoint_format: \"gemv_fast\" is not supported; expected gemm"},
    };
    static char config[512];
    for (int i = 0; i < 8; i++)
        zeros[i] = 0x77777777;
    set_gptq(c, zeros, NULL);
    c->config = config;
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        (void)snprintf(config, sizeof(config), QUANTISED("%s"), rows[i].members);
        if (rows[i].words == NULL)
            (void)q_weight(c, NULL);
        else
            expect_refusal(c, rows[i].words);
    }
    check_auto_round(c);
    /* Old files say it beside config.json. */
    c->config = BF16_CONFIG;
    write_beside(c, "quantize_config.json",
                 "{\"bits\": 4, \"group_size\": 16, \"desc_act\": false}");
    assert_true(q_weight(c, NULL).zero_less_one);
    remove_beside(c, "quantize_config.json");
    find(c, Q ".qweight")->shape = "32, 4";
    write_beside(c, "quant_config.json",
                 "{\"w_bit\": 4, \"q_group_size\": 16, \"zero_point\": true, "
                 "\"version\": \"GEMM\"}");
    struct ctw_weight w = q_weight(c, NULL);
    assert_true(w.format->id == CTW_FORMAT_awq);
    assert_true(!w.symmetric);
    assert_true(w.group_size == 16);
    remove_beside(c, "quant_config.json");
}

/* AutoRound's FP8 in llm-compressor's format does not ignore a dense head, which is no linear layer
 * to the engines that it writes for. */
static void dense_heads_and_embeddings_are_not_meant(void **state)
{
    struct checkpoint *c = *state;
#define FP8_ROWS(targets)                                                                          \
    QUANTISED("\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\", "        \
              "\"ignore\": [\"re:.*(k|v|o|gate|up|down)_proj\"], \"config_groups\": {\"g\": "      \
              "{\"targets\": [" targets "], \"weights\": {\"num_bits\": 8, \"type\": \"float\", "  \
              "\"strategy\": \"channel\"}}}")
    set_parts(c, &(struct parts){{Q ".weight", "F8_E4M3", "32, 32", 1024, NULL},
                                 {Q ".weight_scale", "BF16", "32, 1", 64, NULL},
                                 {NULL, NULL, NULL, 0, NULL}});
    c->config = FP8_ROWS("\"Linear\"");
    struct ctw_model *m = open_ok(c);
    assert_true(m->layers[2].matrix[CTW_M_HEAD].weight.format->id == CTW_FORMAT_dense);
    ctw_model_close(m);
    c->config = FP8_ROWS("\"re:.*q_proj\", \"lm_head\"");
    expect_refusal(c, "lm_head: ");
    /* Nor is an embedding meant that only an expression happens to match. */
    c->config = FP8_ROWS("\"re:model.*\"");
    m = open_ok(c);
    assert_true(m->layers[0].matrix[CTW_M_EMBED].weight.format->id == CTW_FORMAT_dense);
    ctw_model_close(m);
    c->config = FP8_ROWS("\"re:.*q_proj\", \"Embedding\"");
    expect_refusal(c, "model.embed_tokens: ");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(gptq_of_either_version),
        TEST(gptq_rules_by_module),
        TEST(auto_round_stores_floats),
        TEST(auto_round_mixes_formats),
        TEST(dense_heads_and_embeddings_are_not_meant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
