/* Reads one QuantizationArgs object of a scheme, for weights or for activations. */
#include "worker/checkpoint/quant/quant_args.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

/* The members as stored, for weights or activations. */
struct raw_args {
    const char *type, *strategy, *actorder, *scale_dtype;
    int64_t num_bits, group_size, block[2];
    bool symmetric, dynamic, dynamic_local;
};

enum ctw_status ctw_quant_known_keys(const struct ctw_json_node *object, const char *const *keys,
                                     size_t n, struct ctw_err *err)
{
    for (const struct ctw_json_node *m = ctw_json_first(object); m != NULL; m = ctw_json_next(m)) {
        size_t i = 0;
        while (i < n && strcmp(ctw_json_key(m), keys[i]) != 0)
            i++;
        if (i == n && !ctw_json_is_null(m))
            return ctw_json_fail(m, err, CTW_EUNSUP,
                                 "unknown key of a quantisation scheme, which might change the "
                                 "weights; a newer version of ctworker may support it");
    }
    return CTW_OK;
}

/* A member that may be a bool or a string. */
static enum ctw_status read_dynamic(struct raw_args *a, const struct ctw_json_node *node,
                                    struct ctw_err *err)
{
    const struct ctw_json_node *dynamic = ctw_json_get(node, "dynamic");
    const char *word = dynamic != NULL ? ctw_json_string(dynamic) : NULL;
    if (word == NULL)
        return ctw_json_read_bool(node, "dynamic", CTW_JSON_OPTIONAL, &a->dynamic, err);
    if (strcasecmp(word, "local") != 0)
        return ctw_json_fail(dynamic, err, CTW_EFORMAT, "expected true, false or \"local\"");
    a->dynamic_local = true;
    return CTW_OK;
}

static enum ctw_status read_actorder(struct raw_args *a, const struct ctw_json_node *node,
                                     struct ctw_err *err)
{
    static const char *const words[] = {"group", "weight", "dynamic", "static"};
    const struct ctw_json_node *actorder = ctw_json_get(node, "actorder");
    if (actorder != NULL && ctw_json_type(actorder) == CTW_JSON_BOOL) {
        bool on = false;
        enum ctw_status st = ctw_json_as_bool(actorder, &on, err);
        a->actorder = on ? "group" : NULL;
        return st;
    }
    enum ctw_status st =
        ctw_json_read_string(node, "actorder", CTW_JSON_OPTIONAL, &a->actorder, err);
    if (st != CTW_OK || a->actorder == NULL)
        return st;
    for (size_t i = 0; i < CTW_COUNT(words); i++)
        if (strcasecmp(a->actorder, words[i]) == 0) {
            a->actorder = i % 2 == 0 ? "group" : "weight"; /* dynamic and static: older names */
            return CTW_OK;
        }
    return ctw_json_fail(actorder, err, CTW_EUNSUP,
                         "\"%s\" is not supported; supported: group, weight", a->actorder);
}

/* [128, 128], or in older files "128x128". */
static enum ctw_status read_block(struct raw_args *a, const struct ctw_json_node *node,
                                  struct ctw_err *err)
{
    const struct ctw_json_node *block = ctw_json_get(node, "block_structure");
    if (block == NULL || ctw_json_is_null(block))
        return CTW_OK;
    const char *text = ctw_json_string(block);
    if (text != NULL) {
        int at = 0;
        if (sscanf(text, "%9" SCNd64 "x%9" SCNd64 "%n", &a->block[0], &a->block[1], &at) == 2 &&
            text[at] == '\0' && a->block[0] > 0 && a->block[1] > 0)
            return CTW_OK;
        return ctw_json_fail(block, err, CTW_EFORMAT,
                             "expected rows and columns, such as [128, 128] or \"128x128\"");
    }
    enum ctw_status st = ctw_json_expect(block, CTW_JSON_ARRAY, err);
    if (st == CTW_OK && ctw_json_count(block) != 2)
        return ctw_json_fail(block, err, CTW_EFORMAT,
                             "expected rows and columns, such as [128, 128] or \"128x128\"");
    const struct ctw_json_node *item = ctw_json_first(block);
    for (int i = 0; i < 2 && st == CTW_OK; i++, item = ctw_json_next(item))
        st = ctw_json_as_int(item, 1, CTW_MAX_DIM, &a->block[i], err);
    return st;
}

static enum ctw_status read_raw(struct raw_args *a, const struct ctw_json_node *node,
                                struct ctw_err *err)
{
    static const char *const keys[] = {
        "num_bits", "type",     "symmetric",   "group_size", "strategy", "block_structure",
        "dynamic",  "actorder", "scale_dtype", "zp_dtype",   "observer", "observer_kwargs"};
    *a = (struct raw_args){.num_bits = 8, .type = "int", .symmetric = true};
    enum ctw_status st = ctw_json_expect(node, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = ctw_quant_known_keys(node, keys, CTW_COUNT(keys), err);
    if (st == CTW_OK)
        st = ctw_json_read_int(node, "num_bits", CTW_JSON_OPTIONAL, 1, 64, &a->num_bits, err);
    if (st == CTW_OK)
        st = ctw_json_read_string(node, "type", CTW_JSON_OPTIONAL, &a->type, err);
    if (st == CTW_OK)
        st = ctw_json_read_bool(node, "symmetric", CTW_JSON_OPTIONAL, &a->symmetric, err);
    if (st == CTW_OK)
        st = ctw_json_read_int(node, "group_size", CTW_JSON_OPTIONAL, -1, CTW_MAX_DIM,
                               &a->group_size, err);
    if (st == CTW_OK)
        st = ctw_json_read_string(node, "strategy", CTW_JSON_OPTIONAL, &a->strategy, err);
    if (st == CTW_OK)
        st = read_dynamic(a, node, err);
    if (st == CTW_OK)
        st = read_block(a, node, err);
    if (st == CTW_OK)
        st = read_actorder(a, node, err);
    if (st == CTW_OK)
        st = ctw_json_read_string(node, "scale_dtype", CTW_JSON_OPTIONAL, &a->scale_dtype, err);
    if (st != CTW_OK)
        return st;
    if (strcasecmp(a->type, "int") != 0 && strcasecmp(a->type, "float") != 0)
        return ctw_json_fail(ctw_json_get(node, "type"), err, CTW_EUNSUP,
                             "\"%s\" is not supported; expected int or float", a->type);
    if (a->strategy == NULL)
        a->strategy = a->group_size > 0 ? "group" : a->group_size < 0 ? "channel" : "tensor";
    return CTW_OK;
}

enum ctw_status ctw_quant_read_weights(struct ctw_quant_group *g, const struct ctw_json_node *node,
                                       struct ctw_err *err)
{
    static const struct {
        const char *name;
        enum ctw_strategy strategy;
    } strategies[] = {
        {"tensor", CTW_STRATEGY_TENSOR},
        {"channel", CTW_STRATEGY_CHANNEL},
        {"group", CTW_STRATEGY_GROUP},
        {"block", CTW_STRATEGY_BLOCK},
        {"tensor_group", CTW_STRATEGY_TENSOR_GROUP},
    };
    struct raw_args a;
    size_t s = 0;
    enum ctw_status st = read_raw(&a, node, err);
    if (st != CTW_OK)
        return st;
    while (s < CTW_COUNT(strategies) && strcasecmp(a.strategy, strategies[s].name) != 0)
        s++;
    if (s == CTW_COUNT(strategies))
        return ctw_json_fail(node, err, CTW_EUNSUP,
                             "strategy \"%s\" is not supported for weights; supported: tensor, "
                             "channel, group, block, tensor_group",
                             a.strategy);
    bool grouped = strategies[s].strategy == CTW_STRATEGY_GROUP ||
                   strategies[s].strategy == CTW_STRATEGY_TENSOR_GROUP;
    if (grouped != (a.group_size > 0))
        return ctw_json_fail(node, err, CTW_EFORMAT,
                             "strategy \"%s\" with group_size %" PRId64
                             ": group and tensor_group, and no others, need a group size above 0",
                             a.strategy, a.group_size);
    bool block = strategies[s].strategy == CTW_STRATEGY_BLOCK;
    if (block && a.block[0] == 0)
        return ctw_json_fail(node, err, CTW_EFORMAT,
                             "strategy \"block\" without block_structure; expected rows and "
                             "columns, such as [128, 128]");
    if (a.dynamic || a.dynamic_local)
        return ctw_json_fail(node, err, CTW_EFORMAT, "weights cannot be quantised dynamically");
    g->quantised = true;
    g->args.present = true;
    g->args.num_bits = (int)a.num_bits;
    g->args.is_float = strcasecmp(a.type, "float") == 0;
    g->args.symmetric = a.symmetric;
    g->args.strategy = strategies[s].strategy;
    g->args.group_size = a.group_size > 0 ? a.group_size : 0;
    g->args.block_rows = block ? a.block[0] : 0;
    g->args.block_cols = block ? a.block[1] : 0;
    g->args.actorder_group = a.actorder != NULL && strcmp(a.actorder, "group") == 0;
    return CTW_OK;
}

/* Too long a word stays recognisable as unknown. */
static void copy_word(char *out, size_t bytes, const char *word)
{
    snprintf(out, bytes, "%s", word);
    for (char *c = out; *c != '\0'; c++)
        *c = *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
}

enum ctw_status ctw_quant_read_activations(struct ctw_quant_activations *out,
                                           const struct ctw_json_node *node, struct ctw_err *err)
{
    static const char torch[] = "torch.";
    struct raw_args a;
    enum ctw_status st = read_raw(&a, node, err);
    if (st != CTW_OK)
        return st;
    const char *dtype = a.scale_dtype != NULL ? a.scale_dtype : "";
    dtype += strncmp(dtype, torch, sizeof(torch) - 1) == 0 ? sizeof(torch) - 1 : 0;
    *out = (struct ctw_quant_activations){.present = true,
                                          .is_float = strcasecmp(a.type, "float") == 0,
                                          .symmetric = a.symmetric,
                                          .num_bits = (int)a.num_bits,
                                          .group_size = a.group_size > 0 ? a.group_size : 0,
                                          .when = a.dynamic_local ? CTW_QUANT_LOCAL
                                                  : a.dynamic     ? CTW_QUANT_DYNAMIC
                                                                  : CTW_QUANT_STATIC};
    copy_word(out->strategy, sizeof(out->strategy), a.strategy);
    copy_word(out->scale_dtype, sizeof(out->scale_dtype), dtype);
    return CTW_OK;
}

void ctw_quant_activations_text(const struct ctw_quant_activations *a, char *text, size_t bytes)
{
    static const char *const when[] = {"static", "dynamic", "local"};
    char group[32] = "";
    text[0] = '\0';
    if (!a->present)
        return;
    if (a->group_size > 0)
        snprintf(group, sizeof(group), " %" PRId64, a->group_size);
    snprintf(text, bytes, "%s%d %s%s %s%s", a->is_float ? "float" : "int", a->num_bits, a->strategy,
             group, when[a->when], a->symmetric ? "" : " asymmetric");
}

enum ctw_status ctw_quant_read_kv(struct ctw_quant_config *qc, const struct ctw_json_node *node,
                                  struct ctw_err *err)
{
    enum ctw_status st = ctw_quant_read_activations(&qc->kv_scheme, node, err);
    if (st == CTW_OK)
        ctw_quant_activations_text(&qc->kv_scheme, qc->kv_cache, sizeof(qc->kv_cache));
    return st;
}

/* ---- what the methods share ---- */

enum ctw_status ctw_quant_add_group(struct ctw_quant_config *out, const char *name,
                                    const struct ctw_pattern *target,
                                    const struct ctw_quant_args *args, const char *activations,
                                    struct ctw_err *err)
{
    static const struct ctw_pattern all = {.text = "Module"};
    size_t n = (size_t)out->n_groups + 1;
    struct ctw_quant_group *groups = ctw_realloc(out->groups, n, sizeof(*groups));
    if (groups == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the quantisation groups");
    out->groups = groups;
    struct ctw_quant_group *g = &groups[out->n_groups++];
    *g = (struct ctw_quant_group){.name = name, .quantised = args->present, .args = *args};
    snprintf(g->activations, sizeof(g->activations), "%s", activations);
    return ctw_patterns_add(&g->targets, target != NULL ? target : &all, err);
}

enum ctw_status ctw_quant_read_list(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                    const char *key, const char *also, struct ctw_err *err)
{
    const char *name = ctw_json_has(q, key) ? key : also;
    return ctw_patterns_read_parts(&out->ignore, ctw_json_get(q, name), err);
}

enum ctw_status ctw_quant_expect_word(const struct ctw_json_node *q, const char *key,
                                      const char *const *known, const char **word,
                                      struct ctw_err *err)
{
    *word = NULL;
    enum ctw_status st = ctw_json_read_string(q, key, CTW_JSON_OPTIONAL, word, err);
    if (st != CTW_OK || *word == NULL)
        return st;
    for (int i = 0; known[i] != NULL; i++)
        if (strcasecmp(*word, known[i]) == 0) {
            *word = known[i];
            return CTW_OK;
        }
    char all[640] = "";
    for (int i = 0, at = 0; known[i] != NULL && at < (int)sizeof(all); i++)
        at += snprintf(all + at, sizeof(all) - (size_t)at, "%s%s",
                       i == 0                 ? ""
                       : known[i + 1] == NULL ? " or "
                                              : ", ",
                       known[i]);
    return ctw_json_fail(ctw_json_get(q, key), err, CTW_EUNSUP,
                         "\"%s\" is not supported; expected %s", *word, all);
}
