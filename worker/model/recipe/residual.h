/* How a layer's branches meet the residual stream: a kind of list.h, the same for all layers of a
 * model. */
#ifndef CTW_WORKER_RECIPE_RESIDUAL_H
#define CTW_WORKER_RECIPE_RESIDUAL_H

#include "worker/model/recipe/list.h"

/* A kind with facts of its own adds a union of its structs here, as struct ctw_branch has. All
 * zeros is one stream. */
struct ctw_residual {
    enum ctw_residual_kind kind;
};

#endif
