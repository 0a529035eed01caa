/*
 * Units: the ranges of bytes that are read, used and released at once. A unit is a range of a
 * layer's arena, in most cases the whole arena. A layer that is cut into several units needs less
 * memory while its units pass through.
 */
#ifndef CTW_WORKER_UNITS_H
#define CTW_WORKER_UNITS_H

#include "worker/model/model.h"

enum ctw_unit_kind {
    CTW_UNIT_LAYER, /* the whole layer */
    CTW_UNIT_HELD,  /* of a layer whose other units come and go: tensors that operations may read at
                       any time; stays */
    CTW_UNIT_MATRICES, /* of a decoder layer: its matrices, released when they are prepared */
    CTW_UNIT_ROWS      /* rows of the embedding or of the head */
};

struct ctw_unit {
    enum ctw_unit_kind kind;
    int layer;
    size_t at, bytes;     /* range of the layer's arena */
    int64_t row0, n_rows; /* of CTW_UNIT_ROWS */
    bool stays;
};

/* The layers that may be cut. */
struct ctw_cuts {
    int64_t embed_rows,
        head_rows;        /* the number of rows in a part is a multiple of these; 0: no parts */
    const bool *prepared; /* [n_layers]: of a decoder layer, no operation reads the matrices after
                             they are prepared */
};

/*
 * Makes the units of all layers, in the order of a pass; *first [n_layers + 1] is the first unit of
 * each layer. Parts of the embedding and head are as large as possible, while two of them, or else
 * one, take no more memory than the decoder layers that must be there at a time. The caller frees
 * both arrays. `cuts` NULL: no layer is cut.
 */
enum ctw_status ctw_units_make(const struct ctw_model *m, const struct ctw_cuts *cuts,
                               struct ctw_unit **unit, int *n_units, int **first,
                               struct ctw_err *err) CTW_MUST_CHECK;

#endif
