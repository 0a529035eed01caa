#include "fake_device_gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "kernels/gpu_visible.h"

enum {
    GRANULE = 4096, /* bytes: the unit of allocation of the device's memory */
    COPIES = 64,    /* capacity of the queue of copies */
    LATE = 4        /* operations still accepted after the operation that failed */
};

enum kind { DEVICE, STAGE };

struct block {
    struct block *next;
    char *p;
    size_t bytes;
    enum kind kind;
};

/* Memory that operations have read since the last fence that was waited for. */
struct reading {
    struct reading *next;
    const char *p;
    size_t bytes;
    uint64_t fence; /* number of fences recorded at the last read */
    const char *what;
};

struct copy {
    char *dst;
    const char *src; /* a stage, or a peer's memory */
    size_t bytes;
    struct gpu *peer; /* NULL: a stage */
};

struct gpu {
    int device;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* guarded by lock */
    int n_open;
    pthread_t thread;
    bool stop;
    struct block *blocks;
    struct reading *readings;
    uint64_t n_fences;
    uint64_t total, used;
    struct copy copies[COPIES];
    uint64_t n_begun, n_done, bytes_begun, bytes_from_peers;
    uint64_t n_ops;
    bool failed, faulted; /* faulted: its memory can still be read */
    int n_late;           /* operations accepted since the failure */
    /* settings, read by gpu_open() */
    uint64_t alloc_us, copy_us, jitter_us, op_us, fail_op, fail_copy, nomem_op, locked, linked;
    int kind;
    bool no_path;
    const char *fail_file;
};

#define GPU(n)                                                                                     \
    {                                                                                              \
        .device = (n), .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER      \
    }
static struct gpu gpus[FAKE_GPUS] = {GPU(0), GPU(1), GPU(2), GPU(3),
                                     GPU(4), GPU(5), GPU(6), GPU(7)};
#undef GPU

void gpu_die(const char *what)
{
    fprintf(stderr, "fake GPU: %s\n", what);
    abort();
}

static void sleep_us(uint64_t us)
{
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    if (us > 0)
        nanosleep(&ts, NULL);
}

/* See fake_device_gpu.h for lists. */
static uint64_t setting(const struct gpu *g, const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    if (text == NULL)
        return otherwise;
    if (strchr(text, ',') == NULL)
        return strtoull(text, NULL, 10);
    for (int i = 0; i < g->device && text != NULL; i++) {
        text = strchr(text, ',');
        text = text != NULL ? text + 1 : NULL;
    }
    return text == NULL ? 0 : strtoull(text, NULL, 10);
}

/* ---- faults ------------------------------------------------------------------------------- */

/* Lock held. */
static bool is_failed(struct gpu *g)
{
    char own[4096];
    if (g->failed || g->fail_file == NULL)
        return g->failed;
    snprintf(own, sizeof(own), "%s.%d", g->fail_file, g->device);
    g->failed = access(g->fail_file, F_OK) == 0 || access(own, F_OK) == 0;
    return g->failed;
}

/* Lock held. */
static enum ctw_status alive(struct gpu *g, struct ctw_err *err)
{
    return is_failed(g) ? ctw_fail(err, CTW_EDEVICE, "fake: the GPU has fallen off the bus")
                        : CTW_OK;
}

enum ctw_status gpu_sync(struct gpu *g, uint64_t joined, struct ctw_err *err)
{
    pthread_mutex_lock(&g->lock);
    while (g->n_done < joined)
        pthread_cond_wait(&g->changed, &g->lock);
    enum ctw_status st = alive(g, err);
    pthread_mutex_unlock(&g->lock);
    return st;
}

enum ctw_status gpu_begin(struct gpu *g, uint64_t joined, bool *lost, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    pthread_mutex_lock(&g->lock);
    while (g->n_done < joined)
        pthread_cond_wait(&g->changed, &g->lock);
    g->n_ops++;
    if (g->n_ops == g->fail_op)
        g->failed = g->faulted = true;
    *lost = is_failed(g);
    if (g->n_ops == g->nomem_op)
        st = ctw_fail(err, CTW_ENOMEM, "fake: no memory for this operation");
    else if (*lost && ++g->n_late > LATE)
        st = alive(g, err);
    pthread_mutex_unlock(&g->lock);
    sleep_us(g->op_us);
    return st;
}

/* ---- fences ------------------------------------------------------------------------------- */

/* A GPU that has failed reads nothing more. Lock held. */
static void check_not_read(struct gpu *g, const char *p, size_t bytes, const char *what)
{
    for (const struct reading *r = g->readings; r != NULL && !g->failed; r = r->next) {
        char text[160];
        if (p >= r->p + r->bytes || r->p >= p + bytes)
            continue;
        snprintf(
            text, sizeof(text),
            "%s: %zu bytes at %p may still be read by an operation (%s): wait for a fence that was "
            "recorded after it",
            what, bytes, (const void *)p, r->what);
        gpu_die(text);
    }
}

void gpu_read(struct gpu *g, const void *p, size_t bytes, const char *what)
{
    gpu_check(g, p, bytes, what);
    if (bytes == 0)
        return;
    pthread_mutex_lock(&g->lock);
    struct reading *r = g->readings;
    while (r != NULL && (r->p != p || r->bytes != bytes))
        r = r->next;
    if (r == NULL) {
        r = ctw_calloc(1, sizeof(*r));
        if (r == NULL)
            gpu_die("the host's memory is exhausted");
        *r = (struct reading){.next = g->readings, .p = p, .bytes = bytes};
        g->readings = r;
    }
    r->fence = g->n_fences;
    r->what = what;
    pthread_mutex_unlock(&g->lock);
}

enum ctw_status gpu_fence_record(struct gpu *g, uint64_t *fence, struct ctw_err *err)
{
    pthread_mutex_lock(&g->lock);
    enum ctw_status st = alive(g, err);
    if (st == CTW_OK)
        *fence = g->n_fences++;
    pthread_mutex_unlock(&g->lock);
    return st;
}

enum ctw_status gpu_fence_wait(struct gpu *g, uint64_t fence, struct ctw_err *err)
{
    pthread_mutex_lock(&g->lock);
    for (struct reading **at = &g->readings; *at != NULL;) {
        struct reading *r = *at;
        if (r->fence > fence) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        ctw_free(r);
    }
    enum ctw_status st = alive(g, err);
    pthread_mutex_unlock(&g->lock);
    return st;
}

/* ---- memory ------------------------------------------------------------------------------- */

uint64_t gpu_memory_total(const struct gpu *g)
{
    return g->total;
}

uint64_t gpu_memory_free(struct gpu *g)
{
    pthread_mutex_lock(&g->lock);
    uint64_t bytes = is_failed(g) ? 0 : g->total - g->used;
    pthread_mutex_unlock(&g->lock);
    return bytes;
}

static uint64_t granules(uint64_t bytes)
{
    return bytes == 0 ? GRANULE : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

enum ctw_status gpu_take(struct gpu *g, uint64_t bytes, struct ctw_err *err)
{
    pthread_mutex_lock(&g->lock);
    enum ctw_status st = alive(g, err);
    if (st == CTW_OK && bytes > g->total - g->used)
        st = ctw_fail(err, CTW_ENOMEM, "fake: no memory for %llu bytes: %llu of %llu are free",
                      (unsigned long long)bytes, (unsigned long long)(g->total - g->used),
                      (unsigned long long)g->total);
    if (st == CTW_OK)
        g->used += bytes;
    pthread_mutex_unlock(&g->lock);
    return st;
}

void gpu_give(struct gpu *g, uint64_t bytes)
{
    pthread_mutex_lock(&g->lock);
    g->used -= bytes;
    pthread_mutex_unlock(&g->lock);
}

/* The block that holds p, or NULL. Lock held. */
static struct block *block_of(const struct gpu *g, const void *p, enum kind kind)
{
    for (struct block *b = g->blocks; b != NULL; b = b->next)
        if (b->kind == kind && (const char *)p >= b->p && (const char *)p < b->p + b->bytes)
            return b;
    return NULL;
}

static bool add_block(struct gpu *g, void **out, size_t bytes, enum kind kind)
{
    struct block *b = ctw_calloc(1, sizeof(*b));
    void *p = ctw_alloc_aligned(bytes);
    if (b == NULL || p == NULL) {
        ctw_free(b);
        ctw_free_aligned(p);
        return false;
    }
    memset(p, 0xff, bytes);
    *b = (struct block){.p = p, .bytes = bytes, .kind = kind};
    pthread_mutex_lock(&g->lock);
    b->next = g->blocks;
    g->blocks = b;
    pthread_mutex_unlock(&g->lock);
    *out = p;
    return true;
}

/* Removes the block from the list and frees it; returns its bytes. */
static uint64_t remove_block(struct gpu *g, void *p, enum kind kind)
{
    pthread_mutex_lock(&g->lock);
    for (uint64_t begun = g->n_begun; kind == DEVICE && g->n_done < begun;)
        pthread_cond_wait(&g->changed, &g->lock);
    struct block **at = &g->blocks;
    while (*at != NULL && ((*at)->p != p || (*at)->kind != kind))
        at = &(*at)->next;
    struct block *b = *at;
    if (b == NULL)
        gpu_die("freed what was not allocated, or twice");
    if (kind == DEVICE)
        check_not_read(g, b->p, b->bytes, "free");
    for (uint64_t i = g->n_done; i < g->n_begun; i++) {
        const char *src = g->copies[i % COPIES].src;
        if (src >= b->p && src < b->p + b->bytes)
            gpu_die("a stage was freed that is still to be copied");
    }
    *at = b->next;
    pthread_mutex_unlock(&g->lock);
    uint64_t bytes = b->bytes;
    ctw_free_aligned(b->p);
    ctw_free(b);
    return bytes;
}

enum ctw_status gpu_alloc(struct gpu *g, void **out, size_t bytes, struct ctw_err *err)
{
    bytes = granules(bytes);
    sleep_us(g->alloc_us);
    enum ctw_status st = gpu_take(g, bytes, err);
    if (st == CTW_OK && !add_block(g, out, bytes, DEVICE)) {
        gpu_give(g, bytes);
        st = ctw_fail(err, CTW_ENOMEM, "fake: the host's memory is exhausted");
    }
    return st;
}

static void check(struct gpu *g, const void *p, size_t bytes, enum kind kind, const char *what)
{
    char text[128];
    pthread_mutex_lock(&g->lock);
    const struct block *b = block_of(g, p, kind);
    bool inside = b != NULL && bytes <= (size_t)(b->p + b->bytes - (const char *)p);
    pthread_mutex_unlock(&g->lock);
    if (inside)
        return;
    snprintf(text, sizeof(text), "%s: %zu bytes at %p are %s", what, bytes, p,
             b == NULL ? "not allocated" : "more than were allocated");
    gpu_die(text);
}

void gpu_check(struct gpu *g, const void *p, size_t bytes, const char *what)
{
    if (bytes > 0)
        check(g, p, bytes, DEVICE, what);
}

void gpu_check_any(struct gpu *g, const void *p, size_t bytes, const char *what)
{
    if (p != NULL)
        gpu_check(g, p, bytes, what);
}

void gpu_check_write(struct gpu *g, const void *p, size_t bytes, const char *what)
{
    gpu_check(g, p, bytes, what);
    pthread_mutex_lock(&g->lock);
    check_not_read(g, p, bytes, what);
    pthread_mutex_unlock(&g->lock);
}

void gpu_check_host(struct gpu *g, const void *p, const char *what)
{
    char text[128];
    pthread_mutex_lock(&g->lock);
    bool device = block_of(g, p, DEVICE) != NULL;
    pthread_mutex_unlock(&g->lock);
    snprintf(text, sizeof(text), "%s is the GPU's memory", what);
    if (device)
        gpu_die(text);
}

/* ---- the copy engine ---------------------------------------------------------------------- */

/* Does a copy that has not ended read (`reading`) or write these bytes? */
static bool is_copying(struct gpu *g, const char *p, size_t bytes, bool reading)
{
    bool any = false;
    pthread_mutex_lock(&g->lock);
    for (uint64_t i = g->n_done; i < g->n_begun; i++) {
        const struct copy *c = &g->copies[i % COPIES];
        const char *at = reading ? c->src : c->dst;
        any |= p < at + c->bytes && at < p + bytes;
    }
    pthread_mutex_unlock(&g->lock);
    return any;
}

static bool is_lost(struct gpu *g)
{
    pthread_mutex_lock(&g->lock);
    bool lost = is_failed(g) && !g->faulted;
    pthread_mutex_unlock(&g->lock);
    return lost;
}

/* With jitter, the bytes come late and the second half first. */
static void run_copy(const struct gpu *g, const struct copy *c, unsigned *seed)
{
    size_t half = g->jitter_us > 0 ? c->bytes / 2 : 0;
    sleep_us(c->peer != NULL && gpu_link(g, c->peer) == CTW_LINK_HOST ? 2 * g->copy_us
                                                                      : g->copy_us);
    memcpy(c->dst + half, c->src + half, c->bytes - half);
    if (half > 0)
        sleep_us((uint64_t)rand_r(seed) % g->jitter_us);
    memcpy(c->dst, c->src, half);
}

static void *copy_engine(void *arg)
{
    struct gpu *g = arg;
    unsigned seed = (unsigned)g->device;
    pthread_mutex_lock(&g->lock);
    for (;;) {
        while (!g->stop && g->n_done == g->n_begun)
            pthread_cond_wait(&g->changed, &g->lock);
        if (g->n_done == g->n_begun)
            break;
        const struct copy c = g->copies[g->n_done % COPIES];
        if (g->n_done + 1 == g->fail_copy)
            g->failed = true;
        bool failed = is_failed(g);
        pthread_mutex_unlock(&g->lock);
        bool peer_lost = c.peer != NULL && is_lost(c.peer);
        if (!failed && !peer_lost)
            run_copy(g, &c, &seed);
        pthread_mutex_lock(&g->lock);
        g->failed |= peer_lost; /* as with CUDA: a copy's error is the stream's */
        g->n_done++;
        pthread_cond_broadcast(&g->changed);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

enum ctw_status gpu_stage_alloc(struct gpu *g, void **out, size_t bytes, struct ctw_err *err)
{
    enum ctw_status st = gpu_sync(g, 0, err);
    if (st == CTW_OK && g->locked > 0 && bytes > g->locked)
        return ctw_fail(err, CTW_ENOMEM, "fake: %zu bytes of host memory cannot be locked", bytes);
    if (st == CTW_OK && !add_block(g, out, bytes, STAGE))
        st = ctw_fail(err, CTW_ENOMEM, "fake: no host memory for %zu bytes", bytes);
    return st;
}

void gpu_stage_free(struct gpu *g, void *p)
{
    for (int i = 0; i < FAKE_GPUS; i++)
        if (&gpus[i] != g && is_copying(&gpus[i], p, 1, true))
            gpu_die("a stage was freed that another GPU is still to copy");
    (void)remove_block(g, p, STAGE);
}

static enum ctw_status begin_copy(struct gpu *g, const struct copy *copy, uint64_t *ticket,
                                  struct ctw_err *err)
{
    pthread_mutex_lock(&g->lock);
    while (g->n_begun - g->n_done == COPIES)
        pthread_cond_wait(&g->changed, &g->lock);
    enum ctw_status st = alive(g, err);
    if (st == CTW_OK) {
        g->copies[g->n_begun % COPIES] = *copy;
        *ticket = g->n_begun++;
        g->bytes_begun += copy->bytes;
        g->bytes_from_peers += copy->peer != NULL ? copy->bytes : 0;
        pthread_cond_broadcast(&g->changed);
    }
    pthread_mutex_unlock(&g->lock);
    return st;
}

/* The GPU that allocated the stage: every GPU may copy from it. */
static struct gpu *stage_owner(struct gpu *g, const void *stage)
{
    for (int i = 0; i < FAKE_GPUS; i++) {
        pthread_mutex_lock(&gpus[i].lock);
        bool is_its = block_of(&gpus[i], stage, STAGE) != NULL;
        pthread_mutex_unlock(&gpus[i].lock);
        if (is_its)
            return &gpus[i];
    }
    return g;
}

/* Ends the process if another GPU still copies from memory that is to be written. */
static void check_no_peer_reads(struct gpu *g, const void *p, size_t bytes, const char *what)
{
    char text[128];
    for (int i = 0; i < FAKE_GPUS; i++) {
        if (&gpus[i] == g || !is_copying(&gpus[i], p, bytes, true))
            continue;
        snprintf(text, sizeof(text), "%s: GPU %d still copies from there", what, i);
        gpu_die(text);
    }
}

enum ctw_status gpu_upload_begin(struct gpu *g, void *dst, const void *stage, size_t bytes,
                                 uint64_t *ticket, struct ctw_err *err)
{
    const struct copy copy = {.dst = dst, .src = stage, .bytes = bytes};
    check(stage_owner(g, stage), stage, bytes, STAGE, "upload_begin: the stage");
    gpu_check_write(g, dst, bytes, "upload_begin: the target");
    check_no_peer_reads(g, dst, bytes, "upload_begin: the target");
    return begin_copy(g, &copy, ticket, err);
}

enum ctw_status gpu_peer_begin(struct gpu *g, void *dst, struct gpu *from, const void *src,
                               size_t bytes, uint64_t *ticket, struct ctw_err *err)
{
    const struct copy copy = {.dst = dst, .src = src, .bytes = bytes, .peer = from};
    gpu_check(from, src, bytes, "peer_begin: the source");
    gpu_check_write(g, dst, bytes, "peer_begin: the target");
    check_no_peer_reads(g, dst, bytes, "peer_begin: the target");
    enum ctw_status st = gpu_sync(from, 0, err);
    if (st != CTW_OK)
        return st;
    if (is_copying(from, src, bytes, false))
        gpu_die("peer_begin: the source is still being written: wait for its upload");
    return begin_copy(g, &copy, ticket, err);
}

enum ctw_link gpu_link(const struct gpu *a, const struct gpu *b)
{
    if (a != b && (a->no_path || b->no_path))
        return CTW_LINK_HOST;
    return a != b && a->linked > 0 && b->linked > 0 ? CTW_LINK_FASTER : CTW_LINK_DIRECT;
}

enum ctw_status gpu_upload_wait(struct gpu *g, uint64_t ticket, struct ctw_err *err)
{
    pthread_mutex_lock(&g->lock);
    while (g->n_done <= ticket)
        pthread_cond_wait(&g->changed, &g->lock);
    enum ctw_status st = alive(g, err);
    pthread_mutex_unlock(&g->lock);
    return st;
}

uint64_t gpu_uploads_begun(struct gpu *g)
{
    pthread_mutex_lock(&g->lock);
    uint64_t n = g->n_begun;
    pthread_mutex_unlock(&g->lock);
    return n;
}

void gpu_describe(struct gpu *g, char *buf, size_t cap)
{
    pthread_mutex_lock(&g->lock);
    snprintf(buf, cap, "uploads %llu\nuploaded bytes %llu\nbytes from peers %llu\n",
             (unsigned long long)g->n_begun, (unsigned long long)g->bytes_begun,
             (unsigned long long)g->bytes_from_peers);
    pthread_mutex_unlock(&g->lock);
}

static size_t block_bytes(struct gpu *g, const void *p)
{
    pthread_mutex_lock(&g->lock);
    const struct block *b = block_of(g, p, DEVICE);
    size_t bytes = b != NULL ? b->bytes : 0;
    pthread_mutex_unlock(&g->lock);
    return bytes;
}

void gpu_free(struct gpu *g, void *p)
{
    size_t bytes = block_bytes(g, p);
    for (int i = 0; i < FAKE_GPUS; i++)
        if (&gpus[i] != g && is_copying(&gpus[i], p, bytes, true))
            gpu_die("free: another GPU still copies this memory");
    gpu_give(g, remove_block(g, p, DEVICE));
}

/* ---- open and close ----------------------------------------------------------------------- */

enum ctw_status gpu_count(int *n, struct ctw_err *err)
{
    const char *how = getenv("CTW_FAKE_GPU_OPEN");
    if (how != NULL && strcmp(how, "none") == 0)
        return ctw_fail(err, CTW_EUNSUP, "no GPU: the fake driver shows none");
    if (how != NULL && strcmp(how, "broken") == 0)
        return ctw_fail(err, CTW_EDEVICE, "fake: the GPU does not answer");
    *n = (int)setting(&gpus[0], "CTW_FAKE_GPU_COUNT", 2);
    *n = *n < FAKE_GPUS ? *n : FAKE_GPUS;
    return CTW_OK;
}

int gpu_kind(const struct gpu *g)
{
    return g->kind;
}

enum ctw_status gpu_open(struct gpu **out, int device, struct ctw_err *err)
{
    int n;
    enum ctw_status st = gpu_count(&n, err);
    if (st == CTW_OK && (device < 0 || device >= n))
        st = ctw_gpu_missing(device, n, false, err);
    if (st != CTW_OK)
        return st;
    struct gpu *g = &gpus[device];
    pthread_mutex_lock(&g->lock);
    if (g->n_open == 0) {
        g->total = setting(g, "CTW_FAKE_GPU_MEMORY", 256 << 20);
        g->alloc_us = setting(g, "CTW_FAKE_GPU_ALLOC_US", 0);
        g->copy_us = setting(g, "CTW_FAKE_GPU_COPY_US", 1000);
        g->jitter_us = setting(g, "CTW_FAKE_GPU_JITTER_US", 0);
        g->op_us = setting(g, "CTW_FAKE_GPU_OP_US", 0);
        g->locked = setting(g, "CTW_FAKE_GPU_LOCKED", 0);
        g->linked = setting(g, "CTW_FAKE_GPU_LINKED", 1);
        g->fail_op = setting(g, "CTW_FAKE_GPU_FAIL_OP", 0);
        g->fail_copy = setting(g, "CTW_FAKE_GPU_FAIL_COPY", 0);
        g->nomem_op = setting(g, "CTW_FAKE_GPU_NOMEM_OP", 0);
        g->no_path = setting(g, "CTW_FAKE_GPU_NO_PATH", 0) != 0;
        g->kind = (int)setting(g, "CTW_FAKE_GPU_KIND", 0);
        g->fail_file = getenv("CTW_FAKE_GPU_FAIL_FILE");
        g->stop = false;
        g->failed = g->failed && setting(g, "CTW_FAKE_GPU_REPAIR", 0) == 0;
        g->faulted = g->faulted && g->failed;
        g->n_late = 0;
        if (pthread_create(&g->thread, NULL, copy_engine, g) != 0)
            st = ctw_fail(err, CTW_ENOMEM, "fake: cannot start a thread");
    }
    g->n_open += st == CTW_OK;
    pthread_mutex_unlock(&g->lock);
    *out = g;
    return st;
}

void gpu_close(struct gpu *g)
{
    pthread_mutex_lock(&g->lock);
    bool last = --g->n_open == 0;
    g->stop = last;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    if (!last)
        return;
    pthread_join(g->thread, NULL);
    pthread_mutex_lock(&g->lock);
    if (g->used != 0)
        gpu_die("memory was not given back");
    while (g->readings != NULL) { /* left only by a failed GPU */
        struct reading *r = g->readings;
        g->readings = r->next;
        ctw_free(r);
    }
    /* The counters of the next open in this process start at 0; a failed GPU stays failed. */
    g->n_ops = g->n_begun = g->n_done = g->bytes_begun = g->bytes_from_peers = 0;
    pthread_mutex_unlock(&g->lock);
}
