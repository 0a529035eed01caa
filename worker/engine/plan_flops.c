/* How much arithmetic a token costs: see plan.h. */
#include "worker/engine/plan.h"

static double flops_of(const struct ctw_matrix *m)
{
    return m->name == NULL ? 0 : 2.0 * (double)m->weight.n * (double)m->weight.k;
}

double ctw_plan_matrix_flops(const struct ctw_layer *l)
{
    double flops = 0;
    for (int i = 0; i < CTW_N_MATRICES; i++)
        flops += flops_of(&l->matrix[i]);
    return flops;
}

double ctw_plan_expert_flops(const struct ctw_layer *l)
{
    double flops = 0;
    for (int i = 0; l->mixture.matrix != NULL && i < CTW_N_EXPERT_MATRICES; i++)
        flops += flops_of(&l->mixture.matrix[i]);
    return flops;
}

double ctw_plan_layer_flops(const struct ctw_model *model)
{
    double flops = 0;
    for (int i = 1; i <= model->n_decoders; i++) {
        const struct ctw_layer *l = &model->layers[i];
        flops += ctw_plan_matrix_flops(l) + l->mixture.route.chosen * ctw_plan_expert_flops(l);
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
    for (int i = 1; i <= model->n_decoders; i++) {
        const struct ctw_layer *l = &model->layers[i];
        int64_t keys = l->window > 0 && l->window < n_keys ? l->window : n_keys;
        flops += 2.0 * l->n_head * (double)(l->head + l->head_v) * (double)keys;
    }
    return flops;
}
