/*
 * AMD's Quark: a tensor's type and scheme for all modules (global_quant_config), and others for the
 * modules that patterns name (layer_quant_config, of which the first that matches counts).
 */
#include <stdio.h>
#include <string.h>

#include "worker/checkpoint/quant/quant_args.h"
#include "worker/checkpoint/quant/quant_native.h"

#define REMEDY "quantise the original model with one of these, or with llm-compressor"

static const struct type {
    const char *name;
    int num_bits;
    bool is_float, is_signed;
} types[] = {
    {"fp8_e4m3", 8, true, true}, {"fp4", 4, true, true},     {"fp6_e2m3", 6, true, true},
    {"fp6_e3m2", 6, true, true}, {"int8", 8, false, true},   {"uint8", 8, false, false},
    {"int4", 4, false, true},    {"uint4", 4, false, false}, {"uint2", 2, false, false},
};

enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

/* "dtype", or the refusal of it by name. */
static enum ctw_status read_type(const struct ctw_json_node *spec, const struct type **out,
                                 struct ctw_err *err)
{
    const char *name = NULL;
    char all[160] = "";
    int at = 0;
    *out = NULL;
    enum ctw_status st = ctw_json_read_string(spec, "dtype", CTW_JSON_REQUIRED, &name, err);
    for (int i = 0; i < N_TYPES && st == CTW_OK; i++) {
        if (strcmp(name, types[i].name) == 0)
            *out = &types[i];
        at +=
            snprintf(all + at, sizeof(all) - (size_t)at, "%s%s", i > 0 ? ", " : "", types[i].name);
    }
    if (st == CTW_OK && *out == NULL)
        return ctw_json_fail(ctw_json_get(spec, "dtype"), err, CTW_EUNSUP,
                             "format \"Quark %.32s\" is not supported; expected one of %s; " REMEDY,
                             name, all);
    return st;
}

/* The axis of a scheme, as Quark's own import has it: outputs, or groups of inputs. */
static enum ctw_status check_axis(const struct ctw_json_node *spec, int64_t low, int64_t high,
                                  struct ctw_err *err)
{
    int64_t axis = high;
    enum ctw_status st = ctw_json_read_int(spec, "ch_axis", CTW_JSON_OPTIONAL, -2, 1, &axis, err);
    if (st == CTW_OK && axis != low && axis != high)
        return ctw_json_fail(ctw_json_get(spec, "ch_axis"), err, CTW_EUNSUP,
                             "scales along axis %lld of weights are not supported; " REMEDY,
                             (long long)axis);
    return st;
}

static enum ctw_status read_block(const struct ctw_json_node *spec, struct ctw_quant_args *args,
                                  struct ctw_err *err)
{
    const struct ctw_json_node *block = NULL;
    int64_t *const sides[] = {&args->block_rows, &args->block_cols};
    enum ctw_status st =
        ctw_json_read_node(spec, "block_size", CTW_JSON_REQUIRED, CTW_JSON_ARRAY, &block, err);
    if (st == CTW_OK && ctw_json_count(block) != 2)
        return ctw_json_fail(block, err, CTW_EFORMAT,
                             "expected rows and columns, such as [128, 128]");
    const struct ctw_json_node *item = st == CTW_OK ? ctw_json_first(block) : NULL;
    for (int i = 0; i < 2 && st == CTW_OK; i++, item = ctw_json_next(item))
        st = ctw_json_as_int(item, 1, CTW_MAX_DIM, sides[i], err);
    return st;
}

static enum ctw_status read_scheme(const struct ctw_json_node *spec, struct ctw_quant_args *args,
                                   struct ctw_err *err)
{
    static const char *const schemes[] = {"per_tensor", "per_channel", "per_group", "per_block",
                                          NULL};
    const char *word;
    enum ctw_status st = ctw_quant_expect_word(spec, "qscheme", schemes, &word, err);
    if (st != CTW_OK)
        return st;
    if (word == schemes[3]) {
        args->strategy = CTW_STRATEGY_BLOCK;
        return read_block(spec, args, err);
    }
    if (word == schemes[2]) {
        args->strategy = CTW_STRATEGY_GROUP;
        st = ctw_json_read_int(spec, "group_size", CTW_JSON_REQUIRED, 1, CTW_MAX_DIM,
                               &args->group_size, err);
        return st == CTW_OK ? check_axis(spec, -1, 1, err) : st;
    }
    args->strategy = word == schemes[1] ? CTW_STRATEGY_CHANNEL : CTW_STRATEGY_TENSOR;
    return word == schemes[1] ? check_axis(spec, -2, 0, err) : CTW_OK;
}

/* Which schemes Quark itself decodes with a type, and with which scales. */
static enum ctw_status check_scheme(const struct ctw_json_node *spec, const struct type *type,
                                    const struct ctw_quant_args *args, struct ctw_err *err)
{
    static const char *const mx[] = {"e8m0", NULL}, *const plain[] = {"float32", NULL};
    const char *word;
    const bool small = type->is_float && type->num_bits < 8;
    const bool group = args->strategy == CTW_STRATEGY_GROUP;
    const bool block = args->strategy == CTW_STRATEGY_BLOCK;
    if (small ? !group : type->is_float ? group : block)
        return ctw_json_fail(ctw_json_get(spec, "qscheme"), err, CTW_EUNSUP,
                             "%s with this scheme is not supported; " REMEDY, type->name);
    if (small && !ctw_json_has(spec, "scale_format"))
        return ctw_json_fail(spec, err, CTW_EUNSUP,
                             "%s without scale_format \"e8m0\" is not supported; " REMEDY,
                             type->name);
    return ctw_quant_expect_word(spec, "scale_format", small ? mx : plain, &word, err);
}

/* [fp4 of groups of 16, E4M3 for its scales]: NVFP4 with a factor of the matrix. */
static enum ctw_status read_two_levels(const struct ctw_json_node *list,
                                       struct ctw_quant_args *args, struct ctw_err *err)
{
    const struct type *type = NULL, *of_scale = NULL;
    const struct ctw_json_node *first = ctw_json_first(list), *second = NULL;
    struct ctw_quant_args scale_args = {0};
    enum ctw_status st = ctw_json_count(list) == 2 ? read_type(first, &type, err) : CTW_OK;
    if (st == CTW_OK && type != NULL) {
        second = ctw_json_next(first);
        st = read_type(second, &of_scale, err);
    }
    if (st == CTW_OK && type != NULL)
        st = read_scheme(first, args, err);
    if (st == CTW_OK && type != NULL)
        st = read_scheme(second, &scale_args, err);
    if (st != CTW_OK)
        return st;
    if (type == NULL || strcmp(type->name, "fp4") != 0 || strcmp(of_scale->name, "fp8_e4m3") != 0 ||
        args->strategy != CTW_STRATEGY_GROUP || args->group_size != 16 ||
        scale_args.strategy != CTW_STRATEGY_TENSOR)
        return ctw_json_fail(list, err, CTW_EUNSUP,
                             "weights that are quantised in several steps are not supported, but "
                             "for fp4 in groups of 16 with fp8_e4m3 scales; " REMEDY);
    args->num_bits = 4;
    args->is_float = args->symmetric = true;
    args->strategy = CTW_STRATEGY_TENSOR_GROUP;
    return CTW_OK;
}

/* spec: an object, a list, or null: not quantised. */
static enum ctw_status read_weight(const struct ctw_json_node *spec, bool interleaved,
                                   struct ctw_quant_args *args, struct ctw_err *err)
{
    const struct type *type;
    *args = (struct ctw_quant_args){.present = spec != NULL && !ctw_json_is_null(spec)};
    if (!args->present)
        return CTW_OK;
    if (ctw_json_type(spec) == CTW_JSON_ARRAY)
        return read_two_levels(spec, args, err);
    enum ctw_status st = ctw_json_expect(spec, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = read_type(spec, &type, err);
    if (st == CTW_OK)
        st = read_scheme(spec, args, err);
    if (st == CTW_OK)
        st = check_scheme(spec, type, args, err);
    if (st != CTW_OK)
        return st;
    args->num_bits = type->num_bits;
    args->is_float = type->is_float;
    args->symmetric = type->is_float; /* integers always have zero points, perhaps of 0 */
    args->e3m2 = strcmp(type->name, "fp6_e3m2") == 0;
    args->is_signed = type->is_signed;
    args->interleaved = interleaved;
    return CTW_OK;
}

/* "fp4 per_group dynamic"; the first of a list. */
static void describe(const struct ctw_json_node *spec, char *text, size_t bytes)
{
    if (spec != NULL && ctw_json_type(spec) == CTW_JSON_ARRAY)
        spec = ctw_json_first(spec);
    const bool object = spec != NULL && ctw_json_type(spec) == CTW_JSON_OBJECT;
    const struct ctw_json_node *type = object ? ctw_json_get(spec, "dtype") : NULL;
    const struct ctw_json_node *scheme = object ? ctw_json_get(spec, "qscheme") : NULL;
    const char *name = type != NULL ? ctw_json_string(type) : NULL;
    const char *how = scheme != NULL ? ctw_json_string(scheme) : NULL;
    bool dynamic = false;
    text[0] = '\0';
    if (name == NULL)
        return;
    const struct ctw_json_node *when = ctw_json_get(spec, "is_dynamic");
    if (when != NULL && ctw_json_type(when) == CTW_JSON_BOOL &&
        ctw_json_as_bool(when, &dynamic, NULL) != CTW_OK)
        dynamic = false;
    (void)snprintf(text, bytes, "%.24s %.24s %s", name, how != NULL ? how : "",
                   dynamic ? "dynamic" : "static");
}

/* A group of the modules that `target` names (NULL: all). */
static enum ctw_status add(struct ctw_quant_config *out, const struct ctw_json_node *layer,
                           const struct ctw_pattern *target, bool interleaved, struct ctw_err *err)
{
    struct ctw_quant_args args;
    char activations[64];
    enum ctw_status st = ctw_json_expect(layer, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = read_weight(ctw_json_get(layer, "weight"), interleaved, &args, err);
    describe(ctw_json_get(layer, "input_tensors"), activations, sizeof(activations));
    return st == CTW_OK ? ctw_quant_add_group(out, "quark", target, &args, activations, err) : st;
}

static enum ctw_status read_export(const struct ctw_json_node *q, bool *interleaved,
                                   struct ctw_err *err)
{
    static const char *const orders[] = {"reorder", "order", NULL};
    static const char *const formats[] = {"real_quantized", NULL};
    const struct ctw_json_node *export = NULL;
    const char *order = NULL, *format;
    enum ctw_status st =
        ctw_json_read_node(q, "export", CTW_JSON_OPTIONAL, CTW_JSON_OBJECT, &export, err);
    if (st == CTW_OK && export != NULL)
        st = ctw_quant_expect_word(export, "weight_format", formats, &format, err);
    if (st == CTW_OK && export != NULL)
        st = ctw_quant_expect_word(export, "pack_method", orders, &order, err);
    *interleaved = order != orders[1];
    return st;
}

/* Rotations that are left to run time. Those that are fused into the weights need no work. */
static enum ctw_status check_algorithms(const struct ctw_json_node *q, struct ctw_err *err)
{
    static const char *const flags[] = {"r3", "r4", "online_r1_rotation"};
    const struct ctw_json_node *list = ctw_json_get(q, "algo_config");
    if (list == NULL || ctw_json_is_null(list))
        return CTW_OK;
    enum ctw_status st = ctw_json_expect(list, CTW_JSON_ARRAY, err);
    const struct ctw_json_node *m = st == CTW_OK ? ctw_json_first(list) : NULL;
    for (; m != NULL && st == CTW_OK; m = ctw_json_next(m))
        for (size_t i = 0; i < CTW_COUNT(flags) && st == CTW_OK; i++) {
            bool on = false;
            st = ctw_json_read_bool(m, flags[i], CTW_JSON_OPTIONAL, &on, err);
            if (st == CTW_OK && on)
                return ctw_json_fail(ctw_json_get(m, flags[i]), err, CTW_EUNSUP,
                                     "rotations of activations at run time are not supported; "
                                     "quantise the model again with rotations that are fused into "
                                     "the weights");
        }
    return st;
}

enum ctw_status ctw_quant_read_quark(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                     struct ctw_err *err)
{
    const struct ctw_json_node *layers = NULL, *classes = NULL, *cache = NULL, *all = NULL;
    bool interleaved;
    enum ctw_status st = read_export(q, &interleaved, err);
    if (st == CTW_OK)
        st = check_algorithms(q, err);
    if (st == CTW_OK)
        st = ctw_quant_read_list(out, q, "exclude", "exclude", err);
    if (st == CTW_OK)
        st = ctw_json_read_node(q, "layer_type_quant_config", CTW_JSON_OPTIONAL, CTW_JSON_OBJECT,
                                &classes, err);
    if (st == CTW_OK && classes != NULL && ctw_json_count(classes) > 0)
        return ctw_json_fail(classes, err, CTW_EUNSUP,
                             "schemes of classes of modules are not supported; name the modules in "
                             "layer_quant_config");
    if (st == CTW_OK)
        st = ctw_json_read_node(q, "layer_quant_config", CTW_JSON_OPTIONAL, CTW_JSON_OBJECT,
                                &layers, err);
    const struct ctw_json_node *m = st == CTW_OK && layers != NULL ? ctw_json_first(layers) : NULL;
    for (; m != NULL && st == CTW_OK; m = ctw_json_next(m)) {
        const struct ctw_pattern target = {.text = ctw_json_key(m), .part = true};
        st = add(out, m, &target, interleaved, err);
    }
    if (st == CTW_OK)
        st = ctw_json_read_node(q, "kv_cache_quant_config", CTW_JSON_OPTIONAL, CTW_JSON_OBJECT,
                                &cache, err);
    if (st == CTW_OK && cache != NULL && ctw_json_first(cache) != NULL)
        describe(ctw_json_get(ctw_json_first(cache), "output_tensors"), out->kv_cache,
                 sizeof(out->kv_cache));
    if (st == CTW_OK)
        st = ctw_json_read_node(q, "global_quant_config", CTW_JSON_REQUIRED, CTW_JSON_OBJECT, &all,
                                err);
    return st == CTW_OK ? add(out, all, NULL, interleaved, err) : st;
}
