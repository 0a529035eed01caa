/*
 * From a family's rows to a checkpoint's tensors: finds the parts of each matrix, resolves what
 * quantization_config says of it, lets its format check them. Used by model.c only.
 */
#ifndef CTW_WORKER_WEIGHTS_H
#define CTW_WORKER_WEIGHTS_H

#include "worker/model/config.h"
#include "worker/model/model.h"

/* Matrices that lack a part which quantization_config lets one expect. */
struct ctw_lacking {
    int64_t n;
    const char *first; /* its name, the model's */
};

/* What finding a model's tensors needs, and what it notes on the way. */
struct ctw_finder {
    const struct ctw_config *config;
    struct ctw_container *container;
    bool *group_used; /* [config->quant.n_groups] */
    struct ctw_lacking index, zero_points;
};

/*
 * Opens a matrix [n, k] of the module `name`, of class "Linear" or "Embedding". Messages name file,
 * tensor, found, expected. What m holds after a failure is for ctw_matrix_close().
 */
enum ctw_status ctw_matrix_open(struct ctw_finder *finder, struct ctw_matrix *m, const char *name,
                                const char *class_name, int64_t n, int64_t k,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_matrix_close(struct ctw_matrix *m);

/* Opens a vector [n]. */
enum ctw_status ctw_vector_open(struct ctw_finder *finder, const struct ctw_tensor **out,
                                const char *name, int64_t n, struct ctw_err *err) CTW_MUST_CHECK;

/* Makes the head the embedding's matrix, and refuses what contradicts that. */
enum ctw_status ctw_matrix_tie(struct ctw_finder *finder, struct ctw_matrix *head,
                               const struct ctw_matrix *embed, const char *name,
                               struct ctw_err *err) CTW_MUST_CHECK;

/*
 * CTW_EUNSUP when the checkpoint has a tensor that nothing uses and that is not known to be
 * harmless. *kv_scales: it has scales of a quantised K/V cache.
 */
enum ctw_status ctw_unused_check(const struct ctw_finder *finder, const struct ctw_model *m,
                                 bool *kv_scales, struct ctw_err *err) CTW_MUST_CHECK;

#endif
