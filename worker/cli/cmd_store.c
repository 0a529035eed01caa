#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/closest.h"
#include "base/log.h"
#include "base/text.h"
#include "worker/cli/client_command.h"
#include "worker/cli/commands.h"
#include "worker/cli/options.h"
#include "worker/store/store.h"

static const char about[] =
    "Shows, checks or empties the result store of `ctworker serve --store DIR`. Workers may use\n"
    "the store meanwhile.\n"
    "\n"
    "  list    one line per checkpoint and numerics id, and per pair of them that was compared: "
    "the\n"
    "          stored sequences, their targets and bytes, and the time of the last addition\n"
    "  verify  reads every byte and compares every record's digest. A damaged record is never\n"
    "          returned: a worker computes it again and replaces it\n"
    "  clear   removes all results. A damaged file is deleted; no worker may use it meanwhile\n"
    "\n"
    "Exit codes: 0 success; 64 wrong command line; 65 damaged records, a damaged file, or a store\n"
    "of a newer ctworker; 66 no store in the folder; 74 the store cannot be read or written; 75 in "
    "use.\n";

struct printer {
    bool json;
    struct ctw_json_writer w;
    uint64_t n_entries;
};

/* ---- list ---- */

static void write_source(struct ctw_json_writer *w, const struct ctw_store_listed *s)
{
    ctw_json_write_open(w, '{');
    ctw_json_write_key_string(w, "identity", s->identity);
    ctw_json_write_key_string(w, "numerics", s->numerics);
    ctw_json_write_key_string(w, "reference_identity", s->ref_identity);
    ctw_json_write_key_string(w, "reference_numerics", s->ref_numerics);
    ctw_json_write_key_uint(w, "sequences", s->entries);
    ctw_json_write_key_uint(w, "targets", s->targets);
    ctw_json_write_key_uint(w, "bytes", s->bytes);
    ctw_json_write_key_int(w, "changed_unix_s", s->changed_s);
    ctw_json_write_close(w, '}');
}

static void print_source(void *printer, const struct ctw_store_listed *s)
{
    struct printer *p = printer;
    char bytes[32], day[32];
    time_t at = (time_t)s->changed_s;
    struct tm tm;
    p->n_entries += s->entries;
    if (p->json) {
        write_source(&p->w, s);
        return;
    }
    if (localtime_r(&at, &tm) == NULL || strftime(day, sizeof(day), "%Y-%m-%d %H:%M", &tm) == 0)
        snprintf(day, sizeof(day), "?");
    printf("%.12s  %10" PRIu64 " sequences %12" PRIu64 " targets  %10s  %s  %s", s->identity,
           s->entries, s->targets, ctw_format_bytes(bytes, sizeof(bytes), (double)s->bytes), day,
           s->numerics);
    if (s->ref_identity[0] != '\0')
        printf(", compared with %.12s %s", s->ref_identity, s->ref_numerics);
    putchar('\n');
}

static enum ctw_status list(struct ctw_store *s, bool json, struct ctw_err *err)
{
    struct printer p = {.json = json};
    if (json)
        ctw_json_write_open(&p.w, '[');
    enum ctw_status st = ctw_store_list(s, print_source, &p, err);
    if (json)
        ctw_json_write_close(&p.w, ']');
    if (st == CTW_OK && json)
        return ctw_json_print(&p.w, err);
    ctw_json_writer_fini(&p.w);
    if (st == CTW_OK && p.n_entries == 0)
        puts("the store is empty");
    return st;
}

/* ---- verify ---- */

static enum ctw_status verify(struct ctw_store *s, const char *dir, bool json, struct ctw_err *err)
{
    uint64_t n_good, n_bad;
    struct ctw_json_writer w = {0};
    enum ctw_status st = ctw_store_verify(s, &n_good, &n_bad, err);
    if (st != CTW_OK)
        return st;
    if (json) {
        ctw_json_write_open(&w, '{');
        ctw_json_write_key_uint(&w, "sequences", n_good + n_bad);
        ctw_json_write_key_uint(&w, "damaged", n_bad);
        ctw_json_write_close(&w, '}');
        st = ctw_json_print(&w, err);
    } else {
        printf("%" PRIu64 " sequences, %" PRIu64 " damaged\n", n_good + n_bad, n_bad);
    }
    if (st == CTW_OK && n_bad > 0)
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: %" PRIu64 " of %" PRIu64
                        " records are damaged; workers compute and replace them when they are "
                        "needed",
                        dir, n_bad, n_good + n_bad);
    return st;
}

/* ---- the command ---- */

static enum ctw_status clear(const char *dir, bool json, struct ctw_err *err)
{
    uint64_t n;
    struct ctw_json_writer w = {0};
    enum ctw_status st = ctw_store_clear(dir, &n, err);
    if (st != CTW_OK)
        return st;
    if (!json) {
        printf("%" PRIu64 " sequences removed\n", n);
        return CTW_OK;
    }
    ctw_json_write_open(&w, '{');
    ctw_json_write_key_uint(&w, "removed", n);
    ctw_json_write_close(&w, '}');
    return ctw_json_print(&w, err);
}

static enum ctw_status run(const char *action, const char *dir, bool json, struct ctw_err *err)
{
    static const char *const actions[] = {"list", "verify", "clear"};
    struct ctw_store *s = NULL;
    if (strcmp(action, "clear") == 0)
        return clear(dir, json, err);
    bool lists = strcmp(action, "list") == 0;
    if (!lists && strcmp(action, "verify") != 0) {
        const char *best = ctw_closest(action, actions, (int)CTW_COUNT(actions));
        return ctw_fail(err, CTW_EINVAL, "\"%s\": expected list, verify or clear%s%s%s", action,
                        best != NULL ? "; did you mean \"" : "", best != NULL ? best : "",
                        best != NULL ? "\"?" : "");
    }
    enum ctw_status st = ctw_store_open_existing(&s, dir, err);
    if (st == CTW_OK)
        st = lists ? list(s, json, err) : verify(s, dir, json, err);
    ctw_store_close(s);
    return st;
}

int ctw_cmd_store(int argc, char **argv)
{
    bool json = false;
    const char *words[2];
    const struct ctw_option options[] = {
        ctw_opt_flag("json", &json, "print JSON"),
    };
    const struct ctw_command_line line = {.name = "store",
                                          .synopsis = "list|verify|clear DIR [--json]",
                                          .about = about,
                                          .options = options,
                                          .n_options = (int)CTW_COUNT(options),
                                          .positional = "list|verify|clear DIR",
                                          .n_positional_min = 2,
                                          .n_positional_max = 2,
                                          .positionals = words};
    int exit_code;
    ctw_options_parse(&line, argc, argv, &exit_code);
    if (exit_code >= 0)
        return exit_code;
    struct ctw_err err;
    enum ctw_status st = run(words[0], words[1], json, &err);
    if (st != CTW_OK)
        ctw_error("store: %s", err.msg);
    return ctw_status_exit_code(st);
}
