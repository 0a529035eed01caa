#include "worker/cli/options_help.h"

#include <inttypes.h>
#include <string.h>

enum { COLUMNS = 100, TEXT_COLUMN = 30, MAX_TEXT = 600 };

void ctw_option_env_name(const struct ctw_option *option, char *name, size_t cap)
{
    (void)snprintf(name, cap, "CTW_%s", option->name);
    for (char *p = name; *p != '\0'; p++)
        *p = (char)(*p == '-' ? '_' : *p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p);
}

static void format_bytes(uint64_t bytes, char *buf, size_t cap)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    for (; bytes != 0 && bytes % 1024 == 0 && unit + 1 < CTW_COUNT(units); bytes /= 1024)
        unit++;
    (void)snprintf(buf, cap, "%" PRIu64 "%s", bytes, units[unit]);
}

/* The default as text; empty: no default to show. */
static void format_default(const struct ctw_option *o, char *buf, size_t cap)
{
    const char *text = "";
    buf[0] = '\0';
    switch (o->type) {
    case CTW_OPT_FLAG:
        text = *(const bool *)o->value ? "yes" : "";
        break;
    case CTW_OPT_STRING:
    case CTW_OPT_CHOICE:
        text = *(const char *const *)o->value != NULL ? *(const char *const *)o->value : "";
        break;
    case CTW_OPT_LIST:
    case CTW_OPT_AMOUNT:
        break;
    case CTW_OPT_INT:
        (void)snprintf(buf, cap, "%" PRId64, *(const int64_t *)o->value);
        return;
    case CTW_OPT_BYTES:
        format_bytes(*(const uint64_t *)o->value, buf, cap);
        return;
    }
    (void)snprintf(buf, cap, "%s", text);
}

/* Prints text from column `at` on, wrapped between words, further lines indented to TEXT_COLUMN. */
static void print_wrapped(FILE *to, const char *text, int at)
{
    const char *p = text;
    while (*p != '\0') {
        int n = (int)strcspn(p, " ");
        bool first = p == text;
        if (!first && at + 1 + n > COLUMNS) {
            (void)fprintf(to, "\n%*s", TEXT_COLUMN, "");
            at = TEXT_COLUMN;
        } else if (!first) {
            (void)fputc(' ', to);
            at++;
        }
        (void)fprintf(to, "%.*s", n, p);
        at += n;
        p += n;
        p += strspn(p, " ");
    }
    (void)fputc('\n', to);
}

static void print_row(FILE *to, const char *left, const char *text)
{
    int n = fprintf(to, "  %s", left);
    if (n + 2 > TEXT_COLUMN) {
        (void)fputc('\n', to);
        n = 0;
    }
    (void)fprintf(to, "%*s", TEXT_COLUMN - n, "");
    print_wrapped(to, text, TEXT_COLUMN);
}

static void print_option(FILE *to, const struct ctw_option *o)
{
    char left[160], env[64], initial[128], text[MAX_TEXT];
    const char *meta = o->meta != NULL                                        ? o->meta
                       : o->type == CTW_OPT_CHOICE                            ? o->choices
                       : o->type == CTW_OPT_INT                               ? "N"
                       : o->type == CTW_OPT_BYTES                             ? "SIZE"
                       : o->type == CTW_OPT_AMOUNT                            ? "SIZE|N%"
                       : o->type == CTW_OPT_STRING || o->type == CTW_OPT_LIST ? "VALUE"
                                                                              : "";
    (void)snprintf(left, sizeof(left), "--%s%s%s", o->name, *meta != '\0' ? " " : "", meta);
    ctw_option_env_name(o, env, sizeof(env));
    format_default(o, initial, sizeof(initial));
    bool says_so = strstr(o->help, "default") != NULL;
    bool needed = o->required && strstr(o->help, "required") == NULL;
    bool shown = initial[0] != '\0' && !says_so;
    (void)snprintf(text, sizeof(text), "%s%s%s%s%s [%s]", o->help,
                   needed && !shown ? " (required)" : "", shown ? " (default: " : "",
                   shown ? initial : "", shown ? ")" : "", env);
    print_row(to, left, text);
}

void ctw_options_print_help(const struct ctw_command_line *line, FILE *to)
{
    size_t n = strlen(line->about);
    (void)fprintf(to, "Usage: ctworker %s %s\n\n%s%s\nOptions:\n", line->name, line->synopsis,
                  line->about, n > 0 && line->about[n - 1] == '\n' ? "" : "\n");
    for (int i = 0; i < line->n_options; i++)
        print_option(to, &line->options[i]);
    print_row(to, "-h, --help", "print this help");
    (void)fputs(
        "\nThe environment variable in brackets also sets the option; the command line takes "
        "precedence.\n",
        to);
}
