#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "ipc/limits.h"
#include "worker/cli/commands.h"
#include "worker/cli/engine_options.h"
#include "worker/cli/version.h"
#include "worker/engine/place/machine.h"
#include "worker/service/life/registry.h"
#include "worker/service/life/serve.h"
#include "worker/store/hidden.h"
#include "worker/store/store.h"

static const char about[] =
    "Loads one or more models and scores the jobs that clients send (docs/PROTOCOL.md). The\n"
    "worker answers at once; its state is `loading` until the models are loaded.\n"
    "\n"
    "By default the worker listens on an ipc socket, NAME.sock in $XDG_RUNTIME_DIR/ctworker or\n"
    "/tmp/ctworker-UID, folders that only this user can enter. `ctworker ps` lists the workers.\n"
    "\n"
    "The first SIGTERM, SIGINT or SIGHUP stops the worker (see --on-signal); a second signal\n"
    "stops it at once.\n"
    "\n"
    "Exit codes: 0 stopped in order; 64 wrong command line; 65 bad checkpoint; 66 no such\n"
    "folder; 69 device failed; 71 out of memory; 74 input/output error; 75 address or name in\n"
    "use; 128 + n stopped by signal n with unfinished jobs.\n";

static const uint64_t STORE_BYTES = (uint64_t)4 << 30, HIDDEN_BYTES = (uint64_t)20 << 30;

enum { N_PLACE = 7, N_LIFE = 7, N_KEPT = 4, N_OWN = N_PLACE + N_LIFE + N_KEPT };

struct values {
    struct ctw_option_list models;
    const char *listen, *name, *allow_load, *ready_file, *on_signal, *log;
    const char *token_file;
    bool bind_any, insecure;
    int64_t ready_fd, owner_pid, grace_s;
    uint64_t queue_bytes, store_limit;
    const char *store, *hidden;
    uint64_t hidden_limit;
};

/* Models, addresses and access. */
static void fill_place_rows(struct ctw_option *rows, struct values *v)
{
    const struct ctw_option own[] = {
        ctw_opt_required(ctw_opt_list(
            "model", &v->models, "DIR",
            "a checkpoint, its folder or its file; may be repeated, and more may follow "
            "without --model. "
            "A model's name is the last part of its path, or NAME with NAME=DIR. NAME:DTYPE=DIR "
            "gives the model another --dtype than the other models. A job without a model name "
            "uses the first model. The variable holds one model, and is ignored with --model")),
        ctw_opt_string(
            "listen", &v->listen, "URL",
            "address to listen on, ipc:///PATH or tcp://HOST:PORT (default: see above). tcp "
            "needs --token-file or --insecure"),
        ctw_opt_string(
            "token-file", &v->token_file, "FILE",
            "access over tcp: lines NAME ROLE TOKEN, where ROLE is score or admin; or a single "
            "token, which allows everything. Other users must not be able to read the file "
            "(mode 0600) (default: none)"),
        ctw_opt_flag(
            "insecure", &v->insecure,
            "allow tcp without tokens: anyone who can reach the address can use and stop the "
            "worker"),
        ctw_opt_flag("insecure-bind-any", &v->bind_any,
                     "allow tcp://0.0.0.0, which is reachable from every network of the machine"),
        ctw_opt_string(
            "name", &v->name, "NAME",
            "the worker's name in `ctworker ps` and for other commands (default: the process id)"),
        ctw_opt_string("allow-load", &v->allow_load, "DIR",
                       "let clients load models from folders below DIR (default: they cannot)"),
    };
    _Static_assert(CTW_COUNT(own) == N_PLACE, "count the rows");
    memcpy(rows, own, sizeof(own));
}

/* Readiness, and when and how the worker ends. */
static void fill_life_rows(struct ctw_option *rows, struct values *v)
{
    const struct ctw_option own[] = {
        ctw_opt_string(
            "ready-file", &v->ready_file, "FILE",
            "write the URL to this file once the models are loaded; removed when the worker ends"),
        ctw_opt_int(
            "ready-fd", &v->ready_fd, -1, 65535, "N",
            "write the URL to this open file descriptor once the models are loaded, and close "
            "it (default: -1, none)"),
        ctw_opt_int("owner-pid", &v->owner_pid, 0, INT32_MAX, "PID",
                    "end when this process ends; makes the worker private (default: 0, none)"),
        ctw_opt_choice("on-signal", &v->on_signal, "finish|cancel",
                       "finish or cancel unfinished jobs after the first signal"),
        ctw_opt_int("grace", &v->grace_s, 0, 7 * 86400, "SECONDS",
                    "how long to go on finishing jobs after a signal"),
        ctw_opt_bytes("queue-bytes", &v->queue_bytes, "SIZE",
                      "limit of memory for jobs and their results (default: an eighth of the free "
                      "memory, at most 1 GiB)"),
        ctw_opt_choice("log", &v->log, "debug|info|warn|error",
                       "log level on standard error (default: info)"),
    };
    _Static_assert(CTW_COUNT(own) == N_LIFE, "count the rows");
    memcpy(rows, own, sizeof(own));
}

/* Folders in which results are kept. */
static void fill_kept_rows(struct ctw_option *rows, struct values *v)
{
    const struct ctw_option own[] = {
        ctw_opt_string(
            "store", &v->store, "DIR",
            "keep results in this folder, and do not compute sequences whose results are there; "
            "several workers of this machine may share it; see `ctworker store` (default: none)"),
        ctw_opt_bytes("store-limit", &v->store_limit, "SIZE",
                      "size of the store; new results replace the oldest"),
        ctw_opt_string(
            "hidden", &v->hidden, "DIR",
            "keep the final hidden states of references in this folder: comparing another "
            "model with the same reference then only takes the reference's head (default: "
            "none)"),
        ctw_opt_bytes(
            "hidden-limit", &v->hidden_limit, "SIZE",
            "size of that folder; the files that were not used for the longest time are removed"),
    };
    _Static_assert(CTW_COUNT(own) == N_KEPT, "count the rows");
    memcpy(rows, own, sizeof(own));
}

static enum ctw_status check_folder(const char *option, const char *path, struct ctw_err *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return ctw_fail(err, errno == ENOENT ? CTW_ENOTFOUND : CTW_EIO, "%s: the folder %s: %s",
                        option, path, strerror(errno));
    return S_ISDIR(st.st_mode) ? CTW_OK
                               : ctw_fail(err, CTW_EINVAL, "%s: %s is not a folder", option, path);
}

static enum ctw_status check_ready_file(const char *path, struct ctw_err *err)
{
    char dir[PATH_MAX];
    struct stat st;
    const char *slash = strrchr(path, '/');
    int n = slash == NULL ? 1 : slash == path ? 1 : (int)(slash - path);
    if (strlen(path) >= sizeof(dir))
        return ctw_fail(err, CTW_EINVAL, "--ready-file: the path is too long");
    snprintf(dir, sizeof(dir), "%.*s", n, slash == NULL ? "." : path);
    if (path[0] == '\0' || (stat(path, &st) == 0 && S_ISDIR(st.st_mode)))
        return ctw_fail(err, CTW_EINVAL,
                        "--ready-file %s: expected the name of a file, not of a folder", path);
    if (check_folder("--ready-file", dir, err) != CTW_OK)
        return err->status;
    return access(dir, W_OK | X_OK) == 0
               ? CTW_OK
               : ctw_fail(err, CTW_EIO, "--ready-file: the folder %s: %s", dir, strerror(errno));
}

static enum ctw_status check_ready_fd(int fd, struct ctw_err *err)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
        return ctw_fail(err, CTW_EINVAL, "--ready-fd %d: %s", fd,
                        flags < 0 ? "the descriptor is not open"
                                  : "the descriptor is open for reading only");
    return CTW_OK;
}

/* Checks values that would otherwise fail only after the models are loaded. */
static enum ctw_status check_values(const struct values *v, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    if (v->name != NULL && !ctw_is_name(v->name))
        return ctw_fail(err, CTW_EINVAL,
                        "--name %s: expected 1 to 64 letters, digits, '.', '_' or '-'", v->name);
    if (v->queue_bytes == 0)
        return ctw_fail(err, CTW_EINVAL,
                        "--queue-bytes 0: no job would fit; expected a larger size");
    if (v->store_limit < CTW_STORE_MIN_BYTES)
        return ctw_fail(err, CTW_EINVAL, "--store-limit: expected at least 1MiB");
    if (v->store != NULL && v->store[0] == '\0')
        return ctw_fail(err, CTW_EINVAL, "--store: expected the name of a folder");
    if (v->hidden_limit < CTW_HIDDEN_MIN_BYTES)
        return ctw_fail(err, CTW_EINVAL, "--hidden-limit: expected at least 1MiB");
    if (v->hidden != NULL && v->hidden[0] == '\0')
        return ctw_fail(err, CTW_EINVAL, "--hidden: expected the name of a folder");
    if (v->allow_load != NULL)
        st = check_folder("--allow-load", v->allow_load, err);
    if (st == CTW_OK && v->ready_file != NULL)
        st = check_ready_file(v->ready_file, err);
    if (st == CTW_OK && v->ready_fd >= 0)
        st = check_ready_fd((int)v->ready_fd, err);
    return st;
}

/* Appends the folders given without --model. */
static enum ctw_status add_models(struct ctw_option_list *models, const char *const *more, int n,
                                  struct ctw_err *err)
{
    if (models->n + n > models->max)
        return ctw_fail(err, CTW_EINVAL, "%d models: at most %d are allowed", models->n + n,
                        models->max);
    for (int i = 0; i < n; i++)
        models->values[models->n++] = more[i];
    return CTW_OK;
}

/* Less if memory is short, but not less than one request. */
static uint64_t default_queue_bytes(void)
{
    uint64_t share = ctw_queue_share(ctw_host_memory("").free);
    share = share > CTW_IPC_REQUEST_BYTES ? share : CTW_IPC_REQUEST_BYTES;
    return share < CTW_IPC_QUEUE_BYTES ? share : CTW_IPC_QUEUE_BYTES;
}

int ctw_cmd_serve(int argc, char **argv)
{
    struct ctw_engine_option_values engine = {0};
    const char *models[CTW_IPC_MODELS], *more[CTW_IPC_MODELS];
    struct values v = {.models = {.values = models, .max = CTW_IPC_MODELS},
                       .ready_fd = -1,
                       .on_signal = "finish",
                       .grace_s = 20,
                       .queue_bytes = default_queue_bytes(),
                       .store_limit = STORE_BYTES,
                       .hidden_limit = HIDDEN_BYTES};
    struct ctw_option options[N_OWN + CTW_N_ENGINE_OPTIONS];
    fill_place_rows(options, &v);
    fill_life_rows(options + N_PLACE, &v);
    fill_kept_rows(options + N_PLACE + N_LIFE, &v);
    ctw_engine_option_rows(options + N_OWN, &engine);
    const struct ctw_command_line line = {
        .name = "serve",
        .synopsis = "--model [NAME[:DTYPE]=]DIR [--model ...] [--listen URL]",
        .about = about,
        .options = options,
        .n_options = (int)CTW_COUNT(options),
        .positional = "DIR",
        .n_positional_max = CTW_IPC_MODELS,
        .positionals = more};
    int exit_code;
    int n_more = ctw_options_parse(&line, argc, argv, &exit_code);
    if (exit_code >= 0)
        return exit_code;
    enum ctw_log_level level;
    if (v.log != NULL && ctw_log_level_parse(v.log, &level)) {
        ctw_log_set_level(level);
        setenv("CTW_LOG", v.log, 1); /* for the CUDA backend, a library that logs for itself */
    }
    struct ctw_err err;
    enum ctw_status st = check_values(&v, &err);
    if (st == CTW_OK)
        st = add_models(&v.models, more, n_more, &err);
    if (st != CTW_OK) {
        ctw_error("serve: %s", err.msg);
        return ctw_status_exit_code(st);
    }
    const struct ctw_serve_options serve = {
        .models = models,
        .n_models = v.models.n,
        .listen = v.listen,
        .name = v.name,
        .insecure_bind_any = v.bind_any,
        .token_file = v.token_file,
        .insecure = v.insecure,
        .allow_load = v.allow_load,
        .ready_file = v.ready_file,
        .ready_fd = (int)v.ready_fd,
        .owner_pid = (pid_t)v.owner_pid,
        .cancel_on_signal = strcmp(v.on_signal, "cancel") == 0,
        .grace_ms = v.grace_s * 1000,
        .queue_bytes = v.queue_bytes,
        .store = v.store,
        .store_limit = v.store_limit,
        .hidden = v.hidden,
        .hidden_limit = v.hidden_limit,
        .engine = ctw_engine_options_from(&engine, NULL),
        .version = ctw_version(),
    };
    return ctw_serve(&serve);
}
