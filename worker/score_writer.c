#include "worker/score_writer.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"

struct ctw_score_writer {
    struct ctw_score_item *items;
    int n_decoders;
    FILE *file;
    struct ctw_json_writer json;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    int64_t end; /* items before it are final */
    bool closing;
    enum ctw_status st;
    /* the thread's, until it has ended */
    int64_t n_written;
    struct ctw_err err;
};

static enum ctw_status write_up_to(struct ctw_score_writer *w, int64_t end)
{
    for (; w->n_written < end; w->n_written++) {
        enum ctw_status st = ctw_score_item_write(&w->items[w->n_written], w->n_decoders, w->file,
                                                  &w->json, &w->err);
        if (st != CTW_OK)
            return st;
    }
    if (fflush(w->file) != 0)
        return ctw_fail(&w->err, CTW_EIO, "cannot write results: %s", strerror(errno));
    return CTW_OK;
}

static void *write_items(void *arg)
{
    struct ctw_score_writer *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->n_written == w->end && !w->closing)
            pthread_cond_wait(&w->changed, &w->lock);
        int64_t end = w->end;
        if (w->n_written == end)
            break;
        pthread_mutex_unlock(&w->lock);
        enum ctw_status st = write_up_to(w, end);
        pthread_mutex_lock(&w->lock);
        w->st = st;
        if (st != CTW_OK)
            break;
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum ctw_status ctw_score_writer_open(struct ctw_score_writer **out, struct ctw_score_item *items,
                                      int n_decoders, FILE *file, struct ctw_err *err)
{
    struct ctw_score_writer *w = ctw_calloc(1, sizeof(*w));
    if (w == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    w->items = items;
    w->n_decoders = n_decoders;
    w->file = file;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    if (pthread_create(&w->thread, NULL, write_items, w) != 0) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
        ctw_free(w);
        return ctw_fail(err, CTW_ENOMEM, "cannot start a thread");
    }
    *out = w;
    return CTW_OK;
}

void ctw_score_writer_advance(struct ctw_score_writer *w, int64_t end)
{
    pthread_mutex_lock(&w->lock);
    w->end = end > w->end ? end : w->end;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

bool ctw_score_writer_failed(struct ctw_score_writer *w)
{
    pthread_mutex_lock(&w->lock);
    bool failed = w->st != CTW_OK;
    pthread_mutex_unlock(&w->lock);
    return failed;
}

enum ctw_status ctw_score_writer_close(struct ctw_score_writer *w, int64_t *n_written,
                                       struct ctw_err *err)
{
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    enum ctw_status st = w->st;
    if (st != CTW_OK)
        *err = w->err;
    *n_written = w->n_written;
    ctw_json_writer_fini(&w->json);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    ctw_free(w);
    return st;
}
