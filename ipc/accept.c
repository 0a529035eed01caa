/* New connections: the check of the peer, its name for the log, and its place among the
 * connections. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ipc/server_internal.h"

/* Pause before the next accept, for example after running out of file descriptors. */
enum { ACCEPT_AGAIN_MS = 100 };

/* Logs at most one line per minute. */
static void refuse(struct ctw_server *s, const char *why)
{
    int64_t now = ctw_now_ms();
    if (now < s->refused_ms)
        return;
    ctw_server_note(s, "a connection was refused: %s", why);
    s->refused_ms = now + 60000;
}

static void name_peer(struct ctw_connection *c)
{
    nng_sockaddr a;
    uint64_t pid;
    char ip[INET6_ADDRSTRLEN] = "?";
    if (c->server->endpoint.path != NULL) {
        if (nng_stream_get_uint64(c->stream, NNG_OPT_IPC_PEER_PID, &pid) == 0)
            snprintf(c->address, sizeof(c->address), "process %" PRIu64, pid);
        else
            snprintf(c->address, sizeof(c->address), "a process");
        return;
    }
    int port = 0;
    if (nng_stream_get_addr(c->stream, NNG_OPT_REMADDR, &a) != 0)
        a.s_family = NNG_AF_UNSPEC;
    if (a.s_family == NNG_AF_INET) {
        inet_ntop(AF_INET, &a.s_in.sa_addr, ip, sizeof(ip));
        port = ntohs(a.s_in.sa_port);
    } else if (a.s_family == NNG_AF_INET6) {
        inet_ntop(AF_INET6, a.s_in6.sa_addr, ip, sizeof(ip));
        port = ntohs(a.s_in6.sa_port);
    }
    snprintf(c->address, sizeof(c->address), a.s_family == NNG_AF_INET6 ? "[%s]:%d" : "%s:%d", ip,
             port);
}

/* Until a peer shows a token, its holder is its process (ipc) or its host (tcp). */
static bool join_holder(struct ctw_connection *c)
{
    char name[sizeof(c->address)];
    snprintf(name, sizeof(name), "%s", c->address);
    char *port = c->server->endpoint.path == NULL ? strrchr(name, ':') : NULL;
    if (port != NULL)
        *port = '\0';
    return ctw_holder_join(c, name);
}

/* Takes a place that is kept for administrators, if one is free. Over ipc, a process without other
 * connections may have it. Over tcp, the first request shows whether the peer is an
 * administrator. */
static bool take_kept_place(struct ctw_connection *c)
{
    const struct ctw_server *s = c->server;
    bool local = s->endpoint.path != NULL;
    c->kept = s->n_connections < s->max_connections + CTW_KEPT_CONNECTIONS &&
              (local ? c->holder->n == 1 : s->options.admits != NULL);
    return c->kept;
}

/* Is the holder within its bound? If not, one of its other connections may make room. */
static bool is_within_bound(struct ctw_connection *c)
{
    struct ctw_server *s = c->server;
    const struct ctw_holder *h = c->holder;
    char why[CTW_NOTE_BYTES];
    if (h->n <= ctw_holder_most_connections(s) || ctw_evict_stranger(c, h) ||
        ctw_evict_of_holder(c, true))
        return true;
    snprintf(why, sizeof(why), "%s has %d connections, the maximum for one client", h->name,
             h->n - 1);
    refuse(s, why);
    return false;
}

static bool find_place(struct ctw_connection *c)
{
    struct ctw_server *s = c->server;
    char why[CTW_NOTE_BYTES];
    c->kept = false;
    if (s->n_connections < s->max_connections)
        return true;
    if (s->n_connections < s->max_connections + CTW_KEPT_CONNECTIONS + CTW_SPARE_CONNECTIONS &&
        (ctw_evict_stranger(c, NULL) || ctw_evict_of_holder(c, false)))
        return true;
    if (take_kept_place(c))
        return true;
    const struct ctw_holder *most = ctw_holder_of_most(s);
    snprintf(why, sizeof(why), "all %d connections are in use, %d of them by %s",
             s->max_connections, most->n, most->name);
    refuse(s, why);
    return false;
}

static bool is_welcome(struct ctw_server *s, nng_stream *stream)
{
    uint64_t uid;
    if (s->ending)
        return false;
    if (s->endpoint.path != NULL &&
        (nng_stream_get_uint64(stream, NNG_OPT_IPC_PEER_UID, &uid) != 0 ||
         uid != (uint64_t)geteuid())) {
        refuse(s, "it belongs to another user");
        return false;
    }
    return true;
}

static void open_connection(struct ctw_server *s, nng_stream *stream)
{
    struct ctw_connection *c = is_welcome(s, stream) ? ctw_calloc(1, sizeof(*c)) : NULL;
    if (c == NULL) {
        nng_stream_free(stream);
        return;
    }
    c->server = s;
    c->stream = stream;
    c->id = ++s->next_id;
    c->active_ms = ctw_now_ms();
    c->admitted = s->options.admits == NULL;
    name_peer(c);
    if (!join_holder(c) || !is_within_bound(c) || !find_place(c) || !ctw_connection_start(c)) {
        ctw_holder_leave(c);
        ctw_connection_free(c);
        return;
    }
    c->next = s->connections;
    s->connections = c;
    s->n_connections++;
    ctw_allowance_take_over(c);
}

void ctw_server_accept(struct ctw_server *s)
{
    s->accept_ms = 0;
    if (s->ending)
        return;
    s->accepting = true;
    nng_stream_listener_accept(s->listener, s->accept);
}

void ctw_server_on_accepted(void *arg)
{
    struct ctw_server *s = arg;
    pthread_mutex_lock(&s->lock);
    int rc = nng_aio_result(s->accept);
    s->accepting = false;
    if (rc == 0)
        open_connection(s, nng_aio_get_output(s->accept, 0));
    if (rc == 0 || s->ending) {
        ctw_server_accept(s);
    } else {
        refuse(s, nng_strerror(rc));
        s->accept_ms = ctw_now_ms() + ACCEPT_AGAIN_MS;
        ctw_server_look_at(s, s->accept_ms);
    }
    ctw_connections_resume(s);
    pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
}
