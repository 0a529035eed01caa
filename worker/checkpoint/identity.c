#include "worker/checkpoint/identity.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/threads.h"
#include "kernels/formats/ggml/ggml_types.h"

enum block_state { BLOCK_UNREAD, BLOCK_COMING /* a thread is digesting it */, BLOCK_IN };

struct ctw_identity {
    const struct ctw_tensor **tensors; /* [n_tensors], in the order of the files */
    const struct ctw_tensor **by_name; /* [n_tensors] */
    int64_t *first;                    /* [n_tensors + 1]: number of blocks before each tensor */
    int64_t n_tensors;
    struct ctw_digest *digests; /* [n_blocks] */
    atomic_uchar *state;        /* [n_blocks]: an enum block_state */
    int64_t n_blocks;
    struct ctw_sha256 sha; /* the state after the config */
    atomic_llong n_left;   /* blocks that have not been added */
    atomic_bool known;
    char text[65]; /* valid once known */
    char outline[65];
};

/* ---- the text ---- */

static void feed_number(struct ctw_sha256 *sha, uint64_t n)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(n >> (8 * i));
    ctw_sha256_update(sha, bytes, sizeof(bytes));
}

static void feed_text(struct ctw_sha256 *sha, const char *text, size_t bytes)
{
    feed_number(sha, bytes);
    ctw_sha256_update(sha, text, bytes);
}

static void feed_shape(struct ctw_sha256 *sha, const struct ctw_tensor *t)
{
    const char *dtype = t->block != NULL ? t->block->name : ctw_dtype_name(t->dtype);
    feed_text(sha, t->name, strlen(t->name));
    feed_text(sha, dtype, strlen(dtype));
    if (t->as_rates)
        feed_number(sha, 1 + (uint64_t)t->tiled);
    if (t->paired != 0 || t->added != 0) {
        feed_number(sha, (uint64_t)t->paired);
        feed_number(sha, (uint64_t)t->added);
    }
    feed_number(sha, (uint64_t)t->n_dims);
    for (int d = 0; d < t->n_dims; d++)
        feed_number(sha, (uint64_t)t->shape[d]);
}

static void feed_tensor(const struct ctw_identity *id, struct ctw_sha256 *sha,
                        const struct ctw_tensor *t)
{
    feed_shape(sha, t);
    int64_t n = (int64_t)((t->bytes + CTW_BLOCK_BYTES - 1) / CTW_BLOCK_BYTES);
    const struct ctw_digest *digests = id->digests + ctw_identity_first_block(id, t);
    ctw_sha256_update(sha, digests, (size_t)n * sizeof(*digests));
}

/* Computes the text once every block has been added. */
static void finish(struct ctw_identity *id)
{
    struct ctw_sha256 sha = id->sha;
    for (int64_t i = 0; i < id->n_tensors; i++)
        feed_tensor(id, &sha, id->by_name[i]);
    ctw_sha256_final_hex(&sha, id->text);
    atomic_store(&id->known, true);
}

static void outline(struct ctw_identity *id)
{
    struct ctw_sha256 sha = id->sha;
    for (int64_t i = 0; i < id->n_tensors; i++)
        feed_shape(&sha, id->by_name[i]);
    ctw_sha256_final_hex(&sha, id->outline);
}

const char *ctw_identity_outline(const struct ctw_identity *id)
{
    return id->outline;
}

void ctw_identity_wait(const struct ctw_identity *id)
{
    while (!atomic_load(&id->known)) /* for the time of digesting 1 MiB */
        sched_yield();
}

const char *ctw_identity_text(const struct ctw_identity *id)
{
    return atomic_load(&id->known) ? id->text : "";
}

double ctw_identity_share(const struct ctw_identity *id)
{
    if (atomic_load(&id->known))
        return 1;
    return 1 - (double)atomic_load(&id->n_left) / (double)id->n_blocks;
}

/* ---- blocks ---- */

/* The container's tensors are one array in the order of the files. */
static int by_place(const void *a, const void *b)
{
    const struct ctw_tensor *x = *(const struct ctw_tensor *const *)a;
    const struct ctw_tensor *y = *(const struct ctw_tensor *const *)b;
    return x < y ? -1 : x > y;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct ctw_tensor *const *)a)->name,
                  (*(const struct ctw_tensor *const *)b)->name);
}

int64_t ctw_identity_first_block(const struct ctw_identity *id, const struct ctw_tensor *t)
{
    const struct ctw_tensor **at =
        bsearch(&t, id->tensors, (size_t)id->n_tensors, sizeof(*id->tensors), by_place);
    assert(at != NULL);
    return id->first[at - id->tensors];
}

/* False: the block was added before, or another thread is adding it. */
static bool add_new(struct ctw_identity *id, int64_t block, const void *data, size_t bytes)
{
    unsigned char unread = BLOCK_UNREAD;
    assert(block >= 0 && block < id->n_blocks && bytes <= CTW_BLOCK_BYTES);
    if (!atomic_compare_exchange_strong(&id->state[block], &unread, BLOCK_COMING))
        return false;
    id->digests[block] = ctw_digest_of(data, bytes);
    atomic_store(&id->state[block], BLOCK_IN);
    if (atomic_fetch_sub(&id->n_left, 1) == 1)
        finish(id);
    return true;
}

void ctw_identity_add(struct ctw_identity *id, int64_t block, const void *data, size_t bytes)
{
    (void)add_new(id, block, data, bytes);
}

/* The tensor that holds a block. */
static int64_t tensor_of(const struct ctw_identity *id, int64_t block)
{
    /* Finds the last tensor that begins at or before `block`. */
    int64_t low = 0, high = id->n_tensors - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (id->first[middle] <= block)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Are these the bytes that were added? */
static enum ctw_status compare(const struct ctw_identity *id, const struct ctw_container *c,
                               int64_t block, const void *data, size_t bytes, struct ctw_err *err)
{
    struct ctw_digest now = ctw_digest_of(data, bytes);
    if (memcmp(&now, &id->digests[block], sizeof(now)) == 0)
        return CTW_OK;
    const struct ctw_tensor *t = id->tensors[tensor_of(id, block)];
    return ctw_fail(err, CTW_EIO,
                    "%s: the file changed while it was in use (tensor %s has different bytes); "
                    "load the model again once it is complete",
                    ctw_container_file(c, t->file), t->name);
}

enum ctw_status ctw_identity_check(struct ctw_identity *id, const struct ctw_container *c,
                                   int64_t block, const void *data, size_t bytes,
                                   struct ctw_err *err)
{
    if (add_new(id, block, data, bytes))
        return CTW_OK;
    while (atomic_load(&id->state[block]) != BLOCK_IN) /* for the time of digesting 1 MiB */
        sched_yield();
    return compare(id, c, block, data, bytes, err);
}

enum ctw_status ctw_identity_open(struct ctw_identity **out, const struct ctw_json *config,
                                  const struct ctw_json *beside,
                                  const struct ctw_tensor *const *tensors, int64_t n_tensors,
                                  struct ctw_err *err)
{
    struct ctw_identity *id = ctw_calloc(1, sizeof(*id));
    if (id == NULL)
        goto no_memory;
    id->tensors = ctw_calloc((size_t)n_tensors, sizeof(*id->tensors));
    id->by_name = ctw_calloc((size_t)n_tensors, sizeof(*id->by_name));
    id->first = ctw_calloc((size_t)n_tensors + 1, sizeof(*id->first));
    if (id->tensors == NULL || id->by_name == NULL || id->first == NULL)
        goto no_memory;
    memcpy(id->by_name, tensors, (size_t)n_tensors * sizeof(*tensors));
    qsort(id->by_name, (size_t)n_tensors, sizeof(*id->by_name), by_place);
    for (int64_t i = 0; i < n_tensors; i++)
        if (i == 0 || id->by_name[i] != id->by_name[i - 1])
            id->tensors[id->n_tensors++] = id->by_name[i];
    for (int64_t i = 0; i < id->n_tensors; i++) {
        id->by_name[i] = id->tensors[i];
        id->first[i] = id->n_blocks;
        id->n_blocks += (int64_t)((id->tensors[i]->bytes + CTW_BLOCK_BYTES - 1) / CTW_BLOCK_BYTES);
    }
    id->first[id->n_tensors] = id->n_blocks;
    qsort(id->by_name, (size_t)id->n_tensors, sizeof(*id->by_name), by_name);
    id->digests = ctw_calloc((size_t)id->n_blocks, sizeof(*id->digests));
    id->state = ctw_calloc((size_t)id->n_blocks, sizeof(*id->state));
    if (id->digests == NULL || id->state == NULL)
        goto no_memory;
    size_t bytes = 0;
    const char *source = ctw_json_source(ctw_json_root(config), &bytes);
    ctw_sha256_init(&id->sha);
    feed_text(&id->sha, source, bytes);
    if (beside != NULL) {
        source = ctw_json_source(ctw_json_root(beside), &bytes);
        feed_text(&id->sha, source, bytes);
    }
    feed_number(&id->sha, (uint64_t)id->n_tensors);
    outline(id);
    atomic_store(&id->n_left, id->n_blocks);
    if (id->n_blocks == 0)
        finish(id);
    *out = id;
    return CTW_OK;
no_memory:
    ctw_identity_close(id);
    return ctw_fail(err, CTW_ENOMEM, "out of memory for a model");
}

void ctw_identity_close(struct ctw_identity *id)
{
    if (id == NULL)
        return;
    ctw_free(id->tensors);
    ctw_free(id->by_name);
    ctw_free(id->first);
    ctw_free(id->digests);
    ctw_free(id->state);
    ctw_free(id);
}

/* ---- reading all ---- */

struct reading {
    struct ctw_identity *add; /* NULL: verify */
    const struct ctw_identity *id;
    const struct ctw_container *container;
    const atomic_bool *stop;
    char *buffers; /* one block per thread */
    uint64_t bytes;
    atomic_ullong bytes_done;
    double told_s;
    pthread_mutex_t lock;
    atomic_bool failed;
    struct ctw_err err; /* under lock: the first failure */
};

static void tell_progress(struct reading *r, uint64_t done)
{
    enum { TELL_S = 2 };
    double now_s = ctw_now_s();
    const double gib = 1024.0 * 1024 * 1024;
    if (now_s - r->told_s < TELL_S)
        return;
    r->told_s = now_s;
    ctw_info("reading the weights: %.1f of %.1f GiB", (double)done / gib, (double)r->bytes / gib);
}

static enum ctw_status read_block(struct reading *r, int64_t block, char *buffer,
                                  struct ctw_err *err)
{
    int64_t i = tensor_of(r->id, block);
    const struct ctw_tensor *t = r->id->tensors[i];
    uint64_t at = (uint64_t)(block - r->id->first[i]) * CTW_BLOCK_BYTES;
    size_t bytes = t->bytes - at < CTW_BLOCK_BYTES ? t->bytes - at : CTW_BLOCK_BYTES;
    if (r->stop != NULL && atomic_load(r->stop))
        return ctw_fail(err, CTW_ECANCELED, "reading the weights: cancelled");
    enum ctw_status st =
        ctw_container_read(r->container, t->file, t->offset + at, buffer, bytes, err);
    if (st != CTW_OK)
        return st;
    atomic_fetch_add(&r->bytes_done, bytes);
    if (r->add != NULL) {
        ctw_identity_add(r->add, block, buffer, bytes);
        return CTW_OK;
    }
    return compare(r->id, r->container, block, buffer, bytes, err);
}

static void read_blocks(void *arg, int64_t block, int thread)
{
    struct reading *r = arg;
    struct ctw_err err;
    if (atomic_load(&r->failed))
        return;
    if (read_block(r, block, r->buffers + (size_t)thread * CTW_BLOCK_BYTES, &err) != CTW_OK) {
        pthread_mutex_lock(&r->lock);
        if (!atomic_exchange(&r->failed, true))
            r->err = err;
        pthread_mutex_unlock(&r->lock);
    }
    if (thread == 0)
        tell_progress(r, atomic_load(&r->bytes_done));
}

static enum ctw_status read_all(struct reading *r, int n_threads, struct ctw_err *err)
{
    struct ctw_threads *threads = NULL;
    int64_t n = r->id->n_blocks;
    n_threads = n_threads == 0 ? ctw_cpu_count() : n_threads;
    n_threads = n < n_threads ? (int)n : n_threads;
    if (n == 0)
        return CTW_OK;
    for (int64_t i = 0; i < r->id->n_tensors; i++)
        r->bytes += r->id->tensors[i]->bytes;
    r->told_s = ctw_now_s();
    r->buffers = ctw_alloc_aligned((size_t)n_threads * CTW_BLOCK_BYTES);
    enum ctw_status st = r->buffers != NULL
                             ? ctw_threads_open(&threads, n_threads, err)
                             : ctw_fail(err, CTW_ENOMEM, "reading the weights: out of memory");
    if (st == CTW_OK) {
        pthread_mutex_init(&r->lock, NULL);
        ctw_threads_for(threads, n, read_blocks, r);
        pthread_mutex_destroy(&r->lock);
        if (atomic_load(&r->failed)) {
            *err = r->err;
            st = r->err.status;
        }
    }
    ctw_threads_close(threads);
    ctw_free_aligned(r->buffers);
    return st;
}

enum ctw_status ctw_identity_read(struct ctw_identity *id, const struct ctw_container *c,
                                  int n_threads, const atomic_bool *stop, struct ctw_err *err)
{
    struct reading r = {.add = id, .id = id, .container = c, .stop = stop};
    return read_all(&r, n_threads, err);
}

enum ctw_status ctw_identity_verify(const struct ctw_identity *id, const struct ctw_container *c,
                                    int n_threads, const atomic_bool *stop, struct ctw_err *err)
{
    struct reading r = {.id = id, .container = c, .stop = stop};
    assert(atomic_load(&id->known));
    return read_all(&r, n_threads, err);
}
