/* Lists of calls. Each call is in one list, or with a thread. */
#include "base/clock.h"
#include "base/mem.h"
#include "ipc/server_internal.h"

/* ---- lists ---- */

void ctw_calls_init(struct ctw_calls *list)
{
    list->first = NULL;
    list->end = &list->first;
}

void ctw_calls_append(struct ctw_calls *list, struct ctw_call *e)
{
    e->next = NULL;
    *list->end = e;
    list->end = &e->next;
}

struct ctw_call *ctw_calls_take(struct ctw_calls *list, struct ctw_call **at)
{
    struct ctw_call *e = *at;
    *at = e->next;
    if (list->end == &e->next)
        list->end = at;
    e->next = NULL;
    return e;
}

/* ---- calls ---- */

void ctw_call_handled(struct ctw_call *e)
{
    if (e->data == NULL)
        return;
    ctw_free(e->data);
    e->data = NULL;
    ctw_room_give_back(e);
}

void ctw_call_free(struct ctw_call *e)
{
    ctw_call_handled(e);
    e->conn->server->unsent -= e->charge; /* the charge of the reply */
    if (e->counted)
        e->conn->n_calls--;
    ctw_writer_fini(&e->reply);
    ctw_free(e);
}

void ctw_call_add(struct ctw_call *e)
{
    struct ctw_connection *c = e->conn;
    c->active_ms = ctw_now_ms();
    ctw_allowance_use(c);
    c->n_calls++;
    e->counted = true;
    ctw_calls_append(&c->pending, e);
    ctw_call_next(c);
}

void ctw_call_next(struct ctw_connection *c)
{
    struct ctw_server *s = c->server;
    if (c->closing || c->active != NULL || c->pending.first == NULL)
        return;
    c->active = ctw_calls_take(&c->pending, &c->pending.first);
    ctw_calls_append(&s->ready, c->active);
    pthread_cond_signal(&s->work);
}

void ctw_calls_forget(struct ctw_connection *c)
{
    struct ctw_server *s = c->server;
    while (c->pending.first != NULL)
        ctw_call_free(ctw_calls_take(&c->pending, &c->pending.first));
    for (struct ctw_call **at = &s->waiting.first; *at != NULL;) {
        if ((*at)->conn != c) {
            at = &(*at)->next;
            continue;
        }
        s->n_waiting--;
        c->n_waiting--;
        ctw_call_free(ctw_calls_take(&s->waiting, at));
    }
}

/* ---- waiting ---- */

void ctw_calls_wake_due(struct ctw_server *s, uint64_t key, int64_t now_ms)
{
    for (struct ctw_call **at = &s->waiting.first; *at != NULL;) {
        bool due = now_ms != 0 ? (*at)->until_ms <= now_ms : key == 0 || (*at)->key == key;
        if (!due) {
            at = &(*at)->next;
            continue;
        }
        struct ctw_call *e = ctw_calls_take(&s->waiting, at);
        s->n_waiting--;
        e->conn->n_waiting--;
        ctw_calls_append(&e->conn->pending, e);
        ctw_call_next(e->conn);
    }
}

void ctw_calls_wake(struct ctw_server *s, uint64_t key)
{
    s->n_wakes++;
    ctw_calls_wake_due(s, key, 0);
}
