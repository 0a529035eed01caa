/*
 * The sources of a stream's slices: the files, host memory that holds them, a device that holds
 * them, or the ring of a device that has read them. Private to the stream.
 */
#ifndef CTW_WORKER_SLICE_SOURCE_H
#define CTW_WORKER_SLICE_SOURCE_H

#include "worker/weights/shards.h"
#include "worker/weights/stages.h"

/* A neighbour has read a slice into its ring. A device holds a slice permanently. */
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
    struct ctw_shards *shards;         /* NULL: all slices are read from the files */
    struct ctw_neighbours *neighbours; /* with shards: the devices; this one is number `self` */
    int self;
    bool is_staged; /* the backend does not read host memory, so slices go through `stages` */
    struct ctw_stages stages;
};

/* One step of a reader: n adjacent slices of a unit. */
struct ctw_reading {
    int unit;
    const struct ctw_slice *slice; /* the first slice */
    int n;
    size_t unit_at;          /* the unit's offset in memory */
    bool gathered;           /* the slices come from devices that hold them */
    struct ctw_stage *stage; /* the stage whose batch has the slice; NULL: none */
    /* results */
    enum ctw_origin origin;
    int n_in; /* slices that have come in: their uploads have begun, or their bytes are in host
                 memory */
};

/* The state of one thread. Begin with {.from = ..}. */
struct ctw_slice_reader {
    struct ctw_slice_source *from;
    bool copies; /* copies from shards or neighbours have begun; `copied` is the ticket of the last
                    one */
    uint64_t copied;
};

/* Set up the stages between this call and the first slice. */
void ctw_slice_source_init(struct ctw_slice_source *out, const struct ctw_model *model,
                           struct ctw_backend *be, const struct ctw_slices *slices,
                           struct ctw_shards *shards);

/* Begins to bring slices to `memory`, or brings them there if the backend reads host memory. For a
 * stage's batch, `memory` may be NULL. */
enum ctw_status ctw_slices_bring(struct ctw_slice_reader *r, struct ctw_reading *what, char *memory,
                                 struct ctw_err *err) CTW_MUST_CHECK;
/* Waits for the copies that the reader has begun. */
void ctw_slice_reader_end(struct ctw_slice_reader *r);

#endif
