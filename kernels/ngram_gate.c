#include "kernels/ngram_gate.h"

#include "kernels/backend_internal.h"

enum ctw_status ctw_ngram_gate(struct ctw_backend *be, const struct ctw_op_ngram_gate *op,
                               struct ctw_err *err)
{
    REQUIRE("ngram_gate", ctw_is_float(op->dtype) && op->n_tok >= 0 && op->dim >= 1);
    REQUIRE("ngram_gate", op->n >= 1 && op->n <= CTW_MAX_STREAMS && op->ld >= op->n * op->dim);
    REQUIRE("ngram_gate", ctw_is_float(op->key_norm.dtype) && ctw_is_float(op->x_norm.dtype));
    REQUIRE("ngram_gate", op->key_norm.at != NULL && op->x_norm.at != NULL && op->eps >= 0);
    return op->n_tok == 0 ? CTW_OK : be->ops->ngram_gate(be, op, err);
}
