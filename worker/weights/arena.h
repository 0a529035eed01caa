/*
 * A layer's arena: its stored tensors as one block of memory, those that are held and then the
 * others, in the order of the files, each aligned. The streamed provider places
 * layers by these functions.
 *
 * The arena of a tied head holds no matrix: its parts are the embedding's.
 */
#ifndef CTW_WORKER_ARENA_H
#define CTW_WORKER_ARENA_H

#include "worker/weights/provider.h"

/* Called for each tensor, which begins `at` bytes after the arena's beginning. */
typedef enum ctw_status ctw_arena_visit(void *arg, const struct ctw_tensor *t, size_t at,
                                        struct ctw_err *err);

/* Visits the tensors by increasing `at`. */
enum ctw_status ctw_arena_walk(const struct ctw_model *m, int layer, ctw_arena_visit *visit,
                               void *arg, struct ctw_err *err) CTW_MUST_CHECK;
/* Fills in the addresses of the layer's tensors that begin in the n bytes of its arena from `at`
 * on, which are at `block`. */
void ctw_arena_point(const struct ctw_model *m, int layer, size_t at, size_t n, const void *block,
                     struct ctw_layer_data *data);
/* Fills in the parts of a tied head, if the model has one, from those of the other layers. */
void ctw_arena_tie(const struct ctw_model *m, struct ctw_layer_data *layers);
/* Adds the tensors of few numbers that only opening reads to the identity: weight_shape, scales of
 * activations. They are in no arena. */
enum ctw_status ctw_arena_add_numbers(const struct ctw_model *m,
                                      struct ctw_err *err) CTW_MUST_CHECK;

#endif
