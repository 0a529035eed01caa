#include "worker/engine/pass/kinds.h"

#include <string.h>

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

void ctw_branch_carry(const struct ctw_model *m, const struct ctw_branch *b, int64_t longest,
                      enum ctw_dtype dtype, struct ctw_carry_rule rules[CTW_BRANCH_CARRIES])
{
    memset(rules, 0, CTW_BRANCH_CARRIES * sizeof(*rules));
    if (ctw_ops_of(b)->carry != NULL)
        ctw_ops_of(b)->carry(m, b, longest, dtype, rules);
    if (b->conv_taps > 0)
        rules[CTW_CARRY_OUT] = (struct ctw_carry_rule){
            .bytes = (size_t)(m->hidden * (b->conv_taps - 1)) * sizeof(float), .life = CTW_STATE};
}

enum ctw_epilogue ctw_product_epilogue(const struct ctw_layer *l, int product)
{
    int branch = product / CTW_BRANCH_PRODUCTS, own = product % CTW_BRANCH_PRODUCTS;
    const struct ctw_kind_ops *ops = ctw_ops_of(&l->branch[branch]);
    const bool mixes = l->residual.kind == CTW_RESIDUAL_gated_streams ||
                       l->residual.kind == CTW_RESIDUAL_alternating;
    if (mixes && own >= CTW_P_MIX_DOWN)
        return CTW_EPI_STORE;
    if (ops->epilogue != NULL)
        return ops->epilogue(l, branch, own);
    return own == ops->joins && ctw_branch_is_direct(l, branch) ? CTW_EPI_ADD : CTW_EPI_STORE;
}
