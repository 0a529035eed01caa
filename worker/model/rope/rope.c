#include "worker/model/rope/rope.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "worker/model/rope/rope_internal.h"

/* ---- the type ---- */

/* The meaning of a RoPE type's name in this family's class. *out is CTW_ROPE_N_TYPES if the name is
 * unknown. */
static void find_type(enum ctw_rope_type *out, const struct ctw_rope_rules *rules,
                      const struct ctw_json_node *node, const char *name)
{
    static const char *const names[CTW_ROPE_N_TYPES] = {
        [CTW_ROPE_DEFAULT] = "default",
        [CTW_ROPE_LINEAR] = "linear",
        [CTW_ROPE_DYNAMIC] = "dynamic",
        [CTW_ROPE_LLAMA3] = "llama3",
        [CTW_ROPE_YARN] = "yarn",
        [CTW_ROPE_LONGROPE] = "longrope",
        [CTW_ROPE_PROPORTIONAL] = "proportional",
    };
    bool yarn = strcmp(name, "yarn") == 0;
    bool old_longrope = rules->old_longrope &&
                        (strcmp(name, "su") == 0 || (yarn && ctw_json_has(node, "short_factor")));
    *out = CTW_ROPE_N_TYPES;
    if (old_longrope)
        *out = CTW_ROPE_LONGROPE;
    else if (rules->mrope && strcmp(name, "mrope") == 0)
        *out = CTW_ROPE_DEFAULT;
    else if (rules->yarn != NULL && strcmp(name, rules->yarn) == 0)
        *out = CTW_ROPE_YARN;
    for (int i = 0; i < CTW_ROPE_N_TYPES && *out == CTW_ROPE_N_TYPES; i++)
        if (strcmp(name, names[i]) == 0)
            *out = (enum ctw_rope_type)i;
}

/* Two names of one type may stand side by side: transformers 5 adds rope_type "default" to Qwen 2
 * VL's type "mrope", which it keeps. */
static enum ctw_status read_type(struct ctw_rope_params *p, const struct ctw_json_node *node,
                                 struct ctw_err *err)
{
    const char *type = NULL, *old = NULL;
    enum ctw_rope_type older;
    enum ctw_status st = ctw_json_read_string(node, "rope_type", CTW_JSON_OPTIONAL, &type, err);
    if (st == CTW_OK)
        st = ctw_json_read_string(node, "type", CTW_JSON_OPTIONAL, &old, err);
    if (st != CTW_OK)
        return st;
    const char *name = type != NULL ? type : old != NULL ? old : "default";
    find_type(&p->type, &p->rules, node, name);
    find_type(&older, &p->rules, node, old != NULL ? old : name);
    if (old != NULL && strcmp(name, old) != 0 && p->type != older)
        return ctw_json_fail(node, err, CTW_EFORMAT,
                             "rope_type \"%s\" and type \"%s\" differ, and transformers' "
                             "versions differ in which they use: remove one",
                             type, old);
    if (p->type != CTW_ROPE_N_TYPES)
        return CTW_OK;
    return ctw_json_fail(node, err, CTW_EUNSUP,
                         "RoPE type \"%s\" is not supported; supported: default, linear, dynamic, "
                         "llama3, yarn, longrope, proportional",
                         name);
}

/* transformers 5 has one object per layer type in families that have several RoPEs. */
static enum ctw_status check_members(const struct ctw_json_node *node, struct ctw_err *err)
{
    for (const struct ctw_json_node *m = ctw_json_first(node); m != NULL; m = ctw_json_next(m))
        if (ctw_json_type(m) == CTW_JSON_OBJECT)
            return ctw_json_fail(m, err, CTW_EUNSUP,
                                 "separate RoPE parameters per layer type are not supported for "
                                 "this family");
    return CTW_OK;
}

/* ---- the parameters of all types ---- */

static enum ctw_status read_partial(struct ctw_rope_params *p, const struct ctw_rope_place *at,
                                    struct ctw_err *err)
{
    const char *key = ctw_rope_partial_key(&p->rules);
    bool parts = p->rules.partial_key != NULL || p->type == CTW_ROPE_PROPORTIONAL;
    enum ctw_status st = CTW_OK;
    p->partial_factor = p->rules.partial != 0 ? p->rules.partial : 1;
    p->rot_dim = (int)p->rules.rotated;
    if (p->rot_dim != 0)
        return p->rot_dim % 2 == 0 ? CTW_OK
                                   : ctw_json_fail(at->root, err, CTW_EUNSUP,
                                                   "RoPE rotates %d elements of each head, "
                                                   "expected an even number",
                                                   p->rot_dim);
    if (parts || p->type != CTW_ROPE_DEFAULT)
        st = ctw_rope_read_either(&p->partial_factor, at, "partial_rotary_factor", key, err);
    if (st == CTW_OK && !parts && p->partial_factor != 1.0)
        st = ctw_json_fail(at->root, err, CTW_EUNSUP,
                           "%s: found %g, expected 1: rotating part of each head is not supported "
                           "for this family",
                           key, p->partial_factor);
    if (st == CTW_OK && (p->partial_factor <= 0 || p->partial_factor > 1))
        st = ctw_json_fail(at->root, err, CTW_EFORMAT,
                           "%s: found %g, expected more than 0 and at most 1", key,
                           p->partial_factor);
    bool zeros = p->type == CTW_ROPE_PROPORTIONAL; /* frequencies of 0 beyond the part */
    p->rot_dim = (int)((double)p->rules.head * (zeros ? 1 : p->partial_factor));
    if (st == CTW_OK && (p->rot_dim < 2 || p->rot_dim % 2 != 0))
        st = ctw_json_fail(at->root, err, CTW_EUNSUP,
                           "%s: %g of %" PRId64 " elements is not an even number of elements", key,
                           p->partial_factor, p->rules.head);
    return st;
}

static enum ctw_status read_place(struct ctw_rope_params *out, const struct ctw_rope_place *at,
                                  const struct ctw_rope_rules *rules, struct ctw_err *err)
{
    const struct ctw_json_node *node = at->object;
    *out =
        (struct ctw_rope_params){.rules = *rules,
                                 .type = CTW_ROPE_DEFAULT,
                                 .theta = rules->own_theta != 0 ? rules->own_theta : rules->theta,
                                 .factor = 1,
                                 .original_length = (double)at->max_length,
                                 .attention_factor = 1,
                                 .long_attention_factor = 1};
    enum ctw_status st = CTW_OK;
    if (node != NULL)
        st = read_type(out, node, err);
    if (st == CTW_OK && node != NULL)
        st = check_members(node, err);
    if (st == CTW_OK && rules->own_theta == 0 && rules->theta_at_top)
        st = ctw_json_read_double(at->root, ctw_rope_theta_key(rules), CTW_JSON_OPTIONAL,
                                  &out->theta, err);
    else if (st == CTW_OK && rules->own_theta == 0)
        st = ctw_rope_read_either(&out->theta, at, "rope_theta", ctw_rope_theta_key(rules), err);
    if (st == CTW_OK)
        st = ctw_rope_positive(at->root, ctw_rope_theta_key(rules), out->theta, 1, err);
    if (st == CTW_OK)
        st = read_partial(out, at, err);
    if (st != CTW_OK || out->type == CTW_ROPE_DEFAULT)
        return st;
    return ctw_rope_read_type(out, at, err);
}

/* ---- the place of the parameters ---- */

bool ctw_rope_is_by_layer_type(const struct ctw_json_node *object, const char *layer_type)
{
    if (ctw_json_get(object, layer_type) != NULL)
        return true;
    for (const struct ctw_json_node *m = ctw_json_first(object); m != NULL; m = ctw_json_next(m))
        if (ctw_json_type(m) == CTW_JSON_OBJECT)
            return true;
    return false;
}

/* The RoPE's parameters in root's object `name`; at->object NULL: none there. */
static enum ctw_status find_place(struct ctw_rope_place *at, const struct ctw_json_node *root,
                                  const char *name, const struct ctw_rope_rules *rules,
                                  int64_t max_length, struct ctw_err *err)
{
    const struct ctw_json_node *object = NULL;
    *at = (struct ctw_rope_place){
        .root = root, .max_length = max_length, .lists = rules->lists, .layer = rules->layer};
    enum ctw_status st =
        ctw_json_read_node(root, name, CTW_JSON_OPTIONAL, CTW_JSON_OBJECT, &object, err);
    if (st != CTW_OK || object == NULL || ctw_json_count(object) == 0)
        return st;
    if (rules->layer_type != NULL && ctw_rope_is_by_layer_type(object, rules->layer_type)) {
        at->own = true;
        return ctw_json_read_node(object, rules->layer_type, CTW_JSON_OPTIONAL, CTW_JSON_OBJECT,
                                  &at->object, err);
    }
    if (rules->layer_type != NULL && strcmp(name, "rope_parameters") == 0)
        return ctw_json_fail(object, err, CTW_EFORMAT,
                             "has no object for \"%s\"; expected one per layer type, as "
                             "transformers writes it for this family",
                             rules->layer_type);
    if (!rules->unscaled)
        at->object = object;
    return CTW_OK;
}

static bool same_numbers(const struct ctw_json_node *a, const struct ctw_json_node *b)
{
    a = a != NULL ? ctw_json_first(a) : NULL;
    b = b != NULL ? ctw_json_first(b) : NULL;
    for (; a != NULL && b != NULL; a = ctw_json_next(a), b = ctw_json_next(b)) {
        double x = 0, y = 0;
        if (ctw_json_as_double(a, &x, NULL) != CTW_OK ||
            ctw_json_as_double(b, &y, NULL) != CTW_OK || x != y)
            return false;
    }
    return a == NULL && b == NULL;
}

static bool equal(const struct ctw_rope_params *a, const struct ctw_rope_params *b)
{
    return a->type == b->type && a->theta == b->theta && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->original_length == b->original_length && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow && a->attention_factor == b->attention_factor &&
           a->long_attention_factor == b->long_attention_factor && a->truncate == b->truncate &&
           a->partial_factor == b->partial_factor &&
           same_numbers(a->short_factor, b->short_factor) &&
           same_numbers(a->long_factor, b->long_factor);
}

/* transformers' own parameters for a file that has none. */
static enum ctw_status read_absent(struct ctw_rope_params *out, struct ctw_rope_place at,
                                   const struct ctw_rope_rules *rules, struct ctw_err *err)
{
    struct ctw_json *doc;
    size_t bytes = strlen(rules->absent);
    enum ctw_status st = ctw_json_parse(&doc, "transformers' default of rope_parameters",
                                        rules->absent, bytes, bytes, err);
    if (st != CTW_OK)
        return st;
    at.object = ctw_json_root(doc);
    at.own = true;
    st = read_place(out, &at, rules, err);
    ctw_json_close(doc);
    return st;
}

enum ctw_status ctw_rope_read(struct ctw_rope_params *out, const struct ctw_json_node *root,
                              const struct ctw_rope_rules *rules, int64_t max_length,
                              struct ctw_err *err)
{
    /* The names of transformers 4 and 5. */
    struct ctw_rope_place old, now;
    struct ctw_rope_params other;
    enum ctw_status st = find_place(&old, root, "rope_scaling", rules, max_length, err);
    if (st == CTW_OK)
        st = find_place(&now, root, "rope_parameters", rules, max_length, err);
    if (st != CTW_OK)
        return st;
    const struct ctw_rope_place *at = old.object != NULL ? &old : &now;
    if (at->object == NULL && rules->absent != NULL && !ctw_json_has(root, "rope_scaling") &&
        !ctw_json_has(root, "rope_parameters"))
        return read_absent(out, now, rules, err);
    st = read_place(out, at, rules, err);
    if (st == CTW_OK && old.object != NULL && now.object != NULL) {
        st = read_place(&other, &now, rules, err);
        if (st == CTW_OK && !equal(out, &other))
            st = ctw_json_fail(old.object, err, CTW_EFORMAT,
                               "found in addition to rope_parameters, and the two differ; "
                               "transformers' versions differ in which they use: remove one");
    }
    return st == CTW_OK && out->type == CTW_ROPE_YARN ? ctw_rope_warn_yarn(out, at, err) : st;
}
