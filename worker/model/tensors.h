/*
 * From the tensors that a family wants to the checkpoint's: finds the parts of each matrix,
 * resolves the matrix's quantization_config entry, and lets its format check the parts. Used by
 * model.c only.
 */
#ifndef CTW_WORKER_TENSORS_H
#define CTW_WORKER_TENSORS_H

#include "worker/model/config.h"
#include "worker/model/model.h"

/* Matrices that lack a part which quantization_config implies, or contradict it. */
struct ctw_lacking {
    int64_t n;
    const char *first; /* the first matrix's name; the model owns it */
};

/* The inputs for finding a model's tensors, and facts collected on the way. */
struct ctw_finder {
    const struct ctw_config *config;
    struct ctw_container *container;
    bool *group_used; /* [config->quant.n_groups] */
    bool quantises_activations;
    struct ctw_lacking index, zero_points;
    struct ctw_lacking otherwise, plain; /* ctw_stored_args(): as the configuration does not say */
};

/*
 * Opens a wanted matrix. Messages name the file, the tensor, what was found and what was expected.
 * The caller calls ctw_matrix_close(), also after a failure.
 */
enum ctw_status ctw_matrix_open(struct ctw_finder *finder, struct ctw_matrix *m,
                                const struct ctw_want *want, struct ctw_err *err) CTW_MUST_CHECK;
/* Opens a wanted matrix of one expert, or of all experts. */
enum ctw_status ctw_expert_open(struct ctw_finder *finder, struct ctw_matrix *experts,
                                const struct ctw_want *want, struct ctw_err *err) CTW_MUST_CHECK;
void ctw_matrix_close(struct ctw_matrix *m);

/* Finds the tensor of a module (*out NULL: absent). A tensor that cannot be read is an error. */
enum ctw_status ctw_tensor_find(const struct ctw_finder *finder, const char *module,
                                const char *name, const struct ctw_tensor **out,
                                struct ctw_err *err) CTW_MUST_CHECK;
/* Number i of a tensor of I64 or I32. */
int64_t ctw_tensor_integer(const struct ctw_finder *finder, const struct ctw_tensor *t, int64_t i);

/* vectors.c: opens a vector. */
enum ctw_status ctw_vector_open(struct ctw_finder *finder, const struct ctw_tensor **out,
                                const struct ctw_want *want, struct ctw_err *err) CTW_MUST_CHECK;

/* The same of the next rows of a layer's table. */
enum ctw_status ctw_table_open(struct ctw_finder *finder, struct ctw_table *table,
                               const struct ctw_want *want, struct ctw_err *err) CTW_MUST_CHECK;

/* Makes the head the embedding's matrix, and refuses a checkpoint that contradicts this. */
enum ctw_status ctw_matrix_tie(struct ctw_finder *finder, struct ctw_matrix *head,
                               const struct ctw_matrix *embed, const struct ctw_want *want,
                               struct ctw_err *err) CTW_MUST_CHECK;

/* The tensor as a part of a weight, and of a stack if it is one. */
struct ctw_part ctw_tensor_part(const struct ctw_tensor *t);

/* unused.c */

/*
 * Is this a tensor of zeros that changes nothing: a bias that GPTQ's tools store for a module
 * without one, or zero points of a byte each, which tools leave in files of symmetric weights?
 */
bool ctw_says_nothing(const struct ctw_finder *finder, const struct ctw_tensor *t);

/* Writes the tensors that the layers consist of to list (NULL: nowhere), and returns their number.
 * A tied head's are listed twice. */
int64_t ctw_list_tensors(const struct ctw_model *m, const struct ctw_tensor **list);

/*
 * CTW_EUNSUP if the checkpoint has a tensor that is not in used[n_used] and not known to be
 * harmless. Sorts `used`, and counts m's tensors apart and its scales of no use. *kv_scales: the
 * checkpoint has scales of a quantised K/V cache.
 */
enum ctw_status ctw_unused_check(const struct ctw_finder *finder, struct ctw_model *m,
                                 const struct ctw_tensor **used, int64_t n_used, bool *kv_scales,
                                 struct ctw_err *err) CTW_MUST_CHECK;

#endif
