#include "worker/model/rope.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "kernels/math.h"

enum {
    USED_DEFAULT = 1,
    USED_LINEAR = 2,
    USED_DYNAMIC = 4,
    USED_LLAMA3 = 8,
    USED_YARN = 16,
    USED_SCALED = 30, /* all types but default */
    USED_ALL = 31,
    USED_PARTIAL = 32 /* families that rotate a part of each head, with any type */
};

static const struct {
    const char *name;
    unsigned used;
} types[] = {
    [CTW_ROPE_DEFAULT] = {"default", USED_DEFAULT}, [CTW_ROPE_LINEAR] = {"linear", USED_LINEAR},
    [CTW_ROPE_DYNAMIC] = {"dynamic", USED_DYNAMIC}, [CTW_ROPE_LLAMA3] = {"llama3", USED_LLAMA3},
    [CTW_ROPE_YARN] = {"yarn", USED_YARN},
};

/* Which types read a member in transformers' functions; other types ignore it, and so do we. */
static const struct {
    const char *name;
    unsigned used;
} members[] = {
    {"rope_type", USED_ALL},
    {"type", USED_ALL},
    {"rope_theta", USED_ALL},
    {"partial_rotary_factor", USED_SCALED | USED_PARTIAL}, /* scaled: must be 1 */
    {"factor", USED_SCALED},
    {"low_freq_factor", USED_LLAMA3},
    {"high_freq_factor", USED_LLAMA3},
    {"original_max_position_embeddings", USED_LLAMA3 | USED_YARN},
    {"attention_factor", USED_YARN},
    {"beta_fast", USED_YARN},
    {"beta_slow", USED_YARN},
    {"mscale", USED_YARN},
    {"mscale_all_dim", USED_YARN},
    {"truncate", USED_YARN},
};

static bool is_used(const char *key, unsigned used)
{
    for (size_t i = 0; i < CTW_COUNT(members); i++)
        if (strcmp(members[i].name, key) == 0)
            return (members[i].used & used) != 0;
    return false;
}

static enum ctw_status read_type(struct ctw_rope_params *p, const struct ctw_json_node *node,
                                 unsigned *used, struct ctw_err *err)
{
    const char *type = NULL, *old = NULL;
    enum ctw_status st = ctw_json_read_string(node, "rope_type", CTW_JSON_OPTIONAL, &type, err);
    if (st == CTW_OK)
        st = ctw_json_read_string(node, "type", CTW_JSON_OPTIONAL, &old, err);
    if (st != CTW_OK)
        return st;
    if (type != NULL && old != NULL && strcmp(type, old) != 0)
        return ctw_json_fail(node, err, CTW_EFORMAT,
                             "rope_type \"%s\" and type \"%s\" differ, and transformers' "
                             "versions differ in which they use: remove one",
                             type, old);
    type = type != NULL ? type : old != NULL ? old : "default";
    for (size_t i = 0; i < CTW_COUNT(types); i++)
        if (strcmp(type, types[i].name) == 0) {
            p->type = (enum ctw_rope_type)i;
            *used = types[i].used;
            return CTW_OK;
        }
    return ctw_json_fail(node, err, CTW_EUNSUP,
                         "RoPE type \"%s\" is not supported; supported: default, linear, dynamic, "
                         "llama3, yarn",
                         type);
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

/* Where a RoPE's parameters are. */
struct place {
    const struct ctw_json_node *root;
    const struct ctw_json_node *object; /* NULL: only at the top level */
    bool own; /* the object is one layer type's, and root's keys are only defaults for it */
};

/* Reads a number that may be in the RoPE object or at the top level (transformers 4), there as
 * top_key. If it is in both, the two must be equal. */
static enum ctw_status read_either(double *out, const struct place *at, const char *key,
                                   const char *top_key, struct ctw_err *err)
{
    double top = NAN, inner = NAN;
    enum ctw_status st = ctw_json_read_double(at->root, top_key, CTW_JSON_OPTIONAL, &top, err);
    if (st == CTW_OK && at->object != NULL)
        st = ctw_json_read_double(at->object, key, CTW_JSON_OPTIONAL, &inner, err);
    if (st != CTW_OK)
        return st;
    if (!isnan(top) && !isnan(inner) && top != inner && !at->own)
        return ctw_json_fail(ctw_json_get(at->root, top_key), err, CTW_EFORMAT,
                             "found %g, and %g in the RoPE parameters; transformers' versions "
                             "differ in which they use: remove one",
                             top, inner);
    *out = !isnan(inner) ? inner : !isnan(top) ? top : *out;
    return CTW_OK;
}

static enum ctw_status positive(const struct ctw_json_node *node, const char *key, double value,
                                double above, struct ctw_err *err)
{
    if (value > above && value < 1e12)
        return CTW_OK;
    return ctw_json_fail(node, err, CTW_EFORMAT, "%s: found %g, expected a number above %g", key,
                         value, above);
}

static enum ctw_status read_llama3(struct ctw_rope_params *p, const struct ctw_json_node *node,
                                   struct ctw_err *err)
{
    enum ctw_status st =
        ctw_json_read_double(node, "low_freq_factor", CTW_JSON_REQUIRED, &p->low_freq_factor, err);
    if (st == CTW_OK)
        st = ctw_json_read_double(node, "high_freq_factor", CTW_JSON_REQUIRED, &p->high_freq_factor,
                                  err);
    if (st == CTW_OK)
        st = positive(node, "low_freq_factor", p->low_freq_factor, 0, err);
    if (st == CTW_OK)
        st = positive(node, "high_freq_factor", p->high_freq_factor, p->low_freq_factor, err);
    return st;
}

static double mscale(double scale, double m)
{
    return scale <= 1.0 ? 1.0 : 0.1 * m * ctw_ln(scale) + 1.0;
}

static enum ctw_status read_yarn(struct ctw_rope_params *p, const struct ctw_json_node *node,
                                 struct ctw_err *err)
{
    double m = 0, m_all = 0, attention = NAN;
    const struct ctw_json_node *truncate = ctw_json_get(node, "truncate");
    p->beta_fast = p->beta_slow = 0;
    p->truncate = truncate == NULL || !ctw_json_is_null(truncate); /* null: false, as there */
    enum ctw_status st =
        ctw_json_read_double(node, "attention_factor", CTW_JSON_OPTIONAL, &attention, err);
    if (st == CTW_OK)
        st = ctw_json_read_double(node, "mscale", CTW_JSON_OPTIONAL, &m, err);
    if (st == CTW_OK)
        st = ctw_json_read_double(node, "mscale_all_dim", CTW_JSON_OPTIONAL, &m_all, err);
    if (st == CTW_OK)
        st = ctw_json_read_double(node, "beta_fast", CTW_JSON_OPTIONAL, &p->beta_fast, err);
    if (st == CTW_OK)
        st = ctw_json_read_double(node, "beta_slow", CTW_JSON_OPTIONAL, &p->beta_slow, err);
    if (st == CTW_OK)
        st = ctw_json_read_bool(node, "truncate", CTW_JSON_OPTIONAL, &p->truncate, err);
    if (st != CTW_OK)
        return st;
    p->beta_fast = p->beta_fast == 0 ? 32 : p->beta_fast; /* 0 is absent, as in transformers */
    p->beta_slow = p->beta_slow == 0 ? 1 : p->beta_slow;
    if (!isnan(attention))
        p->attention_factor = attention;
    else if (m != 0 && m_all != 0)
        p->attention_factor = mscale(p->factor, m) / mscale(p->factor, m_all);
    else
        p->attention_factor = mscale(p->factor, 1);
    st = positive(node, "beta_fast", p->beta_fast, 0, err);
    if (st == CTW_OK)
        st = positive(node, "beta_slow", p->beta_slow, 0, err);
    if (st == CTW_OK)
        st = positive(node, "attention_factor", p->attention_factor, 0, err);
    return st;
}

static enum ctw_status read_original_length(double *out, const struct place *at,
                                            struct ctw_err *err)
{
    static const char key[] = "original_max_position_embeddings";
    enum ctw_status st = read_either(out, at, key, key, err);
    return st == CTW_OK ? positive(at->root, key, *out, 0, err) : st;
}

static const char *theta_key(const struct ctw_rope_rules *rules)
{
    return rules->theta_key != NULL ? rules->theta_key : "rope_theta";
}

static const char *partial_key(const struct ctw_rope_rules *rules)
{
    return rules->partial_key != NULL ? rules->partial_key : "partial_rotary_factor";
}

static enum ctw_status read_partial(struct ctw_rope_params *p, const struct place *at,
                                    struct ctw_err *err)
{
    const char *key = partial_key(&p->rules);
    bool whole = p->rules.partial_key == NULL;
    enum ctw_status st = CTW_OK;
    p->partial_factor = p->rules.partial != 0 ? p->rules.partial : 1;
    if (!whole || p->type != CTW_ROPE_DEFAULT)
        st = read_either(&p->partial_factor, at, "partial_rotary_factor", key, err);
    if (st == CTW_OK && p->type != CTW_ROPE_DEFAULT && p->partial_factor != 1.0)
        st = ctw_json_fail(at->root, err, CTW_EUNSUP,
                           "%s: found %g, expected 1: rotating part of each head is not supported "
                           "for this family",
                           key, p->partial_factor);
    if (st == CTW_OK && (p->partial_factor <= 0 || p->partial_factor > 1))
        st = ctw_json_fail(at->root, err, CTW_EFORMAT,
                           "%s: found %g, expected more than 0 and at most 1", key,
                           p->partial_factor);
    return st;
}

static enum ctw_status read_place(struct ctw_rope_params *out, const struct place *at,
                                  const struct ctw_rope_rules *rules, int64_t max_length,
                                  struct ctw_err *err)
{
    const struct ctw_json_node *node = at->object;
    unsigned used = USED_DEFAULT;
    *out = (struct ctw_rope_params){.rules = *rules,
                                    .type = CTW_ROPE_DEFAULT,
                                    .theta = rules->theta,
                                    .factor = 1,
                                    .original_length = (double)max_length,
                                    .attention_factor = 1};
    enum ctw_status st = CTW_OK;
    if (node != NULL)
        st = read_type(out, node, &used, err);
    if (st == CTW_OK && node != NULL)
        st = check_members(node, err);
    if (st == CTW_OK)
        st = read_either(&out->theta, at, "rope_theta", theta_key(rules), err);
    if (st == CTW_OK)
        st = positive(at->root, theta_key(rules), out->theta, 1, err);
    if (st == CTW_OK)
        st = read_partial(out, at, err);
    if (st != CTW_OK || out->type == CTW_ROPE_DEFAULT)
        return st;
    if (st == CTW_OK && (used & (USED_LLAMA3 | USED_YARN)) != 0)
        st = read_original_length(&out->original_length, at, err);
    if (st != CTW_OK)
        return st;
    const struct ctw_json_node *factor = ctw_json_get(node, "factor");
    if (out->type == CTW_ROPE_YARN && factor != NULL && ctw_json_is_null(factor))
        out->factor = (double)max_length / out->original_length;
    else
        st = ctw_json_read_double(node, "factor", CTW_JSON_REQUIRED, &out->factor, err);
    if (st == CTW_OK)
        st = positive(node, "factor", out->factor, 0, err);
    if (st == CTW_OK && out->type == CTW_ROPE_LLAMA3)
        st = read_llama3(out, node, err);
    if (st == CTW_OK && out->type == CTW_ROPE_YARN)
        st = read_yarn(out, node, err);
    return st;
}

/* Has rope_parameters an object per layer type? */
static bool is_by_layer_type(const struct ctw_json_node *object, const char *layer_type)
{
    if (ctw_json_get(object, layer_type) != NULL)
        return true;
    for (const struct ctw_json_node *m = ctw_json_first(object); m != NULL; m = ctw_json_next(m))
        if (ctw_json_type(m) == CTW_JSON_OBJECT)
            return true;
    return false;
}

/* The RoPE's parameters in root's object `name`; at->object NULL: none there. */
static enum ctw_status find_place(struct place *at, const struct ctw_json_node *root,
                                  const char *name, const struct ctw_rope_rules *rules,
                                  struct ctw_err *err)
{
    const struct ctw_json_node *object = NULL;
    *at = (struct place){.root = root};
    enum ctw_status st =
        ctw_json_read_node(root, name, CTW_JSON_OPTIONAL, CTW_JSON_OBJECT, &object, err);
    if (st != CTW_OK || object == NULL || ctw_json_count(object) == 0)
        return st;
    if (rules->layer_type != NULL && is_by_layer_type(object, rules->layer_type)) {
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

static bool equal(const struct ctw_rope_params *a, const struct ctw_rope_params *b)
{
    return a->type == b->type && a->theta == b->theta && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->original_length == b->original_length && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow && a->attention_factor == b->attention_factor &&
           a->truncate == b->truncate && a->partial_factor == b->partial_factor;
}

/* Logs a warning with the prefix of ctw_json_fail()'s messages. */
CTW_PRINTF(2, 3) static void warn(const struct ctw_json_node *node, const char *fmt, ...)
{
    struct ctw_err err;
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)ctw_json_fail(node, &err, CTW_EFORMAT, "%s", text);
    ctw_warn("%s", err.msg);
}

/* Warns of ambiguous YaRN parameters, which we read as transformers does. */
static enum ctw_status warn_yarn(const struct ctw_rope_params *p, const struct place *at,
                                 int64_t max_length, struct ctw_err *err)
{
    static const char original[] = "original_max_position_embeddings";
    const struct ctw_json_node *node = at->object;
    double extra = 1, ratio = (double)max_length / p->original_length;
    bool finetuned = false;
    enum ctw_status st = ctw_json_read_double(node, "attn_factor", CTW_JSON_OPTIONAL, &extra, err);
    if (st == CTW_OK)
        st = ctw_json_read_bool(node, "finetuned", CTW_JSON_OPTIONAL, &finetuned, err);
    if (st != CTW_OK)
        return st;
    if (extra != 1)
        warn(ctw_json_get(node, "attn_factor"),
             "found %g, ignored as in transformers: cosines and sines are scaled by %g, not by %g",
             extra, p->attention_factor, extra * p->attention_factor);
    if (finetuned)
        warn(ctw_json_get(node, "finetuned"),
             "ignored as in transformers; in YaRN's own code it only changes how frequencies "
             "depend on a text's length, which they do not here");
    bool given = ctw_json_has(node, original) || ctw_json_has(at->root, original);
    if (given && p->factor != ratio)
        warn(ctw_json_get(node, "factor"),
             "%g is used, although max_position_embeddings / %s is %g; transformers before 4.56 "
             "used the latter",
             p->factor, original, ratio);
    return CTW_OK;
}

enum ctw_status ctw_rope_read(struct ctw_rope_params *out, const struct ctw_json_node *root,
                              const struct ctw_rope_rules *rules, int64_t max_length,
                              struct ctw_err *err)
{
    /* The names of transformers 4 and 5. */
    struct place old, now;
    struct ctw_rope_params other;
    enum ctw_status st = find_place(&old, root, "rope_scaling", rules, err);
    if (st == CTW_OK)
        st = find_place(&now, root, "rope_parameters", rules, err);
    if (st != CTW_OK)
        return st;
    const struct place *at = old.object != NULL ? &old : &now;
    st = read_place(out, at, rules, max_length, err);
    if (st == CTW_OK && old.object != NULL && now.object != NULL) {
        st = read_place(&other, &now, rules, max_length, err);
        if (st == CTW_OK && !equal(out, &other))
            st = ctw_json_fail(old.object, err, CTW_EFORMAT,
                               "found in addition to rope_parameters, and the two differ; "
                               "transformers' versions differ in which they use: remove one");
    }
    if (st == CTW_OK && out->type == CTW_ROPE_YARN)
        st = warn_yarn(out, at, max_length, err);
    return st;
}

/* ---- keys that are read ---- */

static bool reads(const struct ctw_rope_params *p, const char *key)
{
    unsigned partial = p->rules.partial_key != NULL ? USED_PARTIAL : 0;
    return is_used(key, types[p->type].used | partial);
}

bool ctw_rope_reads(const struct ctw_rope_params *p, int n, const char *key)
{
    static const char original[] = "original_max_position_embeddings";
    for (int i = 0; i < n; i++)
        if (strcmp(key, "rope_scaling") == 0 || strcmp(key, "rope_parameters") == 0 ||
            strcmp(key, theta_key(&p[i].rules)) == 0 ||
            (strcmp(key, partial_key(&p[i].rules)) == 0 && reads(&p[i], "partial_rotary_factor")) ||
            (strcmp(key, original) == 0 && reads(&p[i], original)))
            return true;
    return false;
}

/* Where a member of rope_scaling or rope_parameters is. */
struct member_place {
    bool by_layer_type;     /* the object has an object per layer type */
    const char *layer_type; /* the member is in this one; NULL: in none */
};

/* Does one of the RoPEs read the member `key`; NULL: any member there? */
static bool any_reads(const struct ctw_rope_params *p, int n, struct member_place at,
                      const char *key)
{
    for (int i = 0; i < n; i++) {
        const struct ctw_rope_rules *rules = &p[i].rules;
        bool here = rules->layer_type == NULL || !at.by_layer_type
                        ? at.layer_type == NULL && !rules->unscaled
                        : at.layer_type != NULL && strcmp(at.layer_type, rules->layer_type) == 0;
        if (here && (key == NULL || reads(&p[i], key)))
            return true;
    }
    return false;
}

static enum ctw_status list_unread(const struct ctw_rope_params *p, int n,
                                   const struct ctw_json_node *object, struct ctw_unread *unread,
                                   struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    struct member_place flat = {0};
    for (int i = 0; i < n; i++)
        flat.by_layer_type |=
            p[i].rules.layer_type != NULL && is_by_layer_type(object, p[i].rules.layer_type);
    for (const struct ctw_json_node *m = ctw_json_first(object); m != NULL && st == CTW_OK;
         m = ctw_json_next(m)) {
        struct member_place own = {flat.by_layer_type, ctw_json_key(m)};
        const struct ctw_json_node *inner = NULL;
        if (any_reads(p, n, own, NULL))
            inner = ctw_json_first(m);
        else if (!any_reads(p, n, flat, ctw_json_key(m)))
            st = ctw_unread_add(unread, m, err);
        for (; inner != NULL && st == CTW_OK; inner = ctw_json_next(inner))
            if (!any_reads(p, n, own, ctw_json_key(inner)))
                st = ctw_unread_add(unread, inner, err);
    }
    return st;
}

enum ctw_status ctw_rope_list_unread(const struct ctw_rope_params *p, int n,
                                     const struct ctw_json_node *root, struct ctw_unread *unread,
                                     struct ctw_err *err)
{
    static const char *const objects[] = {"rope_scaling", "rope_parameters"};
    enum ctw_status st = CTW_OK;
    for (size_t i = 0; i < CTW_COUNT(objects) && n > 0; i++) {
        const struct ctw_json_node *object = ctw_json_get(root, objects[i]);
        if (st == CTW_OK && object != NULL)
            st = list_unread(p, n, object, unread, err);
    }
    return st;
}
