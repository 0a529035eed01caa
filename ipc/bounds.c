/* What a connection may take of the server: memory for its requests, requests per second, and time
 * for its bytes. */
#include "base/clock.h"
#include "ipc/server_internal.h"

/* ---- memory ---- */

void ctw_rooms_init(struct ctw_server *s)
{
    s->strangers.bytes = s->options.admits == NULL ? 0 : CTW_IPC_STRANGERS_BYTES;
    s->clients.bytes = CTW_IPC_UNHANDLED_BYTES - s->strangers.bytes;
    s->strangers.end = &s->strangers.first;
    s->clients.end = &s->clients.first;
}

static struct ctw_room *room_of(const struct ctw_connection *c)
{
    return c->admitted ? &c->server->clients : &c->server->strangers;
}

static size_t charge_of(size_t bytes)
{
    return bytes > CTW_IPC_SMALL_BYTES ? bytes : 0;
}

static bool fits(const struct ctw_room *room, const struct ctw_connection *c)
{
    return charge_of(c->want) <= room->bytes - room->used;
}

static void join(struct ctw_room *room, struct ctw_connection *c)
{
    c->waits_in = room;
    c->next_room = NULL;
    *room->end = c;
    room->end = &c->next_room;
    ctw_dispatch_look_at(c->server, 0);
}

void ctw_room_leave(struct ctw_connection *c)
{
    struct ctw_room *room = c->waits_in;
    if (room == NULL)
        return;
    struct ctw_connection **at = &room->first;
    while (*at != c)
        at = &(*at)->next_room;
    *at = c->next_room;
    if (room->end == &c->next_room)
        room->end = at;
    c->waits_in = NULL;
}

bool ctw_room_take(struct ctw_connection *c)
{
    struct ctw_room *room = room_of(c);
    if (charge_of(c->want) == 0 || (room->first == NULL && fits(room, c)))
        return true;
    join(room, c);
    return false;
}

void ctw_room_charge(struct ctw_connection *c, struct ctw_exchange *e)
{
    e->room = room_of(c);
    e->charge = charge_of(e->n);
    e->room->used += e->charge;
}

/* Resumes connections that wait, oldest first, as far as memory allows. */
static void resume(struct ctw_room *room)
{
    for (struct ctw_connection *c; (c = room->first) != NULL && fits(room, c);) {
        ctw_room_leave(c);
        ctw_connection_receive_body(c);
        ctw_connection_receive(c);
    }
}

void ctw_room_give_back(struct ctw_exchange *e)
{
    e->room->used -= e->charge;
    e->charge = 0;
    resume(e->room);
}

void ctw_connection_admitted(struct ctw_connection *c)
{
    if (c->admitted)
        return;
    c->admitted = true;
    if (c->waits_in == NULL)
        return;
    ctw_room_leave(c);
    join(room_of(c), c);
    resume(room_of(c));
}

/* ---- requests per second ---- */

static void refill(struct ctw_allowance *a, int64_t now)
{
    a->n += (double)(now - a->ms) * CTW_IPC_REQUESTS_PER_S / 1000;
    if (a->n > CTW_IPC_REQUESTS_AT_ONCE)
        a->n = CTW_IPC_REQUESTS_AT_ONCE;
    a->ms = now;
}

static void pause_if_empty(struct ctw_connection *c, int64_t now)
{
    if (c->allowance.n >= 0)
        return;
    c->resume_ms = now + 1000 / CTW_IPC_REQUESTS_PER_S;
    ctw_dispatch_look_at(c->server, c->resume_ms);
}

void ctw_allowance_take_over(struct ctw_connection *c)
{
    struct ctw_server *s = c->server;
    int64_t now = ctw_now_ms();
    c->allowance = s->n_left > 0 ? s->left[--s->n_left]
                                 : (struct ctw_allowance){.n = CTW_IPC_REQUESTS_AT_ONCE, .ms = now};
    refill(&c->allowance, now);
    pause_if_empty(c, now);
}

void ctw_allowance_use(struct ctw_connection *c)
{
    int64_t now = ctw_now_ms();
    refill(&c->allowance, now);
    c->allowance.n -= 1;
    pause_if_empty(c, now);
}

void ctw_allowance_leave(struct ctw_connection *c)
{
    c->server->left[c->server->n_left++] = c->allowance;
}

/* ---- time ---- */

static bool is_slow(struct ctw_pace *pace, size_t bytes)
{
    bool slow = bytes < pace->seen + CTW_SLOW_BYTES_PER_S;
    pace->n_slow = slow ? pace->n_slow + 1 : 0;
    pace->seen = bytes;
    return pace->n_slow > CTW_SLOW_S;
}

bool ctw_connections_wait(const struct ctw_server *s)
{
    return s->clients.first != NULL || s->strangers.first != NULL || s->fetch_waits;
}

void ctw_connections_hurry(struct ctw_server *s)
{
    for (struct ctw_connection *c = s->connections; c != NULL; c = c->next) {
        const struct ctw_exchange *in = c->receiving, *out = c->active;
        if (in != NULL && in->charge > 0 && in->room->first != NULL &&
            is_slow(&c->receiving_pace, c->got))
            ctw_connection_drop(c, "it sends a large request too slowly while others wait");
        if (s->fetch_waits && out != NULL && out->n_head > 0 && out->charge > 0 &&
            is_slow(&c->sending_pace, c->sent))
            ctw_connection_drop(c, "it takes a large reply too slowly while others wait");
    }
}
