#include "worker/cli/score_reader.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum {
    READ_BYTES = 256 << 10,
    LINGER_MS = 200, /* how long lines from a pipe wait for further lines */
};

struct ctw_score_reader {
    struct ctw_score_input input;
    int64_t file_bytes; /* 0: not a regular file */
    pthread_t thread;
    /* used by the thread only */
    char *text; /* bytes from..to-1 have been read, but not taken */
    size_t from, to, scanned, capacity;
    int64_t n_lines, n_bytes, n_tok; /* of all lines taken */
    bool at_end;
    /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct ctw_score_block *block; /* being filled; may be NULL */
    int64_t first_ms;              /* when the block's first line arrived */
    bool full, ripe; /* the next item does not fit; the block has waited long enough */
    bool ended, closing;
    int64_t pass_tokens;
    enum ctw_status st; /* with err: why reading ended */
    struct ctw_err err;
};

/* How long to wait for input before the block is handed out unfilled; -1: no limit. */
static int patience_ms(struct ctw_score_reader *r)
{
    pthread_mutex_lock(&r->lock);
    int64_t left = r->first_ms + LINGER_MS - ctw_now_ms();
    bool waits = r->file_bytes == 0 && r->block != NULL && !r->ripe;
    pthread_mutex_unlock(&r->lock);
    return !waits ? -1 : left < 0 ? 0 : (int)left;
}

static void ripen(struct ctw_score_reader *r)
{
    pthread_mutex_lock(&r->lock);
    r->ripe = r->block != NULL;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* Waits for input; false: reading must stop. */
static bool wait_for_input(struct ctw_score_reader *r)
{
    struct pollfd fds[] = {{.fd = r->input.fd, .events = POLLIN},
                           {.fd = r->input.stop_fd, .events = POLLIN}};
    for (;;) {
        int n = poll(fds, CTW_COUNT(fds), patience_ms(r));
        if (n == 0)
            ripen(r);
        else if (n > 0)
            return fds[1].revents == 0;
        else if (errno != EINTR && errno != EAGAIN)
            return true; /* read() reports the error */
    }
}

/* Appends more input to the text, or sets at_end. */
static enum ctw_status fill(struct ctw_score_reader *r, struct ctw_err *err)
{
    memmove(r->text, r->text + r->from, r->to - r->from);
    r->to -= r->from;
    r->scanned -= r->from;
    r->from = 0;
    if (r->capacity - r->to < READ_BYTES) {
        char *grown = ctw_realloc(r->text, 2 * r->capacity, 1);
        if (grown == NULL)
            return ctw_fail(err, CTW_ENOMEM, "line %lld: out of memory", (long long)r->n_lines + 1);
        r->text = grown;
        r->capacity *= 2;
    }
    if (!wait_for_input(r)) {
        r->at_end = true;
        r->to = 0; /* drop an incomplete line */
        r->scanned = 0;
        return CTW_OK;
    }
    ssize_t n = read(r->input.fd, r->text + r->to, r->capacity - r->to);
    if (n < 0 && errno != EINTR && errno != EAGAIN)
        return ctw_fail(err, CTW_EIO, "cannot read the input: %s", strerror(errno));
    r->at_end = n == 0;
    r->to += n > 0 ? (size_t)n : 0;
    return CTW_OK;
}

/* The next line, including its newline if it has one, valid until the next call; NULL: no line. */
static enum ctw_status take_line(struct ctw_score_reader *r, const char **line, size_t *bytes,
                                 struct ctw_err *err)
{
    const char *newline;
    *line = NULL;
    while ((newline = memchr(r->text + r->scanned, '\n', r->to - r->scanned)) == NULL) {
        r->scanned = r->to;
        if (r->to - r->from > CTW_SCORE_LINE_BYTES)
            return ctw_fail(err, CTW_EFORMAT, "line %lld: longer than %d MiB",
                            (long long)r->n_lines + 1, CTW_SCORE_LINE_BYTES >> 20);
        enum ctw_status st = r->at_end ? CTW_OK : fill(r, err);
        if (st != CTW_OK)
            return st;
        if (r->at_end && r->from == r->to)
            return CTW_OK;
        if (r->at_end)
            break;
    }
    size_t end = newline != NULL ? (size_t)(newline + 1 - r->text) : r->to;
    *line = r->text + r->from;
    *bytes = end - r->from;
    r->from = r->scanned = end;
    r->n_lines++;
    r->n_bytes += (int64_t)*bytes;
    return CTW_OK;
}

static bool fits(const struct ctw_score_reader *r, const struct ctw_score_item *item)
{
    enum { HELD_PASSES = 2, HELD_PASSES_SHARED = 64 };
    const struct ctw_score_block *b = r->block;
    int64_t most = (r->input.shares ? HELD_PASSES_SHARED : HELD_PASSES) * r->pass_tokens;
    /* The second bound limits items with nothing to score, or shared; the first bound limits all
     * others. */
    return b == NULL ||
           (ctw_pass_fits(b->n_items, b->n_new, ctw_score_block_new(b, item), r->pass_tokens) &&
            b->n_held + item->seq.n_tok <= most);
}

/* Waits for a block with space for the item. Takes ownership of the item, except after a failure.
 */
static enum ctw_status add(struct ctw_score_reader *r, const struct ctw_score_item *item,
                           struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    pthread_mutex_lock(&r->lock);
    if (!fits(r, item)) {
        r->full = true;
        pthread_cond_broadcast(&r->changed);
        while (r->full && !r->closing)
            pthread_cond_wait(&r->changed, &r->lock);
    }
    if (r->closing)
        st = ctw_fail(err, CTW_ECANCELED, "cancelled");
    if (st == CTW_OK && r->block == NULL) {
        r->block = ctw_calloc(1, sizeof(*r->block));
        r->first_ms = ctw_now_ms();
        if (r->block == NULL)
            st = ctw_fail(err, CTW_ENOMEM, "line %lld: out of memory", (long long)item->line);
        else
            r->block->shares = r->input.shares;
    }
    if (st == CTW_OK)
        st = ctw_score_block_add(r->block, item, err);
    if (st == CTW_OK) {
        r->n_tok += ctw_score_item_inputs(item);
        r->block->input_bytes = r->n_bytes;
        r->block->input_tok = r->n_tok;
        if (r->file_bytes == 0 && !r->ripe && ctw_now_ms() - r->first_ms >= LINGER_MS) {
            r->ripe = true;
            pthread_cond_broadcast(&r->changed);
        }
    }
    pthread_mutex_unlock(&r->lock);
    return st;
}

static enum ctw_status read_items(struct ctw_score_reader *r, struct ctw_err *err)
{
    for (;;) {
        const char *line;
        size_t bytes, blank = 0;
        struct ctw_score_item item;
        enum ctw_status st = take_line(r, &line, &bytes, err);
        if (st != CTW_OK || line == NULL)
            return st;
        while (blank < bytes && strchr(" \t\r\n", line[blank]) != NULL && line[blank] != '\0')
            blank++;
        if (blank == bytes)
            continue;
        st = ctw_score_item_read(&item, r->n_lines, line, bytes, r->input.max_length,
                                 r->input.vocab, err);
        if (st == CTW_OK)
            st = add(r, &item, err);
        if (st != CTW_OK) {
            ctw_score_item_fini(&item);
            return st;
        }
    }
}

static void *run(void *arg)
{
    struct ctw_score_reader *r = arg;
    struct ctw_err err = {0};
    enum ctw_status st = read_items(r, &err);
    pthread_mutex_lock(&r->lock);
    r->st = st;
    r->err = err;
    r->ended = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

enum ctw_status ctw_score_reader_open(struct ctw_score_reader **out,
                                      const struct ctw_score_input *input, struct ctw_err *err)
{
    struct stat s;
    struct ctw_score_reader *r = ctw_calloc(1, sizeof(*r));
    char *text = ctw_calloc(2, READ_BYTES);
    if (r == NULL || text == NULL) {
        ctw_free(r);
        ctw_free(text);
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    }
    r->input = *input;
    r->pass_tokens = input->pass_tokens;
    r->text = text;
    r->capacity = 2 * (size_t)READ_BYTES;
    off_t at = lseek(input->fd, 0, SEEK_CUR);
    if (at >= 0 && fstat(input->fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_size > at)
        r->file_bytes = s.st_size - at;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    if (pthread_create(&r->thread, NULL, run, r) != 0) {
        pthread_cond_destroy(&r->changed);
        pthread_mutex_destroy(&r->lock);
        ctw_free(text);
        ctw_free(r);
        return ctw_fail(err, CTW_ENOMEM, "cannot start a thread");
    }
    *out = r;
    return CTW_OK;
}

enum ctw_status ctw_score_reader_next(struct ctw_score_reader *r, struct ctw_score_block **out,
                                      struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    pthread_mutex_lock(&r->lock);
    while (!r->ended && !r->full && !r->ripe)
        pthread_cond_wait(&r->changed, &r->lock);
    *out = r->block;
    r->block = NULL;
    r->full = r->ripe = false;
    pthread_cond_broadcast(&r->changed);
    if (*out == NULL && r->st != CTW_OK) {
        st = r->st;
        *err = r->err;
    }
    pthread_mutex_unlock(&r->lock);
    return st;
}

void ctw_score_reader_set_pass(struct ctw_score_reader *r, int64_t pass_tokens)
{
    pthread_mutex_lock(&r->lock);
    r->pass_tokens = pass_tokens;
    pthread_mutex_unlock(&r->lock);
}

int64_t ctw_score_reader_bytes(const struct ctw_score_reader *r)
{
    return r->file_bytes;
}

void ctw_score_reader_close(struct ctw_score_reader *r)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    ctw_score_block_free(r->block);
    ctw_free(r->text);
    ctw_free(r);
}
