/*
 * How a stream's slices come into its memory: from the files, from host memory that holds them,
 * from another device that holds them, or from the ring of one that has read them. Private to the
 * stream.
 */
#ifndef CTW_WORKER_SLICE_SOURCE_H
#define CTW_WORKER_SLICE_SOURCE_H

#include "worker/weights/shards.h"
#include "worker/weights/stages.h"

/* Neighbours have read a slice into their rings; devices hold it for good. */
enum ctw_origin {
    CTW_FROM_FILES,
    CTW_FROM_HOST,
    CTW_FROM_NEIGHBOURS,
    CTW_FROM_DEVICES,
    CTW_N_ORIGINS
};

/* What a stream's readers share. */
struct ctw_slice_source {
    const struct ctw_model *model;
    struct ctw_backend *be;
    const struct ctw_slices *slices;
    struct ctw_shards *shards;         /* NULL: all is read from the files */
    struct ctw_neighbours *neighbours; /* with shards: the devices, of which it is number `self` */
    int self;
    bool is_staged; /* the backend does not read host memory: slices go through `stages` */
    struct ctw_stages stages;
};

/* What one reader reads at a time: n slices of a unit, one after another. */
struct ctw_reading {
    int unit;
    const struct ctw_slice *slice; /* the first */
    int n;
    size_t unit_at;          /* the unit's place in memory */
    bool gathered;           /* from devices that hold them */
    struct ctw_stage *stage; /* the slice is of this stage's batch; NULL: it has no batch */
    /* results */
    enum ctw_origin origin;
    int n_in; /* slices that have come in: their uploads have begun, or their bytes are there */
};

/* Of one thread. {.from = ..} before its first slice. */
struct ctw_slice_reader {
    struct ctw_slice_source *from;
    bool copies; /* from shards or neighbours have begun; `copied` is the last one's ticket */
    uint64_t copied;
};

/* Before reading begins, the stages are to be set up. */
void ctw_slice_source_init(struct ctw_slice_source *out, const struct ctw_model *model,
                           struct ctw_backend *be, const struct ctw_slices *slices,
                           struct ctw_shards *shards);

/* Begins to bring slices to `memory`, or brings them there if the backend reads host memory. Of a
 * stage's batch, the memory may be NULL. */
enum ctw_status ctw_slices_bring(struct ctw_slice_reader *r, struct ctw_reading *what, char *memory,
                                 struct ctw_err *err) CTW_MUST_CHECK;
/* Waits for the copies that the reader has begun. */
void ctw_slice_reader_end(struct ctw_slice_reader *r);

#endif
