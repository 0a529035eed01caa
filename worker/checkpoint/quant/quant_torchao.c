/*
 * torchao, as transformers saves it to safetensors: a tensor of a subclass is stored as plain
 * tensors, NAME._weight_qdata and others. Their dtypes and shapes say what a matrix is; the
 * configuration names the class that made them.
 */
#include <stdio.h>
#include <string.h>

#include "worker/checkpoint/quant/quant_args.h"
#include "worker/checkpoint/quant/quant_native.h"

/* Configurations whose tensors can be read, and what they do with activations. */
static const struct made {
    const char *type, *activations;
} made[] = {
    {"Float8WeightOnlyConfig", ""},
    {"Float8DynamicActivationFloat8WeightConfig", "float8 dynamic"},
    {"Int8WeightOnlyConfig", ""},
    {"Int8DynamicActivationInt8WeightConfig", "int8 dynamic"},
    {"Int8StaticActivationInt8WeightConfig", "int8 static"},
    {"IntxWeightOnlyConfig", ""},
    {"Int8DynamicActivationIntxWeightConfig", "int8 dynamic"},
};

static enum ctw_status refuse(const struct ctw_json_node *node, const char *type,
                              struct ctw_err *err)
{
    char all[320] = "";
    int at = 0;
    for (size_t i = 0; i < CTW_COUNT(made); i++)
        at += snprintf(all + at, sizeof(all) - (size_t)at, "%s%s", i > 0 ? ", " : "", made[i].type);
    return ctw_json_fail(node, err, CTW_EUNSUP,
                         "format \"torchao %.48s\" is not supported; expected one of %s; quantise "
                         "the original model with one of these, or with llm-compressor",
                         type, all);
}

/* One configuration; *activations of the last. */
static enum ctw_status check_one(const struct ctw_json_node *node, const char **activations,
                                 struct ctw_err *err)
{
    const char *type = NULL;
    enum ctw_status st = ctw_json_expect(node, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = ctw_json_read_string(node, "_type", CTW_JSON_REQUIRED, &type, err);
    for (size_t i = 0; i < CTW_COUNT(made) && st == CTW_OK; i++)
        if (strcmp(type, made[i].type) == 0) {
            *activations = made[i].activations;
            return CTW_OK;
        }
    return st == CTW_OK ? refuse(ctw_json_get(node, "_type"), type, err) : st;
}

/* One configuration, or one for each name (FqnToConfig), of which some may be null. */
static enum ctw_status check(const struct ctw_json_node *node, const char **activations,
                             struct ctw_err *err)
{
    const struct ctw_json_node *type = ctw_json_get(node, "_type"), *data = NULL, *names = NULL;
    const char *name = type != NULL ? ctw_json_string(type) : NULL;
    const bool by_name = name != NULL && (strcmp(name, "FqnToConfig") == 0 ||
                                          strcmp(name, "ModuleFqnToConfig") == 0);
    if (!by_name)
        return check_one(node, activations, err);
    enum ctw_status st =
        ctw_json_read_node(node, "_data", CTW_JSON_REQUIRED, CTW_JSON_OBJECT, &data, err);
    const char *key = st == CTW_OK && ctw_json_has(data, "fqn_to_config") ? "fqn_to_config"
                                                                          : "module_fqn_to_config";
    if (st == CTW_OK)
        st = ctw_json_read_node(data, key, CTW_JSON_REQUIRED, CTW_JSON_OBJECT, &names, err);
    const struct ctw_json_node *m = st == CTW_OK ? ctw_json_first(names) : NULL;
    for (; m != NULL && st == CTW_OK; m = ctw_json_next(m))
        if (!ctw_json_is_null(m))
            st = check_one(m, activations, err);
    return st;
}

enum ctw_status ctw_quant_read_torchao(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                       struct ctw_err *err)
{
    const struct ctw_json_node *type = ctw_json_get(q, "quant_type"), *all = NULL;
    const char *activations = "";
    const struct ctw_quant_args args = {
        .present = true, .num_bits = 8, .strategy = CTW_STRATEGY_GROUP, .by_shape_alone = true};
    if (type != NULL && ctw_json_string(type) != NULL) /* of old versions, which wrote pickles */
        return refuse(type, ctw_json_string(type), err);
    enum ctw_status st =
        ctw_json_read_node(q, "quant_type", CTW_JSON_REQUIRED, CTW_JSON_OBJECT, &type, err);
    if (st == CTW_OK)
        st = ctw_json_read_node(type, "default", CTW_JSON_REQUIRED, CTW_JSON_OBJECT, &all, err);
    if (st == CTW_OK)
        st = check(all, &activations, err);
    if (st == CTW_OK)
        st = ctw_quant_read_list(out, q, "modules_to_not_convert", "modules_to_not_convert", err);
    return st == CTW_OK ? ctw_quant_add_group(out, "torchao", NULL, &args, activations, err) : st;
}
