/*
 * Command lines as tables: one row per option, used by the parser and by --help. Every option can
 * also be set by the environment variable CTW_NAME (dashes become underscores; an empty variable
 * counts as not set); the command line takes precedence.
 *
 * The parser accepts --name VALUE, --name=VALUE, a flag as --name or --name=yes|no, -h, --help, and
 * --, after which every word is positional. An option given twice takes the last value, unless it
 * is a list. A list's environment variable holds one value, used only if the command line gives
 * none.
 */
#ifndef CTW_WORKER_OPTIONS_H
#define CTW_WORKER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum ctw_option_type {
    CTW_OPT_FLAG,   /* bool */
    CTW_OPT_STRING, /* const char * */
    CTW_OPT_LIST,   /* struct ctw_option_list: each occurrence adds one value */
    CTW_OPT_INT,    /* int64_t, within min..max */
    CTW_OPT_BYTES,  /* uint64_t: 4096, 512MiB, 20GiB, 1.5GB */
    CTW_OPT_AMOUNT, /* struct ctw_amount: a size, or 62.5% */
    CTW_OPT_CHOICE  /* const char *, one of `choices`, separated by '|' */
};

struct ctw_option_list {
    const char **values; /* [max], filled */
    int n, max;
};

struct ctw_option {
    const char *name; /* without the dashes */
    enum ctw_option_type type;
    void *value;         /* destination; its initial content is the default */
    int64_t min, max;    /* CTW_OPT_INT */
    const char *choices; /* CTW_OPT_CHOICE */
    const char *meta;    /* "DIR", for --help */
    const char *help;    /* --help adds the default, unless this text has the word "default" */
    bool required;       /* STRING, CHOICE, LIST: must be given, unless there is a default */
};

/* Rows by type. What *value holds is the default. */
struct ctw_option ctw_opt_flag(const char *name, bool *value, const char *help);
struct ctw_option ctw_opt_string(const char *name, const char **value, const char *meta,
                                 const char *help);
struct ctw_option ctw_opt_list(const char *name, struct ctw_option_list *value, const char *meta,
                               const char *help);
struct ctw_option ctw_opt_int(const char *name, int64_t *value, int64_t min, int64_t max,
                              const char *meta, const char *help);
struct ctw_option ctw_opt_bytes(const char *name, uint64_t *value, const char *meta,
                                const char *help);
struct ctw_option ctw_opt_amount(const char *name, struct ctw_amount *value, const char *meta,
                                 const char *help);
struct ctw_option ctw_opt_choice(const char *name, const char **value, const char *choices,
                                 const char *help);
/* The same row, as one that must be given. */
struct ctw_option ctw_opt_required(struct ctw_option option);

struct ctw_command_line {
    const char *name;     /* "score" */
    const char *synopsis; /* "--model DIR [--in F] [--out F]" */
    const char *about;    /* paragraphs for --help */
    const struct ctw_option *options;
    int n_options;
    const char *positional; /* "DIR", for --help; NULL: no positional arguments */
    int n_positional_min, n_positional_max;
    const char **positionals; /* filled, [n_positional_max] */
};

/*
 * Parses argv[1..]. *out_exit is -1 if the command should go on; else the command must return
 * *out_exit at once: 0 after --help (printed to stdout), 64 after a wrong command line (one line on
 * stderr that names the word and the remedy). Returns the number of positional arguments. Strings
 * are not copied: they belong to argv and the environment.
 */
int ctw_options_parse(const struct ctw_command_line *line, int argc, char **argv, int *out_exit);

/* Like ctw_options_parse(), without printing: CTW_EINVAL with the message in *err, or sets *help.
 */
enum ctw_status ctw_options_read(const struct ctw_command_line *line, int argc, char **argv,
                                 int *n_positional, bool *help, struct ctw_err *err) CTW_MUST_CHECK;

/* Parses "4096", "512 MiB", "1.5GB": units of 1000 and of 1024, upper or lower case, a fraction of
 * a byte is dropped. False for anything else. */
bool ctw_bytes_parse(const char *text, uint64_t *out) CTW_MUST_CHECK;
/* Parses the same, or a percentage above 0 and up to 100, such as "90%". Refuses a size of 0. */
bool ctw_amount_parse(const char *text, struct ctw_amount *out) CTW_MUST_CHECK;

#endif
