/* A linear layer by itself. Its output is in f->wide, since it reads f->norm. */
#include "worker/engine/pass/step.h"

static enum ctw_status run(const struct ctw_step *s, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const int64_t dim = s->branch->projection.dim;
    enum ctw_status st = ctw_step_product(s, CTW_P_PROJECTION, f->norm, dim, f->wide, dim, err);
    return st == CTW_OK ? ctw_residual_of(s->layer)->join(s, f->wide, f->dtype, err) : st;
}

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    (void)longest;
    w->wide = ctw_max64(w->wide, l->branch[branch].projection.dim);
}

static enum ctw_epilogue epilogue(const struct ctw_layer *l, int branch, int product)
{
    (void)l;
    (void)branch;
    (void)product;
    return CTW_EPI_STORE;
}

const struct ctw_kind_ops ctw_ops_projection = {.widen = widen, .epilogue = epilogue, .run = run};
