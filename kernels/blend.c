#include "kernels/blend.h"

#include "kernels/backend_internal.h"

enum ctw_status ctw_blend(struct ctw_backend *be, const struct ctw_op_blend *op,
                          struct ctw_err *err)
{
    bool ok = op->n_tok >= 0 && op->dim >= 1 && op->n_parts >= 1 && op->n_parts <= CTW_MAX_BLEND &&
              op->ldx >= op->n_parts * op->dim && op->ldy >= op->dim && op->eps >= 0 &&
              ctw_is_float(op->a_dtype) && (op->b == NULL || ctw_is_float(op->b_dtype));
    if (!ok)
        return ctw_fail(err, CTW_EINTERNAL, "blend: an argument is out of range");
    return op->n_tok == 0 ? CTW_OK : be->ops->blend(be, op, err);
}
