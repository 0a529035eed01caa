/* Finds the family of a config.json, and the keys of its text model. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "worker/model/families/family.h"

#define ROW(name) &ctw_family_##name,
static const struct ctw_family *const families[] = {CTW_FAMILIES(ROW) NULL};
#undef ROW

/* The kind of model that a config.json states; NULL: not stated. */
struct kind {
    const char *type, *architecture, *text_type;
    const char *text_key; /* of the object with text_type */
};

static bool same(const char *a, const char *b)
{
    return a != NULL && b != NULL && strcmp(a, b) == 0;
}

/* The class of a supported model_type if `architectures` names another class; NULL: it names the
 * same class, or the type is not supported. */
static const char *other_class(const struct kind *kind)
{
    for (int i = 0; kind->architecture != NULL && families[i] != NULL; i++)
        if (same(families[i]->model_type, kind->type))
            return same(families[i]->architecture, kind->architecture) ? NULL
                                                                       : families[i]->architecture;
    return NULL;
}

/* Of the wrappers of several text models, only the first; none of a class without a type. */
static bool is_new_type(int i)
{
    bool is_new = families[i]->model_type != NULL;
    for (int j = 0; j < i && is_new; j++)
        is_new = !same(families[j]->model_type, families[i]->model_type);
    return is_new;
}

/* Every supported model_type. */
static void list_types(char *list, size_t cap)
{
    size_t at = 0;
    for (int i = 0; families[i] != NULL; i++)
        if (is_new_type(i) && at < cap)
            at += (size_t)snprintf(list + at, cap - at, "%s, ", families[i]->model_type);
    for (const struct ctw_host *h = ctw_hosts; h->model_type != NULL && at < cap; h++)
        at += (size_t)snprintf(list + at, cap - at, "%s%s", h->model_type,
                               h[1].model_type != NULL ? ", " : "");
    assert(at < cap);
}

static enum ctw_status unsupported(const struct ctw_config *c, const struct kind *kind,
                                   struct ctw_err *err)
{
    if (other_class(kind) != NULL)
        return ctw_fail(err, CTW_EUNSUP,
                        "%s: model_type \"%s\" (architecture \"%s\") is not supported; expected "
                        "architecture \"%s\": if the model is of this type, correct architectures",
                        c->file, kind->type, kind->architecture, other_class(kind));
    char known[CTW_ERR_MSG_MAX * 3 / 4] = "", text[128] = "";
    list_types(known, sizeof(known));
    if (kind->text_type != NULL)
        (void)snprintf(text, sizeof(text), " with %s.model_type \"%s\"", kind->text_key,
                       kind->text_type);
    return ctw_fail(err, CTW_EUNSUP,
                    "%s: model_type \"%s\" (architecture \"%s\")%s is not supported; supported: %s",
                    c->file, kind->type != NULL ? kind->type : "(none)",
                    kind->architecture != NULL ? kind->architecture : "(none)", text, known);
}

/* Both must match, if present; `old`: an older spelling, or NULL. */
static bool is_called(const char *model_type, const char *architecture, const char *old,
                      const struct kind *kind)
{
    bool type = same(model_type, kind->type);
    bool name = same(architecture, kind->architecture) || same(old, kind->architecture);
    return (type || (kind->type == NULL && name)) && (name || kind->architecture == NULL);
}

/* A wrapper's text model must match, too. */
static bool fits(const struct ctw_family *f, const struct kind *kind)
{
    if (!is_called(f->model_type, f->architecture, f->old_architecture, kind))
        return false;
    if (f->wrapper == NULL || f->wrapper->text_type == NULL)
        return true;
    return kind->text_type != NULL ? same(f->wrapper->text_type, kind->text_type)
                                   : f->wrapper->is_default;
}

/* The family of the text model in a host; none, unless both are known. Sets `text` if its key is
 * not text_config, and kind->text_type. */
static enum ctw_status find_hosted(struct ctw_config *c, struct kind *kind,
                                   const struct ctw_json_node **text, struct ctw_err *err)
{
    const struct ctw_host *h = ctw_hosts;
    enum ctw_status st = CTW_OK;
    while (h->model_type != NULL && !is_called(h->model_type, h->architecture, NULL, kind))
        h++;
    if (h->text_key != NULL) {
        kind->text_key = h->text_key;
        st = ctw_json_read_node(ctw_json_root(c->doc), h->text_key, CTW_JSON_REQUIRED,
                                CTW_JSON_OBJECT, text, err);
        if (st == CTW_OK)
            st =
                ctw_json_read_string(*text, "model_type", CTW_JSON_OPTIONAL, &kind->text_type, err);
    }
    if (st != CTW_OK)
        return st;
    const char *type = kind->text_type != NULL ? kind->text_type : h->text_type;
    const struct ctw_family *const *family = ctw_hosted;
    while (*family != NULL && !same((*family)->model_type, type))
        family++;
    if (h->model_type == NULL || *family == NULL)
        return CTW_OK;
    c->hosted = ctw_calloc(1, sizeof(*c->hosted));
    if (c->hosted == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for a model family");
    *c->hosted = **family;
    c->hosted->model_type = h->model_type;
    c->hosted->wrapper = &h->wrapper;
    c->hosted->spellings = h->spellings;
    c->family = c->hosted;
    return CTW_OK;
}

static enum ctw_status read_kind(struct kind *kind, const struct ctw_json_node *root,
                                 const struct ctw_json_node *text, struct ctw_err *err)
{
    const struct ctw_json_node *list = NULL;
    *kind = (struct kind){.text_key = "text_config"};
    enum ctw_status st =
        ctw_json_read_string(root, "model_type", CTW_JSON_OPTIONAL, &kind->type, err);
    if (st == CTW_OK)
        st = ctw_json_read_node(root, "architectures", CTW_JSON_OPTIONAL, CTW_JSON_ARRAY, &list,
                                err);
    if (st == CTW_OK && list != NULL && ctw_json_count(list) > 1)
        st = ctw_json_fail(list, err, CTW_EUNSUP, "found %" PRId64 " entries, expected one",
                           ctw_json_count(list));
    if (st == CTW_OK && list != NULL && ctw_json_count(list) == 1)
        st = ctw_json_as_string(ctw_json_first(list), &kind->architecture, err);
    if (st == CTW_OK && text != NULL)
        st = ctw_json_read_string(text, "model_type", CTW_JSON_OPTIONAL, &kind->text_type, err);
    if (st == CTW_OK &&
        same(kind->type, "")) /* as transformers saves what makers' own code lacks */
        kind->type = NULL;
    return st;
}

enum ctw_status ctw_find_family(struct ctw_config *c, struct ctw_err *err)
{
    const struct ctw_json_node *root = ctw_json_root(c->doc), *text = NULL;
    struct kind kind;
    enum ctw_status st = ctw_json_expect(root, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st =
            ctw_json_read_node(root, "text_config", CTW_JSON_OPTIONAL, CTW_JSON_OBJECT, &text, err);
    if (st == CTW_OK)
        st = read_kind(&kind, root, text, err);
    if (st != CTW_OK)
        return st;
    for (int i = 0; families[i] != NULL && c->family == NULL; i++)
        if (fits(families[i], &kind))
            c->family = families[i];
    if (c->family == NULL)
        st = find_hosted(c, &kind, &text, err);
    if (st != CTW_OK)
        return st;
    if (c->family == NULL)
        return unsupported(c, &kind, err);
    const struct ctw_wrapper *wrapper = c->family->wrapper;
    if (wrapper != NULL && text == NULL && !wrapper->flat)
        return ctw_json_fail(root, err, CTW_EFORMAT,
                             "text_config is missing; expected an object with the text model's "
                             "keys");
    c->text = wrapper != NULL && text != NULL ? text : root;
    return CTW_OK;
}
