#include "kernels/conv.h"

#include "kernels/backend_internal.h"

bool ctw_seqs_follow(const struct ctw_attn_seq *seqs, int64_t n_seqs, int64_t n_tok, bool goes_on)
{
    int64_t row = 0;
    bool ok = n_seqs >= 1 && (seqs[0].pos0 == 0 || goes_on);
    for (int64_t i = 0; ok && i < n_seqs; i++) {
        ok = seqs[i].q_row == row && seqs[i].n_q >= 1 && (i == 0 || seqs[i].pos0 == 0);
        row += seqs[i].n_q;
    }
    return ok && row == n_tok;
}

enum ctw_status ctw_conv(struct ctw_backend *be, const struct ctw_op_conv *op, struct ctw_err *err)
{
    bool ok = ctw_is_float(op->dtype) && ctw_is_float(op->weight_dtype) && op->n_tok >= 0 &&
              op->dim >= 1 && op->taps >= 1 && op->taps <= CTW_MAX_TAPS && op->run >= 0 &&
              op->step >= 0 && op->ldy >= op->dim &&
              op->ldx >= ctw_conv_column(op, op->dim - 1) + 1 + ctw_conv_columns(op) - op->dim &&
              (op->bias == NULL || ctw_is_float(op->bias_dtype));
    if (!ok || (op->n_tok > 0 && !ctw_seqs_follow(op->seqs, op->n_seqs, op->n_tok,
                                                  op->before != NULL || op->taps == 1)))
        return ctw_fail(err, CTW_EINTERNAL, "conv: an argument is out of range");
    return op->n_tok == 0 ? CTW_OK : be->ops->conv(be, op, err);
}
