#include "worker/weights/visits.h"

#include "base/mem.h"

enum ctw_status ctw_visits_open(struct ctw_visits *q, const struct ctw_placement *place,
                                const struct ctw_slices *slices, struct ctw_err *err)
{
    int n = place->n_units;
    size_t at = 0;
    /* each unit that comes once is ahead and released at most once */
    *q = (struct ctw_visits){
        .place = place, .slices = slices, .cap = 2 * n + 2, .n_rounds = 1, .repeated = n};
    while (place->unit[q->repeated - 1].kind == CTW_UNIT_ROWS &&
           !place->unit[q->repeated - 1].stays)
        q->repeated--;
    q->at = ctw_calloc((size_t)n, sizeof(*q->at));
    q->state = ctw_calloc((size_t)n, sizeof(*q->state));
    q->queue = ctw_calloc((size_t)q->cap, sizeof(*q->queue));
    if (q->at == NULL || q->state == NULL || q->queue == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    for (int i = 0; i < n; i++) {
        if (!place->unit[i].stays)
            continue;
        q->at[i] = at;
        at += place->unit[i].bytes;
        q->state[i] = place->unit[i].bytes == 0 ? CTW_UNIT_IS_IN : CTW_UNIT_MISSING;
    }
    return CTW_OK;
}

void ctw_visits_close(struct ctw_visits *q)
{
    ctw_free(q->queue);
    ctw_free(q->state);
    ctw_free(q->at);
}

static struct ctw_visit *visit_at(const struct ctw_visits *q, int64_t i)
{
    return &q->queue[(q->first + i) % q->cap];
}

struct ctw_visit *ctw_visits_oldest(const struct ctw_visits *q)
{
    return q->n > 0 ? visit_at(q, 0) : NULL;
}

struct ctw_visit *ctw_visits_newest(const struct ctw_visits *q)
{
    return q->n > 0 ? visit_at(q, q->n - 1) : NULL;
}

struct ctw_visit *ctw_visits_ahead(const struct ctw_visits *q)
{
    for (int64_t i = 0; i < q->n; i++)
        if (!visit_at(q, i)->released)
            return visit_at(q, i);
    return NULL;
}

int ctw_visits_missing(const struct ctw_visits *q, int unit, bool unread)
{
    int n = q->place->n_units;
    for (int i = 0; i < n; i++) {
        int at = (unit + i) % n;
        bool missing = unread ? q->state[at] == CTW_UNIT_MISSING : q->state[at] != CTW_UNIT_IS_IN;
        if (missing)
            return at;
    }
    return -1;
}

/*
 * Finds a place in the ring for `bytes`, behind the newest visit or at the start of the ring.
 * Visits in the ring are adjacent and in order, except for unused bytes at the end.
 */
static bool find_place(const struct ctw_visits *q, size_t bytes, size_t *at)
{
    const struct ctw_visit *oldest = NULL, *newest = NULL;
    size_t ring = q->place->ring;
    for (int64_t i = 0; i < q->n; i++) {
        const struct ctw_visit *v = visit_at(q, i);
        if (ctw_visits_stays(q, v))
            continue;
        oldest = oldest == NULL ? v : oldest;
        newest = v;
    }
    *at = q->place->resident;
    if (newest == NULL)
        return true;
    size_t from = newest->at - q->place->resident + q->place->unit[newest->unit].bytes;
    size_t to = oldest->at - q->place->resident;
    bool wrapped = newest->at < oldest->at;
    if (bytes <= (wrapped ? to : ring) - from) {
        *at += from;
        return true;
    }
    return !wrapped && bytes <= to;
}

/* The next unit in the order of passes. */
static int unit_after(struct ctw_visits *q, int unit)
{
    if (unit + 1 < q->place->n_units)
        return unit + 1;
    q->round = (q->round + 1) % q->n_rounds;
    return q->round == 0 ? 0 : q->repeated;
}

bool ctw_visits_add(struct ctw_visits *q, int unit)
{
    bool stays = q->place->unit[unit].stays;
    size_t at = q->at[unit];
    if (q->n == q->cap || (!stays && !find_place(q, q->place->unit[unit].bytes, &at)))
        return false;
    struct ctw_visit *v = visit_at(q, q->n++);
    *v = (struct ctw_visit){.unit = unit, .at = at};
    v->next = q->slices->first[unit];
    v->n_unread = q->slices->first[unit + 1] - v->next;
    if (stays)
        q->state[unit] = CTW_UNIT_COMES;
    q->next_unit = unit_after(q, unit);
    return true;
}

void ctw_visits_drop_oldest(struct ctw_visits *q)
{
    q->first = (q->first + 1) % q->cap;
    q->n--;
}

void ctw_visits_count(struct ctw_visits *q, struct ctw_visit *v, int n_in)
{
    v->n_unread -= n_in;
    if (v->n_unread > 0 || !ctw_visits_stays(q, v))
        return;
    q->state[v->unit] = CTW_UNIT_IS_IN;
    v->released = true;
}
