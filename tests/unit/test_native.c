/* Checkpoints of other methods than compressed-tensors: their configurations, the tensors that must
 * fit, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "small_checkpoint.h"
#include "worker/checkpoint/identity.h"

#define Q LAYER "self_attn.q_proj"
#define QUANTISED(members) BF16_CONFIG ", \"quantization_config\": {" members "}"
#define FP8 "\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\""
#define BLOCKS FP8 ", \"weight_block_size\": [16, 24]"

/* Replaces q_proj's tensor by `values` and up to two more parts: suffix, dtype, shape, bytes. */
struct parts {
    struct tensor values, scale, more;
};

static void set_parts(struct checkpoint *c, const struct parts *p)
{
    const struct tensor *all[] = {&p->values, &p->scale, &p->more};
    for (int i = c->n - 1; i >= 0; i--)
        if (strncmp(c->tensors[i].name, Q ".", strlen(Q) + 1) == 0)
            c->tensors[i] = c->tensors[--c->n];
    for (int i = 0; i < 3; i++)
        if (all[i]->name != NULL)
            c->tensors[c->n++] = *all[i];
}

static const struct parts fp8_blocks = {
    {Q ".weight", "F8_E4M3", "32, 32", 1024, NULL},
    {Q ".weight_scale_inv", "F32", "2, 2", 16, NULL},
    {NULL, NULL, NULL, 0, NULL},
};
static const struct parts fp8_tensor = {
    {Q ".weight", "F8_E4M3", "32, 32", 1024, NULL},
    {Q ".weight_scale", "F32", "", 4, NULL},
    {Q ".input_scale", "F32", "", 4, NULL},
};
static const struct parts nvfp4 = {
    {Q ".weight", "U8", "32, 16", 512, NULL},
    {Q ".weight_scale", "F8_E4M3", "32, 2", 64, NULL},
    {Q ".weight_scale_2", "F32", "", 4, NULL},
};

/* A file that is removed again. */
static void write_beside(const struct checkpoint *c, const char *name, const char *text)
{
    char path[128];
    path_of(c, name, path);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_true(fputs(text, to) >= 0);
    assert_int_equal(fclose(to), 0);
}

static void remove_beside(const struct checkpoint *c, const char *name)
{
    char path[128];
    path_of(c, name, path);
    assert_int_equal(remove(path), 0);
}

/* The weight of q_proj of the model, which is closed. */
static struct ctw_weight q_weight(struct checkpoint *c, const char *activations)
{
    struct ctw_model *m = open_ok(c);
    struct ctw_weight w = m->layers[1].matrix[CTW_M_Q].weight;
    if (activations == NULL)
        assert_null(m->activations);
    else
        assert_string_equal(m->activations, activations);
    ctw_model_close(m);
    return w;
}

static void fp8_in_blocks_and_whole(void **state)
{
    struct checkpoint *c = *state;
    c->config = QUANTISED(BLOCKS ", \"modules_to_not_convert\": [\"lm_head\", \"k_proj\"]");
    set_parts(c, &fp8_blocks);
    struct ctw_weight w = q_weight(c, "float8 group 24 dynamic");
    assert_true(w.format->id == CTW_FORMAT_float_quantized && w.dtype == CTW_F32);
    assert_true(w.group_rows == 16 && w.group_size == 24 && w.n_groups == 2);
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
    assert_true(w.scale_stride == 0 && w.dtype == CTW_F32);
    c->config = QUANTISED("\"activation_scheme\": \"static\", \"ignored_layers\": []");
    (void)q_weight(c, "float8 tensor static");
    find(c, Q ".input_scale")->name = Q ".activation_scale";
    (void)q_weight(c, "float8 tensor static");
    /* FBGEMM: a scale per row */
    c->config = QUANTISED("\"quant_method\": \"fbgemm_fp8\", \"activation_scale_ub\": 1200.0");
    expect_refusal(c, "[32, 1] (strategy channel)");
    *find(c, Q ".weight_scale") = (struct tensor){Q ".weight_scale", "F32", "32, 1", 128, NULL};
    w = q_weight(c, "float8 token dynamic");
    assert_true(w.group_rows == 1 && w.n_groups == 1 && w.scale_stride == 1);
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
    assert_true(w.format->id == CTW_FORMAT_nvfp4_modelopt && w.dtype == CTW_F32);
    assert_true(w.group_size == 16 && w.bits == 4 && w.n_groups == 2);
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
    write_beside(c, file, "{\"quantization\": {\"quant_algo\": \"FP8\"}}");
    expect_refusal(c, "its tensors are nvfp4, but quantization_config says 8-bit float");
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
    expect_refusal(c, LAYER "mlp.up_proj: its tensors are nvfp4, but quantization_config says "
                            "8-bit float");
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
    assert_true(w.group_rows == 128 && w.group_size == 128 && w.n_groups == 1);
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
    assert_true(w.format->id == CTW_FORMAT_nvfp4_modelopt && w.group_size == 32 && w.n_groups == 1);
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
    assert_true(w.format->id == CTW_FORMAT_int_quantized && w.dtype == CTW_F32);
    assert_true(w.symmetric && w.bits == 8 && w.group_size == 32);
    c->config = QUANTISED("\"quant_algo\": \"FP8\"");
    expect_refusal(c, "its tensors are int-quantized, but quantization_config says 8-bit float");
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
    assert_true(w.format->id == CTW_FORMAT_modelopt_awq && w.dtype == CTW_F32 && w.bits == 4);
    assert_true(w.group_size == 16 && w.n_groups == 2 && w.scale_stride == 2);
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
    assert_true(w.format->id == CTW_FORMAT_modelopt_awq && w.group_size == 16);
    find(c, Q ".pre_quant_scale")->shape = "1, 32";
    expect_refusal(c, "pre_quant_scale: found BF16 [1, 32], expected BF16, F16 or F32 [32]");
    set_parts(c, &(struct parts){{Q ".weight", "I8", "32, 32", 1024, NULL},
                                 {Q ".weight_scale", "F32", "32", 128, NULL},
                                 {Q ".pre_quant_scale", "F32", "32", 128, NULL}});
    c->config = QUANTISED("\"quant_algo\": \"W8A8_SQ_PER_CHANNEL\"");
    w = q_weight(c, "int8 tensor static");
    assert_true(w.format->id == CTW_FORMAT_modelopt_awq && w.bits == 8 && w.group_size == 32);
    c->config = QUANTISED("\"quant_algo\": \"FP8\"");
    expect_refusal(c, "quantization_config says 8-bit float");
}

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
    assert_true(w.format->id == CTW_FORMAT_gptq && w.bits == 4 && w.dtype == CTW_F16);
    assert_true(w.group_size == 16 && w.n_groups == 2 && w.zero_less_one && !w.indexed);
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
    expect_refusal(c, "has no config group");
    c->config = AUTO_ROUND("auto_round:llm_compressor", "\"int\", \"bits\": 4");
    expect_refusal(c, "data_type \"int\" is not supported in this packing_format");
    set_parts(c, &fp8_blocks);
    c->config = AUTO_ROUND("auto_round:fp8", "\"fp\", \"group_size\": [16, 24]");
    w = q_weight(c, NULL);
    assert_true(w.group_rows == 16 && w.group_size == 24);
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
    /* Scales that divide, of GPTQModel */
    c->config = QUANTISED(FP8 ", \"weight_scale_semantics\": \"inverse\"");
    expect_refusal(c, "GPTQModel's FP8, whose scales divide, is not supported");
    set_parts(c, &(struct parts){{Q ".weight", "BF16", "32, 32", 2048, NULL},
                                 {NULL, NULL, NULL, 0, NULL},
                                 {NULL, NULL, NULL, 0, NULL}});
    c->config = AUTO_ROUND("auto_round:fake", "\"int\", \"bits\": 8");
    w = q_weight(c, NULL);
    assert_true(w.format->id == CTW_FORMAT_dense);
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
        {SYM ", \"dynamic\": {\"(?=x)\": {}}", "dynamic.(?=x): regular expression"},
        {SYM ", \"dynamic\": {\"x\": 1}", "dynamic.x: expected an object"},
        {"\"quant_method\": \"gptq\", \"bits\": 5", "GPTQ of 5 bits is not supported"},
        {"\"quant_method\": \"gptq\", \"group_size\": 0", "group_size: found 0, expected -1"},
        {SYM ", \"checkpoint_format\": \"marlin\"", "\"marlin\" is not supported; expected gptq"},
        {SYM ", \"is_marlin_format\": true", "repacked for Marlin"},
        {SYM ", \"pack_dtype\": \"int64\"", "\"int64\" is not supported"},
        {SYM ", \"rotation\": \"hadamard\"", "rotation: \"hadamard\" requests that inputs are"},
        {SYM ", \"rotation\": \"\"", NULL},
        {"\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 16, \"packing_format\": "
         "\"auto_round:auto_gptq\"",
         NULL},
        {"\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 16, \"packing_format\": "
         "\"auto_round\", \"extra_config\": {\"" Q "\": {\"bits\": 16}}",
         "has no config group"},
        {"\"quant_method\": \"auto-round\", \"bits\": 4", "AutoRound without packing_format"},
        {"\"quant_method\": \"auto-round\", \"packing_format\": \"auto_round:mlx\"",
         "\"auto_round:mlx\" is not supported"},
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
    assert_true(w.format->id == CTW_FORMAT_awq && !w.symmetric && w.group_size == 16);
    remove_beside(c, "quant_config.json");
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
        {"\"quant_method\": \"fp8\", \"expert_dtype\": \"fp4\"", "expert_dtype: \"fp4\""},
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
        TEST(lists_name_modules_loosely),
        TEST(modelopt_says_it_in_either_file),
        TEST(modelopt_mixes_algorithms),
        TEST(modelopt_in_other_formats),
        TEST(auto_round_stores_floats),
        TEST(modelopt_scales_inputs),
        TEST(gptq_of_either_version),
        TEST(gptq_rules_by_module),
        TEST(contradictions),
        TEST(keys_of_no_use_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
