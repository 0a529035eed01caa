#include "worker/weights/stream.h"

#include <pthread.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/threads.h"
#include "worker/checkpoint/identity.h"
#include "worker/weights/near.h"
#include "worker/weights/slice_source.h"

/*
 * A device's slices go through stages, which are read into while the uploads from others run; the
 * stages together must stay in the processors' cache. Host memory is read into directly.
 */
enum {
    DEVICE_READERS = 12,
    HOST_READERS = 4,      /* a disk is at its full rate; processors are for computing */
    GATHERING_READERS = 2, /* they only begin copies, */
    GATHERED = 64,         /* of so many slices at a time */
    HOST_SLICE = CTW_BLOCK_BYTES
};

/* One reading of a unit, and its use. */
struct visit {
    int unit;
    size_t at;              /* of the arena in memory */
    int64_t next, n_unread; /* slices: the next to take, and those not read yet */
    bool released, fenced;  /* fenced: the bytes are free only after `fence` */
    uint64_t fence;
};

struct reader {
    pthread_t thread;
    struct ctw_stream *s;
    struct ctw_slice_reader slices;
};

enum unit_state { NOT_READ, BEING_READ, IS_IN }; /* of a unit that stays */

struct ctw_stream {
    struct ctw_slice_source from;
    const struct ctw_placement *place;
    struct ctw_slices slices;
    char *memory;
    size_t *at;   /* [n_units]: of the units that stay, in memory */
    int repeated; /* the first unit of those that may come several times: the head's rows */
    struct reader reader[DEVICE_READERS];
    int n_readers;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    unsigned char *state; /* [n_units]: an enum unit_state */
    /*
     * A queue, oldest first: released visits whose bytes have not been reused; the visit that is in
     * use; visits that are read or being read. A unit that stays counts as released once it is in.
     */
    struct visit *visits; /* [cap] */
    int64_t first, n, cap;
    int next_unit;           /* the first that may be read next */
    int64_t round, n_rounds; /* of the units from `repeated` on: which one is read, of how many, */
    int64_t n_used;          /* and rounds that a pass has used */
    int n_reading;           /* threads that are reading a slice */
    bool opening;            /* a thread waits for a fence */
    bool pause;              /* nothing new is begun */
    bool stop;
    uint64_t bytes[CTW_N_ORIGINS]; /* read since a pass was at its last unit */
    struct ctw_err err;            /* the first failure */
};

/* ---- the queue: all under lock ------------------------------------------------------------ */

static struct visit *visit_at(const struct ctw_stream *s, int64_t i)
{
    return &s->visits[(s->first + i) % s->cap];
}

static bool given_up(const struct ctw_stream *s)
{
    return s->stop || s->err.status != CTW_OK;
}

/* The oldest visit that is in use or ahead; NULL: none. */
static struct visit *first_ahead(const struct ctw_stream *s)
{
    for (int64_t i = 0; i < s->n; i++)
        if (!visit_at(s, i)->released)
            return visit_at(s, i);
    return NULL;
}

/* The first unit from `unit` on, in the order of passes, that is not in memory for good and, if
 * `unread`, is not coming either. -1: none. */
static int next_missing(const struct ctw_stream *s, int unit, bool unread)
{
    int n = s->place->n_units;
    for (int i = 0; i < n; i++) {
        int at = (unit + i) % n;
        bool missing = unread ? s->state[at] == NOT_READ : s->state[at] != IS_IN;
        if (missing)
            return at;
    }
    return -1;
}

/*
 * A place in the ring for `bytes`, behind the newest visit there, or at the ring's beginning. The
 * visits there are adjacent, in their order, but for what is unused at the end.
 */
static bool find_place(const struct ctw_stream *s, size_t bytes, size_t *at)
{
    const struct visit *oldest = NULL, *newest = NULL;
    size_t ring = s->place->ring;
    for (int64_t i = 0; i < s->n; i++) {
        const struct visit *v = visit_at(s, i);
        if (s->place->unit[v->unit].stays)
            continue;
        oldest = oldest == NULL ? v : oldest;
        newest = v;
    }
    *at = s->place->resident;
    if (newest == NULL)
        return true;
    size_t from = newest->at - s->place->resident + s->place->unit[newest->unit].bytes;
    size_t to = oldest->at - s->place->resident;
    bool wrapped = newest->at < oldest->at;
    if (bytes <= (wrapped ? to : ring) - from) {
        *at += from;
        return true;
    }
    return !wrapped && bytes <= to;
}

static void drop_oldest(struct ctw_stream *s)
{
    s->first = (s->first + 1) % s->cap;
    s->n--;
}

/* In the order of passes. */
static int unit_after(struct ctw_stream *s, int unit)
{
    int n = s->place->n_units;
    if (unit + 1 < n)
        return unit + 1;
    s->round = (s->round + 1) % s->n_rounds;
    return s->round == 0 ? 0 : s->repeated;
}

static void add_visit(struct ctw_stream *s, int unit, size_t at)
{
    struct visit *v = visit_at(s, s->n++);
    *v = (struct visit){.unit = unit, .at = at};
    v->next = s->slices.first[unit];
    v->n_unread = s->slices.first[unit + 1] - v->next;
    if (s->place->unit[unit].stays)
        s->state[unit] = BEING_READ;
    s->next_unit = unit_after(s, unit);
}

/* Waits until no neighbour reads the unit in this ring. Not under lock. */
static void withdraw(const struct ctw_stream *s, int unit)
{
    if (s->from.neighbours != NULL)
        ctw_neighbours_withdraw(s->from.neighbours, s->from.self, unit);
}

/* Takes one step towards reading the next unit; released while it waits for a fence. False: there
 * is nothing to do before something changes. */
static bool open_next(struct ctw_stream *s)
{
    int unit = next_missing(s, s->next_unit, true);
    size_t at;
    if (s->opening || s->pause || unit < 0)
        return false;
    if (s->n < s->cap &&
        (s->place->unit[unit].stays || find_place(s, s->place->unit[unit].bytes, &at))) {
        add_visit(s, unit, s->place->unit[unit].stays ? s->at[unit] : at);
        return true;
    }
    const struct visit v = *visit_at(s, 0);
    if (!v.released)
        return false;
    bool is_offered = s->from.neighbours != NULL && !s->place->unit[v.unit].stays;
    if (v.fenced || is_offered) { /* its bytes may still be read */
        struct ctw_err err;
        s->opening = true;
        pthread_mutex_unlock(&s->lock);
        enum ctw_status st = v.fenced ? ctw_fence_wait(s->from.be, v.fence, &err) : CTW_OK;
        withdraw(s, v.unit);
        pthread_mutex_lock(&s->lock);
        s->opening = false;
        if (st != CTW_OK && s->err.status == CTW_OK)
            s->err = err;
        pthread_cond_broadcast(&s->changed);
    }
    drop_oldest(s);
    return true;
}

/* What one reader reads at a time. */
struct taken {
    struct visit *visit;           /* stays where it is while it is being read */
    const struct ctw_slice *slice; /* the first of n */
    int n;
    bool gathered; /* from devices that hold them */
};

/* Of a unit on devices, whose first slice to gather is `start`: the next, up to GATHERED in a row.
 */
static void take_run(const struct ctw_stream *s, struct visit *v, int64_t start, struct taken *t)
{
    int64_t first = s->slices.first[v->unit], end = s->slices.first[v->unit + 1];
    int64_t k = v->next - first, at = start + k < end ? start + k : start + k - (end - first);
    int64_t most = (at >= start ? end : start) - at;
    t->slice = &s->slices.slices[at];
    t->n = most < GATHERED ? (int)most : (int)GATHERED;
    t->gathered = true;
}

/* The next slices to read, of the newest visit. */
static bool take_slices(struct ctw_stream *s, struct taken *t)
{
    struct visit *v = s->n > 0 ? visit_at(s, s->n - 1) : NULL;
    if (s->pause || v == NULL || v->next == s->slices.first[v->unit + 1])
        return false;
    int64_t at = v->next;
    *t = (struct taken){.visit = v, .n = 1};
    if (s->from.shards != NULL && !s->place->unit[v->unit].stays &&
        ctw_shards_order(s->from.shards, s->from.self, v->unit, &at)) {
        take_run(s, v, at, t);
    } else {
        if (s->from.neighbours != NULL)
            at = ctw_neighbours_order(s->from.neighbours, s->from.self, v->unit,
                                      at - s->slices.first[v->unit]);
        t->slice = &s->slices.slices[at];
    }
    v->next += t->n;
    return true;
}

/* ---- readers ------------------------------------------------------------------------------ */

static enum ctw_status read_taken(struct reader *r, const struct taken *t, enum ctw_origin *origin,
                                  struct ctw_err *err)
{
    const struct ctw_stream *s = r->s;
    char *to = s->memory + t->visit->at;
    int unit = t->visit->unit;
    *origin = CTW_FROM_DEVICES;
    if (t->gathered)
        return ctw_slices_gather(&r->slices, t->slice, t->n, to, err);
    return ctw_slice_read(&r->slices, unit, s->place->unit[unit].stays, t->slice, to + t->slice->at,
                          origin, err);
}

static void *read_units(void *arg)
{
    struct reader *r = arg;
    struct ctw_stream *s = r->s;
    ctw_run_near(s->from.be);
    pthread_mutex_lock(&s->lock);
    while (!given_up(s)) {
        struct taken t;
        struct ctw_err err;
        enum ctw_origin origin;
        if (!take_slices(s, &t)) {
            if (!open_next(s))
                pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        struct visit *v = t.visit;
        s->n_reading++;
        pthread_mutex_unlock(&s->lock);
        enum ctw_status st = read_taken(r, &t, &origin, &err);
        pthread_mutex_lock(&s->lock);
        s->n_reading--;
        for (int i = 0; i < t.n; i++)
            s->bytes[origin] += t.slice[i].bytes;
        if (st != CTW_OK && s->err.status == CTW_OK)
            s->err = err;
        v->n_unread -= st == CTW_OK ? t.n : 0;
        if (st == CTW_OK && v->n_unread == 0 && s->place->unit[v->unit].stays) {
            s->state[v->unit] = IS_IN;
            v->released = true;
        }
        pthread_cond_broadcast(&s->changed);
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    ctw_slice_reader_end(&r->slices);
    return NULL;
}

/* ---- the thread that computes ------------------------------------------------------------- */

/* Drops what was read ahead, and continues with `unit`. Under lock. */
static void restart_at(struct ctw_stream *s, int unit)
{
    s->pause = true;
    while (s->n_reading > 0)
        pthread_cond_wait(&s->changed, &s->lock);
    for (; s->n > 0; s->n--) {
        const struct visit *v = visit_at(s, s->n - 1);
        if (v->released && !s->place->unit[v->unit].stays)
            break;
        if (!v->released && s->place->unit[v->unit].stays)
            s->state[v->unit] = NOT_READ;
        int dropped = v->unit;
        pthread_mutex_unlock(&s->lock); /* nothing is added meanwhile */
        withdraw(s, dropped);
        pthread_mutex_lock(&s->lock);
    }
    s->next_unit = unit;
    s->round = 0;
    s->pause = false;
    pthread_cond_broadcast(&s->changed);
}

/* Is what comes next what a pass that is at `unit` needs next? If not, makes it so. Under lock. */
static void follow(struct ctw_stream *s, int unit)
{
    const struct visit *ahead = first_ahead(s);
    int needed = next_missing(s, unit, false);
    int coming = ahead != NULL ? ahead->unit : next_missing(s, s->next_unit, true);
    if (needed >= 0 && needed != coming)
        restart_at(s, needed);
}

/* Is all of the unit in? Then *at is its place. Under lock. */
static bool find_unit(const struct ctw_stream *s, int unit, size_t *at)
{
    const struct visit *ahead = first_ahead(s);
    if (s->place->unit[unit].stays) {
        *at = s->at[unit];
        return s->state[unit] == IS_IN;
    }
    if (ahead == NULL || ahead->unit != unit || ahead->n_unread > 0)
        return false;
    *at = ahead->at;
    return true;
}

/* What a pass has read, and what was read ahead for the next. Under lock. */
static void tell(struct ctw_stream *s)
{
    char text[CTW_N_ORIGINS][32];
    for (int i = 0; i < CTW_N_ORIGINS; i++) {
        ctw_format_bytes(text[i], sizeof(text[i]), (double)s->bytes[i]);
        s->bytes[i] = 0;
    }
    ctw_debug("weights of a pass: %s from files, %s from host memory, %s from neighbours that had "
              "read them, %s from devices that hold them",
              text[CTW_FROM_FILES], text[CTW_FROM_HOST], text[CTW_FROM_NEIGHBOURS],
              text[CTW_FROM_DEVICES]);
}

enum ctw_status ctw_stream_acquire(struct ctw_stream *s, int unit, const void **block,
                                   struct ctw_err *err)
{
    size_t at = 0;
    enum ctw_status st = CTW_OK;
    pthread_mutex_lock(&s->lock);
    follow(s, unit);
    while (!find_unit(s, unit, &at) && !given_up(s))
        pthread_cond_wait(&s->changed, &s->lock);
    if (!find_unit(s, unit, &at))
        st = ctw_fail(err, s->err.status, "reading the weights: %s", s->err.msg);
    else if (unit == s->place->n_units - 1 && ++s->n_used >= s->n_rounds)
        tell(s);
    pthread_mutex_unlock(&s->lock);
    *block = s->memory + at;
    return st;
}

void ctw_stream_repeat(struct ctw_stream *s, int64_t n)
{
    pthread_mutex_lock(&s->lock);
    s->n_rounds = s->repeated < s->place->n_units ? n : 1;
    s->n_used = 0;
    pthread_mutex_unlock(&s->lock);
}

void ctw_stream_release(struct ctw_stream *s, int unit, const uint64_t *fence)
{
    pthread_mutex_lock(&s->lock);
    struct visit *v = first_ahead(s);
    if (v != NULL && v->unit == unit && !s->place->unit[unit].stays && v->n_unread == 0) {
        v->released = true;
        v->fenced = fence != NULL;
        v->fence = fence != NULL ? *fence : 0;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
}

bool ctw_stream_needs_files(struct ctw_stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool missing = s->from.shards == NULL && next_missing(s, 0, false) >= 0;
    for (int i = 0; s->from.shards != NULL && i < s->place->n_units; i++)
        missing |= s->place->unit[i].stays && s->state[i] != IS_IN;
    pthread_mutex_unlock(&s->lock);
    return missing || (s->from.shards != NULL && !ctw_shards_all_in(s->from.shards));
}

/* ---- open and close ----------------------------------------------------------------------- */

static enum ctw_status start_readers(struct ctw_stream *s, struct ctw_err *err)
{
    int n = HOST_READERS;
    if (s->from.is_staged)
        n = ctw_cpu_count() < DEVICE_READERS ? ctw_cpu_count() : DEVICE_READERS;
    if (s->from.shards != NULL && !ctw_shards_has_files(s->from.shards) && s->place->host_room == 0)
        n = GATHERING_READERS;
    for (; s->n_readers < n; s->n_readers++) {
        struct reader *r = &s->reader[s->n_readers];
        r->s = s;
        r->slices.from = &s->from;
        if (pthread_create(&r->thread, NULL, read_units, r) != 0)
            break;
    }
    return s->n_readers > 0 ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "loading: cannot start a thread");
}

static enum ctw_status open_tables(struct ctw_stream *s, struct ctw_err *err)
{
    int n = s->place->n_units;
    size_t at = 0;
    s->cap = 2 * n + 2; /* of units that come once, each is ahead and released at most once */
    s->n_rounds = 1;
    s->repeated = n;
    while (s->place->unit[s->repeated - 1].kind == CTW_UNIT_ROWS &&
           !s->place->unit[s->repeated - 1].stays)
        s->repeated--;
    s->at = ctw_calloc((size_t)n, sizeof(*s->at));
    s->state = ctw_calloc((size_t)n, sizeof(*s->state));
    s->visits = ctw_calloc((size_t)s->cap, sizeof(*s->visits));
    if (s->at == NULL || s->state == NULL || s->visits == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    for (int i = 0; i < n; i++) {
        if (!s->place->unit[i].stays)
            continue;
        s->at[i] = at;
        at += s->place->unit[i].bytes;
        s->state[i] = s->place->unit[i].bytes == 0 ? IS_IN : NOT_READ;
    }
    return ctw_slices_make(&s->slices, s->from.model, s->place,
                           s->from.is_staged ? CTW_DEVICE_SLICE : HOST_SLICE, err);
}

enum ctw_status ctw_stream_open(struct ctw_stream **out, const struct ctw_model *model,
                                struct ctw_backend *be, const struct ctw_placement *place,
                                struct ctw_shards *shards, void *memory, struct ctw_err *err)
{
    struct ctw_stream *s = ctw_calloc(1, sizeof(*s));
    if (s == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    ctw_slice_source_init(&s->from, model, be, &s->slices, shards);
    s->place = place;
    s->memory = memory;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    enum ctw_status st = open_tables(s, err);
    if (st == CTW_OK)
        st = start_readers(s, err);
    if (st != CTW_OK) {
        ctw_stream_close(s);
        return st;
    }
    *out = s;
    return CTW_OK;
}

void ctw_stream_close(struct ctw_stream *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_readers; i++)
        pthread_join(s->reader[i].thread, NULL);
    for (int i = 0; i < s->place->n_units; i++)
        withdraw(s, i);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    ctw_slices_free(&s->slices);
    ctw_free(s->visits);
    ctw_free(s->state);
    ctw_free(s->at);
    ctw_free(s);
}
