/*
 * Inputs of their own for all decoder layers (Gemma 4's per-layer embeddings). Input l of a token,
 * [input_dim], is (embedding_l * scale + norm(projection_l of the model's embedding)) / sqrt(2); at
 * the end of layer l, residual += norm(projection(act(gate(residual)) * input)).
 */
#include <math.h>

#include "worker/engine/pass/step.h"

void *ctw_layer_inputs_at(const struct ctw_step *s, int64_t decoder)
{
    const struct ctw_model *m = s->f->model;
    int64_t at = s->chunk->tok0 * m->n_decoders * m->input_dim + decoder * m->input_dim;
    return (char *)s->f->inputs + (size_t)at * ctw_dtype_bytes(s->f->dtype);
}

/* The embeddings themselves are added afterwards. */
enum ctw_status ctw_layer_inputs(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_model *m = s->f->model;
    int64_t columns = m->n_decoders * m->input_dim;
    struct ctw_op_norm op = ctw_step_norm(s, CTW_AT_INPUTS);
    enum ctw_status st = ctw_step_read(s, CTW_AT_IN, err);
    if (st == CTW_OK)
        st = ctw_step_product(s, CTW_P_INPUTS, s->f->norm, m->hidden, ctw_layer_inputs_at(s, 0),
                              columns, err);
    op.dim = m->input_dim;
    op.n_groups = m->n_decoders;
    op.x = op.y = ctw_layer_inputs_at(s, 0);
    op.x_dtype = op.dtype = s->f->dtype;
    op.factor = (float)M_SQRT1_2;
    return st == CTW_OK ? ctw_norm(s->f->be, &op, err) : st;
}

static enum ctw_status run(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_model *m = s->f->model;
    struct ctw_forward *f = s->f;
    enum ctw_status st =
        ctw_step_product(s, CTW_P_INPUT_GATE, f->norm, m->hidden, f->wide, m->input_dim, err);
    if (st == CTW_OK)
        st = ctw_act(f->be,
                     &(struct ctw_op_act){.act = s->branch->own_input.act,
                                          .dtype = f->dtype,
                                          .n_tok = s->chunk->n_tok,
                                          .dim = m->input_dim,
                                          .x = f->wide,
                                          .ldx = m->input_dim,
                                          .up = ctw_layer_inputs_at(s, s->layer - m->layers - 1),
                                          .ldup = m->n_decoders * m->input_dim,
                                          .y = f->wide,
                                          .ldy = m->input_dim},
                     err);
    return st == CTW_OK ? ctw_step_join(s, CTW_P_INPUT_PROJ, f->wide, m->input_dim, err) : st;
}

const struct ctw_kind_ops ctw_ops_own_input = {.joins = CTW_P_INPUT_PROJ, .run = run};
