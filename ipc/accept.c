/* New connections: whom the server accepts, and the peer's name for the log. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ipc/server_internal.h"

enum { ACCEPT_AGAIN_MS = 100 /* for example after running out of file descriptors */ };

/* Logs at most one line per minute. */
static void refuse(struct ctw_server *s, const char *why)
{
    int64_t now = ctw_now_ms();
    if (now < s->refused_ms)
        return;
    ctw_dispatch_note(s, "a connection was refused: %s", why);
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

/*
 * Drops the oldest connection that has sent no admitted request, so that strangers cannot keep
 * clients out by doing nothing. Is there one?
 */
static bool drop_stranger(struct ctw_server *s)
{
    struct ctw_connection *oldest = NULL;
    if (s->n_connections >= s->max_connections + CTW_SPARE_CONNECTIONS)
        return false;
    for (struct ctw_connection *c = s->connections; c != NULL; c = c->next)
        if (!c->admitted && !c->closing)
            oldest = c; /* the list has the newest first */
    if (oldest == NULL)
        return false;
    int64_t now = ctw_now_ms();
    ctw_connection_drop(
        oldest, now < s->refused_ms ? NULL : "it sent no token, and a new client needs its place");
    s->refused_ms = now < s->refused_ms ? s->refused_ms : now + 60000;
    return true;
}

static bool is_welcome(struct ctw_server *s, nng_stream *stream)
{
    uint64_t uid;
    char why[64];
    if (s->ending)
        return false;
    if (s->endpoint.path != NULL &&
        (nng_stream_get_uint64(stream, NNG_OPT_IPC_PEER_UID, &uid) != 0 ||
         uid != (uint64_t)geteuid())) {
        refuse(s, "it belongs to another user");
        return false;
    }
    if (s->n_connections < s->max_connections || drop_stranger(s))
        return true;
    snprintf(why, sizeof(why), "all %d connections are in use", s->max_connections);
    refuse(s, why);
    return false;
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
    c->admitted = s->options.admits == NULL;
    name_peer(c);
    if (!ctw_connection_start(c)) {
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
        ctw_dispatch_look_at(s, s->accept_ms);
    }
    pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
}
