#include "kernels/streams.h"

#include "kernels/backend_internal.h"

static bool is_valid(const struct ctw_stream_weights *w)
{
    return w->at != NULL && ctw_is_float(w->dtype);
}

enum ctw_status ctw_collapse(struct ctw_backend *be, const struct ctw_op_collapse *op,
                             struct ctw_err *err)
{
    struct ctw_op_collapse full = *op;
    full.post_factor = op->post_factor == 0 ? 2 : op->post_factor;
    REQUIRE("collapse", op->n_tok >= 0 && op->dim >= 1 && op->n_sinkhorn >= 0);
    REQUIRE("collapse", op->n >= 1 && op->n <= CTW_MAX_STREAMS);
    REQUIRE("collapse", (op->fn.at == NULL && op->mix == NULL) ||
                            (is_valid(&op->fn) && is_valid(&op->base) && is_valid(&op->scale)));
    return op->n_tok == 0 ? CTW_OK : be->ops->collapse(be, &full, err);
}

enum ctw_status ctw_expand(struct ctw_backend *be, const struct ctw_op_expand *op,
                           struct ctw_err *err)
{
    struct ctw_op_expand full = *op;
    full.factor = op->factor == 0 ? 1 : op->factor;
    REQUIRE("expand", op->n_tok >= 0 && op->dim >= 1 && ctw_is_float(op->dtype));
    REQUIRE("expand", op->n >= 1 && op->n <= CTW_MAX_STREAMS);
    return op->n_tok == 0 ? CTW_OK : be->ops->expand(be, &full, err);
}
