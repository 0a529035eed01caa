#include "worker/model/config.h"

#include <string.h>

#include "base/mem.h"
#include "worker/checkpoint/config/model_keys.h"
#include "worker/checkpoint/quant/quant_native.h"
#include "worker/model/families/family.h"

/* ---- keys ---- */

/* Read for every family: here and in quant_config.c. */
static const char *const common_keys[] = {
    "architectures",       "model_type",         "dtype",        "torch_dtype",
    "quantization_config", "compression_config", "quantization",
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

/* Checks them in the root or in text_config. */
static enum ctw_status check_base_keys(const struct ctw_config *c, const struct ctw_json_node *node,
                                       struct ctw_err *err)
{
    for (size_t i = 0; i < CTW_COUNT(base_keys); i++) {
        const char *name = base_keys[i].name;
        const struct ctw_json_node *m = ctw_json_get(node, name);
        bool causal = strcmp(name, "is_causal") == 0;
        char value[128];
        bool taken = c->family->layers_differ && strcmp(name, "per_layer_config") == 0;
        if (m == NULL || m == c->text || taken || (causal ? is_true(m) : is_empty(m)))
            continue;
        ctw_json_describe(m, value, sizeof(value));
        return ctw_json_fail(m, err, CTW_EUNSUP,
                             "found %s, which requests %s: not supported; expected %s", value,
                             base_keys[i].asks_for, causal ? "true" : "null, or no such key");
    }
    return CTW_OK;
}

static struct ctw_rope_readers rope_readers(const struct ctw_config *c)
{
    return (struct ctw_rope_readers){c->rope, c->n_ropes, c->rope_keys};
}

/* Is this a key that every family reads, at either level? */
static bool is_common(const char *key)
{
    for (size_t i = 0; i < CTW_COUNT(base_keys); i++)
        if (strcmp(base_keys[i].name, key) == 0)
            return true;
    return in_list(common_keys, CTW_COUNT(common_keys), key);
}

static bool is_read(const struct ctw_config *c, const struct ctw_json_node *level, const char *key)
{
    const struct ctw_rope_readers ropes = rope_readers(c);
    if (is_common(key))
        return true;
    if (level != c->text)
        return strcmp(key, "tie_word_embeddings") == 0;
    return ctw_rope_reads(&ropes, key) || in_list(c->keys, (size_t)c->n_keys, key);
}

/* Does the family read "OBJECT.KEY", or a key of that? KEY NULL: any key of the object. */
static bool reads_member(const struct ctw_config *c, const char *object, const char *key)
{
    size_t n = strlen(object), n_key = key != NULL ? strlen(key) : 0;
    for (int i = 0; i < c->n_keys; i++) {
        const char *member = c->keys[i] + n + 1;
        if (strncmp(c->keys[i], object, n) == 0 && c->keys[i][n] == '.' &&
            (key == NULL ||
             (strncmp(member, key, n_key) == 0 && (member[n_key] == '\0' || member[n_key] == '.'))))
            return true;
    }
    return false;
}

static enum ctw_status list_unread_at(struct ctw_config *c, const struct ctw_json_node *level,
                                      struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (const struct ctw_json_node *m = ctw_json_first(level); m != NULL && st == CTW_OK;
         m = ctw_json_next(m)) {
        const char *key = ctw_json_key(m);
        bool by_member = level == c->text && reads_member(c, key, NULL);
        const struct ctw_json_node *inner = by_member ? ctw_json_first(m) : NULL;
        if (!by_member && m != c->text && !is_read(c, level, key))
            st = ctw_unread_add(&c->unread, m, err);
        for (; inner != NULL && st == CTW_OK; inner = ctw_json_next(inner))
            if (!reads_member(c, key, ctw_json_key(inner)))
                st = ctw_unread_add(&c->unread, inner, err);
    }
    return st;
}

static enum ctw_status list_unread(struct ctw_config *c, struct ctw_err *err)
{
    const struct ctw_json_node *root = ctw_json_root(c->doc);
    const struct ctw_rope_readers ropes = rope_readers(c);
    enum ctw_status st = list_unread_at(c, root, err);
    if (st == CTW_OK && c->text != root)
        st = list_unread_at(c, c->text, err);
    if (st == CTW_OK)
        st = ctw_rope_list_unread(&ropes, c->text, &c->unread, err);
    return st == CTW_OK ? ctw_quant_config_list_unread(c->quantised, &c->unread, err) : st;
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

static enum ctw_status read_dtype(struct ctw_config *c, const struct ctw_json_node *level,
                                  struct ctw_err *err)
{
    const struct ctw_json_node *old = ctw_json_get(level, "torch_dtype");
    enum ctw_dtype old_dtype = CTW_F32;
    bool has_old = false;
    enum ctw_status st = parse_dtype(ctw_json_get(level, "dtype"), &c->has_dtype, &c->dtype, err);
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

/* ---- the whole file ---- */

/* A token has one row in all tables; that of a longrope is not always its position. */
static void check_positions(struct ctw_config *c)
{
    bool by_position = c->model->q_factor_beta != 0, by_length = false;
    for (int64_t i = 0; i < c->n_wants; i++)
        by_position |= ctw_want_is_end(&c->wants[i], false, CTW_M_POSITIONS);
    for (int i = 0; i < c->model->n_ropes; i++)
        by_length |= c->model->rope[i].long_inv_freq != NULL;
    if (c->status == CTW_OK && by_position && by_length)
        c->status = ctw_json_fail(c->text, &c->err, CTW_EUNSUP,
                                  "RoPE type longrope is not supported beside learned positions "
                                  "or factors of queries (llama_4_scaling_beta)");
}

static enum ctw_status describe(struct ctw_config *c, struct ctw_err *err)
{
    c->model = ctw_calloc(1, sizeof(*c->model));
    if (c->model == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for a model");
    c->family->describe(c);
    check_positions(c);
    if (c->status != CTW_OK && err != NULL)
        *err = c->err;
    return c->status;
}

/* The object that has the quantisation's keys: text_config if only text_config has them, otherwise
 * the root. */
static const struct ctw_json_node *find_quantised(const struct ctw_config *c)
{
    static const char *const keys[] = {"quantization_config", "compression_config", "quantization"};
    const struct ctw_json_node *root = ctw_json_root(c->doc);
    bool outer = false, inner = false;
    for (size_t i = 0; i < CTW_COUNT(keys); i++) {
        outer |= ctw_json_has(root, keys[i]);
        inner |= ctw_json_has(c->text, keys[i]);
    }
    return inner && !outer ? c->text : root;
}

static enum ctw_status read_all(struct ctw_config *c, struct ctw_err *err)
{
    const struct ctw_json_node *root = ctw_json_root(c->doc);
    enum ctw_status st = ctw_find_family(c, err);
    if (st != CTW_OK)
        return st;
    c->quantised = find_quantised(c);
    st = ctw_quant_config_read(&c->quant, c->quantised, err);
    const char *method = c->files != NULL ? ctw_container_method(c->files) : NULL;
    c->in_turn = method != NULL && strcmp(method, "ggml") == 0;
    if (st == CTW_OK && method != NULL)
        c->quant.names = ctw_part_names_find(method);
    if (st == CTW_OK)
        st = check_base_keys(c, root, err);
    if (st == CTW_OK && c->text != root)
        st = check_base_keys(c, c->text, err);
    if (st == CTW_OK)
        st = read_dtype(c, root, err);
    if (st == CTW_OK && !c->has_dtype && c->text != root)
        st = read_dtype(c, c->text, err);
    if (st == CTW_OK)
        st = describe(c, err);
    return st == CTW_OK ? list_unread(c, err) : st;
}

enum ctw_status ctw_config_parse(struct ctw_config *out, const char *text, size_t bytes,
                                 const char *file, struct ctw_err *err)
{
    *out = (struct ctw_config){.file = file};
    enum ctw_status st =
        ctw_json_parse(&out->doc, file, text, bytes, CTW_MODEL_KEYS_MAX_BYTES, err);
    return st == CTW_OK ? read_all(out, err) : st;
}

enum ctw_status ctw_config_read(struct ctw_config *out, struct ctw_json *keys, const char *file,
                                const struct ctw_container *files, struct ctw_err *err)
{
    *out = (struct ctw_config){.doc = keys, .file = file, .files = files};
    return read_all(out, err);
}

enum ctw_status ctw_config_read_beside(struct ctw_config *c, const char *dir, struct ctw_err *err)
{
    return c->quant.present ? CTW_OK : ctw_quant_folder_read(&c->quant, &c->beside, dir, err);
}

void ctw_config_close(struct ctw_config *c)
{
    ctw_unread_close(&c->unread);
    ctw_quant_config_close(&c->quant);
    for (int64_t i = 0; i < c->n_wants; i++) {
        ctw_free(c->wants[i].name);
        ctw_free(c->wants[i].described);
    }
    ctw_free(c->wants);
    ctw_free(c->windows);
    for (int i = 0; i < c->n_owned; i++)
        ctw_free(c->owned[i]);
    ctw_free(c->hosted);
    ctw_model_close(c->model);
    ctw_json_close(c->beside);
    ctw_json_close(c->doc);
    *c = (struct ctw_config){0};
}
