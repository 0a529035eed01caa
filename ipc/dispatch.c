/* The path of a request: from its connection to a handler, perhaps to the waiting calls, and back
 * as a reply. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "ipc/server_internal.h"

enum { FETCH_AGAIN_MS = 20, TIMER_MS = 5 /* TIMER_MS between two runs of the timer */ };

/* ---- handling ---- */

static void put_off(struct ctw_call *e, const struct ctw_wait *wait, unsigned n_wakes)
{
    struct ctw_connection *c = e->conn;
    struct ctw_server *s = c->server;
    c->active = NULL;
    e->key = wait->key;
    e->until_ms = wait->until_ms;
    if (n_wakes != s->n_wakes) { /* a wake for this key may have come before the call was listed */
        ctw_calls_append(&c->pending, e);
    } else {
        ctw_calls_append(&s->waiting, e);
        s->n_waiting++;
        c->n_waiting++;
        ctw_server_look_at(s, e->until_ms);
    }
    ctw_call_next(c);
}

/* A reply that cannot be encoded (too large, out of memory) becomes an error reply, which fits. */
static bool encode(struct ctw_reply *reply, struct ctw_writer *w)
{
    struct ctw_err err;
    if (ctw_reply_encode(reply, w, &err) == CTW_OK)
        return true;
    ctw_writer_fini(w);
    *w = (struct ctw_writer){0};
    if (!reply->ok)
        return false;
    (void)ctw_fail_prefix(&err, "the reply");
    ctw_reply_fail(reply, &err);
    return encode(reply, w);
}

/* Without the lock. Writes the reply to *w or sets wait->until_ms. False: out of memory. */
static bool answer(struct ctw_call *e, struct ctw_peer *peer, bool may_fetch, struct ctw_wait *wait,
                   struct ctw_writer *w)
{
    struct ctw_server *s = e->conn->server;
    struct ctw_request request;
    struct ctw_err err;
    struct ctw_reply reply = {0};
    enum ctw_status st =
        ctw_request_decode(&request, e->data + e->n_trace, e->n - e->n_trace, &err);
    reply.id = request.id;
    reply.op = request.op;
    if (s->options.admits != NULL && !s->options.admits(s->options.arg, peer, &request)) {
        (void)ctw_fail(&err, CTW_EREFUSED, "refused");
        ctw_reply_fail(&reply, &err);
        e->refused = true;
    } else if (st == CTW_OK && request.op == CTW_OP_FETCH && !may_fetch)
        wait->until_ms = ctw_now_ms() + FETCH_AGAIN_MS;
    else if (st == CTW_OK)
        s->options.handle(s->options.arg, peer, &request, wait, &reply);
    else
        ctw_reply_fail(&reply, &err);
    bool done = wait->until_ms != 0 || encode(&reply, w);
    ctw_request_close(&request);
    ctw_reply_close(&reply);
    return done;
}

/* Writes nng's frame and header, which precede the reply. */
static void frame(struct ctw_call *e)
{
    bool local = e->conn->server->endpoint.path != NULL;
    uint64_t n = e->n_trace + e->reply.n;
    unsigned char *at = e->head;
    if (local)
        *at++ = 1;
    for (int i = 7; i >= 0; i--)
        *at++ = (unsigned char)(n >> (8 * i));
    memcpy(at, e->data, e->n_trace);
    e->n_head = (size_t)(at - e->head) + e->n_trace;
}

static void handle(struct ctw_server *s, struct ctw_call *e)
{
    struct ctw_connection *c = e->conn;
    unsigned n_wakes = s->n_wakes;
    bool may_fetch = s->unsent < CTW_IPC_UNSENT_BYTES || s->ending;
    if (e->since_ms == 0)
        e->since_ms = ctw_now_ms();
    struct ctw_wait wait = {
        .since_ms = e->since_ms,
        .allowed = !s->ending && s->n_waiting < CTW_IPC_WAITING &&
                   c->n_waiting < CTW_IPC_CONNECTION_WAITING,
    };
    if (s->fetch_waits && may_fetch)
        s->fetch_waits = false;
    struct ctw_peer peer = {.pipe = c->id,
                            .local = s->endpoint.path != NULL,
                            .address = c->address,
                            .admin = s->options.admits == NULL};
    bool gone = c->closing;
    pthread_mutex_unlock(&s->lock);
    bool done = gone || answer(e, &peer, may_fetch, &wait, &e->reply);
    pthread_mutex_lock(&s->lock);
    if (!gone && !e->refused)
        ctw_connection_admitted(c, &peer);
    if (!c->closing && done && wait.until_ms != 0) {
        s->fetch_waits = s->fetch_waits || !may_fetch;
        put_off(e, &wait, n_wakes);
        return;
    }
    if (!c->closing && done) {
        frame(e);
        ctw_call_handled(e);
        e->charge = e->reply.n > CTW_IPC_SMALL_BYTES ? e->reply.n : 0;
        s->unsent += e->charge;
        ctw_connection_send(c);
        return;
    }
    c->active = NULL;
    ctw_call_free(e);
    ctw_connection_drop(c, "out of memory for its reply");
    ctw_server_look_at(s, 0);
}

void *ctw_dispatch_main(void *server)
{
    struct ctw_server *s = server;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->ready.first == NULL && !s->ended)
            pthread_cond_wait(&s->work, &s->lock);
        if (s->ready.first == NULL)
            break;
        handle(s, ctw_calls_take(&s->ready, &s->ready.first));
        ctw_connections_resume(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- time ---- */

/* Frees closed connections; releases the lock while doing so. */
static void free_connections(struct ctw_server *s)
{
    for (struct ctw_connection **at = &s->connections; *at != NULL;) {
        struct ctw_connection *c = *at;
        if (!ctw_connection_is_free(c)) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        s->n_connections--;
        ctw_allowance_leave(c);
        ctw_holder_leave(c);
        pthread_mutex_unlock(&s->lock);
        if (s->options.peer_gone != NULL)
            s->options.peer_gone(s->options.arg, c->id);
        ctw_connection_free(c);
        pthread_mutex_lock(&s->lock);
        at = &s->connections; /* the list may have changed */
    }
    pthread_cond_broadcast(&s->idle);
}

/* Drops slow connections with a large message, if other connections wait for its memory. */
static void drop_slow(struct ctw_server *s)
{
    for (struct ctw_connection *c = s->connections; c != NULL; c = c->next) {
        const char *why = ctw_connection_is_slow(c);
        if (why != NULL)
            ctw_connection_drop(c, why);
    }
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Does everything that is due, and returns the time of the next event. */
static int64_t look(struct ctw_server *s, int64_t now)
{
    int64_t next = INT64_MAX;
    ctw_calls_wake_due(s, 0, now);
    for (const struct ctw_call *e = s->waiting.first; e != NULL; e = e->next)
        next = earlier(next, e->until_ms);
    if (ctw_connections_wait(s)) {
        if (s->hurry_ms <= now) {
            drop_slow(s);
            s->hurry_ms = now + 1000;
        }
        next = earlier(next, s->hurry_ms);
    }
    for (struct ctw_connection *c = s->connections; c != NULL; c = c->next) {
        if (c->resume_ms != 0 && c->resume_ms <= now) {
            c->resume_ms = 0;
            ctw_connection_receive(c);
        } else if (c->resume_ms != 0) {
            next = earlier(next, c->resume_ms);
        }
    }
    if (s->accept_ms != 0 && s->accept_ms <= now)
        ctw_server_accept(s);
    else if (s->accept_ms != 0)
        next = earlier(next, s->accept_ms);
    return next;
}

static void wait_until(struct ctw_server *s, int64_t ms)
{
    struct timespec until = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    if (ms == INT64_MAX)
        pthread_cond_wait(&s->timed, &s->lock);
    else
        pthread_cond_timedwait(&s->timed, &s->lock, &until);
}

void *ctw_dispatch_timer_main(void *server)
{
    struct ctw_server *s = server;
    int64_t looked = 0;
    pthread_mutex_lock(&s->lock);
    while (!s->ended) {
        int64_t now = ctw_now_ms();
        if (now < looked + TIMER_MS) {
            wait_until(s, looked + TIMER_MS);
            continue;
        }
        if (now < s->timer_ms) {
            wait_until(s, s->timer_ms);
            continue;
        }
        looked = now;
        s->timer_ms = INT64_MAX;
        ctw_server_write_notes(s);
        free_connections(s);
        ctw_server_look_at(s, look(s, now));
        ctw_connections_resume(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
