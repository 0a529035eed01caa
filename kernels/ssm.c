#include "kernels/ssm.h"

#include "kernels/backend_internal.h"

static bool is_vector(const struct ctw_ssm_vector *v, bool needed)
{
    return v->data == NULL ? !needed : ctw_is_float(v->dtype);
}

enum ctw_status ctw_ssm(struct ctw_backend *be, const struct ctw_op_ssm *op, struct ctw_err *err)
{
    int64_t inner = op->n_head * op->head;
    bool ok = ctw_is_float(op->dtype) && op->n_tok >= 0 && op->n_head >= 1 && op->head >= 1 &&
              op->n_groups >= 1 && op->n_head % op->n_groups == 0 && op->n_state >= 1 &&
              op->n_state <= CTW_MAX_STATE && op->ldx >= inner &&
              op->ldbc >= op->n_groups * op->n_state && op->lddt >= op->n_head &&
              (op->z == NULL || op->ldz >= inner) && op->ldy >= inner && op->dt_min <= op->dt_max &&
              is_vector(&op->a_log, true) && is_vector(&op->dt_bias, false) &&
              is_vector(&op->d, false) && (op->y != op->x || op->ldy == op->ldx);
    if (!ok ||
        (op->n_tok > 0 && !ctw_are_in_order(op->parts, op->n_parts, op->n_tok, &op->states)))
        return ctw_fail(err, CTW_EINTERNAL, "ssm: an argument is out of range");
    return op->n_tok == 0 ? CTW_OK : be->ops->ssm(be, op, err);
}
