#include <string.h>

#include "base/json_tree.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { MAX_NUMBER_BYTES = 63 }; /* cJSON's limit */

struct scan {
    const char *text;
    size_t bytes, at;
    const char *what;
    struct ctw_json_nodes *nodes;
    struct ctw_err *err;
};

static enum ctw_status fail_at(const struct scan *s, size_t at, const char *problem)
{
    size_t line = 1, line_start = 0;
    for (size_t i = 0; i < at && i < s->bytes; i++)
        if (s->text[i] == '\n') {
            line++;
            line_start = i + 1;
        }
    size_t column = at - line_start + 1;
    if (at >= s->bytes)
        return ctw_fail(s->err, CTW_EFORMAT,
                        "%s: not valid JSON: the text ends at line %zu, "
                        "column %zu; %s",
                        s->what, line, column, problem);
    unsigned char c = (unsigned char)s->text[at];
    char found[16];
    if (c > ' ' && c < 0x7f) {
        memcpy(found, "'?'", 4);
        found[1] = (char)c;
    } else {
        static const char hex[] = "0123456789abcdef";
        memcpy(found, "byte 0x??", 10);
        found[7] = hex[c >> 4];
        found[8] = hex[c & 15];
    }
    return ctw_fail(s->err, CTW_EFORMAT, "%s: not valid JSON at line %zu, column %zu (%s): %s",
                    s->what, line, column, found, problem);
}

static void skip_space(struct scan *s)
{
    while (s->at < s->bytes && (s->text[s->at] == ' ' || s->text[s->at] == '\n' ||
                                s->text[s->at] == '\r' || s->text[s->at] == '\t'))
        s->at++;
}

/* The byte at `at`, or 0 at the end (no caller looks for a NUL in the text). */
static char peek(const struct scan *s)
{
    return s->at < s->bytes ? s->text[s->at] : '\0';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The value of the four hex digits at `at`; -1: not four hex digits. */
static int32_t hex4(const struct scan *s, size_t at)
{
    int32_t v = 0;
    if (s->bytes - at < 4)
        return -1;
    for (size_t i = at; i < at + 4; i++) {
        char c = s->text[i];
        int digit = is_digit(c)              ? c - '0'
                    : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                    : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                             : -1;
        if (digit < 0)
            return -1;
        v = v * 16 + digit;
    }
    return v;
}

/* On entry s->at is at the 'u'; on return it is after the escape (after both halves of a pair). */
static enum ctw_status scan_unicode_escape(struct scan *s)
{
    size_t start = s->at - 1;
    int32_t unit = hex4(s, s->at + 1);
    if (unit < 0)
        return fail_at(s, start, "\\u needs four hexadecimal digits");
    if (unit == 0)
        return fail_at(s, start, "\\u0000 is not accepted in a string");
    s->at += 5;
    if (unit < 0xd800 || unit > 0xdfff)
        return CTW_OK;
    bool paired = unit < 0xdc00 && s->bytes - s->at >= 6 && s->text[s->at] == '\\' &&
                  s->text[s->at + 1] == 'u';
    int32_t low = paired ? hex4(s, s->at + 2) : -1;
    if (low < 0xdc00 || low > 0xdfff)
        return fail_at(s, start, "a lone surrogate is not a character");
    s->at += 6;
    return CTW_OK;
}

static enum ctw_status scan_string(struct scan *s)
{
    size_t start = s->at++; /* the quote */
    while (s->at < s->bytes) {
        unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"') {
            s->at++;
            return CTW_OK;
        }
        if (c < 0x20)
            return fail_at(s, s->at, "a control character in a string must be escaped");
        if (c != '\\') {
            size_t step = ctw_utf8_step((const unsigned char *)s->text + s->at, s->bytes - s->at);
            if (step == 0)
                return fail_at(s, s->at, "not UTF-8");
            s->at += step;
            continue;
        }
        s->at++;
        c = (unsigned char)peek(s);
        if (c == 'u') {
            enum ctw_status st = scan_unicode_escape(s);
            if (st != CTW_OK)
                return st;
        } else if (c != '\0' && strchr("\"\\/bfnrt", c) != NULL) {
            s->at++;
        } else {
            return fail_at(s, s->at, "invalid escape in a string");
        }
    }
    return fail_at(s, start, "the string that begins here is not terminated");
}

static size_t skip_digits(struct scan *s)
{
    size_t start = s->at;
    while (is_digit(peek(s)))
        s->at++;
    return s->at - start;
}

static enum ctw_status scan_number(struct scan *s)
{
    size_t start = s->at;
    if (peek(s) == '-')
        s->at++;
    if (peek(s) == '0')
        s->at++;
    else if (skip_digits(s) == 0)
        return fail_at(s, s->at, "expected a digit");
    if (is_digit(peek(s)))
        return fail_at(s, start, "a number must not begin with a zero");
    if (peek(s) == '.') {
        s->at++;
        if (skip_digits(s) == 0)
            return fail_at(s, s->at, "expected a digit after the decimal point");
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-')
            s->at++;
        if (skip_digits(s) == 0)
            return fail_at(s, s->at, "expected a digit in the exponent");
    }
    if (s->at - start > MAX_NUMBER_BYTES)
        return fail_at(s, start, "a number of more than 63 characters is not accepted");
    return CTW_OK;
}

static bool take_word(struct scan *s, const char *word)
{
    size_t n = strlen(word);
    if (s->bytes - s->at < n || memcmp(s->text + s->at, word, n) != 0)
        return false;
    s->at += n;
    return true;
}

static enum ctw_status scan_scalar(struct scan *s, struct ctw_json_node *node)
{
    char c = peek(s);
    if (c == '"') {
        node->type = CTW_JSON_STRING;
        return scan_string(s);
    }
    if (take_word(s, "Infinity") || take_word(s, "-Infinity") || take_word(s, "NaN")) {
        node->type = CTW_JSON_NONFINITE;
        return CTW_OK;
    }
    if (c == '-' || is_digit(c)) {
        node->type = CTW_JSON_NUMBER;
        return scan_number(s);
    }
    node->type = CTW_JSON_BOOL;
    node->truth = c == 't';
    if (take_word(s, "true") || take_word(s, "false"))
        return CTW_OK;
    node->type = CTW_JSON_NULL;
    return take_word(s, "null") ? CTW_OK : fail_at(s, s->at, "expected a value");
}

static enum ctw_status append(struct scan *s, uint32_t parent, uint32_t *out)
{
    struct ctw_json_nodes *nodes = s->nodes;
    if (nodes->count == nodes->capacity) {
        size_t capacity = nodes->capacity == 0 ? 64 : (size_t)nodes->capacity * 2;
        if (capacity > UINT32_MAX)
            capacity = UINT32_MAX; /* more than the bytes of the text */
        struct ctw_json_node *at = ctw_realloc(nodes->at, capacity, sizeof(*at));
        if (at == NULL)
            return ctw_fail(s->err, CTW_ENOMEM, "%s: out of memory for %zu JSON values", s->what,
                            capacity);
        nodes->at = at;
        nodes->capacity = (uint32_t)capacity;
    }
    *out = nodes->count++;
    nodes->at[*out] = (struct ctw_json_node){.parent = parent, .source = (uint32_t)s->at};
    return CTW_OK;
}

static enum ctw_status scan_value(struct scan *s, uint32_t parent, int depth, uint32_t *out);

static enum ctw_status scan_key(struct scan *s)
{
    skip_space(s);
    if (peek(s) != '"')
        return fail_at(s, s->at, "expected a key in double quotes");
    enum ctw_status st = scan_string(s);
    if (st != CTW_OK)
        return st;
    skip_space(s);
    if (peek(s) != ':')
        return fail_at(s, s->at, "expected ':' after a key");
    s->at++;
    return CTW_OK;
}

/* Scans members or elements up to the closing bracket; s->at is after the opening bracket. */
static enum ctw_status scan_children(struct scan *s, uint32_t self, int depth, char close)
{
    uint32_t child = 0, last = 0;
    enum ctw_status st;
    skip_space(s);
    if (peek(s) == close) {
        s->at++;
        return CTW_OK;
    }
    for (;;) {
        if (close == '}' && (st = scan_key(s)) != CTW_OK)
            return st;
        if ((st = scan_value(s, self, depth + 1, &child)) != CTW_OK)
            return st;
        if (last != 0)
            s->nodes->at[last].next = child;
        last = child;
        s->nodes->at[self].count++;
        skip_space(s);
        char c = peek(s);
        if (c != ',' && c != close)
            return fail_at(s, s->at, close == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
        s->at++;
        if (c == close)
            return CTW_OK;
    }
}

static enum ctw_status scan_value(struct scan *s, uint32_t parent, int depth, uint32_t *out)
{
    uint32_t self = 0;
    enum ctw_status st;
    skip_space(s);
    if (depth > CTW_JSON_MAX_DEPTH)
        return fail_at(s, s->at, "nested too deeply");
    if ((st = append(s, parent, &self)) != CTW_OK)
        return st;
    *out = self;
    char c = peek(s);
    if (c == '{' || c == '[') {
        s->nodes->at[self].type = c == '{' ? CTW_JSON_OBJECT : CTW_JSON_ARRAY;
        s->at++;
        st = scan_children(s, self, depth, c == '{' ? '}' : ']');
    } else {
        st = scan_scalar(s, &s->nodes->at[self]);
    }
    struct ctw_json_node *node = &s->nodes->at[self];
    node->source_bytes = (uint32_t)s->at - node->source;
    return st;
}

enum ctw_status ctw_json_scan(struct ctw_json_nodes *nodes, const char *text, size_t bytes,
                              const char *what, struct ctw_err *err)
{
    struct scan s = {.text = text, .bytes = bytes, .what = what, .nodes = nodes, .err = err};
    uint32_t root;
    enum ctw_status st = scan_value(&s, 0, 1, &root);
    if (st != CTW_OK)
        return st;
    skip_space(&s);
    return s.at == bytes ? CTW_OK : fail_at(&s, s.at, "expected nothing after the value");
}
