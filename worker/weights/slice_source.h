/*
 * How a stream's slices come into its memory: from the files, from host memory that holds them,
 * from another device that holds them, or from the ring of one that has read them. Private to the
 * stream.
 */
#ifndef CTW_WORKER_SLICE_SOURCE_H
#define CTW_WORKER_SLICE_SOURCE_H

#include "worker/weights/shards.h"

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
    bool is_staged; /* the backend does not read host memory */
};

enum { CTW_READER_STAGES = 2 };

struct ctw_stage {
    void *p;    /* NULL: none was needed yet */
    bool begun; /* an upload from it, or from host memory, has begun; `ticket` identifies it */
    uint64_t ticket;
};

/* Of one thread. {.from = ..} before its first slice. */
struct ctw_slice_reader {
    const struct ctw_slice_source *from;
    struct ctw_stage stage[CTW_READER_STAGES];
    int turn;
    bool copies; /* from shards or neighbours have begun; `copied` is the last one's ticket */
    uint64_t copied;
};

void ctw_slice_source_init(struct ctw_slice_source *out, const struct ctw_model *model,
                           struct ctw_backend *be, const struct ctw_slices *slices,
                           struct ctw_shards *shards);

/* Begins to bring a slice of a unit to `to`, or brings it there if the backend reads host memory.
 * stays: the unit is this device's own, and is read from the files. */
enum ctw_status ctw_slice_read(struct ctw_slice_reader *r, int unit, bool stays,
                               const struct ctw_slice *slice, char *to, enum ctw_origin *origin,
                               struct ctw_err *err) CTW_MUST_CHECK;

/* Likewise n slices, one after another, of a unit that is on devices; to: the unit's place. */
enum ctw_status ctw_slices_gather(struct ctw_slice_reader *r, const struct ctw_slice *slice, int n,
                                  char *to, struct ctw_err *err) CTW_MUST_CHECK;

/* Waits for what the reader has begun. */
void ctw_slice_reader_end(struct ctw_slice_reader *r);

#endif
