/*
 * Where the suite of an operation runs: on every CPU variant of this machine, and, compiled by
 * tests/gpu with CTW_ON_GPU=1, on every variant of the GPU. Operands are in the backend's memory,
 * between guard bytes.
 */
#ifndef CTW_TESTS_PLACES_H
#define CTW_TESTS_PLACES_H

#include "kernels/recurrent.h"
#include "ops.h"

#ifndef CTW_ON_GPU
#define CTW_ON_GPU 0
#endif

static const char *const variants[] = {"general", "hopper"};

/* NULL: this GPU does not run the variant. */
UNUSED_OK static struct ctw_backend *gpu(const char *variant)
{
    struct ctw_backend *be;
    enum ctw_status st = ctw_backend_open(
        &be, "cuda", &(struct ctw_backend_options){.cuda_variant = variant}, &last_err);
    if (st == CTW_EINVAL)
        return NULL;
    if (st != CTW_OK)
        fail_msg("%s", last_err.msg);
    return be;
}

/* The i-th place, with n_threads threads if it is a CPU; NULL: no more. */
UNUSED_OK static struct ctw_backend *open_place(int i, int n_threads)
{
    if (!CTW_ON_GPU)
        return any_variant(i) != NULL ? backend(any_variant(i), n_threads) : NULL;
    return i < (int)CTW_COUNT(variants) ? gpu(variants[i]) : NULL; /* a GPU runs the first */
}

UNUSED_OK static const char *place_name(int i)
{
    return CTW_ON_GPU ? variants[i] : any_variant(i);
}

enum { MAX_PLACES = 8 };

/* Every place at once, with 1 to 3 threads if it is a CPU. Returns their number. */
UNUSED_OK static int open_places(struct ctw_backend *be[MAX_PLACES])
{
    int n = 0;
    while (n < MAX_PLACES && (be[n] = open_place(n, 1 + n % 3)) != NULL)
        n++;
    return n;
}

UNUSED_OK static void close_places(struct ctw_backend *const be[], int n)
{
    for (int i = 0; i < n; i++)
        ctw_backend_close(be[i]);
}

enum { CUT_STATES = 8, CUT_IN_TWO = 0 };

/* Sequences, as whole parts that follow one another, which calls compute piece by piece: of at most
 * `most` rows each, with two states in turn; or CUT_IN_TWO: the beginnings of all sequences, then
 * the other rows of the first CUT_STATES, each with a state of its own. */
struct cut {
    const struct ctw_seq_part *seqs;
    int64_t n_seqs, most;
    int64_t row, seq, into, call; /* into: rows of sequence `seq` that are done */
};

/* A call: its parts, and its rows row0 .. row0 + n_tok - 1 of all. */
struct cut_call {
    struct ctw_seq_part *parts;
    int64_t n_parts, row0, n_tok;
};

UNUSED_OK static void cut_in_two(const struct cut *c, struct cut_call *call)
{
    for (int64_t i = 0; i < c->n_seqs; i++) {
        struct ctw_seq_part p = c->seqs[i];
        const int64_t first = i < CUT_STATES ? 1 + (5 * i + 2) % p.n_q : p.n_q;
        call->n_tok = p.q_row + p.n_q;
        if (c->call == 1 && first == p.n_q)
            continue;
        if (c->call == 1)
            p = (struct ctw_seq_part){p.q_row + first, p.n_q - first, first, i, -1};
        else if (first < p.n_q)
            p = (struct ctw_seq_part){p.q_row, first, 0, -1, i};
        call->parts[call->n_parts++] = p;
    }
}

/* Makes the next call, in an array with room for all sequences' parts. Returns false at the end. */
UNUSED_OK static bool cut_next(struct cut *c, struct cut_call *call)
{
    *call = (struct cut_call){.parts = call->parts, .row0 = c->row};
    if (c->most == CUT_IN_TWO && c->call < 2)
        cut_in_two(c, call);
    while (c->most != CUT_IN_TWO && call->n_tok < c->most && c->seq < c->n_seqs) {
        const int64_t left = c->seqs[c->seq].n_q - c->into, room = c->most - call->n_tok;
        const int64_t take = left < room ? left : room;
        call->parts[call->n_parts++] =
            (struct ctw_seq_part){.q_row = call->n_tok,
                                  .n_q = take,
                                  .pos0 = c->into,
                                  .before = c->into > 0 ? (c->call + 1) % 2 : -1,
                                  .after = take < left ? c->call % 2 : -1};
        call->n_tok += take;
        c->row += take;
        c->into = take < left ? c->into + take : 0;
        c->seq += take == left;
    }
    c->call++;
    return call->n_parts > 0;
}

/* Memory of a backend with a copy of these bytes (NULL: with none), without guards. */
UNUSED_OK static void *upload(struct ctw_backend *be, const void *from, size_t bytes)
{
    void *to;
    OK(ctw_device_alloc(be, &to, bytes, &last_err));
    if (from != NULL)
        OK(ctw_device_upload(be, to, from, bytes, &last_err));
    return to;
}

/* Memory of a backend with a copy of `bytes` bytes, `misalign` past a multiple of 64 (on a GPU:
 * 256), 256 bytes around which nothing may write. */
struct dev {
    struct ctw_backend *be;
    char *base, *p;
    size_t bytes;
};

UNUSED_OK static struct dev dev_open(struct ctw_backend *be, const void *src, size_t bytes,
                                     size_t misalign)
{
    struct dev d = {.be = be, .bytes = bytes};
    void *p;
    size_t all = bytes + 512 + misalign;
    OK(ctw_device_alloc(be, &p, all, &last_err));
    d.base = p;
    d.p = d.base + 256 + misalign;
    uint8_t *host = malloc(all);
    assert_non_null(host);
    memset(host, GUARD_BYTE, all);
    memcpy(host + 256 + misalign, src, bytes);
    OK(ctw_device_upload(be, d.base, host, all, &last_err));
    free(host);
    return d;
}

/* With a copy of the buffer. */
UNUSED_OK static struct dev dev_of(struct ctw_backend *be, const struct buf *from)
{
    return dev_open(be, from->p, from->bytes, 0);
}

/* Copies its bytes into dst; checks the guards. */
UNUSED_OK static void dev_read(const struct dev *d, void *dst)
{
    size_t before = (size_t)(d->p - d->base), all = d->bytes + before + 256;
    uint8_t *host = malloc(all);
    assert_non_null(host);
    OK(ctw_device_download(d->be, host, d->base, all, &last_err));
    for (size_t i = 0; i < all; i = i + 1 == before ? before + d->bytes : i + 1)
        if (host[i] != GUARD_BYTE)
            fail_msg("byte %zd of %zu of device memory was written", (ssize_t)(i - before),
                     d->bytes);
    memcpy(dst, host + before, d->bytes);
    free(host);
}

UNUSED_OK static void dev_close(struct dev *d)
{
    if (d->be == NULL) /* never opened: a part that the weight does not have */
        return;
    uint64_t fence; /* operations may still read weights */
    OK(ctw_fence_record(d->be, &fence, &last_err));
    OK(ctw_fence_wait(d->be, fence, &last_err));
    ctw_device_free(d->be, d->base);
    d->base = NULL;
}

#endif
