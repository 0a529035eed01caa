#include "base/mem.h"
#include "worker/checkpoint/identity.h"
#include "worker/model/model.h"
#include "worker/model/recipe/kinds.h"
#include "worker/model/rotations.h"
#include "worker/model/tensors.h"

static void free_inputs(struct ctw_head_inputs *inputs)
{
    for (int i = 0; inputs != NULL && i < CTW_N_HEADS; i++) {
        ctw_free(inputs->of[i].scale);
        ctw_free(inputs->of[i].zero);
    }
}

void ctw_model_close(struct ctw_model *m)
{
    if (m == NULL)
        return;
    for (int l = 0; l < m->n_layers; l++) {
        for (int i = 0; i < ctw_layer_n_matrices(&m->layers[l]); i++)
            ctw_matrix_close(ctw_layer_matrix(&m->layers[l], i));
        ctw_free(m->layers[l].expert);
        ctw_free(m->layers[l].places);
        ctw_free(m->layers[l].table.part);
        ctw_free(m->layers[l].table.row0);
        for (int b = 0; b < m->layers[l].n_branches; b++)
            free_inputs(ctw_branch_inputs(&m->layers[l].branch[b]));
        for (int i = 0; i < CTW_N_VECTORS; i++)
            ctw_free(m->layers[l].more[i]);
    }
    for (int i = 0; i < CTW_MAX_ROPES; i++) {
        ctw_free(m->rope[i].inv_freq);
        ctw_free(m->rope[i].long_inv_freq);
    }
    ctw_rotations_close(m);
    ctw_free(m->alibi);
    ctw_free(m->rates);
    ctw_free(m->layers);
    ctw_identity_close(m->identity);
    ctw_container_close(m->container);
    ctw_free(m->unread);
    ctw_free(m->activations);
    ctw_free(m->model_type);
    ctw_free(m->architecture);
    ctw_free(m->dir);
    ctw_free(m);
}
