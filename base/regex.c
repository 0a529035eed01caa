#include "base/regex.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/mem.h"

/* A name of 100 characters takes less than 1,000 steps with the patterns that tools write. */
enum { MAX_PATTERN = 8192, MAX_STEPS = 500000, MAX_HEAP_KIB = 16384 };

struct ctw_regex {
    pcre2_general_context *memory;
    pcre2_compile_context *rules;
    pcre2_match_context *limits;
    pcre2_code *code;
    char *pattern;
};

static void *take(PCRE2_SIZE bytes, void *unused)
{
    (void)unused;
    return ctw_realloc(NULL, bytes, 1);
}

static void give_back(void *p, void *unused)
{
    (void)unused;
    ctw_free(p);
}

/* ---- from Python's syntax to PCRE2's ---- */

struct rewriter {
    const char *pattern, *at;
    char *to; /* at most twice as long, and a NUL */
    struct ctw_err *err;
};

static enum ctw_status refuse(const struct rewriter *r, const char *what)
{
    return ctw_fail(r->err, CTW_EUNSUP, "regular expression \"%s\": unsupported %s at character %d",
                    r->pattern, what, (int)(r->at - r->pattern) + 1);
}

static void copy(struct rewriter *r, size_t n)
{
    memcpy(r->to, r->at, n);
    r->to += n;
    r->at += n;
}

static void put(struct rewriter *r, const char *text)
{
    memcpy(r->to, text, strlen(text));
    r->to += strlen(text);
}

static bool is_hex(char c)
{
    return c != '\0' && strchr("0123456789abcdefABCDEF", c) != NULL;
}

/* Letters and digits whose escape has the same meaning in both languages. An escape of any other
 * character stands for that character. */
static enum ctw_status escape(struct rewriter *r, bool in_set)
{
    const char *same = in_set ? "bdDsSwWafnrt" : "AbBdDsSwWafnrt123456789";
    char c = r->at[1];
    bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (c == 'Z' && !in_set) { /* PCRE2's \Z also matches before a newline that ends the name */
        r->at += 2;
        put(r, "\\z");
        return CTW_OK;
    }
    if (c == 'x' && is_hex(r->at[2]) && is_hex(r->at[3])) {
        copy(r, 4);
        return CTW_OK;
    }
    bool longer = c >= '1' && c <= '9' && r->at[2] >= '0' && r->at[2] <= '9';
    if (word && (strchr(same, c) == NULL || longer))
        return refuse(r, "escape");
    copy(r, c == '\0' ? 1 : 2);
    return CTW_OK;
}

static enum ctw_status set(struct rewriter *r)
{
    enum ctw_status st = CTW_OK;
    copy(r, r->at[1] == '^' ? 2 : 1);
    if (*r->at == ']') /* the first is a member */
        copy(r, 1);
    while (*r->at != '\0' && *r->at != ']' && st == CTW_OK) {
        if (r->at[0] == '[' && r->at[1] != '\0' && strchr(":.=", r->at[1]) != NULL)
            return refuse(r, "class of characters in a set");
        if (*r->at == '\\')
            st = escape(r, true);
        else
            copy(r, 1);
    }
    if (st == CTW_OK && *r->at == ']')
        copy(r, 1);
    return st;
}

/* Checks a group at "(?", up to its name or flags. */
static enum ctw_status group(struct rewriter *r)
{
    static const char *const known[] = {"(?:", "(?=",  "(?!",  "(?<=", "(?<!",
                                        "(?>", "(?P<", "(?P=", "(?#",  NULL};
    for (int i = 0; known[i] != NULL; i++) {
        if (strncmp(r->at, known[i], strlen(known[i])) == 0) {
            copy(r, strlen(known[i]));
            return CTW_OK;
        }
    }
    size_t n = 2 + strspn(r->at + 2, "imsx");
    n += r->at[n] == '-' ? 1 + strspn(r->at + n + 1, "imsx") : 0;
    bool of_group = r->at[n] == ':', of_all = r->at[n] == ')' && r->at == r->pattern;
    if (n == 2 || !(of_group || of_all))
        return refuse(r, "(?...) construct");
    copy(r, n + 1);
    return CTW_OK;
}

/* Python's {m}, {m,}, {,n} and {m,n} repeat; other braces are characters. */
static void brace(struct rewriter *r)
{
    size_t low = strspn(r->at + 1, "0123456789"), at = 1 + low;
    bool comma = r->at[at] == ',';
    if (comma)
        at += 1 + strspn(r->at + at + 1, "0123456789");
    if (r->at[at] != '}' || (low == 0 && !comma)) {
        put(r, "\\{");
        r->at++;
    } else if (low == 0) { /* "{," */
        put(r, "{0");
        r->at++;
    } else {
        copy(r, at + 1);
    }
}

static enum ctw_status rewrite(struct rewriter *r)
{
    enum ctw_status st = CTW_OK;
    while (*r->at != '\0' && st == CTW_OK) {
        if (*r->at == '\\')
            st = escape(r, false);
        else if (*r->at == '[')
            st = set(r);
        else if (r->at[0] == '(' && r->at[1] == '?')
            st = group(r);
        else if (r->at[0] == '(' && r->at[1] == '*')
            st = refuse(r, "(*...) construct");
        else if (*r->at == '{')
            brace(r);
        else
            copy(r, 1);
    }
    *r->to = '\0';
    return st;
}

/* ---- compiling ---- */

static enum ctw_status no_memory(struct ctw_err *err)
{
    return ctw_fail(err, CTW_ENOMEM, "out of memory for a regular expression");
}

static enum ctw_status compile(struct ctw_regex *re, const char *rewritten, struct ctw_err *err)
{
    /* Error codes of PCRE2, which has no names for them. */
    enum { LARGE_COUNT = 105, TOO_LARGE = 120, NO_MEMORY = 121 };
    const uint32_t options =
        PCRE2_ANCHORED | PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MATCH_INVALID_UTF;
    int code;
    size_t at;
    re->memory = pcre2_general_context_create(take, give_back, NULL);
    if (re->memory != NULL)
        re->rules = pcre2_compile_context_create(re->memory);
    if (re->rules != NULL)
        re->limits = pcre2_match_context_create(re->memory);
    if (re->limits == NULL)
        return no_memory(err);
    (void)pcre2_set_newline(re->rules, PCRE2_NEWLINE_LF);
    (void)pcre2_set_match_limit(re->limits, MAX_STEPS);
    (void)pcre2_set_heap_limit(re->limits, MAX_HEAP_KIB);
    re->code =
        pcre2_compile((PCRE2_SPTR)rewritten, PCRE2_ZERO_TERMINATED, options, &code, &at, re->rules);
    if (re->code != NULL)
        return CTW_OK;
    if (code == NO_MEMORY)
        return no_memory(err);
    PCRE2_UCHAR why[128] = "";
    (void)pcre2_get_error_message(code, why, sizeof(why));
    bool large = code == LARGE_COUNT || code == TOO_LARGE;
    return ctw_fail(err, large ? CTW_EUNSUP : CTW_EFORMAT,
                    "regular expression \"%s\": %s at character %zu", rewritten, (const char *)why,
                    at + 1);
}

enum ctw_status ctw_regex_compile(struct ctw_regex **out, const char *pattern, struct ctw_err *err)
{
    size_t n = strlen(pattern);
    if (n > MAX_PATTERN)
        return ctw_fail(err, CTW_EUNSUP,
                        "a regular expression of %zu bytes; at most %d are supported", n,
                        MAX_PATTERN);
    struct ctw_regex *re = ctw_calloc(1, sizeof(*re));
    char *rewritten = ctw_calloc(2 * n + 1, 1);
    struct rewriter r = {.pattern = pattern, .at = pattern, .to = rewritten, .err = err};
    enum ctw_status st = CTW_OK;
    if (re == NULL || rewritten == NULL || (re->pattern = ctw_strdup(pattern)) == NULL)
        st = no_memory(err);
    if (st == CTW_OK)
        st = rewrite(&r);
    if (st == CTW_OK)
        st = compile(re, rewritten, err);
    ctw_free(rewritten);
    if (st != CTW_OK)
        ctw_regex_close(re);
    else
        *out = re;
    return st;
}

void ctw_regex_close(struct ctw_regex *re)
{
    if (re == NULL)
        return;
    pcre2_code_free(re->code);
    pcre2_match_context_free(re->limits);
    pcre2_compile_context_free(re->rules);
    pcre2_general_context_free(re->memory);
    ctw_free(re->pattern);
    ctw_free(re);
}

enum ctw_status ctw_regex_match(const struct ctw_regex *re, const char *name, bool *out,
                                struct ctw_err *err)
{
    pcre2_match_data *data = pcre2_match_data_create(1, re->memory);
    if (data == NULL)
        return no_memory(err);
    int rc = pcre2_match(re->code, (PCRE2_SPTR)name, strlen(name), 0, 0, data, re->limits);
    pcre2_match_data_free(data);
    *out = rc >= 0;
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH)
        return CTW_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return no_memory(err);
    return ctw_fail(err, CTW_EUNSUP,
                    "regular expression \"%s\" takes too many steps on \"%s\": write it without "
                    "repetitions of repetitions",
                    re->pattern, name);
}
