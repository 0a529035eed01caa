#include "worker/weights/stream.h"

#include <pthread.h>

#include "base/mem.h"
#include "base/threads.h"
#include "worker/checkpoint/identity.h"
#include "worker/weights/stream_slices.h"

/*
 * A device's slices go through stages, which are read into while the uploads from others run; the
 * stages together must stay in the processors' cache. Host memory is read into directly.
 */
enum {
    DEVICE_READERS = 12,
    HOST_READERS = 4,      /* a disk is at its full rate; processors are for computing */
    STAGES = 2,            /* of a reader */
    GATHERING_READERS = 2, /* they only begin copies */
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

struct stage {
    void *p;
    bool begun; /* an upload from it has begun; `ticket` identifies it */
    uint64_t ticket;
};

struct reader {
    pthread_t thread;
    struct ctw_stream *s;
    struct stage stage[STAGES];
    int turn;
    bool copies; /* from other devices have begun; `copied` is the last one's ticket */
    uint64_t copied;
};

enum unit_state { NOT_READ, BEING_READ, IS_IN }; /* of a unit that stays */

struct ctw_stream {
    const struct ctw_model *model;
    struct ctw_backend *be;
    const struct ctw_placement *place;
    struct ctw_shards *shards; /* NULL: all is read from the files */
    struct ctw_slices slices;
    char *memory;
    size_t *at;     /* [n_units]: of the units that stay, in memory */
    bool is_staged; /* the backend does not read host memory */
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
    int next_unit; /* the first that may be read next */
    int n_reading; /* threads that are reading a slice */
    bool opening;  /* a thread waits for a fence */
    bool pause;    /* nothing new is begun */
    bool stop;
    struct ctw_err err; /* the first failure */
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

static void add_visit(struct ctw_stream *s, int unit, size_t at)
{
    struct visit *v = visit_at(s, s->n++);
    *v = (struct visit){.unit = unit, .at = at};
    v->next = s->slices.first[unit];
    v->n_unread = s->slices.first[unit + 1] - v->next;
    if (s->place->unit[unit].stays)
        s->state[unit] = BEING_READ;
    s->next_unit = (unit + 1) % s->place->n_units;
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
    if (v.fenced) { /* its bytes may still be read */
        struct ctw_err err;
        s->opening = true;
        pthread_mutex_unlock(&s->lock);
        enum ctw_status st = ctw_fence_wait(s->be, v.fence, &err);
        pthread_mutex_lock(&s->lock);
        s->opening = false;
        if (st != CTW_OK && s->err.status == CTW_OK)
            s->err = err;
        pthread_cond_broadcast(&s->changed);
    }
    drop_oldest(s);
    return true;
}

/* The next slice to read, of the newest visit. */
static bool take_slice(struct ctw_stream *s, struct visit **out, const struct ctw_slice **slice)
{
    struct visit *v = s->n > 0 ? visit_at(s, s->n - 1) : NULL;
    if (s->pause || v == NULL || v->next == s->slices.first[v->unit + 1])
        return false;
    *slice = &s->slices.slices[v->next++];
    *out = v;
    return true;
}

/* ---- readers ------------------------------------------------------------------------------ */

static enum ctw_status read_staged(struct reader *r, const struct ctw_slice *slice, char *to,
                                   struct ctw_err *err)
{
    struct ctw_stream *s = r->s;
    struct stage *stage = &r->stage[r->turn];
    r->turn = (r->turn + 1) % STAGES;
    enum ctw_status st = CTW_OK;
    if (stage->p == NULL)
        st = ctw_stage_alloc(s->be, &stage->p, CTW_DEVICE_SLICE, err);
    else if (stage->begun)
        st = ctw_upload_wait(s->be, stage->ticket, err);
    if (st == CTW_OK)
        st = ctw_slices_read(&s->slices, s->model, slice, stage->p, err);
    if (st == CTW_OK)
        st = ctw_upload_begin(s->be, to, stage->p, slice->bytes, &stage->ticket, err);
    stage->begun = st == CTW_OK || stage->begun;
    return st;
}

/* Copies it from the device or the host memory that has it; the copy ends before the shards are
 * closed. */
static enum ctw_status gather(struct reader *r, const struct ctw_slice *slice, char *to,
                              struct ctw_err *err)
{
    struct ctw_stream *s = r->s;
    struct ctw_backend *from;
    const void *at;
    enum ctw_status st = ctw_shards_find(s->shards, slice - s->slices.slices, &from, &at, err);
    if (st == CTW_OK && at == NULL)
        return read_staged(r, slice, to, err);
    if (st == CTW_OK)
        st = from != NULL ? ctw_peer_begin(s->be, to, from, at, slice->bytes, &r->copied, err)
                          : ctw_upload_begin(s->be, to, at, slice->bytes, &r->copied, err);
    r->copies = r->copies || st == CTW_OK;
    return st;
}

static enum ctw_status read_slice(struct reader *r, const struct ctw_slice *slice, bool stays,
                                  char *to, struct ctw_err *err)
{
    struct ctw_stream *s = r->s;
    if (s->shards != NULL && !stays)
        return gather(r, slice, to, err);
    return s->is_staged ? read_staged(r, slice, to, err)
                        : ctw_slices_read(&s->slices, s->model, slice, to, err);
}

/* If an upload failed, the driver may still read its stage, which is then not freed. */
static void free_stages(struct reader *r)
{
    struct ctw_err late;
    if (r->copies)
        (void)!ctw_upload_wait(r->s->be, r->copied, &late); /* a failed device copies no more */
    for (int i = 0; i < STAGES; i++) {
        struct stage *stage = &r->stage[i];
        struct ctw_err err;
        if (!stage->begun || ctw_upload_wait(r->s->be, stage->ticket, &err) == CTW_OK)
            ctw_stage_free(r->s->be, stage->p);
    }
}

static void *read_units(void *arg)
{
    struct reader *r = arg;
    struct ctw_stream *s = r->s;
    pthread_mutex_lock(&s->lock);
    while (!given_up(s)) {
        const struct ctw_slice *slice;
        struct visit *v; /* stays where it is while it is being read */
        struct ctw_err err;
        if (!take_slice(s, &v, &slice)) {
            if (!open_next(s))
                pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        s->n_reading++;
        pthread_mutex_unlock(&s->lock);
        enum ctw_status st = read_slice(r, slice, s->place->unit[v->unit].stays,
                                        s->memory + v->at + slice->at, &err);
        pthread_mutex_lock(&s->lock);
        s->n_reading--;
        if (st != CTW_OK && s->err.status == CTW_OK)
            s->err = err;
        if (st == CTW_OK && --v->n_unread == 0 && s->place->unit[v->unit].stays) {
            s->state[v->unit] = IS_IN;
            v->released = true;
        }
        pthread_cond_broadcast(&s->changed);
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->is_staged)
        free_stages(r);
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
    }
    s->next_unit = unit;
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
    pthread_mutex_unlock(&s->lock);
    *block = s->memory + at;
    return st;
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
    bool missing = s->shards == NULL && next_missing(s, 0, false) >= 0;
    for (int i = 0; s->shards != NULL && i < s->place->n_units; i++)
        missing |= s->place->unit[i].stays && s->state[i] != IS_IN;
    pthread_mutex_unlock(&s->lock);
    return missing || (s->shards != NULL && !ctw_shards_all_in(s->shards));
}

/* ---- open and close ----------------------------------------------------------------------- */

static enum ctw_status start_readers(struct ctw_stream *s, struct ctw_err *err)
{
    int n = HOST_READERS;
    if (s->is_staged)
        n = ctw_cpu_count() < DEVICE_READERS ? ctw_cpu_count() : DEVICE_READERS;
    if (s->shards != NULL && !ctw_shards_has_files(s->shards) && s->place->host_room == 0)
        n = GATHERING_READERS;
    for (; s->n_readers < n; s->n_readers++) {
        struct reader *r = &s->reader[s->n_readers];
        r->s = s;
        if (pthread_create(&r->thread, NULL, read_units, r) != 0)
            break;
    }
    return s->n_readers > 0 ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "loading: cannot start a thread");
}

static enum ctw_status open_tables(struct ctw_stream *s, struct ctw_err *err)
{
    int n = s->place->n_units;
    size_t at = 0;
    s->cap = 2 * n + 2; /* a unit is ahead at most once, and released at most once before that */
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
    return ctw_slices_make(&s->slices, s->model, s->place,
                           s->is_staged ? CTW_DEVICE_SLICE : HOST_SLICE, err);
}

enum ctw_status ctw_stream_open(struct ctw_stream **out, const struct ctw_model *model,
                                struct ctw_backend *be, const struct ctw_placement *place,
                                struct ctw_shards *shards, void *memory, struct ctw_err *err)
{
    struct ctw_stream *s = ctw_calloc(1, sizeof(*s));
    if (s == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    s->model = model;
    s->be = be;
    s->place = place;
    s->shards = shards;
    s->memory = memory;
    s->is_staged = !ctw_backend_traits(be)->host_memory;
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
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    ctw_slices_free(&s->slices);
    ctw_free(s->visits);
    ctw_free(s->state);
    ctw_free(s->at);
    ctw_free(s);
}
