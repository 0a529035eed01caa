/* Which targets a row of struct ctw_op_head has. */
#ifndef CTW_KERNELS_HEAD_TARGETS_H
#define CTW_KERNELS_HEAD_TARGETS_H

#include "kernels/operations.h"

/* The first target of a row, which has one at least; its targets end where the next row's begin.
 * first_target NULL: row i has target i alone. */
CTW_HD int32_t ctw_head_target(const int32_t *first_target, int64_t row)
{
    return first_target != NULL ? first_target[row] : (int32_t)row;
}

/* Is a logit a product and a scale, and nothing else? */
static inline bool ctw_head_is_plain(const struct ctw_op_head *op)
{
    return op->softcap == 0 && op->weight->bias == NULL && op->weight->output == NULL;
}

#endif
