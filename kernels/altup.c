#include "kernels/altup.h"

#include "kernels/backend_internal.h"

enum ctw_status ctw_altup(struct ctw_backend *be, const struct ctw_op_altup *op,
                          struct ctw_err *err)
{
    const bool level = op->form == CTW_ALTUP_LEVEL;
    bool ok = op->n_tok >= 0 && op->dim >= 1 && op->n >= 1 && op->n <= CTW_MAX_STREAMS &&
              op->active >= 0 && op->active < op->n && op->eps >= 0;
    if (!level)
        ok = ok && op->norm.at != NULL && op->router.at != NULL && op->coefs.at != NULL &&
             ctw_is_float(op->norm.dtype) && ctw_is_float(op->router.dtype) &&
             ctw_is_float(op->coefs.dtype) && (op->r != NULL) == (op->form == CTW_ALTUP_CORRECT);
    if (!ok)
        return ctw_fail(err, CTW_EINTERNAL, "altup: an argument is out of range");
    return op->n_tok == 0 ? CTW_OK : be->ops->altup(be, op, err);
}
