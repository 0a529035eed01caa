#include "worker/checkpoint/quant/quant_native.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/closest.h"
#include "base/mem.h"
#include "worker/checkpoint/quant/quant_args.h"

enum { MAX_BYTES = 16 << 20, MAX_KEYS = 20 };

/* ---- fp8 ---- */

/* [128, 128]; null: none. */
static enum ctw_status read_block(const struct ctw_json_node *q, struct ctw_quant_args *args,
                                  struct ctw_err *err)
{
    const struct ctw_json_node *block = NULL;
    int64_t *const sides[] = {&args->block_rows, &args->block_cols};
    enum ctw_status st =
        ctw_json_read_node(q, "weight_block_size", CTW_JSON_OPTIONAL, CTW_JSON_ARRAY, &block, err);
    if (st != CTW_OK || block == NULL)
        return st;
    if (ctw_json_count(block) != 2)
        return ctw_json_fail(block, err, CTW_EFORMAT,
                             "expected rows and columns, such as [128, 128]");
    const struct ctw_json_node *item = ctw_json_first(block);
    for (int i = 0; i < 2 && st == CTW_OK; i++, item = ctw_json_next(item))
        st = ctw_json_as_int(item, 1, CTW_MAX_DIM, sides[i], err);
    args->strategy = CTW_STRATEGY_BLOCK;
    return st;
}

/* Scales multiply; in GPTQModel's FP8 they divide, under the same name. */
static enum ctw_status check_scales_multiply(const struct ctw_json_node *q, struct ctw_err *err)
{
    const char *word = NULL;
    enum ctw_status st =
        ctw_json_read_string(q, "weight_scale_semantics", CTW_JSON_OPTIONAL, &word, err);
    if (st != CTW_OK || word == NULL)
        return st;
    return ctw_json_fail(ctw_json_get(q, "weight_scale_semantics"), err, CTW_EUNSUP,
                         "\"%s\": GPTQModel's FP8, whose scales divide, is not supported; quantise "
                         "the original model with llm-compressor",
                         word);
}

/* args: the arguments of a configuration that names no blocks. */
static enum ctw_status read_floats(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                   struct ctw_quant_args args, struct ctw_err *err)
{
    static const char *const fmts[] = {"e4m3", "float8_e4m3fn", "e4m3fn", NULL};
    static const char *const schemes[] = {"dynamic", "static", NULL};
    static const char *const experts[] = {"fp8", "fp4", NULL};
    static const char *const stored[] = {"fp8", "mxfp4", NULL};
    int64_t mx_columns = 32;
    const char *word, *scheme;
    char text[64];
    enum ctw_status st = check_scales_multiply(q, err);
    if (st == CTW_OK)
        st = ctw_quant_expect_word(q, "fmt", fmts, &word, err);
    if (st == CTW_OK)
        st = ctw_quant_expect_word(q, "expert_dtype", experts, &word, err);
    if (st == CTW_OK)
        st = ctw_quant_expect_word(q, "store_dtype", stored, &word, err); /* MiMo V2's experts */
    if (st == CTW_OK)
        st = ctw_json_read_int(q, "mxfp4_block_size", CTW_JSON_OPTIONAL, 32, 32, &mx_columns, err);
    if (st == CTW_OK)
        st = ctw_quant_expect_word(q, "activation_scheme", schemes, &scheme, err);
    if (st == CTW_OK)
        st = read_block(q, &args, err);
    if (st == CTW_OK)
        st = ctw_quant_read_list(out, q, "modules_to_not_convert", "ignored_layers", err);
    if (st == CTW_OK && ctw_json_get(q, "quantized_layers") != NULL) {
        /* ModelOpt has changed these modules of an FP8 file, and no others. */
        out->mixes = true;
        out->names = ctw_part_names_find("modelopt");
        st = ctw_quant_read_modelopt_layers(out, q, err);
    }
    if (st != CTW_OK)
        return st;
    if (scheme != NULL && strcasecmp(scheme, "static") == 0)
        snprintf(text, sizeof(text), "float8 tensor static");
    else if (args.strategy == CTW_STRATEGY_BLOCK)
        snprintf(text, sizeof(text), "float8 group %lld dynamic", (long long)args.block_cols);
    else if (args.strategy == CTW_STRATEGY_GROUP)
        snprintf(text, sizeof(text), "float8 group %lld dynamic", (long long)args.group_size);
    else
        snprintf(text, sizeof(text), "float8 token dynamic");
    return ctw_quant_add_group(out, "fp8", NULL, &args, text, err);
}

static enum ctw_status read_fp8(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                struct ctw_err *err)
{
    const struct ctw_quant_args args = {.present = true,
                                        .num_bits = 8,
                                        .is_float = true,
                                        .symmetric = true,
                                        .strategy = CTW_STRATEGY_TENSOR};
    return read_floats(out, q, args, err);
}

/* Described as fp8, with an exponent for each 32 columns. */
static enum ctw_status read_mxfp8(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                  struct ctw_err *err)
{
    const struct ctw_quant_args args = {.present = true,
                                        .num_bits = 8,
                                        .is_float = true,
                                        .symmetric = true,
                                        .strategy = CTW_STRATEGY_GROUP,
                                        .group_size = 32};
    return read_floats(out, q, args, err);
}

static enum ctw_status read_fbgemm(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                   struct ctw_err *err)
{
    const struct ctw_quant_args args = {.present = true,
                                        .num_bits = 8,
                                        .is_float = true,
                                        .symmetric = true,
                                        .strategy = CTW_STRATEGY_CHANNEL};
    enum ctw_status st =
        ctw_quant_read_list(out, q, "modules_to_not_convert", "ignored_layers", err);
    return st == CTW_OK
               ? ctw_quant_add_group(out, "fbgemm_fp8", NULL, &args, "float8 token dynamic", err)
               : st;
}

/* ---- gpt-oss ---- */

static enum ctw_status read_mxfp4(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                  struct ctw_err *err)
{
    const struct ctw_quant_args args = {.present = true,
                                        .num_bits = 4,
                                        .is_float = true,
                                        .symmetric = true,
                                        .strategy = CTW_STRATEGY_GROUP,
                                        .group_size = 32};
    enum ctw_status st =
        ctw_quant_read_list(out, q, "modules_to_not_convert", "ignored_layers", err);
    return st == CTW_OK ? ctw_quant_add_group(out, "mxfp4", NULL, &args, "", err) : st;
}

/* ---- EXL3 ---- */

/* The tensors say everything: bits differ from matrix to matrix, and "bits" is their average. */
static enum ctw_status read_exl3(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                 struct ctw_err *err)
{
    (void)q;
    const struct ctw_quant_args args = {.present = true, .symmetric = true};
    return ctw_quant_add_group(out, "exl3", NULL, &args, "", err);
}

/* ---- Gemma's own ---- */

/* The tensors say the bits of each module, and whether its input and output are rounded. */
static enum ctw_status read_gemma(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                  struct ctw_err *err)
{
    const struct ctw_quant_args args = {.present = true, .symmetric = true};
    const struct ctw_quant_activations ranges = {.present = true,
                                                 .symmetric = true,
                                                 .num_bits = 8,
                                                 .strategy = "tensor",
                                                 .when = CTW_QUANT_STATIC};
    enum ctw_status st = ctw_quant_read_list(out, q, "modules_to_not_convert", NULL, err);
    if (st == CTW_OK)
        st = ctw_quant_add_group(out, "gemma", NULL, &args,
                                 "int8 tensor static, output int8 tensor static", err);
    if (st == CTW_OK)
        out->groups[0].input = out->groups[0].output = ranges;
    return st;
}

/* ---- choosing ---- */

struct ctw_quant_method {
    const char *name;  /* quant_method */
    const char *parts; /* the method of its tensors' names */
    enum ctw_status (*read)(struct ctw_quant_config *out, const struct ctw_json_node *q,
                            struct ctw_err *err);
    const char *keys[MAX_KEYS]; /* those that it reads, or that say the same once more */
    bool mixes; /* its tools write modules that the configuration does not describe */
};

#define MODELOPT_KEYS                                                                              \
    {                                                                                              \
        "quant_algo", "quantized_layers", "exclude_modules", "ignore", "kv_cache_quant_algo",      \
            "kv_cache_scheme", "group_size", "config_groups"                                       \
    }

#define GPTQ_KEYS                                                                                  \
    {                                                                                              \
        "bits", "group_size", "sym", "desc_act", "checkpoint_format", "format", "pack_dtype",      \
            "is_marlin_format", "dynamic", "modules_to_not_convert", "ignored_layers", "rotation"  \
    }

#define AUTO_ROUND_KEYS                                                                            \
    {                                                                                              \
        "bits", "group_size", "sym", "packing_format", "backend", "extra_config",                  \
            "modules_to_not_convert", "ignored_layers", "data_type", "weight_block_size",          \
            "act_bits", "act_data_type", "act_group_size", "act_dynamic", "rotation_config",       \
            "spinquant_config"                                                                     \
    }

/* Those of run time, too: they change no weight. */
#define BNB_KEYS                                                                                   \
    {                                                                                              \
        "load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit", "bnb_4bit_quant_type",   \
            "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage",       \
            "llm_int8_skip_modules", "modules_to_not_convert", "llm_int8_threshold",               \
            "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight"                         \
    }

#define FP8_KEYS                                                                                   \
    {                                                                                              \
        "fmt", "expert_dtype", "activation_scheme", "weight_block_size", "modules_to_not_convert", \
            "ignored_layers", "scale_fmt", "weight_scale_semantics", "quantized_layers",           \
            "store_dtype", "mxfp4_block_size"                                                      \
    }

static const struct ctw_quant_method methods[] = {
    {"fp8", "fp8", read_fp8, FP8_KEYS, false},
    {"mxfp8", "fp8", read_mxfp8, FP8_KEYS, false},
    {"fbgemm_fp8",
     "fbgemm_fp8",
     read_fbgemm,
     {"modules_to_not_convert", "ignored_layers", "activation_scale_ub"},
     false},
    {"mxfp4", "mxfp4", read_mxfp4, {"modules_to_not_convert", "ignored_layers"}, false},
    {"modelopt", "modelopt", ctw_quant_read_modelopt, MODELOPT_KEYS, true},
    {"modelopt_fp4", "modelopt", ctw_quant_read_modelopt, MODELOPT_KEYS, true},
    {"gptq", "gptq", ctw_quant_read_gptq, GPTQ_KEYS, false},
    {"awq",
     "awq",
     ctw_quant_read_awq,
     {"bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "format",
      "checkpoint_format", "modules_to_not_convert", "ignored_layers", "pack_method"},
     false},
    {"exl3",
     "exl3",
     read_exl3,
     {"version", "bits", "head_bits", "mtp_bits", "vision_bits", "codebook", "out_scales",
      "calibration", "tensor_storage", "original_quantization_config"},
     false},
    {"gemma",
     "gemma",
     read_gemma,
     {"num_bits", "quantize_embeddings", "module_quant_configs", "modules_to_not_convert"},
     false},
    {"bitsandbytes", "bitsandbytes", ctw_quant_read_bnb, BNB_KEYS, false},
    {"mlx", "mlx", ctw_quant_read_mlx, {"bits", "group_size", "mode"}, false},
    {"quark",
     "quark",
     ctw_quant_read_quark,
     {"global_quant_config", "layer_quant_config", "layer_type_quant_config", "exclude", "export",
      "algo_config", "kv_cache_quant_config", "quant_mode"},
     false},
    {"hqq",
     "hqq",
     ctw_quant_read_hqq,
     {"quant_config", "skip_modules", "modules_to_not_convert"},
     false},
    {"torchao",
     "torchao",
     ctw_quant_read_torchao,
     {"quant_type", "modules_to_not_convert", "include_input_output_embeddings",
      "untie_embedding_weights"},
     false},
    {"auto-round", "gptq", ctw_quant_read_auto_round, AUTO_ROUND_KEYS, true},
    {"intel/auto-round", "gptq", ctw_quant_read_auto_round, AUTO_ROUND_KEYS, true},
};

const char *ctw_quant_methods_text(char *text, size_t bytes)
{
    size_t at = (size_t)snprintf(text, bytes, "compressed-tensors");
    for (size_t i = 0; i < CTW_COUNT(methods) && at < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, ", %s", methods[i].name);
    return text;
}

const char *ctw_quant_method_nearest(const char *name)
{
    const char *names[CTW_COUNT(methods) + 1] = {"compressed-tensors"};
    for (size_t i = 0; i < CTW_COUNT(methods); i++)
        names[i + 1] = methods[i].name;
    return ctw_closest(name, names, (int)CTW_COUNT(names));
}

static const char *string_of(const struct ctw_json_node *object, const char *key)
{
    const struct ctw_json_node *m = ctw_json_get(object, key);
    return m != NULL ? ctw_json_string(m) : NULL;
}

/* In an object without quant_method, the first row whose key is present identifies the tool. */
static const struct {
    const char *key, *method;
} signs[] = {
    {"weight_block_size", "fp8"},
    {"activation_scheme", "fp8"},
    {"load_in_4bit", "bitsandbytes"},
    {"load_in_8bit", "bitsandbytes"},
    {"_load_in_4bit", "bitsandbytes"},
    {"_load_in_8bit", "bitsandbytes"},
    {"desc_act", "gptq"},
    {"checkpoint_format", "gptq"},
    {"w_bit", "awq"},
    {"zero_point", "awq"},
};

const char *ctw_quant_method_name(const struct ctw_json_node *quantization)
{
    const char *method = string_of(quantization, "quant_method");
    if (method != NULL)
        return method;
    if (ctw_json_get(quantization, "quant_algo") != NULL)
        return "modelopt";
    for (size_t i = 0; i < CTW_COUNT(signs); i++)
        if (ctw_json_get(quantization, signs[i].key) != NULL)
            return signs[i].method;
    return ctw_quant_is_mlx(quantization) ? "mlx" : NULL;
}

const struct ctw_quant_method *ctw_quant_method_find(const struct ctw_json_node *quantization)
{
    const char *name = ctw_quant_method_name(quantization);
    for (size_t i = 0; name != NULL && i < CTW_COUNT(methods); i++)
        if (strcasecmp(name, methods[i].name) == 0)
            return &methods[i];
    return NULL;
}

enum ctw_status ctw_quant_method_read(const struct ctw_quant_method *method,
                                      struct ctw_quant_config *out,
                                      const struct ctw_json_node *quantization, struct ctw_err *err)
{
    *out = (struct ctw_quant_config){.names = ctw_part_names_find(method->parts),
                                     .present = true,
                                     .tensors_decide = true,
                                     .mixes = method->mixes,
                                     .in_order = true};
    return method->read(out, quantization, err);
}

enum ctw_status ctw_quant_method_list_unread(const struct ctw_quant_method *method,
                                             const struct ctw_json_node *quantization,
                                             struct ctw_unread *unread, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    const struct ctw_json_node *m = ctw_json_first(quantization);
    for (; m != NULL && st == CTW_OK; m = ctw_json_next(m)) {
        bool read = strcmp(ctw_json_key(m), "quant_method") == 0;
        for (int i = 0; i < MAX_KEYS && method->keys[i] != NULL && !read; i++)
            read = strcmp(ctw_json_key(m), method->keys[i]) == 0;
        read |= method->read == ctw_quant_read_mlx && ctw_quant_mlx_is_module(m);
        if (!read)
            st = ctw_unread_add(unread, m, err);
    }
    return st;
}

/* ---- a file beside config.json ---- */

/* The object in one file; *q is NULL if the file has no such object. */
static enum ctw_status read_file(struct ctw_json **doc, const struct ctw_json_node **q,
                                 const char *dir, const char *file, const char *key,
                                 struct ctw_err *err)
{
    enum ctw_status st = ctw_json_parse_file(doc, dir, file, MAX_BYTES, err);
    *q = NULL;
    if (st == CTW_ENOTFOUND)
        return CTW_OK;
    if (st == CTW_OK && key != NULL)
        return ctw_json_read_node(ctw_json_root(*doc), key, CTW_JSON_OPTIONAL, CTW_JSON_OBJECT, q,
                                  err);
    if (st == CTW_OK) {
        *q = ctw_json_root(*doc);
        st = ctw_json_expect(*q, CTW_JSON_OBJECT, err);
    }
    return st;
}

enum ctw_status ctw_quant_folder_read(struct ctw_quant_config *out, struct ctw_json **doc,
                                      const char *dir, struct ctw_err *err)
{
    static const struct {
        const char *file, *key, *method;
    } files[] = {
        {"hf_quant_config.json", "quantization", "modelopt"},
        {"quantize_config.json", NULL, "gptq"},
        {"quant_config.json", NULL, "awq"},
        {"quantization_config.json", NULL, "exl3"},
    };
    for (size_t i = 0; i < CTW_COUNT(files); i++) {
        const struct ctw_json_node *q;
        enum ctw_status st = read_file(doc, &q, dir, files[i].file, files[i].key, err);
        const char *said = q != NULL ? string_of(q, "quant_method") : NULL;
        if (strcmp(files[i].method, "exl3") == 0 && (said == NULL || strcmp(said, "exl3") != 0))
            q = NULL; /* other tools' files have this name, too */
        for (size_t j = 0; st == CTW_OK && q != NULL && j < CTW_COUNT(methods); j++)
            if (strcmp(methods[j].name, files[i].method) == 0)
                return ctw_quant_method_read(&methods[j], out, q, err);
        if (st != CTW_OK)
            return st;
        ctw_json_close(*doc);
        *doc = NULL;
    }
    return CTW_OK;
}
