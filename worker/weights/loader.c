#include "worker/weights/loader.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/threads.h"
#include "worker/checkpoint/identity.h"
#include "worker/weights/near.h"

/*
 * All threads read into a stage, one slice each, and one upload copies the stage. Large copies come
 * closest to the link's throughput. But pinning the stages must not take long (0.1 ms per MiB and
 * more), and the stages together must stay in the processors' cache.
 */
enum { STAGE_BYTES = 8 << 20, N_STAGES = 6, SLICE_BYTES = CTW_BLOCK_BYTES, MAX_READERS = 12 };

/* A contiguous range of a file, one block of its tensor, and its place in the device's memory. */
struct piece {
    int file;
    uint64_t offset;
    size_t bytes, at;
    int64_t block; /* of the identity */
};

/* Adjacent pieces that one thread reads, together at most SLICE_BYTES. */
struct slice {
    int64_t batch, first, n; /* pieces */
};

struct stage {
    char *p;
    bool begun; /* an upload from the stage has begun; `ticket` identifies it */
    uint64_t ticket;
};

/* The contents of one stage: adjacent slices of one layer, together at most STAGE_BYTES. */
struct batch {
    int layer;
    int64_t first;   /* its first slice */
    size_t from, to; /* in the device's memory */
    /* under lock */
    int64_t n_unread;    /* slices */
    struct stage *stage; /* NULL: none yet */
};

struct ctw_loader {
    const struct ctw_model *model;
    struct ctw_backend *be;
    struct piece *pieces;
    struct slice *slices;
    struct batch *batches;
    int64_t n_pieces, cap_pieces, n_slices, cap_slices, n_batches, cap_batches;
    pthread_t reader[MAX_READERS];
    int n_readers;
    double started_s;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    int64_t *n_waiting;       /* [n_layers] batches whose upload has not begun */
    char *memory;             /* device; NULL: not known yet */
    double memory_s, begun_s; /* when memory was set, and when the first upload began */
    struct stage stage[N_STAGES];
    struct stage *free[N_STAGES]; /* a ring, in the order of reuse */
    int64_t n_freed, n_taken;     /* in total, of the ring */
    int n_stages;                 /* allocated, or being allocated by a thread */
    int n_reading;                /* reading threads */
    int64_t next_slice, n_begun;
    bool stop;
    struct ctw_err err; /* the first failure */
};

/* ---- what to read ------------------------------------------------------------------------ */

static enum ctw_status no_memory(struct ctw_err *err)
{
    return ctw_fail(err, CTW_ENOMEM, "loading: out of memory");
}

/* Makes space for one more element of `size` bytes in an array. */
static enum ctw_status grow(void **array, int64_t n, int64_t *cap, size_t size, struct ctw_err *err)
{
    if (n < *cap)
        return CTW_OK;
    int64_t more = *cap == 0 ? 256 : 2 * *cap;
    void *grown = ctw_realloc(*array, (size_t)more, size);
    if (grown == NULL)
        return no_memory(err);
    *array = grown;
    *cap = more;
    return CTW_OK;
}

/* Adds a piece of at most SLICE_BYTES. */
static enum ctw_status add_piece(struct ctw_loader *l, int layer, const struct piece *piece,
                                 struct ctw_err *err)
{
    size_t to = piece->at + piece->bytes;
    struct batch *b = l->n_batches > 0 ? &l->batches[l->n_batches - 1] : NULL;
    bool new_batch = b == NULL || b->layer != layer || to - b->from > STAGE_BYTES;
    struct slice *s = new_batch ? NULL : &l->slices[l->n_slices - 1];
    bool new_slice = s == NULL || to - l->pieces[s->first].at > SLICE_BYTES;
    enum ctw_status st =
        grow((void **)&l->pieces, l->n_pieces, &l->cap_pieces, sizeof(*l->pieces), err);
    if (st == CTW_OK && new_batch)
        st = grow((void **)&l->batches, l->n_batches, &l->cap_batches, sizeof(*l->batches), err);
    if (st == CTW_OK && new_slice)
        st = grow((void **)&l->slices, l->n_slices, &l->cap_slices, sizeof(*l->slices), err);
    if (st != CTW_OK)
        return st;
    if (new_batch) {
        l->batches[l->n_batches++] =
            (struct batch){.layer = layer, .first = l->n_slices, .from = piece->at};
        l->n_waiting[layer]++;
    }
    b = &l->batches[l->n_batches - 1];
    b->to = to;
    if (new_slice) {
        l->slices[l->n_slices++] = (struct slice){.batch = l->n_batches - 1, .first = l->n_pieces};
        b->n_unread++;
    }
    l->slices[l->n_slices - 1].n++;
    l->pieces[l->n_pieces++] = *piece;
    return CTW_OK;
}

enum ctw_status ctw_loader_add(struct ctw_loader *l, int layer, const struct ctw_tensor *t,
                               size_t at, struct ctw_err *err)
{
    int64_t block = ctw_identity_first_block(l->model->identity, t);
    enum ctw_status st = CTW_OK;
    for (size_t done = 0; st == CTW_OK && done < t->bytes; block++) {
        size_t n = t->bytes - done < SLICE_BYTES ? t->bytes - done : SLICE_BYTES;
        const struct piece piece = {.file = t->file,
                                    .offset = t->offset + done,
                                    .bytes = n,
                                    .at = at + done,
                                    .block = block};
        st = add_piece(l, layer, &piece, err);
        done += n;
    }
    return st;
}

/* ---- readers ------------------------------------------------------------------------------ */

static bool given_up(const struct ctw_loader *l)
{
    return l->stop || l->err.status != CTW_OK;
}

static enum ctw_status gave_up(struct ctw_err *err)
{
    return ctw_fail(err, CTW_ECANCELED, "loading: cancelled");
}

static bool may_get_stage(const struct ctw_loader *l)
{
    return l->n_stages < N_STAGES && l->n_stages < l->n_batches;
}

/* Allocates a new stage. Called under lock. */
static enum ctw_status get_stage(struct ctw_loader *l, struct stage **out, struct ctw_err *err)
{
    struct stage *s = *out = &l->stage[l->n_stages++];
    pthread_mutex_unlock(&l->lock);
    enum ctw_status st = ctw_stage_alloc(l->be, (void **)&s->p, STAGE_BYTES, err);
    pthread_mutex_lock(&l->lock);
    return st;
}

/* Puts a stage into the ring. Called under lock. */
static void free_stage(struct ctw_loader *l, struct stage *s)
{
    l->free[l->n_freed++ % N_STAGES] = s;
    pthread_cond_broadcast(&l->changed);
}

/* Takes a stage to read into: a stage without an upload, or a new stage, or the stage whose upload
 * began first, after waiting for that upload. Called under lock. */
static enum ctw_status take_stage(struct ctw_loader *l, struct stage **out, struct ctw_err *err)
{
    while (l->n_freed == l->n_taken && !may_get_stage(l) && !given_up(l))
        pthread_cond_wait(&l->changed, &l->lock);
    if (given_up(l))
        return gave_up(err);
    struct stage *s = l->n_freed > l->n_taken ? l->free[l->n_taken % N_STAGES] : NULL;
    if ((s == NULL || s->begun) && may_get_stage(l))
        return get_stage(l, out, err);
    l->n_taken++;
    *out = s;
    if (!s->begun)
        return CTW_OK;
    pthread_mutex_unlock(&l->lock);
    enum ctw_status st = ctw_upload_wait(l->be, s->ticket, err);
    pthread_mutex_lock(&l->lock);
    return st;
}

/* The stage of a slice's batch. The thread with the first slice takes it. Called under lock. */
static enum ctw_status stage_of(struct ctw_loader *l, int64_t slice, struct stage **out,
                                struct ctw_err *err)
{
    struct batch *b = &l->batches[l->slices[slice].batch];
    if (slice == b->first) {
        enum ctw_status st = take_stage(l, out, err);
        if (st != CTW_OK)
            return st;
        b->stage = *out;
        pthread_cond_broadcast(&l->changed);
    }
    while (b->stage == NULL && !given_up(l))
        pthread_cond_wait(&l->changed, &l->lock);
    *out = b->stage;
    return given_up(l) ? gave_up(err) : CTW_OK;
}

/* Digests each piece while it is in the thread's cache. */
static enum ctw_status read_slice(const struct ctw_loader *l, const struct slice *slice,
                                  char *stage, struct ctw_err *err)
{
    size_t from = l->batches[slice->batch].from;
    enum ctw_status st = CTW_OK;
    for (int64_t i = slice->first; st == CTW_OK && i < slice->first + slice->n; i++) {
        const struct piece *piece = &l->pieces[i];
        char *to = stage + (piece->at - from);
        st = ctw_container_read(l->model->container, piece->file, piece->offset, to, piece->bytes,
                                err);
        if (st == CTW_OK) /* another device's loader may have read it already */
            st = ctw_identity_check(l->model->identity, l->model->container, piece->block, to,
                                    piece->bytes, err);
    }
    return st;
}

/* Marks a slice as read; the last slice of a batch begins the upload. Called under lock. */
static enum ctw_status slice_read(struct ctw_loader *l, struct batch *b, struct ctw_err *err)
{
    if (--b->n_unread > 0)
        return CTW_OK;
    while (l->memory == NULL && !given_up(l))
        pthread_cond_wait(&l->changed, &l->lock);
    if (given_up(l))
        return gave_up(err);
    struct stage *s = b->stage;
    void *to = l->memory + b->from;
    double now_s = ctw_now_s();
    pthread_mutex_unlock(&l->lock);
    enum ctw_status st = ctw_upload_begin(l->be, to, s->p, b->to - b->from, &s->ticket, err);
    pthread_mutex_lock(&l->lock);
    if (st != CTW_OK)
        return st;
    s->begun = true;
    if (l->n_begun == 0)
        l->begun_s = now_s;
    l->n_waiting[b->layer]--;
    l->n_begun++;
    free_stage(l, s);
    return CTW_OK;
}

static void tell(const struct ctw_loader *l)
{
    double seconds = ctw_now_s() - l->started_s, bytes = 0;
    for (int64_t i = 0; i < l->n_pieces; i++)
        bytes += (double)l->pieces[i].bytes;
    char size[32], rate[32];
    ctw_log(seconds < 1 ? CTW_LOG_DEBUG : CTW_LOG_INFO, "weights: %s on the GPU after %.4f s, %s/s",
            ctw_format_bytes(size, sizeof(size), bytes), seconds,
            ctw_format_bytes(rate, sizeof(rate), bytes / seconds));
    ctw_log(CTW_LOG_DEBUG, "weights: memory allocated after %.4f s, first copy begun after %.4f s",
            l->memory_s - l->started_s, l->begun_s - l->started_s);
}

/* Called by the last thread, or by ctw_loader_start() if all threads had ended. If an upload
 * failed, the stages are not freed: the driver may still read them. */
static void finish(struct ctw_loader *l)
{
    bool ended = true;
    for (int i = 0; i < N_STAGES; i++) {
        const struct stage *s = &l->stage[i];
        struct ctw_err err;
        ended = ended && (!s->begun || ctw_upload_wait(l->be, s->ticket, &err) == CTW_OK);
    }
    if (ended && l->n_begun == l->n_batches)
        tell(l);
    for (int i = 0; ended && i < N_STAGES; i++)
        ctw_stage_free(l->be, l->stage[i].p);
}

static void *read_slices(void *arg)
{
    struct ctw_loader *l = arg;
    struct stage *s = NULL;
    struct ctw_err err = {0};
    enum ctw_status st = CTW_OK;
    ctw_run_near(l->be);
    pthread_mutex_lock(&l->lock);
    if (may_get_stage(l)) { /* all threads allocate at once */
        st = get_stage(l, &s, &err);
        if (st == CTW_OK)
            free_stage(l, s);
    }
    while (st == CTW_OK && !given_up(l) && l->next_slice < l->n_slices) {
        int64_t i = l->next_slice++;
        st = stage_of(l, i, &s, &err);
        if (st != CTW_OK)
            break;
        pthread_mutex_unlock(&l->lock);
        st = read_slice(l, &l->slices[i], s->p, &err);
        pthread_mutex_lock(&l->lock);
        if (st == CTW_OK)
            st = slice_read(l, &l->batches[l->slices[i].batch], &err);
    }
    if (st != CTW_OK && l->err.status == CTW_OK)
        l->err = err;
    pthread_cond_broadcast(&l->changed);
    bool last = --l->n_reading == 0;
    pthread_mutex_unlock(&l->lock);
    if (last)
        finish(l);
    return NULL;
}

enum ctw_status ctw_loader_start(struct ctw_loader *l, struct ctw_err *err)
{
    int n = ctw_cpu_count();
    n = n < MAX_READERS ? n : MAX_READERS;
    n = n < l->n_slices ? n : (int)l->n_slices;
    l->n_reading = n; /* before the first thread begins */
    while (l->n_readers < n && pthread_create(&l->reader[l->n_readers], NULL, read_slices, l) == 0)
        l->n_readers++;
    pthread_mutex_lock(&l->lock);
    l->n_reading -= n - l->n_readers;
    /* Threads that could not be started had been counted: if all others have ended, none of them
     * was the last and called finish(). */
    bool ended = l->n_readers < n && l->n_reading == 0;
    pthread_mutex_unlock(&l->lock);
    if (ended)
        finish(l);
    return l->n_readers > 0 || n == 0 ? CTW_OK
                                      : ctw_fail(err, CTW_ENOMEM, "loading: cannot start a thread");
}

/* ---- interface ---------------------------------------------------------------------------- */

void ctw_loader_set_memory(struct ctw_loader *l, void *device)
{
    pthread_mutex_lock(&l->lock);
    l->memory = device;
    l->memory_s = ctw_now_s();
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

enum ctw_status ctw_loader_wait(struct ctw_loader *l, int layer, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    pthread_mutex_lock(&l->lock);
    while (l->n_waiting[layer] > 0 && l->err.status == CTW_OK)
        pthread_cond_wait(&l->changed, &l->lock);
    if (l->n_waiting[layer] > 0)
        st = ctw_fail(err, l->err.status, "reading the weights: %s", l->err.msg);
    pthread_mutex_unlock(&l->lock);
    return st;
}

bool ctw_loader_all_begun(struct ctw_loader *l)
{
    pthread_mutex_lock(&l->lock);
    bool all = l->n_begun == l->n_batches;
    pthread_mutex_unlock(&l->lock);
    return all;
}

enum ctw_status ctw_loader_open(struct ctw_loader **out, const struct ctw_model *model,
                                struct ctw_backend *be, struct ctw_err *err)
{
    struct ctw_loader *l = ctw_calloc(1, sizeof(*l));
    int64_t *n_waiting = ctw_calloc((size_t)model->n_layers, sizeof(*n_waiting));
    if (l == NULL || n_waiting == NULL) {
        ctw_free(l);
        ctw_free(n_waiting);
        return no_memory(err);
    }
    l->model = model;
    l->be = be;
    l->n_waiting = n_waiting;
    l->started_s = ctw_now_s();
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    *out = l;
    return CTW_OK;
}

void ctw_loader_close(struct ctw_loader *l)
{
    if (l == NULL)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->n_readers; i++)
        pthread_join(l->reader[i], NULL);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    ctw_free(l->n_waiting);
    ctw_free(l->pieces);
    ctw_free(l->slices);
    ctw_free(l->batches);
    ctw_free(l);
}
