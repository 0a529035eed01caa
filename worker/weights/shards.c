#include "worker/weights/shards.h"

#include <pthread.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/numa.h"
#include "worker/weights/stages.h"

enum { READERS = 4, STAGES = 2 }; /* readers of a device; stages of a reader */

/* Homes of a slice beside the devices: its unit stays on each device; the slice is only in the
 * files. */
enum { STAYS = -1, IN_FILES = -2 };

struct home {
    int device; /* n: host memory, which may become IN_FILES under lock */
    size_t at;  /* offset in the device's memory, or in host memory, counted over its blocks */
    bool is_in; /* under lock */
};

/* The memory of a device and the threads that fill it. For host memory, `memory` is NULL. */
struct shard {
    struct ctw_shards *all;
    struct ctw_backend *be;
    char *memory; /* of the device */
    size_t bytes;
    pthread_t reader[READERS];
    int n_readers;
    int64_t next; /* under lock: no slice before this one is left to read */
};

struct ctw_shards {
    const struct ctw_model *model;
    struct ctw_slices slices;
    struct home *home; /* [n_slices] */
    struct ctw_neighbours *neighbours;
    int n;
    void **block; /* blocks of host memory, under `locking` */
    int64_t n_blocks;
    pthread_mutex_t locking;
    bool full;                              /* no more host memory can be locked; under `locking` */
    struct shard shard[CTW_SHARDS_MAX + 1]; /* those of the n devices, then that of host memory */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    bool has_files; /* some slices are only in the files */
    int64_t n_missing;
    bool stop;
    struct ctw_err err; /* the first failure */
};

/* ---- which device has a slice -------------------------------------------------------------- */

static size_t align_up(size_t bytes)
{
    return (bytes + CTW_ARENA_ALIGN - 1) / CTW_ARENA_ALIGN * CTW_ARENA_ALIGN;
}

/* Gives each device a run of adjacent slices of a unit, so that few copies gather the unit. If all
 * devices should have the same bytes, a slice goes to the device that holds the slice's middle.
 * Then each device has at most one slice more or less than its part. */
static void deal_unit(struct ctw_shards *s, int unit)
{
    int64_t first = s->slices.first[unit], end = s->slices.first[unit + 1];
    uint64_t all = 0, dealt = 0, until = 0; /* until: where the device's run ends, in bytes */
    int device = -1;
    for (int d = 0; d < s->n; d++)
        all += s->shard[d].bytes;
    for (int64_t i = first; i < end; i++)
        all += align_up(s->slices.slices[i].bytes);
    for (int64_t i = first; i < end; i++) {
        uint64_t bytes = align_up(s->slices.slices[i].bytes);
        while (device < s->n - 1 && (device < 0 || dealt + bytes / 2 >= until)) {
            uint64_t due = all / (uint64_t)s->n, has = s->shard[++device].bytes;
            until += due > has ? due - has : 0;
        }
        s->home[i] = (struct home){.device = device, .at = s->shard[device].bytes};
        s->shard[device].bytes += bytes;
        s->n_missing++;
        dealt += bytes;
    }
}

/* Places slices one after another, each within one block. */
static void add_to_host(struct ctw_shards *s, struct home *home, const struct ctw_slice *of)
{
    struct shard *h = &s->shard[s->n];
    if (h->bytes % CTW_HOST_BLOCK + of->bytes > CTW_HOST_BLOCK)
        h->bytes += CTW_HOST_BLOCK - h->bytes % CTW_HOST_BLOCK;
    home->device = s->n;
    home->at = h->bytes;
    h->bytes += align_up(of->bytes);
    s->n_blocks = (int64_t)((h->bytes + CTW_HOST_BLOCK - 1) / CTW_HOST_BLOCK);
    s->n_missing++;
}

static enum ctw_status deal_slices(struct ctw_shards *s, const struct ctw_placement *place,
                                   struct ctw_err *err)
{
    uint64_t bytes[CTW_N_HOMES];
    unsigned char *of = ctw_calloc((size_t)place->n_units, sizeof(*of));
    if (of == NULL)
        return ctw_fail(err, CTW_ENOMEM, "loading: out of memory");
    ctw_homes_choose(place, s->n, of, bytes);
    s->has_files = bytes[CTW_HOME_FILES] > 0;
    for (int u = 0; u < place->n_units; u++) {
        for (int64_t i = s->slices.first[u]; i < s->slices.first[u + 1]; i++) {
            struct home *home = &s->home[i];
            home->device = of[u] == CTW_HOME_FILES ? IN_FILES : STAYS;
            if (of[u] == CTW_HOME_HOST)
                add_to_host(s, home, &s->slices.slices[i]);
        }
        if (of[u] == CTW_HOME_DEVICES)
            deal_unit(s, u);
    }
    ctw_free(of);
    s->block = ctw_calloc((size_t)s->n_blocks + 1, sizeof(*s->block));
    return s->block != NULL ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "loading: out of memory");
}

/* Decides the home of each slice. */
static enum ctw_status open_table(struct ctw_shards *s, const struct ctw_placement *place,
                                  struct ctw_err *err)
{
    enum ctw_status st = ctw_slices_make(&s->slices, s->model, place, CTW_DEVICE_SLICE, err);
    if (st != CTW_OK)
        return st;
    s->home = ctw_calloc((size_t)s->slices.n_slices + 1, sizeof(*s->home));
    if (s->home == NULL)
        return ctw_fail(err, CTW_ENOMEM, "loading: out of memory");
    return deal_slices(s, place, err);
}

static void close_table(struct ctw_shards *s)
{
    ctw_slices_free(&s->slices);
    ctw_free(s->home);
    ctw_free(s->block);
}

enum ctw_status ctw_shards_bytes(const struct ctw_model *model, const struct ctw_placement *place,
                                 int n, uint64_t *bytes, struct ctw_err *err)
{
    struct ctw_shards s = {.model = model, .n = n};
    enum ctw_status st = open_table(&s, place, err);
    *bytes = 0;
    for (int d = 0; d < n; d++)
        *bytes = s.shard[d].bytes > *bytes ? s.shard[d].bytes : *bytes;
    close_table(&s);
    return st;
}

uint64_t ctw_shards_bound(const struct ctw_placement *place, int n)
{
    uint64_t part = place->streamed / (uint64_t)n, largest = 0;
    for (int i = 0; i < place->n_units; i++)
        largest = place->unit[i].bytes > largest ? place->unit[i].bytes : largest;
    return part + part / 2048 + (largest < CTW_DEVICE_SLICE ? largest : CTW_DEVICE_SLICE);
}

/* ---- reading ------------------------------------------------------------------------------ */

struct stage {
    void *p;
    bool begun;
    int64_t slice; /* the slice whose upload has begun */
    uint64_t ticket;
};

static bool given_up(const struct ctw_shards *s)
{
    return s->stop || s->err.status != CTW_OK;
}

/* Takes the next slice for the device to read; -1: no slice is left. */
static int64_t take_slice(struct shard *d)
{
    struct ctw_shards *s = d->all;
    int64_t slice = -1;
    int number = (int)(d - s->shard);
    pthread_mutex_lock(&s->lock);
    while (!given_up(s) && d->next < s->slices.n_slices && s->home[d->next].device != number)
        d->next++;
    if (!given_up(s) && d->next < s->slices.n_slices)
        slice = d->next++;
    pthread_mutex_unlock(&s->lock);
    return slice;
}

/* Waits for the upload from the stage. Then the slice is in place. */
static enum ctw_status settle(struct shard *d, struct stage *stage, struct ctw_err *err)
{
    struct ctw_shards *s = d->all;
    if (!stage->begun)
        return CTW_OK;
    enum ctw_status st = ctw_upload_wait(d->be, stage->ticket, err);
    if (st != CTW_OK)
        return st;
    stage->begun = false;
    pthread_mutex_lock(&s->lock);
    s->home[stage->slice].is_in = true;
    s->n_missing--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return CTW_OK;
}

static enum ctw_status read_slice(struct shard *d, struct stage *stage, int64_t i,
                                  struct ctw_err *err)
{
    struct ctw_shards *s = d->all;
    const struct ctw_slice *slice = &s->slices.slices[i];
    enum ctw_status st = settle(d, stage, err);
    if (st == CTW_OK && stage->p == NULL)
        st = ctw_stage_alloc(d->be, &stage->p, CTW_DEVICE_SLICE, err);
    if (st == CTW_OK)
        st = ctw_slices_read(&s->slices, s->model, slice, stage->p, err);
    if (st == CTW_OK)
        st = ctw_upload_begin(d->be, d->memory + s->home[i].at, stage->p, slice->bytes,
                              &stage->ticket, err);
    stage->begun = st == CTW_OK;
    stage->slice = i;
    return st;
}

/* Ends a reader. The first error stops the other readers. */
static void *end_reader(struct ctw_shards *s, enum ctw_status st, const struct ctw_err *err)
{
    pthread_mutex_lock(&s->lock);
    if (st != CTW_OK && s->err.status == CTW_OK)
        s->err = *err;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void *read_slices(void *arg)
{
    struct shard *d = arg;
    struct ctw_shards *s = d->all;
    struct stage stage[STAGES] = {{0}};
    struct ctw_err err = {0};
    enum ctw_status st = CTW_OK;
    int64_t i;
    ctw_run_near(d->be);
    for (int turn = 0; st == CTW_OK && (i = take_slice(d)) >= 0; turn = (turn + 1) % STAGES)
        st = read_slice(d, &stage[turn], i, &err);
    for (int k = 0; k < STAGES; k++) {
        struct ctw_err late;
        bool was_ok = st == CTW_OK;
        if (settle(d, &stage[k], was_ok ? &err : &late) == CTW_OK)
            ctw_stage_free(d->be, stage[k].p); /* else the driver may still read it */
        else
            st = was_ok ? err.status : st;
    }
    return end_reader(s, st, &err);
}

/* Finds the place of a slice in host memory, and locks the block when its first slice comes. *to
 * NULL: no more memory can be locked. */
static enum ctw_status host_place(struct shard *h, const struct home *home, char **to,
                                  struct ctw_err *err)
{
    struct ctw_shards *s = h->all;
    struct ctw_err why;
    enum ctw_status st = CTW_OK;
    pthread_mutex_lock(&s->locking);
    size_t first = home->at / CTW_HOST_BLOCK * CTW_HOST_BLOCK, left = s->shard[s->n].bytes - first;
    int64_t number = (int64_t)(home->at / CTW_HOST_BLOCK);
    void **block = &s->block[number];
    if (*block == NULL && !s->full) {
        ctw_numa_run_on("", ctw_numa_node("", (int)number)); /* blocks alternate nodes */
        st = ctw_stage_alloc(h->be, block, left < CTW_HOST_BLOCK ? left : CTW_HOST_BLOCK, &why);
    }
    if (st == CTW_ENOMEM) {
        s->full = true;
        ctw_warn("--host-memory-limit: %s: the other weights are read from the files in every pass "
                 "(raise "
                 "the limit of locked memory, ulimit -l, or lower --host-memory-limit)",
                 why.msg);
    } else if (st != CTW_OK) {
        st = ctw_fail(err, st, "%s", why.msg);
    }
    *to = *block != NULL ? (char *)*block + home->at % CTW_HOST_BLOCK : NULL;
    pthread_mutex_unlock(&s->locking);
    return st == CTW_ENOMEM ? CTW_OK : st;
}

/* Reads a slice into host memory. If there is no memory for the slice, it stays in the files. */
static enum ctw_status keep_slice(struct shard *h, int64_t i, struct ctw_err *err)
{
    struct ctw_shards *s = h->all;
    struct home *home = &s->home[i];
    char *to;
    enum ctw_status st = host_place(h, home, &to, err);
    if (st == CTW_OK && to != NULL)
        st = ctw_slices_read(&s->slices, s->model, &s->slices.slices[i], to, err);
    if (st != CTW_OK)
        return st;
    pthread_mutex_lock(&s->lock);
    home->is_in = to != NULL;
    if (to == NULL) {
        home->device = IN_FILES;
        s->has_files = true;
    }
    s->n_missing--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return CTW_OK;
}

static void *keep_slices(void *arg)
{
    struct shard *h = arg;
    struct ctw_shards *s = h->all;
    struct ctw_err err = {0};
    enum ctw_status st = CTW_OK;
    int64_t i;
    while (st == CTW_OK && (i = take_slice(h)) >= 0)
        st = keep_slice(h, i, &err);
    return end_reader(s, st, &err);
}

/* ---- interface ---------------------------------------------------------------------------- */

enum ctw_status ctw_shards_find(struct ctw_shards *s, int64_t slice, struct ctw_backend **be,
                                const void **at, struct ctw_err *err)
{
    const struct home *home = &s->home[slice];
    enum ctw_status st = CTW_OK;
    *be = NULL;
    *at = NULL;
    pthread_mutex_lock(&s->lock);
    while (!home->is_in && home->device != IN_FILES && !given_up(s))
        pthread_cond_wait(&s->changed, &s->lock);
    if (home->is_in && home->device == s->n) {
        *at = (const char *)s->block[home->at / CTW_HOST_BLOCK] + home->at % CTW_HOST_BLOCK;
    } else if (home->is_in) {
        *be = s->shard[home->device].be;
        *at = s->shard[home->device].memory + home->at;
    } else if (given_up(s)) {
        st = s->stop ? ctw_fail(err, CTW_ECANCELED, "loading: cancelled")
                     : ctw_fail(err, s->err.status, "%s", s->err.msg);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

bool ctw_shards_order(const struct ctw_shards *s, int self, int unit, int64_t *first)
{
    int64_t at = s->slices.first[unit], end = s->slices.first[unit + 1];
    /* homes of units on devices never change */
    if (at == end || s->home[at].device < 0 || s->home[at].device >= s->n)
        return false;
    while (at < end && s->home[at].device <= self)
        at++;
    *first = at < end ? at : s->slices.first[unit];
    return true;
}

struct ctw_neighbours *ctw_shards_neighbours(struct ctw_shards *s)
{
    return s->neighbours;
}

bool ctw_shards_has_files(struct ctw_shards *s)
{
    pthread_mutex_lock(&s->lock);
    bool has = s->has_files;
    pthread_mutex_unlock(&s->lock);
    return has;
}

bool ctw_shards_all_in(struct ctw_shards *s)
{
    pthread_mutex_lock(&s->lock);
    bool all = s->n_missing == 0 && !s->has_files;
    pthread_mutex_unlock(&s->lock);
    return all;
}

static enum ctw_status open_shard(struct ctw_shards *s, int number, struct ctw_err *err)
{
    struct shard *d = &s->shard[number];
    void *memory = NULL;
    bool is_host = number == s->n;
    enum ctw_status st = CTW_OK;
    if (d->bytes == 0)
        return CTW_OK;
    if (!is_host)
        st = ctw_device_alloc(d->be, &memory, d->bytes, err);
    if (st != CTW_OK)
        return ctw_fail_prefix(err, "1/%d of the weights", s->n);
    d->memory = memory;
    while (d->n_readers < READERS && pthread_create(&d->reader[d->n_readers], NULL,
                                                    is_host ? keep_slices : read_slices, d) == 0)
        d->n_readers++;
    return d->n_readers > 0 ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "loading: cannot start a thread");
}

enum ctw_status ctw_shards_open(struct ctw_shards **out, const struct ctw_model *model,
                                const struct ctw_placement *place, struct ctw_backend *const *be,
                                int n, struct ctw_err *err)
{
    struct ctw_shards *s = ctw_calloc(1, sizeof(*s));
    if (s == NULL)
        return ctw_fail(err, CTW_ENOMEM, "loading: out of memory");
    s->model = model;
    s->n = n;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->locking, NULL);
    pthread_cond_init(&s->changed, NULL);
    for (int i = 0; i <= n; i++)
        s->shard[i] = (struct shard){.all = s, .be = be[i < n ? i : 0]};
    enum ctw_status st = open_table(s, place, err);
    if (st == CTW_OK)
        st = ctw_neighbours_open(&s->neighbours, &s->slices, place->n_units, be, n, err);
    for (int i = 0; st == CTW_OK && i <= n; i++)
        st = open_shard(s, i, err);
    if (st != CTW_OK) {
        ctw_shards_close(s);
        return st;
    }
    *out = s;
    return CTW_OK;
}

void ctw_shards_stop(struct ctw_shards *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void ctw_shards_close(struct ctw_shards *s)
{
    if (s == NULL)
        return;
    ctw_shards_stop(s);
    for (int i = 0; i <= s->n; i++)
        for (int k = 0; k < s->shard[i].n_readers; k++)
            pthread_join(s->shard[i].reader[k], NULL);
    for (int64_t i = 0; s->block != NULL && i < s->n_blocks; i++)
        ctw_stage_free(s->shard[0].be, s->block[i]);
    for (int i = 0; i < s->n; i++)
        ctw_device_free(s->shard[i].be, s->shard[i].memory);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->locking);
    ctw_neighbours_close(s->neighbours);
    close_table(s);
    ctw_free(s);
}
