#include "worker/service/jobs/line.h"

#include <stdio.h>

enum {
    ASK_FIRST_MS = 100, /* the bounds of what ctw_line_wait() returns */
    ASK_LAST_MS = 5000,
    ASK_UNKNOWN_MS = 1000, /* before any slot became free */
    LATE_MS = 250,         /* that a client may be late, in addition to half of its wait */
    AWAY_MS = 30000,       /* a late client's place is kept for so long */
    N_MEAN = 16,           /* slots that the mean goes back */
    /* With this many free slots, none may become free for a lack of jobs. The time then does not
     * count. */
    MANY_FREE = CTW_IPC_JOBS / 2
};

static const char *owner_of(const struct ctw_contact *contact)
{
    return contact->owner != NULL ? contact->owner : "";
}

/* Index of the client's place; l->n: none. */
static int find(const struct ctw_line *l, const struct ctw_line_want *w)
{
    const char *owner = owner_of(w->contact);
    for (int i = 0; i < l->n; i++) {
        const struct ctw_line_place *p = &l->places[i];
        if (p->pipe != w->contact->pipe && memcmp(p->job, w->job.data, sizeof(p->job)) != 0)
            continue;
        if (p->has_slot == w->has_slot && strcmp(p->owner, owner) == 0)
            return i;
    }
    return l->n;
}

static void leave(struct ctw_line *l, int i)
{
    memmove(&l->places[i], &l->places[i + 1], (size_t)(--l->n - i) * sizeof(l->places[0]));
}

/* Further parts come before new jobs: jobs that are never sealed would fill the queue for ever. */
struct ctw_ahead ctw_line_ahead(const struct ctw_line *l, const struct ctw_line_want *w)
{
    struct ctw_ahead a = {0};
    int own = find(l, w);
    for (int i = 0; i < l->n; i++) {
        const struct ctw_line_place *p = &l->places[i];
        bool before = p->has_slot == w->has_slot ? i < own : p->has_slot;
        if (i == own || !before || p->late_ms < w->contact->now_ms)
            continue;
        a.bytes += p->bytes;
        a.slots += !p->has_slot && !p->at_bound;
        a.of_owner += !p->has_slot && strcmp(p->owner, owner_of(w->contact)) == 0;
    }
    return a;
}

/* Half of the estimated time until a slot is free for a client behind n_ahead others, so that a
 * wrong estimate costs little. */
static int ask_again_ms(const struct ctw_line *l, int n_ahead, int n_free, int64_t now_ms)
{
    double slot_ms = l->slot_ms;
    if (n_ahead < n_free) /* a slot is held for the client; other clients take the slot if the
                             client is late */
        return ASK_FIRST_MS;
    if (!l->is_known)
        return ASK_UNKNOWN_MS;
    if (n_free < MANY_FREE && (double)(now_ms - l->freed_ms) > slot_ms)
        slot_ms = (double)(now_ms - l->freed_ms);
    double ms = slot_ms * (n_ahead - n_free + 1) / 2;
    return ms < ASK_FIRST_MS ? ASK_FIRST_MS : ms > ASK_LAST_MS ? ASK_LAST_MS : (int)ms;
}

int ctw_line_wait(struct ctw_line *l, const struct ctw_line_want *w, int n_free)
{
    int64_t now_ms = w->contact->now_ms;
    for (int i = l->n - 1; i >= 0; i--) {
        if (l->places[i].late_ms + AWAY_MS < now_ms)
            leave(l, i);
    }
    if (l->n == 0)
        l->freed_ms = now_ms;
    int i = find(l, w), wait_ms = ask_again_ms(l, i, n_free, now_ms);
    if (i == CTW_LINE_PLACES)
        return ASK_LAST_MS;
    struct ctw_line_place *p = &l->places[i];
    l->n += i == l->n;
    snprintf(p->owner, sizeof(p->owner), "%s", owner_of(w->contact));
    memcpy(p->job, w->job.data, sizeof(p->job));
    p->pipe = w->contact->pipe;
    p->has_slot = w->has_slot;
    p->at_bound = w->at_bound;
    p->bytes = w->bytes;
    p->late_ms = now_ms + wait_ms + wait_ms / 2 + LATE_MS;
    return wait_ms;
}

void ctw_line_leave(struct ctw_line *l, const struct ctw_line_want *w)
{
    int i = find(l, w);
    if (i < l->n)
        leave(l, i);
}

void ctw_line_forgive(struct ctw_line *l, int64_t lost_ms)
{
    for (int i = 0; i < l->n; i++)
        l->places[i].late_ms += lost_ms;
}

void ctw_line_slot_freed(struct ctw_line *l, int n_free, int64_t now_ms)
{
    double ms = (double)(now_ms - l->freed_ms);
    l->freed_ms = now_ms;
    if (l->n == 0 || n_free >= MANY_FREE)
        return;
    l->slot_ms = l->is_known ? l->slot_ms + (ms - l->slot_ms) / N_MEAN : ms;
    l->is_known = true;
}
