#include "worker/checkpoint/quant/foreign.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "worker/checkpoint/quant/quant_native.h"

#define QUANTISE "quantise the original model with llm-compressor"
#define WITH_SCHEME(scheme) QUANTISE " (its scheme " scheme " is the nearest)"

/* quant_method -> the format's name and the nearest remedy. */
static const struct foreign {
    const char *method, *name, *remedy;
} methods[] = {
    {"exl2", "EXL2", WITH_SCHEME("W4A16")},
    {"gguf", "GGUF", "give the safetensors checkpoint that it was made from"},
    {"aqlm", "AQLM", WITH_SCHEME("W2A16")},
    {"vptq", "VPTQ", WITH_SCHEME("W2A16")},
    {"higgs", "HIGGS", WITH_SCHEME("W4A16")},
    {"spqr", "SpQR", WITH_SCHEME("W3A16")},
    {"sinq", "SINQ", WITH_SCHEME("W4A16_ASYM")},
    {"quanto", "Quanto", WITH_SCHEME("W8A16")},
    {"eetq", "EETQ", WITH_SCHEME("W8A16")},
    {"fp_quant", "FP-Quant", WITH_SCHEME("NVFP4 or MXFP4")},
    {"nvfp4", "transformers' NVFP4", WITH_SCHEME("NVFP4")},
    {"fouroversix", "Four Over Six", WITH_SCHEME("NVFP4")},
    {"bitnet", "BitNet", "give the bf16 weights that it was made from"},
    {"ascend", "msModelSlim", WITH_SCHEME("W8A8")},
};

static const struct foreign *find_foreign(const char *method)
{
    for (size_t i = 0; i < CTW_COUNT(methods); i++)
        if (strcasecmp(method, methods[i].method) == 0)
            return &methods[i];
    return NULL;
}

/* What is supported in place of a format, by name, and the remedy. */
static void expect_instead(const char *remedy, char *text, size_t bytes)
{
    char names[256];
    (void)snprintf(text, bytes, "expected unquantised weights or one of quant_method %s; %s",
                   ctw_quant_methods_text(names, sizeof(names)), remedy);
}

static enum ctw_status refuse(const struct ctw_json_node *node, const char *name,
                              const char *remedy, struct ctw_err *err)
{
    char expected[640];
    expect_instead(remedy, expected, sizeof(expected));
    return ctw_json_fail(node, err, CTW_EUNSUP, "format \"%s\" is not supported; %s", name,
                         expected);
}

/* quant_method `method`, stated or inferred; messages begin with `node`. */
static enum ctw_status refuse_method(const struct ctw_json_node *node, const char *method,
                                     struct ctw_err *err)
{
    char remedy[192];
    const struct foreign *known = find_foreign(method);
    const char *nearest = known == NULL ? ctw_quant_method_nearest(method) : NULL;
    if (known != NULL)
        return refuse(node, known->name, known->remedy, err);
    (void)snprintf(remedy, sizeof(remedy), "did you mean \"%s\"? Otherwise " QUANTISE,
                   nearest != NULL ? nearest : "");
    return refuse(node, method, nearest != NULL ? remedy : QUANTISE, err);
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
    method = ctw_quant_method_name(quantization);
    if (method != NULL)
        return refuse_method(quantization, method, err);
    char names[256];
    return ctw_json_fail(quantization, err, CTW_EFORMAT,
                         "\"quant_method\" is missing, and no other key identifies the format; "
                         "expected one of %s",
                         ctw_quant_methods_text(names, sizeof(names)));
}

enum ctw_status ctw_foreign_check_root(const struct ctw_json_node *root, struct ctw_err *err)
{
    const struct ctw_json_node *slim = ctw_json_get(root, "quantize");
    if (slim != NULL && ctw_json_string(slim) != NULL && ctw_json_string(slim)[0] != '\0')
        return refuse_method(slim, "ascend", err);
    return CTW_OK;
}

/* ---- tensors ---- */

enum ctw_status ctw_foreign_explain(const struct ctw_container *container,
                                    const struct ctw_part_names *names, const char *matrix,
                                    enum ctw_status status, struct ctw_err *err)
{
    static const struct {
        const char *part;
        const char *name;   /* of a supported format; NULL: it is another tool's */
        const char *method; /* that declares it */
    } parts[] = {
        {"trellis", "EXL3", "exl3"},
        {"q_weight", NULL, "exl2"},
        {"qweight", "GPTQ or AWQ", "gptq"},
        {"weight_scale_inv", "FP8 in blocks", "fp8"},
        {"weight_scale_2", "ModelOpt NVFP4", "modelopt"},
        {"weight.absmax", "bitsandbytes", "bitsandbytes"},
        {"SCB", "bitsandbytes", "bitsandbytes"},
        {"weight_offset", NULL, "ascend"},
        {"biases", "MLX", "mlx"},
        {"W_q", "HQQ", "hqq"},
        {"_weight_qdata", "torchao", "torchao"},
    };
    char name[512], expected[640];
    if (status != CTW_EFORMAT && status != CTW_EUNSUP)
        return status;
    for (size_t i = 0; i < CTW_COUNT(parts); i++) {
        const char *method = parts[i].method;
        (void)snprintf(name, sizeof(name), "%s.%s", matrix, parts[i].part);
        const struct ctw_tensor *t = ctw_container_find(container, name);
        const char *declared = strcmp(names->method, "awq") == 0 ? "gptq" : names->method;
        if (t == NULL || strcmp(method, declared) == 0)
            continue;
        const char *file = ctw_container_file(container, t->file);
        const struct foreign *foreign = parts[i].name == NULL ? find_foreign(method) : NULL;
        if (foreign != NULL) {
            expect_instead(foreign->remedy, expected, sizeof(expected));
            return ctw_fail(err, CTW_EUNSUP, "%s: %s: format \"%s\" is not supported; %s", file,
                            name, foreign->name, expected);
        }
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: %s is a tensor of format \"%s\", but the configuration does not say "
                        "quant_method \"%s\"; restore the quantization_config that belongs to the "
                        "file",
                        file, name, parts[i].name, method);
    }
    return status;
}
