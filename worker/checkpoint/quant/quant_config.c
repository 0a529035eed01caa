#include "worker/checkpoint/quant/quant_config.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "worker/checkpoint/quant/foreign.h"
#include "worker/checkpoint/quant/quant_args.h"
#include "worker/checkpoint/quant/quant_native.h"

enum { MAX_GROUPS = 4096 };

#define SPARSE_REMEDY "compressed-tensors before 0.15, as newer versions cannot"

/* ---- groups ---- */

static enum ctw_status check_format(const char *format, const struct ctw_json_node *node,
                                    struct ctw_err *err)
{
    const struct ctw_part_names *names = ctw_part_names_find("compressed-tensors");
    char known[256] = "";
    size_t at = 0;
    for (int i = 0; ctw_formats[i] != NULL; i++) {
        if ((names->formats >> i & 1u) == 0 ||
            i == CTW_FORMAT_dense_transposed) /* known by the module's class alone */
            continue;
        if (ctw_format_is_called(ctw_formats[i], format))
            return CTW_OK;
        if (at < sizeof(known))
            at += (size_t)snprintf(known + at, sizeof(known) - at, "%s, ", ctw_formats[i]->name);
    }
    const char *remedy =
        strncmp(format, "sparse", 6) == 0 ? "decompress it with " SPARSE_REMEDY
        : strcmp(format, "marlin-24") == 0
            ? "quantise the original model again, as no library restores its weights"
            : "make a dense copy of the same weights with compressed-tensors' "
              "convert_checkpoint() and CompressedTensorsDequantizer";
    return ctw_json_fail(node, err, CTW_EUNSUP,
                         "format \"%s\" is not supported; supported: %snaive-quantized, and "
                         "mixed-precision of these; %s",
                         format, known, remedy);
}

static enum ctw_status read_group_format(struct ctw_quant_group *g, const char *global,
                                         const struct ctw_json_node *scheme, struct ctw_err *err)
{
    enum ctw_status st =
        ctw_json_read_string(scheme, "format", CTW_JSON_OPTIONAL, &g->args.format, err);
    if (st != CTW_OK)
        return st;
    if (g->args.format == NULL) {
        g->args.format = global;
        return CTW_OK;
    }
    return check_format(g->args.format, ctw_json_get(scheme, "format"), err);
}

static enum ctw_status read_scheme(struct ctw_quant_group *g, const char *global_format,
                                   const struct ctw_json_node *scheme, struct ctw_err *err)
{
    static const char *const keys[] = {"targets", "weights", "input_activations",
                                       "output_activations", "format"};
    char input[48] = "", output[48] = "";
    enum ctw_status st = ctw_json_expect(scheme, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = ctw_quant_known_keys(scheme, keys, CTW_COUNT(keys), err);
    if (st == CTW_OK)
        st = ctw_patterns_read(&g->targets, ctw_json_get(scheme, "targets"), err);
    if (st == CTW_OK && ctw_json_has(scheme, "weights"))
        st = ctw_quant_read_weights(g, ctw_json_get(scheme, "weights"), err);
    if (st == CTW_OK && ctw_json_has(scheme, "input_activations"))
        st = ctw_quant_read_activations(&g->input, ctw_json_get(scheme, "input_activations"), err);
    if (st == CTW_OK && ctw_json_has(scheme, "output_activations"))
        st =
            ctw_quant_read_activations(&g->output, ctw_json_get(scheme, "output_activations"), err);
    if (st == CTW_OK)
        st = read_group_format(g, global_format, scheme, err);
    ctw_quant_activations_text(&g->input, input, sizeof(input));
    ctw_quant_activations_text(&g->output, output, sizeof(output));
    snprintf(g->activations, sizeof(g->activations), "%s%s%s", input,
             output[0] != '\0' ? (input[0] != '\0' ? ", output " : "output ") : "", output);
    return st;
}

static enum ctw_status read_groups(struct ctw_quant_config *qc, const struct ctw_json_node *node,
                                   struct ctw_err *err)
{
    const struct ctw_json_node *groups = NULL;
    enum ctw_status st =
        ctw_json_read_node(node, "config_groups", CTW_JSON_OPTIONAL, CTW_JSON_OBJECT, &groups, err);
    if (st != CTW_OK || groups == NULL) /* for example a sparsity_config alone */
        return st;
    if (ctw_json_count(groups) > MAX_GROUPS)
        return ctw_json_fail(groups, err, CTW_EUNSUP, "more than %d groups", MAX_GROUPS);
    qc->groups = ctw_calloc((size_t)ctw_json_count(groups), sizeof(*qc->groups));
    if (qc->groups == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the quantisation groups");
    for (const struct ctw_json_node *m = ctw_json_first(groups); m != NULL; m = ctw_json_next(m)) {
        struct ctw_quant_group *g = &qc->groups[qc->n_groups++];
        g->name = ctw_json_key(m);
        if (ctw_json_type(m) == CTW_JSON_ARRAY) { /* {preset's name: targets} */
            if (!ctw_quant_preset(g->name, g))
                return ctw_json_fail(m, err, CTW_EUNSUP,
                                     "unknown preset scheme; a list of targets must be named after "
                                     "a preset, such as W4A16 or NVFP4");
            g->args.format = qc->format;
            st = ctw_patterns_read(&g->targets, m, err);
        } else {
            st = read_scheme(g, qc->format, m, err);
        }
        if (st != CTW_OK)
            return st;
    }
    return CTW_OK;
}

/* ---- the rest of the object ---- */

static enum ctw_status check_sparsity(const struct ctw_json_node *node, struct ctw_err *err)
{
    const char *format = NULL;
    if (node == NULL || ctw_json_count(node) == 0)
        return CTW_OK;
    enum ctw_status st = ctw_json_read_string(node, "format", CTW_JSON_OPTIONAL, &format, err);
    if (st == CTW_OK && format != NULL && strcmp(format, "dense") != 0)
        return ctw_json_fail(node, err, CTW_EUNSUP,
                             "sparse weights (format \"%s\") are not supported; decompress the "
                             "checkpoint with " SPARSE_REMEDY,
                             format);
    return st;
}

/* compressed-tensors 0.20: how many experts each layer kept when others were pruned (null: a dense
 * layer). Where the numbers are equal, they are the one in config.json. */
static enum ctw_status check_expert_sparsity(const struct ctw_json_node *config,
                                             struct ctw_err *err)
{
    const struct ctw_json_node *node = NULL, *list = NULL;
    const char *how = NULL;
    int64_t first = 0, n;
    enum ctw_status st = ctw_json_read_node(config, "moe_sparsity_config", CTW_JSON_OPTIONAL,
                                            CTW_JSON_OBJECT, &node, err);
    if (st != CTW_OK || node == NULL)
        return st;
    st = ctw_json_read_string(node, "method", CTW_JSON_REQUIRED, &how, err);
    if (st == CTW_OK)
        st = ctw_json_read_node(node, "num_experts", CTW_JSON_REQUIRED, CTW_JSON_ARRAY, &list, err);
    bool uniform = st == CTW_OK && strcmp(how, "prune") == 0;
    for (const struct ctw_json_node *e = st == CTW_OK ? ctw_json_first(list) : NULL;
         e != NULL && st == CTW_OK && uniform; e = ctw_json_next(e)) {
        if (ctw_json_is_null(e))
            continue;
        st = ctw_json_as_int(e, 1, INT64_MAX, &n, err);
        first = first == 0 ? n : first;
        uniform = n == first;
    }
    if (st != CTW_OK || uniform)
        return st;
    return ctw_json_fail(node, err, CTW_EUNSUP,
                         "experts pruned by method \"%s\" to numbers that differ from layer to "
                         "layer, or to constants, are not supported; prune all layers alike",
                         how);
}

/*
 * compressed-tensors of 2024 wrote "frozen" for compressed weights, too. The stored tensors show
 * whether they are compressed, and ctw_matrix_open() refuses weights that are not.
 */
static enum ctw_status read_status(struct ctw_quant_config *qc, const struct ctw_json_node *node,
                                   struct ctw_err *err)
{
    const char *status = NULL;
    enum ctw_status st =
        ctw_json_read_string(node, "quantization_status", CTW_JSON_OPTIONAL, &status, err);
    if (st != CTW_OK || status == NULL)
        return st;
    qc->frozen = strcmp(status, "frozen") == 0;
    if (qc->frozen || strcmp(status, "compressed") == 0)
        return CTW_OK;
    return ctw_json_fail(ctw_json_get(node, "quantization_status"), err, CTW_EUNSUP,
                         "\"%s\" is not supported: the weights are not compressed on disk; save "
                         "the checkpoint with save_compressed=True",
                         status);
}

/* The quantisation object, wherever the file has it; *out NULL: none. */
static enum ctw_status find_object(const struct ctw_json_node *root,
                                   const struct ctw_json_node **out,
                                   const struct ctw_json_node **sparsity, struct ctw_err *err)
{
    const struct ctw_json_node *node = NULL, *old = NULL, *mlx = ctw_json_get(root, "quantization");
    *out = *sparsity = NULL;
    if (mlx != NULL && ctw_quant_is_mlx(mlx)) { /* as in mlx-lm, whatever the other key says */
        *out = mlx;
        return CTW_OK;
    }
    enum ctw_status st = ctw_json_read_node(root, "quantization_config", CTW_JSON_OPTIONAL,
                                            CTW_JSON_OBJECT, &node, err);
    if (st == CTW_OK)
        st = ctw_json_read_node(root, "compression_config", CTW_JSON_OPTIONAL, CTW_JSON_OBJECT,
                                &old, err);
    if (st != CTW_OK)
        return st;
    if (node != NULL && old != NULL)
        return ctw_json_fail(old, err, CTW_EFORMAT,
                             "found in addition to quantization_config; expected only one of them");
    if (node != NULL) {
        *sparsity = ctw_json_get(node, "sparsity_config");
        /* Or nested one level deeper, which transformers unwraps. */
        st = ctw_json_read_node(node, "quantization_config", CTW_JSON_OPTIONAL, CTW_JSON_OBJECT,
                                out, err);
        *out = *out != NULL ? *out : node;
        return st;
    }
    if (old == NULL)
        return CTW_OK;
    /* compressed-tensors up to 0.6: nested one level deeper, or flat. */
    *sparsity = ctw_json_get(old, "sparsity_config");
    *out = ctw_json_has(old, "quantization_config") ? ctw_json_get(old, "quantization_config")
           : ctw_json_has(old, "config_groups")     ? old
                                                    : NULL;
    return CTW_OK;
}

/* compressed-tensors 0.13.0 wrote MXFP4's exponents 2 too small, which the tensors do not show. */
static void warn_of_version(const struct ctw_quant_config *qc, const struct ctw_json_node *node)
{
    const struct ctw_json_node *member = ctw_json_get(node, "version");
    const char *version = member != NULL ? ctw_json_string(member) : NULL;
    bool mxfp4 = false;
    for (int64_t i = 0; i < qc->n_groups; i++) {
        const struct ctw_quant_args *a = &qc->groups[i].args;
        mxfp4 |= a->present && a->is_float && a->num_bits == 4 && a->group_size == 32;
    }
    if (mxfp4 && version != NULL && strncmp(version, "0.13.0", 6) == 0)
        ctw_warn("quantization_config: MXFP4 weights written by compressed-tensors %s may be a "
                 "quarter of what they should be (its exponents were 2 too small); if scores are "
                 "bad, quantise the model again with a newer version",
                 version);
}

enum ctw_status ctw_quant_config_read(struct ctw_quant_config *out,
                                      const struct ctw_json_node *root, struct ctw_err *err)
{
    static const char method[] = "quant_method";
    const struct ctw_json_node *node, *sparsity;
    const char *method_name = "compressed-tensors"; /* also of dense and of older files */
    *out = (struct ctw_quant_config){.names = ctw_part_names_find(method_name)};
    enum ctw_status st = find_object(root, &node, &sparsity, err);
    if (st == CTW_OK)
        st = check_sparsity(sparsity, err);
    if (st == CTW_OK && node == NULL)
        st = ctw_foreign_check_root(root, err);
    if (st != CTW_OK || node == NULL)
        return st;
    out->present = true;
    st = ctw_json_expect(node, CTW_JSON_OBJECT, err);
    if (st != CTW_OK)
        return st;
    /* The older and the nested object may have no quant_method. */
    if (node == ctw_json_get(root, "quantization_config") ||
        node == ctw_json_get(root, "quantization") || ctw_json_has(node, method)) {
        const struct ctw_quant_method *native = ctw_quant_method_find(node);
        if (native != NULL)
            return ctw_quant_method_read(native, out, node, err);
        st = ctw_foreign_check(node, err);
    }
    if (st == CTW_OK)
        st = ctw_json_read_string(node, method, CTW_JSON_OPTIONAL, &method_name, err);
    if (st == CTW_OK)
        st = read_status(out, node, err);
    if (st == CTW_OK)
        st = check_expert_sparsity(node, err);
    if (st == CTW_OK)
        st = ctw_json_read_string(node, "format", CTW_JSON_OPTIONAL, &out->format, err);
    if (st != CTW_OK)
        return st;
    out->names = ctw_part_names_find(method_name);
    if (out->format != NULL &&
        (strcmp(out->format, "mixed-precision") == 0 || strcmp(out->format, "fakequant") == 0))
        out->format = NULL; /* no information: the groups and the tensors decide */
    else if (out->format != NULL)
        st = check_format(out->format, ctw_json_get(node, "format"), err);
    if (st == CTW_OK)
        st = ctw_transforms_read(&out->transforms, &out->n_transforms,
                                 ctw_json_get(node, "transform_config"), err);
    if (st == CTW_OK)
        st = read_groups(out, node, err);
    if (st == CTW_OK)
        st = ctw_patterns_read(&out->ignore, ctw_json_get(node, "ignore"), err);
    if (st == CTW_OK && ctw_json_has(node, "kv_cache_scheme"))
        st = ctw_quant_read_kv(out, ctw_json_get(node, "kv_cache_scheme"), err);
    if (st == CTW_OK)
        warn_of_version(out, node);
    return st;
}

/*
 * compressed-tensors' class ignores unknown members (extra="ignore"), but forbids them in a scheme
 * and in a scheme's arguments.
 */
enum ctw_status ctw_quant_config_list_unread(const struct ctw_json_node *root,
                                             struct ctw_unread *unread, struct ctw_err *err)
{
    static const char *const read[] = {
        "quant_method",    "format",          "quantization_status", "config_groups",      "ignore",
        "kv_cache_scheme", "sparsity_config", "transform_config",    "moe_sparsity_config"};
    const struct ctw_json_node *node, *sparsity;
    enum ctw_status st = find_object(root, &node, &sparsity, err);
    if (st != CTW_OK || node == NULL)
        return st;
    const struct ctw_quant_method *native = ctw_quant_method_find(node);
    if (native != NULL)
        return ctw_quant_method_list_unread(native, node, unread, err);
    for (const struct ctw_json_node *m = ctw_json_first(node); m != NULL && st == CTW_OK;
         m = ctw_json_next(m)) {
        size_t i = 0;
        while (i < CTW_COUNT(read) && strcmp(ctw_json_key(m), read[i]) != 0)
            i++;
        if (i == CTW_COUNT(read))
            st = ctw_unread_add(unread, m, err);
    }
    return st;
}

void ctw_quant_config_close(struct ctw_quant_config *qc)
{
    for (int64_t i = 0; i < qc->n_groups; i++)
        ctw_patterns_close(&qc->groups[i].targets);
    ctw_free(qc->groups);
    ctw_patterns_close(&qc->ignore);
    ctw_transforms_close(qc->transforms, qc->n_transforms);
    *qc = (struct ctw_quant_config){0};
}

/* The best match of any of the module's names. */
static enum ctw_status match_names(const struct ctw_pattern *p, const struct ctw_module *module,
                                   const char *class_name, enum ctw_match *out, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    *out = CTW_MATCH_NONE;
    for (int i = 0; i < module->n_names && st == CTW_OK; i++) {
        enum ctw_match match;
        st = ctw_pattern_match(p, module->names[i], class_name, &match, err);
        if (st == CTW_OK && match < *out)
            *out = match;
    }
    return st;
}

/*
 * Like compressed-tensors' match_targets(): among the matching targets, names take precedence over
 * expressions, and expressions over classes; among equal kinds the first in strcmp order. If two
 * groups have the same target, the later group wins (compressed-tensors' table is keyed by target).
 */
static enum ctw_status find_target(const struct ctw_quant_config *qc,
                                   const struct ctw_module *module, const char *class_name,
                                   const struct ctw_quant_group **out, struct ctw_err *err)
{
    enum ctw_match best = CTW_MATCH_NONE;
    const char *best_text = "";
    *out = NULL;
    for (int64_t i = 0; i < qc->n_groups; i++)
        for (int64_t j = 0; j < qc->groups[i].targets.n; j++) {
            const struct ctw_pattern *p = &qc->groups[i].targets.items[j];
            enum ctw_match match;
            enum ctw_status st = match_names(p, module, class_name, &match, err);
            if (st != CTW_OK)
                return st;
            if (match == CTW_MATCH_NONE || match > best ||
                (match == best && strcmp(p->text, best_text) > 0))
                continue;
            best = match;
            best_text = p->text;
            *out = &qc->groups[i];
            if (qc->in_order)
                return CTW_OK;
        }
    return CTW_OK;
}

enum ctw_status ctw_quant_config_find(const struct ctw_quant_config *qc,
                                      const struct ctw_module *module,
                                      const struct ctw_quant_group **out, struct ctw_err *err)
{
    enum ctw_match ignored = CTW_MATCH_NONE;
    enum ctw_status st = find_target(qc, module, module->class_name, out, err);
    if (st == CTW_OK && *out == NULL && module->other_class != NULL)
        st = find_target(qc, module, module->other_class, out, err);
    for (int64_t i = 0;
         i < qc->ignore.n && *out != NULL && ignored == CTW_MATCH_NONE && st == CTW_OK; i++)
        st = match_names(&qc->ignore.items[i], module, module->class_name, &ignored, err);
    const struct ctw_quant_group *g = *out;
    if (g != NULL &&
        (ignored != CTW_MATCH_NONE || !(g->quantised || g->input.present || g->output.present)))
        *out = NULL;
    return st;
}
