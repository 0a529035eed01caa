/* How much arithmetic a token costs: see plan.h. */
#include <math.h>

#include "worker/engine/pass/kinds.h"

static double flops_of(const struct ctw_matrix *m)
{
    return m->name == NULL ? 0 : 2.0 * (double)m->weight.n * (double)m->weight.k;
}

double ctw_plan_token_flops(const struct ctw_model *model, const struct ctw_layer *l)
{
    double flops = ctw_residual_of(l)->flops != NULL ? ctw_residual_of(l)->flops(model, l) : 0;
    for (int i = 0; i < CTW_N_MATRICES; i++)
        flops += flops_of(&l->matrix[i]);
    return flops;
}

double ctw_plan_expert_flops(const struct ctw_layer *l)
{
    double flops = 0;
    for (int i = 0; l->n_experts > 0 && i < CTW_N_EXPERT_MATRICES; i++)
        flops += flops_of(&l->expert[i]);
    return flops;
}

double ctw_plan_layer_flops(const struct ctw_model *model)
{
    double flops = 0;
    for (int i = 1; i <= model->n_decoders; i++) {
        const struct ctw_layer *l = &model->layers[i];
        flops += ctw_plan_token_flops(model, l);
        for (int b = 0; b < l->n_branches; b++) {
            const struct ctw_kind_ops *ops = ctw_ops_of(&l->branch[b]);
            if (ops->experts != NULL)
                flops += ops->experts(&l->branch[b]).chosen * ctw_plan_expert_flops(l);
        }
    }
    return flops;
}

double ctw_plan_head_flops(const struct ctw_model *model)
{
    return 2.0 * (double)model->vocab * (double)model->embed_dim;
}

double ctw_plan_attention_flops(const struct ctw_model *model, int64_t n_keys)
{
    double flops = 0;
    for (int i = 1; i <= model->n_decoders; i++)
        for (int b = 0; b < model->layers[i].n_branches; b++) {
            const struct ctw_branch *branch = &model->layers[i].branch[b];
            if (ctw_ops_of(branch)->key_flops != NULL)
                flops += ctw_ops_of(branch)->key_flops(branch, n_keys);
        }
    return flops;
}

struct ctw_cost ctw_plan_cost(const struct ctw_model *model)
{
    return (struct ctw_cost){.token = fmax(1, ctw_plan_layer_flops(model)),
                             .pair = ctw_plan_attention_flops(model, 1),
                             .target = ctw_plan_head_flops(model)};
}
