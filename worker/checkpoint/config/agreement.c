#include "worker/checkpoint/config/agreement.h"

#include <math.h>
#include <string.h>

/* Keys that say how a file is written, that transformers 4 and 5 spell differently, or whose values
 * the metadata do not have as the configuration words them: factors of widths (the shapes of
 * tensors tell). */
static bool is_passed_over(const char *key)
{
    static const char *const keys[] = {"model_type", "architectures", "dtype", "rope_scaling",
                                       "block_configs"};
    for (size_t i = 0; i < CTW_COUNT(keys); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

/* The key's value in the configuration; NULL: it has none. */
static const struct ctw_json_node *find(const struct ctw_json_node *root, const char *key)
{
    const struct ctw_json_node *text = ctw_json_get(root, "text_config");
    const struct ctw_json_node *level = text != NULL ? text : root;
    const struct ctw_json_node *rope = ctw_json_get(level, "rope_parameters");
    const struct ctw_json_node *const places[] = {level, root, rope};
    for (size_t i = 0; i < CTW_COUNT(places); i++)
        if (places[i] != NULL && ctw_json_has(places[i], key))
            return ctw_json_get(places[i], key);
    return NULL;
}

static bool is_equal(const struct ctw_json_node *a, const struct ctw_json_node *b);

/* Of arrays: all elements; of objects: what both have. */
static bool are_equal(const struct ctw_json_node *a, const struct ctw_json_node *b)
{
    if (ctw_json_type(a) != ctw_json_type(b))
        return false;
    if (ctw_json_type(a) == CTW_JSON_OBJECT) {
        for (a = ctw_json_first(a); a != NULL; a = ctw_json_next(a))
            if (ctw_json_has(b, ctw_json_key(a)) && !is_equal(a, ctw_json_get(b, ctw_json_key(a))))
                return false;
        return true;
    }
    if (ctw_json_count(a) != ctw_json_count(b))
        return false;
    for (a = ctw_json_first(a), b = ctw_json_first(b); a != NULL && b != NULL;
         a = ctw_json_next(a), b = ctw_json_next(b))
        if (!is_equal(a, b))
            return false;
    return true;
}

static bool is_equal(const struct ctw_json_node *a, const struct ctw_json_node *b)
{
    double x, y;
    bool p, q;
    if (ctw_json_is_null(a) ||
        ctw_json_is_null(b)) /* the default, which the other one spells out */
        return true;
    if (ctw_json_type(a) == CTW_JSON_ARRAY || ctw_json_type(a) == CTW_JSON_OBJECT)
        return are_equal(a, b);
    if (ctw_json_as_double(a, &x, NULL) == CTW_OK && ctw_json_as_double(b, &y, NULL) == CTW_OK)
        return fabs(x - y) <= 1e-6 * fabs(y); /* metadata are fp32 */
    if (ctw_json_as_bool(a, &p, NULL) == CTW_OK && ctw_json_as_bool(b, &q, NULL) == CTW_OK)
        return p == q;
    const char *s = ctw_json_string(a), *t = ctw_json_string(b);
    if (t != NULL && strcmp(t, "auto") == 0) /* from other keys, which agree */
        return true;
    return s != NULL && t != NULL && strcmp(s, t) == 0;
}

static bool is_name_in(const char *name, const struct ctw_json_node *names)
{
    for (const struct ctw_json_node *n = ctw_json_first(names); n != NULL; n = ctw_json_next(n)) {
        const char *s = ctw_json_string(n);
        if (s != NULL && strcmp(s, name) == 0)
            return true;
    }
    return false;
}

/* Whether layers of `name` before this one are of another kind; kinds and names go in step. */
static bool has_another_kind(const struct ctw_json_node *name, const struct ctw_json_node *kind,
                             const struct ctw_json_node *kinds, const struct ctw_json_node *names)
{
    const char *s = ctw_json_string(name), *k = ctw_json_string(kind);
    const struct ctw_json_node *k0 = ctw_json_first(kinds), *s0 = ctw_json_first(names);
    for (; s0 != name; k0 = ctw_json_next(k0), s0 = ctw_json_next(s0))
        if (strcmp(ctw_json_string(s0), s) == 0 && strcmp(ctw_json_string(k0), k) != 0)
            return true;
    return false;
}

/*
 * Of kinds of layers, [n_layers] names: the first two that do not agree, or both NULL. The
 * configuration may have other names, and more of them, for the kinds that the metadata tell apart
 * ("attention" for "full_attention"), but layers of one name are of one kind, and a name that both
 * use is the same kind. The configuration's list may go on, for layers that predict further tokens.
 */
static void find_odd_kind(const struct ctw_json_node **kind, const struct ctw_json_node **name)
{
    const struct ctw_json_node *kinds = *kind, *names = *name;
    *kind = ctw_json_first(kinds), *name = ctw_json_first(names);
    for (; *kind != NULL && *name != NULL;
         *kind = ctw_json_next(*kind), *name = ctw_json_next(*name)) {
        const char *k = ctw_json_string(*kind), *s = ctw_json_string(*name);
        if (k == NULL || s == NULL || (strcmp(k, s) != 0 && is_name_in(s, kinds)) ||
            has_another_kind(*name, *kind, kinds, names))
            return;
    }
    if (*kind != NULL) /* too short */
        *kind = kinds, *name = names;
    else
        *name = NULL;
}

enum ctw_status ctw_keys_agree(const struct ctw_json *metadata, const struct ctw_json *config,
                               struct ctw_err *err)
{
    const struct ctw_json_node *text = ctw_json_get(ctw_json_root(metadata), "text_config");
    const struct ctw_json_node *level = text != NULL ? text : ctw_json_root(metadata);
    for (const struct ctw_json_node *m = ctw_json_first(level); m != NULL; m = ctw_json_next(m)) {
        const char *key = ctw_json_key(m);
        const struct ctw_json_node *other = find(ctw_json_root(config), key);
        char ours[128], theirs[128];
        if (is_passed_over(key) || other == NULL)
            continue;
        const struct ctw_json_node *mine = m;
        if (strcmp(key, "layer_types") == 0 && ctw_json_type(other) == CTW_JSON_ARRAY)
            find_odd_kind(&mine, &other);
        else if (is_equal(m, other))
            continue;
        if (other == NULL)
            continue;
        ctw_json_describe(mine, ours, sizeof(ours));
        ctw_json_describe(other, theirs, sizeof(theirs));
        return ctw_json_fail(other, err, CTW_EFORMAT,
                             "found %s, but the metadata of the file say %s: give the "
                             "configuration that the file was made with, or none",
                             theirs, ours);
    }
    return CTW_OK;
}
