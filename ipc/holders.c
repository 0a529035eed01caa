/*
 * Holders of connections and memory. Over ipc, a holder is a process; over tcp a token, or a host
 * that has not shown a token yet. No holder can take everything.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "ipc/server_internal.h"

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

int ctw_holder_most_connections(const struct ctw_server *s)
{
    return s->max_connections - s->max_connections / 4;
}
