#include "worker/service/life/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "ipc/endpoint.h"
#include "worker/engine/open/devices.h"
#include "worker/service/requests/handlers.h"
#include "worker/service/life/owner.h"
#include "worker/service/life/registry.h"
#include "worker/service/scorer/scorer.h"

enum {
    FAILED_LINGER_MS = 5000, /* so that a client can read the reason */
    ABORT_JOIN_MS = 3000
};

struct serve {
    const struct ctw_serve_options *options;
    struct ctw_queue queue;
    struct ctw_service service;
    struct ctw_auth auth;
    struct ctw_scorer scorer;
    struct ctw_store *store;       /* NULL: none */
    struct ctw_hidden_dir *hidden; /* NULL: none */
    struct ctw_devices devices;    /* of all models */
    pthread_mutex_t devices_lock;
    struct ctw_server *server;
    pthread_t scorer_thread;
    bool scorer_started;
    char dir[CTW_URL_MAX];
    char registry_path[CTW_REGISTRY_PATH_MAX];
    struct ctw_owner owner;
    bool announced; /* ready file written */
    int signals;    /* seen */
    int last_signal;
    int64_t stop_by_ms; /* end of the grace period; 0: not stopping by signal */
    int64_t failed_ms;  /* since when the worker is failed; 0: it is not */
};

/* ---- starting ---- */

static void *scorer_main(void *scorer)
{
    ctw_scorer_run(scorer);
    return NULL;
}

/* The same name in static memory; NULL: activations have no such dtype. */
static const char *activation_dtype(struct ctw_span name)
{
    static const char *const known[] = {"auto", "bfloat16", "float16", "float32"};
    for (size_t i = 0; i < CTW_COUNT(known); i++) {
        if (ctw_span_is(name, known[i]))
            return known[i];
    }
    return NULL;
}

/* `model`: DIR, NAME=DIR or NAME:DTYPE=DIR; NAME has no slash. */
static enum ctw_status load_model(struct serve *s, const char *model, struct ctw_err *err)
{
    char asked[CTW_MODEL_NAME_MAX] = "", name[CTW_MODEL_NAME_MAX], path[PATH_MAX];
    size_t n = strcspn(model, "=/");
    const char *dir = model[n] == '=' ? model + n + 1 : model;
    struct ctw_span given = {.data = model, .n = n};
    const char *colon = dir != model ? memchr(model, ':', n) : NULL, *dtype = NULL;
    int retry_ms;
    if (colon != NULL) {
        given.n = (size_t)(colon - model);
        dtype = activation_dtype((struct ctw_span){.data = colon + 1, .n = n - given.n - 1});
        if (dtype == NULL)
            return ctw_fail(err, CTW_EINVAL,
                            "--model %s: expected auto, bfloat16, float16 or float32 between : and "
                            "=",
                            model);
    }
    if (dir != model && (given.n == 0 || !ctw_span_copy(given, asked, sizeof(asked))))
        return ctw_fail(err, CTW_EINVAL,
                        "--model %s: expected a name of 1..%d bytes before the =", model,
                        CTW_MODEL_NAME_MAX - 1);
    if (realpath(dir, path) == NULL)
        return ctw_fail(err, errno == ENOENT ? CTW_ENOTFOUND : CTW_EIO, "--model %s: %s%s", model,
                        strerror(errno),
                        dir != model ? " (a folder with = in its name: ./NAME)" : "");
    if (ctw_queue_load(&s->queue, path, asked, dtype, name, &retry_ms, err) != CTW_OK)
        return ctw_fail_prefix(err, "--model %s", model);
    return CTW_OK;
}

/* Before any other thread is started. */
static enum ctw_status load_models(struct serve *s, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int i = 0; i < s->options->n_models && st == CTW_OK; i++)
        st = load_model(s, s->options->models[i], err);
    ctw_models_mark_initial(&s->queue.models);
    return st;
}

static void wake(void *server, uint64_t key)
{
    ctw_server_wake(server, key);
}

static enum ctw_status listen_at(struct serve *s, struct ctw_err *err)
{
    const struct ctw_serve_options *o = s->options;
    char url[CTW_URL_MAX + 128], pid[32];
    snprintf(pid, sizeof(pid), "%ld", (long)getpid());
    snprintf(url, sizeof(url), "ipc://%s/%s.sock", s->dir, o->name != NULL ? o->name : pid);
    struct ctw_server_options server = {.url = o->listen != NULL ? o->listen : url,
                                        .allow_any = o->insecure_bind_any,
                                        .arg = &s->service,
                                        .handle = ctw_handle,
                                        .admits =
                                            s->service.auth != NULL ? ctw_handle_admits : NULL,
                                        .peer_gone = ctw_handle_peer_gone};
    enum ctw_status st = ctw_server_open(&s->server, &server, err);
    if (st == CTW_OK)
        ctw_queue_wake_through(&s->queue, wake, s->server);
    return st;
}

static void model_names(struct ctw_queue *q, char *out, size_t capacity)
{
    size_t at = 0;
    out[0] = '\0';
    pthread_mutex_lock(&q->lock);
    for (int i = 0; i < q->models.n && at < capacity; i++) {
        int n =
            snprintf(out + at, capacity - at, "%s%s", i == 0 ? "" : ", ", q->models.slots[i]->name);
        at += n < 0 ? capacity : (size_t)n;
    }
    pthread_mutex_unlock(&q->lock);
}

static enum ctw_status register_worker(struct serve *s, struct ctw_err *err)
{
    struct ctw_registry_entry e = {0};
    snprintf(e.name, sizeof(e.name), "%ld", (long)getpid());
    if (s->options->name != NULL)
        snprintf(e.name, sizeof(e.name), "%s", s->options->name);
    snprintf(e.url, sizeof(e.url), "%s", ctw_server_url(s->server));
    for (int i = 0; i < CTW_BOOT_BYTES; i++)
        snprintf(e.boot + 2 * i, 3, "%02x", s->service.boot[i]);
    model_names(&s->queue, e.models, sizeof(e.models));
    e.is_private = s->options->owner_pid != 0;
    return ctw_registry_add(s->dir, &e, s->registry_path, err);
}

/* Access over tcp. Over ipc, only processes of this user can connect. */
static enum ctw_status set_access(struct serve *s, struct ctw_err *err)
{
    const struct ctw_serve_options *o = s->options;
    bool tcp = o->listen != NULL && strncmp(o->listen, "tcp://", 6) == 0;
    enum ctw_status st = CTW_OK;
    if (tcp && o->token_file == NULL && !o->insecure)
        return ctw_fail(
            err, CTW_EINVAL,
            "--listen %s: anyone who reaches the address could use and stop the worker: "
            "give --token-file FILE (mode 0600, lines NAME ROLE TOKEN), or "
            "--insecure",
            o->listen);
    if (o->token_file != NULL && o->insecure)
        return ctw_fail(err, CTW_EINVAL,
                        "--insecure allows access without tokens, --token-file asks for them: give "
                        "only one of the two options");
    if (o->token_file != NULL)
        st = ctw_auth_read(&s->auth, o->token_file, err);
    if (st != CTW_OK)
        return st;
    s->service.auth = tcp && o->token_file != NULL ? &s->auth : NULL;
    s->service.insecure = tcp && o->insecure;
    if (s->service.insecure)
        ctw_warn("--insecure: anyone who reaches %s can use and stop this worker", o->listen);
    return CTW_OK;
}

/* With --listen only `ctworker ps` needs the folder: a worker without one still serves. */
static enum ctw_status find_folder(struct serve *s, struct ctw_err *err)
{
    char text[CTW_URL_MAX + 256];
    if (ctw_runtime_dir_passed_over(text, sizeof(text)) != NULL)
        ctw_warn("%s", text);
    enum ctw_status st = ctw_runtime_dir(s->dir, sizeof(s->dir), err);
    if (st == CTW_OK || s->options->listen == NULL)
        return st;
    ctw_warn("%s. `ctworker ps` will not list this worker: reach it by its URL", err->msg);
    s->dir[0] = '\0';
    return CTW_OK;
}

/* Its folder's name is absolute in messages and `info`. */
static enum ctw_status open_store(struct serve *s, struct ctw_err *err)
{
    const struct ctw_serve_options *o = s->options;
    char path[PATH_MAX];
    if (o->store == NULL)
        return CTW_OK;
    enum ctw_status st = ctw_store_make_folder(o->store, err);
    if (st == CTW_OK && realpath(o->store, path) == NULL)
        st = ctw_fail(err, CTW_EIO, "%s: %s", o->store, strerror(errno));
    if (st == CTW_OK)
        st = ctw_store_open(&s->store, path, o->store_limit, err);
    s->service.store = s->store;
    return st == CTW_OK ? CTW_OK : ctw_fail_prefix(err, "--store");
}

static enum ctw_status open_hidden(struct serve *s, struct ctw_err *err)
{
    const struct ctw_serve_options *o = s->options;
    if (o->hidden == NULL || ctw_hidden_open(&s->hidden, o->hidden, o->hidden_limit, err) == CTW_OK)
        return CTW_OK;
    return ctw_fail_prefix(err, "--hidden");
}

static enum ctw_status start(struct serve *s, struct ctw_err *err)
{
    s->service = (struct ctw_service){.queue = &s->queue,
                                      .version = s->options->version,
                                      .started_ms = ctw_now_ms(),
                                      .allow_load = s->options->allow_load,
                                      .devices = &s->devices,
                                      .max_connections = ctw_server_max_connections()};
    if (getrandom(s->service.boot, CTW_BOOT_BYTES, 0) != CTW_BOOT_BYTES)
        return ctw_fail(err, CTW_EIO, "no random bytes: %s", strerror(errno));
    enum ctw_status st = set_access(s, err);
    if (st == CTW_OK)
        st = ctw_owner_watch(&s->owner, s->options->owner_pid, err);
    if (st == CTW_OK)
        st = find_folder(s, err);
    if (st == CTW_OK)
        st = open_store(s, err);
    if (st == CTW_OK)
        st = open_hidden(s, err);
    if (st == CTW_OK)
        st = load_models(s, err);
    if (st == CTW_OK)
        st = listen_at(s, err);
    if (st == CTW_OK && s->dir[0] != '\0')
        st = register_worker(s, err);
    if (st != CTW_OK)
        return st;
    s->scorer = (struct ctw_scorer){
        .queue = &s->queue, .options = s->options->engine, .store = s->store, .hidden = s->hidden};
    s->scorer.options.devices = &s->devices;
    int rc = pthread_create(&s->scorer_thread, NULL, scorer_main, &s->scorer);
    if (rc != 0)
        return ctw_fail(err, CTW_ENOMEM, "cannot start the scoring thread: %s", strerror(rc));
    s->scorer_started = true;
    ctw_info("listening on %s", ctw_server_url(s->server));
    return CTW_OK;
}

/* ---- running ---- */

static enum ctw_status announce(struct serve *s, struct ctw_err *err)
{
    char line[CTW_URL_MAX + 2];
    int n = snprintf(line, sizeof(line), "%s\n", ctw_server_url(s->server));
    int fd = s->options->ready_fd;
    enum ctw_status st = CTW_OK;
    s->announced = true;
    if (s->options->ready_file != NULL)
        st = ctw_write_file_atomically(s->options->ready_file, line, (size_t)n, err);
    if (fd < 0)
        return st;
    if (st == CTW_OK && write(fd, line, (size_t)n) != n)
        st = ctw_fail(err, CTW_EIO, "--ready-fd %d: %s", fd, strerror(errno));
    close(fd);
    return st;
}

static void on_signal(struct serve *s, int signal_number)
{
    s->signals++;
    s->last_signal = signal_number;
    if (s->signals > 1)
        return;
    bool cancel = s->options->cancel_on_signal;
    int n = ctw_queue_drain(&s->queue, cancel, true);
    s->stop_by_ms = ctw_now_ms() + s->options->grace_ms;
    if (n > 0)
        ctw_info("signal %d: finishing %d job%s, for at most %.0f s; a second signal stops at once",
                 signal_number, n, n == 1 ? "" : "s", (double)s->options->grace_ms / 1000);
    else
        ctw_info("signal %d: stopping", signal_number);
}

/* The failure of an initial model or of the device; CTW_OK: none. */
static enum ctw_status failure(struct serve *s, bool *ready)
{
    struct ctw_queue *q = &s->queue;
    enum ctw_status st;
    const char *message;
    pthread_mutex_lock(&q->lock);
    const char *state = ctw_service_state(&s->service, &message);
    st = q->life.fatal.status;
    for (int i = 0; i < q->models.n; i++) {
        if (q->models.slots[i]->initial && q->models.slots[i]->state == CTW_MODEL_FAILED)
            st = q->models.slots[i]->error.status;
    }
    *ready = strcmp(state, "ready") == 0;
    pthread_mutex_unlock(&q->lock);
    return st;
}

static int unfinished(struct serve *s)
{
    pthread_mutex_lock(&s->queue.lock);
    int n = ctw_jobs_unfinished(&s->queue.jobs);
    pthread_mutex_unlock(&s->queue.lock);
    return n;
}

/* The owner, or a client that has sent a request, may want to read why the worker failed. */
static bool has_reader(const struct serve *s)
{
    return s->options->owner_pid != 0 || s->options->ready_file != NULL ||
           s->options->ready_fd >= 0 || atomic_load(&s->service.n_requests) > 0;
}

/* Checks everything once. -1: go on; else the exit code. */
static int look(struct serve *s, int64_t now)
{
    bool ready;
    struct ctw_err err;
    ctw_queue_tick(&s->queue, now);
    enum ctw_status failed = failure(s, &ready);
    bool may_end = ctw_queue_may_end(&s->queue, now);
    if (failed != CTW_OK) {
        s->failed_ms = s->failed_ms == 0 ? now : s->failed_ms;
        if (!has_reader(s) || now - s->failed_ms > FAILED_LINGER_MS || s->signals > 0 || may_end)
            return ctw_status_exit_code(failed);
    }
    if (ready && !s->announced && announce(s, &err) != CTW_OK) {
        ctw_error("serve: %s", err.msg);
        return ctw_status_exit_code(err.status);
    }
    if (ctw_owner_is_gone(&s->owner)) {
        ctw_info("process %ld, which owns this worker, has ended: stopping",
                 (long)s->options->owner_pid);
        return 0;
    }
    if (s->signals > 1)
        return 128 + s->last_signal;
    if (failed == CTW_OK && may_end)
        return 0;
    if (s->signals == 0 || now < s->stop_by_ms)
        return -1;
    if (unfinished(s) == 0) /* the last job may just have ended: clients get time to fetch */
        return now < s->stop_by_ms + CTW_QUEUE_SILENT_MS ? -1 : 0;
    ctw_warn("the grace period is over: unfinished jobs are cancelled");
    return 128 + s->last_signal;
}

static int run(struct serve *s, const sigset_t *signals)
{
    const struct timespec tick = {.tv_nsec = CTW_QUEUE_TICK_MS * 1000000L};
    for (;;) {
        int code = look(s, ctw_now_ms());
        if (code >= 0)
            return code;
        int signal_number = sigtimedwait(signals, NULL, &tick);
        if (signal_number > 0)
            on_signal(s, signal_number);
    }
}

/* ---- stopping ---- */

static bool join_for_a_tick(pthread_t thread)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += CTW_QUEUE_TICK_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    return pthread_timedjoin_np(thread, NULL, &until) == 0;
}

/*
 * Waits for the scoring thread, which may be scoring a chunk or opening a model. False: timed out,
 * or a second signal came. *code is the exit code in both cases. Continues run()'s count of
 * signals.
 */
static bool join_scorer(struct serve *s, const sigset_t *signals, int *code)
{
    const struct timespec at_once = {0};
    int64_t hurry_ms = *code > 128 ? ctw_now_ms() : 0; /* since when; 0: no hurry */
    while (!join_for_a_tick(s->scorer_thread)) {
        int64_t now = ctw_now_ms();
        int signal_number = sigtimedwait(signals, NULL, &at_once);
        if (signal_number > 0) {
            s->signals++;
            s->last_signal = signal_number;
            ctw_info("signal %d: %s", signal_number,
                     s->signals > 1 ? "not waiting any longer" : "stopping already");
        }
        if (signal_number > 0 && s->signals > 1) {
            *code = 128 + signal_number;
            return false;
        }
        if (hurry_ms == 0 && ctw_owner_is_gone(&s->owner))
            hurry_ms = now;
        if (hurry_ms != 0 && now - hurry_ms > ABORT_JOIN_MS)
            return false;
    }
    return true;
}

/* Ends and frees everything; returns the exit code. The socket disappears before the process ends.
 */
static int stop(struct serve *s, const sigset_t *signals, int code)
{
    ctw_queue_stop(&s->queue);
    bool joined = !s->scorer_started || join_scorer(s, signals, &code);
    ctw_registry_remove(s->registry_path);
    ctw_queue_wake_through(&s->queue, NULL, NULL);
    ctw_server_close(s->server); /* socket and lock disappear */
    if (s->options->ready_file != NULL && s->announced)
        unlink(s->options->ready_file);
    /*
     * The scoring thread is still busy, perhaps on a GPU. exit() would run destructors of libraries
     * (CUDA, OpenMP) while it uses them, which crash or hang: end without destructors. Log lines
     * are flushed one by one, and standard output has no buffered text.
     */
    if (!joined)
        _exit(code);
    ctw_scorer_fini(&s->scorer);
    ctw_store_close(s->store);
    ctw_hidden_close(s->hidden);
    ctw_owner_close(&s->owner);
    ctw_queue_fini(&s->queue);
    ctw_auth_fini(&s->auth);
    pthread_mutex_destroy(&s->devices_lock);
    ctw_free(s);
    return code;
}

static void block_signals(sigset_t *signals)
{
    struct sigaction hup;
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    /* Under nohup SIGHUP is ignored and stays ignored: sigtimedwait() would receive it if blocked.
     */
    if (sigaction(SIGHUP, NULL, &hup) != 0 || hup.sa_handler != SIG_IGN)
        sigaddset(signals, SIGHUP);
    /* Before any thread starts: threads inherit the mask, and only run() receives signals. */
    pthread_sigmask(SIG_BLOCK, signals, NULL);
}

int ctw_serve(const struct ctw_serve_options *options)
{
    struct ctw_err err;
    sigset_t signals;
    struct serve *s = ctw_calloc(1, sizeof(*s));
    block_signals(&signals);
    enum ctw_status st = s == NULL ? ctw_fail(&err, CTW_ENOMEM, "out of memory")
                                   : ctw_queue_init(&s->queue, options->queue_bytes, &err);
    if (st != CTW_OK) {
        ctw_error("serve: %s", err.msg);
        ctw_free(s);
        return ctw_status_exit_code(st);
    }
    s->options = options;
    s->owner.fd = -1;
    pthread_mutex_init(&s->devices_lock, NULL);
    s->devices.lock = &s->devices_lock;
    st = start(s, &err);
    if (st != CTW_OK)
        ctw_error("serve: %s", err.msg);
    int code = st == CTW_OK ? run(s, &signals) : ctw_status_exit_code(st);
    return stop(s, &signals, code);
}
