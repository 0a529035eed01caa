/*
 * Units: what is read, used and released at once. A unit is a range of a layer's arena, mostly all
 * of it. Layers that are cut into several need less memory while they pass through it.
 */
#ifndef CTW_WORKER_UNITS_H
#define CTW_WORKER_UNITS_H

#include "worker/model/model.h"

enum ctw_unit_kind {
    CTW_UNIT_LAYER, /* all of a layer */
    CTW_UNIT_HELD,  /* what operations may read at any time, of a layer whose other units come and
                       go: it stays */
    CTW_UNIT_MATRICES, /* of a decoder layer, released when they are prepared */
    CTW_UNIT_ROWS      /* rows of the embedding or of the head */
};

struct ctw_unit {
    enum ctw_unit_kind kind;
    int layer;
    size_t at, bytes;     /* of the layer's arena */
    int64_t row0, n_rows; /* CTW_UNIT_ROWS */
    bool stays;
};

/* Which layers may be cut. */
struct ctw_cuts {
    int64_t embed_rows,
        head_rows;        /* a part's rows are a multiple of these; 0: there are no parts */
    const bool *prepared; /* [n_layers]: a decoder layer whose matrices no operation reads after
                             they are prepared */
};

/*
 * The layers' units, in the order of a pass; *first [n_layers + 1] is each layer's first. Parts of
 * the embedding and head are so large that two of them, or else one, take no more memory than the
 * decoder layers that must be there at a time. Both arrays are the caller's. `cuts` NULL: none.
 */
enum ctw_status ctw_units_make(const struct ctw_model *m, const struct ctw_cuts *cuts,
                               struct ctw_unit **unit, int *n_units, int **first,
                               struct ctw_err *err) CTW_MUST_CHECK;

#endif
