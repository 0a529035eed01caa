#include "worker/cli/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/closest.h"
#include "worker/cli/options_help.h"

enum { MAX_ENV_NAME = 64 };

/* ---- rows ---- */

struct ctw_option ctw_opt_flag(const char *name, bool *value, const char *help)
{
    return (struct ctw_option){.name = name, .type = CTW_OPT_FLAG, .value = value, .help = help};
}

struct ctw_option ctw_opt_string(const char *name, const char **value, const char *meta,
                                 const char *help)
{
    return (struct ctw_option){
        .name = name, .type = CTW_OPT_STRING, .value = value, .meta = meta, .help = help};
}

struct ctw_option ctw_opt_list(const char *name, struct ctw_option_list *value, const char *meta,
                               const char *help)
{
    return (struct ctw_option){
        .name = name, .type = CTW_OPT_LIST, .value = value, .meta = meta, .help = help};
}

struct ctw_option ctw_opt_int(const char *name, int64_t *value, int64_t min, int64_t max,
                              const char *meta, const char *help)
{
    return (struct ctw_option){.name = name,
                               .type = CTW_OPT_INT,
                               .value = value,
                               .min = min,
                               .max = max,
                               .meta = meta,
                               .help = help};
}

struct ctw_option ctw_opt_bytes(const char *name, uint64_t *value, const char *meta,
                                const char *help)
{
    return (struct ctw_option){
        .name = name, .type = CTW_OPT_BYTES, .value = value, .meta = meta, .help = help};
}

struct ctw_option ctw_opt_amount(const char *name, struct ctw_amount *value, const char *meta,
                                 const char *help)
{
    return (struct ctw_option){
        .name = name, .type = CTW_OPT_AMOUNT, .value = value, .meta = meta, .help = help};
}

struct ctw_option ctw_opt_choice(const char *name, const char **value, const char *choices,
                                 const char *help)
{
    return (struct ctw_option){
        .name = name, .type = CTW_OPT_CHOICE, .value = value, .choices = choices, .help = help};
}

struct ctw_option ctw_opt_required(struct ctw_option option)
{
    option.required = true;
    return option;
}

/* ---- values ---- */

static bool parse_int(const char *text, int64_t *out)
{
    const char *digits = text + (*text == '-' || *text == '+');
    char *end;
    if (*digits < '0' || *digits > '9')
        return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static bool parse_bool(const char *text, bool *out)
{
    static const char *const yes[] = {"1", "true", "yes", "on"};
    static const char *const no[] = {"0", "false", "no", "off"};
    for (size_t i = 0; i < CTW_COUNT(yes); i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *out = strcasecmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

bool ctw_bytes_parse(const char *text, uint64_t *out)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"KB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
        {"KiB", 1u << 10},
        {"MiB", 1u << 20},
        {"GiB", 1u << 30},
        {"TiB", (uint64_t)1 << 40},
    };
    uint64_t whole = 0;
    double fraction = 0, place = 1;
    const char *p = text;
    if (*p < '0' || *p > '9')
        return false;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(whole, 10u, &whole) ||
            __builtin_add_overflow(whole, (uint64_t)(*p - '0'), &whole))
            return false;
    if (*p == '.') {
        if (p[1] < '0' || p[1] > '9')
            return false;
        for (p++; *p >= '0' && *p <= '9'; p++)
            fraction += (*p - '0') * (place /= 10);
    }
    if (*p == ' ')
        p++;
    for (size_t i = 0; i < CTW_COUNT(units); i++) {
        uint64_t bytes;
        if (strcasecmp(p, units[i].name) != 0)
            continue;
        if (__builtin_mul_overflow(whole, units[i].bytes, &bytes) ||
            __builtin_add_overflow(bytes, (uint64_t)(fraction * (double)units[i].bytes), &bytes))
            return false;
        *out = bytes;
        return true;
    }
    return false;
}

bool ctw_amount_parse(const char *text, struct ctw_amount *out)
{
    char *end;
    *out = (struct ctw_amount){0};
    if (strchr(text, '%') == NULL)
        return ctw_bytes_parse(text, &out->bytes) && out->bytes > 0;
    if (strspn(text, "0123456789.") == 0)
        return false;
    out->share = strtod(text, &end) / 100;
    return strcmp(end, "%") == 0 && out->share > 0 && out->share <= 1;
}

/* Is text one of the words between the bars? */
static bool is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *p = choices; n > 0; p++) {
        const char *bar = strchrnul(p, '|');
        if ((size_t)(bar - p) == n && memcmp(p, text, n) == 0)
            return true;
        if (*bar == '\0')
            break;
        p = bar;
    }
    return false;
}

/* `source`: "--threads" or "CTW_THREADS". */
static enum ctw_status set_value(const struct ctw_option *o, const char *source, const char *text,
                                 struct ctw_err *err)
{
    int64_t v;
    if (text[0] == '\0' && (o->type == CTW_OPT_STRING || o->type == CTW_OPT_LIST))
        return ctw_fail(err, CTW_EINVAL,
                        "%s: expected %s, found \"\" (is a variable of the shell empty?)", source,
                        o->meta);
    switch (o->type) {
    case CTW_OPT_FLAG:
        if (parse_bool(text, o->value))
            return CTW_OK;
        return ctw_fail(err, CTW_EINVAL, "%s: expected yes or no, found \"%s\"", source, text);
    case CTW_OPT_STRING:
        *(const char **)o->value = text;
        return CTW_OK;
    case CTW_OPT_LIST: {
        struct ctw_option_list *list = o->value;
        if (list->n == list->max)
            return ctw_fail(err, CTW_EINVAL, "%s: at most %d are allowed", source, list->max);
        list->values[list->n++] = text;
        return CTW_OK;
    }
    case CTW_OPT_INT:
        if (!parse_int(text, &v) || v < o->min || v > o->max)
            return ctw_fail(err, CTW_EINVAL,
                            "%s: expected a whole number from %lld to %lld, found \"%s\"", source,
                            (long long)o->min, (long long)o->max, text);
        *(int64_t *)o->value = v;
        return CTW_OK;
    case CTW_OPT_BYTES:
        if (ctw_bytes_parse(text, o->value))
            return CTW_OK;
        return ctw_fail(err, CTW_EINVAL,
                        "%s: expected a size such as 512MiB, 20GiB or 1.5GB, found \"%s\"", source,
                        text);
    case CTW_OPT_AMOUNT:
        if (ctw_amount_parse(text, o->value))
            return CTW_OK;
        return ctw_fail(err, CTW_EINVAL,
                        "%s: expected a size such as 20GiB, or a share such as 90%%, found \"%s\"",
                        source, text);
    case CTW_OPT_CHOICE:
        if (!is_choice(o->choices, text))
            return ctw_fail(err, CTW_EINVAL, "%s: expected one of %s, found \"%s\"", source,
                            o->choices, text);
        *(const char **)o->value = text;
        return CTW_OK;
    }
    return ctw_fail(err, CTW_EINTERNAL, "%s: the option has an unknown type", source);
}

static enum ctw_status fail_unknown(const struct ctw_command_line *line, const char *word, int n,
                                    struct ctw_err *err)
{
    enum { MAX_NAMES = 64 };
    const char *names[MAX_NAMES];
    char bare[64];
    int n_names = 0;
    (void)snprintf(bare, sizeof(bare), "%.*s", n, word);
    for (int i = 0; i < line->n_options && n_names < MAX_NAMES - 1; i++)
        names[n_names++] = line->options[i].name;
    names[n_names++] = "help";
    const char *best = ctw_closest(bare + strspn(bare, "-"), names, n_names);
    return ctw_fail(err, CTW_EINVAL, "unknown option %s%s%s; ctworker %s --help lists the options",
                    bare, best != NULL ? "; did you mean --" : "", best != NULL ? best : "",
                    line->name);
}

/* ---- the command line ---- */

/* Sets options from the environment; with `lists`, only lists that the command line left empty. */
static enum ctw_status read_environment(const struct ctw_command_line *line, bool lists,
                                        struct ctw_err *err)
{
    for (int i = 0; i < line->n_options; i++) {
        const struct ctw_option *o = &line->options[i];
        char name[MAX_ENV_NAME];
        ctw_option_env_name(o, name, sizeof(name));
        const char *text = getenv(name);
        if (text == NULL || *text == '\0' || (o->type == CTW_OPT_LIST) != lists)
            continue;
        if (lists && ((const struct ctw_option_list *)o->value)->n > 0)
            continue;
        enum ctw_status st = set_value(o, name, text, err);
        if (st != CTW_OK)
            return st;
    }
    return CTW_OK;
}

static const struct ctw_option *find_option(const struct ctw_command_line *line, const char *name,
                                            size_t n)
{
    for (int i = 0; i < line->n_options; i++)
        if (strlen(line->options[i].name) == n && memcmp(line->options[i].name, name, n) == 0)
            return &line->options[i];
    return NULL;
}

/* argv[*at] begins with a dash. Advances *at by one if the value is a separate word. */
static enum ctw_status read_option(const struct ctw_command_line *line, int argc, char **argv,
                                   int *at, struct ctw_err *err)
{
    const char *word = argv[*at], *equals = strchrnul(word, '=');
    const struct ctw_option *o = NULL;
    if (strncmp(word, "--", 2) == 0)
        o = find_option(line, word + 2, (size_t)(equals - word) - 2);
    if (o == NULL)
        return fail_unknown(line, word, (int)(equals - word), err);
    char source[64];
    (void)snprintf(source, sizeof(source), "--%s", o->name);
    if (*equals == '=')
        return set_value(o, source, equals + 1, err);
    if (o->type == CTW_OPT_FLAG) {
        *(bool *)o->value = true;
        return CTW_OK;
    }
    const char *next = *at + 1 < argc ? argv[*at + 1] : "--";
    if (strncmp(next, "--", 2) == 0)
        return ctw_fail(err, CTW_EINVAL, "--%s needs a value: --%s %s", o->name, o->name,
                        o->meta != NULL      ? o->meta
                        : o->choices != NULL ? o->choices
                                             : "VALUE");
    ++*at;
    return set_value(o, source, next, err);
}

static enum ctw_status check_all_there(const struct ctw_command_line *line, int n_positional,
                                       struct ctw_err *err)
{
    for (int i = 0; i < line->n_options; i++) {
        const struct ctw_option *o = &line->options[i];
        char name[MAX_ENV_NAME];
        bool pointer = o->type == CTW_OPT_STRING || o->type == CTW_OPT_CHOICE;
        bool list = o->type == CTW_OPT_LIST && ((const struct ctw_option_list *)o->value)->n == 0;
        if (!o->required || (pointer ? *(const char **)o->value != NULL : !list))
            continue;
        ctw_option_env_name(o, name, sizeof(name));
        return ctw_fail(err, CTW_EINVAL, "--%s %s is missing (or set %s): %s", o->name,
                        o->meta != NULL ? o->meta : "VALUE", name, o->help);
    }
    if (n_positional < line->n_positional_min)
        return ctw_fail(err, CTW_EINVAL, "%s is missing: ctworker %s %s", line->positional,
                        line->name, line->synopsis);
    return CTW_OK;
}

enum ctw_status ctw_options_read(const struct ctw_command_line *line, int argc, char **argv,
                                 int *n_positional, bool *help, struct ctw_err *err)
{
    bool only_positional = false;
    *n_positional = 0;
    *help = false;
    /* --help takes precedence over errors in other words. */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0 && !*help; i++)
        *help = strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
    if (*help)
        return CTW_OK;
    enum ctw_status st = read_environment(line, false, err);
    for (int i = 1; i < argc && st == CTW_OK; i++) {
        const char *word = argv[i];
        if (!only_positional && strcmp(word, "--") == 0) {
            only_positional = true;
        } else if (!only_positional && word[0] == '-' && word[1] != '\0') {
            st = read_option(line, argc, argv, &i, err);
        } else if (*n_positional == line->n_positional_max) {
            st = ctw_fail(err, CTW_EINVAL,
                          "unexpected argument \"%s\"; ctworker %s --help shows the usage", word,
                          line->name);
        } else {
            line->positionals[(*n_positional)++] = word;
        }
    }
    if (st == CTW_OK)
        st = read_environment(line, true, err);
    return st == CTW_OK ? check_all_there(line, *n_positional, err) : st;
}

int ctw_options_parse(const struct ctw_command_line *line, int argc, char **argv, int *out_exit)
{
    struct ctw_err err;
    int n_positional;
    bool help;
    *out_exit = -1;
    if (ctw_options_read(line, argc, argv, &n_positional, &help, &err) != CTW_OK) {
        (void)fprintf(stderr, "ctworker %s: %s\n", line->name, err.msg);
        *out_exit = ctw_status_exit_code(err.status);
    } else if (help) {
        ctw_options_print_help(line, stdout);
        *out_exit = 0;
    }
    return n_positional;
}
