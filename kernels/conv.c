#include "kernels/conv.h"

#include "kernels/backend_internal.h"

/* Do the sequences follow one another, and only the first go on? */
static bool are_in_order(const struct ctw_op_conv *op)
{
    int64_t row = 0;
    bool ok = op->n_seqs >= 1 && (op->seqs[0].pos0 == 0 || op->before != NULL || op->taps == 1);
    for (int64_t i = 0; ok && i < op->n_seqs; i++) {
        ok = op->seqs[i].q_row == row && op->seqs[i].n_q >= 1 && (i == 0 || op->seqs[i].pos0 == 0);
        row += op->seqs[i].n_q;
    }
    return ok && row == op->n_tok;
}

enum ctw_status ctw_conv(struct ctw_backend *be, const struct ctw_op_conv *op, struct ctw_err *err)
{
    bool ok = ctw_is_float(op->dtype) && ctw_is_float(op->weight_dtype) && op->n_tok >= 0 &&
              op->dim >= 1 && op->taps >= 1 && op->taps <= CTW_MAX_TAPS &&
              op->ldx >= ctw_conv_columns(op) && op->ldy >= op->dim &&
              (op->bias == NULL || ctw_is_float(op->bias_dtype));
    if (!ok || (op->n_tok > 0 && !are_in_order(op)))
        return ctw_fail(err, CTW_EINTERNAL, "conv: an argument is out of range");
    return op->n_tok == 0 ? CTW_OK : be->ops->conv(be, op, err);
}
