#include "kernels/turn.h"

#include "kernels/backend_internal.h"

enum ctw_status ctw_turn(struct ctw_backend *be, const struct ctw_op_turn *op, struct ctw_err *err)
{
    REQUIRE("turn", ctw_is_float(op->dtype) && op->n_tok >= 0 && op->n_head >= 1);
    REQUIRE("turn", op->turning >= 2 && op->turning % 2 == 0 && op->turning <= op->head);
    REQUIRE("turn", op->ldx >= (int64_t)op->n_head * op->head);
    REQUIRE("turn", op->positions != NULL && op->cos_sin != NULL);
    return op->n_tok == 0 ? CTW_OK : be->ops->turn(be, op, err);
}
