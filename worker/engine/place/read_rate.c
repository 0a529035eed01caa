#include "worker/engine/place/read_rate.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/threads.h"

enum { READERS = 4, SAMPLES = 64, SAMPLE_BYTES = 1 << 20 };
static const double most_s = 0.5;

struct sampling {
    const struct ctw_container *container;
    uint64_t bytes; /* of all tensors */
    char *buffers;  /* [READERS][SAMPLE_BYTES] */
    double began_s;
    atomic_ullong n_read; /* bytes */
};

/* The tensor that holds byte *at of all tensors, one after another; *at becomes the byte in it. */
static const struct ctw_tensor *tensor_at(const struct ctw_container *c, uint64_t *at)
{
    int64_t i = 0;
    while (*at >= ctw_container_at(c, i)->bytes)
        *at -= ctw_container_at(c, i++)->bytes;
    return ctw_container_at(c, i);
}

static void read_sample(void *arg, int64_t i, int thread)
{
    struct sampling *s = arg;
    struct ctw_err err;
    if (ctw_now_s() - s->began_s > most_s)
        return;
    /* In an order that no read-ahead guesses. */
    uint64_t at = s->bytes / SAMPLES * (uint64_t)(i * 29 % SAMPLES);
    const struct ctw_tensor *t = tensor_at(s->container, &at);
    size_t bytes = t->bytes - at < SAMPLE_BYTES ? t->bytes - at : SAMPLE_BYTES;
    if (ctw_container_read(s->container, t->file, t->offset + at,
                           s->buffers + (size_t)thread * SAMPLE_BYTES, bytes, &err) == CTW_OK)
        atomic_fetch_add(&s->n_read, bytes);
}

double ctw_read_rate(const struct ctw_container *c)
{
    struct sampling s = {.container = c, .began_s = ctw_now_s()};
    struct ctw_threads *threads = NULL;
    for (int64_t i = 0; i < ctw_container_count(c); i++)
        s.bytes += ctw_container_at(c, i)->bytes;
    s.buffers = ctw_alloc_aligned((size_t)READERS * SAMPLE_BYTES);
    if (s.bytes > 0 && s.buffers != NULL && ctw_threads_open(&threads, READERS, NULL) == CTW_OK)
        ctw_threads_for(threads, SAMPLES, read_sample, &s);
    double took_s = ctw_now_s() - s.began_s;
    ctw_threads_close(threads);
    ctw_free_aligned(s.buffers);
    return took_s > 0 ? (double)atomic_load(&s.n_read) / took_s : 0;
}
