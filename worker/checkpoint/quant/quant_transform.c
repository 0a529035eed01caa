#include "worker/checkpoint/quant/quant_transform.h"

#include <string.h>

#include "base/mem.h"
#include "worker/checkpoint/quant/quant_args.h"

enum { MAX_TRANSFORMS = 64, MAX_USES = 256, MAX_SIZE = 1 << 20 };

/* *online false: the transform is part of the weights. */
static enum ctw_status read_location(struct ctw_transform_use *use,
                                     const struct ctw_json_node *node, bool *online,
                                     struct ctw_err *err)
{
    static const char *const names[] = {"input", "output", "q_attn", "k_cache"};
    enum ctw_status st =
        ctw_json_read_string(node, "location", CTW_JSON_REQUIRED, &use->location, err);
    if (st != CTW_OK)
        return st;
    *online =
        strcmp(use->location, "weight_input") != 0 && strcmp(use->location, "weight_output") != 0;
    for (int i = 0; i < 4; i++)
        if (strcmp(use->location, names[i]) == 0) {
            use->place = (enum ctw_transform_place)i;
            return CTW_OK;
        }
    return *online ? ctw_json_fail(ctw_json_get(node, "location"), err, CTW_EUNSUP,
                                   "\"%s\" is not supported; supported: input, output, q_attn, "
                                   "k_cache, weight_input, weight_output",
                                   use->location)
                   : CTW_OK;
}

static enum ctw_status read_use(struct ctw_transform *t, const struct ctw_json_node *node,
                                struct ctw_err *err)
{
    static const char *const keys[] = {"targets", "location", "inverse", "ignore"};
    struct ctw_transform_use use = {.place = CTW_TRANSFORM_INPUT};
    bool online = false;
    enum ctw_status st = ctw_json_expect(node, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = ctw_quant_known_keys(node, keys, CTW_COUNT(keys), err);
    if (st == CTW_OK)
        st = read_location(&use, node, &online, err);
    if (st != CTW_OK || !online)
        return st;
    struct ctw_transform_use *out = &t->uses[t->n_uses++];
    *out = use;
    st = ctw_json_read_bool(node, "inverse", CTW_JSON_OPTIONAL, &out->inverse, err);
    if (st == CTW_OK)
        st = ctw_patterns_read(&out->targets, ctw_json_get(node, "targets"), err);
    return st == CTW_OK ? ctw_patterns_read(&out->ignore, ctw_json_get(node, "ignore"), err) : st;
}

static enum ctw_status read_type(struct ctw_transform *t, const struct ctw_json_node *node,
                                 struct ctw_err *err)
{
    static const char *const names[] = {"hadamard", "random-hadamard", "random-matrix"};
    const char *type = NULL;
    enum ctw_status st = ctw_json_read_string(node, "type", CTW_JSON_REQUIRED, &type, err);
    if (st != CTW_OK)
        return st;
    for (int i = 0; i < 3; i++)
        if (strcmp(type, names[i]) == 0) {
            t->type = (enum ctw_transform_type)i;
            return CTW_OK;
        }
    return ctw_json_fail(ctw_json_get(node, "type"), err, CTW_EUNSUP,
                         "\"%s\" is not supported; supported: hadamard, random-hadamard, "
                         "random-matrix",
                         type);
}

static enum ctw_status read_one(struct ctw_transform *t, const struct ctw_json_node *node,
                                struct ctw_err *err)
{
    static const char *const keys[] = {"type",          "apply",    "randomize",
                                       "requires_grad", "head_dim", "precision"};
    const struct ctw_json_node *apply = NULL;
    t->name = ctw_json_key(node);
    enum ctw_status st = ctw_json_expect(node, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = ctw_quant_known_keys(node, keys, CTW_COUNT(keys), err);
    if (st == CTW_OK)
        st = read_type(t, node, err);
    if (st == CTW_OK)
        st = ctw_json_read_bool(node, "randomize", CTW_JSON_OPTIONAL, &t->permuted, err);
    if (st == CTW_OK)
        st = ctw_json_read_int(node, "head_dim", CTW_JSON_OPTIONAL, 1, MAX_SIZE, &t->head_dim, err);
    if (st == CTW_OK)
        st = ctw_json_read_node(node, "apply", CTW_JSON_OPTIONAL, CTW_JSON_ARRAY, &apply, err);
    if (st != CTW_OK || apply == NULL)
        return st;
    if (ctw_json_count(apply) > MAX_USES)
        return ctw_json_fail(apply, err, CTW_EUNSUP, "more than %d entries", MAX_USES);
    t->uses = ctw_calloc((size_t)ctw_json_count(apply), sizeof(*t->uses));
    if (t->uses == NULL && ctw_json_count(apply) > 0)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for transform_config");
    for (const struct ctw_json_node *a = ctw_json_first(apply); a != NULL && st == CTW_OK;
         a = ctw_json_next(a))
        st = read_use(t, a, err);
    return st;
}

enum ctw_status ctw_transforms_read(struct ctw_transform **out, int64_t *n,
                                    const struct ctw_json_node *node, struct ctw_err *err)
{
    const struct ctw_json_node *groups = NULL;
    *out = NULL;
    *n = 0;
    if (node == NULL || ctw_json_is_null(node))
        return CTW_OK;
    enum ctw_status st = ctw_json_expect(node, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = ctw_json_read_node(node, "config_groups", CTW_JSON_OPTIONAL, CTW_JSON_OBJECT, &groups,
                                err);
    if (st != CTW_OK || groups == NULL || ctw_json_count(groups) == 0)
        return st;
    if (ctw_json_count(groups) > MAX_TRANSFORMS)
        return ctw_json_fail(groups, err, CTW_EUNSUP, "more than %d transforms", MAX_TRANSFORMS);
    *out = ctw_calloc((size_t)ctw_json_count(groups), sizeof(**out));
    if (*out == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for transform_config");
    for (const struct ctw_json_node *g = ctw_json_first(groups); g != NULL && st == CTW_OK;
         g = ctw_json_next(g))
        st = read_one(&(*out)[(*n)++], g, err);
    return st;
}

void ctw_transforms_close(struct ctw_transform *transforms, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < transforms[i].n_uses; j++) {
            ctw_patterns_close(&transforms[i].uses[j].targets);
            ctw_patterns_close(&transforms[i].uses[j].ignore);
        }
        ctw_free(transforms[i].uses);
    }
    ctw_free(transforms);
}
