#include "worker/weights/slice_source.h"

void ctw_slice_source_init(struct ctw_slice_source *out, const struct ctw_model *model,
                           struct ctw_backend *be, const struct ctw_slices *slices,
                           struct ctw_shards *shards)
{
    *out = (struct ctw_slice_source){.model = model, .be = be, .slices = slices, .shards = shards};
    out->is_staged = !ctw_backend_traits(be)->host_memory;
    if (shards != NULL) {
        out->neighbours = ctw_shards_neighbours(shards);
        out->self = ctw_neighbours_find(out->neighbours, be);
    }
}

static enum ctw_status read_to_stage(const struct ctw_slice_source *s, struct ctw_stage *stage,
                                     const struct ctw_slice *slice, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    if (stage->p == NULL)
        st = ctw_stage_alloc(s->be, &stage->p, CTW_DEVICE_SLICE, err);
    return st == CTW_OK ? ctw_slices_read(s->slices, s->model, slice, stage->p, err) : st;
}

/* Uploads a slice from `host`, or, if that is NULL, reads it from the files. A reader has few
 * uploads in flight: a neighbour may then have begun to read what comes after them. */
static enum ctw_status upload(struct ctw_slice_reader *r, const struct ctw_slice *slice,
                              const void *host, char *to, uint64_t *ticket, struct ctw_err *err)
{
    const struct ctw_slice_source *s = r->from;
    struct ctw_stage *stage = &r->stage[r->turn];
    r->turn = (r->turn + 1) % CTW_READER_STAGES;
    enum ctw_status st = stage->begun ? ctw_upload_wait(s->be, stage->ticket, err) : CTW_OK;
    if (st == CTW_OK && host == NULL)
        st = read_to_stage(s, stage, slice, err);
    if (st == CTW_OK)
        st = ctw_upload_begin(s->be, to, host != NULL ? host : stage->p, slice->bytes,
                              &stage->ticket, err);
    stage->begun = st == CTW_OK || stage->begun;
    *ticket = stage->ticket;
    return st;
}

/* A slice of shards that is on no device: it may be in a neighbour's ring, and neighbours may then
 * take it from this one. */
static enum ctw_status fetch(struct ctw_slice_reader *r, int unit, const struct ctw_slice *slice,
                             char *to, enum ctw_origin *origin, struct ctw_err *err)
{
    const struct ctw_slice_source *s = r->from;
    struct ctw_backend *none;
    const void *host;
    int64_t i = slice - s->slices->slices;
    uint64_t ticket;
    enum ctw_status st = ctw_shards_find(s->shards, i, &none, &host, err);
    if (st != CTW_OK)
        return st;
    *origin = host != NULL ? CTW_FROM_HOST : CTW_FROM_FILES;
    if (ctw_neighbours_copy(s->neighbours, s->self, unit, i, to, slice->bytes, &ticket))
        *origin = CTW_FROM_NEIGHBOURS;
    else
        st = upload(r, slice, host, to, &ticket, err);
    ctw_neighbours_offer(s->neighbours, s->self, i, st == CTW_OK ? to : NULL, ticket);
    if (st != CTW_OK)
        return st;
    r->copies = true;
    r->copied = ticket;
    return CTW_OK;
}

/* Of n slices, the first of which is `at` on a device: *n_run follow each other there. */
static enum ctw_status count_run(const struct ctw_slice_source *s, const struct ctw_slice *slice,
                                 int n, const struct ctw_backend *from, const char *at, int *n_run,
                                 struct ctw_err *err)
{
    for (*n_run = 1; *n_run < n; ++*n_run) {
        const struct ctw_slice *next = &slice[*n_run];
        struct ctw_backend *be;
        const void *place;
        enum ctw_status st = ctw_shards_find(s->shards, next - s->slices->slices, &be, &place, err);
        if (st != CTW_OK)
            return st;
        if (be != from || place != at + (next->at - slice->at))
            break;
    }
    return CTW_OK;
}

/* A run is one copy: it takes a third of the time of copies of 2 MiB, each of which begins late. */
enum ctw_status ctw_slices_gather(struct ctw_slice_reader *r, const struct ctw_slice *slice, int n,
                                  char *to, struct ctw_err *err)
{
    const struct ctw_slice_source *s = r->from;
    enum ctw_status st = CTW_OK;
    for (int n_run = 0; st == CTW_OK && n > 0; slice += n_run, n -= n_run) {
        struct ctw_backend *from;
        const void *at;
        st = ctw_shards_find(s->shards, slice - s->slices->slices, &from, &at, err);
        if (st == CTW_OK)
            st = count_run(s, slice, n, from, at, &n_run, err);
        if (st == CTW_OK)
            st = ctw_peer_begin(s->be, to + slice->at, from, at,
                                slice[n_run - 1].at + slice[n_run - 1].bytes - slice->at,
                                &r->copied, err);
        r->copies |= st == CTW_OK;
    }
    return st;
}

enum ctw_status ctw_slice_read(struct ctw_slice_reader *r, int unit, bool stays,
                               const struct ctw_slice *slice, char *to, enum ctw_origin *origin,
                               struct ctw_err *err)
{
    const struct ctw_slice_source *s = r->from;
    uint64_t ticket;
    *origin = CTW_FROM_FILES;
    if (s->shards != NULL && !stays)
        return fetch(r, unit, slice, to, origin, err);
    return s->is_staged ? upload(r, slice, NULL, to, &ticket, err)
                        : ctw_slices_read(s->slices, s->model, slice, to, err);
}

/* If an upload failed, the driver may still read its stage, which is then not freed. */
void ctw_slice_reader_end(struct ctw_slice_reader *r)
{
    struct ctw_err err;
    if (r->copies)
        (void)!ctw_upload_wait(r->from->be, r->copied, &err); /* a failed device copies no more */
    for (int i = 0; i < CTW_READER_STAGES; i++) {
        struct ctw_stage *stage = &r->stage[i];
        if (!stage->begun || ctw_upload_wait(r->from->be, stage->ticket, &err) == CTW_OK)
            ctw_stage_free(r->from->be, stage->p);
    }
}
