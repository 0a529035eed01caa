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

/* Ends a slice of a batch: the reader of the first slice has taken the stage. */
static enum ctw_status read_of_batch(struct ctw_slice_source *s, struct ctw_reading *what,
                                     struct ctw_err *err)
{
    size_t at = what->unit_at + what->slice->at - what->stage->to;
    enum ctw_status st = ctw_stages_ready(&s->stages, what->stage, at == 0, err);
    if (st == CTW_OK)
        st = ctw_slices_read(s->slices, s->model, what->slice, what->stage->p + at, err);
    return st == CTW_OK ? ctw_stages_read(&s->stages, what->stage, &what->n_in, err) : st;
}

/* Uploads a slice from `host`, or, if `host` is NULL, reads the slice from the files. A reader has
 * few uploads in flight, because a neighbour may wait for slices behind them. Each reader has two
 * stages. */
static enum ctw_status upload(struct ctw_slice_source *s, const struct ctw_reading *what,
                              const void *host, uint64_t *ticket, struct ctw_err *err)
{
    const struct ctw_slice *slice = what->slice;
    struct ctw_stage *stage =
        ctw_stages_take(&s->stages, what->unit_at + slice->at, slice->bytes, 1);
    enum ctw_status st = host == NULL ? ctw_stages_ready(&s->stages, stage, true, err) : CTW_OK;
    if (st == CTW_OK && host == NULL)
        st = ctw_slices_read(s->slices, s->model, slice, stage->p, err);
    if (st != CTW_OK)
        return st;
    return ctw_stages_upload(&s->stages, stage, host != NULL ? host : stage->p, ticket, err);
}

/* Fetches a slice of shards that is on no device. A neighbour may have the slice in its ring;
 * otherwise this device offers the slice to its neighbours. */
static enum ctw_status fetch(struct ctw_slice_reader *r, struct ctw_reading *what, char *to,
                             struct ctw_err *err)
{
    struct ctw_slice_source *s = r->from;
    struct ctw_backend *none;
    const void *host;
    int64_t i = what->slice - s->slices->slices;
    uint64_t ticket;
    enum ctw_status st = ctw_shards_find(s->shards, i, &none, &host, err);
    if (st != CTW_OK)
        return st;
    what->origin = host != NULL ? CTW_FROM_HOST : CTW_FROM_FILES;
    if (ctw_neighbours_copy(s->neighbours, s->self, what->unit, i, to, what->slice->bytes, &ticket))
        what->origin = CTW_FROM_NEIGHBOURS;
    else
        st = upload(s, what, host, &ticket, err);
    ctw_neighbours_offer(s->neighbours, s->self, i, st == CTW_OK ? to : NULL, ticket);
    if (st != CTW_OK)
        return st;
    r->copies = true;
    r->copied = ticket;
    return CTW_OK;
}

/* Counts adjacent slices: *n_run of the n slices follow each other on the device that has the first
 * slice, `at` there. */
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

/* Gathers a run of slices as one copy. This takes a third of the time of copies of 2 MiB, because
 * each copy begins late. */
static enum ctw_status gather(struct ctw_slice_reader *r, const struct ctw_reading *what, char *to,
                              struct ctw_err *err)
{
    const struct ctw_slice_source *s = r->from;
    const struct ctw_slice *slice = what->slice;
    enum ctw_status st = CTW_OK;
    int n = what->n;
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

enum ctw_status ctw_slices_bring(struct ctw_slice_reader *r, struct ctw_reading *what, char *memory,
                                 struct ctw_err *err)
{
    struct ctw_slice_source *s = r->from;
    char *unit = memory != NULL ? memory + what->unit_at : NULL;
    what->origin = what->gathered ? CTW_FROM_DEVICES : CTW_FROM_FILES;
    what->n_in = what->n;
    if (what->stage != NULL)
        return read_of_batch(s, what, err);
    if (what->gathered)
        return gather(r, what, unit, err);
    if (s->shards != NULL)
        return fetch(r, what, unit + what->slice->at, err);
    return ctw_slices_read(s->slices, s->model, what->slice, unit + what->slice->at, err);
}

void ctw_slice_reader_end(struct ctw_slice_reader *r)
{
    struct ctw_err err;
    if (r->copies)
        (void)!ctw_upload_wait(r->from->be, r->copied, &err); /* a failed device copies no more */
}
