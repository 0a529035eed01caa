#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "base/log.h"
#include "worker/client_command.h"
#include "worker/clock.h"
#include "worker/main.h"
#include "worker/options.h"

static const char about[] =
    "Stops a running worker: it takes no more jobs, finishes those it has (or cancels them), lets\n"
    "clients fetch, and ends. URL is its address or its name; without one, the only worker of\n"
    "this user.\n"
    "\n"
    "Exit codes: 0 it has ended (with --timeout 0: it was told); 66 no such worker; 74 it does "
    "not\n"
    "answer; 75 it is still finishing jobs after the timeout.\n";

enum { CALL_MS = 5000, ASK_MS = 200 };

static enum ctw_status shut_down(struct ctw_client **client, const char *url, bool cancel,
                                 uint64_t *n_jobs, struct ctw_err *err)
{
    struct ctw_request request = {.op = CTW_OP_SHUTDOWN};
    struct ctw_reply reply;
    request.body.mode.mode = ctw_slice_of(cancel ? "cancel" : "finish");
    enum ctw_status st = ctw_call_worker(client, url, &request, CALL_MS, &reply, err);
    *n_jobs = st == CTW_OK ? reply.body.drain.jobs : 0;
    ctw_reply_close(&reply);
    return st;
}

/* Asks until nobody answers. */
static enum ctw_status wait_for_end(const char *url, int64_t timeout_s, uint64_t n_jobs,
                                    struct ctw_err *err)
{
    int64_t until = ctw_now_ms() + timeout_s * 1000;
    const struct timespec pause = {.tv_nsec = ASK_MS * 1000000L};
    while (ctw_now_ms() < until) {
        struct ctw_client *client = NULL;
        struct ctw_request request = {.op = CTW_OP_HEALTH};
        struct ctw_reply reply;
        struct ctw_err gone;
        enum ctw_status st = ctw_call_worker(&client, url, &request, CALL_MS, &reply, &gone);
        if (st == CTW_OK)
            n_jobs = reply.body.health.jobs;
        ctw_reply_close(&reply);
        ctw_client_close(client);
        if (st != CTW_OK)
            return CTW_OK;
        nanosleep(&pause, NULL);
    }
    return ctw_fail(err, CTW_EBUSY,
                    "%s is still finishing %" PRIu64 " jobs after %" PRId64 " s: wait, or cancel "
                    "them with --cancel",
                    url, n_jobs, timeout_s);
}

int ctw_cmd_stop(int argc, char **argv)
{
    bool cancel = false;
    int64_t timeout_s = 60;
    const char *which = NULL;
    const struct ctw_option options[] = {
        {.name = "cancel",
         .type = CTW_OPT_FLAG,
         .value = &cancel,
         .help = "cancel unfinished jobs instead of finishing them"},
        {.name = "timeout",
         .type = CTW_OPT_INT,
         .value = &timeout_s,
         .min = 0,
         .max = 7 * 86400,
         .meta = "SECONDS",
         .help = "how long to wait for its end; 0 does not wait"},
    };
    const struct ctw_command_line line = {.name = "stop",
                                          .synopsis = "[URL] [--cancel]",
                                          .about = about,
                                          .options = options,
                                          .n_options = (int)CTW_COUNT(options),
                                          .positional = "URL",
                                          .n_positional_max = 1,
                                          .positionals = &which};
    int exit_code;
    ctw_options_parse(&line, argc, argv, &exit_code);
    if (exit_code >= 0)
        return exit_code;
    char url[CTW_URL_MAX];
    struct ctw_client *client = NULL;
    struct ctw_err err;
    uint64_t n_jobs = 0;
    enum ctw_status st = ctw_find_worker(which, url, &err);
    if (st == CTW_OK)
        st = shut_down(&client, url, cancel, &n_jobs, &err);
    ctw_client_close(client);
    if (st == CTW_OK && timeout_s > 0)
        st = wait_for_end(url, timeout_s, n_jobs, &err);
    if (st != CTW_OK)
        ctw_error("stop: %s", err.msg);
    return ctw_status_exit_code(st);
}
