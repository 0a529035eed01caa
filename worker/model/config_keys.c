/* Keys of config.json, read by name for a family's function. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "worker/model/families/family.h"

/* The value of a key, or of "OBJECT.KEY", or of an object in that; NULL: absent. */
static const struct ctw_json_node *look_up(struct ctw_config *c, const char *name)
{
    const struct ctw_json_node *node = c->text;
    const char *dot;
    char object[64];
    for (; (dot = strchr(name, '.')) != NULL; name = dot + 1) {
        (void)snprintf(object, sizeof(object), "%.*s", (int)(dot - name), name);
        if (!ctw_json_has(node, object))
            return NULL;
        node = ctw_json_get(node, object);
        c->status = ctw_json_expect(node, CTW_JSON_OBJECT, &c->err);
        if (c->status != CTW_OK)
            return NULL;
    }
    return ctw_json_get(node, name);
}

/* Marks a key as read. NULL: the key is absent, or an error came before. */
static const struct ctw_json_node *take(struct ctw_config *c, const char *name)
{
    for (int i = 0; i < c->n_keys && c->status == CTW_OK; i++)
        if (strcmp(c->keys[i], name) == 0)
            c->status = ctw_fail(&c->err, CTW_EINTERNAL, "%s: the family %s reads %s twice",
                                 c->file, c->family->model_type, name);
    if (c->status == CTW_OK && c->n_keys == CTW_MAX_KEYS)
        c->status = ctw_fail(&c->err, CTW_EINTERNAL, "%s: the family %s reads more than %d keys",
                             c->file, c->family->model_type, CTW_MAX_KEYS);
    if (c->status != CTW_OK)
        return NULL;
    c->keys[c->n_keys++] = name;
    return look_up(c, name);
}

/* True: the key is null, and *out is the meaning of null, or null is an error. */
static bool is_null(struct ctw_config *c, const struct ctw_json_node *node, double null,
                    double *out)
{
    if (!ctw_json_is_null(node))
        return false;
    if (null == CTW_NULL_REFUSED)
        c->status = ctw_json_fail(node, &c->err, CTW_EFORMAT, "found null, expected a value");
    else
        *out = null;
    return true;
}

int64_t ctw_key_int(struct ctw_config *c, const char *name, int64_t absent, int64_t null,
                    int64_t min, int64_t max)
{
    const struct ctw_json_node *node = take(c, name);
    double special = (double)absent;
    int64_t value = absent;
    if (node == NULL)
        return absent;
    if (is_null(c, node, (double)null, &special))
        return (int64_t)special;
    c->status = ctw_json_as_int(node, min, max, &value, &c->err);
    return value;
}

double ctw_key_number(struct ctw_config *c, const char *name, double absent, double null,
                      double min, double max)
{
    const struct ctw_json_node *node = take(c, name);
    double value = absent;
    if (node == NULL || is_null(c, node, null, &value))
        return value;
    c->status = ctw_json_as_double(node, &value, &c->err);
    if (c->status == CTW_OK && (value < min || value > max))
        c->status = ctw_json_fail(node, &c->err, CTW_EFORMAT, "found %g, expected %g to %g", value,
                                  min, max);
    return c->status == CTW_OK ? value : absent;
}

bool ctw_key_bool(struct ctw_config *c, const char *name, bool absent)
{
    const struct ctw_json_node *node = take(c, name);
    double unused;
    bool value = absent;
    if (node != NULL && !is_null(c, node, CTW_NULL_REFUSED, &unused))
        c->status = ctw_json_as_bool(node, &value, &c->err);
    return value;
}

bool ctw_key_is_true(struct ctw_config *c, const char *name)
{
    const struct ctw_json_node *node = take(c, name);
    bool value = false;
    if (node != NULL && !ctw_json_is_null(node))
        c->status = ctw_json_as_bool(node, &value, &c->err);
    return value;
}

const char *ctw_key_string(struct ctw_config *c, const char *name, const char *absent)
{
    const struct ctw_json_node *node = take(c, name);
    const char *value = absent;
    if (node != NULL && !ctw_json_is_null(node))
        c->status = ctw_json_as_string(node, &value, &c->err);
    return c->status == CTW_OK ? value : absent;
}

static bool in_members(const char *const *members, const char *name)
{
    for (; *members != NULL; members++)
        if (strcmp(*members, name) == 0)
            return true;
    return false;
}

/* The layer that a key of per_layer_config names: "7", or "07" as transformers pads them; -1: none.
 */
static int64_t layer_index(const char *key)
{
    size_t n = strspn(key, "0123456789");
    return n > 0 && key[n] == '\0' ? strtol(key, NULL, 10) : -1;
}

/* Every entry of per_layer_config must be a decoder layer's, and the only one of it. */
static void check_layer_indices(struct ctw_config *c, const struct ctw_json_node *layers)
{
    bool seen[CTW_MAX_DECODERS] = {false};
    for (const struct ctw_json_node *m = ctw_json_first(layers); m != NULL && c->status == CTW_OK;
         m = ctw_json_next(m)) {
        int64_t i = layer_index(ctw_json_key(m));
        if (i < 0 || i >= c->model->n_decoders)
            c->status =
                ctw_json_fail(m, &c->err, CTW_EFORMAT, "expected the index of a layer, 0 to %d",
                              c->model->n_decoders - 1);
        else if (seen[i])
            c->status =
                ctw_json_fail(m, &c->err, CTW_EFORMAT, "is a second entry of layer %" PRId64, i);
        else
            seen[i] = true;
    }
}

/* The entry of layer i; NULL: none. */
static const struct ctw_json_node *find_layer(const struct ctw_json_node *layers, int64_t i)
{
    const struct ctw_json_node *m = ctw_json_first(layers);
    while (m != NULL && layer_index(ctw_json_key(m)) != i)
        m = ctw_json_next(m);
    return m;
}

int64_t ctw_key_of_layer(struct ctw_config *c, int64_t i, const char *const *members,
                         const char *name, int64_t absent, int64_t min, int64_t max)
{
    int64_t value = absent;
    const struct ctw_json_node *layers = NULL, *layer = NULL;
    if (c->status == CTW_OK)
        c->status = ctw_json_read_node(c->text, "per_layer_config", CTW_JSON_OPTIONAL,
                                       CTW_JSON_OBJECT, &layers, &c->err);
    if (c->status == CTW_OK && layers != NULL && i == 0)
        check_layer_indices(c, layers);
    if (c->status == CTW_OK && layers != NULL)
        layer = find_layer(layers, i);
    if (layer != NULL)
        c->status = ctw_json_expect(layer, CTW_JSON_OBJECT, &c->err);
    if (c->status != CTW_OK || layer == NULL)
        return absent;
    for (const struct ctw_json_node *m = ctw_json_first(layer); m != NULL && c->status == CTW_OK;
         m = ctw_json_next(m))
        if (!in_members(members, ctw_json_key(m)))
            c->status =
                ctw_json_fail(m, &c->err, CTW_EUNSUP, "this key of a layer is not supported");
    const struct ctw_json_node *node = ctw_json_get(layer, name);
    if (c->status == CTW_OK && node != NULL)
        c->status = ctw_json_as_int(node, min, max, &value, &c->err);
    return value;
}

bool ctw_key_is(struct ctw_config *c, const char *name, const char *text)
{
    const struct ctw_json_node *node = take(c, name);
    const char *found = NULL;
    if (node != NULL && !ctw_json_is_null(node))
        c->status = ctw_json_as_string(node, &found, &c->err);
    return found != NULL && strcmp(found, text) == 0;
}

const struct ctw_json_node *ctw_key_list(struct ctw_config *c, const char *name, int64_t n)
{
    const struct ctw_json_node *node = take(c, name);
    if (c->status == CTW_OK && node == NULL)
        ctw_key_fail(c, name, CTW_EFORMAT, "expected an array");
    if (c->status == CTW_OK)
        c->status = ctw_json_expect(node, CTW_JSON_ARRAY, &c->err);
    if (c->status == CTW_OK && ctw_json_count(node) != n)
        ctw_key_fail(c, name, CTW_EFORMAT, "found %" PRId64 " entries, expected %" PRId64,
                     ctw_json_count(node), n);
    return c->status == CTW_OK ? ctw_json_first(node) : NULL;
}

enum ctw_activation ctw_key_activation(struct ctw_config *c, const char *name,
                                       enum ctw_activation absent)
{
    static const struct {
        const char *name;
        enum ctw_activation act;
    } names[] = {{"silu", CTW_ACT_SILU},
                 {"swish", CTW_ACT_SILU},
                 {"gelu", CTW_ACT_GELU},
                 {"gelu_python", CTW_ACT_GELU},
                 {"gelu_new", CTW_ACT_GELU_TANH},
                 {"gelu_fast", CTW_ACT_GELU_TANH},
                 {"gelu_pytorch_tanh", CTW_ACT_GELU_TANH},
                 {"gelu_python_tanh", CTW_ACT_GELU_TANH},
                 {"relu", CTW_ACT_RELU},
                 {"relu2", CTW_ACT_RELU2},
                 {"relu_squared", CTW_ACT_RELU2},
                 {"xielu", CTW_ACT_XIELU}};
    const struct ctw_json_node *node = take(c, name);
    double unused;
    const char *text = NULL;
    if (node == NULL || is_null(c, node, CTW_NULL_REFUSED, &unused))
        return absent;
    c->status = ctw_json_as_string(node, &text, &c->err);
    for (size_t i = 0; c->status == CTW_OK && i < CTW_COUNT(names); i++)
        if (strcmp(text, names[i].name) == 0 &&
            (names[i].act != CTW_ACT_XIELU || absent == CTW_ACT_XIELU))
            return names[i].act;
    if (c->status == CTW_OK)
        c->status = ctw_json_fail(node, &c->err, CTW_EUNSUP,
                                  "\"%s\" is not supported; supported: silu, gelu, "
                                  "gelu_pytorch_tanh, relu, relu2",
                                  text);
    return absent;
}

bool ctw_key_tied(struct ctw_config *c, bool absent)
{
    static const char key[] = "tie_word_embeddings";
    const struct ctw_json_node *root = ctw_json_root(c->doc);
    const struct ctw_wrapper *wrapper = c->family->wrapper;
    bool inner = ctw_json_has(c->text, key), outer = ctw_json_has(root, key), top = false;
    bool tied = ctw_key_bool(c, key, wrapper != NULL ? wrapper->tied : absent);
    if (wrapper == NULL || c->text == root || c->status != CTW_OK)
        return tied;
    if (outer)
        c->status = ctw_json_as_bool(ctw_json_get(root, key), &top, &c->err);
    /* If the two differ, the effect depends on transformers' version and class. */
    c->tied_by_default = (!inner && !outer) || (outer && !top && inner && tied);
    return outer ? top || (inner && tied) : tied;
}

bool ctw_key_is_given(const struct ctw_config *c, const char *name)
{
    const char *dot = strchr(name, '.');
    char object[64];
    if (dot == NULL)
        return ctw_json_has(c->text, name);
    (void)snprintf(object, sizeof(object), "%.*s", (int)(dot - name), name);
    const struct ctw_json_node *node = ctw_json_get(c->text, object);
    return node != NULL && ctw_json_type(node) == CTW_JSON_OBJECT && ctw_json_has(node, dot + 1);
}

const char *ctw_key_either(const struct ctw_config *c, const char *name, const char *llama)
{
    return ctw_key_is_given(c, llama) ? llama : name;
}

void ctw_key_fail(struct ctw_config *c, const char *name, enum ctw_status status, const char *fmt,
                  ...)
{
    char text[CTW_ERR_MSG_MAX];
    va_list ap;
    if (c->status != CTW_OK)
        return;
    const struct ctw_json_node *node = look_up(c, name);
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    c->status = node != NULL ? ctw_json_fail(node, &c->err, status, "%s", text)
                             : ctw_json_fail(c->text, &c->err, status, "%s: %s", name, text);
}

/* ---- properties of layers ---- */

/* An array of n elements, which the configuration owns; NULL after an error. */
static void *new_array(struct ctw_config *c, int64_t n, size_t bytes)
{
    if (c->status == CTW_OK && c->n_owned == CTW_MAX_OWNED)
        c->status =
            ctw_fail(&c->err, CTW_EINTERNAL, "%s: the family %s reads more than %d lists by layer",
                     c->file, c->family->model_type, CTW_MAX_OWNED);
    void *array = c->status == CTW_OK ? ctw_calloc((size_t)n, bytes) : NULL;
    if (array == NULL && c->status == CTW_OK)
        c->status = ctw_fail(&c->err, CTW_ENOMEM, "out of memory for %" PRId64 " layers", n);
    if (array != NULL)
        c->owned[c->n_owned++] = array;
    return array;
}

/* A list of n entries or more. NULL: the key is absent or null, or after an error. */
static const struct ctw_json_node *take_list(struct ctw_config *c, const char *name, int64_t n)
{
    const struct ctw_json_node *list = take(c, name);
    if (list == NULL || ctw_json_is_null(list))
        return NULL;
    c->status = ctw_json_expect(list, CTW_JSON_ARRAY, &c->err);
    if (c->status == CTW_OK && ctw_json_count(list) < n)
        c->status = ctw_json_fail(list, &c->err, CTW_EFORMAT,
                                  "found %" PRId64 " entries, expected at least "
                                  "num_hidden_layers = %" PRId64,
                                  ctw_json_count(list), n);
    return c->status == CTW_OK ? list : NULL;
}

const bool *ctw_key_layers_called(struct ctw_config *c, const char *name, int64_t n,
                                  const char *yes, const char *no)
{
    const struct ctw_json_node *list = take_list(c, name, n);
    bool *has = list != NULL ? new_array(c, n, sizeof(*has)) : NULL;
    const struct ctw_json_node *node = has != NULL ? ctw_json_first(list) : NULL;
    for (int64_t i = 0; has != NULL && i < n && c->status == CTW_OK; i++) {
        const char *type = NULL;
        c->status = ctw_json_as_string(node, &type, &c->err);
        has[i] = c->status == CTW_OK && strcmp(type, yes) == 0;
        if (c->status == CTW_OK && !has[i] && strcmp(type, no) != 0)
            c->status = ctw_json_fail(node, &c->err, CTW_EUNSUP,
                                      "\"%s\" is not supported; supported: %s, %s", type, yes, no);
        node = ctw_json_next(node);
    }
    return c->status == CTW_OK ? has : NULL;
}

static void fail_kind(struct ctw_config *c, const struct ctw_json_node *node, const char *type,
                      const char *const *names)
{
    char supported[256];
    size_t at = 0;
    for (int j = 0; names[j] != NULL && at < sizeof(supported); j++)
        at += (size_t)snprintf(supported + at, sizeof(supported) - at, "%s%s", j > 0 ? ", " : "",
                               names[j]);
    c->status = ctw_json_fail(node, &c->err, CTW_EUNSUP, "\"%s\" is not supported; supported: %s",
                              type, supported);
}

void ctw_key_layer_kinds(struct ctw_config *c, const char *name, int64_t n,
                         const char *const *names, int *kind)
{
    const struct ctw_json_node *list = take_list(c, name, n);
    const struct ctw_json_node *node = list != NULL ? ctw_json_first(list) : NULL;
    for (int64_t i = 0; node != NULL && i < n && c->status == CTW_OK; i++) {
        const char *type = "";
        c->status = ctw_json_as_string(node, &type, &c->err);
        for (kind[i] = 0; names[kind[i]] != NULL && strcmp(type, names[kind[i]]) != 0;)
            kind[i]++;
        if (c->status == CTW_OK && names[kind[i]] == NULL)
            fail_kind(c, node, type, names);
        node = ctw_json_next(node);
    }
}

const bool *ctw_key_layer_set(struct ctw_config *c, const char *name, int64_t n)
{
    const struct ctw_json_node *list = take_list(c, name, 0);
    bool *has = list != NULL ? new_array(c, n, sizeof(*has)) : NULL;
    const struct ctw_json_node *node = has != NULL ? ctw_json_first(list) : NULL;
    for (; node != NULL && c->status == CTW_OK; node = ctw_json_next(node)) {
        int64_t layer = 0;
        c->status = ctw_json_as_int(node, 0, 1 << 20, &layer, &c->err);
        if (c->status == CTW_OK && layer < n)
            has[layer] = true;
    }
    return c->status == CTW_OK ? has : NULL;
}

const double *ctw_key_layer_numbers(struct ctw_config *c, const char *name, int64_t n, double min,
                                    double max)
{
    const struct ctw_json_node *node = ctw_json_get(c->text, name);
    bool list = node != NULL && ctw_json_type(node) == CTW_JSON_ARRAY;
    node = list ? take_list(c, name, n) : take(c, name);
    if (node == NULL || ctw_json_is_null(node))
        return NULL;
    double *value = new_array(c, n, sizeof(*value));
    node = list ? ctw_json_first(node) : node;
    for (int64_t i = 0; value != NULL && i < n && c->status == CTW_OK; i++) {
        if (!ctw_json_is_null(node))
            c->status = ctw_json_as_double(node, &value[i], &c->err);
        if (c->status == CTW_OK && (value[i] < min || value[i] > max))
            c->status = ctw_json_fail(node, &c->err, CTW_EFORMAT, "found %g, expected %g to %g",
                                      value[i], min, max);
        node = list ? ctw_json_next(node) : node;
    }
    return c->status == CTW_OK ? value : NULL;
}

const bool *ctw_key_layers(struct ctw_config *c, const char *name, int64_t n, int64_t every)
{
    static const bool none[CTW_MAX_DECODERS];
    const struct ctw_json_node *list = take_list(c, name, n);
    bool *has = new_array(c, n, sizeof(*has));
    const struct ctw_json_node *node = list != NULL ? ctw_json_first(list) : NULL;
    for (int64_t i = 0; has != NULL && i < n && c->status == CTW_OK; i++) {
        int64_t value = (i + 1) % every != 0;
        if (node != NULL)
            c->status = ctw_json_as_int(node, 0, 1, &value, &c->err);
        has[i] = value != 0;
        node = node != NULL ? ctw_json_next(node) : NULL;
    }
    return c->status == CTW_OK ? has : none;
}

static bool is_sliding(struct ctw_config *c, const struct ctw_json_node *node, int64_t window)
{
    const char *type = NULL;
    c->status = ctw_json_as_string(node, &type, &c->err);
    if (c->status != CTW_OK || strcmp(type, "full_attention") == 0 ||
        strcmp(type, "attention") == 0) /* its older name */
        return false;
    if (strcmp(type, "sliding_attention") != 0)
        c->status = ctw_json_fail(node, &c->err, CTW_EUNSUP,
                                  "\"%s\" is not supported; supported: full_attention, "
                                  "sliding_attention",
                                  type);
    else if (window == 0)
        c->status = ctw_json_fail(node, &c->err, CTW_EFORMAT,
                                  "found \"sliding_attention\", but use_sliding_window and "
                                  "sliding_window define no window");
    return true;
}

struct ctw_window_rule ctw_key_window_pattern(struct ctw_config *c, const char *name,
                                              int64_t absent)
{
    const struct ctw_json_node *node = take(c, name);
    struct ctw_window_rule rule = {.every = node == NULL ? absent : 0};
    if (node == NULL || ctw_json_is_null(node))
        return rule;
    if (ctw_json_type(node) != CTW_JSON_STRING) {
        c->status = ctw_json_as_int(node, 0, CTW_MAX_DECODERS, &rule.every, &c->err);
        return rule;
    }
    c->status = ctw_json_as_string(node, &rule.letters, &c->err);
    if (c->status == CTW_OK &&
        (rule.letters[0] == '\0' || rule.letters[strspn(rule.letters, "LG")] != '\0'))
        c->status =
            ctw_json_fail(node, &c->err, CTW_EFORMAT,
                          "found \"%s\", expected a number, or letters L and G", rule.letters);
    return rule;
}

/* Does layer i of n, which has no layer type, see all keys? */
static bool is_full(const struct ctw_window_rule *rule, int64_t i, int64_t n)
{
    if (rule->full != NULL)
        return rule->full[i];
    if (rule->letters != NULL)
        return i == n - 1 || rule->letters[(size_t)i % strlen(rule->letters)] == 'G';
    return i < rule->first || (rule->every > 0 && (i + 1) % rule->every == 0);
}

const int64_t *ctw_key_windows(struct ctw_config *c, int64_t n, int64_t window,
                               const struct ctw_window_rule *absent)
{
    static const int64_t none[CTW_MAX_DECODERS];
    const struct ctw_json_node *types = take(c, "layer_types");
    if (types != NULL && ctw_json_is_null(types))
        types = NULL;
    if (types != NULL)
        c->status = ctw_json_expect(types, CTW_JSON_ARRAY, &c->err);
    if (c->status == CTW_OK && types != NULL && ctw_json_count(types) != n)
        c->status = ctw_json_fail(types, &c->err, CTW_EFORMAT,
                                  "found %" PRId64 " entries, expected num_hidden_layers = "
                                  "%" PRId64,
                                  ctw_json_count(types), n);
    if (c->status != CTW_OK)
        return none;
    c->windows = ctw_calloc((size_t)n, sizeof(*c->windows));
    if (c->windows == NULL) {
        c->status = ctw_fail(&c->err, CTW_ENOMEM, "out of memory for %" PRId64 " layers", n);
        return none;
    }
    const struct ctw_json_node *type = types != NULL ? ctw_json_first(types) : NULL;
    for (int64_t i = 0; i < n && c->status == CTW_OK; i++) {
        bool sliding = type != NULL ? is_sliding(c, type, window) : !is_full(absent, i, n);
        c->windows[i] = sliding ? window : 0;
        type = type != NULL ? ctw_json_next(type) : NULL;
    }
    return c->windows;
}
