/* FP8, FBGEMM's FP8 and ModelOpt: their configurations, the tensors that must fit, and what is
 * refused. */
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
#include "worker/checkpoint/identity.h"

static const struct parts nvfp4 = {
    {Q ".weight", "U8", "32, 16", 512, NULL},
    {Q ".weight_scale", "F8_E4M3", "32, 2", 64, NULL},
    {Q ".weight_scale_2", "F32", "", 4, NULL},
};

static const struct parts fp4 = {
    {Q ".weight", "I8", "32, 16", 512, NULL},
    {Q ".scale", "F8_E8M0", "32, 1", 32, NULL},
    {NULL, NULL, NULL, 0, NULL},
};

static void fp8_in_blocks_and_whole(void **state)
{
    struct checkpoint *c = *state;
    c->config = QUANTISED(BLOCKS ", \"modules_to_not_convert\": [\"lm_head\", \"k_proj\"]");
    set_parts(c, &fp8_blocks);
    struct ctw_weight w = q_weight(c, "float8 group 24 dynamic");
    assert_true(w.format->id == CTW_FORMAT_float_quantized);
    assert_true(w.dtype == CTW_F32);
    assert_true(w.group_rows == 16);
    assert_true(w.group_size == 24);
    assert_true(w.n_groups == 2);
    find(c, Q ".weight_scale_inv")->shape = "1, 4";
    expect_refusal(c, "weight_scale_inv: found F32 [1, 4], expected [2, 2] (strategy block");
    find(c, Q ".weight_scale_inv")->shape = "4";
    expect_refusal(c, "weight_scale_inv: found F32 [4], expected [2, 2]");
    c->config = QUANTISED(FP8 ", \"weight_block_size\": [128, 8]"); /* one block high */
    assert_true(q_weight(c, "float8 group 8 dynamic").n_groups == 4);
    c->config = QUANTISED(BLOCKS);
    set_parts(c, &fp8_tensor);
    expect_refusal(c, "expected [2, 2] (strategy block, 16 x 24)");
    c->config = QUANTISED(FP8 ", \"weight_block_size\": null");
    w = q_weight(c, "float8 token dynamic");
    assert_true(w.scale_stride == 0);
    assert_true(w.dtype == CTW_F32);
    c->config = QUANTISED("\"activation_scheme\": \"static\", \"ignored_layers\": []");
    (void)q_weight(c, "float8 tensor static");
    find(c, Q ".input_scale")->name = Q ".activation_scale";
    (void)q_weight(c, "float8 tensor static");
    /* FBGEMM: a scale per row */
    c->config = QUANTISED("\"quant_method\": \"fbgemm_fp8\", \"activation_scale_ub\": 1200.0");
    expect_refusal(c, "[32, 1] (strategy channel)");
    *find(c, Q ".weight_scale") = (struct tensor){Q ".weight_scale", "F32", "32, 1", 128, NULL};
    w = q_weight(c, "float8 token dynamic");
    assert_true(w.group_rows == 1);
    assert_true(w.n_groups == 1);
    assert_true(w.scale_stride == 1);
    /* A message names the tensor that the file has. */
    c->config = QUANTISED(BLOCKS);
    expect_refusal(c, Q ": weight_scale: found F32 [32, 1], expected [2, 2]");
    /* DeepSeek V4: scales of another name, and experts in FP4, which no key describes */
    c->config = QUANTISED(BLOCKS ", \"expert_dtype\": \"fp4\"");
    set_parts(c, &fp8_blocks);
    find(c, Q ".weight_scale_inv")->name = Q ".scale";
    assert_int_equal(q_weight(c, "float8 group 24 dynamic").group_rows, 16);
    set_parts(c, &fp4);
    w = q_weight(c, "float8 group 24 dynamic");
    assert_true(w.format->id == CTW_FORMAT_mxfp4);
    assert_int_equal(w.group_size, 32);
    find(c, Q ".scale")->shape = "16, 2";
    expect_refusal(c, "scale: found F8_E8M0 [16, 2], expected U8 [32, 1]");
    /* ModelOpt's NVFP4 in a file of FP8 */
    c->config =
        QUANTISED(BLOCKS ", \"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": "
                         "{\"model.layers.0.self_attn.q_proj\": {\"quant_algo\": \"NVFP4\"}}");
    set_parts(c, &nvfp4);
    assert_true(q_weight(c, "float4 tensor_group 16 local").format->id ==
                CTW_FORMAT_nvfp4_modelopt);
    set_parts(c, &fp8_blocks);
    /* Scales that divide, of GPTQModel */
    c->config = QUANTISED(FP8 ", \"weight_scale_semantics\": \"inverse\"");
    expect_refusal(c, "GPTQModel's FP8, whose scales divide, is not supported");
}

/* Exponents as scales, in either dtype, of every method and shape of FP8 */
static void fp8_with_exponents(void **state)
{
    struct checkpoint *c = *state;
    static const struct {
        const char *name, *shape, *config;
        size_t bytes;
        enum ctw_format_id format;
        int64_t rows, columns; /* of a scale */
    } rows[] = {
#define MXFP8 "\"quant_method\": \"mxfp8\", \"scale_fmt\": \"ue8m0\""
#define CT(strategy, format)                                                                       \
    "\"quant_method\": \"compressed-tensors\", \"format\": \"" format "\", \"config_groups\": "    \
    "{\"g\": {\"targets\": [\"re:.*q_proj\"], \"weights\": {\"type\": \"float\", " strategy "}}}"
        {"_inv", "2, 2", QUANTISED(BLOCKS), 4, CTW_FORMAT_float_quantized, 16, 24},
        {"", "2, 2", QUANTISED(BLOCKS), 4, CTW_FORMAT_float_quantized, 16, 24},
        {"_inv", "", QUANTISED(FP8), 1, CTW_FORMAT_float_quantized, 1, 32},
        {"_inv", "32, 1", QUANTISED(FP8 ", \"weight_block_size\": [1, 32]"), 32, CTW_FORMAT_mxfp8,
         1, 32},
        {"_inv", "32, 1", QUANTISED(MXFP8 ", \"weight_block_size\": [1, 32]"), 32, CTW_FORMAT_mxfp8,
         1, 32},
        {"", "32, 1", QUANTISED(MXFP8), 32, CTW_FORMAT_mxfp8, 1, 32},
        {"", "32, 1", QUANTISED("\"quant_algo\": \"MXFP8\""), 32, CTW_FORMAT_mxfp8, 1, 32},
        {"", "1, 1, 1, 1", QUANTISED("\"quant_algo\": \"FP8_PB_WO\""), 1,
         CTW_FORMAT_float_quantized, 128, 128},
        {"", "2, 2",
         QUANTISED(CT("\"strategy\": \"block\", \"block_structure\": [16, 24]", "float-quantized")),
         4, CTW_FORMAT_float_quantized, 16, 24},
        {"", "32, 1", QUANTISED(CT("\"group_size\": 32", "mxfp8-quantized")), 32, CTW_FORMAT_mxfp8,
         1, 32},
        {"_inv", "2, 2",
         QUANTISED("\"quant_method\": \"auto-round\", \"packing_format\": "
                   "\"auto_round:fp8\", \"data_type\": \"fp\", \"group_size\": [16, 24]"),
         4, CTW_FORMAT_float_quantized, 16, 24},
    };
    static const char *const dtypes[] = {"U8", "F8_E8M0"};
    static char name[128];
    for (size_t i = 0; i < 2 * CTW_COUNT(rows); i++) {
        (void)snprintf(name, sizeof(name), Q ".weight_scale%s", rows[i / 2].name);
        set_parts(c,
                  &(struct parts){{Q ".weight", "F8_E4M3", "32, 32", 1024, NULL},
                                  {name, dtypes[i % 2], rows[i / 2].shape, rows[i / 2].bytes, NULL},
                                  {NULL, NULL, NULL, 0, NULL}});
        c->config = rows[i / 2].config;
        struct ctw_model *m = open_ok(c);
        const struct ctw_weight *w = &m->layers[1].matrix[CTW_M_Q].weight;
        assert_true(w->format->id == rows[i / 2].format);
        assert_true(w->dtype == CTW_BF16);
        assert_true(w->group_rows == rows[i / 2].rows);
        assert_true(w->group_size == rows[i / 2].columns);
        ctw_model_close(m);
    }
    c->config = QUANTISED(MXFP8);
    expect_refusal(c, "weight_scale_inv: found F8_E8M0 [2, 2], expected [32, 1] (strategy group");
}

/* As transformers 5 saves them from memory: the scales' name is no module's. */
static void fp8_stacks_of_experts(void **state)
{
    struct checkpoint *c = *state;
    c->family = "\"architectures\": [\"MixtralForCausalLM\"], \"model_type\": \"mixtral\"";
    c->config = QUANTISED(BLOCKS) ", \"num_local_experts\": 2";
    drop(c, LAYER "mlp.gate_proj.weight");
    drop(c, LAYER "mlp.up_proj.weight");
    drop(c, LAYER "mlp.down_proj.weight");
    add(c, LAYER "mlp.gate.weight", "BF16", "2, 32", 128, NULL);
    add(c, LAYER "mlp.experts.gate_up_proj", "F8_E4M3", "2, 128, 32", 8192, NULL);
    add(c, LAYER "mlp.experts.gate_up_proj_scale_inv", "F32", "2, 8, 2", 128, NULL);
    add(c, LAYER "mlp.experts.down_proj", "F8_E4M3", "2, 32, 64", 4096, NULL);
    add(c, LAYER "mlp.experts.down_proj_scale_inv", "F32", "2, 2, 3", 48, NULL);
    add(c, LAYER "mlp.experts.down_proj_activation_scale", "F32", "2", 8, NULL); /* static */
    struct ctw_model *m = open_ok(c);
    const struct ctw_matrix *second = &m->layers[1].expert[CTW_N_EXPERT_MATRICES];
    const struct ctw_weight *down = &second[CTW_X_DOWN].weight;
    assert_true(down->format->id == CTW_FORMAT_float_quantized);
    assert_true(down->n_groups == 3);
    assert_true(ctw_part_offset(&second[CTW_X_DOWN], CTW_PART_SCALE) == 24);
    assert_true(ctw_part_offset(&second[CTW_X_GATE_UP], CTW_PART_SCALE) == 64);
    ctw_model_close(m);
    /* Blocks of gate and up that were short where the two meet */
    find(c, LAYER "mlp.experts.gate_up_proj_scale_inv")->shape = "2, 4, 4";
    expect_refusal(c, "experts.gate_up_proj: _scale_inv: found F32 [4, 4], expected [8, 2]");
    drop(c, LAYER "mlp.experts.down_proj_scale_inv");
    find(c, LAYER "mlp.experts.gate_up_proj_scale_inv")->shape = "2, 8, 2";
    expect_refusal(c, "mlp.experts.down_proj");
    drop(c, LAYER "mlp.experts.down_proj"); /* told as the others are called */
    expect_refusal(c, "no tensor " LAYER "mlp.experts.down_proj.weight");
}

static void lists_name_modules_loosely(void **state)
{
    struct checkpoint *c = *state;
    static const struct {
        const char *entry;
        bool listed;
    } rows[] = {
        {"q_proj", true},       {LAYER "self_attn", true},   {"model.layers.*.self_attn", true},
        {"model*q_proj", true}, {"model.layers.0*", true},   {"self_attn.q_proj", true},
        {"proj", false},        {"model.layers.0.s", false}, {"_attn.q_proj", false},
        {"visual", false},      {"model.layers.1*", false},
    };
    static char config[512];
    set_parts(c, &fp8_blocks);
    c->config = config;
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        (void)snprintf(config, sizeof(config),
                       QUANTISED(BLOCKS ", \"modules_to_not_convert\": [\"%s\"]"), rows[i].entry);
        if (rows[i].listed)
            expect_refusal(c, Q ": its tensors are float-quantized, but quantization_config has no "
                                "config group for it");
        else
            (void)q_weight(c, "float8 group 24 dynamic");
    }
}

static void modelopt_says_it_in_either_file(void **state)
{
    struct checkpoint *c = *state;
    static const char file[] = "hf_quant_config.json";
    char identity[65];
    set_parts(c, &nvfp4);
    c->config = QUANTISED("\"quant_algo\": \"NVFP4\", \"quant_method\": \"modelopt\", \"ignore\": "
                          "[\"lm_head\", \"model.layers.0.mlp*\"], \"kv_cache_scheme\": "
                          "{\"dynamic\": false, \"num_bits\": 8, \"type\": \"float\"}");
    struct ctw_weight w =
        q_weight(c, "float4 tensor_group 16 local; K/V cache float8 tensor static");
    assert_true(w.format->id == CTW_FORMAT_nvfp4_modelopt);
    assert_true(w.dtype == CTW_F32);
    assert_true(w.group_size == 16);
    assert_true(w.bits == 4);
    assert_true(w.n_groups == 2);
    c->config = BF16_CONFIG;
    expect_refusal(c, "is a tensor of format \"ModelOpt NVFP4\"");
    write_beside(c, file,
                 "{\"producer\": {}, \"quantization\": {\"quant_algo\": \"W4A16_NVFP4\", "
                 "\"kv_cache_quant_algo\": \"FP8\", \"group_size\": 16, \"exclude_modules\": "
                 "[\"lm_head\"]}}");
    struct ctw_model *m = open_ok(c);
    assert_string_equal(m->activations, "K/V cache FP8");
    (void)snprintf(identity, sizeof(identity), "%s", ctw_identity_outline(m->identity));
    ctw_model_close(m);
    write_beside(c, file, "{\"quantization\": {\"quant_algo\": \"NVFP4\"}}");
    m = open_ok(c);
    assert_string_not_equal(ctw_identity_outline(m->identity), identity);
    ctw_model_close(m);
    write_beside(c, file, "{\"quantization\": {\"quant_algo\": \"NVFP4\", \"group_size\": 64}}");
    expect_refusal(c, "hf_quant_config.json: quantization.group_size: NVFP4 in groups of 64");
    write_beside(c, file, "{\"quantization\": {\"quant_algo\": \"NVFP4_SVD\"}}");
    expect_refusal(c,
                   "hf_quant_config.json: quantization.quant_algo: format \"ModelOpt NVFP4_SVD\"");
    write_beside(c, file, "{\"quantization\": {\"quant_algo\": \"FP8\"}}"); /* the tensors decide */
    assert_int_equal(q_weight(c, NULL).format->id, CTW_FORMAT_nvfp4_modelopt);
    write_beside(c, file, "{");
    expect_refusal(c, "hf_quant_config.json: ");
    remove_beside(c, file);
}

static void modelopt_mixes_algorithms(void **state)
{
    struct checkpoint *c = *state;
    set_parts(c, &fp8_tensor);
    *find(c, LAYER "mlp.up_proj.weight") =
        (struct tensor){LAYER "mlp.up_proj.weight", "U8", "64, 16", 1024, NULL};
    add(c, LAYER "mlp.up_proj.weight_scale", "F8_E4M3", "64, 2", 128, NULL);
    add(c, LAYER "mlp.up_proj.weight_scale_2", "F32", "", 4, NULL);
    c->config = QUANTISED(
        "\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {\"" Q "\": {\"quant_algo\": "
        "\"FP8\"}, \"" LAYER "mlp\": {\"quant_algo\": \"W4A16_NVFP4\", \"group_size\": 16}}");
    (void)q_weight(c, "float8 tensor static");
    c->config = QUANTISED("\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {\"" Q
                          "\": {\"quant_algo\": "
                          "\"FP8\"}, \"" LAYER "mlp\": {\"quant_algo\": \"FP8\"}}");
    (void)q_weight(c, "float8 tensor static"); /* the tensors of up_proj decide */
    c->config = QUANTISED("\"quant_algo\": \"MIXED_PRECISION\"");
    expect_refusal(c, "quantized_layers");
    /* Blocks as ModelOpt shapes them */
    set_parts(c, &fp8_blocks);
    *find(c, Q ".weight_scale_inv") =
        (struct tensor){Q ".weight_scale", "F32", "1, 1, 1, 1", 4, NULL};
    c->config = QUANTISED("\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {\"" Q
                          "\": {\"quant_algo\": \"FP8_PB_WO\"}, \"" LAYER
                          "mlp\": {\"quant_algo\": \"NVFP4\"}}");
    struct ctw_weight w = q_weight(c, "float4 tensor_group 16 local");
    assert_true(w.group_rows == 128);
    assert_true(w.group_size == 128);
    assert_true(w.n_groups == 1);
}

/* Its algorithms whose tensors are those of other formats */
static void modelopt_in_other_formats(void **state)
{
    struct checkpoint *c = *state;
    set_parts(c, &nvfp4);
    find(c, Q ".weight_scale")->shape = "32, 1";
    find(c, Q ".weight_scale")->bytes = 32;
    c->config = QUANTISED("\"quant_algo\": \"W4A8_NVFP4_FP8\", \"group_size\": 32");
    struct ctw_weight w = q_weight(c, "float8 tensor static");
    assert_true(w.format->id == CTW_FORMAT_nvfp4_modelopt);
    assert_true(w.group_size == 32);
    assert_true(w.n_groups == 1);
    set_parts(c, &(struct parts){{Q ".weight", "U8", "32, 16", 512, NULL},
                                 {Q ".weight_scale", "U8", "32, 1", 32, NULL},
                                 {NULL, NULL, NULL, 0, NULL}});
    c->config = QUANTISED("\"quant_algo\": \"mxfp4\"");
    w = q_weight(c, "float4 group 32 dynamic");
    assert_true(w.format->id == CTW_FORMAT_mxfp4);
    set_parts(c, &(struct parts){{Q ".weight", "I8", "32, 32", 1024, NULL},
                                 {Q ".weight_scale", "F32", "32", 128, NULL},
                                 {Q ".input_scale", "F32", "", 4, NULL}});
    c->config = QUANTISED("\"quant_algo\": \"W8A8_SQ_PER_CHANNEL\"");
    w = q_weight(c, "int8 tensor static");
    assert_true(w.format->id == CTW_FORMAT_int_quantized);
    assert_true(w.dtype == CTW_F32);
    assert_true(w.symmetric);
    assert_true(w.bits == 8);
    assert_true(w.group_size == 32);
    c->config = QUANTISED("\"quant_algo\": \"FP8\""); /* the tensors decide */
    assert_int_equal(q_weight(c, NULL).format->id, CTW_FORMAT_int_quantized);
    /* What a cache adds to keys and values */
    c->config = QUANTISED("\"quant_algo\": \"W8A16\"");
    add(c, LAYER "self_attn.k_proj.k_bias", "BF16", "1, 2, 1, 8", 32, NULL);
    struct ctw_model *m = open_ok(c);
    assert_non_null(strstr(m->activations, "K/V"));
    ctw_model_close(m);
}

/* AWQ and SmoothQuant: factors of the columns, which any of its integers and NVFP4 may have */
static void modelopt_scales_inputs(void **state)
{
    struct checkpoint *c = *state;
    set_parts(c, &(struct parts){{Q ".weight", "U8", "16, 32", 512, NULL},
                                 {Q ".weight_scale", "F32", "32, 2", 256, NULL},
                                 {NULL, NULL, NULL, 0, NULL}});
    c->config = QUANTISED("\"quant_algo\": \"W4A16_AWQ\"");
    struct ctw_weight w = q_weight(c, NULL);
    assert_true(w.format->id == CTW_FORMAT_modelopt_awq);
    assert_true(w.dtype == CTW_F32);
    assert_true(w.bits == 4);
    assert_true(w.group_size == 16);
    assert_true(w.n_groups == 2);
    assert_true(w.scale_stride == 2);
    add(c, Q ".pre_quant_scale", "BF16", "32", 64, NULL);
    add(c, Q ".weight_scale_2", "F32", "", 4, NULL);
    c->config = QUANTISED("\"quant_algo\": \"W4A8_AWQ\"");
    (void)q_weight(c, "float8 tensor static");
    find(c, Q ".weight")->shape = "32, 16";
    expect_refusal(c, "weight: found U8 [32, 16], expected U8 [16, 32]");
    find(c, Q ".weight")->shape = "16, 32";
    find(c, Q ".weight_scale")->shape = "64";
    expect_refusal(c, "expected [32, groups], where groups divide 32 columns");
    set_parts(c, &nvfp4);
    add(c, Q ".pre_quant_scale", "BF16", "32", 64, NULL);
    c->config = QUANTISED("\"quant_algo\": \"NVFP4_AWQ\"");
    w = q_weight(c, "float4 tensor_group 16 local");
    assert_true(w.format->id == CTW_FORMAT_modelopt_awq);
    assert_true(w.group_size == 16);
    find(c, Q ".pre_quant_scale")->shape = "1, 32";
    expect_refusal(c, "pre_quant_scale: found BF16 [1, 32], expected BF16, F16 or F32 [32]");
    set_parts(c, &(struct parts){{Q ".weight", "I8", "32, 32", 1024, NULL},
                                 {Q ".weight_scale", "F32", "32", 128, NULL},
                                 {Q ".pre_quant_scale", "F32", "32", 128, NULL}});
    c->config = QUANTISED("\"quant_algo\": \"W8A8_SQ_PER_CHANNEL\"");
    w = q_weight(c, "int8 tensor static");
    assert_true(w.format->id == CTW_FORMAT_modelopt_awq);
    assert_true(w.bits == 8);
    assert_true(w.group_size == 32);
    c->config = QUANTISED("\"quant_algo\": \"FP8\""); /* the tensors decide */
    assert_int_equal(q_weight(c, NULL).format->id, CTW_FORMAT_modelopt_awq);
}

static void contradictions(void **state)
{
    struct checkpoint *c = *state;
    static const struct {
        const char *members, *words;
    } rows[] = {
        {FP8, "quant_method \"fp8\", but all weights are stored unquantised"},
        {"\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\"", "all weights are stored"},
        {"\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"",
         "fmt: \"e5m2\" is not supported; expected e4m3"},
        {"\"quant_method\": \"fp8\", \"expert_dtype\": \"fp6\"", "expert_dtype: \"fp6\""},
        {FP8 ", \"weight_block_size\": [128]", "weight_block_size: expected rows and columns"},
        {FP8 ", \"weight_block_size\": [128, 0]", "weight_block_size[1]: expected a whole number"},
        {FP8 ", \"weight_block_size\": 128", "weight_block_size: expected an array"},
        {FP8 ", \"modules_to_not_convert\": \"lm_head\"",
         "modules_to_not_convert: expected an array"},
        {"\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {\"a\": 1}",
         "quantized_layers.a: expected an object"},
    };
    static char config[512];
    c->config = config;
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        (void)snprintf(config, sizeof(config), QUANTISED("%s"), rows[i].members);
        expect_refusal(c, rows[i].words);
    }
    /* Only the K/V cache is quantised. */
    c->config = QUANTISED("\"quant_algo\": null, \"kv_cache_quant_algo\": \"FP8\"");
    struct ctw_model *m = open_ok(c);
    assert_string_equal(m->activations, "K/V cache FP8");
    ctw_model_close(m);
    /* A factor of 0 is a matrix of zeros, but infinity is damage. */
    static const uint32_t infinity = 0x7f800000;
    set_parts(c, &nvfp4);
    c->config = QUANTISED("\"quant_algo\": \"NVFP4\"");
    (void)q_weight(c, "float4 tensor_group 16 local");
    find(c, Q ".weight_scale_2")->data = (const char *)&infinity;
    expect_refusal(c, "weight_scale_2: found inf");
}

/* A head that ModelOpt quantised although its list says otherwise, and a module that is plain */
static void stored_tensors_decide(void **state)
{
    struct checkpoint *c = *state;
    struct capture log;
#define NVFP4_BUT(list) QUANTISED("\"quant_algo\": \"NVFP4\", \"ignore\": [" list "]")
    set_parts(c, &nvfp4);
    *find(c, "lm_head.weight") = (struct tensor){"lm_head.weight", "U8", "16, 16", 256, NULL};
    add(c, "lm_head.weight_scale", "F8_E4M3", "16, 2", 32, NULL);
    add(c, "lm_head.weight_scale_2", "F32", "", 4, NULL);
    c->config = NVFP4_BUT("\"lm_head*\", \"*mlp*\", \"*k_proj\", \"*v_proj\"");
    capture_start(&log, CTW_LOG_WARN);
    struct ctw_model *m = open_ok(c);
    capture_stop(&log);
    const struct ctw_weight *head = &m->layers[2].matrix[CTW_M_HEAD].weight;
    assert_true(head->format->id == CTW_FORMAT_nvfp4_modelopt);
    assert_true(head->group_size == 16);
    capture_expect(&log, "1 matrix (the first is lm_head) is stored quantised, but not as "
                         "quantization_config says of it");
    capture_expect(&log, "1 matrix (the first is " LAYER "self_attn.o_proj) is stored unquantised, "
                         "although quantization_config quantises it");
    ctw_model_close(m);
    c->config = NVFP4_BUT("\"*mlp*\", \"*k_proj\", \"*v_proj\", \"*o_proj\"");
    capture_start(&log, CTW_LOG_WARN);
    ctw_model_close(open_ok(c));
    capture_stop(&log);
    capture_expect(&log, "");
    /* Tensors of a method that states scales otherwise, and of other algorithms */
    set_parts(c, &fp8_blocks);
    assert_int_equal(q_weight(c, "float4 tensor_group 16 local").group_size, 16);
    find(c, Q ".weight_scale_inv")->shape = "1, 4"; /* the only sides that fit */
    assert_int_equal(q_weight(c, "float4 tensor_group 16 local").group_size, 8);
    set_parts(c, &fp8_tensor);
    assert_int_equal(q_weight(c, "float4 tensor_group 16 local").scale_stride, 0);
    set_parts(c, &(struct parts){{Q ".weight", "F8_E4M3", "32, 32", 1024, NULL},
                                 {Q ".weight_scale", "F8_E8M0", "32, 1", 32, NULL},
                                 {NULL, NULL, NULL, 0, NULL}});
    assert_int_equal(q_weight(c, "float4 tensor_group 16 local").format->id, CTW_FORMAT_mxfp8);
    set_parts(c, &fp8_blocks);
    find(c, Q ".weight_scale_inv")->shape = "5, 5"; /* of no side */
    find(c, Q ".weight_scale_inv")->bytes = 100;
    expect_refusal(c, Q ": its tensors are float-quantized, which quantization_config does not say "
                        "of it, and weight_scale_inv F32 [5, 5] does not show");
}

/* Scales of a module that is quantised, or of the attention around one, have no use under any name.
 */
static void scales_of_no_use_are_counted(void **state)
{
    struct checkpoint *c = *state;
    static const struct {
        const char *name, *shape;
        size_t bytes;
        bool aside;
    } rows[] = {
        {LAYER "self_attn.kv_scale", "", 4, true},
        {LAYER "self_attn.prob_scale", "1", 4, true},
        {LAYER "self_attn.prob_output_scale", "1", 4, true},
        {LAYER "self_attn.attn.softmax_scale", "4", 16, true}, /* one for each head */
        {LAYER "self_attn.k_bmm_quantizer._amax", "", 4, true},
        {Q ".input_quantizer._amax", "", 4, true},
        {Q ".act_scale", "1", 4, true},
        {LAYER "self_attn.prob_scale", "7", 28, false},
        {LAYER "self_attn.o_proj.act_scale", "1", 4, false}, /* is dense */
        {LAYER "mlp.kv_scale", "1", 4, false},
        {LAYER "layer_scale", "1", 4, false},
        {LAYER "self_attn.temperature", "1", 4, false},
        {Q ".weight_other_scale", "1", 4, false},
        {Q ".input_quantizer._pre_quant_scale", "1", 4, false},
        {"kv_scale", "1", 4, false},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        set_parts(c, &fp8_tensor);
        c->config = QUANTISED(FP8);
        add(c, rows[i].name, "F32", rows[i].shape, rows[i].bytes, NULL);
        if (rows[i].aside) {
            struct ctw_model *m = open_ok(c);
            assert_int_equal(m->n_scales, 2); /* with input_scale */
            assert_true((strstr(m->activations, "K/V cache scales") != NULL) == (i == 0));
            ctw_model_close(m);
        } else {
            expect_refusal(c, "has no use in a llama model");
        }
        drop(c, rows[i].name);
    }
    /* Strangers where nothing is quantised, unless the cache is */
    set_parts(c, &(struct parts){{Q ".weight", "BF16", "32, 32", 2048, NULL},
                                 {LAYER "self_attn.kv_scale", "F32", "", 4, NULL},
                                 {NULL, NULL, NULL, 0, NULL}});
    c->config = BF16_CONFIG;
    expect_refusal(c, "self_attn.kv_scale (F32 []) has no use");
    c->config = QUANTISED("\"quant_algo\": null, \"kv_cache_quant_algo\": \"FP8\"");
    struct ctw_model *m = open_ok(c);
    assert_int_equal(m->n_scales, 1);
    ctw_model_close(m);
}

static void keys_of_no_use_are_listed(void **state)
{
    struct checkpoint *c = *state;
    set_parts(c, &fp8_blocks);
    c->config = QUANTISED(BLOCKS ", \"scale_fmt\": \"ue8m0\", \"made_by\": \"a tool\"");
    struct ctw_model *m = open_ok(c);
    assert_non_null(strstr(m->unread, "quantization_config.made_by"));
    assert_null(strstr(m->unread, "scale_fmt"));
    ctw_model_close(m);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(fp8_in_blocks_and_whole),
        TEST(fp8_stacks_of_experts),
        TEST(fp8_with_exponents),
        TEST(lists_name_modules_loosely),
        TEST(modelopt_says_it_in_either_file),
        TEST(modelopt_mixes_algorithms),
        TEST(modelopt_in_other_formats),
        TEST(modelopt_scales_inputs),
        TEST(contradictions),
        TEST(keys_of_no_use_are_listed),
        TEST(scales_of_no_use_are_counted),
        TEST(stored_tensors_decide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
