/*
 * The queue of a stream's visits. A visit is one reading and use of a unit. The queue decides which
 * unit is read next, and its place in memory. Private to the stream, and under its lock.
 *
 * Oldest first: released visits whose bytes have not been reused; the visit in use; visits that are
 * read or being read. A unit that stays counts as released once it is in.
 */
#ifndef CTW_WORKER_VISITS_H
#define CTW_WORKER_VISITS_H

#include "worker/weights/stages.h"
#include "worker/weights/stream_slices.h"

/* The state of a unit that stays. */
enum ctw_unit_state { CTW_UNIT_MISSING, CTW_UNIT_COMES, CTW_UNIT_IS_IN };

struct ctw_visit {
    int unit;
    size_t at;               /* offset of the unit in memory */
    int64_t next, n_unread;  /* slices: the next to take, and the number that is not in yet */
    struct ctw_stage *stage; /* stage of the slices before batch_end, if `next` is before it */
    int64_t batch_end;
    bool released, fenced; /* fenced: the bytes are free only after `fence` */
    uint64_t fence;
};

struct ctw_visits {
    const struct ctw_placement *place;
    const struct ctw_slices *slices;
    size_t *at;              /* [n_units]: offsets in memory of the units that stay */
    unsigned char *state;    /* [n_units]: an enum ctw_unit_state */
    int repeated;            /* the first unit that may come several times: the head's first rows */
    int next_unit;           /* the first unit that may be read next */
    int64_t round, n_rounds; /* of the units from `repeated` on: the round that is being read, and
                                their number */
    struct ctw_visit *queue; /* [cap], a ring */
    int64_t first, n, cap;
};

enum ctw_status ctw_visits_open(struct ctw_visits *q, const struct ctw_placement *place,
                                const struct ctw_slices *slices,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_visits_close(struct ctw_visits *q); /* zeroed is fine */

static inline bool ctw_visits_stays(const struct ctw_visits *q, const struct ctw_visit *v)
{
    return q->place->unit[v->unit].stays;
}

/* Has the visit slices that no reader has taken? */
static inline bool ctw_visits_has_more(const struct ctw_visits *q, const struct ctw_visit *v)
{
    return v->next < q->slices->first[v->unit + 1];
}

/* The next three functions return NULL if there is no such visit. */
struct ctw_visit *ctw_visits_oldest(const struct ctw_visits *q);
struct ctw_visit *ctw_visits_newest(const struct ctw_visits *q);
/* The oldest visit that is in use or ahead. */
struct ctw_visit *ctw_visits_ahead(const struct ctw_visits *q);
/* The first unit from `unit` on, in the order of passes, that is not in memory permanently and, if
 * `unread`, is not being read either. -1 if every unit is. */
int ctw_visits_missing(const struct ctw_visits *q, int unit, bool unread);
/* Adds a visit of the unit. False: the ring has no room yet. */
bool ctw_visits_add(struct ctw_visits *q, int unit);
void ctw_visits_drop_oldest(struct ctw_visits *q);
/* Counts slices of the visit that have come in. */
void ctw_visits_count(struct ctw_visits *q, struct ctw_visit *v, int n_in);

#endif
