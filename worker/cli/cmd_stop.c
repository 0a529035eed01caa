#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "worker/cli/client_command.h"
#include "worker/cli/commands.h"
#include "worker/cli/options.h"
#include "worker/service/life/registry.h"

static const char about[] =
    "Stops a running worker: it accepts no more jobs, finishes or cancels its unfinished jobs,\n"
    "lets clients fetch results, and ends. URL is the worker's address or name; the default is\n"
    "the only worker of this user, not counting private workers (see `ctworker ps`).\n"
    "\n"
    "Exit codes: 0 the worker has ended (with --timeout 0: the worker accepted the request);\n"
    "64 wrong command line, or several workers run; 66 no such worker; 74 no answer; 75 the\n"
    "worker is still running after the timeout, or its connections are all in use; 77 token\n"
    "refused.\n";

enum {
    CALL_MS = 5000,
    LOOK_MS = 100,    /* between checks of the process or the lock */
    ASK_MS = 1000,    /* for an answer, if neither can be checked */
    N_UNANSWERED = 3, /* calls before such a worker counts as ended */
    BOOT_BYTES = 16
};

/* The worker to stop, and how to check that it has ended. */
struct target {
    struct ctw_worker_address worker;
    struct ctw_endpoint endpoint;
    bool met; /* the worker has answered, so boot is valid */
    char boot[BOOT_BYTES];
    pid_t pid; /* of a worker that runs here as this user; else 0 */
    int64_t started;
    uint64_t n_jobs; /* unfinished jobs, as of the last answer */
    int n_unanswered;
};

/*
 * Asks for the worker's boot id and its number of unfinished jobs. CTW_ENOTFOUND, except on the
 * first call: another worker answered, so the target has ended.
 */
static enum ctw_status ask_health(struct target *t, int timeout_ms, struct ctw_err *err)
{
    struct ctw_worker_call call = {.request.op = CTW_OP_HEALTH};
    enum ctw_status st = ctw_call_worker(&call, &t->worker, timeout_ms, err);
    struct ctw_span boot = call.reply.body.health.boot;
    if (st == CTW_OK && boot.n != BOOT_BYTES)
        st = ctw_fail(err, CTW_EFORMAT, "%s: boot has %zu bytes, not %d", t->worker.url, boot.n,
                      BOOT_BYTES);
    if (st == CTW_OK && t->met && memcmp(boot.data, t->boot, BOOT_BYTES) != 0)
        st = ctw_fail(err, CTW_ENOTFOUND, "%s: another worker has taken this address",
                      t->worker.url);
    if (st == CTW_OK) {
        memcpy(t->boot, boot.data, BOOT_BYTES);
        t->met = true;
        t->n_jobs = call.reply.body.health.jobs;
    }
    ctw_worker_call_close(&call);
    return st;
}

/* A worker in our registry runs here, so its process can be checked. */
static void find_process(struct target *t)
{
    char dir[CTW_URL_MAX], boot[2 * BOOT_BYTES + 1];
    struct ctw_registry_entry *list = NULL;
    int n = 0;
    for (int i = 0; i < BOOT_BYTES; i++)
        snprintf(boot + 2 * i, 3, "%02x", (unsigned char)t->boot[i]);
    if (ctw_runtime_dir(dir, sizeof(dir), NULL) != CTW_OK ||
        ctw_registry_list(dir, false, &list, &n, NULL) != CTW_OK)
        n = 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(list[i].boot, boot) == 0 &&
            ctw_process_started(list[i].pid) == list[i].started) {
            t->pid = list[i].pid;
            t->started = list[i].started;
        }
    }
    ctw_free(list);
}

static enum ctw_status find_target(struct target *t, const char *which, const char *token_file,
                                   struct ctw_err *err)
{
    enum ctw_status st = ctw_find_worker(which, token_file, &t->worker, err);
    if (st == CTW_OK)
        st = ctw_endpoint_parse(&t->endpoint, t->worker.url, err);
    if (st == CTW_OK)
        st = ask_health(t, CALL_MS, err);
    if (st == CTW_OK)
        find_process(t);
    return st;
}

static enum ctw_status shut_down(struct target *t, bool cancel, struct ctw_err *err)
{
    struct ctw_worker_call call = {.request.op = CTW_OP_SHUTDOWN};
    call.request.body.mode.mode = ctw_span_of(cancel ? "cancel" : "finish");
    enum ctw_status st = ctw_call_worker(&call, &t->worker, CALL_MS, err);
    t->n_jobs = st == CTW_OK ? call.reply.body.drain.jobs : 0;
    ctw_worker_call_close(&call);
    return st;
}

static bool has_ended(struct target *t)
{
    struct ctw_err err;
    int64_t holder;
    if (t->pid != 0)
        return ctw_process_started(t->pid) != t->started;
    if (t->endpoint.path != NULL)
        return !ctw_endpoint_held(t->endpoint.path, &holder);
    /* A single failed call does not mean that the worker has ended. */
    enum ctw_status st = ask_health(t, ASK_MS, &err);
    t->n_unanswered = st == CTW_OK ? 0 : t->n_unanswered + 1;
    return st == CTW_ENOTFOUND || t->n_unanswered == N_UNANSWERED;
}

static enum ctw_status wait_for_end(struct target *t, int64_t timeout_s, struct ctw_err *err)
{
    int64_t until = ctw_now_ms() + timeout_s * 1000;
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000L};
    for (;;) {
        bool last = ctw_now_ms() >= until;
        if (has_ended(t))
            return CTW_OK;
        if (last)
            break;
        nanosleep(&pause, NULL);
    }
    if (t->n_jobs > 0)
        return ctw_fail(err, CTW_EBUSY,
                        "%s is still finishing %" PRIu64 " jobs after %" PRId64 " s: wait, or "
                        "cancel the jobs with --cancel",
                        t->worker.url, t->n_jobs, timeout_s);
    return ctw_fail(err, CTW_EBUSY,
                    "%s has finished its jobs, but has not ended after %" PRId64
                    " s: clients are still fetching results, or a model is being loaded; wait",
                    t->worker.url, timeout_s);
}

int ctw_cmd_stop(int argc, char **argv)
{
    bool cancel = false;
    int64_t timeout_s = 60;
    const char *which = NULL, *token_file = NULL;
    const struct ctw_option options[] = {
        ctw_opt_flag("cancel", &cancel, "cancel unfinished jobs instead of finishing them"),
        ctw_opt_int("timeout", &timeout_s, 0, 7 * 86400, "SECONDS",
                    "how long to wait until the worker has ended; 0: do not wait"),
        ctw_token_option(&token_file),
    };
    const struct ctw_command_line line = ctw_client_command_line(
        "stop", "[URL] [--cancel]", about, options, (int)CTW_COUNT(options), &which);
    int exit_code;
    ctw_options_parse(&line, argc, argv, &exit_code);
    if (exit_code >= 0)
        return exit_code;
    struct target t = {0};
    struct ctw_err err;
    enum ctw_status st = find_target(&t, which, token_file, &err);
    if (st == CTW_OK)
        st = shut_down(&t, cancel, &err);
    if (st == CTW_OK && timeout_s > 0)
        st = wait_for_end(&t, timeout_s, &err);
    if (st != CTW_OK)
        ctw_error("stop: %s", err.msg);
    return ctw_status_exit_code(st);
}
