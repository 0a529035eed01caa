#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "worker/cli/client_command.h"
#include "worker/cli/commands.h"
#include "worker/cli/options.h"

static const char about[] =
    "Reports whether a running worker is healthy, for scripts and probes. URL is the worker's\n"
    "address or name; the default is the only worker of this user.\n"
    "\n"
    "Exit codes: 0 healthy: the worker answers and has not failed (with --ready: it accepts\n"
    "jobs, and at least one model is ready); 1 the worker answers, but is not healthy (or not\n"
    "ready); 64 wrong command line, or several workers run; 66 no such worker; 74 no answer;\n"
    "75 the worker's connections are all in use; 77 token refused.\n";

static enum ctw_status print(const struct ctw_health_reply *r, bool json, struct ctw_err *err)
{
    struct ctw_json_writer w = {0};
    if (!json) {
        printf("%.*s%s%.*s, %" PRIu64 " unfinished job%s\n", (int)r->state.n, r->state.data,
               r->message.n > 0 ? ": " : "", (int)r->message.n, r->message.data, r->jobs,
               r->jobs == 1 ? "" : "s");
        return CTW_OK;
    }
    ctw_json_write_open(&w, '{');
    ctw_json_write_members(&w, ctw_op_messages(CTW_OP_HEALTH)->reply, r);
    ctw_json_write_close(&w, '}');
    return ctw_json_print(&w, err);
}

int ctw_cmd_health(int argc, char **argv)
{
    bool json = false, ready = false;
    int64_t timeout_s = 5;
    const char *which = NULL, *token_file = NULL;
    const struct ctw_option options[] = {
        ctw_opt_flag("ready", &ready, "succeed only if the worker is ready for jobs"),
        ctw_opt_flag("json", &json, "print one JSON object"),
        ctw_answer_timeout_option(&timeout_s),
        ctw_token_option(&token_file),
    };
    const struct ctw_command_line line = ctw_client_command_line(
        "health", "[URL] [--ready] [--json]", about, options, (int)CTW_COUNT(options), &which);
    int exit_code;
    ctw_options_parse(&line, argc, argv, &exit_code);
    if (exit_code >= 0)
        return exit_code;
    struct ctw_worker_address worker;
    struct ctw_worker_call call = {.request.op = CTW_OP_HEALTH};
    struct ctw_err err;
    bool well = false;
    enum ctw_status st = ctw_find_worker(which, token_file, &worker, &err);
    if (st == CTW_OK)
        st = ctw_call_worker(&call, &worker, (int)timeout_s * 1000, &err);
    if (st == CTW_OK) {
        struct ctw_span state = call.reply.body.health.state;
        well = ready ? ctw_span_is(state, "ready") : !ctw_span_is(state, "failed");
        st = print(&call.reply.body.health, json, &err);
    }
    if (st != CTW_OK)
        ctw_error("health: %s", err.msg);
    ctw_worker_call_close(&call);
    return st != CTW_OK ? ctw_status_exit_code(st) : well ? 0 : 1;
}
