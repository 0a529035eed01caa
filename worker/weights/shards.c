#include "worker/weights/shards.h"

#include <pthread.h>

#include "base/mem.h"

enum { READERS = 4, STAGES = 2 }; /* of a device; of a reader */

struct home {
    int device; /* -1: the slice is of a layer that stays */
    size_t at;
    bool is_in; /* under lock */
};

/* A device's memory and the threads that fill it. */
struct shard {
    struct ctw_shards *all;
    struct ctw_backend *be;
    char *memory; /* device */
    size_t bytes;
    pthread_t reader[READERS];
    int n_readers;
    int64_t next; /* under lock: no slice before it is left to read */
};

struct ctw_shards {
    const struct ctw_model *model;
    struct ctw_slices slices;
    struct home *home; /* [n_slices] */
    int n;
    struct shard shard[CTW_SHARDS_MAX];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    int64_t n_missing;
    bool stop;
    struct ctw_err err; /* the first failure */
};

/* ---- which device has a slice -------------------------------------------------------------- */

static size_t align_up(size_t bytes)
{
    return (bytes + CTW_ARENA_ALIGN - 1) / CTW_ARENA_ALIGN * CTW_ARENA_ALIGN;
}

/* Each slice goes to the device that has the least. So devices differ by at most one slice. */
static void deal_slices(struct ctw_shards *s, const struct ctw_placement *place)
{
    for (int layer = 0; layer < place->n_layers; layer++)
        for (int64_t i = s->slices.first[layer]; i < s->slices.first[layer + 1]; i++) {
            int least = 0;
            s->home[i].device = -1;
            if (place->stays[layer])
                continue;
            for (int d = 1; d < s->n; d++)
                least = s->shard[d].bytes < s->shard[least].bytes ? d : least;
            s->home[i].device = least;
            s->home[i].at = s->shard[least].bytes;
            s->shard[least].bytes += align_up(s->slices.slices[i].bytes);
            s->n_missing++;
        }
}

uint64_t ctw_shards_bytes(const struct ctw_placement *place, int n)
{
    uint64_t part = (place->weights - place->resident) / (uint64_t)n, largest = 0;
    for (int i = 0; i < place->n_layers; i++)
        largest = place->stays[i] || place->bytes[i] < largest ? largest : place->bytes[i];
    if (largest > CTW_DEVICE_SLICE)
        largest = CTW_DEVICE_SLICE;
    return part == 0 ? 0 : part + part / 2048 + largest; /* slices have 1 MiB, and are aligned */
}

/* ---- reading ------------------------------------------------------------------------------ */

struct stage {
    void *p;
    bool begun;
    int64_t slice; /* whose upload has begun */
    uint64_t ticket;
};

static bool given_up(const struct ctw_shards *s)
{
    return s->stop || s->err.status != CTW_OK;
}

/* The device's next slice; -1: none. */
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

/* Waits for the stage's upload, after which its slice is in place. */
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
    const struct ctw_slice_of_layer *slice = &s->slices.slices[i];
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

static void *read_slices(void *arg)
{
    struct shard *d = arg;
    struct ctw_shards *s = d->all;
    struct stage stage[STAGES] = {{0}};
    struct ctw_err err = {0};
    enum ctw_status st = CTW_OK;
    int64_t i;
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
    pthread_mutex_lock(&s->lock);
    if (st != CTW_OK && s->err.status == CTW_OK)
        s->err = err;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- interface ---------------------------------------------------------------------------- */

enum ctw_status ctw_shards_find(struct ctw_shards *s, int64_t slice, struct ctw_backend **be,
                                const void **at, struct ctw_err *err)
{
    const struct home *home = &s->home[slice];
    enum ctw_status st = CTW_OK;
    *be = s->shard[home->device].be;
    *at = s->shard[home->device].memory + home->at;
    pthread_mutex_lock(&s->lock);
    while (!home->is_in && !given_up(s))
        pthread_cond_wait(&s->changed, &s->lock);
    if (!home->is_in)
        st = s->stop ? ctw_fail(err, CTW_ECANCELED, "loading: cancelled")
                     : ctw_fail(err, s->err.status, "%s", s->err.msg);
    pthread_mutex_unlock(&s->lock);
    return st;
}

bool ctw_shards_all_in(struct ctw_shards *s)
{
    pthread_mutex_lock(&s->lock);
    bool all = s->n_missing == 0;
    pthread_mutex_unlock(&s->lock);
    return all;
}

static enum ctw_status open_shard(struct ctw_shards *s, int number, struct ctw_err *err)
{
    struct shard *d = &s->shard[number];
    void *memory;
    enum ctw_status st = ctw_device_alloc(d->be, &memory, d->bytes, err);
    if (st != CTW_OK)
        return ctw_fail_prefix(err, "1/%d of the weights", s->n);
    d->memory = memory;
    while (d->n_readers < READERS &&
           pthread_create(&d->reader[d->n_readers], NULL, read_slices, d) == 0)
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
    pthread_cond_init(&s->changed, NULL);
    for (int i = 0; i < n; i++)
        s->shard[i] = (struct shard){.all = s, .be = be[i]};
    enum ctw_status st = ctw_slices_make(&s->slices, model, CTW_DEVICE_SLICE, err);
    if (st == CTW_OK) {
        s->home = ctw_calloc((size_t)s->slices.n_slices + 1, sizeof(*s->home));
        st = s->home != NULL ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "loading: out of memory");
    }
    if (st == CTW_OK)
        deal_slices(s, place);
    for (int i = 0; st == CTW_OK && i < n; i++)
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
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < s->shard[i].n_readers; k++)
            pthread_join(s->shard[i].reader[k], NULL);
    for (int i = 0; i < s->n; i++)
        ctw_device_free(s->shard[i].be, s->shard[i].memory);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    ctw_slices_free(&s->slices);
    ctw_free(s->home);
    ctw_free(s);
}
