#include "worker/weights/stream.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/threads.h"
#include "worker/checkpoint/identity.h"
#include "worker/weights/slice_source.h"
#include "worker/weights/visits.h"

/*
 * Slices of a device go through stages: threads read into some stages while uploads from others
 * run. Together, the stages must fit in the processors' cache. Slices for host memory are read
 * directly.
 *
 * If all units stay, no computation can begin before they are in, so the full rate of the link
 * counts. Large copies come closest to this rate. But pinning the stages must not take long (0.1 ms
 * per MiB and more).
 */
enum {
    DEVICE_READERS = 12,
    LOAD_STAGE = 8 << 20,
    LOAD_STAGES = 6,
    STAGES_PER_READER = 2, /* of CTW_DEVICE_SLICE, if units are read in every pass */
    HOST_READERS = 4, /* a disk reaches its full rate with so few; processors are for computing */
    GATHERING_READERS = 2, /* these only begin copies, */
    GATHERED = 64          /* each of so many slices at a time */
};
_Static_assert(DEVICE_READERS *STAGES_PER_READER <= CTW_STAGES_MAX, "stages");

struct reader {
    pthread_t thread;
    struct ctw_stream *s;
    struct ctw_slice_reader slices;
};

struct ctw_stream {
    struct ctw_slice_source from;
    const struct ctw_placement *place;
    struct ctw_slices slices;
    double started_s;
    struct reader reader[DEVICE_READERS];
    int n_readers;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    char *memory; /* NULL: not allocated yet */
    struct ctw_visits q;
    int64_t n_used; /* rounds of the repeated units that a pass has used */
    int n_reading;  /* threads that are reading a slice */
    bool opening;   /* a thread waits for a fence */
    bool pause;     /* no thread begins anything new */
    bool stop;
    bool is_loaded;                /* all units are in, to stay, and the log says so */
    uint64_t bytes[CTW_N_ORIGINS]; /* bytes read since a pass was at its last unit */
    struct ctw_err err;            /* the first failure */
};

/* ---- the queue: all under lock ------------------------------------------------------------ */

static bool given_up(const struct ctw_stream *s)
{
    return s->stop || s->err.status != CTW_OK;
}

/* Keeps the first failure, which ends all waits. */
static void give_up(struct ctw_stream *s, const struct ctw_err *err)
{
    if (s->err.status == CTW_OK)
        s->err = *err;
    ctw_stages_stop(&s->from.stages);
}

/* Waits until no neighbour reads the unit in this device's ring. Not under lock. */
static void withdraw(const struct ctw_stream *s, int unit)
{
    if (s->from.neighbours != NULL)
        ctw_neighbours_withdraw(s->from.neighbours, s->from.self, unit);
}

/* Takes one step towards reading the next unit. The lock is released while this thread waits for a
 * fence. False: nothing can be done before something changes. */
static bool open_next(struct ctw_stream *s)
{
    int unit = ctw_visits_missing(&s->q, s->q.next_unit, true);
    const struct ctw_visit *newest = ctw_visits_newest(&s->q);
    if (s->opening || s->pause || unit < 0 ||
        (newest != NULL && ctw_visits_has_more(&s->q, newest)))
        return false;
    if (ctw_visits_add(&s->q, unit))
        return true;
    const struct ctw_visit v = *ctw_visits_oldest(&s->q);
    if (!v.released)
        return false;
    bool is_offered = s->from.neighbours != NULL && !ctw_visits_stays(&s->q, &v);
    if (v.fenced || is_offered) { /* the bytes may still be read */
        struct ctw_err err;
        s->opening = true;
        pthread_mutex_unlock(&s->lock);
        enum ctw_status st = v.fenced ? ctw_fence_wait(s->from.be, v.fence, &err) : CTW_OK;
        withdraw(s, v.unit);
        pthread_mutex_lock(&s->lock);
        s->opening = false;
        if (st != CTW_OK)
            give_up(s, &err);
        pthread_cond_broadcast(&s->changed);
    }
    ctw_visits_drop_oldest(&s->q);
    return true;
}

/* Takes the next run of a unit on devices: up to GATHERED adjacent slices. `start` is the unit's
 * first slice to gather. */
static void take_run(const struct ctw_stream *s, struct ctw_visit *v, int64_t start,
                     struct ctw_reading *t)
{
    int64_t first = s->slices.first[v->unit], end = s->slices.first[v->unit + 1];
    int64_t k = v->next - first, at = start + k < end ? start + k : start + k - (end - first);
    int64_t most = (at >= start ? end : start) - at;
    t->slice = &s->slices.slices[at];
    t->n = most < GATHERED ? (int)most : (int)GATHERED;
    t->gathered = true;
}

/* Takes a stage for the batch that begins with slice `at`: as many slices as a stage holds, or one
 * slice if devices read the slices in different orders. False: no stage is free. */
static bool begin_batch(struct ctw_stream *s, struct ctw_visit *v, int64_t at)
{
    const struct ctw_slice *first = &s->slices.slices[at];
    int64_t end = v->next + 1;
    size_t bytes = first->bytes;
    for (; s->from.shards == NULL && end < s->slices.first[v->unit + 1]; end++) {
        const struct ctw_slice *next = &s->slices.slices[end];
        if (next->at + next->bytes - first->at > s->from.stages.bytes)
            break;
        bytes = next->at + next->bytes - first->at;
    }
    v->stage = ctw_stages_take(&s->from.stages, v->at + first->at, bytes, (int)(end - v->next));
    v->batch_end = v->stage != NULL ? end : v->next;
    return v->stage != NULL;
}

/* Takes the next slices to read, of the newest visit that has any. */
static bool take_slices(struct ctw_stream *s, struct ctw_visit **of, struct ctw_reading *t)
{
    struct ctw_visit *v = *of = ctw_visits_newest(&s->q);
    bool batched =
        s->from.is_staged && v != NULL && (s->from.shards == NULL || s->place->unit[v->unit].stays);
    if (s->pause || v == NULL || !ctw_visits_has_more(&s->q, v) || (s->memory == NULL && !batched))
        return false;
    int64_t at = v->next;
    *t = (struct ctw_reading){.unit = v->unit, .unit_at = v->at, .n = 1};
    if (!batched && s->from.shards != NULL &&
        ctw_shards_order(s->from.shards, s->from.self, v->unit, &at)) {
        take_run(s, v, at, t);
    } else {
        if (s->from.neighbours != NULL)
            at = ctw_neighbours_order(s->from.neighbours, s->from.self, v->unit,
                                      at - s->slices.first[v->unit]);
        t->slice = &s->slices.slices[at];
    }
    if (batched && v->next >= v->batch_end && !begin_batch(s, v, at))
        return false;
    t->stage = batched ? v->stage : NULL;
    v->next += t->n;
    return true;
}

/* ---- readers ------------------------------------------------------------------------------ */

/* Counts slices that have come in. */
static void count_in(struct ctw_stream *s, struct ctw_visit *v, const struct ctw_reading *t)
{
    for (int i = 0; i < t->n; i++)
        s->bytes[t->origin] += t->slice[i].bytes;
    ctw_visits_count(&s->q, v, t->n_in);
}

/* Reads the next slices, or opens the next unit. */
static void read_next(struct ctw_stream *s, struct reader *r)
{
    struct ctw_reading t;
    struct ctw_err err;
    struct ctw_visit *v; /* a visit stays in its place while it is being read */
    if (!take_slices(s, &v, &t)) {
        if (!open_next(s))
            pthread_cond_wait(&s->changed, &s->lock);
        return;
    }
    char *memory = s->memory;
    s->n_reading++;
    pthread_mutex_unlock(&s->lock);
    enum ctw_status st = ctw_slices_bring(&r->slices, &t, memory, &err);
    pthread_mutex_lock(&s->lock);
    s->n_reading--;
    if (st == CTW_OK)
        count_in(s, v, &t);
    else
        give_up(s, &err);
    pthread_cond_broadcast(&s->changed);
}

/* Are all units in, to stay? Then the readers have nothing left to do. */
static bool is_loaded(const struct ctw_stream *s)
{
    return s->place->streamed == 0 && ctw_visits_missing(&s->q, 0, false) < 0;
}

/* Frees the stages, after the last upload. Not under lock. */
static void end_load(struct ctw_stream *s)
{
    const struct ctw_stages *stages = &s->from.stages;
    char size[32], rate[32];
    double bytes = (double)s->place->weights;
    ctw_stages_trim(&s->from.stages);
    double seconds = ctw_now_s() - s->started_s;
    ctw_log(seconds < 1 ? CTW_LOG_DEBUG : CTW_LOG_INFO, "weights: %s on the GPU after %.4f s, %s/s",
            ctw_format_bytes(size, sizeof(size), bytes), seconds,
            ctw_format_bytes(rate, sizeof(rate), bytes / seconds));
    ctw_debug("weights: memory allocated after %.4f s, first copy begun after %.4f s",
              stages->memory_s - s->started_s, stages->begun_s - s->started_s);
}

static void *read_units(void *arg)
{
    struct reader *r = arg;
    struct ctw_stream *s = r->s;
    struct ctw_err err;
    ctw_run_near(s->from.be);
    enum ctw_status st = s->from.is_staged && s->from.shards == NULL
                             ? ctw_stages_allocate(&s->from.stages, &err)
                             : CTW_OK;
    pthread_mutex_lock(&s->lock);
    if (st != CTW_OK)
        give_up(s, &err);
    pthread_cond_broadcast(&s->changed); /* other threads may wait for a stage */
    while (!given_up(s) && !is_loaded(s))
        read_next(s, r);
    bool ends_load = !given_up(s) && !s->is_loaded && s->from.is_staged;
    s->is_loaded = s->is_loaded || ends_load;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (ends_load)
        end_load(s);
    ctw_slice_reader_end(&r->slices);
    return NULL;
}

/* ---- the thread that computes ------------------------------------------------------------- */

/* Drops the slices that were read ahead, and continues with `unit`. Under lock. */
static void restart_at(struct ctw_stream *s, int unit)
{
    s->pause = true;
    while (s->n_reading > 0)
        pthread_cond_wait(&s->changed, &s->lock);
    for (; s->q.n > 0; s->q.n--) {
        const struct ctw_visit *v = ctw_visits_newest(&s->q);
        if (v->released && !ctw_visits_stays(&s->q, v))
            break;
        if (!v->released && ctw_visits_stays(&s->q, v))
            s->q.state[v->unit] = CTW_UNIT_MISSING;
        int dropped = v->unit;
        pthread_mutex_unlock(&s->lock); /* `pause` is set, so no thread adds anything meanwhile */
        withdraw(s, dropped);
        pthread_mutex_lock(&s->lock);
    }
    ctw_stages_drop(&s->from.stages);
    s->q.next_unit = unit;
    s->q.round = 0;
    s->pause = false;
    pthread_cond_broadcast(&s->changed);
}

/* Checks that the next slices are those that a pass at `unit` needs; if not, restarts there. Under
 * lock. */
static void follow(struct ctw_stream *s, int unit)
{
    const struct ctw_visit *ahead = ctw_visits_ahead(&s->q);
    int needed = ctw_visits_missing(&s->q, unit, false);
    int coming = ahead != NULL ? ahead->unit : ctw_visits_missing(&s->q, s->q.next_unit, true);
    if (needed >= 0 && needed != coming)
        restart_at(s, needed);
}

/* Is the whole unit in? Then *at is its offset. Under lock. */
static bool find_unit(const struct ctw_stream *s, int unit, size_t *at)
{
    const struct ctw_visit *ahead = ctw_visits_ahead(&s->q);
    if (s->place->unit[unit].stays) {
        *at = s->q.at[unit];
        return s->q.state[unit] == CTW_UNIT_IS_IN;
    }
    if (ahead == NULL || ahead->unit != unit || ahead->n_unread > 0)
        return false;
    *at = ahead->at;
    return true;
}

/* Logs the bytes that a pass has read, and those read ahead for the next pass. Under lock. */
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
    else if (unit == s->place->n_units - 1 && ++s->n_used >= s->q.n_rounds)
        tell(s);
    pthread_mutex_unlock(&s->lock);
    *block = s->memory + at;
    return st;
}

void ctw_stream_set_memory(struct ctw_stream *s, void *memory)
{
    ctw_stages_set_memory(&s->from.stages, memory);
    pthread_mutex_lock(&s->lock);
    s->memory = memory;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void ctw_stream_repeat(struct ctw_stream *s, int64_t n)
{
    pthread_mutex_lock(&s->lock);
    s->q.n_rounds = s->q.repeated < s->place->n_units ? n : 1;
    s->n_used = 0;
    pthread_mutex_unlock(&s->lock);
}

void ctw_stream_release(struct ctw_stream *s, int unit, const uint64_t *fence)
{
    pthread_mutex_lock(&s->lock);
    struct ctw_visit *v = ctw_visits_ahead(&s->q);
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
    bool missing = s->from.shards == NULL && ctw_visits_missing(&s->q, 0, false) >= 0;
    for (int i = 0; s->from.shards != NULL && i < s->place->n_units; i++)
        missing |= s->place->unit[i].stays && s->q.state[i] != CTW_UNIT_IS_IN;
    pthread_mutex_unlock(&s->lock);
    return missing || (s->from.shards != NULL && !ctw_shards_all_in(s->from.shards));
}

/* ---- open and close ----------------------------------------------------------------------- */

static int count_readers(const struct ctw_stream *s)
{
    if (!s->from.is_staged)
        return HOST_READERS;
    if (s->from.shards != NULL && !ctw_shards_has_files(s->from.shards) && s->place->host_room == 0)
        return GATHERING_READERS;
    return ctw_cpu_count() < DEVICE_READERS ? ctw_cpu_count() : DEVICE_READERS;
}

static enum ctw_status start_readers(struct ctw_stream *s, int n, struct ctw_err *err)
{
    for (; s->n_readers < n; s->n_readers++) {
        struct reader *r = &s->reader[s->n_readers];
        r->s = s;
        r->slices.from = &s->from;
        if (pthread_create(&r->thread, NULL, read_units, r) != 0)
            break;
    }
    return s->n_readers > 0 ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "loading: cannot start a thread");
}

enum ctw_status ctw_stream_open(struct ctw_stream **out, const struct ctw_model *model,
                                struct ctw_backend *be, const struct ctw_placement *place,
                                struct ctw_shards *shards, struct ctw_err *err)
{
    struct ctw_stream *s = ctw_calloc(1, sizeof(*s));
    if (s == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    s->started_s = ctw_now_s();
    ctw_slice_source_init(&s->from, model, be, &s->slices, shards);
    s->place = place;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    int n = count_readers(s);
    bool is_load = s->from.is_staged && shards == NULL && place->streamed == 0;
    ctw_stages_init(&s->from.stages, be, is_load ? LOAD_STAGE : CTW_DEVICE_SLICE,
                    is_load ? LOAD_STAGES : n * STAGES_PER_READER);
    size_t slice = s->from.is_staged && !is_load ? CTW_DEVICE_SLICE : CTW_BLOCK_BYTES;
    enum ctw_status st = ctw_slices_make(&s->slices, model, place, slice, err);
    if (st == CTW_OK)
        st = ctw_visits_open(&s->q, place, &s->slices, err);
    if (st == CTW_OK)
        st = start_readers(s, n, err);
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
    ctw_stages_stop(&s->from.stages);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_readers; i++)
        pthread_join(s->reader[i].thread, NULL);
    ctw_stages_fini(&s->from.stages);
    for (int i = 0; i < s->place->n_units; i++)
        withdraw(s, i);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    ctw_slices_free(&s->slices);
    ctw_visits_close(&s->q);
    ctw_free(s);
}
