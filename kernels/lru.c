#include "kernels/lru.h"

#include "kernels/backend_internal.h"

enum ctw_status ctw_lru(struct ctw_backend *be, const struct ctw_op_lru *op, struct ctw_err *err)
{
    const int64_t dim = op->n_head * op->head;
    bool ok = ctw_is_float(op->dtype) && ctw_is_float(op->decay_dtype) && op->n_tok >= 0 &&
              op->n_head >= 1 && op->head >= 1 && op->ldx >= dim && op->ldg >= 2 * dim &&
              op->ldy >= dim && (op->y != op->x || op->ldy == op->ldx);
    if (!ok || (op->n_tok > 0 && !ctw_are_in_order(op->parts, op->n_parts, op->n_tok, &op->states)))
        return ctw_fail(err, CTW_EINTERNAL, "lru: an argument is out of range");
    return op->n_tok == 0 ? CTW_OK : be->ops->lru(be, op, err);
}
