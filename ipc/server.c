#include "ipc/server.h"

#include <msgpack.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/supplemental/util/platform.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "ipc/limits.h"
#include "ipc/server_internal.h"

#if NNG_MAJOR_VERSION != 1
#error "this needs nng 1.x (1.5 to 1.12): nng 2 has another interface"
#endif

/* A client that asks and asks and reads nothing must not keep the threads. */
enum { N_THREADS = 16, SEND_MS = 30000 };

static enum ctw_status nng_failed(struct ctw_err *err, const char *what, int rc)
{
    enum ctw_status st = rc == NNG_EADDRINUSE ? CTW_EBUSY : rc == NNG_ENOMEM ? CTW_ENOMEM : CTW_EIO;
    return ctw_fail(err, st, "%s: %s", what, nng_strerror(rc));
}

/* ---- connections ---- */

/* Before a connection is used: over ipc, only our own user. */
static void on_pipe_add(nng_pipe p, nng_pipe_ev ev, void *arg)
{
    struct ctw_server *s = arg;
    uint64_t uid;
    (void)ev;
    atomic_fetch_add(&s->n_accepted, 1);
    if (s->endpoint.path == NULL)
        return;
    if (nng_pipe_get_uint64(p, NNG_OPT_IPC_PEER_UID, &uid) != 0 || uid != (uint64_t)geteuid()) {
        ctw_warn("a connection of another user was refused");
        nng_pipe_close(p);
    }
}

static void on_pipe_gone(nng_pipe p, nng_pipe_ev ev, void *arg)
{
    struct ctw_server *s = arg;
    (void)ev;
    if (s->options.peer_gone != NULL)
        s->options.peer_gone(s->options.arg, (uint32_t)nng_pipe_id(p));
}

/* ---- requests ---- */

static nng_msg *message_of(const struct ctw_writer *w)
{
    nng_msg *msg = NULL;
    if (nng_msg_alloc(&msg, 0) != 0)
        return NULL;
    if (nng_msg_append(msg, w->data, w->n) != 0) {
        nng_msg_free(msg);
        return NULL;
    }
    return msg;
}

static nng_msg *encode(struct ctw_reply *reply)
{
    struct ctw_writer w = {0};
    struct ctw_err err;
    nng_msg *msg = NULL;
    enum ctw_status st = ctw_reply_encode(reply, &w, &err);
    if (st == CTW_OK)
        msg = message_of(&w);
    ctw_writer_fini(&w);
    if (msg == NULL && reply->ok) { /* a short one may still fit */
        if (st == CTW_OK)
            (void)ctw_fail(&err, CTW_ENOMEM, "out of memory");
        (void)ctw_fail_prefix(&err, "the reply");
        ctw_reply_fail(reply, &err);
        return encode(reply);
    }
    return msg;
}

/* The reply to the request in `in`, or NULL when there is no memory for any. */
static nng_msg *answer(struct ctw_server *s, nng_msg *in)
{
    nng_pipe pipe = nng_msg_get_pipe(in);
    struct ctw_peer peer = {.pipe = (uint32_t)nng_pipe_id(pipe), .local = s->endpoint.path != NULL};
    struct ctw_request request;
    struct ctw_err err;
    struct ctw_reply reply = {0};
    enum ctw_status st = ctw_request_decode(&request, nng_msg_body(in), nng_msg_len(in), &err);
    reply.id = request.id;
    reply.op = request.op;
    peer.self = request.op == CTW_OP_HEALTH && request.id == s->probe_id;
    if (st == CTW_OK)
        s->options.handle(s->options.arg, &peer, &request, &reply);
    else
        ctw_reply_fail(&reply, &err);
    nng_msg *out = encode(&reply);
    ctw_request_close(&request);
    ctw_reply_close(&reply);
    return out;
}

static int receive_request(struct ctw_server_thread *t, nng_msg **out)
{
    nng_aio_set_timeout(t->aio, NNG_DURATION_INFINITE);
    nng_ctx_recv(t->ctx, t->aio);
    atomic_store(&t->receiving, true);
    nng_aio_wait(t->aio);
    atomic_store(&t->receiving, false);
    int rc = nng_aio_result(t->aio);
    *out = rc == 0 ? nng_aio_get_msg(t->aio) : NULL;
    return rc;
}

static void send_reply(struct ctw_server_thread *t, nng_msg *msg)
{
    nng_aio_set_msg(t->aio, msg);
    nng_aio_set_timeout(t->aio, t->server->options.send_ms);
    nng_ctx_send(t->ctx, t->aio);
    nng_aio_wait(t->aio);
    if (nng_aio_result(t->aio) !=
        0) /* the client is gone, or reads nothing; the message is still ours */
        nng_msg_free(msg);
}

static void *thread_main(void *arg)
{
    struct ctw_server_thread *t = arg;
    while (!atomic_load(&t->server->ending)) {
        nng_msg *in;
        int rc = receive_request(t, &in);
        if (rc == NNG_ECLOSED || rc == NNG_ECANCELED)
            return NULL;
        if (rc != 0) {
            ctw_warn("receiving a request: %s", nng_strerror(rc));
            nng_msleep(10);
            continue;
        }
        nng_msg *out = answer(t->server, in);
        nng_msg_free(in);
        if (out != NULL)
            send_reply(t, out);
    }
    return NULL;
}

/*
 * Ends a thread: one that waits for a request at once, one that answers after its reply, or after a
 * second. Closing the socket under it instead makes nng 1.5 lock a mutex that is gone, now and then.
 */
static void end_thread(struct ctw_server_thread *t)
{
    enum { SLICE_MS = 10, REPLY_MS = 1000 };
    for (int waited_ms = 0;; waited_ms += SLICE_MS) {
        struct timespec until;
        if (atomic_load(&t->receiving) || waited_ms >= REPLY_MS)
            nng_aio_cancel(t->aio);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += SLICE_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        if (pthread_timedjoin_np(t->thread, NULL, &until) == 0)
            return;
    }
}

/* ---- opening ---- */

static enum ctw_status set_address(struct ctw_server *s, struct ctw_err *err)
{
    int port = s->endpoint.port;
    if (s->endpoint.path == NULL && port == 0) {
        int rc = nng_listener_get_int(s->listener, NNG_OPT_TCP_BOUND_PORT, &port);
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

enum ctw_status ctw_server_listen(struct ctw_server *s, struct ctw_err *err)
{
    nng_listener l;
    int rc = nng_listener_create(&l, s->socket, s->endpoint.url);
    if (rc != 0)
        return nng_failed(err, s->endpoint.url, rc);
    if (s->endpoint.path != NULL) {
        rc = nng_listener_set_int(l, NNG_OPT_IPC_PERMISSIONS, 0600);
    } else {
        rc = nng_listener_set_bool(l, NNG_OPT_TCP_KEEPALIVE, true);
        if (rc == 0)
            rc = nng_listener_set_bool(l, NNG_OPT_TCP_NODELAY, true);
    }
    if (rc == 0)
        rc = nng_listener_start(l, 0);
    if (rc != 0) {
        nng_listener_close(l);
        return nng_failed(err, s->endpoint.url, rc);
    }
    s->listener = l;
    return CTW_OK;
}

static enum ctw_status open_socket(struct ctw_server *s, struct ctw_err *err)
{
    int rc = nng_rep0_open(&s->socket);
    if (rc != 0)
        return nng_failed(err, "nng", rc);
    s->socket_open = true;
    rc = nng_socket_set_size(s->socket, NNG_OPT_RECVMAXSZ,
                             CTW_IPC_MESSAGE_BYTES + CTW_IPC_HEADER_BYTES);
    if (rc == 0)
        rc = nng_pipe_notify(s->socket, NNG_PIPE_EV_ADD_PRE, on_pipe_add, s);
    if (rc == 0)
        rc = nng_pipe_notify(s->socket, NNG_PIPE_EV_REM_POST, on_pipe_gone, s);
    if (rc != 0)
        return nng_failed(err, "nng", rc);
    enum ctw_status st = ctw_server_listen(s, err);
    return st == CTW_OK ? set_address(s, err) : st;
}

static enum ctw_status start_threads(struct ctw_server *s, int n, struct ctw_err *err)
{
    while (s->n_threads < n) {
        struct ctw_server_thread *t = &s->threads[s->n_threads];
        t->server = s;
        int rc = nng_ctx_open(&t->ctx, s->socket);
        if (rc == 0 && (rc = nng_aio_alloc(&t->aio, NULL, NULL)) != 0)
            nng_ctx_close(t->ctx);
        if (rc != 0)
            return nng_failed(err, "nng", rc);
        rc = pthread_create(&t->thread, NULL, thread_main, t);
        if (rc != 0) {
            nng_aio_free(t->aio);
            return ctw_fail(err, CTW_ENOMEM, "cannot start a server thread: %s", strerror(rc));
        }
        s->n_threads++;
    }
    int rc = pthread_create(&s->probe, NULL, ctw_server_probe_main, s);
    s->probe_started = rc == 0;
    return rc == 0 ? CTW_OK
                   : ctw_fail(err, CTW_ENOMEM, "cannot start a server thread: %s", strerror(rc));
}

static void init_wait(struct ctw_server *s)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
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
    init_wait(s);
    s->options = *options;
    if (s->options.send_ms == 0)
        s->options.send_ms = SEND_MS;
    if (getrandom(&s->probe_id, sizeof(s->probe_id), 0) != (ssize_t)sizeof(s->probe_id))
        s->probe_id = UINT64_MAX;
    enum ctw_status st = ctw_endpoint_parse(&s->endpoint, options->url, err);
    if (st == CTW_OK)
        st = ctw_endpoint_claim(&s->endpoint, options->allow_any, err);
    if (st == CTW_OK)
        st = open_socket(s, err);
    if (st == CTW_OK)
        st = start_threads(s, n_threads, err);
    if (st != CTW_OK) {
        ctw_server_close(s);
        return st;
    }
    *out = s;
    return CTW_OK;
}

void ctw_server_close(struct ctw_server *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (s->probe_started)
        pthread_join(s->probe, NULL);
    atomic_store(&s->ending, true);
    for (int i = 0; i < s->n_threads; i++)
        end_thread(&s->threads[i]);
    if (s->socket_open)
        nng_close(s->socket);
    for (int i = 0; i < s->n_threads; i++)
        nng_aio_free(s->threads[i].aio);
    ctw_endpoint_release(&s->endpoint);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    ctw_free(s);
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
