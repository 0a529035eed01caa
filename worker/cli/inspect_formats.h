/* ctworker inspect: the weight formats of a checkpoint, counted. */
#ifndef CTW_WORKER_INSPECT_FORMATS_H
#define CTW_WORKER_INSPECT_FORMATS_H

#include "worker/model/model.h"

/* Matrices that are stored the same way. */
struct ctw_inspect_kind {
    char text[96];
    int64_t n_matrices, n_params;
    double bytes;
};

enum { CTW_INSPECT_KINDS = 64 };

/* "pack-quantized, 4 bits, groups of 128" */
void ctw_inspect_describe(const struct ctw_weight *w, char *buf, size_t bytes);

/* Fills kinds[CTW_INSPECT_KINDS] and returns their number. A tied head counts as the embedding. */
int ctw_inspect_formats(const struct ctw_model *m, struct ctw_inspect_kind *kinds);

#endif
