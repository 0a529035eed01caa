/*
 * A layer's arena: the stored tensors of the layer as one block of memory. Held tensors come first,
 * then the others, in the order of the files; each is aligned. The streamed provider places layers
 * by these functions.
 *
 * The arena of a tied head holds no matrix, because the head's parts are those of the embedding.
 */
#ifndef CTW_WORKER_ARENA_H
#define CTW_WORKER_ARENA_H

#include "worker/weights/provider.h"

/* Is called for each tensor. The tensor begins `at` bytes after the start of the arena. */
typedef enum ctw_status ctw_arena_visit(void *arg, const struct ctw_tensor *t, size_t at,
                                        struct ctw_err *err);

/* Visits the tensors by increasing `at`. */
enum ctw_status ctw_arena_walk(const struct ctw_model *m, int layer, ctw_arena_visit *visit,
                               void *arg, struct ctw_err *err) CTW_MUST_CHECK;
/* Fills in the addresses of the layer's tensors that begin in bytes at .. at+n-1 of the layer's
 * arena. `block` is the address of byte `at`. */
void ctw_arena_point(const struct ctw_model *m, int layer, size_t at, size_t n, const void *block,
                     struct ctw_layer_data *data);
/* Fills in the parts of a tied head from the other layers. Does nothing if the model has no tied
 * head. */
void ctw_arena_tie(const struct ctw_model *m, struct ctw_layer_data *layers);
/* Adds to the identity the tensors that no arena holds: weight_shape and scales of activations, which
 * only opening reads, and tables, which this function reads whole. */
enum ctw_status ctw_arena_add_numbers(const struct ctw_model *m,
                                      struct ctw_err *err) CTW_MUST_CHECK;

#endif
