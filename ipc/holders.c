/*
 * Who holds connections and memory: over ipc a process; over tcp a token, or a host that has shown
 * none yet. One holder leaves a part of everything to others. If the connections run out, the
 * holder of the most gives up the one that has been idle longest.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ipc/server_internal.h"

enum {
    IDLE_MS = 30000, /* an idle connection makes room for any other after this time */
    CROWD_PART = 8   /* whoever holds more than this part of all gives up busy connections, too */
};

/* ---- holders ---- */

static void free_if_unused(struct ctw_server *s, struct ctw_holder *h)
{
    struct ctw_holder **at = &s->holders;
    for (int i = 0; i < CTW_N_ROOMS; i++) {
        if (h->used[i] > 0)
            return;
    }
    if (h->n > 0)
        return;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    ctw_free(h);
}

bool ctw_holder_join(struct ctw_connection *c, const char *name)
{
    struct ctw_server *s = c->server;
    struct ctw_holder *h = s->holders;
    while (h != NULL && strcmp(h->name, name) != 0)
        h = h->next;
    if (h == NULL) {
        h = ctw_calloc(1, sizeof(*h));
        if (h == NULL)
            return false;
        snprintf(h->name, sizeof(h->name), "%s", name);
        h->next = s->holders;
        s->holders = h;
    }
    h->n++;
    ctw_holder_leave(c);
    c->holder = h;
    return true;
}

void ctw_holder_leave(struct ctw_connection *c)
{
    struct ctw_holder *h = c->holder;
    if (h == NULL)
        return;
    c->holder = NULL;
    h->n--;
    free_if_unused(c->server, h);
}

void ctw_holder_take(struct ctw_server *s, struct ctw_holder *h, int room, size_t bytes)
{
    h->used[room] += bytes;
    s->rooms[room].used += bytes;
}

void ctw_holder_give_back(struct ctw_server *s, struct ctw_holder *h, int room, size_t bytes)
{
    h->used[room] -= bytes;
    s->rooms[room].used -= bytes;
    free_if_unused(s, h);
}

const struct ctw_holder *ctw_holder_of_most(const struct ctw_server *s)
{
    const struct ctw_holder *most = s->holders;
    for (const struct ctw_holder *h = most; h != NULL; h = h->next)
        most = h->n > most->n ? h : most;
    return most;
}

/* ---- connections ---- */

static bool is_idle(const struct ctw_connection *c)
{
    return c->active == NULL && c->pending.first == NULL && c->n_waiting == 0 &&
           c->waits_in == NULL && c->receiving == NULL && c->got == 0;
}

/* The newcomer takes over the place, which is of use to anyone only if it is not a kept one. */
static bool is_better(const struct ctw_connection *c, const struct ctw_connection *than)
{
    if (than == NULL || c->kept != than->kept)
        return than == NULL || than->kept;
    if (c->holder->n != than->holder->n)
        return c->holder->n > than->holder->n;
    return c->active_ms < than->active_ms;
}

/* The connection to close for `newcomer`; NULL: none. `own`: of the same holder. */
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

/* The same if none is idle: the holder of very many gives up the least active. */
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

bool ctw_holder_close_one(struct ctw_connection *newcomer, bool own)
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

int ctw_holder_most_connections(const struct ctw_server *s)
{
    return s->max_connections - s->max_connections / 4;
}
