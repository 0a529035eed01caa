#include "worker/engine/pass/residuals.h"

#define DECLARE(name) extern const struct ctw_residual_ops ctw_residual_##name;
CTW_RESIDUALS(DECLARE)

#define ROW(name) [CTW_RESIDUAL_##name] = &ctw_residual_##name,
static const struct ctw_residual_ops *const rows[CTW_N_RESIDUALS] = {CTW_RESIDUALS(ROW)};

const struct ctw_residual_ops *ctw_residual_of(const struct ctw_layer *l)
{
    return rows[l->residual.kind];
}

int64_t ctw_residual_width(const struct ctw_model *m)
{
    return ctw_residual_of(&m->layers[0])->width(m);
}

size_t ctw_residual_bytes(const struct ctw_model *m, int64_t n_tok)
{
    const struct ctw_residual_ops *ops = ctw_residual_of(&m->layers[0]);
    int64_t numbers = ops->width(m) + (ops->kept != NULL ? ops->kept(m) : 0);
    return (size_t)(n_tok * numbers) * ctw_dtype_bytes(CTW_RESIDUAL);
}
