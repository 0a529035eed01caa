#include "worker/model/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "worker/model/families/family.h"

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* ---- the family ---- */

static enum ctw_status unsupported_family(const struct ctw_config *c, struct ctw_err *err)
{
    char known[256] = "";
    size_t at = 0;
    for (int i = 0; ctw_archs[i] != NULL; i++)
        if (at < sizeof(known))
            at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s (%s)", i > 0 ? ", " : "",
                                   ctw_archs[i]->model_type, ctw_archs[i]->architecture);
    return ctw_fail(err, CTW_EUNSUP,
                    "%s: model_type \"%s\" (architecture \"%s\") is not supported; supported: %s",
                    c->file, c->model_type != NULL ? c->model_type : "(none)",
                    c->architecture != NULL ? c->architecture : "(none)", known);
}

static bool has_name(const struct ctw_arch *a, const char *architecture)
{
    return architecture != NULL &&
           (strcmp(a->architecture, architecture) == 0 ||
            (a->old_architecture != NULL && strcmp(a->old_architecture, architecture) == 0));
}

static enum ctw_status find_family(struct ctw_config *c, struct ctw_err *err)
{
    const struct ctw_json_node *root = ctw_json_root(c->doc), *list = NULL;
    enum ctw_status st = ctw_json_expect(root, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = ctw_json_read_string(root, "model_type", CTW_JSON_OPTIONAL, &c->model_type, err);
    if (st == CTW_OK)
        st = ctw_json_read_node(root, "architectures", CTW_JSON_OPTIONAL, CTW_JSON_ARRAY, &list,
                                err);
    if (st == CTW_OK && list != NULL && ctw_json_count(list) > 1)
        st = ctw_json_fail(list, err, CTW_EUNSUP, "found %" PRId64 " entries, expected one",
                           ctw_json_count(list));
    if (st == CTW_OK && list != NULL && ctw_json_count(list) == 1)
        st = ctw_json_as_string(ctw_json_first(list), &c->architecture, err);
    if (st != CTW_OK)
        return st;
    for (int i = 0; ctw_archs[i] != NULL && c->arch == NULL; i++) {
        const struct ctw_arch *a = ctw_archs[i];
        bool type = c->model_type != NULL && strcmp(a->model_type, c->model_type) == 0;
        bool name = has_name(a, c->architecture);
        /* Each of the two, if present, must match; the type decides which rules apply. */
        if ((type || c->model_type == NULL) && (name || c->architecture == NULL) && (type || name))
            c->arch = a;
    }
    if (c->arch == NULL)
        return unsupported_family(c, err);
    c->architecture = c->arch->architecture;
    c->model_type = c->arch->model_type;
    return CTW_OK;
}

/* ---- keys ---- */

/* Read for every family: here, in rope.c and in quant_config.c. */
static const char *const common_keys[] = {
    "architectures",   "model_type",          "dtype",
    "torch_dtype",     "rope_theta",          "rope_scaling",
    "rope_parameters", "quantization_config", "compression_config",
};

/*
 * Read by transformers' base class, regardless of the family. Each requests an unsupported feature
 * unless its value is null or empty, which is the same as an absent key. is_causal must be true.
 */
static const struct {
    const char *name, *asks_for;
} base_keys[] = {
    {"is_causal", "attention to later tokens"},
    {"per_layer_config", "separate settings for some layers"},
    {"attribute_map", "keys under other names"},
    {"text_config", "a text model inside another model"},
    {"decoder", "a text model inside another model"},
    {"generator", "a text model inside another model"},
    {"configuration_files", "another configuration file, chosen by the version of transformers"},
    {"transformers_weights", "a weights file of another name"},
};

static bool in_list(const char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], key) == 0)
            return true;
    return false;
}

static bool is_empty(const struct ctw_json_node *node)
{
    enum ctw_json_type type = ctw_json_type(node);
    return type == CTW_JSON_NULL ||
           ((type == CTW_JSON_ARRAY || type == CTW_JSON_OBJECT) && ctw_json_count(node) == 0);
}

static bool is_true(const struct ctw_json_node *node)
{
    bool on = false;
    return ctw_json_type(node) == CTW_JSON_BOOL && ctw_json_as_bool(node, &on, NULL) == CTW_OK &&
           on;
}

static enum ctw_status check_base_keys(const struct ctw_config *c, struct ctw_err *err)
{
    const struct ctw_json_node *root = ctw_json_root(c->doc);
    for (size_t i = 0; i < CTW_COUNT(base_keys); i++) {
        const struct ctw_json_node *m = ctw_json_get(root, base_keys[i].name);
        bool causal = strcmp(base_keys[i].name, "is_causal") == 0;
        char value[128];
        if (m == NULL || (causal ? is_true(m) : is_empty(m)))
            continue;
        ctw_json_describe(m, value, sizeof(value));
        return ctw_json_fail(m, err, CTW_EUNSUP,
                             "found %s, which requests %s: not supported; expected %s", value,
                             base_keys[i].asks_for, causal ? "true" : "null, or no such key");
    }
    return CTW_OK;
}

static bool is_read(const struct ctw_config *c, const char *key)
{
    if (in_list(common_keys, CTW_COUNT(common_keys), key) || ctw_rope_reads(&c->rope, key))
        return true;
    if (c->arch->window != CTW_WINDOW_NONE && strcmp(key, "layer_types") == 0)
        return true;
    for (size_t i = 0; i < CTW_COUNT(base_keys); i++)
        if (strcmp(base_keys[i].name, key) == 0)
            return true;
    for (int i = 0; i < c->arch->n_keys; i++)
        if (strcmp(c->arch->keys[i].name, key) == 0)
            return true;
    return false;
}

static enum ctw_status list_unread(struct ctw_config *c, struct ctw_err *err)
{
    const struct ctw_json_node *root = ctw_json_root(c->doc);
    enum ctw_status st = CTW_OK;
    for (const struct ctw_json_node *m = ctw_json_first(root); m != NULL && st == CTW_OK;
         m = ctw_json_next(m))
        if (!is_read(c, ctw_json_key(m)))
            st = ctw_unread_add(&c->unread, m, err);
    if (st == CTW_OK)
        st = ctw_rope_list_unread(&c->rope, root, &c->unread, err);
    return st == CTW_OK ? ctw_quant_config_list_unread(root, &c->unread, err) : st;
}

static enum ctw_status read_activation(const struct ctw_json_node *node, enum ctw_activation *out,
                                       struct ctw_err *err)
{
    static const struct {
        const char *name;
        enum ctw_activation act;
    } names[] = {{"silu", CTW_ACT_SILU},
                 {"swish", CTW_ACT_SILU},
                 {"gelu", CTW_ACT_GELU},
                 {"gelu_new", CTW_ACT_GELU_TANH},
                 {"gelu_pytorch_tanh", CTW_ACT_GELU_TANH}};
    const char *name = NULL;
    enum ctw_status st = ctw_json_as_string(node, &name, err);
    if (st != CTW_OK)
        return st;
    for (size_t i = 0; i < CTW_COUNT(names); i++)
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].act;
            return CTW_OK;
        }
    return ctw_json_fail(node, err, CTW_EUNSUP,
                         "\"%s\" is not supported; supported: silu, gelu, gelu_pytorch_tanh", name);
}

static void store(struct ctw_config *c, const struct ctw_key *key, double value)
{
    char *field = (char *)c + key->field;
    if (key->type == CTW_KEY_INT)
        *(int64_t *)(void *)field = (int64_t)value;
    else if (key->type == CTW_KEY_FLOAT)
        *(double *)(void *)field = value;
    else if (key->type == CTW_KEY_BOOL)
        *(bool *)(void *)field = value != 0;
    else
        *(enum ctw_activation *)(void *)field = (enum ctw_activation)(int)value;
}

static enum ctw_status read_key(struct ctw_config *c, const struct ctw_key *key,
                                struct ctw_err *err)
{
    const struct ctw_json_node *node = ctw_json_get(ctw_json_root(c->doc), key->name);
    enum ctw_activation act = CTW_ACT_SILU;
    int64_t i = 0;
    bool b = false;
    double d = 0;
    enum ctw_status st = CTW_OK;
    if (node == NULL) {
        store(c, key, key->absent);
        return CTW_OK;
    }
    if (ctw_json_is_null(node)) {
        if (key->null == CTW_NULL_REFUSED)
            return ctw_json_fail(node, err, CTW_EFORMAT, "found null, expected a value");
        store(c, key, key->null);
        return CTW_OK;
    }
    if (key->type == CTW_KEY_INT) {
        st = ctw_json_as_int(node, (int64_t)key->min, (int64_t)key->max, &i, err);
        d = (double)i;
    } else if (key->type == CTW_KEY_FLOAT) {
        st = ctw_json_as_double(node, &d, err);
        if (st == CTW_OK && (d < key->min || d > key->max))
            st = ctw_json_fail(node, err, CTW_EFORMAT, "found %g, expected %g to %g", d, key->min,
                               key->max);
    } else if (key->type == CTW_KEY_BOOL) {
        st = ctw_json_as_bool(node, &b, err);
        d = b;
    } else {
        st = read_activation(node, &act, err);
        d = act;
    }
    if (st == CTW_OK)
        store(c, key, d);
    return st;
}

/* ---- dtype ---- */

static enum ctw_status parse_dtype(const struct ctw_json_node *node, bool *has, enum ctw_dtype *out,
                                   struct ctw_err *err)
{
    static const struct {
        const char *name;
        enum ctw_dtype dtype;
    } names[] = {{"bfloat16", CTW_BF16},
                 {"float16", CTW_F16},
                 {"half", CTW_F16},
                 {"float32", CTW_F32},
                 {"float", CTW_F32}};
    const char *name = NULL;
    if (node == NULL || ctw_json_is_null(node))
        return CTW_OK;
    enum ctw_status st = ctw_json_as_string(node, &name, err);
    if (st != CTW_OK)
        return st;
    const char *word = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
    for (size_t i = 0; i < CTW_COUNT(names); i++)
        if (strcmp(word, names[i].name) == 0) {
            *out = names[i].dtype;
            *has = true;
            return CTW_OK;
        }
    return ctw_json_fail(node, err, CTW_EUNSUP,
                         "\"%s\" is not supported; supported: bfloat16, float16, float32", name);
}

static enum ctw_status read_dtype(struct ctw_config *c, struct ctw_err *err)
{
    const struct ctw_json_node *root = ctw_json_root(c->doc);
    const struct ctw_json_node *old = ctw_json_get(root, "torch_dtype");
    enum ctw_dtype old_dtype = CTW_F32;
    bool has_old = false;
    enum ctw_status st = parse_dtype(ctw_json_get(root, "dtype"), &c->has_dtype, &c->dtype, err);
    if (st == CTW_OK)
        st = parse_dtype(old, &has_old, &old_dtype, err);
    if (st == CTW_OK && has_old && c->has_dtype && old_dtype != c->dtype)
        st = ctw_json_fail(old, err, CTW_EFORMAT,
                           "differs from dtype, and transformers' versions differ in which they "
                           "use: remove one");
    if (st == CTW_OK && has_old) {
        c->has_dtype = true;
        c->dtype = old_dtype;
    }
    return st;
}

/* ---- windows ---- */

static enum ctw_status check_layer_types(const struct ctw_config *c,
                                         const struct ctw_json_node *types, struct ctw_err *err)
{
    if (ctw_json_count(types) != c->n_decoders)
        return ctw_json_fail(types, err, CTW_EFORMAT,
                             "found %" PRId64 " entries, expected num_hidden_layers = %" PRId64,
                             ctw_json_count(types), c->n_decoders);
    return CTW_OK;
}

static enum ctw_status read_layer_type(bool *sliding, const struct ctw_json_node *node,
                                       struct ctw_err *err)
{
    const char *type = NULL;
    enum ctw_status st = ctw_json_as_string(node, &type, err);
    if (st != CTW_OK)
        return st;
    *sliding = strcmp(type, "sliding_attention") == 0;
    if (*sliding || strcmp(type, "full_attention") == 0)
        return CTW_OK;
    return ctw_json_fail(node, err, CTW_EUNSUP,
                         "\"%s\" is not supported; supported: full_attention, sliding_attention",
                         type);
}

/* The window of every layer. In families with windows, layer_types decides, or else the rule. */
static enum ctw_status read_windows(struct ctw_config *c, struct ctw_err *err)
{
    const struct ctw_json_node *root = ctw_json_root(c->doc), *types = NULL, *t;
    bool has_switch = c->arch->window == CTW_WINDOW_FROM_LAYER;
    int64_t window = has_switch && !c->use_sliding_window ? 0 : c->sliding_window;
    enum ctw_status st = CTW_OK;
    if (has_switch && c->use_sliding_window && ctw_json_has(root, "sliding_window") && window < 1)
        st = ctw_json_fail(ctw_json_get(root, "sliding_window"), err, CTW_EFORMAT,
                           "found %" PRId64 ", expected at least 1", window);
    if (st == CTW_OK && c->arch->window != CTW_WINDOW_NONE)
        st =
            ctw_json_read_node(root, "layer_types", CTW_JSON_OPTIONAL, CTW_JSON_ARRAY, &types, err);
    if (st == CTW_OK && types != NULL)
        st = check_layer_types(c, types, err);
    if (st != CTW_OK)
        return st;
    c->windows = ctw_calloc((size_t)c->n_decoders, sizeof(*c->windows));
    if (c->windows == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for %" PRId64 " layers", c->n_decoders);
    t = types != NULL ? ctw_json_first(types) : NULL;
    for (int64_t i = 0; i < c->n_decoders; i++) {
        bool sliding = window != 0 && (!has_switch || i >= c->max_window_layers);
        if (t != NULL) {
            st = read_layer_type(&sliding, t, err);
            if (st == CTW_OK && sliding && window == 0)
                st = ctw_json_fail(t, err, CTW_EFORMAT,
                                   "found \"sliding_attention\", but use_sliding_window and "
                                   "sliding_window define no window");
            if (st != CTW_OK)
                return st;
            t = ctw_json_next(t);
        }
        c->windows[i] = sliding ? window : 0;
    }
    return CTW_OK;
}

/* ---- the whole file ---- */

static enum ctw_status check_dims(struct ctw_config *c, struct ctw_err *err)
{
    bool given = c->head != 0;
    if (c->n_kv == 0)
        c->n_kv = c->n_head;
    if (c->n_head % c->n_kv != 0)
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: num_attention_heads %" PRId64
                        " is not a multiple of num_key_value_heads %" PRId64,
                        c->file, c->n_head, c->n_kv);
    if (!given) {
        if (c->hidden % c->n_head != 0)
            return ctw_fail(err, CTW_EFORMAT,
                            "%s: hidden_size %" PRId64
                            " is not a multiple of num_attention_heads %" PRId64
                            ", and there is no head_dim",
                            c->file, c->hidden, c->n_head);
        c->head = c->hidden / c->n_head;
    }
    if (c->head % 2 != 0 || c->head > CTW_MAX_HEAD)
        return ctw_fail(
            err, CTW_EUNSUP, "%s: head_dim%s: found %" PRId64 ", expected an even number, 2 to %d",
            c->file, given ? "" : " (hidden_size / num_attention_heads)", c->head, CTW_MAX_HEAD);
    return CTW_OK;
}

static enum ctw_status read_all(struct ctw_config *c, struct ctw_err *err)
{
    const struct ctw_json_node *root = ctw_json_root(c->doc);
    enum ctw_status st = find_family(c, err);
    if (st == CTW_OK)
        st = ctw_quant_config_read(&c->quant, root, err);
    if (st == CTW_OK)
        st = check_base_keys(c, err);
    for (int i = 0; st == CTW_OK && i < c->arch->n_keys; i++)
        st = read_key(c, &c->arch->keys[i], err);
    if (st == CTW_OK)
        st = check_dims(c, err);
    if (st == CTW_OK)
        st = read_dtype(c, err);
    if (st == CTW_OK)
        st = read_windows(c, err);
    if (st == CTW_OK)
        st = ctw_rope_read(&c->rope, root, c->arch->rope_theta, c->max_length, err);
    return st == CTW_OK ? list_unread(c, err) : st;
}

enum ctw_status ctw_config_parse(struct ctw_config *out, const char *text, size_t bytes,
                                 const char *file, struct ctw_err *err)
{
    *out = (struct ctw_config){.file = file};
    enum ctw_status st = ctw_json_parse(&out->doc, file, text, bytes, MAX_CONFIG_BYTES, err);
    return st == CTW_OK ? read_all(out, err) : st;
}

enum ctw_status ctw_config_read(struct ctw_config *out, const char *path, const char *file,
                                struct ctw_err *err)
{
    *out = (struct ctw_config){.file = file};
    enum ctw_status st = ctw_json_parse_file(&out->doc, file, path, MAX_CONFIG_BYTES, err);
    return st == CTW_OK ? read_all(out, err) : st;
}

void ctw_config_close(struct ctw_config *c)
{
    ctw_unread_close(&c->unread);
    ctw_quant_config_close(&c->quant);
    ctw_free(c->windows);
    ctw_json_close(c->doc);
    *c = (struct ctw_config){0};
}
