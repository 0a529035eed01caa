/* A linear layer by itself: its builder, and its facts. */
#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"

void ctw_describe_projection(struct ctw_config *c, int64_t i, int branch, const char *module)
{
    const int64_t dim = c->model->hidden;
    ctw_describe_kind(c, i, branch, CTW_KIND_projection)->projection =
        (struct ctw_projection){.dim = dim};
    ctw_describe_linear(
        c, i, branch,
        &(struct ctw_linear_rules){CTW_P_PROJECTION, CTW_M_PROJECTION, 0, module, dim, dim});
}

const struct ctw_kind_row ctw_kind_projection = {.name = "projection"};
