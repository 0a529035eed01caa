#include "kernels/delta.h"

#include "kernels/backend_internal.h"

static bool has_shape(const struct ctw_op_delta *op)
{
    return op->n_tok >= 0 && op->n_key >= 1 && op->n_value >= op->n_key &&
           op->n_value % op->n_key == 0 && op->key >= 1 && op->key <= CTW_MAX_DELTA_HEAD &&
           op->value >= 1 && op->value <= CTW_MAX_DELTA_HEAD &&
           op->ldx >= 2 * (int64_t)op->n_key * op->key + (int64_t)op->n_value * op->value &&
           op->ldba > ctw_delta_column(op, op->n_value - 1) && op->least_log <= 0 &&
           (!op->by_channel || (op->n_value == op->n_key && op->key <= CTW_MAX_DELTA_CHANNELS &&
                                op->ldba >= (int64_t)op->n_value * op->key)) &&
           op->ldy >= (int64_t)op->n_value * op->value;
}

enum ctw_status ctw_delta(struct ctw_backend *be, const struct ctw_op_delta *op,
                          struct ctw_err *err)
{
    bool ok = ctw_is_float(op->dtype) && ctw_is_float(op->a_log_dtype) &&
              ctw_is_float(op->dt_bias_dtype) && has_shape(op);
    if (!ok ||
        (op->n_tok > 0 && !ctw_are_in_order(op->parts, op->n_parts, op->n_tok, &op->states)))
        return ctw_fail(err, CTW_EINTERNAL, "delta: an argument is out of range");
    return op->n_tok == 0 ? CTW_OK : be->ops->delta(be, op, err);
}
