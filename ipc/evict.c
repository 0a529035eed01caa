/*
 * Places for connections. If all places are taken, a stranger loses its place first. Otherwise the
 * holder with the most connections loses the connection that has been idle longest.
 */
#include <stdio.h>

#include "base/clock.h"
#include "ipc/server_internal.h"

enum {
    IDLE_MS = 30000, /* an idle connection makes room for any other connection after this time */
    CROWD_PART = 8   /* a holder of more than this part of all connections loses busy ones, too */
};

/* ---- strangers ---- */

bool ctw_evict_stranger(struct ctw_connection *newcomer, const struct ctw_holder *of)
{
    struct ctw_server *s = newcomer->server;
    struct ctw_connection *oldest = NULL;
    for (struct ctw_connection *c = s->connections; c != NULL; c = c->next) {
        if (c->admitted || c->closing || (of != NULL && c->holder != of))
            continue;
        if (oldest == NULL || c->holder->n >= oldest->holder->n)
            oldest = c; /* the newest connection comes first in the list */
    }
    if (oldest == NULL)
        return false;
    newcomer->kept = oldest->kept;
    int64_t now = ctw_now_ms();
    ctw_connection_drop(
        oldest, now < s->refused_ms ? NULL : "it sent no token, and a new client needs its place");
    s->refused_ms = now < s->refused_ms ? s->refused_ms : now + 60000;
    return true;
}

/* ---- holders ---- */

static bool is_idle(const struct ctw_connection *c)
{
    return c->active == NULL && c->pending.first == NULL && c->n_waiting == 0 &&
           c->waits_in == NULL && c->receiving == NULL && c->got == 0;
}

/* Is `c` a better connection to close? The newcomer takes over its place, so a kept place comes
 * last. */
static bool is_better(const struct ctw_connection *c, const struct ctw_connection *than)
{
    if (than == NULL || c->kept != than->kept)
        return than == NULL || than->kept;
    if (c->holder->n != than->holder->n)
        return c->holder->n > than->holder->n;
    return c->active_ms < than->active_ms;
}

/* The idle connection to close for `newcomer`; NULL: none. `own`: only of the same holder. */
static struct ctw_connection *find_idle(const struct ctw_connection *newcomer, bool own)
{
    struct ctw_connection *best = NULL;
    const struct ctw_holder *h = newcomer->holder;
    int64_t now = ctw_now_ms();
    for (struct ctw_connection *c = newcomer->server->connections; c != NULL; c = c->next) {
        if (c == newcomer || c->closing || !is_idle(c) || (own && c->holder != h))
            continue;
        bool gives = now - c->active_ms >= IDLE_MS || (!own && c->holder->n > h->n);
        if (gives && is_better(c, best))
            best = c;
    }
    return best;
}

/* The least active connection of a holder with very many connections, if none is idle. */
static struct ctw_connection *find_busy(const struct ctw_connection *newcomer)
{
    struct ctw_connection *best = NULL;
    const struct ctw_server *s = newcomer->server;
    for (struct ctw_connection *c = s->connections; c != NULL; c = c->next) {
        bool gives =
            c->holder->n > newcomer->holder->n && c->holder->n > s->max_connections / CROWD_PART;
        if (c != newcomer && !c->closing && gives && is_better(c, best))
            best = c;
    }
    return best;
}

bool ctw_evict_of_holder(struct ctw_connection *newcomer, bool own)
{
    struct ctw_server *s = newcomer->server;
    struct ctw_connection *c = find_idle(newcomer, own);
    char why[CTW_NOTE_BYTES];
    int64_t now = ctw_now_ms();
    if (c == NULL && !own)
        c = find_busy(newcomer);
    if (c == NULL)
        return false;
    newcomer->kept = c->kept;
    snprintf(why, sizeof(why),
             "a new client needs its place; it was last active %d s ago, and %s holds %d of %d "
             "connections",
             (int)((now - c->active_ms) / 1000), c->holder->name, c->holder->n, s->max_connections);
    ctw_connection_drop(c, now < s->refused_ms ? NULL : why);
    s->refused_ms = now < s->refused_ms ? s->refused_ms : now + 60000;
    return true;
}

/* ---- tokens ---- */

/* Moves the connection to the holder of its token. If the token then has too many connections, it
 * loses one of them. */
static void join_token(struct ctw_connection *c, const struct ctw_peer *peer)
{
    char name[sizeof(c->holder->name)], why[CTW_NOTE_BYTES];
    struct ctw_server *s = c->server;
    if (peer->token == NULL)
        return;
    snprintf(name, sizeof(name), "token %s", peer->token);
    if (!ctw_holder_join(c, name)) {
        ctw_connection_drop(c, "out of memory");
        return;
    }
    int most = ctw_holder_most_connections(s);
    if (peer->admin || c->holder->n <= most || ctw_evict_of_holder(c, true))
        return;
    snprintf(why, sizeof(why), "%s has %d connections, the maximum for one client", name, most);
    ctw_connection_drop(c, why);
}

void ctw_connection_admitted(struct ctw_connection *c, const struct ctw_peer *peer)
{
    if (c->admitted)
        return;
    c->admitted = true;
    join_token(c, peer);
    if (c->kept && !peer->admin && !c->closing)
        ctw_connection_drop(c, "all connections are in use, but those kept for administrators");
    ctw_room_change(c);
}
