#include "fake_device_gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

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
    const char *stage;
    size_t bytes;
};

static struct {
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
    uint64_t n_begun, n_done, bytes_begun;
    uint64_t n_ops;
    bool failed;
    int n_late; /* operations accepted since the failure */
    /* settings, read by gpu_open() */
    uint64_t alloc_us, copy_us, op_us, fail_op, fail_copy, nomem_op;
    const char *fail_file;
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

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

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

/* ---- faults ------------------------------------------------------------------------------- */

/* Lock held. */
static bool is_failed(void)
{
    if (!gpu.failed && gpu.fail_file != NULL && access(gpu.fail_file, F_OK) == 0)
        gpu.failed = true;
    return gpu.failed;
}

/* Lock held. */
static enum ctw_status alive(struct ctw_err *err)
{
    return is_failed() ? ctw_fail(err, CTW_EDEVICE, "fake: the GPU has fallen off the bus")
                       : CTW_OK;
}

enum ctw_status gpu_sync(uint64_t joined, struct ctw_err *err)
{
    pthread_mutex_lock(&gpu.lock);
    while (gpu.n_done < joined)
        pthread_cond_wait(&gpu.changed, &gpu.lock);
    enum ctw_status st = alive(err);
    pthread_mutex_unlock(&gpu.lock);
    return st;
}

enum ctw_status gpu_begin(uint64_t joined, bool *lost, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    pthread_mutex_lock(&gpu.lock);
    while (gpu.n_done < joined)
        pthread_cond_wait(&gpu.changed, &gpu.lock);
    gpu.n_ops++;
    if (gpu.n_ops == gpu.fail_op)
        gpu.failed = true;
    *lost = is_failed();
    if (gpu.n_ops == gpu.nomem_op)
        st = ctw_fail(err, CTW_ENOMEM, "fake: no memory for this operation");
    else if (*lost && ++gpu.n_late > LATE)
        st = alive(err);
    pthread_mutex_unlock(&gpu.lock);
    sleep_us(gpu.op_us);
    return st;
}

/* ---- fences ------------------------------------------------------------------------------- */

/* A GPU that has failed reads nothing more. Lock held. */
static void check_not_read(const char *p, size_t bytes, const char *what)
{
    for (const struct reading *r = gpu.readings; r != NULL && !gpu.failed; r = r->next) {
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

void gpu_read(const void *p, size_t bytes, const char *what)
{
    gpu_check(p, bytes, what);
    if (bytes == 0)
        return;
    pthread_mutex_lock(&gpu.lock);
    struct reading *r = gpu.readings;
    while (r != NULL && (r->p != p || r->bytes != bytes))
        r = r->next;
    if (r == NULL) {
        r = ctw_calloc(1, sizeof(*r));
        if (r == NULL)
            gpu_die("the host's memory is exhausted");
        *r = (struct reading){.next = gpu.readings, .p = p, .bytes = bytes};
        gpu.readings = r;
    }
    r->fence = gpu.n_fences;
    r->what = what;
    pthread_mutex_unlock(&gpu.lock);
}

enum ctw_status gpu_fence_record(uint64_t *fence, struct ctw_err *err)
{
    pthread_mutex_lock(&gpu.lock);
    enum ctw_status st = alive(err);
    if (st == CTW_OK)
        *fence = gpu.n_fences++;
    pthread_mutex_unlock(&gpu.lock);
    return st;
}

enum ctw_status gpu_fence_wait(uint64_t fence, struct ctw_err *err)
{
    pthread_mutex_lock(&gpu.lock);
    for (struct reading **at = &gpu.readings; *at != NULL;) {
        struct reading *r = *at;
        if (r->fence > fence) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        ctw_free(r);
    }
    enum ctw_status st = alive(err);
    pthread_mutex_unlock(&gpu.lock);
    return st;
}

/* ---- memory ------------------------------------------------------------------------------- */

uint64_t gpu_memory_total(void)
{
    return gpu.total;
}

uint64_t gpu_memory_free(void)
{
    pthread_mutex_lock(&gpu.lock);
    uint64_t bytes = is_failed() ? 0 : gpu.total - gpu.used;
    pthread_mutex_unlock(&gpu.lock);
    return bytes;
}

static uint64_t granules(uint64_t bytes)
{
    return bytes == 0 ? GRANULE : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

enum ctw_status gpu_take(uint64_t bytes, struct ctw_err *err)
{
    pthread_mutex_lock(&gpu.lock);
    enum ctw_status st = alive(err);
    if (st == CTW_OK && bytes > gpu.total - gpu.used)
        st = ctw_fail(err, CTW_ENOMEM, "fake: no memory for %llu bytes: %llu of %llu are free",
                      (unsigned long long)bytes, (unsigned long long)(gpu.total - gpu.used),
                      (unsigned long long)gpu.total);
    if (st == CTW_OK)
        gpu.used += bytes;
    pthread_mutex_unlock(&gpu.lock);
    return st;
}

void gpu_give(uint64_t bytes)
{
    pthread_mutex_lock(&gpu.lock);
    gpu.used -= bytes;
    pthread_mutex_unlock(&gpu.lock);
}

/* The block that holds p, or NULL. Lock held. */
static struct block *block_of(const void *p, enum kind kind)
{
    for (struct block *b = gpu.blocks; b != NULL; b = b->next)
        if (b->kind == kind && (const char *)p >= b->p && (const char *)p < b->p + b->bytes)
            return b;
    return NULL;
}

static bool add_block(void **out, size_t bytes, enum kind kind)
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
    pthread_mutex_lock(&gpu.lock);
    b->next = gpu.blocks;
    gpu.blocks = b;
    pthread_mutex_unlock(&gpu.lock);
    *out = p;
    return true;
}

/* Removes the block from the list and frees it; returns its bytes. */
static uint64_t remove_block(void *p, enum kind kind)
{
    pthread_mutex_lock(&gpu.lock);
    for (uint64_t begun = gpu.n_begun; kind == DEVICE && gpu.n_done < begun;)
        pthread_cond_wait(&gpu.changed, &gpu.lock);
    struct block **at = &gpu.blocks;
    while (*at != NULL && ((*at)->p != p || (*at)->kind != kind))
        at = &(*at)->next;
    struct block *b = *at;
    if (b == NULL)
        gpu_die("freed what was not allocated, or twice");
    if (kind == DEVICE)
        check_not_read(b->p, b->bytes, "free");
    for (uint64_t i = gpu.n_done; i < gpu.n_begun; i++) {
        const char *stage = gpu.copies[i % COPIES].stage;
        if (stage >= b->p && stage < b->p + b->bytes)
            gpu_die("a stage was freed that is still to be copied");
    }
    *at = b->next;
    pthread_mutex_unlock(&gpu.lock);
    uint64_t bytes = b->bytes;
    ctw_free_aligned(b->p);
    ctw_free(b);
    return bytes;
}

enum ctw_status gpu_alloc(void **out, size_t bytes, struct ctw_err *err)
{
    bytes = granules(bytes);
    sleep_us(gpu.alloc_us);
    enum ctw_status st = gpu_take(bytes, err);
    if (st == CTW_OK && !add_block(out, bytes, DEVICE)) {
        gpu_give(bytes);
        st = ctw_fail(err, CTW_ENOMEM, "fake: the host's memory is exhausted");
    }
    return st;
}

void gpu_free(void *p)
{
    gpu_give(remove_block(p, DEVICE));
}

static void check(const void *p, size_t bytes, enum kind kind, const char *what)
{
    char text[128];
    pthread_mutex_lock(&gpu.lock);
    const struct block *b = block_of(p, kind);
    bool inside = b != NULL && bytes <= (size_t)(b->p + b->bytes - (const char *)p);
    pthread_mutex_unlock(&gpu.lock);
    if (inside)
        return;
    snprintf(text, sizeof(text), "%s: %zu bytes at %p are %s", what, bytes, p,
             b == NULL ? "not allocated" : "more than were allocated");
    gpu_die(text);
}

void gpu_check(const void *p, size_t bytes, const char *what)
{
    if (bytes > 0)
        check(p, bytes, DEVICE, what);
}

void gpu_check_write(const void *p, size_t bytes, const char *what)
{
    gpu_check(p, bytes, what);
    pthread_mutex_lock(&gpu.lock);
    check_not_read(p, bytes, what);
    pthread_mutex_unlock(&gpu.lock);
}

void gpu_check_host(const void *p, const char *what)
{
    char text[128];
    pthread_mutex_lock(&gpu.lock);
    bool device = block_of(p, DEVICE) != NULL;
    pthread_mutex_unlock(&gpu.lock);
    snprintf(text, sizeof(text), "%s is the GPU's memory", what);
    if (device)
        gpu_die(text);
}

/* ---- the copy engine ---------------------------------------------------------------------- */

static void *copy_engine(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&gpu.lock);
    for (;;) {
        while (!gpu.stop && gpu.n_done == gpu.n_begun)
            pthread_cond_wait(&gpu.changed, &gpu.lock);
        if (gpu.n_done == gpu.n_begun)
            break;
        const struct copy c = gpu.copies[gpu.n_done % COPIES];
        if (gpu.n_done + 1 == gpu.fail_copy)
            gpu.failed = true;
        bool failed = is_failed();
        pthread_mutex_unlock(&gpu.lock);
        sleep_us(gpu.copy_us);
        if (!failed)
            memcpy(c.dst, c.stage, c.bytes);
        pthread_mutex_lock(&gpu.lock);
        gpu.n_done++;
        pthread_cond_broadcast(&gpu.changed);
    }
    pthread_mutex_unlock(&gpu.lock);
    return NULL;
}

enum ctw_status gpu_stage_alloc(void **out, size_t bytes, struct ctw_err *err)
{
    enum ctw_status st = gpu_sync(0, err);
    if (st == CTW_OK && !add_block(out, bytes, STAGE))
        st = ctw_fail(err, CTW_ENOMEM, "fake: no host memory for %zu bytes", bytes);
    return st;
}

void gpu_stage_free(void *p)
{
    (void)remove_block(p, STAGE);
}

enum ctw_status gpu_upload_begin(void *dst, const void *stage, size_t bytes, uint64_t *ticket,
                                 struct ctw_err *err)
{
    check(stage, bytes, STAGE, "upload_begin: the stage");
    gpu_check_write(dst, bytes, "upload_begin: the target");
    pthread_mutex_lock(&gpu.lock);
    while (gpu.n_begun - gpu.n_done == COPIES)
        pthread_cond_wait(&gpu.changed, &gpu.lock);
    enum ctw_status st = alive(err);
    if (st == CTW_OK) {
        gpu.copies[gpu.n_begun % COPIES] =
            (struct copy){.dst = dst, .stage = stage, .bytes = bytes};
        *ticket = gpu.n_begun++;
        gpu.bytes_begun += bytes;
        pthread_cond_broadcast(&gpu.changed);
    }
    pthread_mutex_unlock(&gpu.lock);
    return st;
}

enum ctw_status gpu_upload_wait(uint64_t ticket, struct ctw_err *err)
{
    pthread_mutex_lock(&gpu.lock);
    while (gpu.n_done <= ticket)
        pthread_cond_wait(&gpu.changed, &gpu.lock);
    enum ctw_status st = alive(err);
    pthread_mutex_unlock(&gpu.lock);
    return st;
}

uint64_t gpu_uploads_begun(void)
{
    pthread_mutex_lock(&gpu.lock);
    uint64_t n = gpu.n_begun;
    pthread_mutex_unlock(&gpu.lock);
    return n;
}

uint64_t gpu_bytes_uploaded(void)
{
    pthread_mutex_lock(&gpu.lock);
    uint64_t bytes = gpu.bytes_begun;
    pthread_mutex_unlock(&gpu.lock);
    return bytes;
}

/* ---- open and close ----------------------------------------------------------------------- */

enum ctw_status gpu_open(struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    const char *how = getenv("CTW_FAKE_GPU_OPEN");
    if (how != NULL && strcmp(how, "none") == 0)
        return ctw_fail(err, CTW_EUNSUP, "no GPU: the fake driver shows none");
    if (how != NULL && strcmp(how, "broken") == 0)
        return ctw_fail(err, CTW_EDEVICE, "fake: the GPU does not answer");
    pthread_mutex_lock(&gpu.lock);
    if (gpu.n_open == 0) {
        gpu.total = setting("CTW_FAKE_GPU_MEMORY", 256 << 20);
        gpu.alloc_us = setting("CTW_FAKE_GPU_ALLOC_US", 0);
        gpu.copy_us = setting("CTW_FAKE_GPU_COPY_US", 1000);
        gpu.op_us = setting("CTW_FAKE_GPU_OP_US", 0);
        gpu.fail_op = setting("CTW_FAKE_GPU_FAIL_OP", 0);
        gpu.fail_copy = setting("CTW_FAKE_GPU_FAIL_COPY", 0);
        gpu.nomem_op = setting("CTW_FAKE_GPU_NOMEM_OP", 0);
        gpu.fail_file = getenv("CTW_FAKE_GPU_FAIL_FILE");
        gpu.stop = false;
        if (pthread_create(&gpu.thread, NULL, copy_engine, NULL) != 0)
            st = ctw_fail(err, CTW_ENOMEM, "fake: cannot start a thread");
    }
    gpu.n_open += st == CTW_OK;
    pthread_mutex_unlock(&gpu.lock);
    return st;
}

void gpu_close(void)
{
    pthread_mutex_lock(&gpu.lock);
    bool last = --gpu.n_open == 0;
    gpu.stop = last;
    pthread_cond_broadcast(&gpu.changed);
    pthread_mutex_unlock(&gpu.lock);
    if (!last)
        return;
    pthread_join(gpu.thread, NULL);
    pthread_mutex_lock(&gpu.lock);
    if (gpu.used != 0)
        gpu_die("memory was not given back");
    while (gpu.readings != NULL) { /* left only by a failed GPU */
        struct reading *r = gpu.readings;
        gpu.readings = r->next;
        ctw_free(r);
    }
    /* The counters of the next open in this process start at 0; a failed GPU stays failed. */
    gpu.n_ops = gpu.n_begun = gpu.n_done = gpu.bytes_begun = 0;
    pthread_mutex_unlock(&gpu.lock);
}
