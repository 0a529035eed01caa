#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "worker/cli/client_command.h"
#include "worker/cli/commands.h"
#include "worker/cli/options.h"

static const char about[] =
    "Lists the workers of this user on this machine: name, process id, state, uptime, models\n"
    "and address. A private worker belongs to a program, which also ends it; info, health and\n"
    "stop use a private worker only if it is named. Files that killed workers left are removed.\n"
    "\n"
    "Exit codes: 0 success, even if no worker runs; 64 wrong command line; 66 no such token\n"
    "file; 74 the token file or the runtime folder cannot be read.\n";

/* "ready", ..., "full" or "no answer" */
static void ask_state(struct ctw_worker_address *worker, char out[32])
{
    enum { TIMEOUT_MS = 2000 };
    struct ctw_worker_call call = {.request.op = CTW_OP_HEALTH};
    enum ctw_status st = ctw_call_worker(&call, worker, TIMEOUT_MS, NULL);
    if (st == CTW_OK)
        ctw_span_copy(call.reply.body.health.state, out, 32);
    else
        snprintf(out, 32, "%s",
                 st == CTW_EREFUSED ? "refused"
                 : st == CTW_EBUSY  ? "full"
                                    : "no answer");
    ctw_worker_call_close(&call);
}

static void write_entry(struct ctw_json_writer *w, const struct ctw_registry_entry *e,
                        const char *state)
{
    ctw_json_write_open(w, '{');
    ctw_json_write_key_string(w, "name", e->name);
    ctw_json_write_key_int(w, "pid", e->pid);
    ctw_json_write_key_string(w, "state", state);
    ctw_json_write_key_string(w, "models", e->models);
    ctw_json_write_key_string(w, "url", e->url);
    ctw_json_write_key_string(w, "boot", e->boot);
    ctw_json_write_key_int(w, "started_unix_s", e->started_unix_s);
    ctw_json_write_key_bool(w, "private", e->is_private);
    ctw_json_write_close(w, '}');
}

static enum ctw_status list_workers(bool json, const char *token_file, struct ctw_err *err)
{
    struct ctw_worker_address worker;
    struct ctw_registry_entry *list = NULL;
    struct ctw_json_writer w = {0};
    int n = 0;
    enum ctw_status st = ctw_auth_client_token(token_file, worker.token, err);
    if (st == CTW_OK)
        st = ctw_list_workers(true, &list, &n, err);
    if (st != CTW_OK)
        goto done;
    if (json)
        ctw_json_write_open(&w, '[');
    else if (n == 0)
        puts("no workers");
    else
        printf("%-16s %8s %-10s %10s  %-24s %s\n", "NAME", "PID", "STATE", "UP", "MODELS", "URL");
    for (int i = 0; i < n; i++) {
        char state[32], up[32];
        snprintf(worker.url, sizeof(worker.url), "%s", list[i].url);
        ask_state(&worker, state);
        if (json) {
            write_entry(&w, &list[i], state);
            continue;
        }
        double seconds = difftime(time(NULL), (time_t)list[i].started_unix_s);
        printf("%-16s %8ld %-10s %10s  %-24s %s%s\n", list[i].name, (long)list[i].pid, state,
               ctw_format_duration(up, sizeof(up), seconds), list[i].models, list[i].url,
               list[i].is_private ? " (private)" : "");
    }
    if (json) {
        ctw_json_write_close(&w, ']');
        st = ctw_json_print(&w, err);
    }
done:
    ctw_free(list);
    return st;
}

int ctw_cmd_ps(int argc, char **argv)
{
    bool json = false;
    const char *token_file = NULL;
    const struct ctw_option options[] = {
        ctw_opt_flag("json", &json, "print one JSON array"),
        ctw_token_option(&token_file),
    };
    const struct ctw_command_line line = {.name = "ps",
                                          .synopsis = "[--json]",
                                          .about = about,
                                          .options = options,
                                          .n_options = (int)CTW_COUNT(options)};
    int exit_code;
    struct ctw_err err;
    ctw_options_parse(&line, argc, argv, &exit_code);
    if (exit_code >= 0)
        return exit_code;
    enum ctw_status st = list_workers(json, token_file, &err);
    if (st != CTW_OK)
        ctw_error("ps: %s", err.msg);
    return ctw_status_exit_code(st);
}
