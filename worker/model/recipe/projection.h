/* A linear layer by itself: projection(n). */
#ifndef CTW_WORKER_RECIPE_PROJECTION_H
#define CTW_WORKER_RECIPE_PROJECTION_H

#include "worker/model/recipe/parts.h"

enum { CTW_M_PROJECTION };
enum { CTW_P_PROJECTION };

struct ctw_projection {
    int64_t dim; /* of input and output: hidden */
};

struct ctw_config;

void ctw_describe_projection(struct ctw_config *c, int64_t i, int branch, const char *module);

#endif
