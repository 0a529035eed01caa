#include "ipc/server.h"

#include <msgpack.h>
#include <nng/nng.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ipc/server_internal.h"

#if NNG_MAJOR_VERSION != 1
#error "ctworker needs nng 1.x (1.5 to 1.12): nng 2 has a different API"
#endif

enum {
    N_THREADS = 4,
    STALL_MS = 30000,       /* send_ms, receive_ms */
    LAST_REPLIES_MS = 1000, /* for replies when closing */
};

static enum ctw_status nng_failed(struct ctw_err *err, const char *what, int rc)
{
    enum ctw_status st = rc == NNG_EADDRINUSE ? CTW_EBUSY : rc == NNG_ENOMEM ? CTW_ENOMEM : CTW_EIO;
    return ctw_fail(err, st, "%s: %s", what, nng_strerror(rc));
}

/* ---- opening ---- */

static enum ctw_status set_address(struct ctw_server *s, struct ctw_err *err)
{
    int port = s->endpoint.port;
    if (s->endpoint.path == NULL && port == 0) {
        int rc = nng_stream_listener_get_int(s->listener, NNG_OPT_TCP_BOUND_PORT, &port);
        if (rc != 0)
            return nng_failed(err, s->endpoint.url, rc);
        s->endpoint.port = port;
        bool v6 = strchr(s->endpoint.host, ':') != NULL;
        snprintf(s->endpoint.url, sizeof(s->endpoint.url), "tcp://%s%.200s%s:%d", v6 ? "[" : "",
                 s->endpoint.host, v6 ? "]" : "", port);
    }
    memcpy(s->url, s->endpoint.url, sizeof(s->url));
    return CTW_OK;
}

static enum ctw_status start_listening(struct ctw_server *s, struct ctw_err *err)
{
    int rc = nng_aio_alloc(&s->accept, ctw_server_on_accepted, s);
    if (rc == 0)
        rc = nng_stream_listener_alloc(&s->listener, s->endpoint.url);
    if (rc != 0)
        return nng_failed(err, s->endpoint.url, rc);
    if (s->endpoint.path != NULL) {
        rc = nng_stream_listener_set_int(s->listener, NNG_OPT_IPC_PERMISSIONS, 0600);
    } else {
        rc = nng_stream_listener_set_bool(s->listener, NNG_OPT_TCP_KEEPALIVE, true);
        if (rc == 0)
            rc = nng_stream_listener_set_bool(s->listener, NNG_OPT_TCP_NODELAY, true);
    }
    if (rc == 0)
        rc = nng_stream_listener_listen(s->listener);
    if (rc != 0)
        return nng_failed(err, s->endpoint.url, rc);
    enum ctw_status st = set_address(s, err);
    if (st != CTW_OK)
        return st;
    pthread_mutex_lock(&s->lock);
    ctw_server_accept(s);
    pthread_mutex_unlock(&s->lock);
    return CTW_OK;
}

static enum ctw_status start_threads(struct ctw_server *s, int n, struct ctw_err *err)
{
    int rc = 0;
    while (rc == 0 && s->n_threads < n) {
        rc = pthread_create(&s->threads[s->n_threads], NULL, ctw_dispatch_main, s);
        s->n_threads += rc == 0;
    }
    if (rc == 0) {
        rc = pthread_create(&s->timer, NULL, ctw_dispatch_timer_main, s);
        s->timer_started = rc == 0;
    }
    return rc == 0 ? CTW_OK
                   : ctw_fail(err, CTW_ENOMEM, "cannot start a server thread: %s", strerror(rc));
}

int ctw_server_max_connections(void)
{
    enum { OTHER_FILES = 256 };
    struct rlimit files;
    rlim_t wanted = CTW_IPC_CONNECTIONS + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return CTW_IPC_CONNECTIONS;
    if (files.rlim_cur < wanted) {
        files.rlim_cur = files.rlim_max < wanted ? files.rlim_max : wanted;
        (void)setrlimit(RLIMIT_NOFILE, &files);
        (void)getrlimit(RLIMIT_NOFILE, &files);
    }
    if (files.rlim_cur >= wanted)
        return CTW_IPC_CONNECTIONS;
    return files.rlim_cur > 2 * OTHER_FILES ? (int)files.rlim_cur - OTHER_FILES
                                            : (int)files.rlim_cur / 2;
}

static void init_waiting(struct ctw_server *s)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, &attr);
    pthread_cond_init(&s->timed, &attr);
    pthread_cond_init(&s->idle, &attr);
    pthread_condattr_destroy(&attr);
    ctw_calls_init(&s->ready);
    ctw_calls_init(&s->waiting);
    s->timer_ms = INT64_MAX;
}

enum ctw_status ctw_server_open(struct ctw_server **out, const struct ctw_server_options *options,
                                struct ctw_err *err)
{
    int n_threads = options->n_threads == 0 ? N_THREADS : options->n_threads;
    if (n_threads < 1 || n_threads > CTW_SERVER_MAX_THREADS)
        return ctw_fail(err, CTW_EINVAL, "%d server threads: expected 1..%d", n_threads,
                        CTW_SERVER_MAX_THREADS);
    struct ctw_server *s = ctw_calloc(1, sizeof(*s));
    if (s == NULL)
        return ctw_fail(err, CTW_ENOMEM, "server: out of memory");
    init_waiting(s);
    s->options = *options;
    ctw_rooms_init(s);
    s->max_connections = ctw_server_max_connections();
    if (s->options.send_ms == 0)
        s->options.send_ms = STALL_MS;
    if (s->options.receive_ms == 0)
        s->options.receive_ms = STALL_MS;
    enum ctw_status st = ctw_endpoint_parse(&s->endpoint, options->url, err);
    if (st == CTW_OK)
        st = ctw_endpoint_claim(&s->endpoint, options->allow_any, err);
    if (st == CTW_OK)
        st = start_threads(s, n_threads, err);
    if (st == CTW_OK)
        st = start_listening(s, err);
    if (st != CTW_OK) {
        ctw_server_close(s);
        return st;
    }
    *out = s;
    return CTW_OK;
}

/* ---- closing ---- */

static bool is_quiet(const struct ctw_server *s)
{
    for (const struct ctw_connection *c = s->connections; c != NULL; c = c->next) {
        if (c->active != NULL || c->pending.first != NULL)
            return false;
    }
    return true;
}

/* Answers outstanding requests of clients that still take replies, then closes all connections. */
static void end_connections(struct ctw_server *s)
{
    enum { SLICE_MS = 5 };
    int64_t until_ms = ctw_now_ms() + LAST_REPLIES_MS;
    ctw_calls_wake(s, 0);
    for (bool dropped = false; s->connections != NULL || s->accepting;) {
        int64_t now = ctw_now_ms() + SLICE_MS;
        struct timespec slice = {.tv_sec = now / 1000, .tv_nsec = (long)(now % 1000) * 1000000};
        if (!dropped && (is_quiet(s) || now > until_ms)) {
            dropped = true;
            for (struct ctw_connection *c = s->connections; c != NULL; c = c->next)
                ctw_connection_drop(c, NULL);
        }
        pthread_cond_timedwait(&s->idle, &s->lock, &slice);
    }
}

void ctw_server_close(struct ctw_server *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    if (s->listener != NULL)
        nng_stream_listener_close(s->listener);
    end_connections(s);
    ctw_server_write_notes(s);
    s->ended = true;
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->timed);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_threads; i++)
        pthread_join(s->threads[i], NULL);
    if (s->timer_started)
        pthread_join(s->timer, NULL);
    nng_aio_free(s->accept);
    nng_stream_listener_free(s->listener);
    ctw_endpoint_release(&s->endpoint);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->timed);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    ctw_free(s);
}

/* ---- other functions ---- */

void ctw_server_wake(struct ctw_server *s, uint64_t key)
{
    pthread_mutex_lock(&s->lock);
    ctw_calls_wake(s, key);
    pthread_mutex_unlock(&s->lock);
}

const char *ctw_server_url(const struct ctw_server *s)
{
    return s->url;
}

const char *ctw_ipc_nng_version(void)
{
    return nng_version();
}

const char *ctw_ipc_msgpack_version(void)
{
    return msgpack_version();
}
