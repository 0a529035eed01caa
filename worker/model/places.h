/* The place of each of a layer's tensors if the layer is one block of memory
 * (worker/weights/arena.h). */
#ifndef CTW_WORKER_PLACES_H
#define CTW_WORKER_PLACES_H

#include "worker/model/model.h"

/* Fills in every layer's places and arena_bytes. CTW_ENOMEM. */
enum ctw_status ctw_places_make(struct ctw_model *m, struct ctw_err *err) CTW_MUST_CHECK;

/* The offset of a tensor that has a place in the layer. */
size_t ctw_tensor_place_of(const struct ctw_layer *l, const struct ctw_tensor *t);

#endif
