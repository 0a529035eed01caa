#include <string.h>

#include "base/log.h"
#include "ipc/limits.h"
#include "worker/engine_options.h"
#include "worker/main.h"
#include "worker/registry.h"
#include "worker/serve.h"
#include "worker/version.h"

static const char about[] =
    "Holds one or more models and scores jobs that clients send (docs/PROTOCOL.md).\n"
    "Answers at once, and says `loading` until the models are there.\n"
    "\n"
    "By default it listens on an ipc socket, NAME.sock in the folder $XDG_RUNTIME_DIR/ctworker, "
    "or\n"
    "/tmp/ctworker-UID, which only this user can enter. `ctworker ps` lists what runs.\n"
    "\n"
    "The first SIGTERM, SIGINT or SIGHUP stops it as --on-signal says, a second one at once. Exit\n"
    "codes: 0 stopped in order; 64 wrong command line, 65 bad checkpoint, 66 no such folder, 69\n"
    "device failed, 71 out of memory, 74 input/output error, 75 address in use; 128 + n stopped "
    "by\n"
    "signal n with jobs unfinished.\n";

enum { MAX_MORE = CTW_IPC_MODELS - 1, N_PLACE = 5, N_LIFE = 7, N_OWN = N_PLACE + N_LIFE };

struct values {
    const char *model, *listen, *name, *allow_load, *ready_file, *on_signal, *log;
    bool insecure;
    int64_t ready_fd, owner_pid, grace_s;
    uint64_t queue_bytes;
};

/* What is served, and where. */
static void fill_place_rows(struct ctw_option *rows, struct values *v)
{
    const struct ctw_option own[] = {
        {.name = "model",
         .type = CTW_OPT_STRING,
         .value = &v->model,
         .meta = "DIR",
         .required = true,
         .help = "the checkpoint folder; more folders may follow as plain words, each a model "
                 "named by its last part"},
        {.name = "listen",
         .type = CTW_OPT_STRING,
         .value = &v->listen,
         .meta = "URL",
         .help = "ipc:///PATH or tcp://HOST:PORT (default: see above). tcp has no password: "
                 "whoever reaches it can use and stop the worker"},
        {.name = "insecure-bind-any",
         .type = CTW_OPT_FLAG,
         .value = &v->insecure,
         .help = "allow tcp://0.0.0.0, which every network of the machine reaches"},
        {.name = "name",
         .type = CTW_OPT_STRING,
         .value = &v->name,
         .meta = "NAME",
         .help = "what `ctworker ps` calls it (default: the process id)"},
        {.name = "allow-load",
         .type = CTW_OPT_STRING,
         .value = &v->allow_load,
         .meta = "DIR",
         .help = "let clients load models from folders below DIR (default: they cannot)"},
    };
    _Static_assert(CTW_COUNT(own) == N_PLACE, "count the rows");
    memcpy(rows, own, sizeof(own));
}

/* When it is ready, and when and how it ends. */
static void fill_life_rows(struct ctw_option *rows, struct values *v)
{
    const struct ctw_option own[] = {
        {.name = "ready-file",
         .type = CTW_OPT_STRING,
         .value = &v->ready_file,
         .meta = "FILE",
         .help = "write the URL there once the models are loaded; removed at the end"},
        {.name = "ready-fd",
         .type = CTW_OPT_INT,
         .value = &v->ready_fd,
         .min = -1,
         .max = 65535,
         .meta = "N",
         .help = "write the URL to this open file descriptor likewise, and close it "
                 "(default: -1, none)"},
        {.name = "owner-pid",
         .type = CTW_OPT_INT,
         .value = &v->owner_pid,
         .min = 0,
         .max = INT32_MAX,
         .meta = "PID",
         .help = "end when this process ends (default: 0, none)"},
        {.name = "on-signal",
         .type = CTW_OPT_CHOICE,
         .value = &v->on_signal,
         .choices = "finish|cancel",
         .help = "what a first signal does to unfinished jobs"},
        {.name = "grace",
         .type = CTW_OPT_INT,
         .value = &v->grace_s,
         .min = 0,
         .max = 7 * 86400,
         .meta = "SECONDS",
         .help = "how long jobs are finished after a signal"},
        {.name = "queue-bytes",
         .type = CTW_OPT_BYTES,
         .value = &v->queue_bytes,
         .meta = "SIZE",
         .help = "memory for jobs and their results"},
        {.name = "log",
         .type = CTW_OPT_CHOICE,
         .value = &v->log,
         .choices = "debug|info|warn|error",
         .help = "how much is told on standard error"},
    };
    _Static_assert(CTW_COUNT(own) == N_LIFE, "count the rows");
    memcpy(rows, own, sizeof(own));
}

static bool check_name(const char *name)
{
    if (name == NULL || ctw_registry_name_ok(name))
        return true;
    ctw_error("serve: --name %s: expected 1 to 64 letters, digits, '.', '_' or '-'", name);
    return false;
}

int ctw_cmd_serve(int argc, char **argv)
{
    struct ctw_engine_option_values engine = {0};
    struct values v = {
        .ready_fd = -1, .on_signal = "finish", .grace_s = 20, .queue_bytes = CTW_IPC_QUEUE_BYTES};
    const char *models[1 + MAX_MORE];
    struct ctw_option options[N_OWN + CTW_N_ENGINE_OPTIONS];
    fill_place_rows(options, &v);
    fill_life_rows(options + N_PLACE, &v);
    ctw_engine_option_rows(options + N_OWN, &engine);
    const struct ctw_command_line line = {.name = "serve",
                                          .synopsis = "--model DIR [DIR...] [--listen URL]",
                                          .about = about,
                                          .options = options,
                                          .n_options = (int)CTW_COUNT(options),
                                          .positional = "DIR",
                                          .n_positional_max = MAX_MORE,
                                          .positionals = models + 1};
    int exit_code;
    int n_more = ctw_options_parse(&line, argc, argv, &exit_code);
    if (exit_code >= 0)
        return exit_code;
    enum ctw_log_level level;
    if (v.log != NULL && ctw_log_level_parse(v.log, &level))
        ctw_log_set_level(level);
    if (!check_name(v.name))
        return 64;
    models[0] = v.model;
    const struct ctw_serve_options serve = {
        .model_dirs = models,
        .n_models = 1 + n_more,
        .listen = v.listen,
        .name = v.name,
        .insecure_bind_any = v.insecure,
        .allow_load = v.allow_load,
        .ready_file = v.ready_file,
        .ready_fd = (int)v.ready_fd,
        .owner_pid = (pid_t)v.owner_pid,
        .cancel_on_signal = strcmp(v.on_signal, "cancel") == 0,
        .grace_ms = v.grace_s * 1000,
        .queue_bytes = v.queue_bytes,
        .engine = ctw_engine_options_from(&engine, NULL),
        .version = ctw_version(),
    };
    return ctw_serve(&serve);
}
