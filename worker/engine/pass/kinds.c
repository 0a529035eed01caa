#include "worker/engine/pass/kinds.h"

#define DECLARE(name) extern const struct ctw_kind_ops ctw_ops_##name;
CTW_KINDS(DECLARE)

#define ROW(name) [CTW_KIND_##name] = &ctw_ops_##name,
static const struct ctw_kind_ops nothing;
static const struct ctw_kind_ops *const rows[CTW_N_KINDS] = {
    [CTW_KIND_none] = &nothing, CTW_KINDS(ROW)[CTW_KIND_ends] = &nothing};

const struct ctw_kind_ops *ctw_ops_of(const struct ctw_branch *b)
{
    return rows[b->kind];
}

enum ctw_epilogue ctw_product_epilogue(const struct ctw_layer *l, int product)
{
    int branch = product / CTW_BRANCH_PRODUCTS, own = product % CTW_BRANCH_PRODUCTS;
    const struct ctw_kind_ops *ops = ctw_ops_of(&l->branch[branch]);
    if (l->residual.kind == CTW_RESIDUAL_gated_streams && own >= CTW_P_MIX_DOWN)
        return CTW_EPI_STORE;
    if (ops->epilogue != NULL)
        return ops->epilogue(l, branch, own);
    return own == ops->joins && ctw_branch_is_direct(l, branch) ? CTW_EPI_ADD : CTW_EPI_STORE;
}
