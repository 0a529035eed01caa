/* Bounds of a connection: memory for its requests, requests per second, and the time for its
 * bytes. */
#include <stdio.h>

#include "base/clock.h"
#include "ipc/server_internal.h"

/* ---- memory ---- */

void ctw_rooms_init(struct ctw_server *s)
{
    enum { HOLDERS = 4 }; /* at least so many holders are needed to fill a room */
    size_t strangers = s->options.admits == NULL ? 0 : CTW_IPC_STRANGERS_BYTES;
    s->rooms[CTW_ROOM_STRANGERS].bytes = strangers;
    s->rooms[CTW_ROOM_MEDIUM].bytes = CTW_IPC_ALL_MEDIUM_BYTES;
    s->rooms[CTW_ROOM_LARGE].bytes = CTW_IPC_UNHANDLED_BYTES - CTW_IPC_ALL_MEDIUM_BYTES - strangers;
    for (int i = 0; i < CTW_N_ROOMS; i++) {
        struct ctw_room *room = &s->rooms[i];
        room->share = i == CTW_ROOM_STRANGERS ? room->bytes : room->bytes / HOLDERS;
        room->end = &room->first;
    }
}

static enum ctw_room_kind kind_of(const struct ctw_connection *c, size_t bytes)
{
    return !c->admitted                    ? CTW_ROOM_STRANGERS
           : bytes <= CTW_IPC_MEDIUM_BYTES ? CTW_ROOM_MEDIUM
                                           : CTW_ROOM_LARGE;
}

static struct ctw_room *room_of(const struct ctw_connection *c)
{
    return &c->server->rooms[kind_of(c, c->want)];
}

static size_t charge_of(size_t bytes)
{
    return bytes > CTW_IPC_SMALL_BYTES ? bytes : 0;
}

/* Would this request exceed the holder's share of the room, regardless of other holders? */
static bool is_at_share(const struct ctw_room *room, const struct ctw_connection *c)
{
    size_t used = c->holder->used[room - c->server->rooms];
    return used + charge_of(c->want) > room->share;
}

static bool fits(const struct ctw_room *room, const struct ctw_connection *c)
{
    return !is_at_share(room, c) && charge_of(c->want) <= room->bytes - room->used;
}

/* Connections that wait come first, except those that wait only for other requests of their own
 * holder. */
static bool may_pass(const struct ctw_room *room, const struct ctw_connection *c)
{
    for (const struct ctw_connection *w = room->first; w != NULL; w = w->next_room) {
        if (w->holder == c->holder || !is_at_share(room, w))
            return false;
    }
    return fits(room, c);
}

static void join(struct ctw_room *room, struct ctw_connection *c)
{
    c->waits_in = room;
    c->next_room = NULL;
    *room->end = c;
    room->end = &c->next_room;
    ctw_server_look_at(c->server, 0);
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
    if (charge_of(c->want) == 0 || may_pass(room, c))
        return true;
    join(room, c);
    return false;
}

void ctw_room_charge(struct ctw_connection *c, struct ctw_call *e)
{
    e->room = kind_of(c, e->n);
    e->charge = charge_of(e->n);
    if (e->charge == 0)
        return;
    e->holder = c->holder;
    ctw_holder_take(c->server, e->holder, (int)e->room, e->charge);
}

/* The next connection that may take memory: the oldest one whose holder has not used up its share.
 * Requests of one holder keep their order. */
static struct ctw_connection *next_in(struct ctw_server *s, const struct ctw_room *room)
{
    unsigned scan = ++s->n_scans;
    for (struct ctw_connection *c = room->first; c != NULL; c = c->next_room) {
        if (c->holder->passed_over == scan)
            continue;
        if (!is_at_share(room, c))
            return fits(room, c) ? c : NULL;
        c->holder->passed_over = scan;
    }
    return NULL;
}

struct ctw_connection *ctw_rooms_next(struct ctw_server *s)
{
    struct ctw_connection *c = NULL;
    for (int i = 0; s->may_resume && c == NULL && i < CTW_N_ROOMS; i++)
        c = next_in(s, &s->rooms[i]);
    s->may_resume = c != NULL;
    if (c != NULL)
        ctw_room_leave(c);
    return c;
}

void ctw_room_change(struct ctw_connection *c)
{
    if (c->waits_in == NULL)
        return;
    ctw_room_leave(c);
    join(room_of(c), c);
    c->server->may_resume = true;
}

void ctw_room_give_back(struct ctw_call *e)
{
    struct ctw_server *s = e->conn->server;
    size_t charge = e->charge;
    if (e->holder == NULL)
        return;
    e->charge = 0;
    ctw_holder_give_back(s, e->holder, (int)e->room, charge);
    e->holder = NULL;
    s->may_resume = true;
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
    ctw_server_look_at(c->server, c->resume_ms);
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
    for (int i = 0; i < CTW_N_ROOMS; i++) {
        if (s->rooms[i].first != NULL)
            return true;
    }
    return s->fetch_waits;
}

/* Does a connection wait for the memory of this request, which is still being received? */
static bool is_waited_for(const struct ctw_call *in)
{
    const struct ctw_room *room = &in->conn->server->rooms[in->room];
    for (const struct ctw_connection *w = room->first; w != NULL; w = w->next_room) {
        if (w->holder == in->holder || !is_at_share(room, w))
            return true;
    }
    return false;
}

const char *ctw_connection_is_slow(struct ctw_connection *c)
{
    const struct ctw_call *in = c->receiving, *out = c->active;
    if (in != NULL && in->charge > 0 && is_waited_for(in) && is_slow(&c->receiving_pace, c->got))
        return "it sends a large request too slowly while others wait";
    if (c->server->fetch_waits && out != NULL && out->n_head > 0 && out->charge > 0 &&
        is_slow(&c->sending_pace, c->sent))
        return "it takes a large reply too slowly while others wait";
    return NULL;
}
