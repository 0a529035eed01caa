#include "worker/cli/score_writer.h"

#include <pthread.h>
#include <unistd.h>

#include "base/mem.h"

enum { WRITE_BYTES = 256 << 10, MAX_BLOCKS = 2 };

struct ctw_score_writer {
    int n_decoders;
    struct ctw_output_file *file;
    int wake_fd;
    struct ctw_json_writer lines; /* formatted, but not yet written */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    struct ctw_score_block *first, *last; /* oldest first */
    int n_blocks;
    bool closing;
    enum ctw_status st;
    /* used by the thread only, until it has ended */
    int64_t n_scored;
    struct ctw_err err;
};

/* Writes the lines of items from b->n_written on, and counts the lines written whole. */
static enum ctw_status flush(struct ctw_score_writer *w, struct ctw_score_block *b)
{
    const char *text;
    size_t bytes;
    enum ctw_status st = ctw_json_writer_text(&w->lines, &text, &bytes, &w->err);
    if (st != CTW_OK)
        return st;
    int64_t before = w->file->n_lines;
    st = ctw_output_file_write(w->file, text, bytes, &w->err);
    for (int64_t n = w->file->n_lines - before; n > 0; n--, b->n_written++)
        w->n_scored += b->items[b->n_written].seq.n_tok - b->items[b->n_written].seq.first;
    ctw_json_writer_reset(&w->lines);
    return st;
}

static enum ctw_status write_up_to(struct ctw_score_writer *w, struct ctw_score_block *b,
                                   int64_t end)
{
    enum ctw_status st = CTW_OK;
    for (int64_t i = b->n_written; i < end; i++) {
        st = ctw_score_item_write(&b->items[i], w->n_decoders, &w->lines, &w->err);
        if (st != CTW_OK)
            break;
        if (w->lines.bytes >= WRITE_BYTES && (st = flush(w, b)) != CTW_OK)
            return st;
    }
    struct ctw_err first = w->err;
    enum ctw_status flushed = flush(w, b);
    if (st != CTW_OK)
        w->err = first;
    return st != CTW_OK ? st : flushed;
}

/* The oldest block, if it can be written or freed; under lock. */
static struct ctw_score_block *waiting(const struct ctw_score_writer *w)
{
    struct ctw_score_block *b = w->first;
    return b != NULL && (b->n_written < b->n_final || b->done) ? b : NULL;
}

static void *write_blocks(void *arg)
{
    struct ctw_score_writer *w = arg;
    struct ctw_score_block *b;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while ((b = waiting(w)) == NULL && !w->closing)
            pthread_cond_wait(&w->changed, &w->lock);
        if (b == NULL)
            break;
        int64_t end = b->n_final;
        pthread_mutex_unlock(&w->lock);
        enum ctw_status st = write_up_to(w, b, end);
        pthread_mutex_lock(&w->lock);
        w->st = st;
        if (st != CTW_OK) {
            (void)!write(w->wake_fd, "", 1);
            break;
        }
        if (b->done && b->n_written == b->n_final) {
            w->first = b->next;
            w->n_blocks--;
            ctw_score_block_free(b);
        }
        pthread_cond_broadcast(&w->changed);
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum ctw_status ctw_score_writer_open(struct ctw_score_writer **out, int n_decoders,
                                      struct ctw_output_file *file, int wake_fd,
                                      struct ctw_err *err)
{
    struct ctw_score_writer *w = ctw_calloc(1, sizeof(*w));
    if (w == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    w->n_decoders = n_decoders;
    w->file = file;
    w->wake_fd = wake_fd;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    if (pthread_create(&w->thread, NULL, write_blocks, w) != 0) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
        ctw_free(w);
        return ctw_fail(err, CTW_ENOMEM, "cannot start a thread");
    }
    *out = w;
    return CTW_OK;
}

void ctw_score_writer_begin(struct ctw_score_writer *w, struct ctw_score_block *block)
{
    pthread_mutex_lock(&w->lock);
    while (w->n_blocks == MAX_BLOCKS && w->st == CTW_OK)
        pthread_cond_wait(&w->changed, &w->lock);
    if (w->first == NULL)
        w->first = block;
    else
        w->last->next = block;
    w->last = block;
    w->n_blocks++;
    pthread_mutex_unlock(&w->lock);
}

void ctw_score_writer_advance(struct ctw_score_writer *w, int64_t end)
{
    pthread_mutex_lock(&w->lock);
    w->last->n_final = end;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void ctw_score_writer_finish(struct ctw_score_writer *w)
{
    pthread_mutex_lock(&w->lock);
    w->last->n_final = w->last->n_items;
    w->last->done = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

bool ctw_score_writer_failed(struct ctw_score_writer *w)
{
    pthread_mutex_lock(&w->lock);
    bool failed = w->st != CTW_OK;
    pthread_mutex_unlock(&w->lock);
    return failed;
}

enum ctw_status ctw_score_writer_close(struct ctw_score_writer *w, int64_t *n_scored,
                                       struct ctw_err *err)
{
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    enum ctw_status st = w->st;
    if (st != CTW_OK)
        *err = w->err;
    *n_scored = w->n_scored;
    for (struct ctw_score_block *b = w->first, *next; b != NULL; b = next) {
        next = b->next;
        ctw_score_block_free(b);
    }
    ctw_json_writer_fini(&w->lines);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    ctw_free(w);
    return st;
}
