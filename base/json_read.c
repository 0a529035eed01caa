#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/json.h"
#include "base/json_tree.h"

static const char *const expected_name[] = {
    [CTW_JSON_NULL] = "null",        [CTW_JSON_BOOL] = "true or false",
    [CTW_JSON_NUMBER] = "a number",  [CTW_JSON_NONFINITE] = "a number",
    [CTW_JSON_STRING] = "a string",  [CTW_JSON_ARRAY] = "an array",
    [CTW_JSON_OBJECT] = "an object",
};

/* Appends to buf[*at], NUL-terminated, truncated to cap. Control characters become '?', so that a
 * message stays on one line. */
static void append(char *buf, size_t cap, size_t *at, const char *text)
{
    for (; *text != '\0' && *at + 1 < cap; text++)
        buf[(*at)++] = (unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text;
    buf[*at] = '\0';
}

static long position_in_parent(const struct ctw_json_node *node, const struct ctw_json_node *parent)
{
    long position = 0;
    for (const struct ctw_json_node *n = ctw_json_first(parent); n != node; n = ctw_json_next(n))
        position++;
    return position;
}

void ctw_json_path(const struct ctw_json_node *node, char *buf, size_t cap)
{
    const struct ctw_json_node *nodes = node->doc->nodes.at, *chain[CTW_JSON_MAX_DEPTH + 1];
    size_t n = 0, at = 0;
    buf[0] = '\0';
    for (; node != nodes; node = &nodes[node->parent])
        chain[n++] = node;
    while (n-- > 0) {
        if (chain[n]->key != NULL) {
            append(buf, cap, &at, at > 0 ? "." : "");
            append(buf, cap, &at, chain[n]->key);
        } else {
            char index[32];
            (void)snprintf(index, sizeof(index), "[%ld]",
                           position_in_parent(chain[n], &nodes[chain[n]->parent]));
            append(buf, cap, &at, index);
        }
    }
}

void ctw_json_describe(const struct ctw_json_node *node, char *buf, size_t cap)
{
    enum { MAX_SHOWN = 60 };
    const char *source = node->doc->text + node->source;
    int shown = (int)(node->source_bytes > MAX_SHOWN ? MAX_SHOWN : node->source_bytes);
    const char *more = shown < (int)node->source_bytes ? "..." : "";
    char text[128];
    switch (ctw_json_type(node)) {
    case CTW_JSON_STRING:
        (void)snprintf(text, sizeof(text), "the string %.*s%s", shown, source, more);
        break;
    case CTW_JSON_NUMBER:
        (void)snprintf(text, sizeof(text), "the number %.*s", shown, source);
        break;
    case CTW_JSON_ARRAY:
        (void)snprintf(text, sizeof(text), "an array of %u", node->count);
        break;
    case CTW_JSON_OBJECT:
        (void)snprintf(text, sizeof(text), "an object of %u keys", node->count);
        break;
    default:
        (void)snprintf(text, sizeof(text), "%.*s", shown, source);
    }
    size_t at = 0;
    append(buf, cap, &at, text);
}

enum ctw_status ctw_json_fail(const struct ctw_json_node *node, struct ctw_err *err,
                              enum ctw_status status, const char *fmt, ...)
{
    char msg[CTW_ERR_MSG_MAX], path[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    ctw_json_path(node, path, sizeof(path));
    return ctw_fail(err, status, "%s: %s%s%s", node->doc->what, path, path[0] != '\0' ? ": " : "",
                    msg);
}

static enum ctw_status fail_expected(const struct ctw_json_node *node, const char *expected,
                                     struct ctw_err *err)
{
    char found[160];
    ctw_json_describe(node, found, sizeof(found));
    return ctw_json_fail(node, err, CTW_EFORMAT, "expected %s, found %s", expected, found);
}

enum ctw_status ctw_json_expect(const struct ctw_json_node *node, enum ctw_json_type type,
                                struct ctw_err *err)
{
    return node->type == type ? CTW_OK : fail_expected(node, expected_name[type], err);
}

/* The node's number as an exact int64; false if it is not one. */
static bool exact_int(const struct ctw_json_node *node, int64_t *out)
{
    const char *p = node->doc->text + node->source, *end = p + node->source_bytes;
    bool negative = *p == '-';
    int64_t v = 0;
    for (p += negative; p < end && *p >= '0' && *p <= '9'; p++) {
        int digit = negative ? -(*p - '0') : *p - '0';
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, digit, &v))
            return false;
    }
    if (p == end) {
        *out = v;
        return true;
    }
    /* With a fraction or an exponent: must be integral, and small enough for an exact double. */
    if (fabs(node->number) > 9007199254740992.0 || node->number != floor(node->number))
        return false;
    *out = (int64_t)node->number;
    return true;
}

enum ctw_status ctw_json_as_int(const struct ctw_json_node *node, int64_t min, int64_t max,
                                int64_t *out, struct ctw_err *err)
{
    char expected[96];
    int64_t v;
    if (node->type == CTW_JSON_NUMBER && exact_int(node, &v) && v >= min && v <= max) {
        *out = v;
        return CTW_OK;
    }
    if (max == INT64_MAX)
        (void)snprintf(expected, sizeof(expected), "a whole number of at least %lld",
                       (long long)min);
    else
        (void)snprintf(expected, sizeof(expected), "a whole number from %lld to %lld",
                       (long long)min, (long long)max);
    return fail_expected(node, expected, err);
}

enum ctw_status ctw_json_as_double(const struct ctw_json_node *node, double *out,
                                   struct ctw_err *err)
{
    if (node->type != CTW_JSON_NUMBER)
        return fail_expected(
            node, node->type == CTW_JSON_NONFINITE ? "a finite number" : "a number", err);
    *out = node->number;
    return CTW_OK;
}

enum ctw_status ctw_json_as_bool(const struct ctw_json_node *node, bool *out, struct ctw_err *err)
{
    enum ctw_status st = ctw_json_expect(node, CTW_JSON_BOOL, err);
    if (st == CTW_OK)
        *out = node->truth;
    return st;
}

enum ctw_status ctw_json_as_string(const struct ctw_json_node *node, const char **out,
                                   struct ctw_err *err)
{
    enum ctw_status st = ctw_json_expect(node, CTW_JSON_STRING, err);
    if (st == CTW_OK)
        *out = node->string;
    return st;
}

/* Looks up a member; *out is NULL if it is absent or null. */
static enum ctw_status look_up(const struct ctw_json_node *object, const char *key,
                               enum ctw_json_need need, const struct ctw_json_node **out,
                               struct ctw_err *err)
{
    enum ctw_status st = ctw_json_expect(object, CTW_JSON_OBJECT, err);
    if (st != CTW_OK)
        return st;
    *out = ctw_json_get(object, key);
    if (*out != NULL && (*out)->type != CTW_JSON_NULL)
        return CTW_OK;
    if (need == CTW_JSON_REQUIRED)
        return ctw_json_fail(object, err, CTW_EFORMAT, "\"%s\" is %s", key,
                             *out == NULL ? "missing" : "null, but is required");
    *out = NULL;
    return CTW_OK;
}

enum ctw_status ctw_json_read_int(const struct ctw_json_node *object, const char *key,
                                  enum ctw_json_need need, int64_t min, int64_t max, int64_t *out,
                                  struct ctw_err *err)
{
    const struct ctw_json_node *node;
    enum ctw_status st = look_up(object, key, need, &node, err);
    return st != CTW_OK || node == NULL ? st : ctw_json_as_int(node, min, max, out, err);
}

enum ctw_status ctw_json_read_double(const struct ctw_json_node *object, const char *key,
                                     enum ctw_json_need need, double *out, struct ctw_err *err)
{
    const struct ctw_json_node *node;
    enum ctw_status st = look_up(object, key, need, &node, err);
    return st != CTW_OK || node == NULL ? st : ctw_json_as_double(node, out, err);
}

enum ctw_status ctw_json_read_bool(const struct ctw_json_node *object, const char *key,
                                   enum ctw_json_need need, bool *out, struct ctw_err *err)
{
    const struct ctw_json_node *node;
    enum ctw_status st = look_up(object, key, need, &node, err);
    return st != CTW_OK || node == NULL ? st : ctw_json_as_bool(node, out, err);
}

enum ctw_status ctw_json_read_string(const struct ctw_json_node *object, const char *key,
                                     enum ctw_json_need need, const char **out, struct ctw_err *err)
{
    const struct ctw_json_node *node;
    enum ctw_status st = look_up(object, key, need, &node, err);
    return st != CTW_OK || node == NULL ? st : ctw_json_as_string(node, out, err);
}

enum ctw_status ctw_json_read_node(const struct ctw_json_node *object, const char *key,
                                   enum ctw_json_need need, enum ctw_json_type type,
                                   const struct ctw_json_node **out, struct ctw_err *err)
{
    const struct ctw_json_node *node;
    enum ctw_status st = look_up(object, key, need, &node, err);
    if (st != CTW_OK || node == NULL)
        return st;
    st = ctw_json_expect(node, type, err);
    if (st == CTW_OK)
        *out = node;
    return st;
}
