#include "worker/checkpoint/foreign.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define QUANTISE "quantise the original model with llm-compressor"

/* quant_method -> the format's name and the remedy. */
static const struct {
    const char *method, *name, *remedy;
} methods[] = {
    {"bitsandbytes", "bitsandbytes", QUANTISE},
    {"exl2", "EXL2", QUANTISE},
    {"exl3", "EXL3", QUANTISE},
    {"gguf", "GGUF", QUANTISE},
    {"quark", "Quark", QUANTISE},
    {"torchao", "torchao", QUANTISE},
    {"hqq", "HQQ", QUANTISE},
    {"aqlm", "AQLM", QUANTISE},
    {"vptq", "VPTQ", QUANTISE},
    {"quanto", "Quanto", QUANTISE},
    {"eetq", "EETQ", QUANTISE},
    {"bitnet", "BitNet", QUANTISE},
    {"ascend", "msModelSlim", QUANTISE},
};

static enum ctw_status refuse(const struct ctw_json_node *node, const char *name,
                              const char *remedy, struct ctw_err *err)
{
    return ctw_json_fail(node, err, CTW_EUNSUP,
                         "format \"%s\" is not supported; expected compressed-tensors or "
                         "unquantised weights: %s",
                         name, remedy);
}

static const char *string_of(const struct ctw_json_node *object, const char *key)
{
    const struct ctw_json_node *m = ctw_json_get(object, key);
    return m != NULL ? ctw_json_string(m) : NULL;
}

enum ctw_status ctw_foreign_refuse_modelopt(const struct ctw_json_node *node, const char *algo,
                                            struct ctw_err *err)
{
    char name[64];
    (void)snprintf(name, sizeof(name), "ModelOpt %.40s", algo);
    return refuse(node, name, QUANTISE, err);
}

/* quant_method `method`, stated or inferred; messages begin with `node`. */
static enum ctw_status refuse_method(const struct ctw_json_node *node, const char *method,
                                     struct ctw_err *err)
{
    for (size_t i = 0; i < CTW_COUNT(methods); i++)
        if (strcasecmp(method, methods[i].method) == 0)
            return refuse(node, methods[i].name, methods[i].remedy, err);
    return refuse(node, method, QUANTISE, err);
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

static bool is_mlx(const struct ctw_json_node *object)
{
    return ctw_json_has(object, "bits") && ctw_json_has(object, "group_size");
}

const char *ctw_foreign_method(const struct ctw_json_node *quantization)
{
    const char *method = string_of(quantization, "quant_method");
    if (method != NULL)
        return method;
    if (ctw_json_get(quantization, "quant_algo") != NULL)
        return "modelopt";
    for (size_t i = 0; i < CTW_COUNT(signs); i++)
        if (ctw_json_get(quantization, signs[i].key) != NULL)
            return signs[i].method;
    return NULL;
}

enum ctw_status ctw_foreign_check(const struct ctw_json_node *quantization, struct ctw_err *err)
{
    const char *method = NULL;
    enum ctw_status st =
        ctw_json_read_string(quantization, "quant_method", CTW_JSON_OPTIONAL, &method, err);
    if (st != CTW_OK || (method != NULL && ctw_part_names_find(method) != NULL))
        return st;
    if (method != NULL)
        return refuse_method(ctw_json_get(quantization, "quant_method"), method, err);
    method = ctw_foreign_method(quantization);
    if (method != NULL)
        return refuse_method(quantization, method, err);
    if (is_mlx(quantization))
        return refuse(quantization, "MLX", QUANTISE, err);
    return ctw_json_fail(quantization, err, CTW_EFORMAT,
                         "\"quant_method\" is missing, and no other key identifies the format; "
                         "expected \"compressed-tensors\"");
}

enum ctw_status ctw_foreign_check_root(const struct ctw_json_node *root, struct ctw_err *err)
{
    const struct ctw_json_node *mlx = ctw_json_get(root, "quantization");
    const struct ctw_json_node *slim = ctw_json_get(root, "quantize");
    if (mlx != NULL && is_mlx(mlx))
        return refuse(mlx, "MLX", QUANTISE, err);
    if (slim != NULL && ctw_json_string(slim) != NULL && ctw_json_string(slim)[0] != '\0')
        return refuse(slim, "msModelSlim", QUANTISE, err);
    return CTW_OK;
}

static bool ends_with_gguf(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && strcasecmp(name + n - 5, ".gguf") == 0;
}

bool ctw_foreign_is_gguf(const char *path)
{
    const struct dirent *entry;
    bool found = false;
    DIR *listing = opendir(path);
    if (listing == NULL)
        return ends_with_gguf(path);
    while (!found && (entry = readdir(listing)) != NULL)
        found = ends_with_gguf(entry->d_name);
    (void)closedir(listing);
    return found;
}

/* ---- tensors ---- */

enum ctw_status ctw_foreign_explain(const struct ctw_container *container,
                                    const struct ctw_part_names *names, const char *matrix,
                                    enum ctw_status status, struct ctw_err *err)
{
    static const struct {
        const char *part, *name;
        const char *method; /* that declares it; NULL: none is supported */
    } parts[] = {
        {"trellis", "EXL3", NULL},
        {"q_weight", "EXL2", NULL},
        {"qweight", "GPTQ or AWQ", "gptq"},
        {"weight_scale_inv", "FP8 in blocks", "fp8"},
        {"weight_scale_2", "ModelOpt NVFP4", "modelopt"},
        {"weight.absmax", "bitsandbytes", NULL},
        {"SCB", "bitsandbytes", NULL},
        {"weight_offset", "msModelSlim", NULL},
        {"biases", "MLX", NULL},
    };
    char name[512];
    if (status != CTW_EFORMAT && status != CTW_EUNSUP)
        return status;
    for (size_t i = 0; i < CTW_COUNT(parts); i++) {
        const char *method = parts[i].method;
        (void)snprintf(name, sizeof(name), "%s.%s", matrix, parts[i].part);
        const struct ctw_tensor *t = ctw_container_find(container, name);
        const char *declared = strcmp(names->method, "awq") == 0 ? "gptq" : names->method;
        if (t == NULL || (method != NULL && strcmp(method, declared) == 0))
            continue;
        const char *file = ctw_container_file(container, t->file);
        if (method == NULL)
            return ctw_fail(err, CTW_EUNSUP,
                            "%s: %s: format \"%s\" is not supported; expected compressed-tensors "
                            "or unquantised weights: %s",
                            file, name, parts[i].name, QUANTISE);
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: %s is a tensor of format \"%s\", but the configuration does not say "
                        "quant_method \"%s\"; restore the quantization_config that belongs to the "
                        "file",
                        file, name, parts[i].name, method);
    }
    return status;
}
