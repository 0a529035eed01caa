/* AutoRound's configuration. The weights are stored in the form of another method. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "worker/checkpoint/quant/quant_args.h"
#include "worker/checkpoint/quant/quant_native.h"

enum { MAX_MODULES = 65536 };

/* The kind of values, which determines the meaning of a module's members. */
enum kind { PACKED, FLOATS, FAKE };

/*
 * packing_format, or `backend` in files of AutoRound before 0.5: how weights are stored, and for
 * which kernels they were meant.
 */
static const struct packing {
    const char *name;
    const char *parts; /* the method of its tensors' names */
    enum kind kind;
    bool zero_less_one;
} packings[] = {
    {"auto_round:auto_gptq", "gptq", PACKED, true},
    {"auto_round:auto_gptq:exllamav2", "gptq", PACKED, true},
    {"auto_round:auto_gptq:tritonv2", "gptq", PACKED, true},
    {"auto_round:auto_awq", "awq", PACKED, false},
    {"auto_round:auto_awq:gemm", "awq", PACKED, false},
    {"auto_round", "gptq", PACKED, false},
    {"auto_round:gptqmodel", "gptq", PACKED, false},
    {"auto_round:exllamav2", "gptq", PACKED, false},
    {"auto_round:tritonv2", "gptq", PACKED, false},
    {"auto_round:gptq", "gptq", PACKED, true},
    {"auto_round:gptq:exllamav2", "gptq", PACKED, true},
    {"auto_round:gptq:tritonv2", "gptq", PACKED, true},
    {"auto_round:awq", "awq", PACKED, false},
    {"auto_round:awq:gemm", "awq", PACKED, false},
    {"auto_round:llm_compressor", "compressed-tensors", FLOATS, false}, /* MXFP4, MXFP8, NVFP4 */
    {"auto_round:fp8", "fp8", FLOATS, false},
    {"auto_round:fp8_static", "fp8", FLOATS, false},
    {"auto_round:fake", "compressed-tensors", FAKE, false}, /* what codes would be decoded to */
};

static enum ctw_status read_packing(const struct ctw_json_node *q, const struct packing **out,
                                    struct ctw_err *err)
{
    const char *key = ctw_json_has(q, "packing_format") ? "packing_format" : "backend";
    const char *name = NULL, *data_type = NULL;
    enum ctw_status st = ctw_json_read_string(q, key, CTW_JSON_OPTIONAL, &name, err);
    if (st == CTW_OK)
        st = ctw_json_read_string(q, "data_type", CTW_JSON_OPTIONAL, &data_type, err);
    if (st != CTW_OK)
        return st;
    if (name == NULL && data_type != NULL && strcmp(data_type, "fp") == 0)
        name = "auto_round:fp8"; /* FP8 whose inputs are not quantised has none */
    if (name == NULL)
        return ctw_json_fail(q, err, CTW_EUNSUP,
                             "AutoRound without packing_format is not supported: nothing says how "
                             "the weights are stored; export it again with AutoRound's format "
                             "auto_gptq or llm_compressor");
    for (size_t i = 0; i < CTW_COUNT(packings) && *out == NULL; i++)
        if (strcasecmp(name, packings[i].name) == 0)
            *out = &packings[i];
    if (*out != NULL && (*out)->kind == PACKED && data_type != NULL &&
        strncmp(data_type, "int", 3) != 0)
        return ctw_json_fail(ctw_json_get(q, "data_type"), err, CTW_EUNSUP,
                             "\"%s\" in packing_format \"%s\" is not supported; expected int",
                             data_type, name);
    if (*out != NULL)
        return CTW_OK;
    char all[640] = "";
    for (size_t i = 0, at = 0; i < CTW_COUNT(packings) && at < sizeof(all); i++)
        at += (size_t)snprintf(all + at, sizeof(all) - at, "%s%s", i > 0 ? ", " : "",
                               packings[i].name);
    return ctw_json_fail(ctw_json_get(q, key), err, CTW_EUNSUP,
                         "\"%s\" is not supported; expected one of %s; export the model again "
                         "with AutoRound's format auto_gptq or llm_compressor",
                         name, all);
}

/* AutoRound rotates weights, and inputs at run time. */
static enum ctw_status check_rotation(const struct ctw_json_node *q, struct ctw_err *err)
{
    static const char *const keys[] = {"rotation_config", "spinquant_config"};
    for (size_t i = 0; i < CTW_COUNT(keys); i++) {
        const struct ctw_json_node *m = ctw_json_get(q, keys[i]);
        if (m != NULL && !ctw_json_is_null(m) &&
            !(ctw_json_type(m) == CTW_JSON_OBJECT && ctw_json_first(m) == NULL))
            return ctw_json_fail(m, err, CTW_EUNSUP,
                                 "inputs that are rotated at run time are not supported; quantise "
                                 "the model again without AutoRound's rotation");
    }
    return CTW_OK;
}

/* ---- FP8, MXFP4, MXFP8, NVFP4 ---- */

/* Reads data_type and group_size of float weights; members of *own whose key is absent stay
 * unchanged. */
struct floats {
    const char *data_type;
    int64_t bits, group; /* group: -1, a scale per output; 0, one of the matrix */
    int64_t block_rows;  /* of group_size [rows, columns], else 0 */
};

static enum ctw_status read_group(struct floats *f, const struct ctw_json_node *object,
                                  struct ctw_err *err)
{
    const struct ctw_json_node *node = ctw_json_get(object, "group_size");
    if (node == NULL || ctw_json_type(node) != CTW_JSON_ARRAY)
        return ctw_json_read_int(object, "group_size", CTW_JSON_OPTIONAL, -1, CTW_MAX_DIM,
                                 &f->group, err);
    if (ctw_json_count(node) != 2)
        return ctw_json_fail(node, err, CTW_EFORMAT,
                             "expected rows and columns, such as [128, 128]");
    const struct ctw_json_node *rows = ctw_json_first(node);
    enum ctw_status st = ctw_json_as_int(rows, 1, CTW_MAX_DIM, &f->block_rows, err);
    return st == CTW_OK ? ctw_json_as_int(ctw_json_next(rows), 1, CTW_MAX_DIM, &f->group, err) : st;
}

static enum ctw_status read_floats(struct floats *f, struct ctw_quant_args *args,
                                   const struct ctw_json_node *object, struct ctw_err *err)
{
    enum ctw_status st = ctw_json_read_int(object, "bits", CTW_JSON_OPTIONAL, 1, 64, &f->bits, err);
    if (st == CTW_OK)
        st = ctw_json_read_string(object, "data_type", CTW_JSON_OPTIONAL, &f->data_type, err);
    if (st == CTW_OK)
        st = read_group(f, object, err);
    if (st != CTW_OK)
        return st;
    const char *type = f->data_type != NULL ? f->data_type : "";
    bool mx = strncmp(type, "mx_fp", 5) == 0, nv = strncmp(type, "nv_fp", 5) == 0;
    bool fp = strncmp(type, "fp", 2) == 0;
    *args =
        (struct ctw_quant_args){.present = f->bits<16, .num_bits = (int)f->bits, .is_float = true,
                                                   .symmetric = true, .group_size = f->group> 0
                                               ? f->group
                                               : 0};
    if (!mx && !nv && !fp && f->bits < 16)
        return ctw_json_fail(object, err, CTW_EUNSUP,
                             "data_type \"%s\" is not supported in this packing_format; expected "
                             "mx_fp, nv_fp or fp",
                             type);
    args->strategy = nv              ? CTW_STRATEGY_TENSOR_GROUP
                     : f->group > 0  ? CTW_STRATEGY_GROUP
                     : f->group == 0 ? CTW_STRATEGY_TENSOR
                                     : CTW_STRATEGY_CHANNEL;
    if (f->block_rows > 0) {
        args->strategy = CTW_STRATEGY_BLOCK;
        args->block_rows = f->block_rows;
        args->block_cols = f->group;
        args->group_size = 0;
    }
    return CTW_OK;
}

/* ---- modules ---- */

/* Does a member show that the module's values are floats, while other modules have packed integers?
 * Only FP8 has blocks. */
static bool says_floats(const struct ctw_json_node *object)
{
    const struct ctw_json_node *group = ctw_json_get(object, "group_size");
    const struct ctw_json_node *member = ctw_json_get(object, "data_type");
    const char *type = member != NULL ? ctw_json_string(member) : NULL;
    return (group != NULL && ctw_json_type(group) == CTW_JSON_ARRAY) ||
           (type != NULL && strstr(type, "fp") != NULL);
}

/* Modules with arguments of their own, by name or as a regular expression. */
static enum ctw_status read_extra(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                  enum kind kind, const struct ctw_quant_args *args,
                                  const struct floats *floats, const char *activations,
                                  struct ctw_err *err)
{
    const struct ctw_json_node *extra = NULL;
    enum ctw_status st =
        ctw_json_read_node(q, "extra_config", CTW_JSON_OPTIONAL, CTW_JSON_OBJECT, &extra, err);
    if (st != CTW_OK || extra == NULL)
        return st;
    if (ctw_json_count(extra) > MAX_MODULES)
        return ctw_json_fail(extra, err, CTW_EUNSUP, "more than %d members", MAX_MODULES);
    const struct ctw_json_node *m = ctw_json_first(extra);
    for (; m != NULL && st == CTW_OK; m = ctw_json_next(m)) {
        const struct ctw_pattern name = {.text = ctw_json_key(m), .part = true};
        struct ctw_quant_args own = *args;
        struct floats f = *floats;
        st = ctw_json_expect(m, CTW_JSON_OBJECT, err);
        bool has_floats = st == CTW_OK && (kind != PACKED || says_floats(m));
        if (has_floats && kind == PACKED)
            f = (struct floats){.data_type = "fp", .bits = 8, .group = -1};
        if (st == CTW_OK)
            st = has_floats ? read_floats(&f, &own, m, err)
                            : ctw_quant_read_packed(&own, m, false, err);
        if (st != CTW_OK)
            return st;
        st = strpbrk(name.text, "*+?[(|^$\\") != NULL
                 ? ctw_quant_add_rule(out, m, name.text, &own, err)
                 : ctw_quant_add_group(out, name.text, &name, &own, activations, err);
    }
    return st;
}

/* Writes the declared quantisation of activations, as "float8 token dynamic"; "": none. */
static enum ctw_status read_activations(const struct ctw_json_node *q, char *text, size_t bytes,
                                        struct ctw_err *err)
{
    int64_t bits = 16, group = -1;
    bool dynamic = true;
    const char *type = NULL;
    char unit[32] = "token";
    text[0] = '\0';
    enum ctw_status st = ctw_json_read_int(q, "act_bits", CTW_JSON_OPTIONAL, 1, 64, &bits, err);
    if (st == CTW_OK && bits < 16)
        st = ctw_json_read_string(q, "act_data_type", CTW_JSON_OPTIONAL, &type, err);
    if (st == CTW_OK && bits < 16)
        st =
            ctw_json_read_int(q, "act_group_size", CTW_JSON_OPTIONAL, -1, CTW_MAX_DIM, &group, err);
    if (st == CTW_OK && bits < 16)
        st = ctw_json_read_bool(q, "act_dynamic", CTW_JSON_OPTIONAL, &dynamic, err);
    if (st != CTW_OK || bits >= 16)
        return st;
    if (group >= 0)
        (void)snprintf(unit, sizeof(unit), group > 0 ? "group %" PRId64 : "tensor", group);
    (void)snprintf(text, bytes, "%s%" PRId64 " %s %s",
                   type != NULL && strstr(type, "int") != NULL ? "int" : "float", bits, unit,
                   dynamic ? "dynamic" : "static");
    return CTW_OK;
}

enum ctw_status ctw_quant_read_auto_round(struct ctw_quant_config *out,
                                          const struct ctw_json_node *q, struct ctw_err *err)
{
    const struct packing *packing = NULL;
    struct ctw_quant_args args = {
        .num_bits = 4, .symmetric = true, .strategy = CTW_STRATEGY_GROUP, .group_size = 128};
    struct floats floats = {.bits = 8, .group = -1};
    char activations[64];
    enum ctw_status st = read_packing(q, &packing, err);
    if (st == CTW_OK)
        st = check_rotation(q, err);
    if (st == CTW_OK)
        st = read_activations(q, activations, sizeof(activations), err);
    if (st != CTW_OK)
        return st;
    out->names = ctw_part_names_find(packing->parts);
    if (packing->kind == FAKE)
        return CTW_OK;
    args.zero_less_one = packing->zero_less_one;
    st = packing->kind == PACKED ? ctw_quant_read_packed(&args, q, false, err)
                                 : read_floats(&floats, &args, q, err);
    if (st == CTW_OK && strcmp(packing->parts, "awq") == 0 && args.num_bits != 4)
        return ctw_json_fail(ctw_json_get(q, "bits"), err, CTW_EUNSUP,
                             "AWQ of %d bits is not supported; supported: 4", args.num_bits);
    if (st == CTW_OK)
        st = ctw_quant_read_list(out, q, "modules_to_not_convert", "ignored_layers", err);
    if (st == CTW_OK)
        st = read_extra(out, q, packing->kind, &args, &floats, activations, err);
    return st == CTW_OK ? ctw_quant_add_group(out, "auto-round", NULL, &args, activations, err)
                        : st;
}
