/* quantization_config: schemes, targets and ignore, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "capture.h"
#include "worker/checkpoint/quant/quant_config.h"
#include "worker/checkpoint/quant/quant_native.h"

struct opened {
    struct ctw_json *doc;
    struct ctw_quant_config qc;
};

static enum ctw_status open_text(struct opened *o, const char *text, struct ctw_err *err)
{
    enum ctw_status st = ctw_json_parse(&o->doc, "config.json", text, strlen(text), 1 << 20, err);
    if (st != CTW_OK)
        fail_msg("%s", err->msg);
    return ctw_quant_config_read(&o->qc, ctw_json_root(o->doc), err);
}

static void open_ok(struct opened *o, const char *text)
{
    struct ctw_err err = {0};
    if (open_text(o, text, &err) != CTW_OK)
        fail_msg("%s", err.msg);
}

static void close_it(struct opened *o)
{
    ctw_quant_config_close(&o->qc);
    ctw_json_close(o->doc);
}

/* The name of the group that a module has; "" for none. */
static const char *group_of(const struct opened *o, const char *name, const char *class_name)
{
    const struct ctw_module module = {.names = &name, .n_names = 1, .class_name = class_name};
    const struct ctw_quant_group *g;
    struct ctw_err err;
    assert_int_equal(ctw_quant_config_find(&o->qc, &module, &g, &err), CTW_OK);
    return g == NULL ? "" : g->name;
}

#define INT4 "{\"num_bits\": 4, \"type\": \"int\", \"strategy\": \"group\", \"group_size\": 128}"
#define HEAD                                                                                       \
    "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", "                        \
    "\"quantization_status\": \"compressed\", "

static void a_file_of_llm_compressor(void **state)
{
    (void)state;
    struct opened o;
    open_ok(&o, HEAD
            "\"config_groups\": {\"group_0\": {\"format\": \"pack-quantized\", "
            "\"input_activations\": null, \"output_activations\": null, \"targets\": [\"Linear\"], "
            "\"weights\": {\"actorder\": null, \"block_structure\": null, \"dynamic\": false, "
            "\"group_size\": 128, \"num_bits\": 4, \"observer\": \"memoryless_minmax\", "
            "\"observer_kwargs\": {}, \"scale_dtype\": null, \"strategy\": \"group\", "
            "\"symmetric\": false, \"type\": \"int\", \"zp_dtype\": \"torch.int8\"}}}, "
            "\"format\": \"pack-quantized\", \"global_compression_ratio\": null, \"ignore\": "
            "[\"lm_head\"], \"kv_cache_scheme\": null, \"sparsity_config\": {}, "
            "\"moe_sparsity_config\": {\"method\": \"prune\", \"num_experts\": [null, 8, 8]}, "
            "\"transform_config\": {}, \"version\": \"0.19.0\"}}");
    assert_int_equal(o.qc.n_groups, 1);
    const struct ctw_quant_args *a = &o.qc.groups[0].args;
    assert_true(a->present);
    assert_true(a->num_bits == 4);
    assert_true(!a->is_float);
    assert_true(!a->symmetric);
    assert_true(a->strategy == CTW_STRATEGY_GROUP);
    assert_true(a->group_size == 128);
    assert_true(!a->actorder_group);
    assert_string_equal(a->format, "pack-quantized");
    assert_string_equal(group_of(&o, "model.layers.0.mlp.up_proj", "Linear"), "group_0");
    assert_string_equal(group_of(&o, "lm_head", "Linear"), "");
    assert_string_equal(group_of(&o, "model.embed_tokens", "Embedding"), "");
    close_it(&o);
}

static void no_config_means_dense(void **state)
{
    (void)state;
    static const char *const none[] = {
        "{}",
        "{\"quantization_config\": null}",
        "{\"compression_config\": {\"sparsity_config\": {\"format\": \"dense\"}}}",
        HEAD "\"format\": \"dense\"}}",
        HEAD "\"provider\": \"auto-round\", \"packing\": {\"x\": 1}}}",
        HEAD "\"config_groups\": null, \"ignore\": []}}"};
    for (size_t i = 0; i < CTW_COUNT(none); i++) {
        struct opened o;
        open_ok(&o, none[i]);
        assert_string_equal(group_of(&o, "lm_head", "Linear"), "");
        close_it(&o);
    }
}

/* A name before an expression before a class; among equals the text that sorts first. */
static void the_most_particular_target_decides(void **state)
{
    (void)state;
    struct opened o;
    open_ok(&o,
            HEAD "\"format\": \"mixed-precision\", \"config_groups\": {"
                 "\"class\": {\"targets\": [\"Linear\"], \"weights\": " INT4 "},"
                 "\"late\": {\"targets\": [\"re:.*up_proj\"], \"weights\": " INT4 "},"
                 "\"early\": {\"targets\": [\"re:.*up.*\"], \"weights\": " INT4 "},"
                 "\"name\": {\"targets\": [\"model.layers.1.mlp.up_proj\"], \"weights\": " INT4 "},"
                 "\"none\": {\"targets\": [\"re:.*o_proj\"]},"
                 "\"shared\": {\"targets\": [\"Embedding\"], \"weights\": " INT4 "},"
                 "\"later\": {\"targets\": [\"Embedding\"], \"weights\": " INT4 "}},"
                 "\"ignore\": [\"re:.*layers\\\\.3\\\\.\", \"model.layers.4.mlp.up_proj\"]}}");
    assert_null(o.qc.format);
    assert_string_equal(group_of(&o, "model.layers.0.mlp.gate_proj", "Linear"), "class");
    assert_string_equal(group_of(&o, "model.layers.0.mlp.up_proj", "Linear"), "early");
    assert_string_equal(group_of(&o, "model.layers.1.mlp.up_proj", "Linear"), "name");
    assert_string_equal(group_of(&o, "model.layers.3.mlp.up_proj", "Linear"), "");
    assert_string_equal(group_of(&o, "model.layers.4.mlp.up_proj", "Linear"), "");
    assert_string_equal(group_of(&o, "model.layers.0.self_attn.o_proj", "Linear"), "");
    assert_string_equal(group_of(&o, "model.embed_tokens", "Embedding"), "later");
    close_it(&o);
}

/* Of several names of a module, any may match. */
static void names_of_one_module(void **state)
{
    (void)state;
    static const char *const names[] = {"model.a.up_proj", "model.b.up_proj"};
    struct ctw_module module = {.names = names, .n_names = 2, .class_name = "Linear"};
    struct opened o;
    const struct ctw_quant_group *g;
    struct ctw_err err;
    open_ok(&o, HEAD "\"config_groups\": {"
                     "\"class\": {\"targets\": [\"Linear\"], \"weights\": " INT4 "},"
                     "\"late\": {\"targets\": [\"re:model.*\"], \"weights\": " INT4 "},"
                     "\"expression\": {\"targets\": [\"re:.*b.*\"], \"weights\": " INT4 "}}}}");
    assert_int_equal(ctw_quant_config_find(&o.qc, &module, &g, &err), CTW_OK);
    assert_string_equal(g->name, "expression");
    module.n_names = 1;
    assert_int_equal(ctw_quant_config_find(&o.qc, &module, &g, &err), CTW_OK);
    assert_string_equal(g->name, "late");
    close_it(&o);
}

static void args_have_their_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *weights;
        int bits;
        enum ctw_strategy strategy;
        int64_t group_size;
        bool is_float, symmetric, actorder_group;
    } rows[] = {
        {"{}", 8, CTW_STRATEGY_TENSOR, 0, false, true, false},
        {"{\"group_size\": 64, \"num_bits\": 3}", 3, CTW_STRATEGY_GROUP, 64, false, true, false},
        {"{\"group_size\": -1}", 8, CTW_STRATEGY_CHANNEL, 0, false, true, false},
        {"{\"strategy\": \"CHANNEL\", \"type\": \"FLOAT\", \"symmetric\": false}", 8,
         CTW_STRATEGY_CHANNEL, 0, true, false, false},
        {"{\"group_size\": 16, \"strategy\": \"tensor_group\", \"type\": \"float\", \"num_bits\": "
         "4, \"scale_dtype\": \"torch.float8_e4m3fn\"}",
         4, CTW_STRATEGY_TENSOR_GROUP, 16, true, true, false},
        {"{\"group_size\": 64, \"actorder\": \"group\"}", 8, CTW_STRATEGY_GROUP, 64, false, true,
         true},
        {"{\"group_size\": 64, \"actorder\": true}", 8, CTW_STRATEGY_GROUP, 64, false, true, true},
        {"{\"group_size\": 64, \"actorder\": \"Dynamic\"}", 8, CTW_STRATEGY_GROUP, 64, false, true,
         true},
        {"{\"group_size\": 64, \"actorder\": \"static\"}", 8, CTW_STRATEGY_GROUP, 64, false, true,
         false},
        {"{\"group_size\": 64, \"actorder\": false}", 8, CTW_STRATEGY_GROUP, 64, false, true,
         false},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        char text[512];
        struct opened o;
        snprintf(text, sizeof(text),
                 HEAD "\"config_groups\": {\"g\": {\"targets\": [], \"weights\": %s}}}}",
                 rows[i].weights);
        open_ok(&o, text);
        const struct ctw_quant_args *a = &o.qc.groups[0].args;
        assert_true(a->present);
        assert_true(a->format == NULL);
        assert_int_equal(a->num_bits, rows[i].bits);
        assert_int_equal(a->strategy, rows[i].strategy);
        assert_int_equal(a->group_size, rows[i].group_size);
        assert_int_equal(a->is_float, rows[i].is_float);
        assert_int_equal(a->symmetric, rows[i].symmetric);
        assert_int_equal(a->actorder_group, rows[i].actorder_group);
        close_it(&o);
    }
}

/* As now, as once, and as a preset; without the strategy it says nothing. */
static void blocks_have_two_spellings(void **state)
{
    (void)state;
    static const struct {
        const char *group;
        int64_t rows, cols;
    } rows[] = {
        {"\"g\": {\"weights\": {\"strategy\": \"block\", \"block_structure\": [64, 128]}}", 64,
         128},
        {"\"g\": {\"weights\": {\"strategy\": \"block\", \"block_structure\": \"128x32\"}}", 128,
         32},
        {"\"fp8_block\": [\"Linear\"]", 128, 128},
        {"\"g\": {\"weights\": {\"strategy\": \"channel\", \"block_structure\": [8, 8]}}", 0, 0},
        {"\"g\": {\"weights\": {\"strategy\": \"channel\", \"block_structure\": null}}", 0, 0},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        char text[512];
        struct opened o;
        snprintf(text, sizeof(text), HEAD "\"config_groups\": {%s}}}", rows[i].group);
        open_ok(&o, text);
        const struct ctw_quant_args *a = &o.qc.groups[0].args;
        assert_int_equal(a->block_rows, rows[i].rows);
        assert_int_equal(a->block_cols, rows[i].cols);
        assert_int_equal(a->strategy, i < 3 ? CTW_STRATEGY_BLOCK : CTW_STRATEGY_CHANNEL);
        close_it(&o);
    }
}

static void presets_and_old_files(void **state)
{
    (void)state;
    struct opened o;
    open_ok(&o, HEAD "\"format\": \"nvfp4-pack-quantized\", \"config_groups\": {\"nvfp4\": "
                     "[\"Linear\"]}, \"ignore\": null}}");
    const struct ctw_quant_group *g = &o.qc.groups[0];
    assert_true(g->args.is_float);
    assert_true(g->args.num_bits == 4);
    assert_true(g->args.group_size == 16);
    assert_string_equal(g->activations, "float4 tensor_group 16 local");
    assert_string_equal(group_of(&o, "lm_head", "Linear"), "nvfp4");
    close_it(&o);
    open_ok(&o, "{\"compression_config\": {\"quantization_config\": {\"config_groups\": {\"old\": "
                "{\"targets\": [\"Linear\"], \"weights\": " INT4 "}}, \"format\": "
                "\"pack-quantized\", \"quantization_status\": \"compressed\"}, "
                "\"sparsity_config\": {}}}");
    assert_string_equal(group_of(&o, "lm_head", "Linear"), "old");
    close_it(&o);
    open_ok(&o, HEAD "\"quantization_config\": {\"config_groups\": {\"nested\": {\"targets\": "
                     "[\"Linear\"], \"weights\": " INT4 "}}}, \"sparsity_config\": {}}}");
    assert_string_equal(group_of(&o, "lm_head", "Linear"), "nested");
    close_it(&o);
    open_ok(&o, HEAD
            "\"config_groups\": {\"g\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, "
            "\"strategy\": \"channel\"}, \"input_activations\": {\"num_bits\": 8, \"strategy\": "
            "\"token\", \"dynamic\": true, \"symmetric\": false}, \"output_activations\": "
            "{\"strategy\": \"tensor\", \"type\": \"float\"}}}, \"kv_cache_scheme\": "
            "{\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"tensor\"}, "
            "\"transform_config\": {\"config_groups\": {\"R1\": {\"type\": \"hadamard\", "
            "\"apply\": [{\"targets\": [\"Linear\"], \"location\": \"weight_input\"}]}}}}}");
    assert_string_equal(o.qc.groups[0].activations,
                        "int8 token dynamic asymmetric, output float8 tensor static");
    assert_string_equal(o.qc.kv_cache, "float8 tensor static");
    close_it(&o);
}

/* compressed-tensors of 2024 wrote "frozen" for weights that are compressed, and for others. */
static void frozen_is_told(void **state)
{
    (void)state;
    struct opened o;
    open_ok(&o, "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
                "\"quantization_status\": \"frozen\", \"format\": \"pack-quantized\", "
                "\"config_groups\": {\"g\": {\"targets\": [\"Linear\"], \"weights\": " INT4 "}}}}");
    assert_true(o.qc.frozen);
    assert_string_equal(group_of(&o, "lm_head", "Linear"), "g");
    close_it(&o);
    open_ok(&o, HEAD "\"config_groups\": {}}}");
    assert_false(o.qc.frozen);
    close_it(&o);
}

static void refused(const char *text, const char *words)
{
    struct opened o;
    struct ctw_err err = {0};
    assert_int_not_equal(open_text(&o, text, &err), CTW_OK);
    if (strstr(err.msg, words) == NULL || strncmp(err.msg, "config.json: ", 13) != 0)
        fail_msg("%s: \"%s\" does not say \"%s\"", text, err.msg, words);
    close_it(&o);
}

static void experts_pruned_differently(void **state)
{
    (void)state;
#define PRUNED(method, numbers)                                                                    \
    HEAD "\"moe_sparsity_config\": {\"method\": \"" method "\", \"num_experts\": [" numbers        \
         "]}, \"config_groups\": {}}}"
    refused(PRUNED("prune", "null, 8, 6"),
            "moe_sparsity_config: experts pruned by method \"prune\" to numbers that differ");
    refused(PRUNED("novice", "8, 8"), "experts pruned by method \"novice\"");
    refused(PRUNED("prune", "\"8\""), "num_experts[0]: expected a whole number");
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"{\"quantization_config\": {\"quant_method\": \"aqlm\", \"bits\": 4}}",
         "quantization_config.quant_method: format \"AQLM\" is not supported; expected unquantised "
         "weights or one of quant_method compressed-tensors, fp8, "},
        {"{\"quantization_config\": {\"config_groups\": {}}}",
         "\"quant_method\" is missing, and no other key identifies the format; expected one of "
         "compressed-tensors, fp8, mxfp8, fbgemm_fp8, mxfp4, modelopt, modelopt_fp4, gptq, awq, "
         "exl3, gemma, bitsandbytes, mlx, quark, hqq, torchao, auto-round, intel/auto-round"},
        {"{\"quantization_config\": [1]}", "quantization_config: expected an object"},
        {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
         "\"quantization_status\": \"calibration\", \"config_groups\": {}}}",
         "\"calibration\" is not supported: the weights are not compressed"},
        {HEAD "\"format\": \"sparse-bitmask\", \"config_groups\": {}}}",
         "format \"sparse-bitmask\" is not supported; supported: dense, pack-quantized, "
         "nvfp4-pack-quantized, float-quantized, int-quantized, mxfp8-quantized, "
         "mxfp6-pack-quantized, mxfp4-pack-quantized, naive-quantized, and mixed-precision"},
        {HEAD "\"format\": \"marlin-24\", \"config_groups\": {}}}",
         "of these; quantise the original model again, as no library restores its weights"},
        {HEAD "\"config_groups\": {\"g\": {\"targets\": [], \"format\": \"mixed-precision\"}}}}",
         "config_groups.g.format: format \"mixed-precision\""},
        {HEAD "\"config_groups\": {\"g\": {\"weights\": {\"strategy\": \"block\"}}}}}",
         "strategy \"block\" without block_structure; expected rows and columns"},
        {HEAD "\"config_groups\": {\"g\": {\"weights\": {\"strategy\": \"block\", "
              "\"block_structure\": [128]}}}}}",
         "block_structure: expected rows and columns, such as [128, 128]"},
        {HEAD "\"config_groups\": {\"g\": {\"weights\": {\"strategy\": \"block\", "
              "\"block_structure\": \"128x\"}}}}}",
         "block_structure: expected rows and columns"},
        {HEAD "\"config_groups\": {\"g\": {\"weights\": {\"strategy\": \"block\", "
              "\"block_structure\": [128, 0]}}}}}",
         "block_structure[1]: expected a whole number from 1"},
        {HEAD "\"sparsity_config\": {\"format\": \"sparse-24-bitmask\"}, \"config_groups\": {}}}",
         "sparse weights (format \"sparse-24-bitmask\") are not supported; decompress the "
         "checkpoint with compressed-tensors before 0.15"},
        {HEAD "\"config_groups\": {\"W5A3\": [\"Linear\"]}}}",
         "config_groups.W5A3: unknown preset scheme"},
        {HEAD "\"config_groups\": {\"g\": {\"targets\": [], \"weights\": {\"nbits\": 4}}}}}",
         "weights.nbits: unknown key"},
        {HEAD "\"config_groups\": {\"g\": {\"targets\": [], \"rotation\": 4}}}}",
         "g.rotation: unknown key"},
        {HEAD "\"config_groups\": {\"g\": {\"weights\": {\"type\": \"nf4\"}}}}}", "\"nf4\""},
        {HEAD "\"config_groups\": {\"g\": {\"weights\": {\"strategy\": \"token\"}}}}}",
         "strategy \"token\" is not supported for weights"},
        {HEAD "\"config_groups\": {\"g\": {\"weights\": {\"strategy\": \"group\"}}}}}",
         "strategy \"group\" with group_size 0"},
        {HEAD "\"config_groups\": {\"g\": {\"weights\": {\"strategy\": \"channel\", "
              "\"group_size\": 64}}}}}",
         "strategy \"channel\" with group_size 64"},
        {HEAD "\"config_groups\": {\"g\": {\"weights\": {\"dynamic\": true}}}}}", "dynamically"},
        {HEAD "\"config_groups\": {\"g\": {\"weights\": {\"actorder\": \"col\"}}}}}", "\"col\""},
        {HEAD "\"config_groups\": {\"g\": {\"weights\": {\"num_bits\": 4.5}}}}}", "num_bits"},
        {HEAD "\"config_groups\": {\"g\": {\"targets\": [\"re:(?<x>)\"]}}}}",
         "targets[0]: regular expression"},
        {HEAD "\"config_groups\": {}, \"ignore\": \"lm_head\"}}", "ignore: expected an array"},
        {"{\"compression_config\": {\"config_groups\": {}}, \"quantization_config\": {}}",
         "found in addition to quantization_config"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++)
        refused(rows[i].text, rows[i].words);
}

/* Transforms that are fused into the weights leave nothing to do. */
static void transforms(void **state)
{
    (void)state;
#define TRANSFORM HEAD "\"config_groups\": {}, \"transform_config\": {\"config_groups\": {\"R4\": "
    struct opened o;
    open_ok(&o, TRANSFORM "{\"type\": \"hadamard\", \"apply\": [{\"targets\": [\"Linear\"], "
                          "\"location\": \"weight_input\"}]}, \"R3\": {\"type\": "
                          "\"random-hadamard\", \"head_dim\": 64, \"randomize\": true, "
                          "\"apply\": [{\"targets\": [\"re:.*attn\"], \"location\": "
                          "\"k_cache\", \"inverse\": true}]}}}}}");
    assert_true(o.qc.n_transforms == 2);
    assert_true(o.qc.transforms[0].n_uses == 0);
    const struct ctw_transform *r3 = &o.qc.transforms[1];
    assert_true(r3->type == CTW_TRANSFORM_RANDOM_HADAMARD);
    assert_true(r3->permuted);
    assert_true(r3->head_dim == 64);
    assert_true(r3->n_uses == 1);
    assert_true(r3->uses[0].place == CTW_TRANSFORM_KEYS);
    assert_true(r3->uses[0].inverse);
    close_it(&o);
    refused(TRANSFORM "{\"apply\": [{\"location\": \"input\"}]}}}}}",
            "config_groups.R4: \"type\" is missing");
    refused(TRANSFORM "{\"type\": \"fourier\"}}}}}", "R4.type: \"fourier\" is not supported");
    refused(TRANSFORM "{\"type\": \"hadamard\", \"seed\": 1}}}}}", "R4.seed: unknown key");
    refused(TRANSFORM "{\"type\": \"hadamard\", \"apply\": [{\"location\": \"v_cache\"}]}}}}}",
            "R4.apply[0].location: \"v_cache\" is not supported");
    refused(TRANSFORM "{\"type\": \"hadamard\", \"head_dim\": 0}}}}}",
            "R4.head_dim: expected a whole number from 1");
}

/* Exponents of one version's MXFP4 are 2 too small. */
static void a_version_is_warned_of(void **state)
{
    (void)state;
    static const struct {
        const char *scheme, *version;
        bool warned;
    } rows[] = {
        {"MXFP4", "0.13.0", true},  {"MXFP4A16", "0.13.0.a20251220", true},
        {"MXFP4", "0.13.1", false}, {"MXFP8", "0.13.0", false},
        {"NVFP4", "0.13.0", false},
    };
    char text[512];
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct opened o;
        struct capture log;
        (void)snprintf(text, sizeof(text),
                       HEAD "\"version\": \"%s\", \"config_groups\": {\"%s\": [\"Linear\"]}}}",
                       rows[i].version, rows[i].scheme);
        capture_start(&log, CTW_LOG_WARN);
        open_ok(&o, text);
        capture_stop(&log);
        capture_expect(&log, rows[i].warned ? "a quarter of what they should be" : "");
        close_it(&o);
    }
}

#define QC "{\"quantization_config\": "

/* Other tools' formats: each is named, with the way out. */
static void other_formats_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *where, *name, *remedy;
    } rows[] = {
        {QC "{\"quant_method\": \"exl2\", \"bits\": 4.0}}", "quant_method", "EXL2", "W4A16"},
        {QC "{\"quant_method\": \"gguf\"}}", "quant_method", "GGUF", "safetensors checkpoint"},
        {QC "{\"quant_method\": \"aqlm\"}}", "quant_method", "AQLM", "W2A16"},
        {QC "{\"quant_method\": \"new-method\"}}", "quant_method", "new-method",
         "intel/auto-round; quantise the original model with llm-compressor"},
        {QC "{\"quant_method\": \"compressed_tensors\"}}", "quant_method", "compressed_tensors",
         "did you mean \"compressed-tensors\"?"},
        {QC "{\"quant_method\": \"auto_round\"}}", "quant_method", "auto_round",
         "did you mean \"auto-round\"?"},
        {QC "{\"quant_method\": \"gptq_v2\"}}", "quant_method", "gptq_v2",
         "did you mean \"gptq\"?"},
        {QC "{\"quant_algo\": \"NVFP4A16\"}}", "quant_algo", "ModelOpt NVFP4A16",
         "did you mean NVFP4?"},
        {QC "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4_SVD\"}}",
         "quantization_config.quant_algo", "ModelOpt NVFP4_SVD",
         "NVFP4, W4A16_NVFP4, W4A8_NVFP4_FP8, MXFP4, W4A8_MXFP4_FP8, W4A16_AWQ, W4A8_AWQ, "
         "NVFP4_AWQ, W8A16, W8A8_SQ_PER_CHANNEL, MIXED_PRECISION;"},
        {QC "{\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {\"a\": {\"quant_algo\": "
            "\"INT4_AWQ\"}}}}",
         "quantized_layers.a.quant_algo", "ModelOpt INT4_AWQ", "quantise"},
        {"{\"quantize\": \"w8a8_dynamic\"}", "quantize", "msModelSlim", "quantise"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct opened o;
        struct ctw_err err = {0};
        char name[64], methods[256];
        bool algo = strstr(rows[i].where, "quant_algo") != NULL;
        (void)snprintf(name, sizeof(name), ": format \"%s\" is not supported; ", rows[i].name);
        assert_int_equal(open_text(&o, rows[i].text, &err), CTW_EUNSUP);
        if (!algo && strstr(err.msg, ctw_quant_methods_text(methods, sizeof(methods))) == NULL)
            fail_msg("%s: does not list %s", err.msg, methods);
        if (strstr(err.msg, name) == NULL || strstr(err.msg, rows[i].remedy) == NULL ||
            strstr(err.msg, rows[i].where) == NULL)
            fail_msg("%s: \"%s\"", rows[i].text, err.msg);
        close_it(&o);
    }
    /* The keys of other tools beside a proper object, or saying nothing. */
    struct opened o;
    open_ok(&o,
            HEAD "\"format\": \"dense\"}, \"quantization\": {\"bits\": 4, \"group_size\": 64}}");
    close_it(&o);
    open_ok(&o, "{\"quantization\": {}, \"quantize\": \"\"}");
    close_it(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_of_llm_compressor),
        cmocka_unit_test(no_config_means_dense),
        cmocka_unit_test(the_most_particular_target_decides),
        cmocka_unit_test(names_of_one_module),
        cmocka_unit_test(args_have_their_defaults),
        cmocka_unit_test(blocks_have_two_spellings),
        cmocka_unit_test(presets_and_old_files),
        cmocka_unit_test(frozen_is_told),
        cmocka_unit_test(a_version_is_warned_of),
        cmocka_unit_test(experts_pruned_differently),
        cmocka_unit_test(refusals),
        cmocka_unit_test(transforms),
        cmocka_unit_test(other_formats_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
