/*
 * The resident provider: each layer's tensors in one block of device memory, in the file's order.
 * Threads take the blocks' batches in order, read them into stages (host memory that copies fast)
 * and begin their uploads; a layer can be acquired as soon as all of its uploads have begun, since
 * the backend orders what is computed after them. The blocks are allocated while the first are read.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/threads.h"
#include "worker/layers_provider.h"
#include "worker/plan.h"

enum {
    ALIGN = 256,            /* of each tensor in its layer's block */
    STAGE_BYTES = 4 << 20, /* large enough for full rates, and all readers' are still in a cache */
    N_STAGES = 2,           /* a thread's: one is read into while the other is copied */
    MAX_READERS = 12
};

/* A stretch of one tensor, and where it goes. */
struct piece {
    const struct ctw_tensor *tensor;
    uint64_t offset; /* in the file */
    size_t bytes;
    size_t at; /* in the layer's block */
};

/* Pieces that go through a stage together; they are neighbours in the layer's block. */
struct batch {
    int layer;
    int64_t first, n;
};

struct layer_place {
    void *block; /* device; NULL until it is allocated; under lock while that goes on */
    size_t bytes;
    int64_t n_waiting; /* batches whose upload has not begun; under lock */
    bool joined;
    struct ctw_layer_data data;
};

struct resident {
    struct ctw_provider base;
    const struct ctw_model *model;
    struct ctw_backend *be;
    struct layer_place *layers; /* [n_layers] */
    struct piece *pieces;
    struct batch *batches;
    int64_t n_pieces, cap_pieces, n_batches, cap_batches;
    pthread_t reader[MAX_READERS];
    int n_readers;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    int64_t next_batch, n_begun;
    bool stop;
    struct ctw_err err; /* the first failure */
};

/* ---- where things go ---------------------------------------------------------------------- */

static enum ctw_status no_memory(struct ctw_err *err)
{
    return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
}

static enum ctw_status add_piece(struct resident *p, int layer, const struct piece *piece,
                                 struct ctw_err *err)
{
    if (p->n_pieces == p->cap_pieces) {
        int64_t cap = p->cap_pieces == 0 ? 1024 : 2 * p->cap_pieces;
        struct piece *grown = ctw_realloc(p->pieces, (size_t)cap, sizeof(*grown));
        if (grown == NULL)
            return no_memory(err);
        p->pieces = grown;
        p->cap_pieces = cap;
    }
    struct batch *b = p->n_batches > 0 ? &p->batches[p->n_batches - 1] : NULL;
    bool fits = b != NULL && b->layer == layer &&
                piece->at + piece->bytes - p->pieces[b->first].at <= STAGE_BYTES;
    if (!fits) {
        if (p->n_batches == p->cap_batches) {
            int64_t cap = p->cap_batches == 0 ? 256 : 2 * p->cap_batches;
            struct batch *grown = ctw_realloc(p->batches, (size_t)cap, sizeof(*grown));
            if (grown == NULL)
                return no_memory(err);
            p->batches = grown;
            p->cap_batches = cap;
        }
        b = &p->batches[p->n_batches++];
        *b = (struct batch){.layer = layer, .first = p->n_pieces};
        p->layers[layer].n_waiting++;
    }
    b->n++;
    p->pieces[p->n_pieces++] = *piece;
    return CTW_OK;
}

static enum ctw_status place_tensor(struct resident *p, int layer, const struct ctw_tensor *t,
                                    struct ctw_err *err)
{
    struct layer_place *l = &p->layers[layer];
    size_t at = (l->bytes + ALIGN - 1) / ALIGN * ALIGN;
    for (size_t done = 0; done < t->bytes;) {
        size_t n = t->bytes - done < STAGE_BYTES ? t->bytes - done : STAGE_BYTES;
        const struct piece piece = {
            .tensor = t, .offset = t->offset + done, .bytes = n, .at = at + done};
        enum ctw_status st = add_piece(p, layer, &piece, err);
        if (st != CTW_OK)
            return st;
        done += n;
    }
    l->bytes = at + t->bytes;
    return CTW_OK;
}

static int by_file_and_offset(const void *a, const void *b)
{
    const struct ctw_tensor *x = *(const struct ctw_tensor *const *)a;
    const struct ctw_tensor *y = *(const struct ctw_tensor *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

enum { MAX_LAYER_TENSORS = CTW_N_MATRICES * CTW_N_PARTS + CTW_N_VECTORS };

/* A layer's tensors, those that decoders read, in the file's order. A tied head's are not its own. */
static int layer_tensors(const struct ctw_model *m, int layer,
                         const struct ctw_tensor *out[MAX_LAYER_TENSORS])
{
    const struct ctw_layer *l = &m->layers[layer];
    int n = 0;
    for (int i = 0; i < CTW_N_MATRICES; i++)
        for (int part = 0; part < CTW_N_PARTS; part++)
            if (l->matrix[i].part[part] != NULL && part != CTW_PART_SHAPE &&
                !(i == CTW_M_HEAD && m->tied))
                out[n++] = l->matrix[i].part[part];
    for (int i = 0; i < CTW_N_VECTORS; i++)
        if (l->vector[i] != NULL)
            out[n++] = l->vector[i];
    qsort(out, (size_t)n, sizeof(out[0]), by_file_and_offset);
    return n;
}

static enum ctw_status place_layers(struct resident *p, struct ctw_err *err)
{
    const struct ctw_tensor *tensors[MAX_LAYER_TENSORS];
    enum ctw_status st = CTW_OK;
    for (int layer = 0; st == CTW_OK && layer < p->model->n_layers; layer++) {
        int n = layer_tensors(p->model, layer, tensors);
        for (int i = 0; st == CTW_OK && i < n; i++)
            st = place_tensor(p, layer, tensors[i], err);
    }
    return st;
}

/* Do all blocks fit? */
static enum ctw_status check_room(const struct resident *p, struct ctw_err *err)
{
    size_t total = 0;
    for (int i = 0; i < p->model->n_layers; i++)
        total += p->layers[i].bytes;
    char need[32], free_text[32];
    uint64_t have = ctw_backend_memory_free(p->be);
    enum ctw_status st = ctw_backend_sync(p->be, err); /* one that failed has nothing free */
    if (st == CTW_OK && total > have)
        st = ctw_fail(err, CTW_ENOMEM,
                      "the weights take %s as they are stored, but only %s of the GPU's memory are "
                      "free: take another GPU, or --backend cpu",
                      ctw_format_bytes(need, sizeof(need), (double)total),
                      ctw_format_bytes(free_text, sizeof(free_text), (double)have));
    return st;
}

/* Readers may be waiting for each block. */
static enum ctw_status allocate(struct resident *p, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int i = 0; st == CTW_OK && i < p->model->n_layers; i++) {
        void *block = NULL;
        if (p->layers[i].bytes > 0)
            st = ctw_device_alloc(p->be, &block, p->layers[i].bytes, err);
        pthread_mutex_lock(&p->lock);
        p->layers[i].block = block;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
    return st;
}

/* The device address of a tensor, from the piece that holds its beginning. */
static const void *address_of(const struct resident *p, const struct ctw_tensor *t)
{
    if (t == NULL)
        return NULL;
    for (int64_t b = 0; b < p->n_batches; b++) {
        const struct batch *batch = &p->batches[b];
        for (int64_t i = batch->first; i < batch->first + batch->n; i++)
            if (p->pieces[i].tensor == t)
                return (char *)p->layers[batch->layer].block + p->pieces[i].at;
    }
    return NULL;
}

/* Where a layer's own pieces are found without going through all others'. */
static void fill_data(struct resident *p)
{
    for (int64_t b = 0; b < p->n_batches; b++) {
        int layer = p->batches[b].layer;
        const struct ctw_layer *l = &p->model->layers[layer];
        struct ctw_layer_data *data = &p->layers[layer].data;
        for (int64_t i = p->batches[b].first; i < p->batches[b].first + p->batches[b].n; i++) {
            const struct piece *piece = &p->pieces[i];
            if (piece->offset != piece->tensor->offset)
                continue;
            const void *at = (char *)p->layers[layer].block + piece->at;
            for (int m = 0; m < CTW_N_MATRICES; m++)
                for (int part = 0; part < CTW_N_PARTS; part++)
                    if (l->matrix[m].part[part] == piece->tensor)
                        data->matrix[m].part[part] = at;
            for (int v = 0; v < CTW_N_VECTORS; v++)
                if (l->vector[v] == piece->tensor)
                    data->vector[v] = at;
        }
    }
    int head = p->model->n_layers - 1;
    if (p->model->tied)
        for (int part = 0; part < CTW_N_PARTS; part++)
            p->layers[head].data.matrix[CTW_M_HEAD].part[part] =
                address_of(p, p->model->layers[head].matrix[CTW_M_HEAD].part[part]);
}

/* ---- readers ------------------------------------------------------------------------------ */

/* The layer's block, once there is one. CTW_ECANCELED: there will be none. */
static enum ctw_status wait_for_block(struct resident *p, int layer, char **block,
                                      struct ctw_err *err)
{
    pthread_mutex_lock(&p->lock);
    while (p->layers[layer].block == NULL && !p->stop && p->err.status == CTW_OK)
        pthread_cond_wait(&p->changed, &p->lock);
    *block = p->layers[layer].block;
    pthread_mutex_unlock(&p->lock);
    return *block != NULL ? CTW_OK : ctw_fail(err, CTW_ECANCELED, "layers: given up");
}

static enum ctw_status read_batch(struct resident *p, const struct batch *b, char *stage,
                                  uint64_t *ticket, struct ctw_err *err)
{
    char *block;
    const struct piece *first = &p->pieces[b->first], *last = &p->pieces[b->first + b->n - 1];
    for (const struct piece *i = first; i <= last; i++) {
        enum ctw_status st = ctw_container_read(p->model->container, i->tensor->file, i->offset,
                                                stage + (i->at - first->at), i->bytes, err);
        if (st != CTW_OK)
            return st;
    }
    enum ctw_status st = wait_for_block(p, b->layer, &block, err);
    if (st != CTW_OK)
        return st;
    return ctw_upload_begin(p->be, block + first->at, stage, last->at + last->bytes - first->at,
                            ticket, err);
}

/* The next batch, or NULL: none is left or wanted. */
static const struct batch *take_batch(struct resident *p)
{
    const struct batch *b = NULL;
    pthread_mutex_lock(&p->lock);
    if (!p->stop && p->err.status == CTW_OK && p->next_batch < p->n_batches)
        b = &p->batches[p->next_batch++];
    pthread_mutex_unlock(&p->lock);
    return b;
}

static void batch_begun(struct resident *p, const struct batch *b, enum ctw_status st,
                        const struct ctw_err *err)
{
    pthread_mutex_lock(&p->lock);
    if (st == CTW_OK) {
        p->layers[b->layer].n_waiting--;
        p->n_begun++;
    } else if (p->err.status == CTW_OK) {
        p->err = *err;
    }
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void *read_layers(void *arg)
{
    struct resident *p = arg;
    void *stages = NULL; /* got here, by all readers at once: it takes a while */
    uint64_t ticket[N_STAGES];
    bool busy[N_STAGES] = {false}; /* being copied, as ticket[] says */
    int64_t n = 0;
    const struct batch *b;
    while ((b = take_batch(p)) != NULL) {
        struct ctw_err err = {0};
        int s = (int)(n++ % N_STAGES);
        enum ctw_status st = CTW_OK;
        if (stages == NULL)
            st = ctw_stage_alloc(p->be, &stages, (size_t)N_STAGES * STAGE_BYTES, &err);
        else if (busy[s])
            st = ctw_upload_wait(p->be, ticket[s], &err);
        if (st == CTW_OK) {
            char *stage = (char *)stages + (size_t)s * STAGE_BYTES;
            st = read_batch(p, b, stage, &ticket[s], &err);
            busy[s] = st == CTW_OK;
        }
        batch_begun(p, b, st, &err);
        if (st != CTW_OK)
            break;
    }
    bool read = true;
    for (int s = 0; s < N_STAGES; s++) {
        struct ctw_err err;
        read = read && (!busy[s] || ctw_upload_wait(p->be, ticket[s], &err) == CTW_OK);
    }
    if (read) /* else the device failed, and its driver may still read the stages */
        ctw_stage_free(p->be, stages);
    return NULL;
}

static enum ctw_status start_readers(struct resident *p, struct ctw_err *err)
{
    int n = ctw_cpu_count() < MAX_READERS ? ctw_cpu_count() : MAX_READERS;
    for (int i = 0; i < n && i < p->n_batches; i++) {
        if (pthread_create(&p->reader[i], NULL, read_layers, p) != 0)
            break;
        p->n_readers++;
    }
    return p->n_readers > 0 ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "layers: cannot start a thread");
}

/* ---- the provider ------------------------------------------------------------------------- */

static enum ctw_status resident_acquire(struct ctw_provider *base, int layer,
                                        const struct ctw_layer_data **out, struct ctw_err *err)
{
    struct resident *p = (struct resident *)base;
    struct layer_place *l = &p->layers[layer];
    pthread_mutex_lock(&p->lock);
    while (l->n_waiting > 0 && p->err.status == CTW_OK)
        pthread_cond_wait(&p->changed, &p->lock);
    enum ctw_status st = CTW_OK;
    if (l->n_waiting > 0)
        st = ctw_fail(err, p->err.status, "reading the weights: %s", p->err.msg);
    pthread_mutex_unlock(&p->lock);
    if (st == CTW_OK && !l->joined)
        st = ctw_upload_join(p->be, err);
    if (st != CTW_OK)
        return st;
    l->joined = true;
    *out = &l->data;
    return CTW_OK;
}

static void resident_release(struct ctw_provider *base, int layer)
{
    (void)base;
    (void)layer;
}

static bool resident_needs_files(struct ctw_provider *base)
{
    struct resident *p = (struct resident *)base;
    pthread_mutex_lock(&p->lock);
    bool all = p->n_begun == p->n_batches;
    pthread_mutex_unlock(&p->lock);
    return !all;
}

static void resident_close(struct ctw_provider *base)
{
    struct resident *p = (struct resident *)base;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_readers; i++)
        pthread_join(p->reader[i], NULL);
    for (int i = 0; p->layers != NULL && i < p->model->n_layers; i++)
        ctw_device_free(p->be, p->layers[i].block);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    ctw_free(p->layers);
    ctw_free(p->pieces);
    ctw_free(p->batches);
    ctw_free(p);
}

enum ctw_status ctw_provider_open_resident(struct ctw_provider **out, const struct ctw_model *model,
                                           struct ctw_backend *be, struct ctw_err *err)
{
    static const struct ctw_provider_ops ops = {resident_acquire, resident_release,
                                                resident_needs_files, resident_close};
    struct resident *p = ctw_calloc(1, sizeof(*p));
    if (p == NULL)
        return no_memory(err);
    p->base.ops = &ops;
    p->model = model;
    p->be = be;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->layers = ctw_calloc((size_t)model->n_layers, sizeof(*p->layers));
    enum ctw_status st = p->layers == NULL ? no_memory(err) : place_layers(p, err);
    if (st == CTW_OK)
        st = check_room(p, err);
    if (st == CTW_OK)
        st = start_readers(p, err);
    if (st == CTW_OK)
        st = allocate(p, err);
    if (st == CTW_OK)
        fill_data(p);
    if (st != CTW_OK) {
        resident_close(&p->base);
        return st;
    }
    *out = &p->base;
    return CTW_OK;
}
