/*
 * Compiles a pattern.
 *
 * A fragment of a program is code[begin .. end), which falls through at its end. An operator that
 * needs an instruction before a fragment shifts the fragment; jumps are relative, so they stay
 * valid.
 */
#include <string.h>

#include "base/mem.h"
#include "worker/checkpoint/regex_program.h"

enum { MAX_CODE = 4096, MAX_REPEAT = 255, MAX_NESTING = 50 };

struct parser {
    const char *pattern, *at;
    struct ctw_regex *re;
    struct ctw_err *err;
    int nesting;
    bool looking; /* ahead */
};

static enum ctw_status refuse(struct parser *p, enum ctw_status status, const char *what)
{
    return ctw_fail(p->err, status, "regular expression \"%s\": %s at character %d", p->pattern,
                    what, (int)(p->at - p->pattern) + 1);
}

static enum ctw_status emit(struct parser *p, struct regex_instr instr)
{
    struct ctw_regex *re = p->re;
    if (re->n_code == MAX_CODE)
        return refuse(p, CTW_EUNSUP, "its program is too large");
    if ((re->n_code & (re->n_code - 1)) == 0) { /* capacity: powers of two */
        struct regex_instr *code =
            ctw_realloc(re->code, re->n_code == 0 ? 1 : (size_t)re->n_code * 2, sizeof(*code));
        if (code == NULL)
            return ctw_fail(p->err, CTW_ENOMEM, "out of memory for a regular expression");
        re->code = code;
    }
    re->code[re->n_code++] = instr;
    return CTW_OK;
}

/* Inserts one instruction before the fragment code[begin .. n_code). */
static enum ctw_status emit_before(struct parser *p, int begin, struct regex_instr instr)
{
    enum ctw_status st = emit(p, instr);
    if (st != CTW_OK)
        return st;
    struct regex_instr *code = p->re->code;
    memmove(code + begin + 1, code + begin, (size_t)(p->re->n_code - 1 - begin) * sizeof(*code));
    code[begin] = instr;
    return CTW_OK;
}

/* ---- sets of characters ---- */

static void set_add(uint32_t set[8], unsigned first, unsigned last)
{
    for (unsigned c = first; c <= last; c++)
        set[c >> 5] |= 1u << (c & 31);
}

static void set_invert(uint32_t set[8])
{
    for (int i = 0; i < 8; i++)
        set[i] = ~set[i];
}

/* Adds \d, \w, \s or their opposites; false if c names no class. */
static bool set_add_class(uint32_t set[8], char c)
{
    uint32_t s[8] = {0};
    switch (c) {
    case 'd':
    case 'D':
        set_add(s, '0', '9');
        break;
    case 'w':
    case 'W':
        set_add(s, '0', '9');
        set_add(s, 'A', 'Z');
        set_add(s, 'a', 'z');
        set_add(s, '_', '_');
        break;
    case 's':
    case 'S':
        set_add(s, '\t', '\r');
        set_add(s, ' ', ' ');
        break;
    default:
        return false;
    }
    if (c < 'a')
        set_invert(s);
    for (int i = 0; i < 8; i++)
        set[i] |= s[i];
    return true;
}

static bool is_punctuation(char c)
{
    return c != '\0' && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ", c) != NULL;
}

/* Parses [...]; p->at is after the opening bracket. */
static enum ctw_status parse_set(struct parser *p, uint32_t set[8])
{
    bool invert = *p->at == '^';
    p->at += invert ? 1 : 0;
    for (bool first = true; first || *p->at != ']'; first = false) {
        unsigned char low = (unsigned char)*p->at;
        if (low == '\0')
            return refuse(p, CTW_EFORMAT, "missing closing bracket");
        p->at++;
        if (low == '\\') {
            if (set_add_class(set, *p->at)) {
                p->at++;
                continue;
            }
            if (!is_punctuation(*p->at))
                return refuse(p, CTW_EUNSUP, "unsupported escape in a set");
            low = (unsigned char)*p->at++;
        }
        unsigned char high = low;
        if (p->at[0] == '-' && p->at[1] != ']' && p->at[1] != '\0') {
            if (p->at[1] == '\\')
                return refuse(p, CTW_EUNSUP, "unsupported escape as the end of a range");
            high = (unsigned char)p->at[1];
            p->at += 2;
        }
        if (high < low)
            return refuse(p, CTW_EFORMAT, "reversed range");
        set_add(set, low, high);
    }
    p->at++;
    if (invert)
        set_invert(set);
    return CTW_OK;
}

/* ---- the grammar ---- */

static enum ctw_status parse_alternatives(struct parser *p);

static enum ctw_status parse_inside(struct parser *p)
{
    if (++p->nesting > MAX_NESTING)
        return refuse(p, CTW_EUNSUP, "groups nested too deeply");
    enum ctw_status st = parse_alternatives(p);
    if (st != CTW_OK)
        return st;
    p->nesting--;
    if (*p->at != ')')
        return refuse(p, CTW_EFORMAT, "missing closing parenthesis");
    p->at++;
    return CTW_OK;
}

/* (?=...) or (?!...): a program of its own, which the run leaves out after trying it. */
static enum ctw_status parse_look(struct parser *p)
{
    int begin = p->re->n_code;
    bool wanted = p->at[1] == '=';
    if (p->looking) /* would take the name's length once more */
        return refuse(p, CTW_EUNSUP, "unsupported look-ahead within look-ahead");
    p->looking = true;
    p->at += 2;
    enum ctw_status st = parse_inside(p);
    p->looking = false;
    if (st == CTW_OK)
        st = emit(p, (struct regex_instr){.op = OP_MATCH});
    if (st != CTW_OK)
        return st;
    return emit_before(
        p, begin,
        (struct regex_instr){.op = OP_LOOK, .x = p->re->n_code - begin + 1, .y = wanted ? 1 : 0});
}

static enum ctw_status parse_group(struct parser *p)
{
    if (p->at[0] == '?') {
        if (p->at[1] == '=' || p->at[1] == '!')
            return parse_look(p);
        if (p->at[1] == ':') {
            p->at += 2;
        } else if (p->at[1] == 'P' && p->at[2] == '<') {
            p->at = strchr(p->at, '>');
            if (p->at == NULL) {
                p->at = p->pattern + strlen(p->pattern);
                return refuse(p, CTW_EFORMAT, "unterminated group name");
            }
            p->at++;
        } else {
            return refuse(p, CTW_EUNSUP, "unsupported (?...) construct (look-behind, flags)");
        }
    }
    return parse_inside(p);
}

static enum ctw_status parse_escape(struct parser *p)
{
    struct regex_instr instr = {.op = OP_SET};
    char c = *p->at;
    if (c == 'b' || c == 'B')
        instr.op = c == 'b' ? OP_WORD_EDGE : OP_NOT_WORD_EDGE;
    else if (c == 'A' || c == 'Z')
        instr.op = c == 'A' ? OP_START : OP_END;
    else if (is_punctuation(c))
        set_add(instr.set, (unsigned char)c, (unsigned char)c);
    else if (!set_add_class(instr.set, c))
        return refuse(p, CTW_EUNSUP, "unsupported escape");
    p->at++;
    return emit(p, instr);
}

static enum ctw_status parse_atom(struct parser *p)
{
    struct regex_instr instr = {.op = OP_SET};
    unsigned char c = (unsigned char)*p->at++;
    switch (c) {
    case '(':
        return parse_group(p);
    case '\\':
        return parse_escape(p);
    case '[': {
        enum ctw_status st = parse_set(p, instr.set);
        return st == CTW_OK ? emit(p, instr) : st;
    }
    case '.':
        set_add(instr.set, '\n', '\n');
        set_invert(instr.set);
        return emit(p, instr);
    case '^':
        instr.op = OP_START;
        return emit(p, instr);
    case '$':
        instr.op = OP_END;
        return emit(p, instr);
    case '*':
    case '+':
    case '?':
        p->at--;
        return refuse(p, CTW_EFORMAT, "repetition of nothing");
    default:
        set_add(instr.set, c, c);
        return emit(p, instr);
    }
}

/* Parses {m}, {m,}, {,n} or {m,n} at p->at; *max -1: unbounded. false: it is plain text. */
static bool parse_counts(struct parser *p, int *min, int *max)
{
    const char *s = p->at + 1;
    int n[2] = {-1, -1};
    bool comma = false;
    for (; *s != '}'; s++) {
        if (*s == ',' && !comma)
            comma = true;
        else if (*s >= '0' && *s <= '9' && n[comma] < 1000000)
            n[comma] = (n[comma] < 0 ? 0 : n[comma]) * 10 + (*s - '0');
        else
            return false;
    }
    if (!comma && n[0] < 0)
        return false;
    *min = n[0] < 0 ? 0 : n[0];
    *max = comma ? n[1] : n[0];
    p->at = s + 1;
    return true;
}

/* Repeats the fragment code[begin ..] min to max times (max -1: unbounded). */
static enum ctw_status repeat(struct parser *p, int begin, int min, int max)
{
    enum ctw_status st = CTW_OK;
    int length = p->re->n_code - begin;
    if (min > MAX_REPEAT || max > MAX_REPEAT)
        return refuse(p, CTW_EUNSUP, "repetition count above 255");
    if (max >= 0 && max < min)
        return refuse(p, CTW_EFORMAT, "repetition with reversed bounds");
    if (max == 0) {
        p->re->n_code = begin;
        return CTW_OK;
    }
    /* The fragment is the first copy; append the other copies. The optional copies come last. */
    int copies = max < 0 ? (min > 1 ? min : 1) : max;
    for (int c = 1; c < copies && st == CTW_OK; c++)
        for (int i = 0; i < length && st == CTW_OK; i++)
            st = emit(p, p->re->code[begin + i]);
    if (st != CTW_OK)
        return st;
    if (max < 0) { /* the last copy loops: body, split back; if min is 0, a split before it */
        int last = p->re->n_code - length;
        st = emit(p, (struct regex_instr){.op = OP_SPLIT, .x = -length, .y = 1});
        if (st == CTW_OK && min == 0)
            st =
                emit_before(p, last, (struct regex_instr){.op = OP_SPLIT, .x = 1, .y = length + 2});
        return st;
    }
    for (int c = max - 1; c >= min && st == CTW_OK; c--) { /* from the last copy to the first */
        int at = begin + c * length;
        st = emit_before(p, at,
                         (struct regex_instr){.op = OP_SPLIT, .x = 1, .y = p->re->n_code - at + 1});
    }
    return st;
}

static enum ctw_status parse_repeated(struct parser *p)
{
    int begin = p->re->n_code, min, max;
    enum ctw_status st = parse_atom(p);
    if (st != CTW_OK)
        return st;
    if (*p->at == '*' || *p->at == '+' || *p->at == '?') {
        min = *p->at == '+' ? 1 : 0;
        max = *p->at == '?' ? 1 : -1;
        p->at++;
    } else if (*p->at != '{' || !parse_counts(p, &min, &max)) {
        return CTW_OK;
    }
    if (*p->at == '?') /* lazy: matches the same names */
        p->at++;
    else if (*p->at == '+')
        return refuse(p, CTW_EUNSUP, "unsupported possessive repetition");
    if (*p->at == '*' || (*p->at == '{' && p->at[1] >= '0' && p->at[1] <= '9'))
        return refuse(p, CTW_EFORMAT, "repetition of a repetition");
    return repeat(p, begin, min, max);
}

static enum ctw_status parse_alternatives(struct parser *p)
{
    int begin = p->re->n_code;
    for (;;) {
        int branch = p->re->n_code;
        while (*p->at != '\0' && *p->at != '|' && *p->at != ')') {
            enum ctw_status st = parse_repeated(p);
            if (st != CTW_OK)
                return st;
        }
        if (*p->at != '|')
            break;
        p->at++;
        /* split to this branch or the next; the branch's final jump is set once the end is known */
        enum ctw_status st = emit(p, (struct regex_instr){.op = OP_JUMP, .x = 0});
        if (st == CTW_OK)
            st = emit_before(
                p, branch,
                (struct regex_instr){.op = OP_SPLIT, .x = 1, .y = p->re->n_code - branch + 1});
        if (st != CTW_OK)
            return st;
    }
    for (int i = begin; i < p->re->n_code; i++)
        if (p->re->code[i].op == OP_JUMP && p->re->code[i].x == 0)
            p->re->code[i].x = p->re->n_code - i;
    return CTW_OK;
}

enum ctw_status ctw_regex_compile(struct ctw_regex **out, const char *pattern, struct ctw_err *err)
{
    struct parser p = {.pattern = pattern, .at = pattern, .err = err};
    p.re = ctw_calloc(1, sizeof(*p.re));
    if (p.re == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for a regular expression");
    enum ctw_status st = parse_alternatives(&p);
    if (st == CTW_OK && *p.at != '\0')
        st = refuse(&p, CTW_EFORMAT, "unmatched closing parenthesis");
    if (st == CTW_OK)
        st = emit(&p, (struct regex_instr){.op = OP_MATCH});
    if (st != CTW_OK) {
        ctw_regex_close(p.re);
        return st;
    }
    *out = p.re;
    return CTW_OK;
}

void ctw_regex_close(struct ctw_regex *re)
{
    if (re == NULL)
        return;
    ctw_free(re->code);
    ctw_free(re);
}
