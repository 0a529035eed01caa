/*
 * Where the suite of an operation runs: on every CPU variant of this machine, and, compiled by
 * tests/gpu with CTW_ON_GPU=1, on every variant of the GPU. Operands are in the backend's memory,
 * between guard bytes.
 */
#ifndef CTW_TESTS_PLACES_H
#define CTW_TESTS_PLACES_H

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

/* Sequences that calls of some rows each compute piece by piece. */
struct cut {
    const struct ctw_attn_seq *seqs;
    int64_t n_all, seq, into; /* into: rows of sequence `seq` that are done */
};

/* The next call's pieces, of at most `most` rows together; returns the number of rows. */
UNUSED_OK static int64_t cut_next(struct cut *c, int64_t most, struct ctw_attn_seq *part,
                                  int64_t *n_seqs)
{
    int64_t n = 0;
    *n_seqs = 0;
    while (n < most && c->seq < c->n_all) {
        int64_t left = c->seqs[c->seq].n_q - c->into, take = left < most - n ? left : most - n;
        part[(*n_seqs)++] = (struct ctw_attn_seq){.q_row = n, .n_q = take, .pos0 = c->into};
        n += take;
        c->into = take < left ? c->into + take : 0;
        c->seq += take == left;
    }
    return n;
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
