#include "worker/checkpoint/quant/match.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_ENTRIES = 65536, MAX_REGEXES = 1024, MAX_NAME = 1024 };

enum ctw_status ctw_patterns_read(struct ctw_patterns *out, const struct ctw_json_node *node,
                                  struct ctw_err *err)
{
    int n_regexes = 0;
    *out = (struct ctw_patterns){0};
    if (node == NULL || ctw_json_is_null(node))
        return CTW_OK;
    enum ctw_status st = ctw_json_expect(node, CTW_JSON_ARRAY, err);
    if (st != CTW_OK)
        return st;
    if (ctw_json_count(node) > MAX_ENTRIES)
        return ctw_json_fail(node, err, CTW_EUNSUP, "more than %d entries", MAX_ENTRIES);
    out->items = ctw_calloc((size_t)ctw_json_count(node), sizeof(*out->items));
    if (out->items == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for a list of names");
    for (const struct ctw_json_node *e = ctw_json_first(node); e != NULL; e = ctw_json_next(e)) {
        struct ctw_pattern *p = &out->items[out->n++];
        st = ctw_json_as_string(e, &p->text, err);
        if (st != CTW_OK)
            return st;
        if (strncmp(p->text, "re:", 3) != 0)
            continue;
        if (++n_regexes > MAX_REGEXES)
            return ctw_json_fail(e, err, CTW_EUNSUP, "more than %d regular expressions",
                                 MAX_REGEXES);
        struct ctw_err why;
        st = ctw_regex_compile(&p->regex, p->text + 3, &why);
        if (st != CTW_OK)
            return ctw_json_fail(e, err, st, "%s", why.msg);
    }
    return CTW_OK;
}

enum ctw_status ctw_patterns_read_parts(struct ctw_patterns *out, const struct ctw_json_node *node,
                                        struct ctw_err *err)
{
    *out = (struct ctw_patterns){0};
    if (node == NULL || ctw_json_is_null(node))
        return CTW_OK;
    enum ctw_status st = ctw_json_expect(node, CTW_JSON_ARRAY, err);
    if (st == CTW_OK && ctw_json_count(node) > MAX_ENTRIES)
        return ctw_json_fail(node, err, CTW_EUNSUP, "more than %d entries", MAX_ENTRIES);
    const struct ctw_json_node *e = st == CTW_OK ? ctw_json_first(node) : NULL;
    for (; e != NULL && st == CTW_OK; e = ctw_json_next(e)) {
        struct ctw_pattern entry = {.part = true};
        st = ctw_json_as_string(e, &entry.text, err);
        if (st == CTW_OK)
            st = ctw_patterns_add(out, &entry, err);
    }
    return st;
}

enum ctw_status ctw_patterns_add(struct ctw_patterns *patterns, const struct ctw_pattern *entry,
                                 struct ctw_err *err)
{
    if ((patterns->n & (patterns->n - 1)) == 0) { /* full: it holds a power of two */
        size_t cap = patterns->n == 0 ? 1 : 2 * (size_t)patterns->n;
        struct ctw_pattern *more = ctw_realloc(patterns->items, cap, sizeof(*more));
        if (more == NULL)
            return ctw_fail(err, CTW_ENOMEM, "out of memory for a list of names");
        patterns->items = more;
    }
    struct ctw_pattern *p = &patterns->items[patterns->n++];
    *p = *entry;
    p->literal = strcspn(p->text, "*?[");
    p->bytes = strlen(p->text);
    return CTW_OK;
}

void ctw_patterns_close(struct ctw_patterns *patterns)
{
    for (int64_t i = 0; i < patterns->n; i++)
        ctw_regex_close(patterns->items[i].regex);
    ctw_free(patterns->items);
    *patterns = (struct ctw_patterns){0};
}

/*
 * Does `name` begin or end with the components of the pattern's text? Lists of a mixture are long
 * and are searched for every expert's matrix, so the part in which most entries differ is compared
 * first.
 */
static bool has_part(const struct ctw_pattern *p, const char *name)
{
    char around[MAX_NAME];
    size_t n = p->bytes, bytes = strlen(name);
    if (p->literal < n) { /* with wildcards */
        if (strncmp(name, p->text, p->literal) != 0)
            return false;
        (void)snprintf(around, sizeof(around), "%s.*", p->text);
        return fnmatch(p->text, name, 0) == 0 || fnmatch(around, name, 0) == 0;
    }
    if (n == 0 || n > bytes)
        return false;
    if ((name[n] == '\0' || name[n] == '.') && memcmp(name, p->text, n) == 0)
        return true;
    return n < bytes && name[bytes - n - 1] == '.' && memcmp(name + bytes - n, p->text, n) == 0;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Is this a name of the class? Every class is derived from "Module". */
static bool is_class(const char *text, const char *class_name)
{
    static const char *const experts[] = {"Experts", "ExpertsLinear", "MoELinear"};
    bool found = strcmp(text, class_name) == 0 || strcmp(text, "Module") == 0;
    bool stack = strcmp(class_name, CTW_CLASS_EXPERTS) == 0 && strchr(text, '.') == NULL;
    for (size_t i = 0; stack && !found && i < CTW_COUNT(experts); i++)
        found = ends_with(text, experts[i]);
    return found;
}

enum ctw_status ctw_pattern_match(const struct ctw_pattern *pattern, const char *name,
                                  const char *class_name, enum ctw_match *out, struct ctw_err *err)
{
    bool matched = false;
    *out = CTW_MATCH_NONE;
    if (pattern->regex != NULL) {
        enum ctw_status st = ctw_regex_match(pattern->regex, name, &matched, err);
        if (st == CTW_OK && matched)
            *out = CTW_MATCH_REGEX;
        return st;
    }
    if (pattern->part) {
        if (has_part(pattern, name))
            *out = CTW_MATCH_NAME;
        return CTW_OK;
    }
    if (strcmp(pattern->text, name) == 0)
        *out = CTW_MATCH_NAME;
    else if (is_class(pattern->text, class_name))
        *out = CTW_MATCH_CLASS;
    return CTW_OK;
}

enum ctw_status ctw_patterns_match(const struct ctw_patterns *patterns, const char *name,
                                   const char *class_name, bool *out, struct ctw_err *err)
{
    *out = false;
    for (int64_t i = 0; i < patterns->n && !*out; i++) {
        enum ctw_match match;
        enum ctw_status st = ctw_pattern_match(&patterns->items[i], name, class_name, &match, err);
        if (st != CTW_OK)
            return st;
        *out = match != CTW_MATCH_NONE;
    }
    return CTW_OK;
}
