/* The facts of kinds of residual streams (residual.h). */
#include "worker/model/families/family.h"

void ctw_describe_beside_embedding(struct ctw_config *c)
{
    for (int i = 0; c->status == CTW_OK && i < c->model->n_layers; i++)
        c->model->layers[i].residual.kind = CTW_RESIDUAL_beside_embedding;
}

void ctw_describe_aside(struct ctw_config *c, int64_t i, int branch, enum ctw_reads reads,
                        enum ctw_joins joins)
{
    if (c->status != CTW_OK)
        return;
    struct ctw_beside_embedding *r = &c->model->layers[i + 1].residual.beside_embedding;
    r->reads[branch] = reads;
    r->joins[branch] = joins;
}
