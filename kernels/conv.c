#include "kernels/conv.h"

#include "kernels/backend_internal.h"

enum ctw_status ctw_conv(struct ctw_backend *be, const struct ctw_op_conv *op, struct ctw_err *err)
{
    bool ok = ctw_is_float(op->dtype) && ctw_is_float(op->weight_dtype) && op->n_tok >= 0 &&
              op->dim >= 1 && op->taps >= 1 && op->taps <= CTW_MAX_TAPS && op->run >= 0 &&
              op->step >= 0 && op->ldy >= op->dim &&
              op->ldx >= ctw_conv_column(op, op->dim - 1) + 1 + ctw_conv_columns(op) - op->dim &&
              (op->bias == NULL || ctw_is_float(op->bias_dtype));
    struct ctw_op_conv full = *op;
    full.dilation = op->dilation == 0 ? 1 : op->dilation;
    if (!ok || full.dilation < 1 ||
        (op->n_tok > 0 && !ctw_are_in_order(op->parts, op->n_parts, op->n_tok, &op->states)))
        return ctw_fail(err, CTW_EINTERNAL, "conv: an argument is out of range");
    return op->n_tok == 0 ? CTW_OK : be->ops->conv(be, &full, err);
}
