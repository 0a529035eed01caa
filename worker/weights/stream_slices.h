/* The slices that a stream reads: ranges of a placement's units. Private to the stream. */
#ifndef CTW_WORKER_STREAM_SLICES_H
#define CTW_WORKER_STREAM_SLICES_H

#include "worker/weights/arena.h"
#include "worker/weights/placement.h"

/* A contiguous range of a tensor: one block of the identity. */
struct ctw_piece {
    const struct ctw_tensor *t;
    uint64_t from;    /* offset in the tensor */
    size_t bytes, at; /* at: offset in the unit */
    int64_t block;
};

/* Adjacent pieces that one thread reads, with the padding between them. */
struct ctw_slice {
    int64_t first, n; /* range of pieces */
    size_t at, bytes; /* offset and size in the unit */
};

struct ctw_slices {
    struct ctw_piece *pieces;
    struct ctw_slice *slices;
    int64_t *first; /* [n_units + 1]: slices of each unit */
    int64_t n_pieces, cap_pieces, n_slices, cap_slices;
};

/* Cuts the units into slices of at most `most` bytes; `most` is at least CTW_BLOCK_BYTES. If a unit
 * begins or ends within a tensor, a block begins or ends there. */
enum ctw_status ctw_slices_make(struct ctw_slices *out, const struct ctw_model *m,
                                const struct ctw_placement *place, size_t most,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_slices_free(struct ctw_slices *s);
/* Reads a slice to `to`, and checks its blocks or adds them to the identity. Thread-safe. */
enum ctw_status ctw_slices_read(const struct ctw_slices *s, const struct ctw_model *m,
                                const struct ctw_slice *slice, void *to,
                                struct ctw_err *err) CTW_MUST_CHECK;

#endif
